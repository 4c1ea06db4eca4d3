package sandbox

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

// These are tests of the package itself: what a guest writes is cut in the same
// places whatever the sizes of its writes, which are easier to choose here.

func collect(lines bool) (*output, *[]protocol.Event) {
	var events []protocol.Event
	return &output{lines: lines, emit: func(e protocol.Event) { events = append(events, e) }}, &events
}

func delta(text string) protocol.Event {
	return protocol.Event{Kind: protocol.EventTextDelta, Text: text}
}

func note(text string) protocol.Event {
	return protocol.Event{Kind: protocol.EventNote, Text: text}
}

func TestOutputText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		writes []string
		want   []protocol.Event
	}{
		{"every piece is a fragment", []string{"a", "b\n", "c"}, []protocol.Event{delta("a"), delta("b\n"), delta("c")}},
		{"a character is not cut", []string{"a\xe2\x82", "\xacb"}, []protocol.Event{delta("a"), delta("€b")}},
		{"a character in four pieces", []string{"\xf0", "\x9f", "\x90", "\xa6"}, []protocol.Event{delta("🐦")}},
		{"bytes that are no UTF-8", []string{"a\xff\xfeb"}, []protocol.Event{delta("a\uFFFD\uFFFDb")}},
		{"a character that never ends", []string{"a\xe2\x82"}, []protocol.Event{delta("a"), delta("\uFFFD\uFFFD")}},
		{"a character broken by the next", []string{"\xe2\x82", "a"}, []protocol.Event{delta("\uFFFD\uFFFDa")}},
		{"JSON is text", []string{`{"event":"turn-end","result":""}` + "\n"}, []protocol.Event{delta(`{"event":"turn-end","result":""}` + "\n")}},
		{"nothing", []string{""}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, events := collect(false)
			for _, w := range tt.writes {
				o.write([]byte(w))
			}
			o.flush()
			if diff := cmp.Diff(tt.want, *events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			var all strings.Builder
			for _, e := range *events {
				all.WriteString(e.Text)
			}
			if o.text.String() != all.String() {
				t.Errorf("kept %q, want the fragments %q", o.text.String(), all.String())
			}
		})
	}
}

