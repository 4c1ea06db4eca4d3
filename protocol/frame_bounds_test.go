package protocol_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"starling/protocol"
)

// published is the size of a frame as the bus counts it: "NATS/1.0", a line for
// each header, an empty line and the body.
func published(f protocol.EncodedFrame) int {
	size := len("NATS/1.0\r\n") + len("\r\n") + len(f.Body)
	for name, value := range f.Header {
		size += len(name) + len(": ") + len(value) + len("\r\n")
	}
	return size
}

// longTexts are texts that JSON makes longer, each by as much as it can.
func longTexts(bytes int) map[string]string {
	texts := map[string]string{}
	for name, unit := range map[string]string{
		"letters": "x", "control characters": "\x01", "HTML": "<&>\u2028", "bytes that are no UTF-8": "a\xff", "short escapes": "\"\\\n\f\b",
	} {
		texts[name] = strings.Repeat(unit, bytes/len(unit))
	}
	return texts
}

// TestNoFrameIsOver512KiB: docs/protocol.md, section 7, for every kind, with the
// longest ids and texts.
func TestNoFrameIsOver512KiB(t *testing.T) {
	t.Parallel()
	place := framePlace
	name := strings.Repeat("x", 64)
	place.TaskID, place.ContextID, place.SessionID = protocol.TaskID(name), protocol.ContextID(name), protocol.SessionID(name)
	place.Attempt, place.Seq = 1<<60, 1<<60
	for text, long := range longTexts(460 << 10) {
		for _, kind := range []protocol.FrameKind{"status-update", "text", "thinking", "tool-call-started", "tool-call-progress", "artifact", "response"} {
			f := protocol.Frame{
				Kind: kind, State: a2a.TaskStateFailed, Text: long, ToolCallID: long, ToolName: long, Content: long, FenceSource: long,
				Truncated: true, Object: &protocol.ResultObject{Bucket: name, Name: name + name, Digest: name + name, Size: 1 << 60},
			}
			encoded, err := f.Split()[0].Encode(place)
			if err != nil {
				t.Fatal(err)
			}
			if size := published(encoded); size > 512<<10 {
				t.Errorf("a %s frame of %s has %d bytes as published, want at most %d", kind, text, size, 512<<10)
			}
		}
	}
}

func TestSplitLosesNothing(t *testing.T) {
	t.Parallel()
	for name, text := range longTexts(460 << 10) {
		for _, f := range []protocol.Frame{
			{Kind: protocol.FrameText, Text: text},
			{Kind: protocol.FrameText, Text: text, Append: true, Final: true},
			{Kind: protocol.FrameThinking, Text: text},
		} {
			pieces := f.Split()
			var all strings.Builder
			for i, p := range pieces {
				all.WriteString(p.Text)
				if last := i == len(pieces)-1; p.Final != (f.Final && last) || f.Kind == protocol.FrameText && p.Append != (f.Append || i > 0) || p.Kind != f.Kind {
					t.Errorf("%s: piece %d of %d is %s, append %v, final %v", name, i, len(pieces), p.Kind, p.Append, p.Final)
				}
				if 0 < i && i < len(pieces)-1 {
					continue // as the first
				}
				encoded, err := p.Encode(framePlace)
				if err != nil {
					t.Fatal(err)
				}
				got, err := protocol.ParseFrame(headerOf(encoded.Header), encoded.Body)
				if err != nil || got.Text != p.Text || !utf8.ValidString(p.Text) {
					t.Errorf("%s: piece %d was cut once more: %d bytes of %d, %v", name, i, len(got.Text), len(p.Text), err)
				}
			}
			if want := strings.ToValidUTF8(text, "\uFFFD"); all.String() != want {
				t.Errorf("%s: the pieces have %d bytes, want %d", name, all.Len(), len(want))
			}
			if len(pieces) < 2 || len(pieces) > 20 {
				t.Errorf("%s: %d pieces of 460 KiB", name, len(pieces))
			}
		}
	}
}

