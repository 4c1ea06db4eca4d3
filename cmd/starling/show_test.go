package main

import (
	"os"
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

// TestFollowEndsWhenNobodyReads: a closed pipe ends it at the first frame that it
// cannot print.
func TestFollowEndsWhenNobodyReads(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := []string{"--url", f.server.ClientURL()}
	must := func(args ...string) result {
		t.Helper()
		got := starling(t, "", append(args, url...)...)
		if got.status != exitOK {
			t.Fatalf("starling %v = %d\n%s", args, got.status, got.err)
		}
		return got
	}
	must("capsule", "push", agent(t, "text"))
	done := must("dispatch", "agent@1.0.0", "--task", "lines 100", "--wait")
	key := strings.Fields(strings.TrimPrefix(done.err, "delegated "))[0]
	for _, args := range [][]string{{"watch", key}, {"watch", key, "--json"}} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = read.Close() // nobody reads
		var said strings.Builder
		status := run(t.Context(), append(args, url...), streams{in: strings.NewReader(""), out: write, err: &said})
		_ = write.Close()
		if status != exitFailure || !strings.Contains(said.String(), "standard output") {
			t.Errorf("starling %v = %d %q, want %d and why", args, status, said.String(), exitFailure)
		}
	}
	// Of one that has ended nothing comes from now on.
	contains(t, "watch --live", must("watch", key, "--live").err, "ok (session ended")
}
