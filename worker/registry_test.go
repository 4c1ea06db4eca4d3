package worker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
)

// TestAWorkerWorksUnseenAfterItsServerForgot restarts a server without peers,
// which loses the bucket of workers: it is in memory. A worker that is hired
// then runs jobs all the same, and drains without an error.
func TestAWorkerWorksUnseenAfterItsServerForgot(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	capsule := f.push(t, "unseen", guest(t, say("ran")))
	f.server.Restart()
	m := f.hire(t, nil)
	job := f.dispatch(t, f.job(capsule, "x"))
	if rec := f.settled(t, job); rec.Status != protocol.StatusOK || rec.WorkerID != m.ID() {
		t.Errorf("record = %+v, want the worker's ok", rec)
	}
	m.Drain()
	m.ended(t)
}

// TestAWorkerWhoseIDIsTakenStops: somebody else renews its entry, as a worker
// would that took it while this one was away.
func TestAWorkerWhoseIDIsTakenStops(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	subject := "$KV." + f.bus.Namespace().WorkerBucket() + "." + string(m.ID())
	renew := time.NewTicker(time.Second)
	defer renew.Stop()
	for deadline := time.After(2*broker.HeartbeatEvery + soon); ; {
		select {
		case <-m.done:
			if !errors.Is(m.err, broker.ErrWorkerTaken) || !strings.Contains(m.err.Error(), string(m.ID())) {
				t.Errorf("Run() = %v, want %v", m.err, broker.ErrWorkerTaken)
			}
			m.err = nil // it is what this test wants
			workers, err := f.bus.Workers(t.Context())
			if err != nil || len(workers) != 1 || workers[0].Host != "other" {
				t.Errorf("Workers() = %+v, %v; want the other's entry", workers, err)
			}
			return
		case <-renew.C:
			f.publish(t, subject, fmt.Appendf(nil, `{"worker_id":%q,"host":"other"}`, m.ID()), nil)
		case <-deadline:
			t.Fatal("the worker goes on")
		}
	}
}
