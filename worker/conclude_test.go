package worker

import (
	"log/slog"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
)

// TestACancelAfterTheLookComesTooLate: a guest that is not to blame for the death of
// its process is handed back also when a cancel is accepted after the one look at it.
//
// Source: docs/protocol.md, sections 8 and 10.
func TestACancelAfterTheLookComesTooLate(t *testing.T) {
	t.Parallel()
	for blame, charged := range map[sandbox.Blame]bool{sandbox.BlameOther: false, sandbox.BlameUnclear: true} {
		c := newCancellation(time.Minute)
		a := &attempt{
			log: slog.New(slog.DiscardHandler), cancel: c, job: protocol.Job{MaxAttempts: 3},
			segments: NewSegments(SegmentConfig{MaxTurns: 1}),
		}
		c.request()
		got := a.ended(t.Context(), nil, sandbox.Ending{Kind: sandbox.ProcessDied, Blame: blame}, false)
		if !got.handBack || got.charged != charged {
			t.Errorf("%v: ended() = %+v, want handed back, charged %v", blame, got, charged)
		}
	}
}
