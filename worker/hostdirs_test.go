package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"starling/protocol"
	"starling/worker"
)

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
