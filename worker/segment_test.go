package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/worker"
)

// Events of the tables.
func textDelta(s string) protocol.Event {
	return protocol.Event{Kind: protocol.EventTextDelta, Text: s}
}

func thinkingDelta(s string) protocol.Event {
	return protocol.Event{Kind: protocol.EventThinkingDelta, Text: s}
}

func wholeText(s string) protocol.Event { return protocol.Event{Kind: protocol.EventText, Text: s} }
func thinking(s string) protocol.Event  { return protocol.Event{Kind: protocol.EventThinking, Text: s} }

func turnEnd(s string) protocol.Event { return protocol.Event{Kind: protocol.EventTurnEnd, Result: s} }

func turnFailed(s string) protocol.Event {
	return protocol.Event{Kind: protocol.EventTurnFailed, Message: s}
}

func started(id string) protocol.Event {
	return protocol.Event{Kind: protocol.EventToolCallStarted, ID: id, Name: "tool"}
}

func progress(id string, bytes int64) protocol.Event {
	return protocol.Event{Kind: protocol.EventToolCallProgress, ID: id, InputBytes: bytes}
}

func call(id string) protocol.Event {
	return protocol.Event{Kind: protocol.EventToolCall, ID: id, Name: "tool"}
}

func result(id string) protocol.Event {
	return protocol.Event{Kind: protocol.EventToolResult, ID: id, Output: "output"}
}

func usage(input, output int64) protocol.Event {
	return protocol.Event{Kind: protocol.EventUsage, Usage: protocol.Usage{Input: input, Output: output}}
}

// show is a frame in one line.
func show(f protocol.Frame) string {
	switch f.Kind {
	case protocol.FrameText:
		return fmt.Sprintf("text %q append %t final %t", f.Text, f.Append, f.Final)
	case protocol.FrameThinking:
		return fmt.Sprintf("thinking %q", f.Text)
	case protocol.FrameToolCallStarted:
		return fmt.Sprintf("started %s %s", f.ToolCallID, f.ToolName)
	case protocol.FrameToolCallProgress:
		return fmt.Sprintf("progress %s %d", f.ToolCallID, f.InputBytes)
	case protocol.FrameArtifact:
		return fmt.Sprintf("artifact %s %s %s", f.ToolCallID, f.ToolName, f.Content)
	}
	return f.Text
}

func showAll(frames []protocol.Frame) []string {
	lines := []string{}
	for _, f := range frames {
		lines = append(lines, show(f))
	}
	return lines
}

var atStart = time.Unix(1000, 0)

// machine is one that has taken the events, a second apart.
func machine(cfg worker.SegmentConfig, events ...protocol.Event) *worker.Segments {
	m := worker.NewSegments(cfg)
	for i, e := range events {
		m.Event(atStart.Add(time.Duration(i)*time.Second), e)
	}
	return m
}

// state is the machine's, found out by what it does next.
type state struct{ open, T, C, H bool }

func stateAfter(events ...protocol.Event) state {
	next := func(e protocol.Event) []string {
		m := machine(worker.SegmentConfig{MaxTurns: 100}, events...)
		return showAll(m.Event(atStart.Add(time.Hour), e))
	}
	return state{
		open: len(next(thinkingDelta("?"))) == 1,
		T:    !contains(next(turnEnd("?")), `text "?" append false final true`),
		C:    contains(next(turnFailed("?")), `text "" append true final true`),
		H:    len(next(thinking("?"))) == 0,
	}
}

func contains(lines []string, want string) bool {
	for _, line := range lines {
		if line == want {
			return true
		}
	}
	return false
}

const open1 = "inference turn 1"

