package main

import (
	"strings"
	"testing"
	"time"

	"starling/testenv"
)

// TestFollowSaysWhereASilentTaskIs on standard error, once: queued, or with a worker.
func TestFollowSaysWhereASilentTaskIs(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("init", "--pools", "gpu")
	o.must("capsule", "push", capsuleDir(t, testenv.WAT(t, "spin"), "name: spin\nversion: 1.0.0\n"))
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"queued", []string{"--pool", "gpu", "--allow-unserved"}, "it is queued: no worker of pool gpu has it now"},
		{"with a worker", nil, "worker " + string(f.staff.worker.ID()) + " has the task, which has said nothing yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out, errs output
			status := make(chan int, 1)
			go func() {
				args := append([]string{"dispatch", "spin@1.0.0", "--task", "x", "--follow", "--url", o.url}, c.args...)
				status <- run(t.Context(), args, streams{in: strings.NewReader(""), out: &out, err: &errs})
			}()
			testenv.EventuallyTrue(t, time.Minute, c.says, func() bool { return strings.Contains(errs.String(), c.says) })
			first, _, _ := strings.Cut(errs.String(), "\n")
			o.must("cancel", strings.TrimPrefix(first, "delegated "))
			if got := <-status; got != exitTerminated {
				t.Errorf("status = %d, want %d\n%s", got, exitTerminated, errs.String())
			}
			if n := strings.Count(errs.String(), c.says); n != 1 || strings.Contains(out.String(), c.says) {
				t.Errorf("it is said %d times, want once and not on standard output:\n%s", n, errs.String())
			}
		})
	}
}
