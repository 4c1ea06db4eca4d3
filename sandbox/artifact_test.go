package sandbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// prepared makes an engine over dir, prepares a module, and returns what was
// logged.
func prepared(t *testing.T, dir string, s sandbox.Spec) string {
	t.Helper()
	var log bytes.Buffer
	e, err := sandbox.New(sandbox.Config{
		CacheDir: dir,
		Logger:   slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Prepare(context.Background(), s.Module, s.Digest); err != nil {
		t.Errorf("Prepare = %v", err)
	}
	if got, _ := run(t, e, s); got.Kind != sandbox.Exited {
		t.Errorf("Run = %+v, want exited", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	return log.String()
}

func artifact(t *testing.T, dir string, s sandbox.Spec) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "compiled", s.Digest.Hex()+"-*.cwasm"))
	if err != nil || len(found) != 1 {
		t.Fatalf("artifacts %v, %v: want one", found, err)
	}
	return found[0]
}

func TestArtifacts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := spec(t, testenv.WAT(t, "memgrow"))
	if log := prepared(t, dir, s); !strings.Contains(log, "module compiled") {
		t.Errorf("first use logged %q, want a compilation", log)
	}
	path := artifact(t, dir, s)
	for path, want := range map[string]os.FileMode{
		path: 0o600, filepath.Dir(path): 0o700, filepath.Join(dir, "key", "host.key"): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v, want %v", path, info.Mode().Perm(), err, want)
		}
	}
	// The second engine needs the file no more.
	gone := s
	gone.Module = "/no/such.wasm"
	if log := prepared(t, dir, gone); log != "" {
		t.Errorf("second use logged %q, want nothing", log)
	}
	// What a module needs from the start is known without its file too.
	big := spec(t, testenv.WAT(t, "bigmemory"))
	prepared(t, dir, big)
	e := newEngineWith(t, sandbox.Config{CacheDir: dir})
	big.Limits.MemoryBytes = 1 << 20
	if got, _ := run(t, e, big); got.Limit != sandbox.LimitMemory {
		t.Errorf("Run = %+v, want the memory limit", got)
	}
}

// TestArtifactsThatAreNotOurs are compiled again, whatever is wrong with them.
func TestArtifactsThatAreNotOurs(t *testing.T) {
	t.Parallel()
	damage := map[string]func(content []byte) []byte{
		"flipped bit":     func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"flipped needs":   func(b []byte) []byte { b[len(b)-40] ^= 1; return b },
		"flipped MAC":     func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"cut off":         func(b []byte) []byte { return b[:len(b)-1] },
		"empty":           func([]byte) []byte { return nil },
		"nothing but MAC": func(b []byte) []byte { return b[len(b)-32:] },
	}
	for name, change := range damage {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := spec(t, testenv.WAT(t, "noop"))
			prepared(t, dir, s)
			path := artifact(t, dir, s)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, change(content), 0o600); err != nil {
				t.Fatal(err)
			}
			log := prepared(t, dir, s)
			if !strings.Contains(log, "not what this host wrote") || !strings.Contains(log, "module compiled") {
				t.Errorf("logged %q, want a warning and a compilation", log)
			}
			if log := prepared(t, dir, s); log != "" {
				t.Errorf("after that logged %q, want nothing", log)
			}
		})
	}
}

// TestArtifactUnderAnotherName: what was compiled of one module is not another.
func TestArtifactUnderAnotherName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	noop, trap := spec(t, testenv.WAT(t, "noop")), spec(t, testenv.WAT(t, "memmax"))
	prepared(t, dir, noop)
	prepared(t, dir, trap)
	content, err := os.ReadFile(artifact(t, dir, trap))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(artifact(t, dir, noop), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if log := prepared(t, dir, noop); !strings.Contains(log, "not what this host wrote") {
		t.Errorf("logged %q, want a warning", log)
	}
}

func TestArtifactsOfAnotherHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := spec(t, testenv.WAT(t, "noop"))
	prepared(t, dir, s)
	key := filepath.Join(dir, "key", "host.key")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if log := prepared(t, dir, s); !strings.Contains(log, "not what this host wrote") {
		t.Errorf("logged %q, want a warning", log)
	}
	if err := os.WriteFile(key, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.New(sandbox.Config{CacheDir: dir}); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("New with a short key = %v, want what to do", err)
	}
}

func TestCacheDirThatOthersMayWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "compiled"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.New(sandbox.Config{CacheDir: dir}); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("New = %v, want what to do", err)
	}
}

// TestCacheDirIsShared: engines that begin at once agree on a key.
func TestCacheDirIsShared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := spec(t, testenv.WAT(t, "noop"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			e, err := sandbox.New(sandbox.Config{CacheDir: dir})
			if err != nil {
				t.Error(err)
				return
			}
			if got := e.Run(context.Background(), s, func(protocol.Event) {}); got.Kind != sandbox.Exited {
				t.Errorf("Run = %+v, want exited", got)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if log := prepared(t, dir, s); log != "" {
		t.Errorf("logged %q, want nothing", log)
	}
}
