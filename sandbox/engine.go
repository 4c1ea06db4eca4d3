package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/protocol"
	"starling/sandbox/internal/wasmtimex"
)

// ErrClosed says that the engine was closed before or while a guest ran.
var ErrClosed = errors.New("sandbox engine is closed")

// ErrRefused says that a module or a run was refused before it started. The
// error's text names the thing and the fix.
var ErrRefused = errors.New("refused")

// ErrDamaged says that a module's file does not have its digest. It is an
// ErrRefused too.
var ErrDamaged = errors.New("module damaged")

// Config is how an [Engine] runs.
type Config struct {
	// CacheDir keeps compiled modules across processes, in a subdirectory
	// "compiled" of mode 0700: what is in it runs as native code. It is made when
	// it is not there, several processes of one user may share it, and nothing in
	// it is ever removed. Empty means no disk cache.
	CacheDir string
	// MaxModules bounds the compiled modules that are kept in memory; 0 is 64.
	MaxModules int
	// MaxModuleBytes bounds the size of a wasm file; 0 is 64 MiB.
	MaxModuleBytes int64
	// Tick is how often guests are asked to stop while one has to; 0 is 5 ms. At most 1 s.
	Tick time.Duration
	// Guests is how many guests find memory that is ready for them, which makes
	// them start faster; more run too. 0 is 32. Each takes 4 GiB of address space. They
	// are spread over a pool for each processor. At most [MaxGuests], over at most eight
	// pools.
	Guests int
	// ResidentBytes is how much of its memory a guest that is gone leaves in place
	// for the next, cleared; 0 is [DefaultResidentBytes], and -1 none. What a guest
	// uses beyond is given back when it is gone. It is at most Guests times that.
	ResidentBytes int64
	// HTTP is how guests' requests are made.
	HTTP HTTPConfig
	// Compiling is called when a module is compiled, or another process that compiles
	// it is waited for, and what it returns when that is over; nil: nobody is told. A
	// module that is in the cache is not compiled. It is called by several goroutines
	// at a time.
	Compiling func(protocol.Digest) (done func())
	// Logger is given what an operator should know; nil discards it.
	Logger *slog.Logger

	pools int // 0: one for each processor
}

// Validate reports all members that make no sense.
func (c Config) Validate() error {
	var problems []error
	if c.MaxModules < 0 {
		problems = append(problems, fmt.Errorf("MaxModules is %d: it is at least 1, or 0 for the default", c.MaxModules))
	}
	if c.MaxModuleBytes < 0 {
		problems = append(problems, fmt.Errorf("MaxModuleBytes is %d: it is at least 1, or 0 for the default", c.MaxModuleBytes))
	}
	if c.Tick < 0 || c.Tick > time.Second {
		problems = append(problems, fmt.Errorf("Tick is %s: it is at most 1s, or 0 for the default", c.Tick))
	}
	if c.Guests < 0 || c.Guests > MaxGuests {
		problems = append(problems, fmt.Errorf("the number of Guests is %d: it is 1 to %d, or 0 for the default", c.Guests, MaxGuests))
	}
	if c.ResidentBytes < -1 || c.ResidentBytes > MaxResidentBytes {
		problems = append(problems, fmt.Errorf("ResidentBytes is %d: it is 1 to %d, 0 for the default, or -1 for none",
			c.ResidentBytes, int64(MaxResidentBytes)))
	}
	return errors.Join(problems...)
}

// DefaultResidentBytes covers what a guest built by Go dirties before it does
// anything of its own.
const DefaultResidentBytes = 8 << 20

// The most that Config may ask for.
const (
	MaxGuests        = 1024
	MaxResidentBytes = 1 << 30
)

func (c Config) withDefaults() Config {
	if c.Guests == 0 {
		c.Guests = 32
	}
	if c.ResidentBytes == 0 {
		c.ResidentBytes = DefaultResidentBytes
	}
	if c.MaxModules == 0 {
		c.MaxModules = 64
	}
	if c.MaxModuleBytes == 0 {
		c.MaxModuleBytes = 64 << 20
	}
	if c.Tick == 0 {
		c.Tick = 5 * time.Millisecond
	}
	if c.Compiling == nil {
		c.Compiling = func(protocol.Digest) func() { return func() {} }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Engine compiles and runs guests. Its methods are safe for concurrent use.
// [Engine.Close] frees it.
type Engine struct {
	cfg      Config
	machines machines
	modules  *modules

	closing chan struct{}  // closed when Close begins: guests stop
	work    sync.WaitGroup // runs and compilations; Add only under mu
	stopped chan struct{}  // closed when no guest runs: the ticker stops
	ticker  sync.WaitGroup
	lasting lasting
	dirs    workDirs      // of the guests that run
	urgent  atomic.Int64  // guests that must stop and have not yet
	wake    chan struct{} // of capacity 1: filled when a guest becomes urgent

	mu     sync.Mutex
	closed bool
}

// New makes an engine and starts its one goroutine, the epoch ticker, which
// [Engine.Close] stops and waits for. It starts here, and not with the first
// run, because a guest without a ticker cannot be interrupted.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sandbox config: %w", err)
	}
	if err := wasmtimex.Check(); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	cfg = cfg.withDefaults()
	artifacts, err := openArtifacts(cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, closing: make(chan struct{}), stopped: make(chan struct{}), wake: make(chan struct{}, 1)}
	if err := e.machines.open(cfg); err != nil {
		return nil, err
	}
	e.lasting.after = guestLasts
	e.modules = newModules(e, artifacts)
	e.ticker.Go(e.tick)
	return e, nil
}

