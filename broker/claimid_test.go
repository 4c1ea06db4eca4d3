package broker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// run is one run of a worker with an id.
func run(id protocol.WorkerID, host string) func() protocol.WorkerInfo {
	return func() protocol.WorkerInfo { return protocol.WorkerInfo{WorkerID: id, Pool: "default", Host: host} }
}

func hostOf(t *testing.T, b *broker.Bus, id protocol.WorkerID) string {
	t.Helper()
	list, err := b.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list {
		if w.WorkerID == id {
			return w.Host
		}
	}
	return ""
}

func left(t *testing.T, h *broker.Heartbeat) {
	t.Helper()
	if err := h.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

func TestAnIDThatALiveWorkerHasIsRefused(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	refuseTheSecond(t, b, s.URL())
}

func TestAnIDThatALiveWorkerHasIsRefusedAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	refuseTheSecond(t, b, c.Servers[2].URL())
}

func refuseTheSecond(t *testing.T, b *broker.Bus, other string) {
	h, err := b.Announce(t.Context(), run("wrk_1", "first"))
	if err != nil {
		t.Fatal(err)
	}
	defer left(t, h)
	serve(t, b, "wrk_1", nil)
	testenv.Eventually(t, 20*time.Second, func() error { // a server may learn late who answers
		_, err := connected(t, other).WorkerStats(t.Context(), "wrk_1")
		return err
	})
	_, err = connected(t, other).Announce(t.Context(), run("wrk_1", "second"))
	wantError(t, "Announce() of the same id", err, broker.ErrWorkerTaken, "wrk_1", "--worker-id")
	testenv.EventuallyTrue(t, 5*time.Second, "the first is listed", func() bool { return hostOf(t, b, "wrk_1") == "first" })
	if err := h.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm() of the first = %v", err)
	}
}

// TestTheIDOfAWorkerThatIsGoneIsTakenOver at once: of one that died, whose entry
// still stands, and of one that left.
func TestTheIDOfAWorkerThatIsGoneIsTakenOver(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	dead, err := b.Announce(t.Context(), run("wrk_1", "dead"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := b.Announce(t.Context(), run("wrk_1", "next"))
	if err != nil {
		t.Fatalf("Announce() over an entry that nobody answers for = %v", err)
	}
	if got := hostOf(t, b, "wrk_1"); got != "next" {
		t.Errorf("the entry is of %q, want next", got)
	}
	if err := dead.Beat(t.Context()); !errors.Is(err, broker.ErrWorkerTaken) {
		t.Errorf("Beat() of the dead = %v, want %v", err, broker.ErrWorkerTaken)
	}
	left(t, dead)
	if got := hostOf(t, b, "wrk_1"); got != "next" {
		t.Errorf("after the close of the dead the entry is of %q, want next", got)
	}
	left(t, next)
	again, err := b.Announce(t.Context(), run("wrk_1", "again"))
	if err != nil {
		t.Fatalf("Announce() after a close = %v", err)
	}
	left(t, again)
}

// TestAWorkerWhoseIDAnotherRenewsLearnsOfIt, and only then: one foreign entry
// could be its own write.
func TestAWorkerWhoseIDAnotherRenewsLearnsOfIt(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	old, err := b.AnnounceEvery(t.Context(), 20*time.Millisecond, run("wrk_1", "old"))
	if err != nil {
		t.Fatal(err)
	}
	defer left(t, old)
	next, err := b.Announce(t.Context(), run("wrk_1", "next"))
	for errors.Is(err, broker.ErrWorkerTaken) { // the old one's renewal came between
		next, err = b.Announce(t.Context(), run("wrk_1", "next"))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer left(t, next)
	testenv.Eventually(t, 20*time.Second, func() error {
		if err := next.Beat(t.Context()); err != nil {
			return err
		}
		select {
		case <-old.Lost():
			return nil
		default:
			return errors.New("the old run does not know")
		}
	})
	select {
	case <-next.Lost():
		t.Error("the one that has the id lost it")
	default:
	}
}

// TestOfTwoThatBeginAtATimeOneHasTheID, many times.
func TestOfTwoThatBeginAtATimeOneHasTheID(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	other := connected(t, s.URL())
	for range 20 {
		id := protocol.NewWorkerID()
		var both sync.WaitGroup
		errs := make([]error, 2)
		closers := make([]func(), 2)
		for i, bus := range []*broker.Bus{b, other} {
			both.Go(func() {
				h, err := bus.Announce(t.Context(), run(id, "x"))
				if errs[i] = err; err != nil {
					return
				}
				service, err := bus.Serve(t.Context(), broker.ServiceConfig{
					WorkerID: id, Pool: "default", Stats: func() protocol.WorkerStats { return protocol.WorkerStats{WorkerInfo: run(id, "x")()} },
				})
				if errs[i] = err; err == nil {
					errs[i] = h.Confirm(t.Context())
				}
				closers[i] = func() {
					if err := service.Close(t.Context()); err != nil {
						t.Error(err)
					}
					left(t, h)
				}
			})
		}
		both.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("both began: %v, %v; want one refused", errs[0], errs[1])
		}
		if err := errors.Join(errs...); !errors.Is(err, broker.ErrWorkerTaken) {
			t.Fatalf("the refusal is %v, want %v", err, broker.ErrWorkerTaken)
		}
		for _, end := range closers {
			if end != nil {
				end()
			}
		}
	}
}

// TestAnIDIsWatchedWhereItsWorkerCannotBeAsked: a user without that right sees
// whether the entry is renewed.
func TestAnIDIsWatchedWhereItsWorkerCannotBeAsked(t *testing.T) {
	t.Parallel()
	user := testenv.WorkerUser(protocol.DefaultNamespace, "wrk_1", "default")
	for i, subject := range user.Publish {
		if subject == "starling.workers.wrk_1.stats" {
			user.Publish[i] = "nothing"
		}
	}
	s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), user))
	operator := connected(t, s.URL(), as(testenv.OperatorUser()))
	if err := operator.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	h, err := operator.AnnounceEvery(t.Context(), 100*time.Millisecond, run("wrk_1", "first"))
	if err != nil {
		t.Fatal(err)
	}
	defer left(t, h)
	_, err = connected(t, s.URL(), as(user)).Announce(t.Context(), run("wrk_1", "second"))
	wantError(t, "Announce()", err, broker.ErrWorkerTaken)
}

// TestARenewalWhoseAnswerIsLostIsItsOwn: repeated, it is not taken for another's.
func TestARenewalWhoseAnswerIsLostIsItsOwn(t *testing.T) {
	t.Parallel()
	_, s := initialized(t)
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL())
	h, err := b.Announce(t.Context(), run("wrk_1", "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer left(t, h)
	var once sync.Once
	lost := false
	p.DropAnswers(func(string, []byte) bool { once.Do(func() { lost = true }); drop := lost; lost = false; return drop })
	for range 3 {
		if err := h.Beat(t.Context()); err != nil {
			t.Errorf("Beat() = %v", err)
		}
	}
	if n := p.Dropped(); n != 1 {
		t.Errorf("%d answers were dropped, want 1", n)
	}
}
