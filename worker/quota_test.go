package worker_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// TestWorkdirQuota ends a guest whose directory grows past workdir_bytes.
func TestWorkdirQuota(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	small := func(m *protocol.Manifest) { m.Capabilities.Limits.WorkdirBytes = 256 << 10 }
	job := f.job(f.push(t, "hoarder", guest(t, mkdir("d"), file("d/a", "", 2), file("d/b", "", 3), forever()), small), "x")
	e := f.end(t, job)
	want := regexp.MustCompile(`^capsule execution exceeded its configured resource limits: work directory growth to \d+ bytes exceeds capabilities\.limits\.workdir_bytes \(262144\)$`)
	message := e.rec.Ending.Message
	if !want.MatchString(message) {
		t.Fatalf("message = %q, want %s", message, want)
	}
	e.check(t, f, job, situation{
		protocol.StatusError, protocol.ReportedByChild, "", "TASK_STATE_FAILED", message, nil, "error: " + message,
	})
	// Empty files count too, and directories nest only so deep.
	litter := f.job(f.push(t, "litter", module(t, "litter"), small), "x")
	if e := f.end(t, litter); !want.MatchString(e.rec.Ending.Message) {
		t.Errorf("a guest that makes empty files ended %s with %q, want %s", e.rec.Status, e.rec.Ending.Message, want)
	}
	nest := f.job(f.push(t, "nest", module(t, "nest")), "x")
	const deep = "capsule execution exceeded its configured resource limits: work directory: directories nest deeper than 128"
	if e := f.end(t, nest); e.rec.Ending.Message != deep {
		t.Errorf("a guest that nests directories ended %s with %q, want %q", e.rec.Status, e.rec.Ending.Message, deep)
	}
	// One that is gone before it is measured has not succeeded either, whatever it said.
	hasty := f.job(f.push(t, "hasty", guest(t, file("a", "", 5), say("done")), small), "x")
	e = f.end(t, hasty)
	message = e.rec.Ending.Message
	if !want.MatchString(message) {
		t.Errorf("a guest that exits at once ended %s with %q, want %s", e.rec.Status, message, want)
	}
	e.check(t, f, hasty, situation{
		protocol.StatusError, protocol.ReportedByChild, "", "TASK_STATE_FAILED", message, nil, "error: " + message,
	})
	// Within it, a guest goes on, though it is measured.
	job = f.job(f.push(t, "modest", guest(t, file("a", "", 3), nap(1200), say("done")), small), "x")
	if e := f.end(t, job); e.rec.Status != protocol.StatusOK {
		t.Errorf("ended %s %q, want ok", e.rec.Status, e.rec.Ending.Message)
	}
}

// TestACancelWinsOverTheQuota of a guest that stops when it is asked to, and leaves
// too much behind.
func TestACancelWinsOverTheQuota(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	two := func(m *protocol.Manifest) { m.Capabilities.Limits.WorkdirBytes = 2 * 4096 } // the task is a file, too
	job := f.job(f.push(t, "tidy", guest(t, file("a", "", 0), say("ready"), untilCanceled(), file("b", "", 0)), two), "x")
	f.dispatch(t, job)
	f.saying(t, job, "ready")
	if _, err := f.cancel(t, job); err != nil {
		t.Fatal(err)
	}
	if rec := f.settled(t, job); !rec.Outcome.ParentEnded() || rec.Ending.Message != protocol.MessageCanceled {
		t.Errorf("ended %s with %q, want %q", rec.Status, rec.Ending.Message, protocol.MessageCanceled)
	}
}

