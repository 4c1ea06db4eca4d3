package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// put stores one frame as it stands, in whatever order the test wants. Attempt
// and number are "1/2"; "1/2 end" is a terminal status.
func put(t testing.TB, js jetstream.JetStream, task protocol.TaskID, what string) {
	t.Helper()
	place := protocol.Place{TaskID: task, ContextID: "ctx_1", SessionID: "ses_1"}
	if _, err := fmt.Sscanf(what, "%d/%d", &place.Attempt, &place.Seq); err != nil {
		t.Fatal(err)
	}
	f := progress(place.Seq)
	if strings.HasSuffix(what, "end") {
		f = protocol.Frame{Kind: protocol.FrameStatus, State: a2a.TaskStateCompleted, Text: protocol.MessageSessionEnded}
	}
	encoded, err := f.Encode(place)
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("starling.tasks." + string(task))
	m.Data = encoded.Body
	for name, value := range encoded.Header {
		if name != protocol.HeaderMsgID { // the test stores frames twice, too
			m.Header.Set(name, value)
		}
	}
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// told is what a watch tells until its end, in the words of put, and "hole
// 1/2-3".
func told(t testing.TB, w *broker.Watch) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var all []string
	for {
		e, err := w.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("Next() after %q = %v", all, err)
		case e.Hole != nil:
			all = append(all, fmt.Sprintf("hole %d/%d-%d", e.Hole.Attempt, e.Hole.From, e.Hole.To))
		case e.Frame.Terminal():
			all = append(all, fmt.Sprintf("%d/%d end", e.Frame.Attempt, e.Frame.Seq))
		default:
			all = append(all, fmt.Sprintf("%d/%d", e.Frame.Attempt, e.Frame.Seq))
		}
	}
}

func watched(t testing.TB, b *broker.Bus, task protocol.TaskID, opts broker.WatchOptions) *broker.Watch {
	t.Helper()
	w, err := b.WatchTask(t.Context(), task, opts)
	if err != nil {
		t.Fatalf("WatchTask() = %v", err)
	}
	t.Cleanup(w.Close)
	return w
}

func TestAnObserverRestoresTheOrder(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	for name, tt := range map[string]struct{ stored, want string }{
		"as numbered":                   {"1/1,1/2,1/3 end", "1/1,1/2,1/3 end"},
		"behind their place":            {"1/2,1/3,1/1,1/4 end", "1/1,1/2,1/3,1/4 end"},
		"twice":                         {"1/1,1/1,1/3,1/3,1/2,1/2,1/4 end", "1/1,1/2,1/3,1/4 end"},
		"a hole that stays":             {"1/1,1/4,1/5 end", "1/1,hole 1/2-3,1/4,1/5 end"},
		"a hole before the end":         {"1/1,1/4 end", "1/1,hole 1/2-3,1/4 end"},
		"ended by another":              {"1/1,1/3,1/0 end", "1/1,hole 1/2-2,1/3,1/0 end"},
		"ended without a frame":         {"0/0 end", "0/0 end"},
		"frames of a lower attempt":     {"1/1,2/1,1/2,2/2,2/3 end", "1/1,2/1,2/2,2/3 end"},
		"a lower attempt with a hole":   {"1/1,1/3,2/1,2/2 end", "1/1,hole 1/2-2,1/3,2/1,2/2 end"},
		"a higher attempt behind":       {"1/1,2/2,2/1,2/3 end", "1/1,2/1,2/2,2/3 end"},
		"nothing after the end":         {"1/1,1/0 end,1/2,2/1", "1/1,1/0 end"},
		"an attempt of the end alone":   {"1/1,2/1 end", "1/1,2/1 end"},
		"the first frames have expired": {"1/7,1/8,1/9 end", "hole 1/1-6,1/7,1/8,1/9 end"},
	} {
		task := protocol.NewTaskID()
		for _, what := range strings.Split(tt.stored, ",") {
			put(t, js, task, what)
		}
		if got := strings.Join(told(t, watched(t, b, task, broker.WatchOptions{})), ","); got != tt.want {
			t.Errorf("%s: told %s, want %s", name, got, tt.want)
		}
	}
}

