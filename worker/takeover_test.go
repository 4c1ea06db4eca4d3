package worker_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// ack is an acknowledgement as it passes on the bus.
type ack struct {
	count uint64 // of the delivery
	word  string
}

// acks are all acknowledgements since it was called, and those that follow.
func (f *fleet) acks(t *testing.T) func() []ack {
	t.Helper()
	var mu sync.Mutex
	var seen []ack
	_, err := f.nc.Subscribe("$JS.ACK.>", func(m *nats.Msg) {
		tokens := strings.Split(m.Subject, ".")
		count, err := strconv.ParseUint(tokens[len(tokens)-5], 10, 64)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, ack{count, string(m.Data)})
	})
	if err == nil {
		err = f.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() []ack {
		mu.Lock()
		defer mu.Unlock()
		return append([]ack(nil), seen...)
	}
}

// TestALostWorkersTaskIsRunAgain begins the second attempt with why.
func TestALostWorkersTaskIsRunAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.dispatch(t, f.job(f.push(t, "again", guest(t, say("done"))), "x"))
	lost := f.lose(t, job)
	f.hire(t, nil)
	e := ended{f.settled(t, job), f.frames(t, job)}
	e.check(t, f, job, situation{protocol.StatusOK, protocol.ReportedByChild, "", "TASK_STATE_COMPLETED", "session ended", text("done"), "done"})
	if e.rec.Attempt != 2 || e.rec.SessionID == lost.SessionID {
		t.Errorf("attempt %d, session %s; want 2 and a new one", e.rec.Attempt, e.rec.SessionID)
	}
	first := e.frames[0]
	if want := "attempt 2: worker " + string(lost.WorkerID) + " was lost"; first.Text != want || first.State != a2a.TaskStateWorking || first.Attempt != 2 || first.Seq != 1 {
		t.Errorf("first frame = %+v, want working, %q", first.Frame, want)
	}
}

// TestALostWorkerWithoutAnAttemptLeft ends the delegation as crashed, and its
// job as a dead letter.
func TestALostWorkerWithoutAnAttemptLeft(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.job(f.push(t, "never", guest(t, say("ran"))), "x", func(j *protocol.Job) { j.MaxAttempts = 1 })
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if _, err := f.bus.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true, Traceparent: trace}); err != nil {
		t.Fatal(err)
	}
	lost := f.lose(t, job)
	m := f.hire(t, nil)
	rec, frames := f.settled(t, job), f.frames(t, job)
	o, detail := rec.Outcome, "worker "+string(lost.WorkerID)+" was lost while running attempt 1"
	if o.Status != protocol.StatusCrashed || o.ReportedBy != protocol.ReportedByLauncher || o.Detail != detail || o.ResultPath != "" {
		t.Errorf("outcome = %+v, want crashed, %q", o, detail)
	}
	if o.SessionID != lost.SessionID || o.Workdir != lost.Workdir || o.WorkerID != m.ID() || rec.Attempt != 1 {
		t.Errorf("outcome = %+v; want the lost attempt's session and work directory, reported by %s", o, m.ID())
	}
	if len(frames) != 1 || frames[0].State != a2a.TaskStateFailed || frames[0].Text != detail || frames[0].Seq != 0 {
		t.Errorf("frames = %+v, want the terminal one alone, number 0", frames)
	}
	posts := f.door.PostsOf(job.DelegationID)
	if len(posts) != 1 || posts[0].Text != o.Text() || !o.Delivered || posts[0].Header.Get("traceparent") != trace {
		t.Errorf("posts = %+v, want one that says %q", posts, o.Text())
	}
	letter := f.letter(t, job.Pool, job.TaskID)
	body, err := job.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if string(letter.Data) != string(body) {
		t.Errorf("dead letter holds\n%s\nwant the job\n%s", letter.Data, body)
	}
	for name, want := range map[string]string{"Starling-Reason": "attempts-spent", "Starling-Detail": detail, "traceparent": trace} {
		if got := letter.Header[name]; len(got) != 1 || got[0] != want {
			t.Errorf("dead letter's %s = %q, want %q", name, got, want)
		}
	}
	if rev := letter.Header.Get("Starling-Ledger-Revision"); rev == "" {
		t.Error("the dead letter lost Starling-Ledger-Revision")
	}
}

