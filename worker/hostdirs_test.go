package worker_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// TestAHostThatCannotRunTasksIsNotReady, and is again once one has run there. The task
// that it took is another's, or its own later.
func TestAHostThatCannotRunTasksIsNotReady(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	capsule := f.push(t, "steady", guest(t, say("done")))
	if err := errors.Join(os.RemoveAll(m.cfg.WorkRoot), os.WriteFile(m.cfg.WorkRoot, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	job := f.dispatch(t, f.job(capsule, "x"))
	testenv.Eventually(t, soon, func() error {
		if err := m.Ready(); err == nil || !strings.Contains(err.Error(), "this host could not start its latest task: work root") {
			return fmt.Errorf("Ready() = %v, want what is wrong with the host", err)
		}
		return nil
	})
	if err := os.Remove(m.cfg.WorkRoot); err != nil {
		t.Fatal(err)
	}
	f.settled(t, job)
	if err := m.Ready(); err != nil {
		t.Errorf("after a task ran: Ready() = %v", err)
	}
}

// TestAWorkerOutlivesTheRemovalOfItsDirectories: the next job runs on the first
// attempt, as if nothing had happened.
func TestAWorkerOutlivesTheRemovalOfItsDirectories(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	var cfg worker.Config
	f.hire(t, func(c *worker.Config) { cfg = *c })
	capsule := f.push(t, "steady", guest(t, say("done")))
	for _, dirs := range [][]string{nil, {cfg.CacheDir}, {cfg.WorkRoot}, {filepath.Join(cfg.CacheDir, "modules"), cfg.WorkRoot}} {
		for _, dir := range dirs {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		e := f.end(t, f.job(capsule, "x"))
		if e.rec.Status != protocol.StatusOK || e.rec.Attempt != 1 {
			t.Errorf("without %q the job ended %s on attempt %d: %q, want ok on 1", dirs, e.rec.Status, e.rec.Attempt, e.rec.Ending.Message)
		}
	}
}
