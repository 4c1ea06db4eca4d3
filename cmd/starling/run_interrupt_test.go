package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/testenv"
)

// TestRunInterruptedAtItsStart leaves nothing behind in the directory for
// temporary files. Its guest does not end by itself: the run would be over between
// two looks.
func TestRunInterruptedAtItsStart(t *testing.T) {
	t.Parallel()
	hangupsAreHeard(t)
	for _, by := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			temp := t.TempDir()
			run := program(t, "run", killer(t), "--task", "x", "--work-root", t.TempDir(), "--cache-dir", testenv.CompiledCache(t), "--cancel-grace", "100ms")
			run.Env = append(run.Env, "TMPDIR="+temp)
			process := startProcess(t, run)
			left := func() []string {
				paths, _ := filepath.Glob(filepath.Join(temp, "starling-run-*"))
				return paths
			}
			testenv.EventuallyTrue(t, 30*time.Second, "the run has started", func() bool { return len(left()) > 0 })
			process.signal(t, by)
			if status := exitCode(process.ended(t)); status != exitInterrupted && status != exitTerminated {
				t.Errorf("status = %d, want that of an interrupt, or of a task that was canceled", status)
			}
			if paths := left(); len(paths) != 0 {
				t.Errorf("left behind: %v", paths)
			}
		})
	}
}

// TestRunSaysWhatAnInterruptDoes, and a second one.
func TestRunSaysWhatAnInterruptDoes(t *testing.T) {
	t.Parallel()
	var out, errs output
	run := program(t, "run", killer(t), "--task", "x", "--json", "--work-root", t.TempDir(), "--cache-dir", testenv.CompiledCache(t), "--cancel-grace", "10m")
	run.Stdout, run.Stderr = &out, &errs
	process := startProcess(t, run)
	testenv.EventuallyTrue(t, 60*time.Second, "the guest runs", func() bool { return strings.Contains(out.String(), "ready") })
	for _, says := range []string{"canceling; once more to stop at once", "stopping at once"} {
		testenv.EventuallyTrue(t, 30*time.Second, says, func() bool { // one that comes at once is the same request
			_ = run.Process.Signal(syscall.SIGINT) // it may have ended
			return strings.Contains(errs.String(), says)
		})
	}
	if status := exitCode(process.ended(t)); status != exitInterrupted {
		t.Errorf("status = %d, want %d\n%s", status, exitInterrupted, errs.String())
	}
}

// hangupsAreHeard by the programs that the test starts, also under nohup(1): they
// inherit what is ignored, and not what is heard.
func hangupsAreHeard(t *testing.T) {
	t.Helper()
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(heard) })
}
