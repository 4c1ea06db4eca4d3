package protocol_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

var framePlace = protocol.Place{
	TaskID: "tsk_1", ContextID: "ctx_1", SessionID: "ses_1", Attempt: 2, Seq: 7,
	Time: time.Date(2026, 11, 29, 12, 0, 0, 100_500_000, time.UTC),
}

// statusBody is a statusUpdate as docs/protocol.md, section 7, writes it.
func statusBody(kind, state, part, extensions string) string {
	return `{"statusUpdate":{"taskId":"tsk_1","contextId":"ctx_1","status":{"state":"` + state + `","timestamp":"2026-11-29T12:00:00.100Z",` +
		`"message":{"messageId":"tsk_1.2.7","role":"ROLE_AGENT","taskId":"tsk_1","contextId":"ctx_1",` + extensions + `"parts":[` + part + `]}},` +
		`"metadata":{"urn:starling:a2a:stream:v1":{"kind":"` + kind + `"}}}}`
}

// artifactBody is an artifactUpdate as docs/protocol.md, section 7, writes it.
func artifactBody(text, flags, ext string) string {
	return `{"artifactUpdate":{"taskId":"tsk_1","contextId":"ctx_1","artifact":{"artifactId":"response","name":"response","parts":[{"text":"` + text + `"}]},` +
		flags + `"metadata":{"urn:starling:a2a:stream:v1":` + ext + `}}}`
}

func ptr[T any](v T) *T { return &v }

const ext = `"extensions":["urn:starling:a2a:stream:v1"],`

// frameRows has each row of the table of docs/protocol.md, section 7, and the
// forms of each.
var frameRows = []struct {
	row   string
	frame protocol.Frame
	want  string
}{
	{
		"status-update",
		protocol.Frame{Kind: "status-update", State: a2a.TaskStateWorking, Text: "inference turn 1"},
		statusBody("status-update", "TASK_STATE_WORKING", `{"text":"inference turn 1"}`, ""),
	},
	{
		"text that replaces",
		protocol.Frame{Kind: "text", Text: "a"},
		artifactBody("a", "", `{"kind":"text","final":false}`),
	},
	{
		"text that appends",
		protocol.Frame{Kind: "text", Text: "a", Append: true},
		artifactBody("a", `"append":true,`, `{"kind":"text","final":false}`),
	},
	{
		"text that pays a cursor",
		protocol.Frame{Kind: "text", Append: true, Final: true},
		artifactBody("", `"append":true,"lastChunk":true,`, `{"kind":"text","final":true}`),
	},
	{
		"thinking",
		protocol.Frame{Kind: "thinking", Text: "hm"},
		statusBody("thinking", "TASK_STATE_WORKING", `{"text":"hm"}`, ext),
	},
	{
		"tool-call-started",
		protocol.Frame{Kind: "tool-call-started", ToolCallID: "c1", ToolName: "read"},
		statusBody("tool-call-started", "TASK_STATE_WORKING", `{"data":{"tool_call_id":"c1","tool_name":"read"}}`, ext),
	},
	{
		"tool-call-progress",
		protocol.Frame{Kind: "tool-call-progress", ToolCallID: "c1", InputBytes: 1 << 40},
		statusBody("tool-call-progress", "TASK_STATE_WORKING", `{"data":{"tool_call_id":"c1","input_bytes":1099511627776}}`, ext),
	},
	{
		"artifact with all eight members",
		protocol.Frame{
			Kind: "artifact", ToolName: "read", Content: "x", FenceSource: "f", ToolCallID: "c1", IsError: true,
			DurationMS: ptr(int64(5)), ExitCode: ptr(0), Truncated: true,
		},
		statusBody("artifact", "TASK_STATE_WORKING", `{"data":{"tool_name":"read","content":"x","fence_source":"f","tool_call_id":"c1",`+
			`"is_error":true,"duration_ms":5,"exit_code":0,"truncated":true}}`, ext),
	},
	{
		"artifact of which little applies",
		protocol.Frame{Kind: "artifact", ToolName: "hook"},
		statusBody("artifact", "TASK_STATE_WORKING", `{"data":{"tool_name":"hook","content":"","fence_source":null,"tool_call_id":null,`+
			`"is_error":false,"duration_ms":null,"exit_code":null,"truncated":false}}`, ext),
	},
	{
		"response",
		protocol.Frame{Kind: "response", Text: "done"},
		artifactBody("done", `"lastChunk":true,`, `{"kind":"response"}`),
	},
	{
		"response that was cut",
		protocol.Frame{
			Kind: "response", Text: "do", Truncated: true,
			Object: &protocol.ResultObject{Bucket: "b", Name: "n", Digest: "d", Size: 9},
		},
		artifactBody("do", `"lastChunk":true,`, `{"kind":"response","truncated":true,"object":{"bucket":"b","name":"n","digest":"d","size":9}}`),
	},
}

