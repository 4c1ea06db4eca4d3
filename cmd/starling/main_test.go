package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// asProgram makes the test binary the program itself, so that tests can start
// it as a process without building it again.
const asProgram = "GO_TEST_AS_STARLING"

func TestMain(m *testing.M) {
	sandboxProcess := len(os.Args) == 2 && os.Args[1] == "sandbox" // it has no environment
	if os.Getenv(asProgram) != "" || sandboxProcess {
		main()
	}
	testenv.Main(m)
}

// output is a buffer that a command may write to while a test reads it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// result is what a command did.
type result struct {
	status   int
	out, err string
}

// starling runs a command in this process.
func starling(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errs output
	status := run(t.Context(), args, streams{in: strings.NewReader(stdin), out: &out, err: &errs})
	return result{status, out.String(), errs.String()}
}

// runArgs are what every `run` in a test needs: directories of its own, and the
// shared cache of compiled modules.
func runArgs(t *testing.T, args ...string) []string {
	t.Helper()
	return append(args, "--work-root", filepath.Join(t.TempDir(), "work"), "--cache-dir", testenv.CompiledCache(t))
}

// hello is the example capsule, with its manifest beside the module.
func hello(t *testing.T) string {
	t.Helper()
	return capsuleDir(t, testenv.GoCapsule(t, "hello"), readDoc(t, "sandbox/guest/examples/hello/murmur.yaml"))
}

// agent is the capsule of many behaviours.
func agent(t *testing.T, output protocol.OutputMode) string {
	t.Helper()
	return capsuleDir(t, testenv.GoCapsule(t, "agent"), "name: agent\nversion: 1.0.0\noutput: "+string(output)+"\n")
}

// capsuleDir is a directory with a module and its manifest.
func capsuleDir(t *testing.T, module, manifest string) string {
	t.Helper()
	data, err := os.ReadFile(module)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"capsule.wasm": data, protocol.ManifestFile: []byte(manifest)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// testFleet is a fleet in this process that listens on a port.
func testFleet(t *testing.T, change func(*fleetConfig)) *fleet {
	t.Helper()
	return testFleetLogging(t, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), change)
}

func testFleetLogging(t *testing.T, log *slog.Logger, change func(*fleetConfig)) *fleet {
	t.Helper()
	dir := t.TempDir()
	settings := workerSettings{
		Slots: 4, WorkRoot: filepath.Join(dir, "work"), CacheDir: testenv.CompiledCache(t), CancelGrace: 500 * time.Millisecond,
	}
	cfg := fleetConfig{
		server: broker.ServerConfig{StoreDir: filepath.Join(dir, "store"), Port: -1},
		init:   broker.InitConfig{AckWait: 3 * time.Second},
	}
	if err := bind(pflag.NewFlagSet("", pflag.ContinueOnError), &cfg.sandbox); err != nil { // the defaults
		t.Fatal(err)
	}
	var err error
	if cfg.worker, err = settings.config(protocol.DefaultPool); err != nil {
		t.Fatal(err)
	}
	cfg.worker.PullExpires = 200 * time.Millisecond
	if cfg.completion, err = (completionSettings{CompletionBackoff: 50 * time.Millisecond}).config(log); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	f, err := startFleet(context.WithoutCancel(t.Context()), cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.stop(); err != nil {
			t.Errorf("stop the fleet: %v", err)
		}
	})
	return f
}

// contains fails the test for each text that is missing.
func contains(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(got, text) {
			t.Errorf("%s does not hold %q:\n%s", what, text, got)
		}
	}
}

// program is the program with arguments, as a process that does not run yet.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(self, args...)
	process.Env = append(os.Environ(), asProgram+"=1")
	return process
}
