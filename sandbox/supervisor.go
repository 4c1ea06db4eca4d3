package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"starling/protocol"
	"starling/sandbox/internal/confine"
)

// ProcessConfig is how a [Supervisor] runs guests.
type ProcessConfig struct {
	// Config is that of the engines in the processes, but for Guests: in each process
	// Density guests find memory that is ready. Without a CacheDir compiled modules
	// live in a temporary directory until [Supervisor.Close].
	Config
	// WorkRoot is the directory below which all directories of guests lie. It is
	// made when it is not there. Sandbox processes can reach nothing else.
	WorkRoot string
	// Command starts a program that calls [ProcessMain]; nil is this program with
	// the argument "sandbox".
	Command []string
	// Density is how many guests run in one process at a time, at most 64; 0 is 1.
	// With more than one, a guest that brings its process down takes others along.
	Density int
	// CompileTimeout bounds one compilation, at least 1 s; 0 is 60 s. On a busy host it is longer:
	// until the compiler has used that much processor time, at most ten times as long.
	CompileTimeout time.Duration
	// CompileMemoryBytes bounds what one compilation may map, at least 256 MiB; 0 is
	// 3 GiB.
	CompileMemoryBytes int64
	// KillAfter is how long a guest may go on after its deadline or an
	// interruption before its process is killed; 0 is 1 s.
	KillAfter time.Duration
	// Components runs WASI 0.2 components too; without it they are refused. A
	// process that ran one is ended after it. See docs/security.md.
	Components bool
}

// Validate reports all members that make no sense.
func (c ProcessConfig) Validate() error {
	problems := []error{c.Config.Validate()}
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !filepath.IsAbs(c.WorkRoot) {
		bad("WorkRoot is %q: it is an absolute path", c.WorkRoot)
	}
	if c.Density < 0 || c.Density > maxDensity {
		bad("Density is %d: it is 1 to %d, or 0 for the default", c.Density, maxDensity)
	}
	if c.CompileTimeout < 0 || c.CompileTimeout > 0 && c.CompileTimeout < time.Second {
		bad("CompileTimeout is %s: it is at least 1s, or 0 for the default", c.CompileTimeout)
	}
	if c.CompileMemoryBytes < 0 || c.CompileMemoryBytes > 0 && c.CompileMemoryBytes < minCompileMemory {
		bad("CompileMemoryBytes is %d: it is at least %d, or 0 for the default", c.CompileMemoryBytes, minCompileMemory)
	}
	if c.KillAfter < 0 {
		bad("KillAfter is %s: it is positive, or 0 for the default", c.KillAfter)
	}
	return errors.Join(problems...)
}

const (
	maxDensity       = 64
	minCompileMemory = 256 << 20
)

func (c ProcessConfig) withDefaults() ProcessConfig {
	c.Config = c.Config.withDefaults()
	if len(c.Command) == 0 {
		c.Command = []string{selfProgram(), "sandbox"}
	}
	if c.Density == 0 {
		c.Density = 1
	}
	if c.CompileTimeout == 0 {
		c.CompileTimeout = time.Minute
	}
	if c.CompileMemoryBytes == 0 {
		c.CompileMemoryBytes = 3 << 30
	}
	if c.KillAfter == 0 {
		c.KillAfter = time.Second
	}
	return c
}

// Supervisor runs guests in sandbox processes, its children: warm, used again,
// and replaced when they die. It compiles modules in children of their own. Its
// methods are safe for concurrent use and mean what those of [Engine] mean.
// [Supervisor.Close] ends the processes.
//
// A process that dies is the [ProcessDied] ending of the guests in it. Nothing
// that a guest does in its process reaches the one that called Run.
type Supervisor struct {
	cfg       ProcessConfig
	temporary string // CacheDir, when it is ours to remove
	starter   *starter
	lasting   lasting

	ctx     context.Context // of compilations; done when Close begins
	closing context.CancelFunc
	work    sync.WaitGroup // runs and compilations; Add only under mu

	flights   singleflight.Group
	compiling chan struct{}
	memory    remembered

	grounding sync.Mutex             // held while the directories are looked at
	current   atomic.Pointer[ground] // as it was found last; stored under grounding

	busyHost  int           // see limitTime
	idleAfter time.Duration // a process that was idle for longer is asked whether it answers
	deaths    atomic.Uint64

	startingShared sync.Mutex // held while a process is started that several runs will share

	mu        sync.Mutex
	closed    bool
	free      []*slot // the last used at the end
	processes map[*process]bool
	suspects  map[protocol.Digest]bool // one of them brought a process down: they run alone
	confined  confine.Report
	warned    bool
}

// NewSupervisor makes a supervisor and starts its first process, so that a
// command that does not work is an error here; one that somebody kills meanwhile
// is started again, twice at most. It starts one goroutine for the
// system's sake, and one for each process.
func NewSupervisor(cfg ProcessConfig) (_ *Supervisor, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sandbox config: %w", err)
	}
	s := &Supervisor{
		cfg: cfg.withDefaults(), compiling: make(chan struct{}, compilations), lasting: lasting{after: lastingAfter},
		processes: map[*process]bool{}, suspects: map[protocol.Digest]bool{}, idleAfter: idleAfter, busyHost: busyHost,
	}
	s.ctx, s.closing = context.WithCancel(context.Background())
	if s.cfg.CacheDir == "" {
		if s.temporary, err = os.MkdirTemp("", "starling-sandbox-*"); err != nil {
			return nil, fmt.Errorf("sandbox cache: %w", err)
		}
		s.cfg.CacheDir = s.temporary
	}
	if _, err = s.ground(); err != nil {
		return nil, errors.Join(err, s.removeTemporary())
	}
	s.starter = newStarter()
	first, err := s.startFirst()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.put(first)
	return s, nil
}

// lastingAfter is when a run in a process can be told to stop. A guest that has
// only just started hears of it that much later.
const lastingAfter = 5 * time.Millisecond

// compilations run at a time: each may take all processors, at a low priority,
// and a hostile one all its time.
const compilations = 2

// Confinement reports, a sentence each, what the kernel does not enforce on the
// processes of this supervisor; nil when nothing is missing.
func (s *Supervisor) Confinement() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confined.Missing()
}

// MissingConfinement reports, a sentence each, what this host's kernel cannot
// enforce on sandbox processes; nil when nothing is missing. It starts nothing.
func MissingConfinement() []string { return confine.Support().Missing() }

// PIDs are the ids of the processes that live, for operators.
func (s *Supervisor) PIDs() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pids []int
	for p := range s.processes {
		pids = append(pids, p.pid())
	}
	return pids
}

// Deaths is how many processes ended that were still of use, whoever ended them.
func (s *Supervisor) Deaths() uint64 { return s.deaths.Load() }

// enter counts a run or a compilation that Close waits for; false once closed.
func (s *Supervisor) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

// Close interrupts the guests that still run, waits for them and for
// compilations under way, and ends all processes. It is idempotent.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	s.closing()
	s.work.Wait()
	if !first {
		return nil
	}
	s.mu.Lock()
	left := make([]*process, 0, len(s.processes))
	for p := range s.processes {
		left = append(left, p)
	}
	s.free = nil
	s.mu.Unlock()
	s.lasting.close()
	for _, p := range left {
		p.end()
	}
	s.starter.close()
	return s.removeTemporary()
}

func (s *Supervisor) removeTemporary() error {
	if s.temporary == "" {
		return nil
	}
	return os.RemoveAll(s.temporary)
}
