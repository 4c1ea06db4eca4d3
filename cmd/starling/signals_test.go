package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"starling/testenv"
)

// TestASignalThatComesTwiceIsOneRequest: only one that comes later asks again.
func TestASignalThatComesTwiceIsOneRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after []time.Duration // the first
		want  []os.Signal
	}{
		"to the process and its group": {[]time.Duration{0, 0}, []os.Signal{syscall.SIGTERM}},
		"passed on by a slow wrapper":  {[]time.Duration{0, sameStop - 1, sameStop - 1}, []os.Signal{syscall.SIGTERM}},
		"asked again":                  {[]time.Duration{0, 0, sameStop}, []os.Signal{syscall.SIGTERM, syscall.SIGINT}},
		"asked on and on":              {[]time.Duration{0, sameStop, time.Second, time.Hour}, []os.Signal{syscall.SIGTERM, syscall.SIGINT}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				raw, stop, done := make(chan os.Signal), make(chan os.Signal, 2), make(chan struct{})
				go passStops(raw, stop, done)
				began := time.Now()
				for i, after := range c.after {
					time.Sleep(time.Until(began.Add(after))) // by the bubble's clock: nobody waits
					raw <- []os.Signal{syscall.SIGTERM, syscall.SIGINT}[min(i, 1)]
				}
				close(done)
				synctest.Wait()
				close(stop)
				var got []os.Signal
				for sig := range stop {
					got = append(got, sig)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("passed on %v, want %v", got, c.want)
				}
			})
		})
	}
}

// TestRunUnderTimeout, which signals the process and its group: the task is canceled,
// and not dropped.
func TestRunUnderTimeout(t *testing.T) {
	t.Parallel()
	var out, errs output
	run := program(t, "run", killer(t), "--task", "x", "--json", "--work-root", t.TempDir(), "--cache-dir", testenv.CompiledCache(t), "--cancel-grace", "1s")
	run.Stdout, run.Stderr = &out, &errs
	process := startProcess(t, run)
	testenv.EventuallyTrue(t, 60*time.Second, "the guest runs", func() bool { return strings.Contains(out.String(), "ready") })
	process.signal(t, syscall.SIGTERM)
	process.signal(t, syscall.SIGINT) // another, so that the kernel does not make one of the two
	if status := exitCode(process.ended(t)); status != exitTerminated {
		t.Errorf("status = %d, want %d\n%s", status, exitTerminated, errs.String())
	}
}
