package worker

import (
	"fmt"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"starling/protocol"
)

// progressInterval is the least time between two progress frames of one call.
const progressInterval = 250 * time.Millisecond

// Segments is the segment machine: it turns the driver events of one attempt
// into frames and ends with the attempt's ending. It is pure: time comes in
// with each event and nothing is kept running. It is used by one goroutine.
//
// Source: docs/protocol.md, section 7, "The segment machine"; the names of the
// state follow it.
type Segments struct {
	cfg SegmentConfig

	open             bool
	streamedText     bool // T
	cursorOwed       bool // C
	streamedThinking bool // H

	turns    int64 // turns begun
	turnOpen bool
	calls    map[string]*toolCall
	hooks    []protocol.Frame

	// What an exit without a terminal event answers with: the last whole text
	// since the last result of a known call, or else the fragments.
	lastWhole *string
	fragments strings.Builder

	interrupted bool
	killed      bool
	ended       bool // by a terminal event, a budget, or the guest's end
	result      string
	failure     string // of a failed attempt
	refused     bool   // a budget ended the attempt: the guest must be stopped
}

// SegmentConfig is what a capsule may spend. Zero MaxTokens is no ceiling.
type SegmentConfig struct {
	MaxTurns  int64
	MaxTokens int64
	Silent    bool // no task or no context: frames are suppressed, state still moves
}

// toolCall is a call from its announcement to its answer.
type toolCall struct {
	name      string
	complete  bool
	answered  bool
	completed time.Time

	inputBytes int64     // last report
	held       bool      // that report is not on the wire
	framed     bool      // a progress frame was written, at:
	lastFrame  time.Time // …
}

// NewSegments starts the machine of one attempt, everything false.
func NewSegments(cfg SegmentConfig) *Segments {
	return &Segments{cfg: cfg, calls: make(map[string]*toolCall)}
}

// Event takes one driver event at the given time and returns the frames it
// writes, in order.
func (s *Segments) Event(now time.Time, e protocol.Event) []protocol.Frame {
	if s.ended {
		return nil
	}
	w := &frameWriter{silent: s.cfg.Silent}
	if s.overBudget(e) {
		s.fail(w, protocol.MaxTurnsMessage(s.cfg.MaxTurns))
		s.refused = true
		return w.frames
	}
	switch e.Kind {
	case protocol.EventTextDelta:
		appends := s.streamedText
		if !s.open {
			s.openSegment(w)
			appends = false
		}
		w.text(e.Text, appends, false)
		s.streamedText, s.cursorOwed = true, true
		s.fragments.WriteString(e.Text)
	case protocol.EventText:
		s.openSegmentOr(w, s.pay)
		s.lastWhole = &e.Text
	case protocol.EventThinkingDelta:
		s.openSegmentOr(w, nil)
		w.thinking(e.Text)
		s.streamedThinking = true
	case protocol.EventThinking:
		wasOpen := s.open
		s.openSegmentOr(w, nil)
		if !wasOpen || !s.streamedThinking {
			w.thinking(e.Text)
		}
	case protocol.EventToolCallStarted:
		s.callStarted(w, e)
	case protocol.EventToolCallProgress:
		s.callProgress(w, now, e)
	case protocol.EventToolCall:
		s.callCompleted(w, now, e)
	case protocol.EventToolResult:
		s.callAnswered(w, now, e)
	case protocol.EventUsage:
		s.spend(w, e.Usage)
	case protocol.EventTurnEnd:
		s.finish(w, e.Result)
	case protocol.EventTurnFailed:
		s.fail(w, e.Message)
	}
	return w.frames
}

// overBudget opens and closes turns and reports an event that would open one
// too many. A turn opens at the first whole text or complete call since the
// start or the last result, and any result closes it.
func (s *Segments) overBudget(e protocol.Event) bool {
	switch e.Kind {
	case protocol.EventText, protocol.EventToolCall:
		if s.turnOpen {
			return false
		}
		if s.turns >= s.cfg.MaxTurns {
			return true
		}
		s.turns++
		s.turnOpen = true
	case protocol.EventToolResult, protocol.EventTurnEnd, protocol.EventTurnFailed:
		s.turnOpen = false
	}
	return false
}

// openSegment is OPEN of a closed segment.
func (s *Segments) openSegment(w *frameWriter) {
	n := s.turns
	if !s.turnOpen {
		n++
	}
	s.open, s.streamedText, s.cursorOwed, s.streamedThinking = true, false, false, false
	w.status(fmt.Sprintf("inference turn %d", n))
}

// openSegmentOr opens a closed segment, or does what an open one asks for.
func (s *Segments) openSegmentOr(w *frameWriter, whenOpen func(*frameWriter)) {
	if !s.open {
		s.openSegment(w)
	} else if whenOpen != nil {
		whenOpen(w)
	}
}

// pay is PAY: it ends the streamed text that a client still shows a cursor for.
func (s *Segments) pay(w *frameWriter) {
	if s.cursorOwed {
		s.cursorOwed = false
		w.text("", s.streamedText, true)
	}
}

func (s *Segments) callStarted(w *frameWriter, e protocol.Event) {
	if e.ID == "" || s.calls[e.ID] != nil {
		return
	}
	s.openSegmentOr(w, nil)
	s.calls[e.ID] = &toolCall{name: e.Name}
	w.add(protocol.Frame{Kind: protocol.FrameToolCallStarted, ToolCallID: e.ID, ToolName: e.Name})
}

func (s *Segments) callProgress(w *frameWriter, now time.Time, e protocol.Event) {
	call := s.calls[e.ID]
	if call == nil || call.complete || e.InputBytes <= call.inputBytes {
		return
	}
	call.inputBytes, call.held = e.InputBytes, true
	if !call.framed || now.Sub(call.lastFrame) >= progressInterval {
		s.writeProgress(w, now, e.ID, call)
	}
}

