package main

import (
	"strings"
	"testing"

	"starling/protocol"
)

// TestLiveShowerRedrawsAToolCallInItsLine shows a call as a terminal gets it: its
// end stands where its progress stood.
func TestLiveShowerRedrawsAToolCallInItsLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &liveShower{out: &out, tools: make(map[string]string)}
	took := int64(3)
	for _, f := range []protocol.Frame{
		{Kind: protocol.FrameText, Text: "Let me see."},
		{Kind: protocol.FrameToolCallStarted, ToolCallID: "c", ToolName: "look"},
		{Kind: protocol.FrameToolCallProgress, ToolCallID: "c", InputBytes: 12},
		{Kind: protocol.FrameText, Append: true, Final: true},
		{Kind: protocol.FrameArtifact, ToolCallID: "c", ToolName: "look", Content: "three\x1b[2J hits", DurationMS: &took},
	} {
		s.frame(&protocol.ReceivedFrame{Frame: f})
	}
	want := "Let me see.\n" + dim + "⚙ look …" + reset + erase + dim + "⚙ look … 12 bytes" + reset +
		erase + green + "✓ look" + reset + " ended after 3 ms: three[2J hits\n"
	if got := out.String(); got != want {
		t.Errorf("shown = %q, want %q", got, want)
	}
}