func TestFrameBodies(t *testing.T) {
	t.Parallel()
	for _, tt := range frameRows {
		got, err := tt.frame.Encode(framePlace)
		if err != nil {
			t.Errorf("%s: Encode() = %v", tt.row, err)
			continue
		}
		if diff := cmp.Diff(anyJSON(t, tt.want), anyJSON(t, string(got.Body))); diff != "" {
			t.Errorf("%s: Encode() (-want +got):\n%s", tt.row, diff)
		}
		wantHeader := map[string]string{
			"Nats-Msg-Id": "tsk_1.2.7", "Starling-Frame": string(tt.frame.Kind), "Starling-Attempt": "2", "Starling-Seq": "7",
			"Starling-Session": "ses_1", "A2A-Version": "1.0",
		}
		if diff := cmp.Diff(wantHeader, got.Header); diff != "" {
			t.Errorf("%s: the header (-want +got):\n%s", tt.row, diff)
		}
	}
}

// anyJSON is what a body says, whatever the order of its members.
func anyJSON(t *testing.T, body string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("Unmarshal(%s) = %v", body, err)
	}
	return v
}

func TestFrameIsReadByTheOfficialDecoder(t *testing.T) {
	t.Parallel()
	for _, tt := range frameRows {
		got, err := tt.frame.Encode(framePlace)
		if err != nil {
			t.Fatal(err)
		}
		var official a2a.StreamResponse
		if err := json.Unmarshal(got.Body, &official); err != nil {
			t.Errorf("%s: the official decoder refuses %s: %v", tt.row, got.Body, err)
			continue
		}
		switch e := official.Event.(type) {
		case *a2a.TaskStatusUpdateEvent:
			if e.TaskID != "tsk_1" || e.ContextID != "ctx_1" || e.Status.Message.ID != "tsk_1.2.7" || e.Status.Message.Role != a2a.MessageRoleAgent ||
				!e.Status.Timestamp.Equal(framePlace.Time.Truncate(time.Millisecond)) || e.Status.State != a2a.TaskStateWorking {
				t.Errorf("%s: the official decoder reads %+v", tt.row, e)
			}
		case *a2a.TaskArtifactUpdateEvent:
			if e.TaskID != "tsk_1" || e.ContextID != "ctx_1" || e.Artifact.ID != "response" || e.Artifact.Parts[0].Text() != tt.frame.Text ||
				e.Append != tt.frame.Append || e.LastChunk != (tt.frame.Final || tt.frame.Kind == protocol.FrameResponse) {
				t.Errorf("%s: the official decoder reads %+v", tt.row, e)
			}
		default:
			t.Errorf("%s: the official decoder reads a %T", tt.row, e)
		}
	}
}

