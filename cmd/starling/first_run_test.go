package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// TestAFirstRunSaysThatItCompiles, and where it keeps what that made; one that need
// not compile says nothing of it.
func TestAFirstRunSaysThatItCompiles(t *testing.T) {
	t.Parallel()
	slow := testenv.CompileBomb(t, 800, 400)
	cache := t.TempDir()
	for _, mode := range []string{"--json=false", "--json=true"} {
		got := starling(t, "", "run", slow, "--task", "x", mode, "--compile-timeout", "2s", "--work-root", t.TempDir(), "--cache-dir", cache)
		if got.status != exitCrashed {
			t.Errorf("status = %d, want %d: it cannot be compiled in time\n%s", got.status, exitCrashed, got.err)
		}
		contains(t, "stderr", got.err, "compiling bomb (", " MB)", "kept in "+cache)
		if strings.Contains(got.out, "compiling bomb") {
			t.Errorf("stdout holds the notice:\n%s", got.out)
		}
	}
	quick := starling(t, "", runArgs(t, "run", testenv.WAT(t, "noop"), "--task", "x")...)
	if strings.Contains(quick.err, "compiling") {
		t.Errorf("a module that is compiled at once = %s, want no word of it", quick.err)
	}
}

// TestAFailedRunSaysWhereItsWholeStderrIs: its error holds one line of it.
func TestAFailedRunSaysWhereItsWholeStderrIs(t *testing.T) {
	t.Parallel()
	got := starling(t, "", runArgs(t, "run", agent(t, protocol.OutputText), "--task", "fail 7")...)
	_, file, ok := strings.Cut(got.err, "\nstderr: ")
	if !ok {
		t.Fatalf("stderr names no file:\n%s", got.err)
	}
	file, _, _ = strings.Cut(file, "\n")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n != 2 {
		t.Errorf("%s has %d lines, want both that the capsule wrote:\n%s", file, n, text)
	}
	fine := starling(t, "", runArgs(t, "run", hello(t), "--task", "x")...)
	if strings.Contains(fine.err, "stderr:") {
		t.Errorf("a task that completed names a file of stderr:\n%s", fine.err)
	}
}

// TestTheWholeStderrIsOnTheWorkersHost, which is not always this one.
func TestTheWholeStderrIsOnTheWorkersHost(t *testing.T) {
	t.Parallel()
	here := t.TempDir()
	rec := protocol.Record{
		DelegationID: "dlg_01", Ending: &protocol.Ending{Message: "exit status 2: exit"},
		Outcome: &protocol.Outcome{Status: protocol.StatusError, Workdir: "/nowhere/ses_1/work", WorkerID: "wrk_1"},
	}
	contains(t, "of another host", endingLine(rec), "stderr: /nowhere/ses_1/stderr.log, on the host of wrk_1")
	rec.Outcome.Workdir = filepath.Join(here, "work")
	if err := os.Mkdir(rec.Outcome.Workdir, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := endingLine(rec); strings.Contains(got, "stderr:") {
		t.Errorf("of a capsule that wrote none = %s", got)
	}
}

// TestADeadlineOfTheJobIsNotTheManifests, which the protocol's words tell of.
func TestADeadlineOfTheJobIsNotTheManifests(t *testing.T) {
	t.Parallel()
	spin := testenv.WAT(t, "spin")
	own := starling(t, "", runArgs(t, "run", spin, "--task", "x", "--capabilities", `{"limits":{"deadline_seconds":1}}`)...)
	contains(t, "stderr", own.err, "exceeded its 1s deadline", "that deadline, 1s, is this job's own (--capabilities)")
	manifests := starling(t, "", runArgs(t, "run", capsuleDir(t, spin, "name: spin\nversion: 1.0.0\ncapabilities: {limits: {deadline_seconds: 1}}\n"), "--task", "x")...)
	contains(t, "stderr", manifests.err, "exceeded its 1s deadline")
	if strings.Contains(manifests.err, "this job's own") {
		t.Errorf("a manifest's deadline is called the job's:\n%s", manifests.err)
	}
}

// TestWaitingEndsAtTheDeadlineOfAJobThatNobodyTakes, for nobody writes its end.
func TestWaitingEndsAtTheDeadlineOfAJobThatNobodyTakes(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("init", "--pools", "gpu")
	o.must("capsule", "push", hello(t))
	dispatch := func(args ...string) result {
		return o.do(append([]string{"dispatch", "hello@1.0.0", "--task", "x", "--pool", "gpu", "--allow-unserved", "--deadline", "50ms"}, args...)...)
	}
	for _, mode := range []string{"--wait", "--follow"} {
		got := dispatch(mode)
		if got.status != exitTerminated {
			t.Errorf("dispatch %s = %d, want %d\n%s", mode, got.status, exitTerminated, got.err)
		}
		contains(t, "stderr", got.err, "passed before a worker of pool gpu took its job", "still stands in the queue", "starling cancel ses_")
	}
	got := dispatch("--wait", "--json")
	rec := decoded[protocol.Record](t, got.out)
	if got.status != exitTerminated || rec.Status != protocol.StatusSubmitted {
		t.Errorf("dispatch --wait --json = %d with %s, want %d with the record as it stands", got.status, rec.Status, exitTerminated)
	}
	contains(t, "doctor", o.do("doctor").out, "3 queued past the deadline", rec.Key())
	contains(t, "cancel", o.must("cancel", rec.Key()), "terminated (")
	contains(t, "doctor", o.do("doctor").out, "2 queued past the deadline")

	in := o.do("dispatch", "hello@1.0.0", "--task", "x", "--deadline", "1h", "--wait")
	if in.status != exitOK {
		t.Errorf("a task that ends in time = %d\n%s", in.status, in.err)
	}
	contains(t, "stdout", in.out, ": ok (session ended, ")
}

// TestADeadlineOfARunningTaskIsWaitedFor: its worker ends it and writes that down.
func TestADeadlineOfARunningTaskIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", agent(t, protocol.OutputEvents))
	got := o.do("dispatch", "agent@1.0.0", "--task", "sleeper", "--deadline", "1s", "--wait")
	if got.status != exitTerminated {
		t.Errorf("status = %d, want %d\n%s", got.status, exitTerminated, got.err)
	}
	contains(t, "stdout", got.out, ": terminated (")
}

