package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// TestAStalledWorkerIsFenced stalls a worker's way to the bus for longer than the
// ack wait. Another takes over and ends the task; when the first is back, it
// stops its guest and says nothing more: no frame, no record, no post, and
// neither ack nor nak.
func TestAStalledWorkerIsFenced(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	proxy := testenv.Proxy(t, f.server.URL())
	first := f.hireAt(t, proxy.URL(), func(c *worker.Config) { c.Slots = 1 })
	job := f.dispatch(t, f.job(f.push(t, "stalled", guest(t, say("ready"), forever())), "x"))
	f.saying(t, job, "ready")
	stuck := f.record(t, job).Record
	seen := f.acks(t)
	proxy.Stall(testenv.Both)
	second := f.hire(t, func(c *worker.Config) { c.Slots = 1 })
	testenv.Eventually(t, soon, func() error {
		if rec := f.record(t, job).Record; rec.WorkerID != second.ID() {
			return fmt.Errorf("it is %s's", rec.WorkerID)
		}
		return nil
	})
	taken := f.sayingIn(t, job, 2, "attempt 2: worker "+string(first.ID())+" was lost")
	if taken.Seq != 1 {
		t.Errorf("frame %+v, want the first of attempt 2", taken.Place)
	}
	proxy.Resume()
	line := first.log.wait(t, "claim lost: the job is left to its new owner")
	first.Drain()
	first.ended(t) // its guest is gone, though it does not look
	if line.attrs["delegation_id"] != string(job.DelegationID) {
		t.Errorf("log: %v", line)
	}
	if rec := f.record(t, job).Record; rec.Status != protocol.StatusWorking || rec.WorkerID != second.ID() || rec.Attempt != 2 {
		t.Errorf("record = %+v, want the second worker's still", rec)
	}
	after := false
	for _, m := range f.stored(t, f.bus.Namespace().TasksStream(), f.bus.Namespace().TaskSubject(job.TaskID)) {
		late := m.Header.Get("Starling-Session") == string(stuck.SessionID)
		if after && late {
			t.Errorf("a frame of the lost attempt after it was lost: %s %s", m.Header.Get("Starling-Frame"), m.Data)
		}
		after = after || !late
	}
	for _, a := range seen() {
		if a.count == stuck.Delivery.Count && !strings.HasPrefix(a.word, "+WPI") {
			t.Errorf("the lost worker said %s of delivery %d", a.word, a.count)
		}
	}
	if len(f.door.Posts()) != 0 {
		t.Errorf("%d posts, want none", len(f.door.Posts()))
	}
	if _, err := f.cancel(t, job); err != nil {
		t.Fatalf("Cancel: %v", err)
	}
	f.settled(t, job)
}

// TestAStallThatNobodyUsed lets a worker go on when it is back in time to find
// its claim untouched.
func TestAStallThatNobodyUsed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	// One renewal fails after two thirds of it: a busy machine needs the last third.
	if err := f.bus.Init(t.Context(), broker.InitConfig{AckWait: 9 * time.Second}); err != nil {
		t.Fatal(err)
	}
	proxy := testenv.Proxy(t, f.server.URL())
	m := f.hireAt(t, proxy.URL(), func(c *worker.Config) { c.Slots = 1 })
	job := f.dispatch(t, f.job(f.push(t, "patient", guest(t, say("ready"), untilCanceled(), say("not asked"))), "x"))
	f.saying(t, job, "ready")
	proxy.Stall(testenv.Both)
	m.log.wait(t, "job not renewed")
	proxy.Resume()
	if _, err := f.cancel(t, job); err != nil {
		t.Fatalf("Cancel: %v", err)
	}
	e := ended{f.settled(t, job), f.frames(t, job)}
	if e.rec.Attempt != 1 || e.rec.WorkerID != m.ID() {
		t.Errorf("record = %+v, want the first attempt's", e.rec)
	}
	e.check(t, f, job, canceled(wasCanceled))
}

// TestALapsedWorkerLooksAgain lets another claim the task after the worker was
// back and found its claim untouched: renewals that are answered again prove
// nothing, for they are answered to whoever sends them.
func TestALapsedWorkerLooksAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	proxy := testenv.Proxy(t, f.server.URL())
	m := f.hireAt(t, proxy.URL(), func(c *worker.Config) { c.Slots = 1 })
	job := f.dispatch(t, f.job(f.push(t, "lapsed", guest(t, say("ready"), forever())), "x"))
	f.saying(t, job, "ready")
	seen := f.acks(t)
	proxy.Stall(testenv.Both)
	m.log.wait(t, "renewals lapsed: from now on the record says whose the job is")
	proxy.Resume()
	renewals := len(seen()) + 2
	testenv.EventuallyTrue(t, soon, "renewed again", func() bool { return len(seen()) >= renewals })
	entry := f.record(t, job)
	taken := entry.Record
	if taken.WorkerID != m.ID() || taken.Attempt != 1 {
		t.Fatalf("record = %+v, want the first worker's still", taken)
	}
	taken.WorkerID, taken.SessionID = protocol.NewWorkerID(), protocol.NewSessionID()
	taken.Attempt++
	taken.Delivery.Count++
	if _, err := f.bus.WriteRecord(t.Context(), taken, entry.Revision); err != nil {
		t.Fatal(err)
	}
	m.log.wait(t, "claim lost: the job is left to its new owner")
	m.Drain()
	m.ended(t)
	if rec := f.record(t, job).Record; rec.WorkerID != taken.WorkerID || rec.Status != protocol.StatusWorking {
		t.Errorf("record = %+v, want the other's", rec)
	}
}

// TestACancelOverASilentWorker writes over the claim of a worker that does not
// answer, which fences it.
func TestACancelOverASilentWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	proxy := testenv.Proxy(t, f.server.URL())
	m := f.hireAt(t, proxy.URL(), func(c *worker.Config) { c.Slots = 1 })
	job := f.dispatch(t, f.job(f.push(t, "silent", guest(t, say("ready"), forever())), "x"))
	f.saying(t, job, "ready")
	proxy.Down()
	result, err := f.cancel(t, job)
	if err != nil || !result.GuestMayRun {
		t.Fatalf("Cancel = %+v, %v; want terminated, the guest may run", result, err)
	}
	proxy.Resume()
	m.log.wait(t, "claim lost: the job is left to its new owner")
	rec := f.settled(t, job) // redelivered, and completed from the record
	if rec.Status != protocol.StatusTerminated || !rec.Outcome.ParentEnded() || rec.Attempt != 1 {
		t.Errorf("record = %+v, want the parent's end", rec)
	}
	frames := f.frames(t, job)
	if last := frames[len(frames)-1]; last.Text != wasCanceled || last.Seq != 0 {
		t.Errorf("terminal frame = %+v, want %q, number 0", last, wasCanceled)
	}
	if len(f.door.Posts()) != 0 {
		t.Errorf("%d posts, want none", len(f.door.Posts()))
	}
}
