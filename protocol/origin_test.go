package protocol_test

import (
	"errors"
	"strings"
	"testing"

	"starling/protocol"
)

// TestDeriveTrust has every origin of docs/protocol.md, section 3, with every
// trust that a sender may claim.
func TestDeriveTrust(t *testing.T) {
	t.Parallel()
	const yes, no = protocol.Trusted, protocol.Untrusted
	tests := []struct {
		origin                            protocol.Origin
		ofTrusted, ofUntrusted, ofMissing protocol.Trust
		lane                              protocol.Lane
	}{
		{protocol.OriginUser, yes, yes, yes, protocol.LaneUser},
		{protocol.OriginSchedule, yes, yes, yes, protocol.LaneBackground},
		{protocol.OriginSystem, yes, yes, yes, protocol.LaneBackground},
		{protocol.OriginEvent, no, no, no, protocol.LaneBackground},
		{protocol.OriginPeer, yes, no, no, protocol.LanePeer},
		{protocol.OriginCompletion, yes, no, no, protocol.LaneBackground},
		{"unheard-of", no, no, no, protocol.LaneBackground},
		{"", no, no, no, protocol.LaneBackground},
	}
	for _, tt := range tests {
		for sender, want := range map[protocol.Trust]protocol.Trust{
			yes: tt.ofTrusted, no: tt.ofUntrusted, "": tt.ofMissing, "Trusted": tt.ofMissing, "maybe": tt.ofMissing,
		} {
			if got := protocol.DeriveTrust(tt.origin, sender); got != want {
				t.Errorf("DeriveTrust(%q, %q) = %s, want %s", tt.origin, sender, got, want)
			}
		}
		if got := tt.origin.Lane(); got != tt.lane {
			t.Errorf("Origin(%q).Lane() = %s, want %s", tt.origin, got, tt.lane)
		}
	}
}

func TestOnlyPeerAndCompletionAreBelieved(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"user", "schedule", "system", "event", "", "Peer", " peer", "peer,completion"} {
		got := protocol.Classify(origin, "trusted")
		if got.Origin != protocol.OriginEvent || got.Trust != protocol.Untrusted || got.Lane != protocol.LaneBackground {
			t.Errorf("Classify(%q, trusted) = %v, want an untrusted event in bg", origin, got)
		}
	}
}

func TestOriginAndLaneNames(t *testing.T) {
	t.Parallel()
	for _, o := range []protocol.Origin{"user", "peer", "schedule", "event", "completion", "system"} {
		if err := o.Validate(); err != nil {
			t.Errorf("Origin(%q).Validate() = %v, want nil", o, err)
		}
	}
	for _, o := range []protocol.Origin{"", "User", "cron", "user "} {
		if err := o.Validate(); !errors.Is(err, protocol.ErrName) || !strings.Contains(err.Error(), "origin") {
			t.Errorf("Origin(%q).Validate() = %v, want an ErrName that says origin", o, err)
		}
	}
	for _, l := range []protocol.Lane{"", "User", "event", "bg "} {
		if err := l.Validate(); !errors.Is(err, protocol.ErrName) || !strings.Contains(err.Error(), "lane") {
			t.Errorf("Lane(%q).Validate() = %v, want an ErrName that says lane", l, err)
		}
	}
}
