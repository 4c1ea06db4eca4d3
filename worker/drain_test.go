package worker_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// served reports whether a worker takes from the default pool.
func (f *fleet) served(t *testing.T) bool {
	t.Helper()
	served, err := f.bus.PoolServed(t.Context(), protocol.DefaultPool)
	if err != nil {
		t.Fatal(err)
	}
	return served
}

// TestDrainOfAnIdleWorker, in each way it can be told.
func TestDrainOfAnIdleWorker(t *testing.T) {
	t.Parallel()
	for name, drain := range map[string]func(*testing.T, *fleet, *member){
		"Drain":       func(_ *testing.T, _ *fleet, m *member) { m.Drain() },
		"Drain twice": func(_ *testing.T, _ *fleet, m *member) { m.Drain(); m.Drain() },
		"Stop":        func(_ *testing.T, _ *fleet, m *member) { m.Stop() },
		"Stop twice":  func(_ *testing.T, _ *fleet, m *member) { m.Stop(); m.Stop(); m.Drain() },
		"the verb": func(t *testing.T, f *fleet, m *member) {
			if state, err := f.bus.DrainWorker(t.Context(), m.ID()); err != nil || !state.Draining {
				t.Fatalf("DrainWorker() = %+v, %v; want draining", state, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			m := f.hire(t, nil)
			if !f.served(t) {
				t.Error("the pool is not served by a ready worker")
			}
			drain(t, f, m)
			m.ended(t)
			if f.served(t) {
				t.Error("the pool is served after the drain")
			}
			if workers, err := f.bus.Workers(t.Context()); err != nil || len(workers) != 0 {
				t.Errorf("Workers() = %v, %v; want none", workers, err)
			}
		})
	}
}

// TestDrainBeforeTheStart takes nothing.
func TestDrainBeforeTheStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.dispatch(t, f.job(f.push(t, "waits", guest(t)), "x"))
	m := f.newMember(t, f.server.URL(), nil)
	m.Drain()
	if err := m.Run(t.Context(), nil); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if rec := f.record(t, job).Record; rec.Status != protocol.StatusSubmitted || rec.Attempt != 0 {
		t.Errorf("record = %+v, want it as it was dispatched", rec)
	}
	f.hire(t, nil)
	f.settled(t, job)
}

// TestRunEndsWithItsContext as with a drain.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.newMember(t, f.server.URL(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	if err := m.Run(ctx, cancel); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// TestRunWithoutItsPool fails, and leaves nothing behind.
func TestRunWithoutItsPool(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.newMember(t, f.server.URL(), func(c *worker.Config) { c.Pool = "undeclared" })
	if err := m.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "undeclared") {
		t.Errorf("Run() = %v, want an error that names the pool", err)
	}
	if workers, err := f.bus.Workers(t.Context()); err != nil || len(workers) != 0 {
		t.Errorf("Workers() = %v, %v; want none", workers, err)
	}
}

// TestDrainWaitsForItsGuests and takes nothing meanwhile.
func TestDrainWaitsForItsGuests(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	job := f.dispatch(t, f.job(f.push(t, "busy", guest(t, say("ready"), untilCanceled(), say("x"))), "x"))
	f.saying(t, job, "ready")
	m.Drain()
	m.log.wait(t, "worker drains")
	testenv.EventuallyTrue(t, soon, "the worker leaves its pool", func() bool { return !f.served(t) })
	later := f.dispatch(t, f.job(f.push(t, "later", guest(t, say("later"))), "x"))
	// The guest still runs: it ends because it is canceled, not because of the drain.
	if _, err := f.cancel(t, job); err != nil {
		t.Fatal(err)
	}
	m.ended(t)
	if rec := f.settled(t, job); rec.Status != protocol.StatusTerminated || rec.Returned != 0 {
		t.Errorf("record = %+v, want the cancel's outcome", rec)
	}
	if rec := f.record(t, later).Record; rec.Status != protocol.StatusSubmitted || rec.Attempt != 0 {
		t.Errorf("the later job = %+v, want it queued", rec)
	}
	other := f.hire(t, nil)
	if rec := f.settled(t, later); rec.Status != protocol.StatusOK || rec.WorkerID != other.ID() {
		t.Errorf("the later job = %+v, want ok by %s", rec, other.ID())
	}
}

