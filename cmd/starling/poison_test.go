package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// killerWAT says that it runs and then never ends: the test kills its worker meanwhile.
const killerWAT = `(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "ready")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const 5))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (loop $forever (br $forever))))`

// killer is killerWAT as a file.
func killer(t *testing.T) string {
	t.Helper()
	module, err := wasmtime.Wat2Wasm(killerWAT)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "killer.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// lonely is a worker as a process, with guests in it.
func lonely(t *testing.T, url, id string, args ...string) *workerProcess {
	t.Helper()
	var said output
	t.Cleanup(func() { // after it was killed
		if t.Failed() {
			t.Logf("%s said:\n%s", id, said.String())
		}
	})
	return startWorkerProcess(t, exec.Command, url, filepath.Join(t.TempDir(), "work"), &said,
		append([]string{"--worker-id", id, "--sandbox", "inprocess", "--slots", "1", "--log-level", "info"}, args...)...)
}

// saysInAttempt waits for a frame of an attempt with that text.
func saysInAttempt(t *testing.T, bus *broker.Bus, task protocol.TaskID, attempt int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	watch, err := bus.WatchTask(ctx, task, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	for {
		e, err := watch.Next(ctx)
		if err != nil {
			t.Fatalf("attempt %d never says %q: %v", attempt, text, err)
		}
		if e.Frame != nil && e.Frame.Attempt == attempt && e.Frame.Text == text {
			return
		}
	}
}

// TestAJobThatKillsItsWorkerEachTime runs on workers that are killed while it
// does: after its attempts it is a dead letter, its parent is told once, and a
// neighbour on another worker notices nothing.
//
// Source: docs/protocol.md, sections 8 and 10.
func TestAJobThatKillsItsWorkerEachTime(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	o := operator{t, s.URL()}
	o.must("init", "--pools", "default,far", "--ack-wait", "2s")
	o.must("capsule", "push", killer(t), "--name", "killer", "--capsule-version", "1")
	o.must("capsule", "push", agent(t, protocol.OutputText))
	bus, err := broker.Connect(t.Context(), broker.Config{URL: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close() })

	door := testenv.Door(t)
	rec := decoded[protocol.Record](t, o.must("dispatch", "killer@1", "--task", "x", "--door", door.URL(), "--max-attempts", "3", "--allow-unserved", "--json"))
	lonely(t, s.URL(), "wrk_far", "--pool", "far")
	near := decoded[protocol.Record](t, o.must("dispatch", "agent@1.0.0", "--task", "nap 3000", "--pool", "far", "--allow-unserved", "--json"))
	ids := []string{"wrk_first", "wrk_second", "wrk_third"}
	for i, id := range ids {
		worker := lonely(t, s.URL(), id)
		saysInAttempt(t, bus, rec.TaskID, i+1, "ready")
		worker.kill(t)
	}
	lonely(t, s.URL(), "wrk_last")
	testenv.Eventually(t, 60*time.Second, func() error {
		queued, err := bus.JobQueued(t.Context(), rec)
		if err == nil && queued {
			err = errors.New("the job is still queued")
		}
		return err
	})

	const detail = "worker wrk_third was lost while running attempt 3"
	entry, err := bus.ReadRecord(t.Context(), rec.Spawner.SessionID, rec.DelegationID, 0)
	if err != nil {
		t.Fatal(err)
	}
	rec = entry.Record
	if out := rec.Outcome; rec.Status != protocol.StatusCrashed || rec.Attempt != 3 || rec.Returned != 0 || out.Detail != detail ||
		out.ReportedBy != protocol.ReportedByLauncher || out.WorkerID != "wrk_last" || !out.Delivered || rec.Ending.Message != detail {
		t.Errorf("record = %+v with %+v, want crashed after three attempts, %q, reported by wrk_last", rec, out, detail)
	}
	posts := door.Posts()
	if len(posts) != 1 || posts[0].Text != rec.Outcome.Text() {
		t.Errorf("posts = %+v, want one that says %q", posts, rec.Outcome.Text())
	}
	letters := strings.Split(strings.TrimSpace(o.must("dlq", "ls", "--json")), "\n")
	if l := decoded[letter](t, letters[0]); len(letters) != 1 || l.TaskID != rec.TaskID || l.Reason != protocol.DeadAttemptsSpent || l.Detail != detail {
		t.Errorf("dead letters = %v, want one for the attempts spent, %q", letters, detail)
	}
	contains(t, "the task's frames", o.do("watch", string(rec.TaskID), "--json").out,
		"attempt 2: worker wrk_first was lost", "attempt 3: worker wrk_second was lost", detail, "TASK_STATE_FAILED")

	o.must("watch", near.Key())
	entry, err = bus.ReadRecord(t.Context(), near.Spawner.SessionID, near.DelegationID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if near = entry.Record; near.Status != protocol.StatusOK || near.Attempt != 1 || near.Returned != 0 || near.WorkerID != "wrk_far" {
		t.Errorf("the neighbour = %+v, want ok by wrk_far in its first attempt", near)
	}
}
