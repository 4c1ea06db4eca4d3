package sandbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	if err := (sandbox.Config{}).Validate(); err != nil {
		t.Errorf("Validate(zero) = %v, want nil", err)
	}
	bad := sandbox.Config{MaxModules: -1, MaxModuleBytes: -1, Tick: time.Minute, Guests: 1025, ResidentBytes: -2}
	err := bad.Validate()
	for _, name := range []string{"MaxModules", "MaxModuleBytes", "Tick", "Guests", "ResidentBytes"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Validate = %v, want it to name %s", err, name)
		}
	}
	if _, err := sandbox.New(bad); err == nil {
		t.Error("New with a bad config = nil error")
	}
}

func TestCloseTwiceAndAfter(t *testing.T) {
	t.Parallel()
	e, err := sandbox.New(sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := spec(t, testenv.WAT(t, "noop"))
	for range 2 {
		if err := e.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	if got, _ := run(t, e, s); got.Kind != sandbox.Interrupted || !errors.Is(got.Err, sandbox.ErrClosed) {
		t.Errorf("Run after Close = %+v, want interrupted with ErrClosed", got)
	}
	if err := e.Prepare(context.Background(), s.Module, s.Digest); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Prepare after Close = %v, want ErrClosed", err)
	}
}

// TestCloseWhileBusy: guests that compute and that sleep are interrupted, and
// Close returns when they are gone.
func TestCloseWhileBusy(t *testing.T) {
	t.Parallel()
	e, err := sandbox.New(sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var endings [4]sandbox.Ending
	var running, wg sync.WaitGroup
	ready := wat(t, `(module
	  (import "murmur:stream/events@0.1.0" "emit-chunk" (func $chunk (param i32 i32)))
	  (memory (export "memory") 1)
	  (func (export "_start") (call $chunk (i32.const 0) (i32.const 1)) (loop $l (br $l))))`)
	s := spec(t, ready)
	running.Add(len(endings))
	for i := range endings {
		wg.Go(func() { endings[i] = e.Run(context.Background(), s, func(protocol.Event) { running.Done() }) })
	}
	running.Wait()
	if err := e.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	wg.Wait()
	for _, got := range endings {
		if got.Kind != sandbox.Interrupted || !errors.Is(got.Err, sandbox.ErrClosed) {
			t.Errorf("Run = %s %v, want interrupted with ErrClosed", got.Kind, got.Err)
		}
	}
}

// TestModulesAreDropped: a cache of one module serves two that take turns, also
// while both run.
func TestModulesAreDropped(t *testing.T) {
	t.Parallel()
	e := newEngineWith(t, sandbox.Config{MaxModules: 1, CacheDir: t.TempDir()})
	specs := []sandbox.Spec{spec(t, testenv.WAT(t, "noop")), spec(t, testenv.WAT(t, "signals")), spec(t, testenv.WAT(t, "exit126"))}
	var wg sync.WaitGroup
	for _, s := range specs {
		wg.Go(func() {
			for range 20 {
				if got := e.Run(context.Background(), s, func(protocol.Event) {}); got.Kind != sandbox.Exited {
					t.Errorf("Run = %s %s, want exited", got.Kind, got.Message)
				}
			}
		})
	}
	wg.Wait()
}

func TestPrepareStopsWaiting(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	s := spec(t, testenv.WAT(t, "noop"))
	// Either the work was quicker or the wait ended; nothing else.
	if err := e.Prepare(ctx, s.Module, s.Digest); err != nil && !errors.Is(err, cause) {
		t.Errorf("Prepare = %v, want nil or the context's cause", err)
	}
	if err := e.Prepare(context.Background(), s.Module, s.Digest); err != nil {
		t.Errorf("Prepare = %v", err)
	}
}
