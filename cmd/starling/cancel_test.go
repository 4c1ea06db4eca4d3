package main

import (
	"testing"

	"starling/protocol"
)

// TestACancelThatTakesLongSaysWhatItWaitsFor.
func TestACancelThatTakesLongSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	f := testFleet(t, func(c *fleetConfig) { c.worker.CancelGrace = 3 * patience })
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", killer(t), "--name", "killer", "--capsule-version", "1")
	rec := decoded[protocol.Record](t, o.must("dispatch", "killer@1", "--task", "x", "--json"))
	saysInAttempt(t, f.bus, rec.TaskID, 1, "ready")
	got := o.do("cancel", rec.Key())
	if got.status != exitOK {
		t.Errorf("cancel = %d\n%s", got.status, got.err)
	}
	contains(t, "stderr", got.err, string(f.staff.worker.ID())+" was asked to stop", "STARLING_CANCEL_GRACE")
}
