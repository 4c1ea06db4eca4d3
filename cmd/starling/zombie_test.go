//go:build crashpoints

package main

import (
	"fmt"
	"syscall"
	"testing"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// zombie is a worker that is away for longer than its ack wait and then back.
type zombie struct {
	*heldWorker
	away, back func()
}

// stoppedZombie is a process that its host stops.
func (s *site) stoppedZombie(t *testing.T, pool, step string) zombie {
	t.Helper()
	h := s.hire(t, s.url, pool, step)
	return zombie{
		heldWorker: h, away: func() { h.signal(t, syscall.SIGSTOP) },
		back: func() { h.free(); h.signal(t, syscall.SIGCONT) },
	}
}

// cutOffZombie is a process whose connections to the bus are lost, and whose new
// ones are refused. (What a network holds back and delivers late was said in
// time; nothing stops that, and it changes nothing.)
func (s *site) cutOffZombie(t *testing.T, pool, step string) zombie {
	t.Helper()
	proxy := testenv.Proxy(t, s.url)
	h := s.hire(t, proxy.URL(), pool, step)
	return zombie{
		heldWorker: h, away: func() { proxy.Down(); h.free() }, back: proxy.Resume,
	}
}

// stillRuns is where the next worker is held when a zombie of a step is back and
// it shall still have the job; after the outcome it completes from the record.
func stillRuns(step string) string {
	switch {
	case before(step, "outcome written"):
		return "guest running"
	case before(step, "delivered"):
		return "door answered"
	}
	return "settling"
}

// TestZombies stalls a worker process at each step of a job's life for longer
// than its ack wait. Another takes the job; when the first is back, the other
// still has it, or has ended it. Both live. The first stops its guest and says
// nothing more: no frame, no record, no post, and neither ack, nak nor renewal.
func TestZombies(t *testing.T) {
	t.Parallel()
	s := newSite(t, testenv.NATS(t).URL(), 1, 6)
	for name, make := range map[string]func(*testing.T, string, string) zombie{
		"stopped": s.stoppedZombie, "cut off": s.cutOffZombie,
	} {
		for _, step := range worker.Crashpoints {
			if name == "cut off" && !before(step, "outcome written") {
				continue // it would go on to post while it may
			}
			for _, c := range []struct {
				what     string
				attempts int
				held     string
			}{{"another runs it", 3, stillRuns(step)}, {"another ended it", 3, ""}, {"another reported it", 1, ""}} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, step, c.what), func(t *testing.T) {
					t.Parallel()
					pool := s.pool(t)
					job := s.dispatch(t, pool, crashTask, true, c.attempts)
					z := make(t, pool, step)
					z.await(t)
					if !before(step, "guest running") {
						s.renewed(t, job)
						s.heard(t, job, step)
					}
					z.away()
					next := s.hire(t, s.url, pool, c.held)
					if c.held != "" {
						next.await(t)
					} else {
						s.settled(t, job)
					}
					last := len(s.frames(t, job))
					acks := len(s.acks.of(s.mark(t, job)))
					z.back()
					z.leave(t, s)
					s.silent(t, job, z, last, acks)
					if c.held != "" {
						next.free()
						s.settled(t, job)
					}
					next.leave(t, s)
					want := fateOf(step, true, c.attempts, z.id)
					s.audit(t, job, want)
					auditRuns(t, step, name == "cut off", want, z.heldWorker, next)
				})
			}
		}
	}
}

// mark is the first delivery of a job, which the zombie has.
func (s *site) mark(t *testing.T, job protocol.Job) protocol.DeliveryMark {
	t.Helper()
	for _, rec := range s.history.of(job) {
		if rec.Delivery.Sequence != 0 {
			return protocol.DeliveryMark{Sequence: rec.Delivery.Sequence, Count: 1}
		}
	}
	t.Fatal("nobody claimed the job")
	return protocol.DeliveryMark{}
}

// renewed waits until the worker that holds the job renewed it: what it said
// before is on the bus by then, and not in its client.
func (s *site) renewed(t *testing.T, job protocol.Job) {
	t.Helper()
	testenv.EventuallyTrue(t, crashSoon, "renewed", func() bool { return len(s.acks.of(s.mark(t, job))) > 0 })
}

// heard waits until what the guest says before the step is stored: its turn, its text,
// and once it is gone its result. What its worker's client still had to write when it
// is stopped would be said, in time, when it is back.
func (s *site) heard(t *testing.T, job protocol.Job, step string) {
	t.Helper()
	said := 2
	if !before(step, "guest ended") {
		said = 3
	}
	testenv.EventuallyTrue(t, crashSoon, "heard", func() bool { return len(s.frames(t, job)) >= said })
}

// silent: since the first frames and acks the zombie said nothing.
func (s *site) silent(t *testing.T, job protocol.Job, z zombie, frames, acks int) {
	t.Helper()
	if err := s.nc.Flush(); err != nil { // what the zombie said before it left is here
		t.Fatal(err)
	}
	if words := s.acks.of(s.mark(t, job)); len(words) > acks {
		t.Errorf("the lost worker said %q of its delivery when it was back", words[acks:])
	}
	own := make(map[string]bool)
	for _, rec := range s.history.of(job) {
		if rec.WorkerID == z.id {
			own[string(rec.SessionID)] = true
		}
	}
	for i, m := range s.frames(t, job) {
		if i >= frames && own[m.Header.Get("Starling-Session")] {
			t.Errorf("the lost worker published %s when it was back", m.Header.Get("Nats-Msg-Id"))
		}
	}
}