// TestDrainHandsBack what runs past the drain timeout, or at once on Stop: it
// costs no attempt.
func TestDrainHandsBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout time.Duration
		end     func(*testing.T, *member)
	}{
		"past the timeout": {200 * time.Millisecond, func(_ *testing.T, m *member) { m.Drain() }},
		"on Stop":          {time.Hour, func(_ *testing.T, m *member) { m.Stop() }},
		"on Stop, late":    {time.Hour, func(t *testing.T, m *member) { m.Drain(); m.log.wait(t, "worker drains"); m.Stop() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			m := f.hire(t, func(cfg *worker.Config) { cfg.DrainTimeout = c.timeout })
			job := f.dispatch(t, f.job(f.push(t, "long", guest(t, say("ready"), forever())), "x", func(j *protocol.Job) { j.MaxAttempts = 1 }))
			f.saying(t, job, "ready")
			session := f.record(t, job).Record.SessionID
			c.end(t, m)
			m.ended(t)
			rec := f.record(t, job).Record
			if rec.Status != protocol.StatusSubmitted || rec.Returned != 1 || rec.Attempt != 1 || rec.SessionID != session || rec.Outcome != nil {
				t.Errorf("record = %+v, want submitted, returned 1, attempt 1 and its session", rec)
			}
			if len(f.door.Posts()) != 0 {
				t.Errorf("%d posts, want none", len(f.door.Posts()))
			}
			second := f.hire(t, nil)
			why := f.sayingIn(t, job, 2, "attempt 2: worker "+string(m.ID())+" gave the task back")
			f.sayingIn(t, job, 2, "ready")
			if why.Seq != 1 || why.SessionID == session {
				t.Errorf("%+v, want the first frame of attempt 2", why.Place)
			}
			if _, err := f.cancel(t, job); err != nil {
				t.Fatal(err)
			}
			rec = f.settled(t, job)
			if rec.Attempt != 2 || rec.Returned != 1 || rec.WorkerID != second.ID() {
				t.Errorf("record = %+v, want attempt 2 by %s", rec, second.ID())
			}
			ended{rec, f.frames(t, job)}.check(t, f, job, canceled(wasKilled))
		})
	}
}

// TestLanesAreStrict gives one slot a backlog: user before peer before bg, first
// in first out inside a lane.
func TestLanesAreStrict(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	capsule := f.push(t, "one", guest(t, say("done")))
	const each = 4
	waiting := map[protocol.Origin][]protocol.Job{}
	for range each {
		for _, origin := range []protocol.Origin{protocol.OriginEvent, protocol.OriginPeer, protocol.OriginUser} {
			job := f.dispatch(t, f.job(capsule, "x", func(j *protocol.Job) { j.Origin = origin }))
			waiting[origin] = append(waiting[origin], job)
		}
	}
	f.hire(t, func(c *worker.Config) { c.Slots = 1 })
	var last uint64
	for _, origin := range []protocol.Origin{protocol.OriginUser, protocol.OriginPeer, protocol.OriginEvent} {
		for i, job := range waiting[origin] {
			f.settled(t, job)
			first := f.stored(t, f.bus.Namespace().TasksStream(), f.bus.Namespace().TaskSubject(job.TaskID))[0]
			if first.Sequence < last {
				t.Errorf("%s job %d began before the one it waits for", origin, i)
			}
			last = first.Sequence
		}
	}
}

