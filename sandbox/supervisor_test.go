package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// soon bounds what must happen, on a machine that is busy.
const soon = 40 * time.Second

// withDirectory gives a run a work directory that s can reach.
func withDirectory(t *testing.T, root string, s sandbox.Spec) sandbox.Spec {
	t.Helper()
	dir, err := os.MkdirTemp(root, "work-*")
	if err != nil {
		t.Fatal(err)
	}
	s.WorkDir = dir
	return s
}

// TestAProcessEndsGuestsAsTheEngineDoes compares endings and events.
func TestAProcessEndsGuestsAsTheEngineDoes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	processes := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root })
	engine := newEngine(t)
	for name, change := range map[string]func(*sandbox.Spec){
		"noop": nil, "trap": nil, "exit126": nil, "start": nil, "memgrow": nil, "memhog": nil, "tablehog": nil,
		"recursion": nil, "bigmemory": func(s *sandbox.Spec) { s.Limits.MemoryBytes = 1 << 20 }, "nostart": nil, "badimport": nil,
		"stdoutflood": func(s *sandbox.Spec) { s.Limits.DeadlineSeconds = 1 },
		"spin":        func(s *sandbox.Spec) { s.Limits.DeadlineSeconds = 1 },
		"sleep1h":     func(s *sandbox.Spec) { s.Limits.DeadlineSeconds = 1 },
		"signals":     func(s *sandbox.Spec) { s.Output = protocol.OutputEvents },
		"agent":       func(s *sandbox.Spec) { s.Stdin = []byte("files of mine") },
		"agent fails": func(s *sandbox.Spec) { s.Stdin = []byte("fail 7") },
		"agent talks": func(s *sandbox.Spec) { s.Stdin, s.Output = []byte("turns 3"), protocol.OutputEvents },
		"bad env":     func(s *sandbox.Spec) { s.Env = map[string]string{"A": "\x00"} },
		"read only":   func(s *sandbox.Spec) { s.Filesystem.ReadOnly = []string{"kept"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			module := testenv.WAT(t, "noop")
			if strings.HasPrefix(name, "agent") {
				module = testenv.GoCapsule(t, "agent")
			} else if !strings.Contains(name, " ") {
				module = testenv.WAT(t, name)
			}
			s := spec(t, module)
			if change != nil {
				change(&s)
			}
			in, events := run(t, engine, withDirectory(t, root, s))
			var there recorder
			out := processes.Run(t.Context(), withDirectory(t, root, s), there.emit)
			ignore := []cmp.Option{
				cmpopts.IgnoreFields(sandbox.Ending{}, "Duration", "Err"), cmpopts.EquateEmpty(),
			}
			if name == "stdoutflood" { // how much comes in a second differs
				ignore = append(ignore, cmpopts.IgnoreFields(sandbox.Ending{}, "StdoutDropped", "Stdout"))
			} else if diff := cmp.Diff(events.all(), there.all(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("events in the engine and in a process differ:\n%s", diff)
			}
			if diff := cmp.Diff(in, out, ignore...); diff != "" {
				t.Errorf("endings in the engine and in a process differ:\n%s", diff)
			}
			if errors.Is(in.Err, sandbox.ErrRefused) != errors.Is(out.Err, sandbox.ErrRefused) {
				t.Errorf("Err = %v, want a refusal as %v is", out.Err, in.Err)
			}
		})
	}
}

// started is a guest that runs: what it said first, and how it ends.
type started struct {
	events chan protocol.Event
	end    chan sandbox.Ending
}

// begin runs a guest and returns when it has said something.
func begin(t *testing.T, ctx context.Context, s *sandbox.Supervisor, spec sandbox.Spec) *started {
	t.Helper()
	g := &started{events: make(chan protocol.Event, 1024), end: make(chan sandbox.Ending, 1)}
	go func() {
		g.end <- s.Run(ctx, spec, func(e protocol.Event) {
			select {
			case g.events <- e:
			default: // the test has seen enough
			}
		})
	}()
	select {
	case <-g.events:
	case end := <-g.end:
		t.Fatalf("the guest ended: %+v", end)
	case <-time.After(soon):
		t.Fatal("the guest says nothing")
	}
	return g
}