func (s *Segments) writeProgress(w *frameWriter, now time.Time, id string, call *toolCall) {
	if call.held {
		call.held, call.framed, call.lastFrame = false, true, now
		w.add(protocol.Frame{Kind: protocol.FrameToolCallProgress, ToolCallID: id, InputBytes: call.inputBytes})
	}
}

func (s *Segments) callCompleted(w *frameWriter, now time.Time, e protocol.Event) {
	s.openSegmentOr(w, nil)
	call := s.calls[e.ID]
	if call == nil || e.ID == "" {
		// Calls without an id follow one another under the empty one.
		call = &toolCall{}
		s.calls[e.ID] = call
	}
	if call.complete {
		return
	}
	s.writeProgress(w, now, e.ID, call)
	call.name, call.complete, call.completed = e.Name, true, now
}

func (s *Segments) callAnswered(w *frameWriter, now time.Time, e protocol.Event) {
	call := s.calls[e.ID]
	if call == nil || !call.complete || call.answered {
		return
	}
	s.pay(w)
	took := now.Sub(call.completed).Milliseconds()
	w.add(protocol.Frame{
		Kind: protocol.FrameArtifact, ToolCallID: e.ID, ToolName: call.name, Content: e.Output,
		IsError: e.IsError, DurationMS: &took,
	})
	s.open, call.answered = false, true
	s.lastWhole = nil
	s.fragments.Reset()
}

// spend ends an attempt that went past its ceiling.
// max_session_tokens is a maximum: a session that used exactly that much goes on.
func (s *Segments) spend(w *frameWriter, u protocol.Usage) {
	if s.cfg.MaxTokens > 0 && u.Spent() > s.cfg.MaxTokens {
		s.fail(w, protocol.SpendMessage(s.cfg.MaxTokens, u.Spent()))
		s.refused = true
	}
}

func (s *Segments) finish(w *frameWriter, result string) {
	s.pay(w)
	if !s.interrupted {
		w.frames = append(w.frames, s.hooks...)
		if !s.streamedText && result != "" {
			w.text(result, false, true)
		}
	}
	s.open, s.ended, s.result = false, true, result
}

func (s *Segments) fail(w *frameWriter, message string) {
	s.pay(w)
	s.open, s.ended, s.failure = false, true, protocol.Bound(message)
	if s.failure == "" {
		s.failure = "the turn failed and gave no message"
	}
}

// Interrupt says that a cancel was accepted: it wins over whatever the guest
// says from now on.
func (s *Segments) Interrupt() {
	if !s.ended {
		s.interrupted = true
	}
}

// Hook keeps what an on-inference hook returned for the turn that is about to
// end.
func (s *Segments) Hook(name, payload string) {
	if !s.cfg.Silent {
		s.hooks = append(s.hooks, protocol.Frame{Kind: protocol.FrameArtifact, ToolName: name, Content: payload})
	}
}

// Exited says that the guest ended by itself. Status 0 without a terminal event
// ends the turn with answer, or with what the guest last said when answer is
// nil; another status fails it.
func (s *Segments) Exited(status int, lastStderrLine string, answer *string) []protocol.Frame {
	if s.ended {
		return nil
	}
	w := &frameWriter{silent: s.cfg.Silent}
	switch {
	case status != 0:
		s.fail(w, protocol.ExitMessage(status, lastStderrLine))
	case answer != nil:
		s.finish(w, *answer)
	case s.lastWhole != nil:
		s.finish(w, *s.lastWhole)
	default:
		s.finish(w, s.fragments.String())
	}
	return w.frames
}

// Killed says that the guest was stopped without a terminal event: it trapped,
// hit a limit (message says which), or a cancel had to kill it.
func (s *Segments) Killed(message string) []protocol.Frame {
	if s.ended {
		return nil
	}
	s.killed = true
	w := &frameWriter{silent: s.cfg.Silent}
	s.fail(w, message)
	return w.frames
}

// Refused reports whether a budget ended the attempt, so that the guest must be
// stopped.
func (s *Segments) Refused() bool { return s.refused }

// Ended reports whether the attempt has its ending: later events are ignored.
func (s *Segments) Ended() bool { return s.ended }

// Ending is the attempt's ending and, when it finished, its response. Call it
// once the guest is gone.
func (s *Segments) Ending() (ending protocol.Ending, response *string) {
	switch {
	case s.interrupted && s.killed:
		return protocol.Ending{State: a2a.TaskStateCanceled, Message: protocol.MessageCanceledKilled}, nil
	case s.interrupted:
		return protocol.Ending{State: a2a.TaskStateCanceled, Message: protocol.MessageCanceled}, nil
	case s.failure != "":
		return protocol.Ending{State: a2a.TaskStateFailed, Message: s.failure}, nil
	}
	return protocol.Ending{State: a2a.TaskStateCompleted, Message: protocol.MessageSessionEnded}, &s.result
}

// frameWriter collects the frames of one event.
type frameWriter struct {
	silent bool
	frames []protocol.Frame
}

func (w *frameWriter) add(f protocol.Frame) {
	if !w.silent {
		w.frames = append(w.frames, f)
	}
}

func (w *frameWriter) status(text string) {
	w.add(protocol.Frame{Kind: protocol.FrameStatus, State: a2a.TaskStateWorking, Text: text})
}

func (w *frameWriter) text(text string, appends, final bool) {
	w.add(protocol.Frame{Kind: protocol.FrameText, Text: text, Append: appends, Final: final})
}

func (w *frameWriter) thinking(text string) {
	w.add(protocol.Frame{Kind: protocol.FrameThinking, Text: text})
}
