package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/testenv"
)

// operator runs commands against one fleet.
type operator struct {
	t   *testing.T
	url string
}

func (o operator) do(args ...string) result {
	o.t.Helper()
	return starling(o.t, "", append(args, "--url", o.url)...)
}

// must runs a command that exits 0 and gives what it printed.
func (o operator) must(args ...string) string {
	o.t.Helper()
	got := o.do(args...)
	if got.status != exitOK {
		o.t.Fatalf("starling %v = %d, want 0\n%s%s", args, got.status, got.out, got.err)
	}
	return got.out
}

// decoded reads JSON that a command printed.
func decoded[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func TestDrainLetsTasksEndAndStartsNoMore(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	id := string(f.staff.worker.ID())
	o.must("capsule", "push", agent(t, protocol.OutputEvents))
	key := strings.TrimSpace(o.must("dispatch", "agent@1.0.0", "--task", "sleeper"))
	_, delegation, _ := strings.Cut(key, ".")
	var stats fleetStats
	testenv.Eventually(t, 20*time.Second, func() error {
		stats = decoded[fleetStats](t, o.must("stats", "--json"))
		if len(stats.Workers) != 1 || len(stats.Workers[0].Tasks) != 1 {
			return fmt.Errorf("stats = %+v, want one task", stats)
		}
		return nil
	})
	if w := stats.Workers[0]; w.WorkerID != f.staff.worker.ID() || w.Slots != 4 || w.Busy != 1 || !w.Answered ||
		string(w.Tasks[0].DelegationID) != delegation || w.Tasks[0].Capsule != "agent@1.0.0" {
		t.Errorf("worker = %+v, want its slots and its task", w)
	}
	if p := stats.Pools; len(p) != 1 || p[0].Pool != "default" || p[0].InProgress != 1 || p[0].Pending != 0 || p[0].Workers != 1 || p[0].Slots != 4 {
		t.Errorf("pools = %+v, want one job in progress", p)
	}
	contains(t, "stats", o.must("stats"), "POOL", "OLDEST", id, delegation, "agent@1.0.0")
	contains(t, "stats of a worker", o.must("stats", id), id, delegation)

	contains(t, "drain", o.do("drain", id).err, id+" takes no more jobs; it runs 1")
	contains(t, "workers, at once", o.must("workers"), id, "draining")
	if got := o.do("dispatch", "agent@1.0.0", "--task", "say x"); got.status != exitRefused {
		t.Errorf("dispatch to a pool that drained = %d, want %d\n%s", got.status, exitRefused, got.err)
	}
	contains(t, "the task goes on", o.must("ps"), delegation, "working")

	waited := make(chan result, 1)
	go func() { waited <- o.do("drain", id, "--wait") }()
	o.must("cancel", key)
	got := <-waited
	if got.status != exitOK || !strings.Contains(got.err, id+" has left") {
		t.Errorf("drain --wait = %d\n%s", got.status, got.err)
	}
	for _, command := range []string{"drain", "stats"} {
		gone := o.do(command, id)
		if gone.status != exitNotFound {
			t.Errorf("%s of a worker that left = %d, want %d", command, gone.status, exitNotFound)
		}
		contains(t, command, gone.err, "unknown worker", id, "starling workers")
	}
}

// TestDrainSaysWhatEndedIt: the worker's drain timeout, or that the worker was lost.
func TestDrainSaysWhatEndedIt(t *testing.T) {
	t.Parallel()
	f := testFleet(t, func(c *fleetConfig) { c.worker.DrainTimeout = time.Second })
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", agent(t, protocol.OutputEvents))
	key := strings.TrimSpace(o.must("dispatch", "agent@1.0.0", "--task", "again"))
	testenv.EventuallyTrue(t, 20*time.Second, "it runs", func() bool {
		stats := decoded[fleetStats](t, o.must("stats", "--json"))
		return len(stats.Workers) == 1 && len(stats.Workers[0].Tasks) == 1
	})
	got := o.do("drain", string(f.staff.worker.ID()), "--wait")
	if got.status != exitOK {
		t.Errorf("drain --wait = %d, want 0", got.status)
	}
	contains(t, "drain --wait", got.err, "has left", "it ran 1 when it was last asked", "drain timeout", "STARLING_DRAIN_TIMEOUT")
	contains(t, "the task", o.must("ps"), strings.Split(key, ".")[1], "submitted")

	putWorker(t, testenv.JetStream(t, o.url), protocol.WorkerInfo{WorkerID: "wrk_lost", Pool: "default", Host: "h", SeenAt: protocol.NewTime(time.Now())})
	err := (&app{}).left(t.Context(), f.bus, protocol.WorkerStats{WorkerInfo: protocol.WorkerInfo{WorkerID: "wrk_lost"}})
	if err == nil {
		t.Fatal("a worker whose entry stays has left")
	}
	contains(t, "a lost worker", err.Error(), "wrk_lost was lost while it drained", "its entry still stood 10s later")
}

func TestStatsOfJobsThatWait(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	o.must("init", "--pools", "gpu")
	for range 2 {
		o.must("dispatch", "hello@1.0.0", "--task", "x", "--pool", "gpu", "--allow-unserved")
	}
	for _, p := range decoded[fleetStats](t, o.must("stats", "--json")).Pools {
		if p.Pool == "gpu" && (p.Pending != 2 || p.Lanes["user"].Pending != 2 || p.OldestMS < 1 || p.Workers != 0) {
			t.Errorf("pool = %+v, want 2 jobs that wait for a worker", p)
		}
	}
}

// TestAWorkerThatIsNotHeardOfIsSilent, and one that was heard of lately is not.
func TestAWorkerThatIsNotHeardOfIsSilent(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	js := testenv.JetStream(t, f.server.ClientURL())
	putWorker(t, js, protocol.WorkerInfo{WorkerID: "wrk_gone", Pool: "default", Host: "h", SeenAt: protocol.NewTime(time.Now().Add(-time.Minute))})
	got := starling(t, "", "workers", "--url", f.server.ClientURL())
	for line := range strings.Lines(got.out) {
		if silent := strings.Contains(line, "silent"); silent != strings.Contains(line, "wrk_gone") {
			t.Errorf("workers: %s", line)
		}
	}
	contains(t, "workers", got.out, "wrk_gone", string(f.staff.worker.ID()))
}

// TestStatsTellWhoDoesNotAnswer: a worker that is in the registry and gone.
func TestStatsTellWhoDoesNotAnswer(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	h, err := f.bus.Announce(t.Context(), func() protocol.WorkerInfo {
		return protocol.WorkerInfo{WorkerID: "wrk_gone", Pool: "default", Host: "h\u202e\x1b[2J", Slots: 3}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	answered := map[protocol.WorkerID]bool{}
	for _, w := range decoded[fleetStats](t, o.must("stats", "--json")).Workers {
		answered[w.WorkerID] = w.Answered
	}
	if len(answered) != 2 || answered["wrk_gone"] || !answered[f.staff.worker.ID()] {
		t.Errorf("answered = %v, want the live worker alone", answered)
	}
	contains(t, "stats", o.must("stats"), "wrk_gone", "working, silent")
	for _, out := range []string{o.must("workers"), o.must("workers", "--json")} {
		if strings.ContainsFunc(out, steers) {
			t.Errorf("a worker's host steers:\n%q", out)
		}
	}
}

// TestTwoWorkersOfOneIDAreRefused, with what to do.
func TestTwoWorkersOfOneIDAreRefused(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	id := string(f.staff.worker.ID())
	got := o.do(runArgs(t, "worker", "--worker-id", id)...)
	if got.status != exitFailure {
		t.Fatalf("a second worker = %d, want %d\n%s", got.status, exitFailure, got.err)
	}
	contains(t, "stderr", got.err, "worker id is taken", id, "--worker-id", "process ")
	contains(t, "the first goes on", o.must("workers"), id, "working")
}

// TestWatchExitsWithTheEnding as dispatch --wait does.
func TestWatchExitsWithTheEnding(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", agent(t, protocol.OutputText))
	o.must("capsule", "push", testenv.WAT(t, "trap"), "--name", "trap", "--capsule-version", "1")
	for _, c := range []struct {
		capsule, task string
		byKey, byTask int
		deadline      string
	}{
		{"agent@1.0.0", "echo hi", exitOK, exitOK, "0s"},
		{"agent@1.0.0", "fail 7", exitTaskFailed, exitTaskFailed, "0s"},
		{"trap@1", "x", exitCrashed, exitTaskFailed, "0s"},
		{"agent@1.0.0", "sleeper", exitTerminated, exitTaskFailed, "1s"},
	} {
		rec := decoded[protocol.Record](t, o.must("dispatch", c.capsule, "--task", c.task, "--deadline", c.deadline, "--json"))
		if got := o.do("watch", rec.Key()); got.status != c.byKey {
			t.Errorf("watch KEY of %s = %d, want %d\n%s", c.task, got.status, c.byKey, got.err)
		}
		if got := o.do("watch", string(rec.TaskID)); got.status != c.byTask {
			t.Errorf("watch TASK of %s = %d, want %d\n%s", c.task, got.status, c.byTask, got.err)
		}
	}
}

// TestArgumentsAreJudgedBeforeConnecting: nobody listens where these would go.
func TestArgumentsAreJudgedBeforeConnecting(t *testing.T) {
	t.Parallel()
	o := operator{t, "nats://127.0.0.1:1"}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"init", "--replicas", "2"}, "--replicas (STARLING_REPLICAS) is 2: it is 1, 3 or 5"},
		{[]string{"init", "--pools", "a.b"}, "--pools"},
		{[]string{"init", "--ack-wait", "1ms"}, "--ack-wait"},
		{[]string{"init", "--max-jobs", "-1"}, "--max-jobs"},
		{[]string{"watch", "foo"}, `"foo" names no delegation`},
		{[]string{"result", "ses_1.dlg"}, "delegation"},
		{[]string{"cancel", "dlg_x"}, "dlg_x"},
		{[]string{"redeliver", "foo", "--door", "http://h"}, "foo"},
		{[]string{"redeliver", "dlg_1", "--door", "ftp://secret"}, "--door"},
		{[]string{"redeliver", "dlg_1", "--door", "http://h", "--trust", "much"}, "--trust"},
		{[]string{"redeliver", "dlg_1", "--trust", "trusted"}, "--trust"},
		{[]string{"redeliver", "dlg_1", "--door", "http://h", "--spawner", "{}"}, "--spawner"},
		{[]string{"drain", "a.b"}, "worker"},
		{[]string{"drain"}, "worker"},
		{[]string{"stats", "*"}, "worker"},
		{[]string{"dlq", "show", "a.b"}, "task"},
		{[]string{"dlq", "ls", "--pool", "*"}, "pool"},
		{[]string{"dlq", "retry", "tsk_1", "--deadline", "-1s"}, "--deadline"},
	} {
		got := o.do(c.args...)
		if got.status != exitUsage {
			t.Errorf("starling %v = %d, want %d\n%s", c.args, got.status, exitUsage, got.err)
		}
		contains(t, fmt.Sprint(c.args), got.err, c.says)
		if strings.Contains(got.err, "ftp://secret") {
			t.Errorf("the error tells the door: %s", got.err)
		}
	}
}

