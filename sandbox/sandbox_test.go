package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"go.uber.org/goleak"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// TestMain makes the test binary its own sandbox process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "sandbox" {
		os.Exit(sandbox.ProcessMain())
	}
	if len(os.Args) == 5 && os.Args[1] == "hostile" {
		os.Exit(sandbox.HostileProcess(os.Args[2], os.Args[3], os.Args[4]))
	}
	if len(os.Args) == 5 && os.Args[1] == "supervise" {
		os.Exit(supervise(os.Args[2], os.Args[3], os.Args[4]))
	}
	if len(os.Args) == 3 && os.Args[1] == "answer" {
		os.Exit(answer(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// newSupervisor is a supervisor that is closed with the test. Guests' work
// directories are below its WorkRoot.
func newSupervisor(tb testing.TB, change ...func(*sandbox.ProcessConfig)) *sandbox.Supervisor {
	tb.Helper()
	cfg := sandbox.ProcessConfig{Config: sandbox.Config{CacheDir: testenv.CompiledCache(tb)}, WorkRoot: tb.TempDir()}
	for _, c := range change {
		c(&cfg)
	}
	s, err := sandbox.NewSupervisor(cfg)
	if err != nil {
		tb.Fatalf("NewSupervisor: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return s
}

// eachRunner runs a test in an engine and in sandbox processes that are configured alike.
func eachRunner(t *testing.T, change func(*sandbox.ProcessConfig), test func(*testing.T, runner)) {
	t.Helper()
	t.Run("engine", func(t *testing.T) {
		t.Parallel()
		cfg := sandbox.ProcessConfig{Config: sandbox.Config{CacheDir: testenv.CompiledCache(t)}}
		change(&cfg)
		test(t, newEngineWith(t, cfg.Config))
	})
	t.Run("process", func(t *testing.T) {
		t.Parallel()
		test(t, newSupervisor(t, change))
	})
}

// newEngine is an engine that is closed with the test.
func newEngine(tb testing.TB) *sandbox.Engine {
	tb.Helper()
	return newEngineWith(tb, sandbox.Config{CacheDir: testenv.CompiledCache(tb)})
}

func newEngineWith(tb testing.TB, cfg sandbox.Config) *sandbox.Engine {
	tb.Helper()
	e, err := sandbox.New(cfg)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return e
}

// wat compiles the text of a module.
func wat(tb testing.TB, text string) string {
	tb.Helper()
	binary, err := wasmtime.Wat2Wasm(text)
	if err != nil {
		tb.Fatalf("wat: %v", err)
	}
	return file(tb, binary)
}

func file(tb testing.TB, content []byte) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "module.wasm")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// spec is a run of a module with the default limits.
func spec(tb testing.TB, module string) sandbox.Spec {
	tb.Helper()
	binary, err := os.ReadFile(module)
	if err != nil {
		tb.Fatal(err)
	}
	return sandbox.Spec{
		Module: module, Digest: protocol.DigestOf(binary), Args: []string{"capsule"}, Limits: protocol.DefaultLimits(),
	}
}

// recorder keeps the events of a run.
type recorder struct {
	mu     sync.Mutex
	events []protocol.Event
}

func (r *recorder) emit(e protocol.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) all() []protocol.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]protocol.Event(nil), r.events...)
}

// text is the text of all fragments.
func (r *recorder) text() string {
	var b strings.Builder
	for _, e := range r.all() {
		if e.Kind == protocol.EventTextDelta {
			b.WriteString(e.Text)
		}
	}
	return b.String()
}

func run(tb testing.TB, e *sandbox.Engine, s sandbox.Spec) (sandbox.Ending, *recorder) {
	tb.Helper()
	r := &recorder{}
	return e.Run(context.Background(), s, r.emit), r
}