// TestSegmentRows is the table of section 7, row by row, closed and open. The
// open segment is one that streamed text: T and C are set.
func TestSegmentRows(t *testing.T) {
	t.Parallel()
	const pay = `text "" append true final true`
	streamed := state{open: true, T: true, C: true}
	closed := []protocol.Event(nil)
	opened := []protocol.Event{textDelta("before")}
	for _, row := range []struct {
		name   string
		before []protocol.Event
		event  protocol.Event
		frames []string
		after  state
	}{
		{"text-delta, closed", closed, textDelta("t"), []string{open1, `text "t" append false final false`}, streamed},
		{"text-delta, open", opened, textDelta("t"), []string{`text "t" append true final false`}, streamed},
		{"text-delta, open without text", []protocol.Event{thinkingDelta("h")}, textDelta("t"), []string{`text "t" append false final false`}, state{true, true, true, true}},
		{"an empty text-delta, closed", closed, textDelta(""), []string{open1, `text "" append false final false`}, streamed},
		{"text, closed", closed, wholeText("t"), []string{open1}, state{open: true}},
		{"text, open", opened, wholeText("t"), []string{pay}, state{open: true, T: true}},
		{"text, open and paid", []protocol.Event{textDelta("a"), wholeText("a")}, wholeText("t"), nil, state{open: true, T: true}},
		{"thinking-delta, closed", closed, thinkingDelta("t"), []string{open1, `thinking "t"`}, state{open: true, H: true}},
		{"thinking-delta, open", opened, thinkingDelta("t"), []string{`thinking "t"`}, state{true, true, true, true}},
		{"thinking, closed", closed, thinking("t"), []string{open1, `thinking "t"`}, state{open: true}},
		{"thinking, open and none streamed", opened, thinking("t"), []string{`thinking "t"`}, streamed},
		{"thinking, open and streamed", []protocol.Event{thinkingDelta("t")}, thinking("t"), nil, state{open: true, H: true}},
		{"tool-call-started without an id, closed", closed, started(""), nil, state{}},
		{"tool-call-started without an id, open", opened, started(""), nil, streamed},
		{"tool-call-started of a started call", []protocol.Event{started("c"), textDelta("x")}, started("c"), nil, streamed},
		{"tool-call-started of a completed call", []protocol.Event{call("c"), textDelta("x")}, started("c"), nil, streamed},
		{"tool-call-started of an answered call", []protocol.Event{call("c"), result("c")}, started("c"), nil, state{}},
		{"tool-call-started, new and closed", closed, started("c"), []string{open1, "started c tool"}, state{open: true}},
		{"tool-call-started, new and open", opened, started("c"), []string{"started c tool"}, streamed},
		{"tool-call-progress, closed", []protocol.Event{started("c"), call("d"), result("d")}, progress("c", 5), []string{"progress c 5"}, state{}},
		{"tool-call-progress, open", []protocol.Event{textDelta("x"), started("c")}, progress("c", 5), []string{"progress c 5"}, streamed},
		{"tool-call, closed", closed, call("c"), []string{open1}, state{open: true}},
		{"tool-call, open", opened, call("c"), nil, streamed},
		{"tool-call, a second time", []protocol.Event{call("c")}, call("c"), nil, state{open: true}},
		{"tool-result of a known call, open", []protocol.Event{textDelta("x"), call("c")}, result("c"), []string{pay, "artifact c tool output"}, state{T: true}},
		{"tool-result of a known call, closed", []protocol.Event{textDelta("x"), call("c"), call("d"), result("d")}, result("c"), []string{"artifact c tool output"}, state{T: true}},
		{"tool-result of an unknown call, closed", closed, result("c"), nil, state{}},
		{"tool-result of an unknown call, open", opened, result("c"), nil, streamed},
		{"tool-result of an announced call", []protocol.Event{started("c")}, result("c"), nil, state{open: true}},
		{"tool-result of an answered call", []protocol.Event{call("c"), result("c"), textDelta("x")}, result("c"), nil, streamed},
		{"usage, closed", closed, usage(1, 1), nil, state{}},
		{"note, open", opened, protocol.Event{Kind: protocol.EventNote, Text: "n"}, nil, streamed},
		{"retry, open", opened, protocol.Event{Kind: protocol.EventRetry, Reason: "r"}, nil, streamed},
		{"session-started, closed", closed, protocol.Event{Kind: protocol.EventSessionStarted, ID: "s"}, nil, state{}},
		// T, C and H survive the closing of a segment; the next opening clears them.
		{"an opening clears", []protocol.Event{thinkingDelta("h"), textDelta("x"), call("c"), result("c")}, started("d"), []string{"inference turn 2", "started d tool"}, state{open: true}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m := machine(worker.SegmentConfig{MaxTurns: 100}, row.before...)
			if diff := cmp.Diff(append([]string{}, row.frames...), showAll(m.Event(atStart.Add(time.Minute), row.event))); diff != "" {
				t.Errorf("frames (-want +got):\n%s", diff)
			}
			if got := stateAfter(append(append([]protocol.Event{}, row.before...), row.event)...); got != row.after {
				t.Errorf("state = %+v, want %+v", got, row.after)
			}
		})
	}
}

