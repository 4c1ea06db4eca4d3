package worker_test

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/worker"
)

// TestProgressRules is the paragraph on progress of section 7.
func TestProgressRules(t *testing.T) {
	t.Parallel()
	type at struct {
		ms    int
		event protocol.Event
	}
	for _, c := range []struct {
		name   string
		events []at
		frames []string
	}{
		{"the first is due", []at{{0, started("c")}, {1, progress("c", 1)}}, []string{"progress c 1"}},
		{"held within 250 ms of the last frame", []at{{0, started("c")}, {0, progress("c", 1)}, {249, progress("c", 2)}}, []string{"progress c 1"}},
		{"due at 250 ms", []at{{0, started("c")}, {0, progress("c", 1)}, {250, progress("c", 2)}}, []string{"progress c 1", "progress c 2"}},
		{"since the last frame, not the last report", []at{{0, started("c")}, {0, progress("c", 1)}, {200, progress("c", 2)}, {260, progress("c", 3)}}, []string{"progress c 1", "progress c 3"}},
		{"held bytes go at completion, once", []at{{0, started("c")}, {0, progress("c", 1)}, {10, progress("c", 2)}, {20, progress("c", 3)}, {30, call("c")}, {31, call("c")}}, []string{"progress c 1", "progress c 3"}},
		{"nothing held, nothing at completion", []at{{0, started("c")}, {0, progress("c", 1)}, {30, call("c")}}, []string{"progress c 1"}},
		{"not larger is ignored", []at{{0, started("c")}, {0, progress("c", 5)}, {300, progress("c", 5)}, {600, progress("c", 4)}}, []string{"progress c 5"}},
		{"zero is not larger than nothing", []at{{0, started("c")}, {0, progress("c", 0)}}, nil},
		{"of a call that nobody began", []at{{0, progress("c", 5)}}, nil},
		{"of a complete call", []at{{0, started("c")}, {0, call("c")}, {300, progress("c", 5)}}, nil},
		{"of an answered call", []at{{0, started("c")}, {0, call("c")}, {1, result("c")}, {300, progress("c", 5)}}, nil},
		{"each call has its own clock", []at{{0, started("c")}, {0, started("d")}, {0, progress("c", 1)}, {100, progress("d", 1)}, {260, progress("c", 2)}, {270, progress("d", 2)}}, []string{"progress c 1", "progress d 1", "progress c 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := worker.NewSegments(worker.SegmentConfig{MaxTurns: 10})
			var got []string
			for _, e := range c.events {
				for _, f := range m.Event(atStart.Add(time.Duration(e.ms)*time.Millisecond), e.event) {
					if f.Kind == protocol.FrameToolCallProgress {
						got = append(got, show(f))
					}
				}
			}
			if diff := cmp.Diff(c.frames, got); diff != "" {
				t.Errorf("frames (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOpenNumbersTurns: the open turn's number, else turns so far + 1; it reads
// the counter and never advances it.
func TestOpenNumbersTurns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		events []protocol.Event
		opens  []string
	}{
		{"a delta opens what the turn will be", []protocol.Event{textDelta("a"), wholeText("a")}, []string{"1"}},
		{"a whole text opens its own turn", []protocol.Event{wholeText("a")}, []string{"1"}},
		{"opening does not advance", []protocol.Event{thinkingDelta("a"), call("c"), result("c"), thinkingDelta("b")}, []string{"1", "2"}},
		{"deltas alone make no turn", []protocol.Event{textDelta("a"), call("c"), result("c"), textDelta("b"), turnEnd("")}, []string{"1", "2"}},
		{"a second segment inside an open turn", []protocol.Event{call("c"), call("d"), result("c"), call("e")}, []string{"1", "2"}},
		{"an unknown result closes the turn, not the segment", []protocol.Event{wholeText("a"), result("x"), wholeText("b"), call("c"), result("c"), textDelta("c")}, []string{"1", "3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := worker.NewSegments(worker.SegmentConfig{MaxTurns: 10})
			var got []string
			for _, e := range c.events {
				for _, f := range m.Event(atStart, e) {
					if n, ok := strings.CutPrefix(f.Text, "inference turn "); ok && f.Kind == protocol.FrameStatus {
						got = append(got, n)
					}
				}
			}
			if diff := cmp.Diff(c.opens, got); diff != "" {
				t.Errorf("turns (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBudgets are max_turns and max_session_tokens, at their edge and past it.
func TestBudgets(t *testing.T) {
	t.Parallel()
	const spent = "spend ceiling reached: inference.max_session_tokens is 100 and this session has used 101; the operator set this limit; retrying will not get past it."
	const turns = "max_turns exceeded: the task used all 2 inference turns"
	two := []protocol.Event{wholeText("1"), result("x"), call("c"), result("c")}
	for _, c := range []struct {
		name   string
		events []protocol.Event
		want   string // of the failure; "" when it goes on
		frames []string
	}{
		{"exactly max_session_tokens", []protocol.Event{usage(60, 40)}, "", nil},
		{"one token past it", []protocol.Event{usage(60, 41)}, spent, nil},
		{"it counts input and output alone", []protocol.Event{{Kind: protocol.EventUsage, Usage: protocol.Usage{Input: 1, CacheRead: 500, CacheCreation: 500, Thinking: 500}}}, "", nil},
		{"usage is cumulative", []protocol.Event{usage(60, 0), usage(70, 0), usage(80, 20)}, "", nil},
		{"past it, what is owed is paid", []protocol.Event{textDelta("a"), usage(101, 0)}, spent, []string{`text "" append true final true`}},
		{"exactly max_turns", two, "", nil},
		{"a text past it", append(two[:4:4], wholeText("3")), turns, nil},
		{"a call past it", append(two[:4:4], call("d")), turns, nil},
		{"deltas past it are streamed", append(two[:4:4], textDelta("3")), "", []string{"inference turn 3", `text "3" append false final false`}},
		{"past it, what is owed is paid, too", append(two[:4:4], textDelta("3"), wholeText("3")), turns, []string{`text "" append true final true`}},
		{"texts of one turn are one", append(two[:3:3], wholeText("2"), call("e"), wholeText("2")), "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := worker.NewSegments(worker.SegmentConfig{MaxTurns: 2, MaxTokens: 100})
			var last []protocol.Frame
			for _, e := range c.events {
				last = m.Event(atStart, e)
			}
			if c.frames != nil || c.want != "" {
				if diff := cmp.Diff(append([]string{}, c.frames...), showAll(last)); diff != "" {
					t.Errorf("frames of the last event (-want +got):\n%s", diff)
				}
			}
			if m.Ended() != (c.want != "") || m.Refused() != (c.want != "") {
				t.Errorf("Ended() = %t, Refused() = %t, want %t", m.Ended(), m.Refused(), c.want != "")
			}
			if ending, _ := m.Ending(); c.want != "" && (ending.Message != c.want || ending.State != "TASK_STATE_FAILED") {
				t.Errorf("Ending() = %+v, want failed, %q", ending, c.want)
			}
		})
	}
}

// randomEvent is one of all kinds, on few ids, so that they meet.
func randomEvent(r *rand.Rand) protocol.Event {
	id := strconv.Itoa(r.IntN(4))
	if id == "3" {
		id = ""
	}
	switch r.IntN(14) {
	case 0, 1:
		return textDelta("d" + id)
	case 2:
		return wholeText("w")
	case 3:
		return thinkingDelta("h")
	case 4:
		return thinking("H")
	case 5, 6:
		return started(id)
	case 7:
		return progress(id, r.Int64N(100))
	case 8, 9:
		return call(id)
	case 10, 11:
		return result(id)
	case 12:
		return usage(r.Int64N(20), 1)
	}
	if r.IntN(8) > 0 {
		return protocol.Event{Kind: protocol.EventNote, Text: "n"}
	}
	if r.IntN(2) == 0 {
		return turnEnd("r")
	}
	return turnFailed("f")
}

// FuzzSegments holds random sessions against what is true of every frame.
func FuzzSegments(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, 60)
	}
	f.Fuzz(func(t *testing.T, seed uint64, length int) {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := worker.SegmentConfig{MaxTurns: 1 + r.Int64N(12), MaxTokens: r.Int64N(30)}
		silent := cfg
		silent.Silent = true
		said, mute := worker.NewSegments(cfg), worker.NewSegments(silent)
		now, inv := atStart, invariants{t: t}
		for range length % 500 {
			now = now.Add(time.Duration(r.IntN(300)) * time.Millisecond)
			e := randomEvent(r)
			if r.IntN(200) == 0 {
				said.Interrupt()
				mute.Interrupt()
			}
			ended := said.Ended()
			frames := said.Event(now, e)
			inv.check(frames, ended)
			if quiet := mute.Event(now, e); len(quiet) != 0 {
				t.Fatalf("without ids %s writes %v", e.Kind, showAll(quiet))
			}
			if said.Ended() != mute.Ended() || said.Refused() != mute.Refused() {
				t.Fatalf("without ids the state differs after %s", e.Kind)
			}
		}
		ended := said.Ended()
		inv.check(said.Killed("killed"), ended)
		if quiet := mute.Killed("killed"); len(quiet) != 0 {
			t.Fatalf("without ids an end writes %v", showAll(quiet))
		}
		if inv.owed {
			t.Error("the cursor of the last streamed text was never paid for")
		}
		a, ra := said.Ending()
		b, rb := mute.Ending()
		if a != b || (ra == nil) != (rb == nil) || ra != nil && *ra != *rb {
			t.Errorf("Ending() = %+v, without ids %+v", a, b)
		}
	})
}

// invariants is an observer's view of a session.
type invariants struct {
	t        *testing.T
	streamed bool // text since the last opening
	owed     bool // that text was not finished
	opened   bool
}

func (v *invariants) check(frames []protocol.Frame, ended bool) {
	if ended && len(frames) > 0 {
		v.t.Fatalf("after the end came %v", showAll(frames))
	}
	for _, f := range frames {
		switch f.Kind {
		case protocol.FrameStatus:
			if v.owed {
				v.t.Fatal("a segment opens while text is unfinished")
			}
			v.opened, v.streamed = true, false
		case protocol.FrameText:
			if f.Append != v.streamed {
				v.t.Fatalf("%s: append is true exactly after the first text of a segment", show(f))
			}
			if f.Final && f.Text == "" && !v.owed {
				v.t.Fatal("a cursor is removed that nothing owes")
			}
			v.streamed, v.owed = true, !f.Final
		case protocol.FrameThinking, protocol.FrameToolCallStarted:
			if !v.opened {
				v.t.Fatalf("%s before any segment", show(f))
			}
		case protocol.FrameArtifact:
			if v.owed {
				v.t.Fatal("an artifact comes while text is unfinished")
			}
		}
	}
}
