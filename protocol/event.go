package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// EventKind names a driver event: what a capsule says while it runs.
//
// Source: docs/protocol.md, section 5.
type EventKind string

// The driver events.
const (
	EventSessionStarted   EventKind = "session-started"
	EventTextDelta        EventKind = "text-delta"
	EventThinkingDelta    EventKind = "thinking-delta"
	EventText             EventKind = "text"
	EventThinking         EventKind = "thinking"
	EventToolCallStarted  EventKind = "tool-call-started"
	EventToolCallProgress EventKind = "tool-call-progress"
	EventToolCall         EventKind = "tool-call"
	EventToolResult       EventKind = "tool-result"
	EventRetry            EventKind = "retry"
	EventUsage            EventKind = "usage"
	EventNote             EventKind = "note"
	EventTurnEnd          EventKind = "turn-end"
	EventTurnFailed       EventKind = "turn-failed"
)

// Terminal reports whether the event ends the attempt: what follows it is ignored.
func (k EventKind) Terminal() bool { return k == EventTurnEnd || k == EventTurnFailed }

// FailureKind classifies a turn-failed event.
type FailureKind string

// The failure kinds.
const (
	FailAuth     FailureKind = "auth"
	FailQuota    FailureKind = "quota"
	FailMaxTurns FailureKind = "max-turns"
	FailCanceled FailureKind = "canceled"
	FailHarness  FailureKind = "harness-error"
	FailOther    FailureKind = "other"
)

// Usage is a session's cumulative token counts.
type Usage struct {
	Input         int64
	Output        int64
	CacheRead     int64
	CacheCreation int64
	Thinking      int64
}

// Spent is what counts against inference.max_session_tokens: input plus output.
// It saturates rather than wraps; a count below zero is taken for zero.
func (u Usage) Spent() int64 {
	in, out := max(u.Input, 0), max(u.Output, 0)
	if sum := in + out; sum >= in {
		return sum
	}
	return math.MaxInt64
}

// Event is one driver event. Only the members of its kind (section 5) carry
// meaning; the others are zero.
type Event struct {
	Kind EventKind

	ID      string // session-started, tool-call-started, tool-call-progress, tool-call, tool-result
	Name    string // tool-call-started, tool-call
	Auth    string // session-started
	Model   string // session-started
	Text    string // text-delta, thinking-delta, text, thinking, note
	Result  string // turn-end
	Message string // turn-failed
	Reason  string // retry
	Output  string // tool-result

	InputBytes int64           // tool-call-progress, cumulative
	Attempt    int64           // retry
	IsError    bool            // tool-result
	Input      json.RawMessage // tool-call, any JSON
	Failure    FailureKind     // turn-failed
	Usage      Usage           // usage
}

// ErrEvent says that a line is no driver event. Such a line becomes a note.
var ErrEvent = errors.New("not a driver event")

// ParseEvent reads one JSON object as a driver event. Members are matched by
// exact case and unknown ones are ignored; a member of the wrong type, a line
// that is no JSON object and an event that section 5 does not name are
// [ErrEvent]. An unknown failure kind becomes "other". Bytes that are not UTF-8
// become U+FFFD.
func ParseEvent(line []byte) (Event, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return Event{}, fmt.Errorf("%w: it is no JSON object: %w", ErrEvent, err)
	}
	r := eventReader{members: members}
	e := Event{Kind: EventKind(r.str("event"))}
	switch e.Kind {
	case EventSessionStarted:
		e.ID, e.Auth, e.Model = r.str("id"), r.str("auth"), r.str("model")
	case EventTextDelta, EventThinkingDelta, EventText, EventThinking, EventNote:
		e.Text = r.str("text")
	case EventToolCallStarted:
		e.ID, e.Name = r.str("id"), r.str("name")
	case EventToolCallProgress:
		e.ID, e.InputBytes = r.str("id"), r.int("input_bytes")
	case EventToolCall:
		e.ID, e.Name = r.str("id"), r.str("name")
		e.Input = r.members["input"]
		if !utf8.Valid(e.Input) { // kept as it is otherwise
			e.Input = bytes.ToValidUTF8(e.Input, []byte("\uFFFD"))
		}
	case EventToolResult:
		e.ID, e.Output, e.IsError = r.str("id"), r.str("output"), r.bool("is_error")
	case EventRetry:
		e.Attempt, e.Reason = r.int("attempt"), r.str("reason")
	case EventUsage:
		e.Usage = Usage{
			Input: r.int("input"), Output: r.int("output"), CacheRead: r.int("cache_read"),
			CacheCreation: r.int("cache_creation"), Thinking: r.int("thinking"),
		}
	case EventTurnEnd:
		e.Result = r.str("result")
	case EventTurnFailed:
		e.Failure, e.Message = failureKind(r.str("kind")), r.str("message")
	default:
		return Event{}, fmt.Errorf("%w: no event is called %q", ErrEvent, clip(string(e.Kind), 64))
	}
	if r.err != nil {
		return Event{}, fmt.Errorf("%w: %s: %w", ErrEvent, e.Kind, r.err)
	}
	return e, nil
}