func TestDevNamesTheFlagThatFixesIt(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, c := range []struct{ args, says []string }{
		{[]string{"--port", port, "--door-listen", "127.0.0.1:0"}, []string{"--port", "-1"}},
		{[]string{"--port", "-1", "--door-listen", taken.Addr().String()}, []string{"--door-listen"}},
	} {
		got := starling(t, "", runArgs(t, slices.Concat([]string{"dev", "--store", t.TempDir()}, c.args)...)...)
		if got.status != exitFailure {
			t.Errorf("dev %v = %d, want %d", c.args, got.status, exitFailure)
		}
		contains(t, "stderr", got.err, append(c.says, "address already in use")...)
	}
	got := starling(t, "", "door", "--listen", taken.Addr().String())
	contains(t, "door", got.err, "--listen")
}

func TestJSONOfCommandsThatPrintOneThing(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	type initialized struct {
		Namespace string
		Pools     []string
	}
	if v := decoded[initialized](t, o.must("init", "--pools", "gpu", "--json")); v.Namespace != "starling" || !slices.Equal(v.Pools, []string{"default", "gpu"}) {
		t.Errorf("init --json = %+v", v)
	}
	if v := decoded[protocol.CapsuleEntry](t, o.must("capsule", "push", hello(t), "--json")); v.Manifest.Name != "hello" || v.Digest.Validate() != nil {
		t.Errorf("capsule push --json = %+v", v)
	}
	rec := decoded[protocol.Record](t, o.must("dispatch", "hello@1.0.0", "--task", "json", "--wait", "--json"))
	v := decoded[recordWithResult](t, o.must("result", rec.Key(), "--json"))
	if v.Result == nil || *v.Result != "Hello, JSON!" || v.Record.Status != protocol.StatusOK {
		t.Errorf("result --json = %+v", v)
	}
}

