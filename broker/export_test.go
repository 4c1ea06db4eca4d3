package broker

import (
	"context"
	"time"

	"starling/protocol"
)

// AnnounceEvery is Announce with a heartbeat that a test can wait for.
func (b *Bus) AnnounceEvery(ctx context.Context, every time.Duration, info func() protocol.WorkerInfo) (*Heartbeat, error) {
	return b.announce(ctx, every, info)
}
