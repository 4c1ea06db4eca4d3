package broker

import "sync/atomic"

// Stats is what a Bus has done since it was connected.
type Stats struct {
	Frames     uint64 // published, repeats included
	Resent     uint64 // of these, published again because no ack came
	Reconnects uint64 // of both connections
}

type counts struct{ frames, resent atomic.Uint64 }

// Stats counts without asking the bus.
func (b *Bus) Stats() Stats {
	s := Stats{Frames: b.counts.frames.Load(), Resent: b.counts.resent.Load(), Reconnects: b.nc.Stats().Reconnects}
	if b.frames != b.nc {
		s.Reconnects += b.frames.Stats().Reconnects
	}
	return s
}
