package broker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func TestCancelOfAQueuedDelegation(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	for name, remove := range map[string]bool{"a parent's": false, "an operator's": true} {
		job := newJob()
		dispatched(t, b, job)
		c, err := b.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{RemoveJob: remove})
		if err != nil || c.GuestMayRun {
			t.Fatalf("%s: Cancel() = %+v, %v", name, c, err)
		}
		e, err := b.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, c.Revision)
		if err != nil {
			t.Fatal(err)
		}
		o, ending := e.Record.Outcome, e.Record.Ending
		if o.Status != protocol.StatusTerminated || o.Detail != protocol.ParentEndedDetail || o.ReportedBy != protocol.ReportedByLauncher ||
			o.SessionID != "" || o.Workdir != "" || o.Delivered || ending.Message != protocol.MessageCanceledBeforeStart {
			t.Errorf("%s: outcome %+v, ending %+v", name, o, ending)
		}
		frames := framesOf(t, js, job.TaskID)
		if len(frames) != 1 || !frames[0].Terminal() || frames[0].Seq != 0 {
			t.Errorf("%s: frames %+v, want one terminal status with number 0", name, frames)
		}
		queued := len(storedOn(t, js, jobsStream, "starling.jobs.default.user."+string(job.TaskID)))
		if want := map[bool]int{false: 1, true: 0}[remove]; queued != want {
			t.Errorf("%s: %d jobs queued, want %d", name, queued, want)
		}
		c, err = b.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
		wantError(t, name+": Cancel() again", err, broker.ErrFinal, "terminated")
		if c.Revision != e.Revision {
			t.Errorf("%s: a second cancel changed the record", name)
		}
	}
	// Whoever takes the job that stayed completes it from the record.
	w := take(t, b, broker.TakerConfig{Slots: 1})
	d := w.next(t)
	job, err := protocol.ParseJob(d.Body())
	if err != nil {
		t.Fatal(err)
	}
	if c, err := b.Claim(t.Context(), d, job, asWorker); err != nil || c.Kind != broker.Final {
		t.Errorf("Claim() = %s, %v; want final", c.Kind, err)
	}
	done(t, d)
}

// listening is a claimed delegation whose worker ends it when asked.
func listening(t *testing.T, b *broker.Bus, w taking, end func(c broker.Claim) protocol.Status) (protocol.Job, *atomic.Int32) {
	t.Helper()
	job := newJob()
	dispatched(t, b, job)
	d := w.next(t)
	var asked atomic.Int32
	claim := make(chan broker.Claim, 1)
	l, err := b.ListenCancel(job.Spawner.SessionID, job.DelegationID, func(context.Context) protocol.CancelAnswer {
		asked.Add(1)
		c := <-claim
		claim <- c
		return protocol.CancelAnswer{Status: end(c)}
	})
	if err != nil {
		t.Fatalf("ListenCancel() = %v", err)
	}
	c, err := b.Claim(t.Context(), d, job, asWorker)
	if err != nil {
		t.Fatal(err)
	}
	claim <- c
	t.Cleanup(func() {
		l.Close()
		l.Close()
		d.Release()
	})
	return job, &asked
}

func TestCancelOfARunningDelegationWaitsForItsWorker(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 2})
	var gone atomic.Bool
	job, _ := listening(t, b, w, func(c broker.Claim) protocol.Status {
		rec := canceledRecord(newJob())
		rec.DelegationID, rec.TaskID, rec.Spawner, rec.SessionID = c.Record.DelegationID, c.Record.TaskID, c.Record.Spawner, c.Record.SessionID
		rec.Outcome.DelegationID = c.Record.DelegationID
		if _, err := b.WriteRecord(context.Background(), rec, c.Revision); err != nil {
			t.Error(err)
		}
		gone.Store(true)
		return protocol.StatusTerminated
	})
	c, err := b.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
	if err != nil || c.GuestMayRun || c.Record.Status != protocol.StatusTerminated {
		t.Errorf("Cancel() = %+v, %v", c, err)
	}
	if !gone.Load() {
		t.Error("Cancel() returned before the guest was gone")
	}
}