// TestNoJobWaitsInABusyWorker sends jobs into the open pulls of a busy worker
// while another is free.
func TestNoJobWaitsInABusyWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	oneSlot := func(c *worker.Config) { c.Slots, c.PullExpires = 1, 3*time.Second }
	busy := f.hire(t, oneSlot)
	long := f.dispatch(t, f.job(f.push(t, "long", guest(t, say("ready"), untilCanceled())), "x"))
	f.saying(t, long, "ready")
	free := f.hire(t, oneSlot)
	capsule := f.push(t, "short", guest(t, say("done")))
	for n := range 6 {
		job := f.job(capsule, "x", func(j *protocol.Job) {
			j.Origin = []protocol.Origin{protocol.OriginPeer, protocol.OriginEvent}[n%2]
		})
		began := time.Now()
		rec, _ := f.run(t, job)
		if rec.WorkerID != free.ID() || rec.Attempt != 1 {
			t.Errorf("job %d was run by %s in attempt %d, want %s in attempt 1", n, rec.WorkerID, rec.Attempt, free.ID())
		}
		if took := time.Since(began); took > ackWait {
			t.Errorf("job %d took %s: it waited in %s", n, took, busy.ID())
		}
	}
	if _, err := f.cancel(t, long); err != nil {
		t.Fatal(err)
	}
	f.settled(t, long)
	// A drain outlasts open pulls: these are given up with their worker.
	for _, m := range []*member{busy, free} {
		m.Stop()
	}
}

// TestStatsOfAWorker are what the registry shows.
func TestStatsOfAWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, func(c *worker.Config) { c.Slots, c.Host, c.Version = 3, "here", "v9" })
	job := f.dispatch(t, f.job(f.push(t, "busy", guest(t, say("ready"), untilCanceled())), "x"))
	f.saying(t, job, "ready")
	stats := func() protocol.WorkerStats {
		info, err := f.bus.WorkerStats(t.Context(), m.ID())
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	if i := stats(); i.Slots != 3 || i.Busy != 1 || i.JobsDone != 0 || i.Draining || i.Pool != protocol.DefaultPool || i.Host != "here" || i.Version != "v9" {
		t.Errorf("stats = %+v, want 3 slots, 1 busy", i)
	}
	if tasks := stats().Tasks; len(tasks) != 1 || tasks[0].TaskID != job.TaskID || tasks[0].DelegationID != job.DelegationID ||
		tasks[0].Capsule != "busy@1.0.0" || tasks[0].Attempt != 1 || tasks[0].StartedAt.IsZero() {
		t.Errorf("tasks = %+v, want the one that runs", tasks)
	}
	if _, err := f.cancel(t, job); err != nil {
		t.Fatal(err)
	}
	f.settled(t, job)
	testenv.Eventually(t, soon, func() error {
		if i := stats(); i.Busy != 0 || i.JobsDone != 1 || len(i.Tasks) != 0 {
			return fmt.Errorf("stats = %+v, want none busy and one done", i)
		}
		return nil
	})
}

// TestStatsShowATaskWhoseCapsuleIsCompiled: its slot is busy, and by which task is
// told before its guest runs.
func TestStatsShowATaskWhoseCapsuleIsCompiled(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	bomb, err := os.ReadFile(testenv.CompileBomb(t, 800, 400))
	if err != nil {
		t.Fatal(err)
	}
	job := f.dispatch(t, f.job(f.push(t, "bomb", bomb), "x"))
	testenv.Eventually(t, soon, func() error {
		stats, err := f.bus.WorkerStats(t.Context(), m.ID())
		if err != nil {
			return err
		}
		if len(stats.Tasks) != 1 || stats.Tasks[0].TaskID != job.TaskID || stats.Busy != 1 {
			return fmt.Errorf("stats = %+v, want the task that is compiled", stats)
		}
		return nil
	})
	if _, err := f.cancel(t, job); err != nil {
		t.Fatal(err)
	}
	if rec := f.settled(t, job); rec.Ending == nil || rec.Ending.Message != protocol.MessageCanceledBeforeStart {
		t.Errorf("ending = %+v, want canceled before it started", rec.Ending)
	}
}
