package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// outcome is what decides about a job; durations and host paths differ.
var outcome = cmpopts.IgnoreFields(sandbox.Ending{}, "Duration", "Stdout", "StderrTail", "SignalsDropped", "StdoutDropped")

const resource = "capsule execution exceeded its configured resource limits: "

// TestCauses has the table of causes of docs/protocol.md, section 5, each limit
// at its edge and one past it.
func TestCauses(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	limit := func(set func(*protocol.Limits)) func(*sandbox.Spec) {
		return func(s *sandbox.Spec) { set(&s.Limits) }
	}
	memory := func(n int64) func(*sandbox.Spec) { return limit(func(l *protocol.Limits) { l.MemoryBytes = n }) }
	table := func(n int64) func(*sandbox.Spec) { return limit(func(l *protocol.Limits) { l.TableElements = n }) }
	second := limit(func(l *protocol.Limits) { l.DeadlineSeconds = 1 })
	deadline := sandbox.Ending{
		Kind: sandbox.LimitHit, Limit: sandbox.LimitDeadline,
		Message: "capsule execution exceeded its 1s deadline and was interrupted; raise capabilities.limits.deadline_seconds" +
			" in murmur.yaml if the capsule legitimately needs longer",
	}
	memoryHit := func(n, m int64) sandbox.Ending {
		return sandbox.Ending{Kind: sandbox.LimitHit, Limit: sandbox.LimitMemory, Message: fmt.Sprintf(
			resource+"linear memory growth to %d bytes exceeds capabilities.limits.memory_bytes (%d)", n, m)}
	}
	tableHit := func(n, m int64) sandbox.Ending {
		return sandbox.Ending{Kind: sandbox.LimitHit, Limit: sandbox.LimitTable, Message: fmt.Sprintf(
			resource+"table growth to %d elements exceeds capabilities.limits.table_elements (%d)", n, m)}
	}
	trapped := func(trap string) sandbox.Ending {
		return sandbox.Ending{Kind: sandbox.Trapped, Trap: trap, Message: "capsule execution trapped: " + trap}
	}
	exited := func(status int) sandbox.Ending { return sandbox.Ending{Kind: sandbox.Exited, Status: status} }
	tests := []struct {
		name   string
		module string
		set    func(*sandbox.Spec)
		want   sandbox.Ending
	}{
		{"returning from _start is exit 0", "noop", nil, exited(0)},
		{"exit statuses from 126 on are kept", "exit126", nil, exited(126)},
		{"a start function runs before _start", "start", nil, exited(7)},
		{"deadline while computing", "spin", second, deadline},
		{"deadline while asleep", "sleep1h", second, deadline},
		{"deadline while writing", "stdoutflood", second, deadline},
		{"memory grown to the limit", "memgrow", memory(1 << 20), exited(0)},
		{"memory grown one past the limit", "memgrow", memory(1<<20 - 1), memoryHit(1<<20, 1<<20-1)},
		{"memory grown until refused", "memhog", memory(10<<20 + 65536), memoryHit(11<<20+65536, 10<<20+65536)},
		{"memory of the size of the limit from the start", "bigmemory", memory(16 << 20), exited(0)},
		{"memory one past the limit from the start", "bigmemory", memory(16<<20 - 1), memoryHit(16<<20, 16<<20-1)},
		{"memory grown in the start function", "bigstart", memory(1 << 20), memoryHit(4<<30, 1<<20)},
		{"memory refused by the module's own maximum", "memmax", nil, exited(0)},
		{"table grown until refused", "tablehog", table(1000), tableHit(1100, 1000)},
		{"table grown one past the limit", "tablehog", table(99), tableHit(100, 99)},
		{"table of the size of the limit from the start", "bigtable", table(200_000), exited(0)},
		{"table one past the limit from the start", "bigtable", table(199_999), tableHit(200_000, 199_999)},
		{"other trap", "trap", nil, trapped("wasm `unreachable` instruction executed")},
		{"stack used up", "recursion", nil, trapped("call stack exhausted")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, testenv.WAT(t, tt.module))
			if tt.set != nil {
				tt.set(&s)
			}
			got, _ := run(t, e, s)
			if diff := cmp.Diff(tt.want, got, outcome); diff != "" {
				t.Errorf("Run(%s) (-want +got):\n%s", tt.module, diff)
			}
			if got.Duration > 20*time.Second {
				t.Errorf("Run(%s) took %s", tt.module, got.Duration)
			}
		})
	}
}

