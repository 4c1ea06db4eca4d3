package broker

import (
	"math"
	"testing"

	"starling/protocol"
)

// TestAHoleCostsNothingByItsWidth: a stranger's frame may have any number.
func TestAHoleCostsNothingByItsWidth(t *testing.T) {
	t.Parallel()
	for _, seq := range []int{1 << 60, math.MaxInt - 1, math.MaxInt} {
		var o frameOrder
		events := o.add(numbered(seq))
		events = append(events, o.flush()...)
		if seq == math.MaxInt {
			if len(events) != 0 {
				t.Errorf("a number without a next one told %d events", len(events))
			}
			continue
		}
		if len(events) < 2 || events[0].Hole == nil || events[0].Hole.From != 1 || events[len(events)-1].Frame == nil {
			t.Errorf("frame %d told %+v, want a hole and the frame", seq, events)
		}
	}
}

func numbered(seq int) (f protocol.ReceivedFrame) {
	f.Attempt, f.Seq = 1, seq
	return f
}
