package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestExpiredFramesAreNotWaitedFor: the ledger keeps a record longer than the bus
// keeps a task's frames.
func TestExpiredFramesAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	key, _ := strings.CutPrefix(strings.TrimSpace(o.do("dispatch", "hello@1.0.0", "--task", "x", "--wait").err), "delegated ")
	nc, err := nats.Connect(f.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	raw(t, nc, "$JS.API.STREAM.PURGE.STARLING_TASKS", nil, nil)
	got := o.do("result", key)
	if got.status != exitFailure {
		t.Errorf("result = %d, want %d\n%s", got.status, exitFailure, got.err)
	}
	contains(t, "stderr", got.err, "have expired")
	contains(t, "watch", o.do("watch", key).err, ": ok (session ended, ")
}
