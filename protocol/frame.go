package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// StreamExtension is the A2A extension of what is not core A2A in a frame: it
// sits in metadata under this URI.
const StreamExtension = "urn:starling:a2a:stream:v1"

// ResponseArtifact is the artifact that text and response frames write.
const ResponseArtifact a2a.ArtifactID = "response"

// The bounds of frames.
const (
	MaxFrameBytes   = 512 << 10 // a frame as published, headers and body
	MaxContentBytes = 256 << 10 // the content of an artifact and the response

	maxFrameText   = 448 << 10 // encoded text of one frame: leaves room for the rest
	maxFrameName   = 1024      // a tool call's id or name, a fence's source
	maxFrameStatus = MaxDetailBytes + len(cutMark)
)

// FrameKind names a frame.
//
// Source: docs/protocol.md, section 7.
type FrameKind string

// The frame kinds.
const (
	FrameStatus           FrameKind = "status-update"
	FrameText             FrameKind = "text"
	FrameThinking         FrameKind = "thinking"
	FrameToolCallStarted  FrameKind = "tool-call-started"
	FrameToolCallProgress FrameKind = "tool-call-progress"
	FrameArtifact         FrameKind = "artifact"
	FrameResponse         FrameKind = "response"
)

// Frame is what one frame says. Only the members of its kind carry meaning.
type Frame struct {
	Kind FrameKind

	State  a2a.TaskState // status-update; every other frame leaves the task working
	Text   string        // status-update, text, thinking, response
	Append bool          // text: false replaces what was streamed before
	Final  bool          // text: the last of its segment

	ToolCallID string // tool calls and artifacts; an empty one is null in an artifact
	ToolName   string
	InputBytes int64 // tool-call-progress

	Content     string // artifact
	FenceSource string // artifact; empty is null
	IsError     bool   // artifact
	DurationMS  *int64 // artifact
	ExitCode    *int   // artifact
	Truncated   bool   // artifact and response

	Object *ResultObject // response: where the whole is when it was cut
}

// Terminal reports whether the frame ends its task.
func (f Frame) Terminal() bool { return f.Kind == FrameStatus && f.State.Terminal() }

// Place says where a frame stands. Seq counts from 1 in each attempt; it is 0
// for a terminal status that another than the attempt's worker wrote.
type Place struct {
	TaskID    TaskID
	ContextID ContextID
	SessionID SessionID
	Attempt   int
	Seq       int
	Time      time.Time // of a status

	// Traceparent is the trace that the frame belongs to; "" for none.
	Traceparent string
}

// messageID is the id of the frame: the bus drops a second one with the same.
func (p Place) messageID(f Frame) string {
	if f.Terminal() {
		return string(p.TaskID) + ".end"
	}
	return string(p.TaskID) + "." + strconv.Itoa(p.Attempt) + "." + strconv.Itoa(p.Seq)
}

// HeaderMsgID is the header by which the bus drops duplicates.
const HeaderMsgID = "Nats-Msg-Id"

// EncodedFrame is a frame as it is published.
type EncodedFrame struct {
	Header map[string]string
	Body   []byte
}

// statusUpdate is an a2a.TaskStatusUpdateEvent whose timestamp has exactly the
// wire's form; time.Time drops trailing zeros.
type statusUpdate struct {
	TaskID    TaskID         `json:"taskId"`
	ContextID ContextID      `json:"contextId"`
	Status    taskStatus     `json:"status"`
	Metadata  map[string]any `json:"metadata,omitempty"`
}

type taskStatus struct {
	State     a2a.TaskState `json:"state"`
	Timestamp Time          `json:"timestamp"`
	Message   *a2a.Message  `json:"message,omitempty"`
}

type streamResponse struct {
	StatusUpdate   *statusUpdate                `json:"statusUpdate,omitempty"`
	ArtifactUpdate *a2a.TaskArtifactUpdateEvent `json:"artifactUpdate,omitempty"`
}

// ErrFrame says that a message is no frame.
var ErrFrame = errors.New("bad frame")