// TestPsListsInTheOrderOfSubmission, though records that changed last were written
// last, and says - where there is nobody to tell.
func TestPsListsInTheOrderOfSubmission(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", agent(t, protocol.OutputEvents))
	first := decoded[protocol.Record](t, o.must("dispatch", "agent@1.0.0", "--task", "sleeper", "--json"))
	second := decoded[protocol.Record](t, o.must("dispatch", "agent@1.0.0", "--task", "end done", "--wait", "--json"))
	o.must("cancel", first.Key())
	var lines []string
	testenv.Eventually(t, 20*time.Second, func() error { // the job is acked a moment after the outcome
		lines = strings.Split(strings.TrimSpace(o.must("ps", "--all")), "\n")
		if len(lines) != 3 {
			return fmt.Errorf("ps = %q, want two", lines)
		}
		if fields := strings.Fields(lines[2]); fields[7] != "-" {
			return fmt.Errorf("ps = %q, want nobody to tell", lines[2])
		}
		return nil
	})
	if !strings.HasPrefix(lines[1], string(first.DelegationID)) || !strings.HasPrefix(lines[2], string(second.DelegationID)) {
		t.Errorf("ps --all = %q, want %s before %s", lines, first.DelegationID, second.DelegationID)
	}
	if got := o.must("ps", "--undelivered"); strings.Contains(got, "dlg_") {
		t.Errorf("ps --undelivered lists what has no door:\n%s", got)
	}
}