func (g *started) ended(t *testing.T) sandbox.Ending {
	t.Helper()
	select {
	case end := <-g.end:
		return end
	case <-time.After(soon):
		t.Fatal("the guest does not end")
		panic("unreachable")
	}
}

// talker says something on stdout and stderr, and then loops.
func talker(t *testing.T) sandbox.Spec {
	t.Helper()
	return spec(t, wat(t, `(module
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (import "murmur:stream/events@0.1.0" "emit-chunk" (func $chunk (param i32 i32)))
	  (memory (export "memory") 1)
	  (data (i32.const 0) "\10\00\00\00\0b\00\00\00last words\0a")
	  (data (i32.const 16) "last words\0a")
	  (func (export "_start")
	    (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8)))
	    (call $chunk (i32.const 16) (i32.const 4))
	    (loop $l (br $l))))`))
}

// only is the id of the one process there is.
func only(t *testing.T, s *sandbox.Supervisor) int {
	t.Helper()
	pids := s.PIDs()
	if len(pids) != 1 {
		t.Fatalf("PIDs = %v, want one", pids)
	}
	return pids[0]
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("signal %s to %d: %v", sig, pid, err)
	}
}

func TestAProcessThatDiesIsItsGuestsEndingAndIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	g := begin(t, t.Context(), s, talker(t))
	signal(t, only(t, s), syscall.SIGKILL)
	end := g.ended(t)
	if end.Kind != sandbox.ProcessDied || end.Blame != sandbox.BlameGuest || end.Trap != "signal: killed" {
		t.Errorf("Run = %+v, want the death of its process by SIGKILL, to blame", end)
	}
	if diff := cmp.Diff([]string{"last words"}, end.StderrTail); diff != "" {
		t.Errorf("stderr tail: %s", diff)
	}
	if again := s.Run(t.Context(), spec(t, testenv.WAT(t, "noop")), func(protocol.Event) {}); again.Kind != sandbox.Exited {
		t.Errorf("the next Run = %+v, want exited", again)
	}
}

// TestAProcessTellsItsOwnLastWords: what the process itself writes when it dies
// is behind the guest's.
func TestAProcessTellsItsOwnLastWords(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	g := begin(t, t.Context(), s, talker(t))
	signal(t, only(t, s), syscall.SIGABRT)
	end := g.ended(t)
	if end.Kind != sandbox.ProcessDied || end.Trap == "" || len(end.StderrTail) < 2 ||
		end.StderrTail[0] != "last words" || !strings.Contains(strings.Join(end.StderrTail, "\n"), "SIGABRT") {
		t.Errorf("Run = %+v, want the death of its process and its words behind the guest's", end)
	}
}

func TestAnIdleProcessThatDiesCostsNothing(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	noop := spec(t, testenv.WAT(t, "noop"))
	for range 10 {
		signal(t, only(t, s), syscall.SIGKILL) // and at once, before anybody noticed:
		if end := s.Run(t.Context(), noop, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			t.Fatalf("Run = %+v, want exited", end)
		}
		testenv.EventuallyTrue(t, soon, "one process", func() bool { return len(s.PIDs()) == 1 })
	}
}

