//go:build crashpoints

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// handingBack drains a worker whose guest runs, and gives it at the moment that
// the record is handed back and the job is not.
func (s *site) handingBack(t *testing.T) (protocol.Job, *heldWorker) {
	t.Helper()
	pool := s.pool(t)
	job := s.dispatch(t, pool, "stubborn", true, 1)
	h := s.hire(t, s.url, pool, "handed back", "--drain-timeout", "1ms")
	testenv.EventuallyTrue(t, crashSoon, "its guest speaks or runs", func() bool {
		info, err := s.bus.WorkerStats(t.Context(), h.id)
		return err == nil && info.Busy == 1 && len(s.history.of(job)) > 1
	})
	h.signal(t, syscall.SIGTERM)
	h.await(t)
	return job, h
}

// TestCrashWhileHandingBack: the attempt does not count, and the task is run.
func TestCrashWhileHandingBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.NATS(t).URL(), 1, 1)
	job, lost := s.handingBack(t)
	lost.kill(t)
	next := s.hire(t, s.url, job.Pool, "")
	s.cancelSecond(t, job)
	next.kill(t)
	if rec := s.history.final(t, job); rec.Returned != 1 {
		t.Errorf("returned = %d, want 1", rec.Returned)
	}
}

// TestAZombieHandsNothingBack: a late nak would take the job out of the hands of
// the worker that has it by now.
func TestAZombieHandsNothingBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.NATS(t).URL(), 1, 1)
	job, z := s.handingBack(t)
	z.signal(t, syscall.SIGSTOP)
	next := s.hire(t, s.url, job.Pool, "directory made")
	next.await(t)
	acks := len(s.acks.of(s.mark(t, job)))
	z.free()
	z.signal(t, syscall.SIGCONT)
	err := <-z.done // it drains
	if z.done <- err; err != nil {
		t.Errorf("the worker ended with %v", err)
	}
	s.silent(t, job, zombie{heldWorker: z}, len(s.frames(t, job)), acks)
	next.free()
	s.cancelSecond(t, job)
}

// cancelSecond ends the second attempt, which runs until then.
func (s *site) cancelSecond(t *testing.T, job protocol.Job) {
	t.Helper()
	testenv.EventuallyTrue(t, crashSoon, "a second attempt", func() bool {
		all := s.history.of(job)
		return all[len(all)-1].Attempt == 2
	})
	if _, err := s.bus.Cancel(t.Context(), job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{}); err != nil {
		t.Fatal(err)
	}
	s.settled(t, job)
	s.audit(t, job, fate{status: protocol.StatusTerminated, attempt: 2, detail: protocol.ParentEndedDetail})
}

// TestTheProductHasNoCrashpoints looks into the binary that users run.
func TestTheProductHasNoCrashpoints(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "starling")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for path, want := range map[string]bool{binary: false, os.Args[0]: true} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// The function's name would stand in the tables, the steps' in the data.
		for _, trace := range []string{"starling/worker.crashpoint", "file rewritten"} {
			if got := bytes.Contains(content, []byte(trace)); got != want {
				t.Errorf("%s holds %q: %t, want %t", filepath.Base(path), trace, got, want)
			}
		}
	}
}