// TestAFloodOfBytesEndsAtTheQuota: what a guest writes without pause in less than the
// time between two looks at its directory.
func TestAFloodOfBytesEndsAtTheQuota(t *testing.T) {
	t.Parallel()
	const quota, block = 4 << 20, 64 << 10
	for name, hire := range map[string]func(*testing.T, *fleet){
		"in the worker": func(t *testing.T, f *fleet) { f.hire(t, nil) },
		"in a process":  func(t *testing.T, f *fleet) { f.newMember(t, f.server.URL(), nil, 1).start(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			hire(t, f)
			job := f.job(f.push(t, "flood", guest(t, file("a", "", 1<<20)), func(m *protocol.Manifest) {
				m.Capabilities.Limits.WorkdirBytes = quota
			}), "x")
			e := f.end(t, job)
			if want := "bytes exceeds capabilities.limits.workdir_bytes (4194304)"; !strings.HasSuffix(e.rec.Ending.Message, want) {
				t.Errorf("message = %q, want …%s", e.rec.Ending.Message, want)
			}
			info, err := os.Stat(filepath.Join(e.rec.Workdir, "a"))
			if err != nil {
				t.Fatal(err)
			}
			if most := int64(quota + quota/16 + 2*block); info.Size() > most {
				t.Errorf("the guest wrote %d bytes, want %d at most", info.Size(), most)
			}
		})
	}
}

// TestRemovedFilesCountInTheQuota while the guest holds them open: nothing in its
// directory shows them. Neighbours in the process go on.
func TestRemovedFilesCountInTheQuota(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.newMember(t, f.server.URL(), nil, 2)
	m.start(t)
	small := func(m *protocol.Manifest) { m.Capabilities.Limits.WorkdirBytes = 256 << 10 }
	good := f.job(f.push(t, "good", guest(t, heldFile("a", 2), say("ready"), untilCanceled()), small), "x")
	f.dispatch(t, good)
	f.saying(t, good, "ready")
	want := regexp.MustCompile(`^capsule execution exceeded its configured resource limits: work directory growth to \d+ bytes exceeds capabilities\.limits\.workdir_bytes \(262144\)$`)
	const long = "ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
	bare := []step{heldFile("a", 3), file("b", "", 3), forever()}
	removed := []step{mkdir(long), mkdir(long + "/d"), heldFile(long+"/d/a", 5), forever()}
	for name, steps := range map[string][]step{"with-named": bare, "without": removed} {
		e := f.end(t, f.job(f.push(t, name, guest(t, steps...), small), "x"))
		if !want.MatchString(e.rec.Ending.Message) || e.rec.Status != protocol.StatusError {
			t.Errorf("%s ended %s with %q, want error and %s", name, e.rec.Status, e.rec.Ending.Message, want)
		}
	}
	if _, err := f.cancel(t, good); err != nil {
		t.Fatal(err)
	}
	if rec := f.settled(t, good); !rec.Outcome.ParentEnded() {
		t.Errorf("the neighbour ended %s with %q, want it to run until it was canceled", rec.Status, rec.Ending.Message)
	}
}

// module is a guest of testenv.
func module(t *testing.T, name string) []byte {
	t.Helper()
	module, err := os.ReadFile(testenv.WAT(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// TestOldWorkDirectoriesAreRemoved: after the retention, while the guest of another
// that began earlier still runs in its own, also that of another worker whose work
// root is the same.
func TestOldWorkDirectoriesAreRemoved(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"of one worker": false, "of two workers": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			removes := func(c *worker.Config) { c.Retention = 2 * time.Second }
			first := f.hire(t, func(c *worker.Config) {
				if !shared {
					removes(c)
				}
			})
			long := f.job(f.push(t, "long", guest(t, say("ready"), forever())), "x")
			f.dispatch(t, long)
			f.saying(t, long, "ready")
			running := f.record(t, long).Record
			if shared {
				f.hire(t, func(c *worker.Config) { removes(c); c.WorkRoot = first.cfg.WorkRoot })
			}
			ended := f.end(t, f.job(f.push(t, "short", guest(t, say("done"))), "x")).rec
			session := func(rec protocol.Record) error { _, err := os.Stat(filepath.Dir(rec.Workdir)); return err }
			testenv.EventuallyTrue(t, soon, "the old directory goes", func() bool { return errors.Is(session(ended), fs.ErrNotExist) })
			if kept := time.Since(ended.StartedAt.Std()); kept < 2*time.Second {
				t.Errorf("it went after %s, before its time", kept)
			}
			if err := session(running); err != nil {
				t.Errorf("the directory of a running guest: %v", err)
			}
		})
	}
}

