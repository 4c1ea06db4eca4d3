package worker

import (
	"context"
	"errors"
	"os"
	"time"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
)

// completeForAnother completes a delegation to which another worker gave its outcome. When
// the parent is still to be told, the record is made this delivery's first: of
// two workers that both have a delivery, one tells.
func (g *delegation) completeForAnother(ctx context.Context, entry broker.Entry) {
	entry, err := g.letTell(ctx, entry)
	if err == nil && entry.Record.Delivery.After(g.delivery.Mark()) {
		g.delivery.Drop() // a later delivery completes it
		return
	}
	if err == nil && g.untold(entry) && g.delivery.Mark().After(entry.Record.Delivery) {
		rec := entry.Record
		rec.Delivery = g.delivery.Mark()
		err = g.step(ctx, func() (err error) {
			entry, err = g.hold.write(ctx, rec, entry.Revision)
			return err
		})
	}
	switch {
	case errors.Is(err, broker.ErrLost):
		g.hold.lost(ctx)
	case err != nil:
		g.left("the delegation was not completed", err)
	default:
		g.complete(ctx, entry, attemptEnd{})
	}
}

// looksPerAckWait is how often the record is read while another may be telling.
const looksPerAckWait = 40

// letTell leaves the worker that wrote a fresh outcome the time to tell the parent
// of it, and gives the record as it stands then. A bus that loses a server delivers
// a job again while its worker lives; a worker that is lost was not renewed for an
// ack wait, so that its outcome is about as old and hardly waited for.
func (g *delegation) letTell(ctx context.Context, entry broker.Entry) (broker.Entry, error) {
	ackWait := g.w.taker.AckWait()
	// An ack wait at most: the clock of the host that wrote ended_at may be ahead.
	left := min(ackWait, ackWait-time.Since(entry.Record.EndedAt.Std()))
	until := time.NewTimer(left)
	defer until.Stop()
	ticker := time.NewTicker(ackWait / looksPerAckWait)
	defer ticker.Stop()
	if left > 0 && g.untold(entry) {
		g.log.Info("the worker that wrote the outcome may be telling the parent: it is left to", "wait_ms", left.Milliseconds())
	}
	for g.untold(entry) {
		select {
		case <-until.C:
			return entry, nil
		case <-ctx.Done():
			return entry, context.Cause(ctx)
		case <-ticker.C:
		}
		err := g.step(ctx, func() error {
			now, err := g.w.bus.ReadRecord(ctx, g.job.Spawner.SessionID, g.job.DelegationID, entry.Revision)
			if err == nil && now.Revision != entry.Revision {
				entry = now
				g.hold.claim.Store(&now)
			}
			return err
		})
		if err != nil {
			return entry, err
		}
	}
	return entry, nil
}

// untold reports whether the parent is to be told of a final record.
func (g *delegation) untold(entry broker.Entry) bool {
	o := entry.Record.Outcome
	return g.job.Spawner.HasAddress() && !o.Delivered && o.DeliveryError == "" && !o.ParentEnded()
}

// complete tells everybody of a final record, from the record and never from
// memory, and settles the delivery.
func (g *delegation) complete(ctx context.Context, entry broker.Entry, end attemptEnd) {
	g.writeFile(end.root, entry.Record)
	crashpoint("file written")
	place := end.place()
	place.Traceparent = Traceparent(ctx)
	err := g.step(ctx, func() error { return g.w.bus.WriteTerminal(ctx, entry.Record, place) })
	if err == nil {
		crashpoint("task ended")
		entry, err = g.tell(ctx, entry, end)
	}
	if err == nil {
		crashpoint("settling")
		err = g.step(ctx, func() error {
			if entry.Record.AttemptsSpent() {
				return g.delivery.DeadLetter(ctx, protocol.DeadAttemptsSpent, entry.Record.Outcome.Detail)
			}
			return g.delivery.Ack(ctx)
		})
	}
	if err != nil {
		g.left("the delegation was not completed", err)
		return
	}
	g.w.jobsDone.Add(1)
	o := entry.Record.Outcome
	g.w.metrics.settled.WithLabelValues(string(o.Status)).Inc()
	if entry.Record.AttemptsSpent() {
		g.w.metrics.dead.WithLabelValues(string(protocol.DeadAttemptsSpent)).Inc()
	}
	log := g.log
	if g.job.Spawner.HasAddress() {
		log = log.With("delivered", o.Delivered)
	}
	log.Info("job settled", "outcome", o.Status, "duration_ms", o.DurationMS)
}

// tell posts the news to the parent's door and writes down how that went. A
// delegation that the parent ended, or that was posted before, is not posted.
func (g *delegation) tell(ctx context.Context, entry broker.Entry, end attemptEnd) (broker.Entry, error) {
	if !g.untold(entry) {
		return entry, nil
	}
	o := *entry.Record.Outcome
	if err := g.w.sure(ctx, g.hold); err != nil {
		return entry, err
	}
	// What is told from here on is written down even when renewals lapse meanwhile:
	// the record's revision keeps it from being written twice.
	g.hold.telling.Store(true)
	err := g.post(ctx, o)
	crashpoint("door answered")
	if cause := context.Cause(ctx); cause != nil {
		return entry, cause // told or not, nobody may say so any more
	}
	o.Delivered = err == nil
	if err != nil {
		o.DeliveryError = err.Error()
		g.log.Warn("the parent was not told", "error", o.DeliveryError)
	}
	rec := entry.Record
	rec.Outcome = &o
	err = g.step(ctx, func() error {
		written, err := g.hold.write(ctx, rec, entry.Revision)
		var lost *broker.LostError
		if errors.As(err, &lost) && lost.Current.Record.Status.Final() && !g.untold(lost.Current) {
			written, err = lost.Current, nil // another completed it from the record meanwhile
			g.hold.claim.Store(&written)
		}
		if err == nil {
			entry = written
		}
		return err
	})
	g.hold.telling.Store(false)
	if errors.Is(err, broker.ErrLost) {
		g.hold.lost(ctx)
		return entry, errLostClaim
	}
	if err == nil {
		crashpoint("delivered")
		g.writeFile(end.root, entry.Record)
		crashpoint("file rewritten")
	}
	return entry, err
}

// post tells the door, once every other step is behind it.
func (g *delegation) post(ctx context.Context, o protocol.Outcome) error {
	ctx, end := g.w.span(ctx, "post")
	began := time.Now()
	err := g.w.bridge.DeliverWhile(ctx, g.log, g.job.Spawner, o, Traceparent(ctx), g.hold.unclaimed)
	end(err)
	g.w.metrics.post.Observe(time.Since(began).Seconds())
	result := "delivered"
	if err != nil {
		result = "failed"
	}
	g.w.metrics.posts.WithLabelValues(result).Inc()
	return err
}

// writeFile puts the outcome into the work directory, when that is ours.
func (g *delegation) writeFile(root *os.Root, rec protocol.Record) {
	if root == nil {
		return
	}
	if err := completion.Write(root, *rec.Outcome); err != nil {
		g.log.Warn("completion.json not written", "error", err)
	}
}