func TestStopsOfAGuestInAProcess(t *testing.T) {
	t.Parallel()
	why := errors.New("the test's reason")
	for name, c := range map[string]struct {
		hang bool // the process does not hear it
		stop func(cancel context.CancelCauseFunc, s *sandbox.Supervisor)
		want error
	}{
		"its context ends":                            {false, func(cancel context.CancelCauseFunc, _ *sandbox.Supervisor) { cancel(why) }, why},
		"its context ends and its process hangs":      {true, func(cancel context.CancelCauseFunc, _ *sandbox.Supervisor) { cancel(why) }, why},
		"the supervisor is closed":                    {false, func(_ context.CancelCauseFunc, s *sandbox.Supervisor) { _ = s.Close() }, sandbox.ErrClosed},
		"the supervisor is closed, the process hangs": {true, func(_ context.CancelCauseFunc, s *sandbox.Supervisor) { _ = s.Close() }, sandbox.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSupervisor(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			g := begin(t, ctx, s, talker(t))
			if c.hang {
				testenv.Freeze(t, only(t, s))
			}
			var stopping sync.WaitGroup
			defer stopping.Wait()
			stopping.Go(func() { c.stop(cancel, s) })
			end := g.ended(t)
			if end.Kind != sandbox.Interrupted || !errors.Is(end.Err, c.want) {
				t.Errorf("Run = %+v, want interrupted by %v", end, c.want)
			}
			if c.hang {
				testenv.EventuallyTrue(t, soon, "the end of the process", func() bool { return len(s.PIDs()) == 0 })
			} else if errors.Is(c.want, why) {
				only(t, s)
			}
		})
	}
}

// TestAProcessThatHangsIsKilledAtTheDeadline: nothing in it ends the guest.
func TestAProcessThatHangsIsKilledAtTheDeadline(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	loop := talker(t)
	loop.Limits.DeadlineSeconds = 1
	g := begin(t, t.Context(), s, loop)
	testenv.Freeze(t, only(t, s))
	if end := g.ended(t); end.Kind != sandbox.LimitHit || end.Limit != sandbox.LimitDeadline ||
		!strings.Contains(end.Message, "exceeded its 1s deadline") {
		t.Errorf("Run = %+v, want the deadline", end)
	}
}

// TestAnIdleProcessThatDoesNotAnswer costs no job: another process takes its place.
func TestAnIdleProcessThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	s.AskAfter(0)
	noop := spec(t, wat(t, `(module (func (export "_start")))`))
	run := func() {
		t.Helper()
		if end := s.Run(t.Context(), noop, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			t.Fatalf("Run = %+v, want exited", end)
		}
	}
	run()
	healthy := only(t, s)
	run()
	if pid := only(t, s); pid != healthy {
		t.Errorf("process %d took the place of %d, which answers", pid, healthy)
	}
	testenv.Freeze(t, healthy)
	run()
	if pid := only(t, s); pid == healthy {
		t.Error("the process that was stopped is still there")
	}
}

func TestAGuestInAProcessHearsThatItIsCanceled(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	polite := spec(t, wat(t, `(module
	  (import "starling:capsule/control@0.1.0" "canceled" (func $canceled (result i32)))
	  (import "murmur:stream/events@0.1.0" "emit-chunk" (func $chunk (param i32 i32)))
	  (memory (export "memory") 1)
	  (data (i32.const 0) "here")
	  (func (export "_start")
	    (call $chunk (i32.const 0) (i32.const 4))
	    (loop $l (br_if $l (i32.eqz (call $canceled))))))`))
	for range 3 { // a cancel is of one run
		canceled := make(chan struct{})
		polite.Canceled = canceled
		g := begin(t, t.Context(), s, polite)
		close(canceled)
		if end := g.ended(t); end.Kind != sandbox.Exited || end.Status != 0 {
			t.Errorf("Run = %+v, want exited", end)
		}
	}
	only(t, s)
}

