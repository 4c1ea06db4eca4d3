package worker

import (
	"context"
	"errors"
	"time"

	"starling/broker"
	"starling/protocol"
)

// pause waits before a task that this host could not start is handed back, twice
// as long each time: the fault may be every worker's. It reports false when the
// parent ended the delegation meanwhile.
func (g *delegation) pause(ctx context.Context, rec protocol.Record) bool {
	timer := time.NewTimer(min(time.Second<<min(rec.Returned, 5), 30*time.Second))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.cancel.asked:
	case <-g.w.drainAsked:
	case <-ctx.Done():
	}
	return !g.cancel.accepted()
}

// handBack returns the task to the queue: the record first, then the nak. The
// record keeps the attempt's session: by it a worker tells its own hand-back
// from that of another who has the task by now.
func (g *delegation) handBack(ctx context.Context, entry broker.Entry) {
	g.handBackFor(ctx, entry, false)
}

// handBackFor is handBack for a task that may be charged for its attempt.
func (g *delegation) handBackFor(ctx context.Context, entry broker.Entry, charged bool) {
	rec := entry.Record
	rec.Status = protocol.StatusSubmitted
	if !charged {
		rec.Returned++
	}
	err := g.w.persist(ctx, g.log, func() error {
		_, err := g.hold.write(ctx, rec, entry.Revision)
		return err
	})
	if errors.Is(err, broker.ErrLost) {
		g.hold.lost(ctx)
		return
	}
	if err == nil {
		crashpoint("handed back")
		err = g.step(ctx, func() error { return g.delivery.Nak(ctx) })
	}
	if err != nil {
		g.left("the task was not handed back", err)
		return
	}
	g.w.metrics.handedBack.Inc()
	g.log.Info("task handed back")
}
