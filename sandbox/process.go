package sandbox

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"starling/sandbox/internal/confine"
)

// process is one sandbox process as its supervisor sees it.
type process struct {
	command *exec.Cmd
	slots   []*slot
	stderr  *processStderr
	dead    chan struct{} // closed when it is gone and its stderr was read
	how     string        // after dead: the signal or the exit status
	dirs    workDirs      // of the guests in it
	ground  *ground       // what it may reach

	mu      sync.Mutex
	active  int   // guests in it
	alone   bool  // the guest in it shares it with nobody
	atDeath int   // active when it was gone
	gone    bool  // dead is about to be closed
	retired bool  // it is ended because it is of no more use
	spent   bool  // it ran a component; written by who has it alone
	culprit *slot // whose guest made us kill it
}

// slot is a place for one guest in a process.
type slot struct {
	process *process
	pipe    *pipe
	control *pipe // what stops a guest; nil in a process that compiles
	// Used by whoever took the slot.
	runs      int64
	idleSince time.Time
}

func (s *slot) close() error {
	var problems []error
	for _, p := range []*pipe{s.pipe, s.control} {
		if p == nil {
			continue
		}
		problems = append(problems, p.conn.Close())
	}
	return errors.Join(problems...)
}

// ping asks whether the process still answers, and waits for pongTimeout at most.
// Only whoever took the slot calls it, before its guest starts.
func (s *slot) ping() error {
	if err := s.pipe.conn.SetDeadline(time.Now().Add(pongTimeout)); err != nil {
		return err
	}
	if err := s.pipe.send(msgPing, nil); err != nil {
		return err
	}
	kind, _, err := s.pipe.receive()
	if err != nil {
		return err
	}
	if kind != msgPong {
		return fmt.Errorf("%w: a %q for a ping", errBadMessage, kind)
	}
	return s.pipe.conn.SetDeadline(time.Time{})
}

func (p *process) pid() int { return p.command.Process.Pid }

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// take counts a guest in, unless the process is gone or has to be shared with
// one that runs alone.
func (p *process) take(alone bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.retired || p.alone || (alone && p.active > 0) {
		return false
	}
	p.active++
	p.alone = alone
	return true
}

func (p *process) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.alone = false
}

// kill ends the process because of one guest in it; nil: because of none.
func (p *process) kill(culprit *slot) {
	p.mu.Lock()
	if p.culprit == nil && !p.gone {
		p.culprit = culprit
	}
	p.mu.Unlock()
	_ = p.command.Process.Kill() // it may be gone already
}

// retire ends a process that is of no more use, unless a guest is in it.
func (p *process) retire() {
	p.mu.Lock()
	idle := p.active == 0
	p.retired = p.retired || idle
	p.mu.Unlock()
	if idle {
		_ = p.command.Process.Kill() // it may be gone already
	}
}

// end ends a process without guests and waits until it is gone.
func (p *process) end() {
	for _, s := range p.slots {
		_ = s.close() // which tells it
	}
	_ = p.command.Process.Kill()
	<-p.dead
}

// blame says whose fault the death of the process is, for the guest in s. Call it
// after dead.
func (p *process) blame(s *slot) Blame {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.culprit == s:
		return BlameGuest
	case p.culprit != nil:
		return BlameOther
	case p.atDeath <= 1:
		return BlameGuest
	default:
		return BlameUnclear
	}
}

// readyTimeout bounds how long a process may take to be ready, on a machine that
// is busy.
const readyTimeout = 30 * time.Second

// start starts a process that runs guests and waits until it is ready.
func (s *Supervisor) start() (*process, error) {
	g, err := s.ground()
	if err != nil {
		return nil, err
	}
	p, err := s.launch(hello{
		Version: pipeVersion,
		Run: &helloRun{
			Density: s.cfg.Density, MaxModules: s.cfg.MaxModules, Tick: s.cfg.Tick, ResidentBytes: s.cfg.ResidentBytes,
			Components: s.cfg.Components,
		},
		Rules: confine.Rules{
			ReadDirs: []string{g.artifacts.dir}, WriteDirs: []string{s.cfg.WorkRoot},
			OpenFiles:         uint64(64 + openFiles*s.cfg.Density),
			AddressSpaceBytes: uint64(4<<30 + s.cfg.Density*addressSpace + s.componentSpace()),
		},
	}, nil)
	if err != nil {
		return nil, err
	}
	p.ground = g
	s.mu.Lock()
	s.processes[p] = true
	s.mu.Unlock()
	s.starter.group.Go(func() {
		<-p.dead
		s.mu.Lock()
		delete(s.processes, p)
		s.free = slices.DeleteFunc(s.free, func(idle *slot) bool {
			if idle.process == p {
				_ = idle.close()
			}
			return idle.process == p
		})
		p.mu.Lock()
		unexpected := !s.closed && !p.retired
		p.mu.Unlock()
		s.mu.Unlock()
		if unexpected {
			s.deaths.Add(1)
			s.cfg.Logger.Warn("sandbox process died", slog.Int("pid", p.pid()), slog.String("how", p.how))
		}
	})
	return p, nil
}

const (
	openFiles = 512 // per guest
	// addressSpace is what one guest may map: the engine reserves 4 GiB and a guard
	// for its memory, whatever it is granted of it, once in its pool and once for a
	// guest that does not fit the pool.
	addressSpace = 12 << 30
)