// TestRefused has every reason why a module or a run does not start.
func TestRefused(t *testing.T) {
	t.Parallel()
	e := newEngineWith(t, sandbox.Config{MaxModuleBytes: 1000})
	with := func(set func(*sandbox.Spec)) func(*testing.T) sandbox.Spec {
		return func(t *testing.T) sandbox.Spec {
			s := spec(t, testenv.WAT(t, "noop"))
			set(&s)
			return s
		}
	}
	module := func(name string) func(*testing.T) sandbox.Spec {
		return func(t *testing.T) sandbox.Spec { return spec(t, testenv.WAT(t, name)) }
	}
	bytes := func(content string) func(*testing.T) sandbox.Spec {
		return func(t *testing.T) sandbox.Spec { return spec(t, file(t, []byte(content))) }
	}
	text := func(text string) func(*testing.T) sandbox.Spec {
		return func(t *testing.T) sandbox.Spec { return spec(t, wat(t, text)) }
	}
	tests := []struct {
		name string
		spec func(*testing.T) sandbox.Spec
		want string
	}{
		{"no WebAssembly", bytes("#!/bin/sh\necho hello\n"), "is no WebAssembly"},
		{"empty", bytes(""), "is no WebAssembly"},
		{"component", bytes("\x00asm\x0d\x00\x01\x00"), "is a WASI 0.2 component, and components are off"},
		{"cut off", bytes("\x00asm\x01\x00\x00\x00\x01\x7f\x01"), "cannot be read"},
		{"another version", bytes("\x00asm\x02\x00\x00\x00"), "cannot be read"},
		{"too large", bytes("\x00asm\x01\x00\x00\x00" + strings.Repeat("x", 1000)), "has more than 1000 bytes"},
		{"no _start", module("nostart"), "does not export a function _start"},
		{"_start with a parameter", module("badstart"), "does not export a function _start"},
		{"unknown interface", module("badimport"), `imports "system" of "env", and there is no such interface`},
		{"unknown function", module("badfunction"), `imports "fork" of "wasi_snapshot_preview1", and that interface has no such function`},
		{"imported memory", module("badmemory"), `imports the memory "memory" of "env"`},
		{"function of another type", module("badtype"), "cannot be linked: incompatible import type"},
		{"invalid code", text(`(module (memory (export "memory") 1) (func (export "_start") i32.const 1))`), "cannot be compiled"},
		{"64-bit memory", text(`(module (memory (export "memory") i64 1) (func (export "_start")))`), "cannot be compiled"},
		{"two memories", text(`(module (memory (export "memory") 1) (memory 1) (func (export "_start")))`), "cannot be compiled"},
		{"shared memory", text(`(module (memory (export "memory") 1 2 shared) (func (export "_start")))`), "cannot be compiled"},
		{"tail calls", text(`(module (memory (export "memory") 1) (func $f (export "_start") return_call $f))`), "cannot be compiled"},
		{"exceptions", text(`(module (memory (export "memory") 1) (tag $e) (func (export "_start") throw $e))`), "cannot be compiled"},
		{"missing file", with(func(s *sandbox.Spec) { s.Module, s.Digest = "/no/such.wasm", protocol.DigestOf([]byte("no such")) }), "read module"},
		{"another digest", with(func(s *sandbox.Spec) { s.Digest = protocol.DigestOf(nil) }), "has the digest sha256:"},
		{"no digest", with(func(s *sandbox.Spec) { s.Digest = "" }), "digest"},
		{"no limits", with(func(s *sandbox.Spec) { s.Limits = protocol.Limits{} }), "are not all set"},
		{"unknown output mode", with(func(s *sandbox.Spec) { s.Output = "xml" }), "output mode"},
		{"NUL in an argument", with(func(s *sandbox.Spec) { s.Args = []string{"a", "b\x00c"} }), "argument 1"},
		{"no UTF-8 in an argument", with(func(s *sandbox.Spec) { s.Args = []string{"\xff"} }), "argument 0"},
		{"NUL in the environment", with(func(s *sandbox.Spec) { s.Env = map[string]string{"A": "\x00"} }), "environment variable A"},
		{"no UTF-8 in the environment", with(func(s *sandbox.Spec) { s.Env = map[string]string{"A": "\xff"} }), "environment variable A"},
		{"bad environment name", with(func(s *sandbox.Spec) { s.Env = map[string]string{"A=B": ""} }), `environment name "A=B"`},
		{"missing work directory", with(func(s *sandbox.Spec) { s.WorkDir = "/no/such/dir" }), "cannot open the directory /no/such/dir"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.spec(t)
			got, r := run(t, e, s)
			if got.Kind != sandbox.Refused || !strings.Contains(got.Message, tt.want) {
				t.Errorf("Run = %s %q, want refused with %q", got.Kind, got.Message, tt.want)
			}
			if strings.ContainsAny(got.Message, "\n") || len(r.all()) > 0 {
				t.Errorf("message %q, events %v: want one line and no events", got.Message, r.all())
			}
		})
	}
}

// branches is a module with a br_table of n targets.
func branches(n int) string {
	return `(module (memory (export "memory") 1) (func (export "_start") (block $b (br_table ` + strings.Repeat("$b ", n) + `$b (i32.const 0)))))`
}

// TestBranchesToManyPlaces: as many as there may be, and one more.
//
// Source: GHSA-mghf-wjfp-p5xm.
func TestBranchesToManyPlaces(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	if got, _ := run(t, e, spec(t, wat(t, branches(1<<16)))); got.Kind != sandbox.Exited {
		t.Errorf("Run = %+v, want exited", got)
	}
	got, _ := run(t, e, spec(t, wat(t, branches(1<<16+1))))
	if want := "a br_table of 65537 targets, and may have 65536"; got.Kind != sandbox.Refused || !strings.Contains(got.Message, want) {
		t.Errorf("Run = %+v, want refused with %q", got, want)
	}
}