// TestRedeliverTellsAParentByHand: its door was away when the task ended.
func TestRedeliverTellsAParentByHand(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	door := testenv.Door(t, testenv.Refuse(-32000, "not now"), testenv.Refuse(-32000, "not now"), testenv.Refuse(-32000, "nor now"), testenv.Refuse(-32000, "nor now"), testenv.Accept())
	rec := decoded[protocol.Record](t, o.must("dispatch", "hello@1.0.0", "--task", "door", "--door", door.URL()+"/s3cret-path", "--wait", "--json"))
	if rec.Outcome.Delivered || rec.Outcome.DeliveryError == "" {
		t.Fatalf("outcome = %+v, want it not delivered", rec.Outcome)
	}
	contains(t, "ps --undelivered", o.must("ps", "--undelivered"), string(rec.DelegationID), "failed", "not now")

	delegation, url := string(rec.DelegationID), door.URL()+"/s3cret-path"
	got := o.do("redeliver", delegation)
	if got.status != exitUsage {
		t.Errorf("redeliver without a door = %d, want %d", got.status, exitUsage)
	}
	contains(t, "stderr", got.err, "--door", "--spawner")
	if got := o.do("redeliver", delegation, "--door", url); got.status != exitUsage || !strings.Contains(got.err, "--trust") {
		t.Errorf("redeliver without a trust class = %d, %s", got.status, got.err)
	}
	args := []string{"redeliver", delegation, "--door", url, "--trust", "trusted", "--completion-backoff", "10ms"}
	if got := o.do(append(args, "--door-deny", "127.0.0.0/8")...); got.status != exitFailure || !strings.Contains(got.err, "deny list") {
		t.Errorf("redeliver to an address that the rule denies = %d, %s", got.status, got.err)
	}
	if n := len(door.PostsOf(rec.DelegationID)); n != 2 {
		t.Fatalf("%d posts, want the worker's 2", n)
	}
	refused := o.do(args...)
	if refused.status != exitFailure {
		t.Errorf("redeliver to a door that refuses = %d, want %d", refused.status, exitFailure)
	}
	contains(t, "stderr", refused.err, "nor now", delegation)
	told := o.do(append(args, "--json")...)
	if told.status != exitOK {
		t.Fatalf("redeliver = %d\n%s", told.status, told.err)
	}
	after := decoded[protocol.Record](t, told.out)
	if !after.Outcome.Delivered || after.Outcome.DeliveryError != "" || after.Outcome.Status != rec.Outcome.Status {
		t.Errorf("outcome = %+v, want delivered", after.Outcome)
	}
	posts := door.PostsOf(rec.DelegationID)
	first, last := posts[0], posts[len(posts)-1]
	if last.MessageID != first.MessageID || last.Text != first.Text || last.ContextID != first.ContextID {
		t.Errorf("the post by hand = %+v, want that of the worker %+v", last, first)
	}
	for _, header := range []string{"x-murmur-task-trust", "x-murmur-task-origin", "x-murmur-completion-session"} {
		if last.Header.Get(header) != first.Header.Get(header) {
			t.Errorf("%s = %q, want %q", header, last.Header.Get(header), first.Header.Get(header))
		}
	}
	again := o.do(args...)
	if again.status != exitFailure || !strings.Contains(again.err, "--again") {
		t.Errorf("redeliver of what was told = %d, %s", again.status, again.err)
	}
	if got := o.must("ps", "--undelivered"); strings.Contains(got, delegation) {
		t.Errorf("ps --undelivered lists it still:\n%s", got)
	}
	handle := protocol.Spawner{SessionID: rec.Spawner.SessionID, ContextID: rec.Spawner.ContextID, DelegationID: rec.DelegationID, URL: url, Trust: protocol.Trusted}
	if got := starling(t, handle.String()+"\n", "redeliver", delegation, "--spawner", "-", "--again", "--url", o.url); got.status != exitOK {
		t.Errorf("redeliver --spawner - = %d\n%s", got.status, got.err)
	}
	handle.DelegationID = protocol.NewDelegationID()
	if got := o.do("redeliver", delegation, "--spawner", handle.String(), "--again"); got.status != exitUsage {
		t.Errorf("redeliver with another's handle = %d, want %d", got.status, exitUsage)
	}
	for _, got := range []result{refused, told, again} {
		if strings.Contains(got.out+got.err, "s3cret") {
			t.Errorf("the door's address is told:\n%s%s", got.out, got.err)
		}
	}
}

