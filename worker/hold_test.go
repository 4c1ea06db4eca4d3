package worker

import (
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestHowLongARenewalCounts: the server's ack wait runs from when it sent the delivery,
// which may have been under way; a renewal that it confirmed is younger than it was
// when it was sent.
//
// Source: docs/protocol.md, section 10.
func TestHowLongARenewalCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		taken, renewed time.Duration // ago; 0: never
		mine           bool
	}{
		"taken 44 of 60 s ago":          {44 * time.Second, 0, true},
		"taken 46 of 60 s ago":          {46 * time.Second, 0, false},
		"renewed 59 of 60 s ago":        {time.Hour, 59 * time.Second, true},
		"renewed 61 of 60 s ago":        {time.Hour, 61 * time.Second, false},
		"taken and renewed 59 s ago":    {59*time.Second + time.Millisecond, 59 * time.Second, true},
		"taken 61 s, renewed 46 s ago":  {61 * time.Second, 46 * time.Second, true},
		"taken long, renewed a day ago": {48 * time.Hour, 24 * time.Hour, false},
	} {
		h := &hold{ackWait: time.Minute, log: slog.New(slog.DiscardHandler), start: time.Now().Add(-c.taken)}
		if c.renewed > 0 {
			h.renewed.Store(int64(c.taken - c.renewed))
		}
		if mine := h.mine(); mine != c.mine {
			t.Errorf("%s: mine() = %t", name, mine)
		}
		if err := h.sure(t.Context()); (err == nil) != c.mine || !c.mine && !errors.Is(err, errLapsed) {
			t.Errorf("%s: sure() = %v", name, err)
		}
	}
	late := &hold{ackWait: time.Minute, log: slog.New(slog.DiscardHandler), start: time.Now().Add(-46 * time.Second)}
	late.confirmed(time.Now(), time.Now())
	if !late.lapsed.Load() {
		t.Error("a first renewal that comes 46 of 60 s after the delivery proves nothing, and is believed")
	}
}