// TestSegmentEnds are the rows of the terminal events: what ends an attempt
// writes, and that nothing follows.
func TestSegmentEnds(t *testing.T) {
	t.Parallel()
	const pay = `text "" append true final true`
	closedT := []protocol.Event{textDelta("x"), call("c"), result("c")} // closed, T
	interrupt := func(m *worker.Segments) { m.Interrupt() }
	hook := func(m *worker.Segments) { m.Hook("hook", "payload") }
	for _, row := range []struct {
		name   string
		before []protocol.Event
		and    func(*worker.Segments)
		event  protocol.Event
		frames []string
		state  string
		says   string
	}{
		{"turn-end, nothing streamed", nil, nil, turnEnd("r"), []string{`text "r" append false final true`}, "COMPLETED", "session ended"},
		{"turn-end, nothing to say", nil, nil, turnEnd(""), nil, "COMPLETED", "session ended"},
		{"turn-end, open and streamed", []protocol.Event{textDelta("x")}, nil, turnEnd("r"), []string{pay}, "COMPLETED", "session ended"},
		{"turn-end, open and not streamed", []protocol.Event{wholeText("x")}, nil, turnEnd("r"), []string{`text "r" append false final true`}, "COMPLETED", "session ended"},
		{"turn-end, closed and streamed", closedT, nil, turnEnd("r"), nil, "COMPLETED", "session ended"},
		{"turn-end with a hook", []protocol.Event{textDelta("x")}, hook, turnEnd("r"), []string{pay, "artifact  hook payload"}, "COMPLETED", "session ended"},
		{"turn-end with a hook and an answer", nil, hook, turnEnd("r"), []string{"artifact  hook payload", `text "r" append false final true`}, "COMPLETED", "session ended"},
		{"turn-end, interrupted", []protocol.Event{textDelta("x")}, interrupt, turnEnd("r"), []string{pay}, "CANCELED", "task canceled"},
		{"turn-end, interrupted, nothing streamed", nil, interrupt, turnEnd("r"), nil, "CANCELED", "task canceled"},
		{"turn-end, interrupted, with a hook", nil, func(m *worker.Segments) { m.Hook("hook", "payload"); m.Interrupt() }, turnEnd("r"), nil, "CANCELED", "task canceled"},
		{"turn-failed, closed", nil, nil, turnFailed("why"), nil, "FAILED", "why"},
		{"turn-failed, open", []protocol.Event{textDelta("x")}, nil, turnFailed("why"), []string{pay}, "FAILED", "why"},
		{"turn-failed, interrupted", nil, interrupt, turnFailed("why"), nil, "CANCELED", "task canceled"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m := machine(worker.SegmentConfig{MaxTurns: 100}, row.before...)
			if row.and != nil {
				row.and(m)
			}
			if diff := cmp.Diff(append([]string{}, row.frames...), showAll(m.Event(atStart.Add(time.Minute), row.event))); diff != "" {
				t.Errorf("frames (-want +got):\n%s", diff)
			}
			ending, response := m.Ending()
			if string(ending.State) != "TASK_STATE_"+row.state || ending.Message != row.says {
				t.Errorf("Ending() = %s %q, want %s %q", ending.State, ending.Message, row.state, row.says)
			}
			if (response != nil) != (row.state == "COMPLETED") || response != nil && *response != row.event.Result {
				t.Errorf("response = %v, want one exactly of a finished attempt", response)
			}
			m.Interrupt() // too late
			for _, e := range []protocol.Event{textDelta("x"), wholeText("x"), call("z"), started("y"), turnEnd("other"), turnFailed("other")} {
				if frames := m.Event(atStart.Add(time.Hour), e); len(frames) != 0 {
					t.Errorf("%s after the end writes %v", e.Kind, showAll(frames))
				}
			}
			if frames := append(m.Killed("late"), m.Exited(1, "late", nil)...); len(frames) != 0 {
				t.Errorf("an end after the end writes %v", showAll(frames))
			}
			if again, _ := m.Ending(); again != ending {
				t.Errorf("Ending() = %+v later, want %+v as before", again, ending)
			}
		})
	}
}

