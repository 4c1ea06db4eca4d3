package worker

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"starling/protocol"
)

// maxTraceBytes bounds a trace; past it only the endings are written.
const maxTraceBytes = 16 << 20

// trace writes trace.jsonl: one JSON object a line, each with "type" and "time".
// It is used by one goroutine and keeps its first error until close.
//
//	session_start  session_id, delegation_id, spawned_by, capsule, attempt, worker_id
//	task_start     task_id, context_id, origin, trust, lane
//	harness        id, model
//	tool_call      tool_call_id, name, is_error, duration_ms
//	note, retry, usage
//	task_end       state, message
//	session_end    status, duration_ms
type trace struct {
	file  *os.File
	out   *bufio.Writer
	bytes int
	full  bool
	err   error
	calls map[string]tracedCall
}

type tracedCall struct {
	name  string
	began time.Time
}

type traceLine map[string]any

func openTrace(dir string) (*trace, error) {
	f, err := os.OpenFile(filepath.Join(dir, traceFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &trace{file: f, out: bufio.NewWriter(f), calls: make(map[string]tracedCall)}, nil
}

func (t *trace) write(now time.Time, kind string, line traceLine) {
	line["type"], line["time"] = kind, protocol.NewTime(now)
	encoded, err := json.Marshal(line)
	if err == nil {
		t.bytes += len(encoded) + 1
		_, err = t.out.Write(append(encoded, '\n'))
	}
	t.err = errors.Join(t.err, err)
}

// start opens the session and its task.
func (t *trace) start(now time.Time, rec protocol.Record) {
	t.write(now, "session_start", traceLine{
		"session_id": rec.SessionID, "delegation_id": rec.DelegationID, "worker_id": rec.WorkerID,
		"spawned_by": traceLine{"session_id": rec.Spawner.SessionID, "context_id": rec.Spawner.ContextID},
		"capsule":    rec.Capsule, "attempt": rec.Attempt,
	})
	t.write(now, "task_start", traceLine{
		"task_id": rec.TaskID, "context_id": rec.ContextID,
		"origin": rec.Origin, "trust": rec.Trust, "lane": rec.Lane,
	})
}

// note writes a note of the runtime's own.
func (t *trace) note(now time.Time, text string) { t.write(now, "note", traceLine{"text": text}) }

// event keeps what the trace tells of a driver event.
func (t *trace) event(now time.Time, e protocol.Event) {
	switch {
	case t.full:
		return
	case t.bytes > maxTraceBytes:
		t.full = true
		t.write(now, "note", traceLine{"text": "the trace is full: what follows is not in it"})
		return
	}
	switch e.Kind {
	case protocol.EventToolCallStarted:
		if call, known := t.calls[e.ID]; !known || call.name == "" {
			t.calls[e.ID] = tracedCall{name: e.Name, began: now}
		}
	case protocol.EventToolCall:
		if _, known := t.calls[e.ID]; !known || e.ID == "" {
			t.calls[e.ID] = tracedCall{name: e.Name, began: now}
		}
	case protocol.EventToolResult:
		call, known := t.calls[e.ID]
		if !known {
			t.write(now, "note", traceLine{"text": "a result of an unknown tool call", "tool_call_id": clip(e.ID)})
			return
		}
		delete(t.calls, e.ID)
		t.write(now, "tool_call", traceLine{
			"tool_call_id": clip(e.ID), "name": clip(call.name), "is_error": e.IsError,
			"duration_ms": now.Sub(call.began).Milliseconds(),
		})
		t.err = errors.Join(t.err, t.out.Flush())
	case protocol.EventNote:
		t.write(now, "note", traceLine{"text": protocol.Bound(e.Text)})
	case protocol.EventRetry:
		t.write(now, "retry", traceLine{"attempt": e.Attempt, "reason": protocol.Bound(e.Reason)})
	case protocol.EventSessionStarted:
		t.write(now, "harness", traceLine{"id": clip(e.ID), "model": clip(e.Model)})
	case protocol.EventUsage:
		u := e.Usage
		t.write(now, "usage", traceLine{
			"input": u.Input, "output": u.Output, "cache_read": u.CacheRead,
			"cache_creation": u.CacheCreation, "thinking": u.Thinking,
		})
	}
}

// end closes the task and the session, and writes down all of it: who is told
// next finds the trace whole.
func (t *trace) end(now time.Time, ending protocol.Ending, outcome protocol.Outcome) {
	t.write(now, "task_end", traceLine{"state": ending.State, "message": ending.Message})
	t.write(now, "session_end", traceLine{"status": outcome.Status, "duration_ms": outcome.DurationMS})
	t.err = errors.Join(t.err, t.out.Flush())
}

func (t *trace) close() error {
	return errors.Join(t.err, t.out.Flush(), t.file.Close())
}

// clip bounds an id or a name out of a capsule.
func clip(s string) string {
	const most = 256
	if len(s) > most {
		return protocol.Bound(s)[:most]
	}
	return s
}