func TestAHoleStaysWhenTheWindowHasPassedIt(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	task := protocol.NewTaskID()
	w := watched(t, b, task, broker.WatchOptions{})
	put(t, js, task, "1/1")
	for n := 3; n <= 257; n++ { // 2 may still come: it can be 255 behind
		put(t, js, task, fmt.Sprintf("1/%d", n))
	}
	if e, err := w.Next(t.Context()); err != nil || e.Frame == nil || e.Frame.Seq != 1 {
		t.Fatalf("Next() = %+v, %v", e, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	e, err := w.Next(ctx)
	wantError(t, fmt.Sprintf("Next() = %+v,", e), err, broker.ErrUnavailable)
	put(t, js, task, "1/258") // and now no more
	if e, err := w.Next(t.Context()); err != nil || e.Hole == nil || *e.Hole != (broker.Hole{Attempt: 1, From: 2, To: 2}) {
		t.Fatalf("Next() = %+v, %v; want hole 2", e, err)
	}
	if e, err := w.Next(t.Context()); err != nil || e.Frame == nil || e.Frame.Seq != 3 {
		t.Fatalf("Next() = %+v, %v; want frame 3", e, err)
	}
}

func TestALiveWatchLeavesOutWhatWas(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	task := protocol.NewTaskID()
	put(t, js, task, "1/1")
	put(t, js, task, "1/2")
	w := watched(t, b, task, broker.WatchOptions{Live: true})
	put(t, js, task, "1/3")
	put(t, js, task, "1/4 end")
	if got := strings.Join(told(t, w), ","); got != "1/3,1/4 end" {
		t.Errorf("told %s", got)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("Next() after the end = %v, want EOF again", err)
	}
}

func TestAMessageThatIsNoFrameIsPassedOver(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	task := protocol.NewTaskID()
	put(t, js, task, "1/1")
	if _, err := js.Publish(t.Context(), "starling.tasks."+string(task), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	put(t, js, task, "1/2 end")
	if got := strings.Join(told(t, watched(t, b, task, broker.WatchOptions{})), ","); got != "1/1,1/2 end" {
		t.Errorf("told %s", got)
	}
}

func TestAWatchOutlivesRestartsAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	task := protocol.NewTaskID()
	w, err := b.WatchTask(t.Context(), task, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, js, task, "1/1")
	if e, err := w.Next(t.Context()); err != nil || e.Frame == nil {
		t.Fatalf("Next() = %+v, %v", e, err)
	}
	s.Restart() // the consumer was in memory
	testenv.EventuallyTrue(t, within, "connections", func() bool { return b.Connected() && js.Conn().IsConnected() })
	testenv.Eventually(t, within, func() error { // a server that has just started drops what it is asked
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.Stream(ctx, tasksStream)
		return err
	})
	put(t, js, task, "1/2")
	put(t, js, task, "1/3 end")
	if got := strings.Join(told(t, w), ","); got != "1/2,1/3 end" {
		t.Errorf("told %s", got)
	}
	w.Close()
	stream, err := js.Stream(t.Context(), tasksStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Consumers; n != 0 {
		t.Errorf("%d consumers stay, want none", n)
	}
}

func TestAWatchOutlivesTheLossOfAServer(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	js := testenv.JetStream(t, c.URL())
	tasks := make([]protocol.TaskID, 6) // their consumers are on all servers
	watches := make([]*broker.Watch, len(tasks))
	for i := range tasks {
		tasks[i] = protocol.NewTaskID()
		put(t, js, tasks[i], "1/1")
		watches[i] = watched(t, b, tasks[i], broker.WatchOptions{})
		if e, err := watches[i].Next(t.Context()); err != nil || e.Frame == nil {
			t.Fatalf("Next() = %+v, %v", e, err)
		}
	}
	c.LeaderOf(tasksStream, "").Stop()
	c.LeaderOf(tasksStream, "")
	for i, task := range tasks {
		testenv.Eventually(t, within, func() error {
			_, err := js.Publish(t.Context(), "starling.tasks."+string(task), []byte("no frame, until the stream takes one"))
			return err
		})
		put(t, js, task, "1/2 end")
		if got := strings.Join(told(t, watches[i]), ","); got != "1/2 end" {
			t.Errorf("task %d: told %s", i, got)
		}
	}
}

func TestAnObserverNeedsItsRightsOnly(t *testing.T) {
	t.Parallel()
	ns, task := protocol.DefaultNamespace, protocol.NewTaskID()
	observer := testenv.ObserverUser(ns, "ses_1", task)
	s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), observer))
	operator := connected(t, s.URL(), as(testenv.OperatorUser()))
	if err := operator.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	b := connected(t, s.URL(), as(observer))
	put(t, testenv.JetStream(t, s.URLFor(testenv.OperatorUser())), task, "1/1 end")
	if got := strings.Join(told(t, watched(t, b, task, broker.WatchOptions{})), ","); got != "1/1 end" {
		t.Errorf("told %s", got)
	}
	_, err := b.WatchTask(t.Context(), protocol.NewTaskID(), broker.WatchOptions{})
	wantError(t, "WatchTask() of another task", err, broker.ErrDenied)
	_, err = b.WatchTask(t.Context(), "a.>", broker.WatchOptions{})
	wantError(t, "WatchTask() of no name", err, protocol.ErrName)
	_, err = b.WatchDelegation(t.Context(), "ses_2", "dlg_2")
	wantError(t, "WatchDelegation() of another session", err, broker.ErrDenied)
}