// launch starts the configured command with pipes and files beyond stdio, says
// hello and waits for the answer.
func (s *Supervisor) launch(h hello, files []*os.File) (*process, error) {
	p := &process{dead: make(chan struct{}), stderr: &processStderr{}}
	p.command = exec.Command(s.cfg.Command[0], s.cfg.Command[1:]...) //nolint:noctx // no call's: process.end ends it
	if s.cfg.Command[0] == selfProgram() {
		p.command.Args[0] = filepath.Base(os.Args[0]) // as ps shows it
	}
	// Nothing of the worker's environment. The allocator may otherwise reserve an
	// arena of address space per thread, and Go a page of text per goroutine.
	p.command.Env = []string{"GOTRACEBACK=none", "GOGC=400", "MALLOC_ARENA_MAX=4", "RAYON_NUM_THREADS=4"}
	p.command.Dir = "/"
	p.command.SysProcAttr = processAttributes()
	theirs, err := p.openSlots(h)
	// Before anything is awaited: as long as one is open here, a process that dies
	// does not close its pipes.
	closeTheirs := func() {
		for _, f := range theirs {
			_ = f.Close() // the process has its own by now
		}
	}
	if err != nil {
		closeTheirs()
		return nil, errors.Join(fmt.Errorf("sandbox process: %w", err), p.closeSlots())
	}
	p.command.ExtraFiles = append(append([]*os.File(nil), theirs...), files...)
	stderr, err := p.command.StderrPipe()
	if err == nil {
		err = s.starter.start(p.command)
	}
	closeTheirs()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox process: start %s: %w", s.cfg.Command[0], err), p.closeSlots())
	}
	s.starter.group.Go(func() { p.wait(stderr) })
	if err := s.greet(p, h); err != nil {
		late := errors.Is(err, os.ErrDeadlineExceeded) // and killed by nobody but us
		_ = p.command.Process.Kill()
		<-p.dead
		text := ""
		if lines := p.stderr.lines(); len(lines) > 0 {
			text = ": " + strings.Join(lines, "; ")
		}
		err = fmt.Errorf("sandbox process: %w (%s%s)", err, p.how, text)
		if !late && p.command.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			err = &killedError{err}
		}
		return nil, errors.Join(err, p.closeSlots())
	}
	return p, nil
}

// killedError says that a process was killed, by others, before it was ready.
type killedError struct{ error }

func (e *killedError) Unwrap() error { return e.error }

// openSlots makes the slots that h tells of, each with its pipes, and gives the
// process's ends, which the caller closes also when it fails.
func (p *process) openSlots(h hello) (theirs []*os.File, err error) {
	places := 1
	if h.Run != nil {
		places = h.Run.Density
	}
	for range places {
		data, files, err := dataPipes()
		if err != nil {
			return theirs, err
		}
		place := &slot{process: p, pipe: newPipe(data)}
		p.slots, theirs = append(p.slots, place), append(theirs, files...)
		if h.Run == nil {
			continue
		}
		control, file, err := pipeToProcess()
		if err != nil {
			return theirs, err
		}
		place.control, theirs = newPipe(control), append(theirs, file)
	}
	return theirs, nil
}

func (s *Supervisor) greet(p *process, h hello) error {
	control := p.slots[0].pipe
	if err := control.conn.SetDeadline(time.Now().Add(readyTimeout)); err != nil {
		return err
	}
	if err := control.sendJSON(msgHello, h); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	var answer ready
	if err := control.receiveJSON(msgReady, &answer); err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	if answer.Version != pipeVersion {
		return fmt.Errorf("it speaks version %d of the sandbox protocol and this program %d: run both from one binary", answer.Version, pipeVersion)
	}
	s.noteConfinement(answer.Confined)
	return control.conn.SetDeadline(time.Time{})
}

// noteConfinement warns, once, of what the kernel does not enforce.
func (s *Supervisor) noteConfinement(r confine.Report) {
	s.mu.Lock()
	first := !s.warned
	s.warned, s.confined = true, r
	s.mu.Unlock()
	if !first {
		return
	}
	for _, missing := range r.Missing() {
		s.cfg.Logger.Warn("sandbox processes are less confined than they could be", slog.String("missing", missing))
	}
}

func (p *process) closeSlots() error {
	var problems []error
	for _, s := range p.slots {
		problems = append(problems, s.close())
	}
	return errors.Join(problems...)
}

// wait reads what the process says on stderr until it is gone.
func (p *process) wait(stderr io.Reader) {
	_, _ = io.Copy(p.stderr, stderr) // until the process is gone, whatever happens
	err := p.command.Wait()
	p.how = p.command.ProcessState.String()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.how = err.Error()
	}
	p.mu.Lock()
	p.gone, p.atDeath = true, p.active
	p.mu.Unlock()
	close(p.dead)
}

// processStderr keeps the first lines that a process wrote itself: a healthy one
// writes none, one that dies says why, and then prints its registers. It is safe
// for concurrent use.
type processStderr struct {
	mu   sync.Mutex
	text []byte
}

const (
	maxProcessStderr = 4096
	deathLines       = 4
)

func (s *processStderr) Write(piece []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, piece[:min(len(piece), maxProcessStderr-len(s.text))]...)
	return len(piece), nil
}

func (s *processStderr) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for line := range strings.Lines(validText(s.text)) {
		if line = strings.TrimSpace(line); line != "" && len(lines) < deathLines {
			lines = append(lines, cut(line, tailLineBytes))
		}
	}
	return lines
}

// starter starts processes from one thread that lives as long as they do: the
// kernel kills a child with the thread that started it, not with the process.
type starter struct {
	requests chan func()
	done     chan struct{}
	group    sync.WaitGroup // of goroutines that outlast a start
}

func newStarter() *starter {
	s := &starter{requests: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for start := range s.requests {
			start()
		}
	}()
	return s
}

func (s *starter) start(command *exec.Cmd) error {
	done := make(chan error, 1)
	s.requests <- func() { done <- command.Start() }
	return <-done
}

// close waits until everything of all processes is gone.
func (s *starter) close() {
	s.group.Wait()
	close(s.requests)
	<-s.done
}