// guestLasts is when a guest gets a timer for its deadline, which is a second at
// least. Shorter would be dearer: a process whose runs come one in a while would wake
// for each.
const guestLasts = 250 * time.Millisecond

// newWasmEngine turns off what no capsule needs and what this line of the
// engine has advisories about. See docs/security.md. What is compiled does not
// depend on the pool; nil is none.
func newWasmEngine(pool *wasmtimex.Pool) *wasmtime.Engine {
	cfg := wasmConfig()
	if pool != nil {
		wasmtimex.UsePool(cfg, *pool)
	}
	return wasmtime.NewEngineWithConfig(cfg)
}

// wasmConfig is what all engines have in common.
func wasmConfig() *wasmtime.Config {
	cfg := wasmtime.NewConfig()
	cfg.SetStrategy(wasmtime.StrategyCranelift)
	cfg.SetEpochInterruption(true)
	cfg.SetWasmMemory64(false)
	cfg.SetWasmThreads(false)
	cfg.SetWasmMultiMemory(false)
	cfg.SetWasmGC(false)
	cfg.SetWasmFunctionReferences(false)
	cfg.SetWasmTailCall(false)
	cfg.SetWasmWideArithmetic(false)
	wasmtimex.Harden(cfg)
	return cfg
}

// settings names everything that a compiled module depends on, beside the
// module and the CPU. What was compiled before [checkCode] looked at it is compiled anew.
const settings = wasmtimex.Version + " cranelift epochs no-memory64 no-threads no-multi-memory no-gc no-tail-call no-exceptions" +
	" bounded-code"

// tick moves the epoch on while a guest must stop: at each tick every running
// guest asks its run whether it is the one. One step would not do: a guest that
// was just asked sets its next question by the epoch after it.
func (e *Engine) tick() {
	t := time.NewTicker(e.cfg.Tick)
	defer t.Stop()
	closing := e.closing
	for {
		t.Stop() // nobody has to stop: an engine that waits costs nothing
		select {
		case <-e.wake:
		case <-closing:
			closing = nil // from here on all have to
			e.urgent.Add(1)
		case <-e.stopped:
			return
		}
		t.Reset(e.cfg.Tick)
		for e.urgent.Load() > 0 {
			e.machines.tick()
			select {
			case <-t.C:
			case <-e.stopped:
				return
			}
		}
	}
}

// hurry makes the engine ask its guests, until calm, whether they must stop.
func (e *Engine) hurry() {
	e.urgent.Add(1)
	select {
	case e.wake <- struct{}{}:
	default: // the ticker will see
	}
}

func (e *Engine) calm() { e.urgent.Add(-1) }

// Deaths is 0: a guest that ends its process ends this one.
func (e *Engine) Deaths() uint64 { return 0 }

// enter counts a run or a compilation that Close waits for; false once closed.
func (e *Engine) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.work.Add(1)
	return true
}

// Close interrupts the guests that still run, waits for them, for compilations
// under way and for the ticker, and frees the engine. It is idempotent.
func (e *Engine) Close() error {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	if first {
		close(e.closing)
	}
	e.mu.Unlock()
	e.work.Wait()
	if !first {
		return nil
	}
	e.lasting.close()
	close(e.stopped)
	e.ticker.Wait()
	e.modules.close()
	e.machines.close()
	return nil
}

// Prepare makes a module ready for [Engine.Run]: from memory, from the disk
// cache, or by compiling the file, which takes seconds for a large one. Callers
// that ask for one digest at the same time share one compilation. A compilation
// cannot be interrupted: when ctx ends Prepare returns its cause and the work
// goes on for the next caller.
//
// # Errors
//
// [ErrRefused] for a module that cannot run ([ErrDamaged] among them for a file
// with another digest), [ErrClosed], the cause of ctx, or
// what kept the file from being read.
func (e *Engine) Prepare(ctx context.Context, module string, digest protocol.Digest) error {
	m, err := e.modules.acquire(ctx, source{path: module, digest: digest})
	if err != nil {
		return err
	}
	e.modules.release(m)
	return nil
}

// refusal is an ErrRefused whose text is the whole sentence.
type refusal string

func refusef(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

func (r refusal) Error() string        { return string(r) }
func (r refusal) Is(target error) bool { return target == ErrRefused }

// damaged is a refusal that is ErrDamaged too.
type damaged struct{ refusal }

func (damaged) Is(target error) bool { return target == ErrRefused || target == ErrDamaged }