// TestHarmlessOutput: what a capsule and a record say steers no terminal.
func TestHarmlessOutput(t *testing.T) {
	t.Parallel()
	const bad = "a\x1b[2J\u202eb\u2066c\u009bd\u2028e\x7ff"
	if got := printable(bad + "\n\t"); got != "a[2Jbcdef\n\t" {
		t.Errorf("printable = %q", got)
	}
	if got := cell(bad + "\n\tg"); got != "a[2Jbcdef  g" {
		t.Errorf("cell = %q", got)
	}
	in, err := json.Marshal(map[string]string{"text": bad})
	if err != nil {
		t.Fatal(err)
	}
	out := harmlessJSON(in)
	if strings.ContainsFunc(string(out), steers) {
		t.Errorf("JSON = %q, which steers", out)
	}
	if got := decoded[map[string]string](t, string(out))["text"]; got != bad {
		t.Errorf("JSON holds %q, want %q", got, bad)
	}
	for size := 1; size < 6; size++ { // characters that come in pieces
		var b strings.Builder
		w := &printableWriter{out: &b}
		text := "é\u202e日\x1b本\u2066 😀"
		for rest := []byte(text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if _, err := w.Write(rest[:min(size, len(rest))]); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close()); err != nil || b.String() != "é日本 😀" {
			t.Errorf("pieces of %d bytes: %q, %v", size, b.String(), err)
		}
	}
	ending := protocol.Record{
		Outcome: &protocol.Outcome{Status: protocol.StatusError, Workdir: "/a\nstarling: forged"},
		Ending:  &protocol.Ending{Message: "no\nstarling: forged\u202e"},
	}
	if got := endingLine(ending); strings.Count(got, "\n") != 1 || strings.ContainsFunc(got, steers) {
		t.Errorf("endingLine = %q, want a line and the work directory's", got)
	}
}

// TestOperationsPageCommands runs the page's first look at a fleet.
func TestOperationsPageCommands(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	out := shell(t, blocks(t, "docs/operations.md", "sh look")[0], "STARLING_URL="+f.server.ClientURL())
	contains(t, "the output", out, string(f.staff.worker.ID()), "POOL", "OLDEST", "DELEGATION", "WHY", "REASON", "ok: ")
}
