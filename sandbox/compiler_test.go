package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// lockedBuffer is a log that several supervisors write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *lockedBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestACompileBombIsRefusedAndCostsNobodyElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*sandbox.ProcessConfig)
		says   string
	}{
		"time": {
			func(c *sandbox.ProcessConfig) { c.CompileTimeout = 2 * time.Second },
			"takes longer than the compile time limit of 2s: make it smaller, or its functions; or raise the worker's STARLING_COMPILE_TIMEOUT (--compile-timeout)",
		},
		"memory": {
			func(c *sandbox.ProcessConfig) { c.CompileMemoryBytes = 256 << 20; c.CompileTimeout = 10 * time.Minute },
			"takes more than the compile memory limit of 268435456 bytes: make it smaller, or its functions; or raise the worker's STARLING_COMPILE_MEMORY_BYTES (--compile-memory-bytes)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log lockedBuffer
			s := newSupervisor(t, func(cfg *sandbox.ProcessConfig) {
				cfg.CacheDir, cfg.Logger = t.TempDir(), log.logger()
				c.change(cfg)
			})
			s.BusyHost(100) // the machine that runs the tests may be one
			bomb := spec(t, testenv.CompileBomb(t, 800, 400))
			refusal := make(chan error, 1)
			go func() { refusal <- s.Prepare(t.Context(), bomb.Module, bomb.Digest) }()
			// Meanwhile another capsule is compiled and runs, again and again.
			neighbour := spec(t, testenv.WAT(t, "noop"))
			runs := 0
			var err error
			for waiting := true; waiting; {
				if end := s.Run(t.Context(), neighbour, func(protocol.Event) {}); end.Kind != sandbox.Exited {
					t.Fatalf("the neighbour's Run = %+v, want exited", end)
				}
				runs++
				select {
				case err = <-refusal:
					waiting = false
				default:
				}
			}
			if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), bomb.Module) {
				t.Errorf("Prepare = %v, want a refusal that says %q", err, c.says)
			}
			if runs < 2 {
				t.Errorf("%d runs of the neighbour meanwhile, want several", runs)
			}
			// It is not tried again, under whatever name.
			moved := filepath.Join(t.TempDir(), "moved.wasm")
			if err := os.Rename(bomb.Module, moved); err != nil {
				t.Fatal(err)
			}
			bomb.Module = moved
			if end := s.Run(t.Context(), bomb, func(protocol.Event) {}); end.Kind != sandbox.Refused ||
				!strings.Contains(end.Message, c.says) || !strings.Contains(end.Message, moved) {
				t.Errorf("Run = %+v, want the same refusal with the new name", end)
			}
			left, err := filepath.Glob(filepath.Join(t.TempDir(), "compiled", ".compile-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("files left: %v, %v", left, err)
			}
		})
	}
}

func TestModulesThatCannotBeCompiledAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir, c.MaxModuleBytes = t.TempDir(), 100_000 })
	for name, says := range map[string]string{
		"badfunction": "no such function", "badimport": "no such interface", "nostart": "does not export a function _start",
	} {
		bad := spec(t, testenv.WAT(t, name))
		if err := s.Prepare(t.Context(), bad.Module, bad.Digest); !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("Prepare(%s) = %v, want a refusal that says %q", name, err, says)
		}
	}
	noop := spec(t, testenv.WAT(t, "noop"))
	other := spec(t, testenv.WAT(t, "trap"))
	if err := s.Prepare(t.Context(), other.Module, noop.Digest); !errors.Is(err, sandbox.ErrDamaged) {
		t.Errorf("Prepare of another file = %v, want ErrDamaged", err)
	}
	if err := s.Prepare(t.Context(), "/no/such.wasm", noop.Digest); err == nil || errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("Prepare without the file = %v, want an error that is no refusal", err)
	}
	large := spec(t, file(t, make([]byte, 100_001)))
	if err := s.Prepare(t.Context(), large.Module, large.Digest); !errors.Is(err, sandbox.ErrRefused) ||
		!strings.Contains(err.Error(), "more than 100000 bytes") {
		t.Errorf("Prepare of a large file = %v, want a refusal", err)
	}
	if err := s.Prepare(t.Context(), noop.Module, "sha256:x"); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("Prepare with a bad digest = %v, want a refusal", err)
	}
}

// TestAModuleIsCompiledOncePerHost: four workers that ask at once, and an engine.
func TestAModuleIsCompiledOncePerHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	module := spec(t, testenv.CompileBomb(t, 150, 50)) // takes a moment
	var log lockedBuffer
	config := sandbox.Config{CacheDir: dir, Logger: log.logger()}
	engine := newEngineWith(t, config)
	askers := []interface {
		Prepare(context.Context, string, protocol.Digest) error
	}{engine}
	for range 4 {
		askers = append(askers, newSupervisor(t, func(c *sandbox.ProcessConfig) { c.Config = config }))
	}
	var all sync.WaitGroup
	for _, asker := range askers {
		all.Go(func() {
			if err := asker.Prepare(t.Context(), module.Module, module.Digest); err != nil {
				t.Errorf("Prepare: %v", err)
			}
		})
	}
	all.Wait()
	if n := strings.Count(log.String(), "module compiled"); n != 1 {
		t.Errorf("compiled %d times, want once:\n%s", n, log.String())
	}
	// A first run on a host that has the compiled form needs neither file nor
	// compiler.
	if err := os.Remove(module.Module); err != nil {
		t.Fatal(err)
	}
	later := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.Config = config })
	if err := later.Prepare(t.Context(), module.Module, module.Digest); err != nil {
		t.Errorf("Prepare of what is compiled: %v", err)
	}
}

// TestACompiledModuleThatChangesIsNotRun: a process checks what it loads, and
// the worker compiles again.
func TestACompiledModuleThatChangesIsNotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir = dir })
	noop := spec(t, testenv.WAT(t, "noop"))
	for name, damage := range map[string]func(path string) error{
		"a flipped bit": func(path string) error {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content[len(content)/2] ^= 1
			return os.WriteFile(path, content, 0o600)
		},
		"a removed file": os.Remove,
	} {
		if err := s.Prepare(t.Context(), noop.Module, noop.Digest); err != nil {
			t.Fatal(err)
		}
		if err := damage(artifact(t, dir, noop)); err != nil {
			t.Fatal(err)
		}
		// A process that has not loaded it yet.
		for _, pid := range s.PIDs() {
			signal(t, pid, syscall.SIGKILL)
		}
		testenv.EventuallyTrue(t, soon, "no process", func() bool { return len(s.PIDs()) == 0 })
		if end := s.Run(t.Context(), noop, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			t.Errorf("%s: Run = %+v, want exited", name, end)
		}
	}
}

// TestCompilingIsNotChargedToTheDeadline: the run has one second and its
// compilation takes longer than that.
func TestCompilingIsNotChargedToTheDeadline(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir, c.CompileTimeout = t.TempDir(), 10*time.Minute })
	slow := spec(t, testenv.CompileBomb(t, 330, 150))
	slow.Limits.DeadlineSeconds = 1
	end := s.Run(t.Context(), slow, func(protocol.Event) {})
	if end.Kind != sandbox.Exited {
		t.Errorf("Run = %+v, want exited", end)
	}
}