// TestAFinalRecordIsCompleted covers what a worker that died after its outcome
// left undone.
func TestAFinalRecordIsCompleted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*protocol.Outcome)
		posts  int
	}{
		"before the post":           {func(*protocol.Outcome) {}, 1},
		"after the delivery":        {func(o *protocol.Outcome) { o.Delivered = true }, 0},
		"after the delivery failed": {func(o *protocol.Outcome) { o.DeliveryError = "no" }, 0},
		"the parent ended it": {func(o *protocol.Outcome) {
			o.Status, o.Detail = protocol.StatusTerminated, "the parent ended this delegation"
		}, 0},
		"the deadline ended it": {func(o *protocol.Outcome) { o.Status, o.Detail = protocol.StatusTerminated, deadlineBeforeStart }, 1},
		"the parent's words in a crash": {func(o *protocol.Outcome) {
			o.Status, o.Detail = protocol.StatusCrashed, "the parent ended this delegation"
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			job := f.dispatch(t, f.job(f.push(t, "final", guest(t, say("ran"))), "x"))
			var final broker.Entry
			f.take(t, job, func(d *broker.Delivery) protocol.Record {
				claim, err := f.bus.Claim(t.Context(), d, job, func(rec protocol.Record) protocol.Record {
					rec.WorkerID, rec.SessionID, rec.Workdir = protocol.NewWorkerID(), protocol.NewSessionID(), "/gone"
					return rec
				})
				if err != nil {
					t.Fatal(err)
				}
				rec := claim.Record
				o := protocol.Outcome{
					DelegationID: rec.DelegationID, CapsuleName: "final", CapsuleVersion: "1.0.0", SessionID: rec.SessionID,
					Status: protocol.StatusOK, Workdir: rec.Workdir, ReportedBy: protocol.ReportedByChild, WorkerID: rec.WorkerID,
				}
				c.change(&o)
				rec.Status, rec.Outcome, rec.EndedAt = o.Status, &o, protocol.NewTime(time.Now())
				rec.Ending = &protocol.Ending{State: a2a.TaskStateCompleted, Message: "session ended"}
				if final, err = f.bus.WriteRecord(t.Context(), rec, claim.Revision); err != nil {
					t.Fatal(err)
				}
				return rec
			})
			f.hire(t, nil)
			rec, frames := f.settled(t, job), f.frames(t, job)
			if len(frames) != 1 || frames[0].Text != "session ended" || frames[0].Attempt != 1 || frames[0].Seq != 0 {
				t.Errorf("frames = %+v, want the terminal one of attempt 1 alone, number 0", frames)
			}
			posts := f.door.PostsOf(job.DelegationID)
			if len(posts) != c.posts {
				t.Fatalf("%d posts, want %d", len(posts), c.posts)
			}
			want := *final.Record.Outcome
			if c.posts == 1 {
				want.Delivered = true
				if posts[0].Text != want.Text() {
					t.Errorf("post says\n%s\nwant\n%s", posts[0].Text, want.Text())
				}
			}
			if got := *rec.Outcome; got != want {
				t.Errorf("outcome = %+v, want %+v", got, want)
			}
		})
	}
}

// TestAnEarlierDeliveryIsDropped has a record that a later delivery holds: the
// worker neither acks nor naks nor renews.
func TestAnEarlierDeliveryIsDropped(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.dispatch(t, f.job(f.push(t, "theirs", guest(t, say("ran"))), "x"))
	held := f.lose(t, job, func(rec *protocol.Record) { rec.Delivery.Count = 1000 })
	seen := f.acks(t)
	f.hire(t, nil)
	testenv.Eventually(t, soon, func() error {
		c, err := f.js.Consumer(t.Context(), f.bus.Namespace().JobsStream(), "default-user")
		if err != nil {
			return err
		}
		if n := c.CachedInfo().Delivered.Consumer; n < 3 { // the lost one's, and two of the worker
			return fmt.Errorf("%d deliveries", n)
		}
		return nil
	})
	if got := seen(); len(got) != 0 {
		t.Errorf("acknowledgements = %v, want none", got)
	}
	if queued, err := f.queued(t.Context(), job); err != nil || !queued {
		t.Errorf("the job is queued: %t, %v; want true", queued, err)
	}
	if rec := f.record(t, job).Record; rec.SessionID != held.SessionID || rec.Status != protocol.StatusWorking {
		t.Errorf("record = %+v, want it as it was", rec)
	}
}
