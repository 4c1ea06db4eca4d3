package worker_test

import (
	"testing"

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
