package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