func TestCancelOfADelegationThatEndsByItselfIsFinal(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job, _ := listening(t, b, w, func(c broker.Claim) protocol.Status {
		rec := canceledRecord(newJob())
		rec.DelegationID, rec.TaskID, rec.Spawner, rec.SessionID = c.Record.DelegationID, c.Record.TaskID, c.Record.Spawner, c.Record.SessionID
		rec.Outcome.DelegationID = c.Record.DelegationID
		rec.Status, rec.Outcome.Status = protocol.StatusOK, protocol.StatusOK
		if _, err := b.WriteRecord(context.Background(), rec, c.Revision); err != nil {
			t.Error(err)
		}
		return protocol.StatusOK
	})
	c, err := b.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
	wantError(t, "Cancel()", err, broker.ErrFinal, "ok")
	if c.Record.Status != protocol.StatusOK {
		t.Errorf("the result says %s", c.Record.Status)
	}
}

// TestCancelOfADelegationThatItsDeadlineEnds: terminated, but not by this parent, who
// is told of it.
func TestCancelOfADelegationThatItsDeadlineEnds(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job, _ := listening(t, b, w, func(c broker.Claim) protocol.Status {
		rec := canceledRecord(newJob())
		rec.DelegationID, rec.TaskID, rec.Spawner, rec.SessionID = c.Record.DelegationID, c.Record.TaskID, c.Record.Spawner, c.Record.SessionID
		rec.Outcome.DelegationID, rec.Outcome.Detail = c.Record.DelegationID, protocol.DeadlineDetail(3)
		if _, err := b.WriteRecord(context.Background(), rec, c.Revision); err != nil {
			t.Error(err)
		}
		return protocol.StatusTerminated
	})
	_, err := b.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
	wantError(t, "Cancel()", err, broker.ErrFinal, "terminated")
}

func TestCancelWritesOverTheClaimOfAWorkerThatIsGone(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job := newJob()
	d, claim := claimed(t, b, w, job) // and does not listen
	start := time.Now()
	c, err := b.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
	if err != nil || !c.GuestMayRun || c.Record.Status != protocol.StatusTerminated {
		t.Fatalf("Cancel() = %+v, %v; want written over the claim", c, err)
	}
	if took := time.Since(start); took < 3*time.Second {
		t.Errorf("Cancel() took %s, want 3s of silence", took)
	}
	o := c.Record.Outcome
	if o.SessionID != claim.Record.SessionID || o.Workdir != claim.Record.Workdir || o.DurationMS < 2000 || o.Detail != protocol.ParentEndedDetail {
		t.Errorf("outcome %+v", o)
	}
	if mine, err := b.StillMine(t.Context(), claim.Entry); err != nil || mine {
		t.Errorf("StillMine() = %t, %v; want the worker fenced", mine, err)
	}
	if n := len(terminals(framesOf(t, testenv.JetStream(t, s.URL()), job.TaskID))); n != 1 {
		t.Errorf("%d terminal statuses, want 1", n)
	}
	done(t, d)
}

func TestCancelRefuses(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	_, err := b.Cancel(t.Context(), "ses_1", "dlg_1", broker.CancelOptions{})
	wantError(t, "Cancel() of nothing", err, broker.ErrNoRecord)
	_, err = b.Cancel(t.Context(), "ses.1", "dlg_1", broker.CancelOptions{})
	wantError(t, "Cancel() of no name", err, protocol.ErrName)
}