func TestRefusedByPrepare(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	s := spec(t, testenv.WAT(t, "nostart"))
	if err := e.Prepare(context.Background(), s.Module, s.Digest); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("Prepare = %v, want ErrRefused", err)
	}
	if err := e.Prepare(context.Background(), "/no/such.wasm", s.Digest); !errors.Is(err, os.ErrNotExist) || errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("Prepare(missing file) = %v, want os.ErrNotExist and not ErrRefused", err)
	}
}

// TestInterrupted ends the context of guests that do nothing but one thing.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, name := range []string{"spin", "sleep1h", "stdoutflood"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, testenv.WAT(t, name))
			// Another guest runs on, undisturbed.
			other := make(chan sandbox.Ending, 1)
			stop := make(chan struct{})
			sleeper := spec(t, testenv.WAT(t, "sleep1h"))
			sleeper.Canceled = stop
			go func() { other <- e.Run(context.Background(), sleeper, func(protocol.Event) {}) }()

			cause := errors.New("the claim was lost")
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
			got := e.Run(ctx, s, func(protocol.Event) {})
			if got.Kind != sandbox.Interrupted || !errors.Is(got.Err, cause) {
				t.Errorf("Run = %s %v, want interrupted by %v", got.Kind, got.Err, cause)
			}
			close(stop)
			if got := <-other; got.Kind != sandbox.Exited {
				t.Errorf("the other guest: %s %s, want exited", got.Kind, got.Message)
			}
		})
	}
}

func TestInterruptedBeforeStart(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if got := e.Run(ctx, spec(t, testenv.WAT(t, "spin")), func(protocol.Event) {}); got.Kind != sandbox.Interrupted {
		t.Errorf("Run = %s %s, want interrupted", got.Kind, got.Message)
	}
}

// TestInterruptedWhileEmitBlocks: the guest waits for its reader, and is gone
// once the reader lets go.
func TestInterruptedWhileEmitBlocks(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	got := e.Run(ctx, spec(t, testenv.WAT(t, "stdoutflood")), func(protocol.Event) {
		time.AfterFunc(10*time.Millisecond, cancel)
		<-ctx.Done()
	})
	if got.Kind != sandbox.Interrupted {
		t.Errorf("Run = %s %s, want interrupted", got.Kind, got.Message)
	}
}

func TestCanceledWakesASleeperOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	s := spec(t, testenv.WAT(t, "sleep1h"))
	canceled := make(chan struct{})
	close(canceled)
	s.Canceled = canceled
	if got, _ := run(t, e, s); got.Kind != sandbox.Exited || got.Status != 0 {
		t.Errorf("Run = %+v, want exit 0", got)
	}
	// Asleep twice: the second sleep lasts.
	twice := wat(t, `(module
	  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
	  (memory (export "memory") 1)
	  (func $sleep (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128))))
	  (func (export "_start")
	    (i32.store (i32.const 16) (i32.const 1))
	    (i64.store (i32.const 24) (i64.const 3600000000000))
	    (call $sleep) (call $sleep)))`)
	s = spec(t, twice)
	s.Canceled, s.Limits.DeadlineSeconds = canceled, 1
	if got, _ := run(t, e, s); got.Limit != sandbox.LimitDeadline {
		t.Errorf("Run = %+v, want the deadline", got)
	}
}

// TestPanicInEmit: a bug in the caller costs its own run, not the process.
func TestPanicInEmit(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for _, name := range []string{"signals", "stdoutflood"} {
		got := e.Run(context.Background(), spec(t, testenv.WAT(t, name)), func(protocol.Event) { panic("a bug") })
		if got.Kind != sandbox.Trapped || !strings.Contains(got.Message, "bug of starling") {
			t.Errorf("Run(%s) = %s %q, want trapped by a bug", name, got.Kind, got.Message)
		}
	}
	if got, _ := run(t, e, spec(t, testenv.WAT(t, "noop"))); got.Kind != sandbox.Exited {
		t.Errorf("the next run = %+v, want exited", got)
	}
}

// TestManyAtOnce runs guests of all sorts side by side and interrupts some.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	var wg sync.WaitGroup
	for i := range 24 {
		name := []string{"noop", "trap", "signals", "spin", "memhog", "sleep1h"}[i%6]
		s := spec(t, testenv.WAT(t, name))
		s.Limits.MemoryBytes = 8 << 20
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
			defer cancel()
			for range 5 {
				got := e.Run(ctx, s, func(protocol.Event) {})
				want := map[string]sandbox.EndingKind{
					"noop": sandbox.Exited, "trap": sandbox.Trapped, "signals": sandbox.Exited,
					"memhog": sandbox.LimitHit, "spin": sandbox.Interrupted, "sleep1h": sandbox.Interrupted,
				}[name]
				if got.Kind != want && (got.Kind != sandbox.Interrupted || ctx.Err() == nil) {
					t.Errorf("Run(%s) = %s %s, want %s", name, got.Kind, got.Message, want)
				}
			}
		})
	}
	wg.Wait()
}