// TestACancelThatTakesLongSaysWhatItWaitsFor.
func TestACancelThatTakesLongSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	f := testFleet(t, func(c *fleetConfig) { c.worker.CancelGrace = 3 * patience })
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", killer(t), "--name", "killer", "--capsule-version", "1")
	rec := decoded[protocol.Record](t, o.must("dispatch", "killer@1", "--task", "x", "--json"))
	saysInAttempt(t, f.bus, rec.TaskID, 1, "ready")
	got := o.do("cancel", rec.Key())
	if got.status != exitOK {
		t.Errorf("cancel = %d\n%s", got.status, got.err)
	}
	contains(t, "stderr", got.err, string(f.staff.worker.ID())+" was asked to stop", "STARLING_CANCEL_GRACE")
}

// TestWatchAndDispatchEndWithTheSameLine.
func TestWatchAndDispatchEndWithTheSameLine(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	waited := o.do("dispatch", "hello@1.0.0", "--task", "x", "--wait")
	key, ok := strings.CutPrefix(strings.TrimSpace(waited.err), "delegated ")
	if !ok || waited.status != exitOK {
		t.Fatalf("dispatch --wait = %+v, want the key on stderr", waited)
	}
	watched := o.do("watch", key)
	if !strings.HasSuffix(watched.err, waited.out) {
		t.Errorf("watch ends with\n%s\nand dispatch --wait with\n%s", watched.err, waited.out)
	}
}

// TestWhatACapsuleCommandDidIsSaid on standard error, for people.
func TestWhatACapsuleCommandDidIsSaid(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	dir := hello(t)
	first := o.do("capsule", "push", dir)
	contains(t, "the first push", first.err, "stored, ", " MB")
	second := o.do("capsule", "push", dir)
	contains(t, "the second push", second.err, "the store has it already", "nothing was changed")
	if first.out != second.out {
		t.Errorf("stdout = %q, then %q", first.out, second.out)
	}
	if got := o.must("capsule", "inspect", "hello@1.0.0", "--json"); strings.Count(got, "\n") != 1 {
		t.Errorf("capsule inspect --json = %q, want a line", got)
	}
	if got := o.must("capsule", "inspect", "hello@1.0.0"); strings.Count(got, "\n") < 10 {
		t.Errorf("capsule inspect = %q, want a line a setting", got)
	}
	contains(t, "capsule rm", o.do("capsule", "rm", "hello@1.0.0").err, "removed hello@1.0.0")
	gone := o.do("dispatch", "hello@1.0.0", "--task", "x")
	contains(t, "dispatch of what was not pushed", gone.err, "push it", "starling capsule ls")
}

// TestASecondDevNamesBothPorts: one message, whichever of them is seen first.
func TestASecondDevNamesBothPorts(t *testing.T) {
	t.Parallel()
	server, err := broker.StartServer(t.Context(), broker.ServerConfig{StoreDir: t.TempDir(), Host: "127.0.0.1", Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	door, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = door.Close() })
	_, port, _ := strings.Cut(strings.TrimPrefix(server.ClientURL(), "nats://"), ":")
	got := starling(t, "", runArgs(t, "dev", "--store", t.TempDir(), "--port", port, "--door-listen", door.Addr().String())...)
	if got.status != exitFailure {
		t.Errorf("status = %d, want %d", got.status, exitFailure)
	}
	contains(t, "stderr", got.err, door.Addr().String(), fmt.Sprintf("127.0.0.1:%s", port), "does another `starling dev` run?", "--store")
}
