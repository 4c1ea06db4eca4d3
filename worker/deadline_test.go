package worker_test

import (
	"regexp"
	"testing"
	"time"

	"starling/protocol"
	"starling/worker"
)

func deadlineIn(d time.Duration) func(*protocol.Job) {
	return func(j *protocol.Job) { j.Deadline = protocol.NewTime(time.Now().Add(d)) }
}

func pastDeadline(detail string) situation {
	return situation{protocol.StatusTerminated, protocol.ReportedByLauncher, detail, "TASK_STATE_FAILED", detail, nil, ""}
}

const (
	deadlineBeforeStart = "the delegation deadline passed before the capsule was started"
	deadlineWhileLost   = "the capsule was still running after 2s and was ended at the delegation deadline"
)

// TestAnAcceptedCancelWinsOverTheDeadline that passes in its grace: the parent ended
// it, and is not told.
func TestAnAcceptedCancelWinsOverTheDeadline(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, func(c *worker.Config) { c.CancelGrace = soon })
	job := f.dispatch(t, f.job(f.push(t, "both", guest(t, say("ready"), forever())), "x", deadlineIn(3*time.Second)))
	f.saying(t, job, "ready")
	if result, err := f.cancel(t, job); err != nil || !result.Record.Outcome.ParentEnded() {
		t.Fatalf("Cancel = %+v, %v; want the parent's end", result.Record.Outcome, err)
	}
	ended{f.settled(t, job), f.frames(t, job)}.check(t, f, job, canceled(wasKilled))
}

// TestDelegationDeadline are the places where a deadline can pass.
func TestDelegationDeadline(t *testing.T) {
	t.Parallel()
	t.Run("in the queue", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		job := f.dispatch(t, f.job(f.push(t, "late", guest(t, say("ran"))), "x", deadlineIn(-time.Second)))
		f.hire(t, nil)
		rec := f.settled(t, job)
		ended{rec, f.frames(t, job)}.check(t, f, job, pastDeadline(deadlineBeforeStart))
		if rec.Attempt != 0 || rec.SessionID != "" || rec.Outcome.Workdir != "" {
			t.Errorf("attempt %d, session %q, workdir %q; want none begun", rec.Attempt, rec.SessionID, rec.Outcome.Workdir)
		}
	})
	t.Run("while the capsule is fetched", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		modules := f.slowModules(t)
		f.hireAt(t, modules.url, nil)
		t.Cleanup(modules.release)
		job := f.job(f.push(t, "slow", guest(t, say("ran"))), "x", deadlineIn(500*time.Millisecond))
		f.end(t, job).check(t, f, job, pastDeadline(deadlineBeforeStart))
	})
	t.Run("while the capsule runs", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		f.hire(t, nil)
		job := f.job(f.push(t, "long", guest(t, say("ready"), forever())), "x", deadlineIn(2*time.Second))
		e := f.end(t, job)
		// The machine may be slow to start it: the seconds are what they are.
		want := regexp.MustCompile(`^the capsule was still running after [012]s and was ended at the delegation deadline$`)
		if !want.MatchString(e.rec.Outcome.Detail) {
			t.Fatalf("detail = %q, want %s", e.rec.Outcome.Detail, want)
		}
		e.check(t, f, job, pastDeadline(e.rec.Outcome.Detail))
	})
	t.Run("while a lost worker had it", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		job := f.dispatch(t, f.job(f.push(t, "lost", guest(t, say("ran"))), "x", deadlineIn(-time.Second)))
		began := job.Deadline.Std().Add(-1800 * time.Millisecond) // the nearest whole second is 2
		lost := f.lose(t, job, func(rec *protocol.Record) { rec.StartedAt = protocol.NewTime(began) })
		f.hire(t, nil)
		rec := f.settled(t, job)
		o := rec.Outcome
		if o.Status != protocol.StatusTerminated || o.ReportedBy != protocol.ReportedByLauncher || o.Detail != deadlineWhileLost {
			t.Errorf("outcome = %+v, want terminated, %q", o, deadlineWhileLost)
		}
		if rec.Attempt != 1 || o.SessionID != lost.SessionID || o.Workdir != lost.Workdir {
			t.Errorf("attempt %d, session %s, workdir %s; want the lost attempt's", rec.Attempt, o.SessionID, o.Workdir)
		}
		if posts := f.door.PostsOf(job.DelegationID); len(posts) != 1 {
			t.Errorf("%d posts, want 1", len(posts))
		}
	})
}