func TestADelegationIsWatchedFromBeforeItExists(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	job := newJob()
	w, err := b.WatchDelegation(t.Context(), job.Spawner.SessionID, job.DelegationID)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	next := func(want protocol.Status) broker.Entry {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		e, err := w.Next(ctx)
		if err != nil || e.Record.Status != want {
			t.Fatalf("Next() = %+v, %v; want %s", e.Record, err, want)
		}
		return e
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = w.Next(ctx)
	wantError(t, "Next() before it exists", err, broker.ErrUnavailable)
	d := dispatched(t, b, job)
	e := next(protocol.StatusSubmitted)
	if e.Revision != d.Revision {
		t.Errorf("Revision = %d, want %d", e.Revision, d.Revision)
	}
	s.Restart()
	testenv.EventuallyTrue(t, within, "connections", func() bool { return b.Connected() && js.Conn().IsConnected() })
	e, err = b.WriteRecord(t.Context(), working(e.Record, protocol.NewSessionID()), e.Revision)
	if err != nil {
		t.Fatal(err)
	}
	next(protocol.StatusWorking)
	if _, err := b.WriteRecord(t.Context(), canceledRecord(job), e.Revision); err != nil {
		t.Fatal(err)
	}
	next(protocol.StatusTerminated)
	late, err := b.WatchDelegation(t.Context(), job.Spawner.SessionID, job.DelegationID)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if e, err := late.Next(t.Context()); err != nil || e.Record.Status != protocol.StatusTerminated {
		t.Errorf("a late watch tells %+v, %v", e.Record, err)
	}
	kv, err := js.KeyValue(t.Context(), "starling-delegations")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), protocol.LedgerKey(job.Spawner.SessionID, job.DelegationID)); err != nil {
		t.Fatal(err)
	}
	_, err = w.Next(t.Context())
	wantError(t, "Next() of a withdrawn one", err, broker.ErrNoRecord)
}

func TestADelegationWatchHearsWhatHappenedWhileItWasCutOff(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	p := testenv.Proxy(t, s.URL())
	job := newJob()
	d := dispatched(t, b, job)
	w, err := connected(t, p.URL()).WatchDelegation(t.Context(), job.Spawner.SessionID, job.DelegationID)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if e, err := w.Next(t.Context()); err != nil || e.Record.Status != protocol.StatusSubmitted {
		t.Fatalf("Next() = %+v, %v", e, err)
	}
	p.Down()
	if _, err := b.WriteRecord(t.Context(), working(d.Record, protocol.NewSessionID()), d.Revision); err != nil {
		t.Fatal(err)
	}
	p.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if e, err := w.Next(ctx); err != nil || e.Record.Status != protocol.StatusWorking {
		t.Fatalf("Next() = %+v, %v", e.Record, err)
	}
}

// TestADelegationWatchBelievesTheLedger, and not whoever publishes where it is mirrored.
func TestADelegationWatchBelievesTheLedger(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	job := newJob()
	d := dispatched(t, b, job)
	w, err := b.WatchDelegation(t.Context(), job.Spawner.SessionID, job.DelegationID)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if e, err := w.Next(t.Context()); err != nil || e.Record.Status != protocol.StatusSubmitted {
		t.Fatalf("Next() = %+v, %v", e, err)
	}
	forged, err := canceledRecord(job).Encode()
	if err != nil {
		t.Fatal(err)
	}
	nc := testenv.JetStream(t, s.URL()).Conn()
	subject := protocol.DefaultNamespace.DelegationSubject(job.Spawner.SessionID, job.DelegationID)
	if err := nc.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{"Nats-Sequence": {"999999"}}, Data: forged}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil { // it is there before what follows
		t.Fatal(err)
	}
	if _, err := b.WriteRecord(t.Context(), working(d.Record, protocol.NewSessionID()), d.Revision); err != nil {
		t.Fatal(err)
	}
	if e, err := w.Next(t.Context()); err != nil || e.Record.Status != protocol.StatusWorking {
		t.Fatalf("Next() = %+v, %v; want what the ledger says", e, err)
	}
}
