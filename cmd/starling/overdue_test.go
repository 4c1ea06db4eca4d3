package main

import (
	"testing"

	"starling/protocol"
)

// TestWaitingEndsAtTheDeadlineOfAJobThatNobodyTakes, for nobody writes its end.
func TestWaitingEndsAtTheDeadlineOfAJobThatNobodyTakes(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("init", "--pools", "gpu")
	o.must("capsule", "push", hello(t))
	dispatch := func(args ...string) result {
		return o.do(append([]string{"dispatch", "hello@1.0.0", "--task", "x", "--pool", "gpu", "--allow-unserved", "--deadline", "50ms"}, args...)...)
	}
	for _, mode := range []string{"--wait", "--follow"} {
		got := dispatch(mode)
		if got.status != exitTerminated {
			t.Errorf("dispatch %s = %d, want %d\n%s", mode, got.status, exitTerminated, got.err)
		}
		contains(t, "stderr", got.err, "passed before a worker of pool gpu took its job", "still stands in the queue", "starling cancel ses_")
	}
	got := dispatch("--wait", "--json")
	rec := decoded[protocol.Record](t, got.out)
	if got.status != exitTerminated || rec.Status != protocol.StatusSubmitted {
		t.Errorf("dispatch --wait --json = %d with %s, want %d with the record as it stands", got.status, rec.Status, exitTerminated)
	}
	contains(t, "doctor", o.do("doctor").out, "3 queued past the deadline", rec.Key())
	contains(t, "cancel", o.must("cancel", rec.Key()), "terminated (")
	contains(t, "doctor", o.do("doctor").out, "2 queued past the deadline")

	in := o.do("dispatch", "hello@1.0.0", "--task", "x", "--deadline", "1h", "--wait")
	if in.status != exitOK {
		t.Errorf("a task that ends in time = %d\n%s", in.status, in.err)
	}
	contains(t, "stdout", in.out, ": ok (session ended, ")
}

// TestADeadlineOfARunningTaskIsWaitedFor: its worker ends it and writes that down.
func TestADeadlineOfARunningTaskIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", agent(t, protocol.OutputEvents))
	got := o.do("dispatch", "agent@1.0.0", "--task", "sleeper", "--deadline", "1s", "--wait")
	if got.status != exitTerminated {
		t.Errorf("status = %d, want %d\n%s", got.status, exitTerminated, got.err)
	}
	contains(t, "stdout", got.out, ": terminated (")
}
