package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// TestRemovedDirectoriesAreMadeAnew: guests go on after somebody removed the cache
// or the work root, or put others in their place, and sandbox processes that can
// open nothing more are replaced.
func TestRemovedDirectoriesAreMadeAnew(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(t *testing.T, work, cache string){
		"the cache":     func(t *testing.T, _, cache string) { removed(t, cache) },
		"what compiled": func(t *testing.T, _, cache string) { removed(t, filepath.Join(cache, "compiled")) },
		"the work root": func(t *testing.T, work, _ string) { removed(t, work) },
		"both":          func(t *testing.T, work, cache string) { removed(t, work); removed(t, cache) },
		"the cache, by another": func(t *testing.T, _, cache string) {
			removed(t, cache)
			s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir = cache })
			if end := s.Run(t.Context(), spec(t, testenv.WAT(t, "noop")), func(protocol.Event) {}); end.Kind != sandbox.Exited {
				t.Errorf("the other's guest ended %+v", end)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			work, cache := filepath.Join(dir, "work"), filepath.Join(dir, "cache")
			var log lockedBuffer
			s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.WorkRoot, c.CacheDir, c.Logger = work, cache, log.logger() })
			noop := spec(t, testenv.WAT(t, "noop"))
			check := func() {
				t.Helper()
				if err := os.MkdirAll(work, 0o700); err != nil { // as a worker does
					t.Fatal(err)
				}
				for range 3 {
					if end := s.Run(t.Context(), withDirectory(t, work, noop), func(protocol.Event) {}); end.Kind != sandbox.Exited || end.Status != 0 {
						t.Fatalf("the guest ended %+v\n%s", end, log.String())
					}
				}
			}
			check()
			sieve := spec(t, testenv.WAT(t, "sieve"))
			if err := s.Prepare(t.Context(), sieve.Module, sieve.Digest); err != nil {
				t.Fatal(err)
			}
			before := s.PIDs()
			remove(t, work, cache)
			for _, without := range []sandbox.Spec{noop, sieve} { // which the process has, and has not
				if end := s.Run(t.Context(), without, func(protocol.Event) {}); end.Kind != sandbox.Exited {
					t.Errorf("a guest without a directory ended %+v\n%s", end, log.String())
				}
			}
			check()
			testenv.EventuallyTrue(t, soon, "the old process is gone", func() bool {
				return !slices.ContainsFunc(s.PIDs(), func(pid int) bool { return slices.Contains(before, pid) })
			})
		})
	}
}

func removed(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

// TestAHostFaultThatStaysIsNoRefusal: it is not the capsule's fault, and when it
// is gone guests run again.
func TestAHostFaultThatStaysIsNoRefusal(t *testing.T) {
	t.Parallel()
	cache := filepath.Join(t.TempDir(), "cache")
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir = cache })
	noop := spec(t, testenv.WAT(t, "noop"))
	removed(t, cache)
	if err := os.WriteFile(cache, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if end := s.Run(t.Context(), noop, func(protocol.Event) {}); end.Kind != sandbox.Refused || errors.Is(end.Err, sandbox.ErrRefused) {
		t.Errorf("with a file for a cache the guest ended %+v, want this host's fault", end)
	}
	removed(t, cache)
	if end := s.Run(t.Context(), noop, func(protocol.Event) {}); end.Kind != sandbox.Exited {
		t.Errorf("then it ended %+v, want an exit", end)
	}
}

// TestACompileLockIsNotWaitedForWithoutEnd: a process that stands still with it in
// its hand stops no other, and those who ask may leave before.
func TestACompileLockIsNotWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()
	held := func(t *testing.T, cache string, s sandbox.Spec) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(cache, "compiled", "compile-"+s.Digest.Hex()[:2]+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("it compiles without", func(t *testing.T) {
		t.Parallel()
		cache := t.TempDir()
		s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir, c.CompileTimeout = cache, time.Second })
		noop := spec(t, testenv.WAT(t, "noop"))
		held(t, cache, noop)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		if err := s.Prepare(ctx, noop.Module, noop.Digest); err != nil {
			t.Errorf("Prepare = %v, want nil", err)
		}
	})
	for name, inProcess := range map[string]bool{"processes": false, "engine": true} {
		t.Run("who asks leaves: "+name, func(t *testing.T) {
			t.Parallel()
			cache := t.TempDir()
			noop := spec(t, testenv.WAT(t, "noop"))
			var preparer interface {
				Prepare(context.Context, string, protocol.Digest) error
				Close() error
			}
			if inProcess {
				preparer = newEngineWith(t, sandbox.Config{CacheDir: cache})
			} else {
				preparer = newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir, c.CompileTimeout = cache, time.Hour })
			}
			held(t, cache, noop)
			left := errors.New("left")
			ctx, leave := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() { done <- preparer.Prepare(ctx, noop.Module, noop.Digest) }()
			leave(left)
			if err := <-done; !errors.Is(err, left) {
				t.Errorf("Prepare = %v, want the cause", err)
			}
			if err := preparer.Close(); err != nil { // which waits for what goes on
				t.Errorf("Close = %v", err)
			}
		})
	}
}