func TestOutputEvents(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", protocol.MaxLineBytes)
	fits := `{"event":"note","text":"` + strings.Repeat("y", protocol.MaxLineBytes-26) + `"}`
	tests := []struct {
		name   string
		writes []string
		want   []protocol.Event
	}{
		{
			"each line is an event",
			[]string{`{"event":"text-delta","text":"a"}` + "\n" + `{"event":"turn-end","result":"r"}` + "\n"},
			[]protocol.Event{delta("a"), {Kind: protocol.EventTurnEnd, Result: "r"}},
		},
		{"a line in pieces", []string{`{"event":"no`, `te","text":`, `"a"}`, "\n"}, []protocol.Event{note("a")}},
		{"a last line without an end", []string{`{"event":"note","text":"a"}`}, []protocol.Event{note("a")}},
		{"a line that is no JSON", []string{"hello\r\n"}, []protocol.Event{note("hello")}},
		{"a line that names no event", []string{`{"event":"no-such"}` + "\n"}, []protocol.Event{note(`{"event":"no-such"}`)}},
		{"a line that is no object", []string{"[1]\n"}, []protocol.Event{note("[1]")}},
		{"an empty line", []string{"\n"}, []protocol.Event{note("")}},
		{"a note is bounded", []string{strings.Repeat("z", 5000) + "\n"}, []protocol.Event{note(strings.Repeat("z", 4096) + " […]")}},
		{
			"after the first terminal event the rest is ignored",
			[]string{`{"event":"turn-failed","kind":"auth","message":"m"}` + "\n" + `{"event":"text-delta","text":"a"}` + "\n"},
			[]protocol.Event{{Kind: protocol.EventTurnFailed, Failure: protocol.FailAuth, Message: "m"}},
		},
		{"a line of 1 MiB", []string{fits + "\n"}, []protocol.Event{note(fits[24 : len(fits)-2])}},
		{
			"a line one byte longer",
			[]string{long, "x", "\n" + `{"event":"note","text":"next"}` + "\n"},
			[]protocol.Event{
				note("a line of stdout has more than 1048576 bytes and is no event; it begins: " + strings.Repeat("x", 200) + " […]"),
				note("next"),
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, events := collect(true)
			for _, w := range tt.writes {
				o.write([]byte(w))
			}
			o.flush()
			if diff := cmp.Diff(tt.want, *events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOutputBoundText(t *testing.T) {
	t.Parallel()
	o, events := collect(false)
	half := []byte(strings.Repeat("a", protocol.MaxOutputBytes/2))
	o.write(half)
	o.write(half)
	if n := len(*events); n != 2 || o.dropped != 0 {
		t.Fatalf("at the bound: %d events, %d dropped, want 2 and 0", n, o.dropped)
	}
	o.write([]byte("b"))
	o.write([]byte("cd"))
	if got := (*events)[2:]; len(got) != 1 || got[0].Kind != protocol.EventNote {
		t.Errorf("past the bound: %+v, want one note", got)
	}
	if o.dropped != 3 || o.text.Len() != protocol.MaxOutputBytes {
		t.Errorf("dropped %d, kept %d, want 3 and %d", o.dropped, o.text.Len(), protocol.MaxOutputBytes)
	}
}

// TestOutputBoundCharacter: the bound falls into a character, which is dropped.
func TestOutputBoundCharacter(t *testing.T) {
	t.Parallel()
	o, _ := collect(false)
	o.write([]byte(strings.Repeat("a", protocol.MaxOutputBytes-1)))
	o.write([]byte("€"))
	o.flush()
	if o.text.Len() != protocol.MaxOutputBytes-1 || o.dropped != 3 {
		t.Errorf("kept %d, dropped %d, want %d and 3", o.text.Len(), o.dropped, protocol.MaxOutputBytes-1)
	}
}

// TestOutputBoundEvents: beyond the bound text goes and the rest still counts.
func TestOutputBoundEvents(t *testing.T) {
	t.Parallel()
	o, events := collect(true)
	big := delta(strings.Repeat("a", 1<<20))
	for range protocol.MaxOutputBytes >> 20 {
		o.event(big, 1<<20)
	}
	if o.full {
		t.Fatal("full at the bound")
	}
	*events = nil
	for _, e := range []protocol.Event{
		delta("b"), note("c"),
		{Kind: protocol.EventToolCallStarted, ID: "1", Name: "n"},
		{Kind: protocol.EventToolCall, ID: "1", Name: "n", Input: []byte(`"long"`)},
		{Kind: protocol.EventToolResult, ID: "1", Output: "long", IsError: true},
		{Kind: protocol.EventUsage, Usage: protocol.Usage{Input: 1}},
		{Kind: protocol.EventTurnEnd, Result: "the result"},
	} {
		o.event(e, 10)
	}
	want := []protocol.Event{
		note("output passed 8388608 bytes; text beyond that is counted and dropped"),
		{Kind: protocol.EventToolCallStarted, ID: "1", Name: "n"},
		{Kind: protocol.EventToolCall, ID: "1", Name: "n", Input: []byte(`"[dropped: output limit]"`)},
		{Kind: protocol.EventToolResult, ID: "1", Output: "[dropped: output limit]", IsError: true},
		{Kind: protocol.EventUsage, Usage: protocol.Usage{Input: 1}},
		{Kind: protocol.EventTurnEnd, Result: "the result"},
	}
	if diff := cmp.Diff(want, *events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if o.dropped != 70 {
		t.Errorf("dropped %d, want 70", o.dropped)
	}
}

func TestOutputCalls(t *testing.T) {
	t.Parallel()
	for _, kind := range []protocol.EventKind{protocol.EventToolCall, protocol.EventToolCallStarted} {
		o, events := collect(true)
		for n := range protocol.MaxToolCalls {
			if !o.event(protocol.Event{Kind: kind, ID: fmt.Sprint(n)}, 1) {
				t.Fatalf("%s %d of %d refused", kind, n+1, protocol.MaxToolCalls)
			}
		}
		if o.event(protocol.Event{Kind: kind, ID: "one more"}, 1) || len(*events) != protocol.MaxToolCalls {
			t.Errorf("%s %d was let through", kind, protocol.MaxToolCalls+1)
		}
	}
}

func TestStderrTail(t *testing.T) {
	t.Parallel()
	var also strings.Builder
	s := tail{also: &also}
	for n := range 30 {
		s.write(fmt.Appendf(nil, "line %d\r\n\n", n))
	}
	s.write([]byte("the last"))
	got := s.lines()
	if len(got) != 20 || got[0] != "line 11" || got[19] != "the last" {
		t.Errorf("tail = %q, want the last 20 lines", got)
	}
	if !strings.HasPrefix(also.String(), "line 0\r\n\nline 1") {
		t.Errorf("passed on %q", also.String()[:20])
	}

	s = tail{}
	s.write([]byte(strings.Repeat("é", 2000) + "\n"))
	if got := s.lines(); len(got) != 1 || got[0] != strings.Repeat("é", 512)+" […]" {
		t.Errorf("a long line = %d bytes, want 1024 and a mark", len(got[0]))
	}

	also.Reset()
	s = tail{also: &also}
	piece := []byte(strings.Repeat("e", protocol.MaxStderrBytes))
	s.write(piece)
	s.write([]byte("\nthe end\n"))
	if also.Len() != protocol.MaxStderrBytes || s.dropped != 9 {
		t.Errorf("passed on %d, dropped %d, want %d and 9", also.Len(), s.dropped, protocol.MaxStderrBytes)
	}
	if got := s.lines(); got[len(got)-1] != "the end" {
		t.Errorf("tail = %q, want the end of all of it", got[len(got)-1])
	}
}

// FuzzOutput cuts the same bytes at other places: the text is the same, each
// event is whole UTF-8, and events do not change at all.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("héllo\n{\"event\":\"note\",\"text\":\"a\"}\n\xff\xe2\x82"), uint8(3))
	f.Add([]byte("\n\n{\"event\":\"turn-end\"}\nx"), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		for _, lines := range []bool{false, true} {
			whole, once := collect(lines)
			whole.write(data)
			whole.flush()
			pieces, often := collect(lines)
			for rest := data; len(rest) > 0; {
				n := min(len(rest), int(step)+1)
				pieces.write(rest[:n])
				rest = rest[n:]
			}
			pieces.flush()
			if whole.text.String() != pieces.text.String() {
				t.Fatalf("text %q in one, %q in pieces", whole.text.String(), pieces.text.String())
			}
			if lines && !cmp.Equal(*once, *often) {
				t.Fatalf("events differ:\n%s", cmp.Diff(*once, *often))
			}
			for _, e := range *often {
				if !utf8.ValidString(e.Text) {
					t.Fatalf("%q is no UTF-8", e.Text)
				}
			}
		}
	})
}