// TestTrace reads the trace of a session that does a bit of everything.
func TestTrace(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	script := []string{
		`{"event":"session-started","id":"s1","model":"m1"}`,
		`no event`,
		`{"event":"retry","attempt":2,"reason":"overloaded"}`,
		`{"event":"tool-call-started","id":"c1","name":"search"}`,
		`{"event":"tool-call","id":"c1","name":"search","input":{"q":"secret words"}}`,
		`{"event":"tool-result","id":"c1","output":"found","is_error":true}`,
		`{"event":"tool-result","id":"c9","output":"?","is_error":false}`,
		`{"event":"usage","input":10,"output":5,"cache_read":1,"cache_creation":2,"thinking":3}`,
		`{"event":"turn-end","result":"the answer"}`,
	}
	job := f.job(f.push(t, "traced", guest(t, echo()), events), strings.Join(script, "\n"))
	e := f.end(t, job)
	path := filepath.Join(filepath.Dir(e.rec.Workdir), "trace.jsonl")
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%s: %v, %v; want a file of mode 0600 outside the guest's root", path, info, err)
	}
	lines := readTrace(t, path)
	var kinds []string
	for _, line := range lines {
		kinds = append(kinds, line["type"].(string))
		if at, err := time.Parse("2006-01-02T15:04:05.000Z", line["time"].(string)); err != nil || time.Since(at) > time.Hour {
			t.Errorf("time of %v: %v", line, err)
		}
	}
	want := []string{"session_start", "task_start", "harness", "note", "retry", "tool_call", "note", "usage", "task_end", "session_end"}
	if !slices.Equal(kinds, want) {
		t.Fatalf("types = %v, want %v", kinds, want)
	}
	for i, members := range []map[string]any{
		{
			"session_id": string(e.rec.SessionID), "delegation_id": string(job.DelegationID), "worker_id": string(e.rec.WorkerID), "attempt": 1.0,
			"spawned_by.session_id": string(job.Spawner.SessionID), "spawned_by.context_id": string(job.Spawner.ContextID),
			"capsule.name": "traced", "capsule.version": "1.0.0", "capsule.digest": string(job.Capsule.Digest),
		},
		{"task_id": string(job.TaskID), "context_id": string(job.ContextID()), "origin": "user", "trust": "trusted", "lane": "user"},
		{"id": "s1", "model": "m1"},
		{"text": "no event"},
		{"attempt": 2.0, "reason": "overloaded"},
		{"tool_call_id": "c1", "name": "search", "is_error": true},
		{"tool_call_id": "c9"},
		{"input": 10.0, "output": 5.0, "cache_read": 1.0, "cache_creation": 2.0, "thinking": 3.0},
		{"state": "TASK_STATE_COMPLETED", "message": "session ended"},
		{"status": "ok", "duration_ms": float64(e.rec.Outcome.DurationMS)},
	} {
		for name, value := range members {
			var path []any
			for _, key := range strings.Split(name, ".") {
				path = append(path, key)
			}
			if got := dig(lines[i], path...); got != value {
				t.Errorf("line %d, %s: %s = %v, want %v", i+1, kinds[i], name, got, value)
			}
		}
	}
	if raw, err := os.ReadFile(path); err != nil || strings.Contains(string(raw), "secret words") || strings.Contains(string(raw), "the answer") {
		t.Errorf("the trace holds payloads: %s, %v", raw, err)
	}
	if kept := e.file(t, "out/result.txt"); kept != "the answer" {
		t.Errorf("out/result.txt = %q", kept)
	}
}

func readTrace(t *testing.T, path string) []map[string]any {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read
	var lines []map[string]any
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		var line map[string]any
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			t.Fatalf("trace line %q: %v", scanner.Bytes(), err)
		}
		lines = append(lines, line)
	}
	return lines
}