func failureKind(s string) FailureKind {
	switch k := FailureKind(s); k {
	case FailAuth, FailQuota, FailMaxTurns, FailCanceled, FailHarness:
		return k
	default:
		return FailOther
	}
}

// eventReader reads members by exact case and keeps the first error. An absent
// or null member is the zero value.
type eventReader struct {
	members map[string]json.RawMessage
	err     error
}

func (r *eventReader) read(name string, into any) {
	if !r.has(name) {
		return
	}
	if err := json.Unmarshal(r.members[name], into); err != nil && r.err == nil {
		r.err = fmt.Errorf("member %q: %w", name, jsonError(err))
	}
}

// has reports whether the member is there and not null.
func (r *eventReader) has(name string) bool {
	raw, ok := r.members[name]
	return ok && !bytes.Equal(raw, []byte("null"))
}

// first is the first of the members that is a text and not empty.
func (r *eventReader) first(names ...string) string {
	for _, name := range names {
		if s := r.str(name); s != "" {
			return s
		}
	}
	return ""
}

func (r *eventReader) str(name string) (s string) { r.read(name, &s); return s }
func (r *eventReader) int(name string) (n int64)  { r.read(name, &n); return n }
func (r *eventReader) bool(name string) (b bool)  { r.read(name, &b); return b }

// MarshalJSON writes the event as one object with the members of its kind, so
// that [ParseEvent] reads it back.
func (e Event) MarshalJSON() ([]byte, error) {
	type object = map[string]any
	o := object{"event": e.Kind}
	switch e.Kind {
	case EventSessionStarted:
		o["id"] = e.ID
		if e.Auth != "" {
			o["auth"] = e.Auth
		}
		if e.Model != "" {
			o["model"] = e.Model
		}
	case EventTextDelta, EventThinkingDelta, EventText, EventThinking, EventNote:
		o["text"] = e.Text
	case EventToolCallStarted:
		o["id"], o["name"] = e.ID, e.Name
	case EventToolCallProgress:
		o["id"], o["input_bytes"] = e.ID, e.InputBytes
	case EventToolCall:
		o["id"], o["name"], o["input"] = e.ID, e.Name, e.Input
	case EventToolResult:
		o["id"], o["output"], o["is_error"] = e.ID, e.Output, e.IsError
	case EventRetry:
		o["attempt"], o["reason"] = e.Attempt, e.Reason
	case EventUsage:
		o["input"], o["output"] = e.Usage.Input, e.Usage.Output
		o["cache_read"], o["cache_creation"] = e.Usage.CacheRead, e.Usage.CacheCreation
		o["thinking"] = e.Usage.Thinking
	case EventTurnEnd:
		o["result"] = e.Result
	case EventTurnFailed:
		o["kind"], o["message"] = e.Failure, e.Message
	default:
		return nil, fmt.Errorf("%w: no event is called %q", ErrEvent, clip(string(e.Kind), 64))
	}
	return json.Marshal(o)
}

// clip cuts s at a character boundary at or before n bytes, for use in errors.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
