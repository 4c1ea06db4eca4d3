package worker_test

import (
	"slices"
	"strings"
	"testing"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// member of a fleet with users: the operator, and a worker with the rights that
// change leaves it.
func restricted(t *testing.T, change func(*testenv.User)) (*fleet, string, func(*worker.Config)) {
	t.Helper()
	id := protocol.NewWorkerID()
	user := testenv.WorkerUser(protocol.DefaultNamespace, id, protocol.DefaultPool)
	user.Subscribe = append(user.Subscribe, "_INBOX.>") // its clients here have the common prefix
	change(&user)
	server := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), user))
	f := newFleetOn(t, server, server.URLFor(testenv.OperatorUser()))
	return f, server.URLFor(user), func(c *worker.Config) { c.WorkerID = id }
}

// TestAWorkerNeedsNoMoreThanItsRights runs a job with the rights that the docs
// give a worker, a large result and a post among it.
func TestAWorkerNeedsNoMoreThanItsRights(t *testing.T) {
	t.Parallel()
	f, url, as := restricted(t, func(*testenv.User) {})
	f.hireAt(t, url, as)
	job := f.dispatch(t, f.job(f.push(t, "modest", guest(t, say("ran"))), "x"))
	if rec := f.settled(t, job); rec.Status != protocol.StatusOK || !rec.Outcome.Delivered {
		t.Errorf("record = %+v, want ok and delivered", rec.Outcome)
	}
}

// TestATaskWhoseFramesCannotBePublishedIsHandedBack takes the right to publish
// frames from a worker: the attempt ends nobody's task.
func TestATaskWhoseFramesCannotBePublishedIsHandedBack(t *testing.T) {
	t.Parallel()
	f, url, as := restricted(t, func(u *testenv.User) {
		u.Publish = slices.DeleteFunc(u.Publish, func(s string) bool { return strings.HasSuffix(s, ".tasks.*") })
	})
	m := f.hireAt(t, url, as)
	job := f.dispatch(t, f.job(f.push(t, "mute", guest(t, say("ran"))), "x"))
	m.log.wait(t, "task handed back")
	m.Drain()
	m.ended(t)
	rec := f.record(t, job).Record
	if rec.Status != protocol.StatusSubmitted || rec.Returned != rec.Attempt || rec.Outcome != nil {
		t.Errorf("record = %+v, want submitted and no attempt counted", rec)
	}
}