func TestFrameRoundTrip(t *testing.T) {
	t.Parallel()
	for _, tt := range frameRows {
		encoded, err := tt.frame.Encode(framePlace)
		if err != nil {
			t.Fatal(err)
		}
		got, err := protocol.ParseFrame(headerOf(encoded.Header), encoded.Body)
		if err != nil {
			t.Errorf("%s: ParseFrame = %v", tt.row, err)
			continue
		}
		want, place := tt.frame, framePlace
		want.State, want.Final = a2a.TaskStateWorking, want.Final || want.Kind == protocol.FrameResponse
		place.Time = place.Time.Truncate(time.Millisecond)
		if _, artifact := got.A2A.Event.(*a2a.TaskArtifactUpdateEvent); artifact {
			place.Time = time.Time{}
		}
		if diff := cmp.Diff(want, got.Frame); diff != "" {
			t.Errorf("%s: ParseFrame (-want +got):\n%s", tt.row, diff)
		}
		if diff := cmp.Diff(place, got.Place); diff != "" {
			t.Errorf("%s: ParseFrame, the place (-want +got):\n%s", tt.row, diff)
		}
	}
}

func headerOf(header map[string]string) func(string) string {
	return func(name string) string { return header[name] }
}

// TestTerminalFrames: only a status-update of a final state ends its task; its
// id is the task's and not the attempt's.
func TestTerminalFrames(t *testing.T) {
	t.Parallel()
	for state, terminal := range map[a2a.TaskState]bool{
		"TASK_STATE_SUBMITTED": false, "TASK_STATE_WORKING": false, "TASK_STATE_INPUT_REQUIRED": false,
		"TASK_STATE_COMPLETED": true, "TASK_STATE_FAILED": true, "TASK_STATE_CANCELED": true, "TASK_STATE_REJECTED": true,
	} {
		f := protocol.Frame{Kind: protocol.FrameStatus, State: state, Text: "x"}
		place := framePlace
		place.Seq = 0
		got, err := f.Encode(place)
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "tsk_1.end", false: "tsk_1.2.0"}[terminal]
		if f.Terminal() != terminal || got.Header["Nats-Msg-Id"] != want {
			t.Errorf("%s: Terminal() = %v and Msg-Id %s, want %v and %s", state, f.Terminal(), got.Header["Nats-Msg-Id"], terminal, want)
		}
		r, err := protocol.ParseFrame(headerOf(got.Header), got.Body)
		if err != nil || r.Terminal() != terminal || r.Seq != 0 || r.State != state {
			t.Errorf("%s: ParseFrame = %+v, %v", state, r.Frame, err)
			continue
		}
		if id := r.A2A.Event.(*a2a.TaskStatusUpdateEvent).Status.Message.ID; id != want {
			t.Errorf("%s: messageId is %s, want %s", state, id, want)
		}
		// What another kind says of the state does not count.
		if other := (protocol.Frame{Kind: protocol.FrameText, State: state}); other.Terminal() {
			t.Errorf("a text frame with %s is terminal", state)
		}
	}
}