// Encode writes the frame at its place. Texts that are too long for a frame
// are cut: split fragments with [Frame.Split] first.
func (f Frame) Encode(p Place) (EncodedFrame, error) {
	f = f.bounded()
	id := p.messageID(f)
	body, err := json.Marshal(f.response(p, id))
	if err != nil {
		return EncodedFrame{}, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	header := map[string]string{
		HeaderMsgID: id, HeaderFrame: string(f.Kind), HeaderAttempt: strconv.Itoa(p.Attempt),
		HeaderSeq: strconv.Itoa(p.Seq), HeaderSession: string(p.SessionID), HeaderA2AVersion: A2AVersion,
	}
	if ValidTraceparent(p.Traceparent) {
		header[HeaderTraceparent] = p.Traceparent
	}
	return EncodedFrame{Header: header, Body: body}, nil
}

func (f Frame) response(p Place, id string) streamResponse {
	switch f.Kind {
	case FrameText, FrameResponse:
		ext := map[string]any{"kind": f.Kind}
		if f.Kind == FrameText {
			ext["final"] = f.Final
		} else if f.Truncated {
			ext["truncated"], ext["object"] = true, f.Object
		}
		return streamResponse{ArtifactUpdate: &a2a.TaskArtifactUpdateEvent{
			TaskID: a2a.TaskID(p.TaskID), ContextID: string(p.ContextID),
			Append: f.Append && f.Kind == FrameText, LastChunk: f.Final || f.Kind == FrameResponse,
			Artifact: &a2a.Artifact{
				ID: ResponseArtifact, Name: string(ResponseArtifact),
				Parts: a2a.ContentParts{a2a.NewTextPart(f.Text)},
			},
			Metadata: map[string]any{StreamExtension: ext},
		}}
	}
	state, part, extensions := a2a.TaskStateWorking, a2a.NewTextPart(f.Text), []string(nil)
	switch f.Kind {
	case FrameStatus:
		state = f.State
	case FrameThinking:
		extensions = []string{StreamExtension}
	default:
		part, extensions = a2a.NewDataPart(f.data()), []string{StreamExtension}
	}
	return streamResponse{StatusUpdate: &statusUpdate{
		TaskID: p.TaskID, ContextID: p.ContextID,
		Status: taskStatus{State: state, Timestamp: NewTime(p.Time), Message: &a2a.Message{
			ID: id, Role: a2a.MessageRoleAgent, TaskID: a2a.TaskID(p.TaskID), ContextID: string(p.ContextID),
			Parts: a2a.ContentParts{part}, Extensions: extensions,
		}},
		Metadata: map[string]any{StreamExtension: map[string]any{"kind": f.Kind}},
	}}
}

// data is the data part of a tool call's frames. All eight members of an
// artifact are always there, null where they do not apply.
func (f Frame) data() map[string]any {
	switch f.Kind {
	case FrameToolCallStarted:
		return map[string]any{"tool_call_id": f.ToolCallID, "tool_name": f.ToolName}
	case FrameToolCallProgress:
		return map[string]any{"tool_call_id": f.ToolCallID, "input_bytes": f.InputBytes}
	}
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return map[string]any{
		"tool_name": f.ToolName, "content": f.Content, "fence_source": orNull(f.FenceSource),
		"tool_call_id": orNull(f.ToolCallID), "is_error": f.IsError, "duration_ms": f.DurationMS,
		"exit_code": f.ExitCode, "truncated": f.Truncated,
	}
}

// bounded cuts what would make the frame larger than [MaxFrameBytes].
func (f Frame) bounded() Frame {
	cut := func(s string, raw int) (string, bool) {
		short := s[:prefixThatFits(s, raw, maxFrameText)]
		return short, len(short) < len(s)
	}
	f.ToolCallID, f.ToolName = clip(f.ToolCallID, maxFrameName), clip(f.ToolName, maxFrameName)
	f.FenceSource = clip(f.FenceSource, maxFrameName)
	f.Text, f.Content = validUTF8(f.Text), validUTF8(f.Content)
	var truncated bool
	switch f.Kind {
	case FrameStatus:
		f.Text, _ = cut(f.Text, maxFrameStatus)
	case FrameResponse:
		f.Text, truncated = cut(f.Text, MaxContentBytes)
	case FrameArtifact:
		f.Content, truncated = cut(f.Content, MaxContentBytes)
	default:
		f.Text, _ = cut(f.Text, math.MaxInt)
	}
	f.Truncated = f.Truncated || truncated
	return f
}

// FitsResponse reports whether a result is a response frame uncut. One that
// does not fit also goes to the object store.
func FitsResponse(result string) bool {
	result = validUTF8(result) // as it is encoded
	return prefixThatFits(result, MaxContentBytes, maxFrameText) == len(result)
}

// Split cuts a text or thinking fragment into frames that each fit. Only the
// first keeps Append, only the last Final.
func (f Frame) Split() []Frame {
	if f.Kind != FrameText && f.Kind != FrameThinking {
		return []Frame{f}
	}
	var frames []Frame
	rest := validUTF8(f.Text)
	for {
		n := prefixThatFits(rest, math.MaxInt, maxFrameText)
		piece := f
		piece.Text, rest = rest[:n], rest[n:]
		piece.Final = f.Final && rest == ""
		if len(frames) > 0 {
			piece.Append = true
		}
		if frames = append(frames, piece); rest == "" {
			return frames
		}
	}
}

// Join appends a neighbouring fragment: two unfinished texts of which the
// second appends, or two thoughts. It reports false where they must stay apart.
func (f Frame) Join(next Frame) (Frame, bool) {
	switch {
	case f.Kind != next.Kind || f.Final || next.Final:
		return f, false
	case f.Kind == FrameText && !next.Append:
		return f, false
	case f.Kind != FrameText && f.Kind != FrameThinking:
		return f, false
	case len(f.Text)+len(next.Text) > maxFrameText/8:
		return f, false
	}
	f.Text += next.Text
	return f, true
}

// prefixThatFits is the length of the longest prefix of s, ended at a
// character, of at most raw bytes that JSON encodes in at most encoded bytes.
func prefixThatFits(s string, raw, encoded int) int {
	if len(s) <= raw && len(s) <= encoded/6 {
		return len(s)
	}
	used := 0
	for i, r := range s {
		size := len(string(r))
		cost := size
		switch {
		case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t' || r == '\b' || r == '\f':
			cost = 2
		case r < 0x20 || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
			cost = 6
		}
		if used += cost; i+size > raw || used > encoded {
			return i
		}
	}
	return len(s)
}

// ReceivedFrame is a frame as an observer reads it.
type ReceivedFrame struct {
	Frame
	Place
	A2A a2a.StreamResponse // the body in the official types
}

// ParseFrame reads a published frame. header looks a header up by its exact
// name and gives "" for an absent one. Errors are [ErrFrame].
func ParseFrame(header func(string) string, body []byte) (ReceivedFrame, error) {
	var r ReceivedFrame
	number := func(name string) (int, error) {
		n, err := strconv.Atoi(header(name))
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%w: header %s is %q", ErrFrame, name, clip(header(name), 32))
		}
		return n, nil
	}
	var err error
	if r.Attempt, err = number(HeaderAttempt); err != nil {
		return ReceivedFrame{}, err
	}
	if r.Seq, err = number(HeaderSeq); err != nil {
		return ReceivedFrame{}, err
	}
	r.SessionID, r.Kind = SessionID(header(HeaderSession)), FrameKind(header(HeaderFrame))
	if trace := header(HeaderTraceparent); ValidTraceparent(trace) {
		r.Traceparent = trace
	}
	if err := json.Unmarshal(body, &r.A2A); err != nil {
		return ReceivedFrame{}, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	switch e := r.A2A.Event.(type) {
	case *a2a.TaskStatusUpdateEvent:
		err = r.readStatus(e)
	case *a2a.TaskArtifactUpdateEvent:
		err = r.readArtifact(e)
	default:
		err = fmt.Errorf("%w: it is neither a statusUpdate nor an artifactUpdate", ErrFrame)
	}
	return r, err
}

func (r *ReceivedFrame) readStatus(e *a2a.TaskStatusUpdateEvent) error {
	r.TaskID, r.ContextID, r.State = TaskID(e.TaskID), ContextID(e.ContextID), e.Status.State
	if e.Status.Timestamp != nil {
		r.Time = *e.Status.Timestamp
	}
	if e.Status.Message == nil || len(e.Status.Message.Parts) == 0 {
		return nil
	}
	if slices.Contains(e.Status.Message.Parts, nil) {
		return fmt.Errorf("%w: a part of its message is null", ErrFrame)
	}
	part := e.Status.Message.Parts[0]
	r.Text = part.Text()
	members, ok := part.Data().(map[string]any)
	if !ok {
		return nil
	}
	raw, err := json.Marshal(members)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFrame, err)
	}
	var data struct {
		ToolCallID  string `json:"tool_call_id"`
		ToolName    string `json:"tool_name"`
		InputBytes  int64  `json:"input_bytes"`
		Content     string `json:"content"`
		FenceSource string `json:"fence_source"`
		IsError     bool   `json:"is_error"`
		DurationMS  *int64 `json:"duration_ms"`
		ExitCode    *int   `json:"exit_code"`
		Truncated   bool   `json:"truncated"`
	}
	if err := unmarshalExact(raw, &data); err != nil {
		return fmt.Errorf("%w: %w", ErrFrame, err)
	}
	r.ToolCallID, r.ToolName, r.InputBytes = data.ToolCallID, data.ToolName, data.InputBytes
	r.Content, r.FenceSource, r.IsError = data.Content, data.FenceSource, data.IsError
	r.DurationMS, r.ExitCode, r.Truncated = data.DurationMS, data.ExitCode, data.Truncated
	return nil
}

func (r *ReceivedFrame) readArtifact(e *a2a.TaskArtifactUpdateEvent) error {
	r.TaskID, r.ContextID, r.State = TaskID(e.TaskID), ContextID(e.ContextID), a2a.TaskStateWorking
	if e.Artifact == nil || len(e.Artifact.Parts) == 0 || slices.Contains(e.Artifact.Parts, nil) {
		return fmt.Errorf("%w: its artifact has no part, or a null one", ErrFrame)
	}
	r.Text, r.Append, r.Final = e.Artifact.Parts[0].Text(), e.Append, e.LastChunk
	ext, _ := e.Metadata[StreamExtension].(map[string]any)
	r.Truncated, _ = ext["truncated"].(bool)
	if object, ok := ext["object"].(map[string]any); ok {
		raw, err := json.Marshal(object)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFrame, err)
		}
		r.Object = &ResultObject{}
		if err := unmarshalExact(raw, r.Object); err != nil {
			return fmt.Errorf("%w: %w", ErrFrame, err)
		}
	}
	return nil
}