func TestSplitOfWhatFits(t *testing.T) {
	t.Parallel()
	for _, f := range []protocol.Frame{
		{Kind: protocol.FrameText},
		{Kind: protocol.FrameText, Text: "a", Final: true},
		{Kind: protocol.FrameThinking, Text: "a"},
		{Kind: protocol.FrameResponse, Text: strings.Repeat("x", 1<<20)},
		{Kind: protocol.FrameStatus},
	} {
		if got := f.Split(); !slices.Equal(got, []protocol.Frame{f}) {
			t.Errorf("Split() of a %s frame of %d bytes = %d frames, want itself", f.Kind, len(f.Text), len(got))
		}
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	text := func(s string, add, final bool) protocol.Frame {
		return protocol.Frame{Kind: protocol.FrameText, Text: s, Append: add, Final: final}
	}
	thought := func(s string) protocol.Frame { return protocol.Frame{Kind: protocol.FrameThinking, Text: s} }
	long := strings.Repeat("\x01", 400_000)
	tests := []struct {
		rule        string
		first, next protocol.Frame
		want        bool
	}{
		{"two appending texts", text("a", true, false), text("b", true, false), true},
		{"a text that replaces and one that appends", text("a", false, false), text("b", true, false), true},
		{"two thoughts", thought("a"), thought("b"), true},
		{"a text that replaces must stay apart", text("a", true, false), text("b", false, false), false},
		{"the first is final", text("a", true, true), text("b", true, false), false},
		{"the second is final", text("a", true, false), text("", true, true), false},
		{"a text and a thought", text("a", true, false), thought("b"), false},
		{"two statuses", protocol.Frame{Kind: protocol.FrameStatus, Text: "a"}, protocol.Frame{Kind: protocol.FrameStatus, Text: "b"}, false},
		{"two responses", protocol.Frame{Kind: protocol.FrameResponse, Append: true}, protocol.Frame{Kind: protocol.FrameResponse, Append: true}, false},
		{"what would not fit", text(long, true, false), text("b", true, false), false},
	}
	for _, tt := range tests {
		got, ok := tt.first.Join(tt.next)
		want := tt.first
		if tt.want {
			want.Text += tt.next.Text
		}
		if ok != tt.want || got != want {
			t.Errorf("%s: Join = %v, %v, %.10q, want %v", tt.rule, ok, got.Append, got.Text, tt.want)
		}
	}
}

// TestJoinedFramesFit: however fragments are joined, no character is cut off.
func TestJoinedFramesFit(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test that can be repeated
	f := protocol.Frame{Kind: protocol.FrameText}
	var joins int
	for range 3_000 {
		next := protocol.Frame{Kind: protocol.FrameText, Append: true, Text: strings.Repeat("\x01", random.IntN(1000))}
		joined, ok := f.Join(next)
		if !ok {
			if pieces := f.Split(); len(pieces) != 1 {
				t.Fatalf("a joined text of %d bytes takes %d frames", len(f.Text), len(pieces))
			}
			joined = next
		} else if len(joined.Text) != len(f.Text)+len(next.Text) {
			t.Fatal("Join lost text")
		} else {
			joins++
		}
		f = joined
	}
	if joins < 2_000 {
		t.Errorf("%d of 3000 fragments were joined", joins)
	}
}

// TestResponseIsCutAt256KiB has the edge of the raw bytes and of the encoded ones.
func TestResponseIsCutAt256KiB(t *testing.T) {
	t.Parallel()
	const bound = 256 << 10
	tests := []struct {
		rule, text string
		fits       bool
		kept       int
	}{
		{"nothing", "", true, 0},
		{"256 KiB", strings.Repeat("x", bound), true, bound},
		{"one more", strings.Repeat("x", bound+1), false, bound},
		{"a character over the edge", strings.Repeat("x", bound-1) + "é", false, bound - 1},
		{"a character at the edge", strings.Repeat("x", bound-2) + "é", true, bound},
	}
	for _, tt := range tests {
		if got := protocol.FitsResponse(tt.text); got != tt.fits {
			t.Errorf("%s: FitsResponse = %v, want %v", tt.rule, got, tt.fits)
		}
		for _, kind := range []protocol.FrameKind{protocol.FrameResponse, protocol.FrameArtifact} {
			encoded, err := protocol.Frame{Kind: kind, Text: tt.text, Content: tt.text}.Encode(framePlace)
			if err != nil {
				t.Fatal(err)
			}
			got, err := protocol.ParseFrame(headerOf(encoded.Header), encoded.Body)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(got.Text) + len(got.Content); n != tt.kept || got.Truncated == tt.fits {
				t.Errorf("%s: a %s keeps %d bytes, truncated %v, want %d, %v", tt.rule, kind, n, got.Truncated, tt.kept, !tt.fits)
			}
		}
	}
}

// TestFitsResponseSaysWhatEncodeDoes: what does not fit goes to the object store,
// so a result must never be cut that was said to fit.
func TestFitsResponseSaysWhatEncodeDoes(t *testing.T) {
	t.Parallel()
	for _, size := range []int{76_400, 200_000, 262_144} {
		for name, text := range longTexts(size) {
			encoded, err := protocol.Frame{Kind: protocol.FrameResponse, Text: text}.Encode(framePlace)
			if err != nil {
				t.Fatal(err)
			}
			got, err := protocol.ParseFrame(headerOf(encoded.Header), encoded.Body)
			if err != nil {
				t.Fatal(err)
			}
			if fits := protocol.FitsResponse(text); fits == got.Truncated {
				t.Errorf("%d bytes of %s: FitsResponse = %v and the frame's truncated = %v", size, name, fits, got.Truncated)
			}
			if !strings.HasPrefix(strings.ToValidUTF8(text, "\uFFFD"), got.Text) {
				t.Errorf("%d bytes of %s: the frame says something else", size, name)
			}
		}
	}
}

func TestNamesOfCallsAreBounded(t *testing.T) {
	t.Parallel()
	encoded, err := protocol.Frame{Kind: protocol.FrameToolCallStarted, ToolCallID: strings.Repeat("é", 1000), ToolName: "\xff"}.Encode(framePlace)
	if err != nil {
		t.Fatal(err)
	}
	got, err := protocol.ParseFrame(headerOf(encoded.Header), encoded.Body)
	if err != nil || got.ToolCallID != strings.Repeat("é", 512) || got.ToolName != "\uFFFD" {
		t.Errorf("a long id has %s bytes and a broken name is %q, %v, want 1024 and U+FFFD", fmt.Sprint(len(got.ToolCallID)), got.ToolName, err)
	}
}