// TestEndWithoutATerminalEvent ends as turn-failed does, or with what a guest
// that exited said last.
func TestEndWithoutATerminalEvent(t *testing.T) {
	t.Parallel()
	answer := "from the file"
	for _, row := range []struct {
		name     string
		before   []protocol.Event
		end      func(*worker.Segments) []protocol.Frame
		frames   []string
		ending   string
		response string
	}{
		{"killed, open", []protocol.Event{textDelta("x")}, func(m *worker.Segments) []protocol.Frame { return m.Killed("why") }, []string{`text "" append true final true`}, "TASK_STATE_FAILED why", ""},
		{"killed, canceled", nil, func(m *worker.Segments) []protocol.Frame { m.Interrupt(); return m.Killed("why") }, nil, "TASK_STATE_CANCELED " + wasKilled, ""},
		{"status", nil, func(m *worker.Segments) []protocol.Frame { return m.Exited(4, "", nil) }, nil, "TASK_STATE_FAILED exit status 4", ""},
		{"status and stderr", nil, func(m *worker.Segments) []protocol.Frame { return m.Exited(4, "oh", &answer) }, nil, "TASK_STATE_FAILED exit status 4: oh", ""},
		{"exit, a result file", []protocol.Event{wholeText("x")}, func(m *worker.Segments) []protocol.Frame { return m.Exited(0, "oh", &answer) }, []string{`text "from the file" append false final true`}, "TASK_STATE_COMPLETED session ended", answer},
		{"exit, a whole text", []protocol.Event{textDelta("a"), wholeText("b"), textDelta("c")}, func(m *worker.Segments) []protocol.Frame { return m.Exited(0, "", nil) }, []string{`text "" append true final true`}, "TASK_STATE_COMPLETED session ended", "b"},
		{"exit, fragments", []protocol.Event{textDelta("a"), textDelta("b")}, func(m *worker.Segments) []protocol.Frame { return m.Exited(0, "", nil) }, []string{`text "" append true final true`}, "TASK_STATE_COMPLETED session ended", "ab"},
		{"exit, fragments since the last result", []protocol.Event{textDelta("a"), call("c"), result("c"), textDelta("b")}, func(m *worker.Segments) []protocol.Frame { return m.Exited(0, "", nil) }, []string{`text "" append true final true`}, "TASK_STATE_COMPLETED session ended", "b"},
		{"exit, an unknown result cuts nothing", []protocol.Event{textDelta("a"), result("c"), textDelta("b")}, func(m *worker.Segments) []protocol.Frame { return m.Exited(0, "", nil) }, []string{`text "" append true final true`}, "TASK_STATE_COMPLETED session ended", "ab"},
		{"exit, nothing", nil, func(m *worker.Segments) []protocol.Frame { return m.Exited(0, "", nil) }, nil, "TASK_STATE_COMPLETED session ended", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m := machine(worker.SegmentConfig{MaxTurns: 100}, row.before...)
			if diff := cmp.Diff(append([]string{}, row.frames...), showAll(row.end(m))); diff != "" {
				t.Errorf("frames (-want +got):\n%s", diff)
			}
			ending, response := m.Ending()
			if got := string(ending.State) + " " + ending.Message; got != row.ending {
				t.Errorf("Ending() = %s, want %s", got, row.ending)
			}
			if response != nil && *response != row.response {
				t.Errorf("response = %q, want %q", *response, row.response)
			}
		})
	}
}