func TestACancelMustNameItsDelegation(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	nc := testenv.JetStream(t, s.URL()).Conn()
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job, asked := listening(t, b, w, func(broker.Claim) protocol.Status { return protocol.StatusTerminated })
	subject := "starling.cancel." + string(job.Spawner.SessionID) + "." + string(job.DelegationID)
	for _, body := range []string{"", "{}", `{"delegation_id":"dlg_0"}`, `{"Delegation_ID":"` + string(job.DelegationID) + `"}`} {
		if _, err := nc.Request(subject, []byte(body), 100*time.Millisecond); err == nil {
			t.Errorf("a cancel of %q was answered", body)
		}
	}
	if asked.Load() != 0 {
		t.Errorf("%d cancels were taken, want none", asked.Load())
	}
	m, err := nc.Request(subject, []byte(`{"delegation_id":"`+string(job.DelegationID)+`"}`), within)
	if err != nil || string(m.Data) != `{"status":"terminated"}` {
		t.Errorf("a cancel was answered %v, %v", m, err)
	}
}

func TestClosingAListenerEndsItsRequestWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	nc := testenv.JetStream(t, s.URL()).Conn()
	entered, left := make(chan struct{}), make(chan struct{})
	l, err := b.ListenCancel("ses_1", "dlg_1", func(ctx context.Context) protocol.CancelAnswer {
		close(entered)
		<-ctx.Done()
		close(left)
		return protocol.CancelAnswer{} // it did not end here
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		err := nats.ErrNoResponders
		for errors.Is(err, nats.ErrNoResponders) { // the subscription came over another connection
			_, err = nc.RequestWithContext(ctx, "starling.cancel.ses_1.dlg_1", []byte(`{"delegation_id":"dlg_1"}`))
		}
		answered <- err
	}()
	<-entered
	l.Close()
	select {
	case <-left:
	default:
		t.Error("Close() did not wait")
	}
	cancel()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("a request of a closed listener was answered: %v", err)
	}
}

// TestCancelAnswerOutlivesItsListener: the answer is ready when the worker stops
// to listen, and must not be lost to whoever is faster.
func TestCancelAnswerOutlivesItsListener(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	job := newJob()
	asked := make(chan struct{})
	l, err := b.ListenCancel(job.Spawner.SessionID, job.DelegationID, func(ctx context.Context) protocol.CancelAnswer {
		close(asked)
		<-ctx.Done() // the worker is through before this goroutine runs again
		return protocol.CancelAnswer{Status: protocol.StatusTerminated}
	})
	if err != nil {
		t.Fatal(err)
	}
	// The subscription goes out with what follows on its connection: an answer to
	// that says that the server has both.
	if _, err := b.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0); !errors.Is(err, broker.ErrNoRecord) {
		t.Fatalf("ReadRecord() = %v, want no record", err)
	}
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	go func() {
		<-asked
		l.Close()
	}()
	body := []byte(`{"delegation_id":"` + string(job.DelegationID) + `"}`)
	m, err := nc.Request("starling.cancel."+string(job.Spawner.SessionID)+"."+string(job.DelegationID), body, 5*time.Second)
	if err != nil {
		t.Fatalf("the cancel was not answered: %v", err)
	}
	if a, err := protocol.ParseCancelAnswer(m.Data); err != nil || a.Status != protocol.StatusTerminated {
		t.Errorf("answer = %+v, %v", a, err)
	}
}

// TestACancelOverAStaleRead: a server that was away has no record yet of what was
// dispatched, which is no word about the delegation.
func TestACancelOverAStaleRead(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	proxy := testenv.Proxy(t, s.URL())
	behind := connected(t, proxy.URL())
	job := newJob()
	proxy.HideStored("$KV.starling-delegations." + string(job.Spawner.SessionID) + "." + string(job.DelegationID))
	dispatched(t, b, job)
	_, err := behind.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
	wantError(t, "Cancel() over a stale read", err, broker.ErrUnavailable, "cancel again")
	proxy.HideStored("")
	result, err := behind.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
	if err != nil || result.Record.Status != protocol.StatusTerminated {
		t.Errorf("Cancel() when the server is back = %s, %v; want terminated", result.Record.Status, err)
	}
}