// TestASlowWorkerHoldsTheGuestBack: nothing is lost, nothing piles up, and the
// time that the guest waits is not the process's.
func TestASlowWorkerHoldsTheGuestBack(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.KillAfter = 50 * time.Millisecond })
	talk := spec(t, testenv.GoCapsule(t, "agent"))
	talk.Stdin, talk.Output = []byte("chatty 1000 5000"), protocol.OutputEvents
	pid := only(t, s)
	var events, bytes int
	held, release := make(chan struct{}), make(chan struct{})
	end := make(chan sandbox.Ending, 1)
	go func() {
		end <- s.Run(t.Context(), talk, func(e protocol.Event) {
			if events++; events == 1 {
				close(held)
				<-release
			}
			bytes += len(e.Text)
		})
	}()
	<-held
	// A neighbour says all of it meanwhile.
	if neighbour := s.Run(t.Context(), talk, func(protocol.Event) {}); neighbour.Kind != sandbox.Exited {
		t.Errorf("the neighbour's Run = %+v, want exited", neighbour)
	}
	if wrote := written(t, pid); wrote > 2_000_000 {
		t.Errorf("the process wrote %d bytes that nobody read, want no more than a pipe holds", wrote)
	}
	close(release)
	if got := <-end; got.Kind != sandbox.Exited || bytes < 1000*5000 {
		t.Errorf("Run = %+v with %d bytes in %d events, want exited with all", got, bytes, events)
	}
}

// written is how many bytes a process has written in all.
func written(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	var read, wrote int
	if _, err := fmt.Sscanf(string(text), "rchar: %d\nwchar: %d\n", &read, &wrote); err != nil {
		t.Fatal(err)
	}
	return wrote
}

func TestAPanicInEmitIsTheCallersAndCostsOneProcess(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	func() {
		defer func() {
			if got := recover(); got != "mine" {
				t.Errorf("recovered %v, want the panic of emit", got)
			}
		}()
		s.Run(t.Context(), talker(t), func(protocol.Event) { panic("mine") })
	}()
	if end := s.Run(t.Context(), spec(t, testenv.WAT(t, "noop")), func(protocol.Event) {}); end.Kind != sandbox.Exited {
		t.Errorf("the next Run = %+v, want exited", end)
	}
}

func TestReadOnlyDirectoriesArePutBackWhenTheProcessDies(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root })
	loop := withDirectory(t, root, talker(t))
	kept := filepath.Join(loop.WorkDir, "kept", "file")
	if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	loop.Filesystem.ReadOnly = []string{"kept"}
	g := begin(t, t.Context(), s, loop)
	signal(t, only(t, s), syscall.SIGKILL)
	g.ended(t)
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("after the process died: %v", err)
	}
}

func TestAWorkDirectoryOutsideTheRootIsRefused(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	outside := spec(t, testenv.WAT(t, "noop"))
	outside.WorkDir = t.TempDir()
	end := s.Run(t.Context(), outside, func(protocol.Event) {})
	if end.Kind != sandbox.Refused || !strings.Contains(end.Message, "not below the work root") {
		t.Errorf("Run = %+v, want a refusal that names the work root", end)
	}
}

// TestADeadlineIsOfOneRun: nothing of a run that lasted is left to end a later one.
func TestADeadlineIsOfOneRun(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.KillAfter = time.Millisecond })
	polite := spec(t, wat(t, `(module
	  (import "starling:capsule/control@0.1.0" "canceled" (func $canceled (result i32)))
	  (memory (export "memory") 1)
	  (func (export "_start") (loop $l (br_if $l (i32.eqz (call $canceled))))))`))
	polite.Limits.DeadlineSeconds = 1
	if err := s.Prepare(t.Context(), polite.Module, polite.Digest); err != nil {
		t.Fatal(err)
	}
	// Longer than it takes to set its deadline up, and shorter than the deadline: on a
	// busy machine that may take more than one guest.
	var began time.Time
	testenv.Eventually(t, soon, func() error {
		canceled := make(chan struct{})
		polite.Canceled, began = canceled, time.Now()
		timer := time.AfterFunc(100*time.Millisecond, func() { close(canceled) })
		defer timer.Stop()
		if end := s.Run(t.Context(), polite, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			return fmt.Errorf("Run = %+v, want exited within the deadline", end)
		}
		return nil
	})
	pid := only(t, s)
	noop := spec(t, testenv.WAT(t, "noop"))
	for time.Since(began) < 1500*time.Millisecond {
		if end := s.Run(t.Context(), noop, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			t.Fatalf("a later Run = %+v, want exited", end)
		}
	}
	if got := only(t, s); got != pid {
		t.Errorf("process %d, want %d still", got, pid)
	}
}