func TestParseFrameRefusals(t *testing.T) {
	t.Parallel()
	good, err := protocol.Frame{Kind: protocol.FrameText, Text: "a"}.Encode(framePlace)
	if err != nil {
		t.Fatal(err)
	}
	for rule, header := range map[string]map[string]string{
		"no attempt": {"Starling-Seq": "1"}, "no seq": {"Starling-Attempt": "1"},
		"an attempt below zero":     {"Starling-Attempt": "-1", "Starling-Seq": "1"},
		"a seq that is no number":   {"Starling-Attempt": "1", "Starling-Seq": "1x"},
		"a seq that is a fraction":  {"Starling-Attempt": "1", "Starling-Seq": "1.0"},
		"headers of another case":   {"starling-attempt": "1", "starling-seq": "1"},
		"a seq beyond what fits":    {"Starling-Attempt": "1", "Starling-Seq": "99999999999999999999"},
		"an attempt with a newline": {"Starling-Attempt": "1\n", "Starling-Seq": "1"},
	} {
		if got, err := protocol.ParseFrame(headerOf(header), good.Body); !errors.Is(err, protocol.ErrFrame) {
			t.Errorf("%s: ParseFrame = %+v, %v, want ErrFrame", rule, got, err)
		}
	}
	status := func(message string) string {
		return `{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING","message":` + message + `}}}`
	}
	for rule, body := range map[string]string{
		"nothing": ``, "null": `null`, "a list": `[]`, "neither": `{}`, "half": string(good.Body[:20]),
		"a task":                           `{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}`,
		"both":                             strings.Replace(string(good.Body), `{"artifactUpdate"`, `{"statusUpdate":{},"artifactUpdate"`, 1),
		"no artifact":                      `{"artifactUpdate":{"taskId":"t"}}`,
		"an artifact without parts":        `{"artifactUpdate":{"artifact":{"parts":[]}}}`,
		"an artifact with a null part":     `{"artifactUpdate":{"artifact":{"parts":[null]}}}`,
		"a status with a null part":        status(`{"parts":[null]}`),
		"data that is of another type":     status(`{"parts":[{"data":{"tool_name":7}}]}`),
		"bytes that are a fraction":        status(`{"parts":[{"data":{"input_bytes":0.5}}]}`),
		"an object that is of another one": `{"artifactUpdate":{"artifact":{"parts":[{"text":"a"}]},"metadata":{"urn:starling:a2a:stream:v1":{"object":{"size":"1"}}}}}`,
	} {
		if got, err := protocol.ParseFrame(headerOf(good.Header), []byte(body)); !errors.Is(err, protocol.ErrFrame) {
			t.Errorf("%s: ParseFrame(%s) = %+v, %v, want ErrFrame", rule, body, got, err)
		}
	}
	for rule, body := range map[string]string{
		"no message": status(`null`), "no parts": status(`{"parts":[]}`),
		"data of another case is ignored": status(`{"parts":[{"data":{"Tool_Name":"x"}}]}`),
	} {
		if got, err := protocol.ParseFrame(headerOf(good.Header), []byte(body)); err != nil || got.ToolName != "" || got.TaskID != "t" {
			t.Errorf("%s: ParseFrame(%s) = %+v, %v, want a frame that says little", rule, body, got, err)
		}
	}
}

// FuzzParseFrame: what was read as a frame is written so that the same frame is
// read again, by us and by the official decoder, and stays within its bound.
func FuzzParseFrame(f *testing.F) {
	for _, tt := range frameRows {
		encoded, err := tt.frame.Encode(framePlace)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(tt.frame.Kind), "1", "1", encoded.Body)
	}
	f.Add("text", "0", "-1", []byte(`{"artifactUpdate":{"artifact":{"parts":[null]}}}`))
	f.Add("artifact", "1", "2", []byte(statusBody("artifact", "TASK_STATE_FAILED", `{"data":{"content":"\u0001<&>","fence_source":""}}`, "")))
	f.Fuzz(func(t *testing.T, kind, attempt, seq string, body []byte) {
		header := map[string]string{"Starling-Frame": kind, "Starling-Attempt": attempt, "Starling-Seq": seq}
		r, err := protocol.ParseFrame(headerOf(header), body)
		if err != nil {
			if !errors.Is(err, protocol.ErrFrame) {
				t.Fatalf("ParseFrame(%q) = %v, want ErrFrame", body, err)
			}
			return
		}
		place := r.Place
		place.Time = framePlace.Time
		written, err := r.Encode(place)
		if err != nil {
			t.Fatalf("Encode(%+v) = %v", r.Frame, err)
		}
		if size := published(written); size > protocol.MaxFrameBytes && len(place.TaskID)+len(place.ContextID) < 256 {
			t.Errorf("the frame has %d bytes as published, want at most %d", size, protocol.MaxFrameBytes)
		}
		again, err := protocol.ParseFrame(headerOf(written.Header), written.Body)
		if err != nil {
			t.Fatalf("ParseFrame(%s) = %v", written.Body, err)
		}
		rewritten, err := again.Encode(place)
		if err != nil || !reflect.DeepEqual(written, rewritten) {
			t.Errorf("written %s, read and written %s, %v", written.Body, rewritten.Body, err)
		}
	})
}
