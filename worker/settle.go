package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
)

// delegation is one job from its claim to its settlement. One goroutine uses it.
type delegation struct {
	w        *Worker
	log      *slog.Logger
	hold     *hold
	cancel   *cancellation
	delivery *broker.Delivery
	job      protocol.Job
}

// attemptEnd is what the worker that ran the attempt knows and another does not.
type attemptEnd struct {
	root   *os.Root // of the work directory; nil: completion.json is not ours to write
	frames *broker.FrameSender
}

// place is where the terminal status goes: behind the attempt's frames, or
// wherever the task stands when another ran it.
func (e attemptEnd) place() broker.TerminalOptions {
	if e.frames == nil {
		return broker.TerminalOptions{}
	}
	return broker.TerminalOptions{Seq: e.frames.NextSeq(), LastSequence: e.frames.LastSequence()}
}

// attempt runs the capsule and reports. The order, each step safe to repeat
// after a crash at any point: frames and response acked → ledger outcome →
// completion.json → terminal frame → post → ledger delivery → completion.json
// again → ack.
//
// Source: docs/protocol.md, section 6, "Order at the end of an attempt".
func (g *delegation) attempt(ctx, guests context.Context, claim broker.Claim) {
	log := g.log.With("attempt", claim.Record.Attempt, "session_id", claim.Record.SessionID)
	g.log = log
	if err := g.step(ctx, func() error { return nil }); err != nil {
		g.left("the attempt was not begun", err)
		return
	}
	g.w.metrics.attempts.Inc()
	ctx, end := g.w.span(ctx, "attempt", attribute.Int("starling.attempt", claim.Record.Attempt),
		attribute.String("starling.session_id", string(claim.Record.SessionID)))
	defer end(nil)
	a, err := g.w.newAttempt(ctx, log, g.hold, g.cancel, g.job, claim)
	if err != nil {
		log.Error("attempt not started: the task is handed back", "error", err)
		if g.pause(ctx, claim.Record) {
			g.handBack(ctx, claim.Entry)
		} else {
			g.endUnrun(ctx, canceledBeforeStart(), claim.Record, claim.Revision)
		}
		return
	}
	defer a.close()
	crashpoint("directory made")
	c := a.run(ctx, guests)
	crashpoint("guest ended")
	if c.hostFault && !g.pause(ctx, claim.Record) {
		c = canceledBeforeStart()
	}
	if err := g.hold.sure(ctx); errors.Is(err, errLostClaim) {
		return
	}
	if c.handBack || c.hostFault {
		g.handBackFor(ctx, claim.Entry, c.charged)
		return
	}
	// The slot is free when the guest is gone; reporting goes on outside it,
	// bounded, so that slow doors hold up no other job.
	select {
	case g.w.reports <- struct{}{}:
		defer func() { <-g.w.reports }()
	case <-ctx.Done():
		return
	}
	g.delivery.Release()
	crashpoint("slot free")
	began := time.Now()
	g.report(ctx, a, c)
	g.w.metrics.report.Observe(time.Since(began).Seconds())
}

// report takes a conclusion to the ledger and completes the delegation.
func (g *delegation) report(ctx context.Context, a *attempt, c conclusion) {
	ctx, end := g.w.span(ctx, "report")
	defer end(nil)
	rec, err := g.conclusionRecord(ctx, a, c)
	switch {
	case err == nil:
	case ctx.Err() == nil && g.pause(ctx, a.claim.Record): // another worker may have the right, or the room
		g.log.Error("frames not stored: the task is handed back", "error", err)
		g.handBack(ctx, a.claim.Entry)
		return
	default:
		g.left("the task's frames were not stored", err)
		return
	}
	entry, err := g.writeOutcome(ctx, rec, a.claim.Revision)
	if err != nil {
		return
	}
	a.trace.end(time.Now(), *rec.Ending, *rec.Outcome)
	g.complete(ctx, entry, attemptEnd{root: a.dir.root, frames: a.frames})
}

// endUnrun ends a delegation of which nothing runs here: c over its record, which
// stands at revision at.
func (g *delegation) endUnrun(ctx context.Context, c conclusion, rec protocol.Record, at uint64) {
	entry, err := g.writeOutcome(ctx, c.record(rec, g.w.cfg.WorkerID, "", nil, time.Now()), at)
	if err == nil { // else writeOutcome gave the job up
		g.complete(ctx, entry, attemptEnd{})
	}
}

// conclusionRecord writes what must stand before the outcome does: the result
// file, a large result's object, the response and every frame.
func (g *delegation) conclusionRecord(ctx context.Context, a *attempt, c conclusion) (protocol.Record, error) {
	var resultPath string
	var object *protocol.ResultObject
	rec := a.claim.Record
	if c.reporter == protocol.ReportedByChild {
		var err error
		if resultPath, err = a.dir.result(rec.SessionID, rec.TaskID, c.fileText()); err != nil {
			g.log.Warn("result file not written", "error", err)
		}
	}
	if c.response != nil {
		response := protocol.Frame{Kind: protocol.FrameResponse, Text: *c.response}
		if !protocol.FitsResponse(*c.response) {
			stored, err := g.storeResult(ctx, rec, *c.response)
			if err != nil {
				return rec, err
			}
			object, response.Object = &stored, &stored
			crashpoint("result stored")
		}
		if err := a.send(ctx, response); err != nil {
			return rec, err
		}
	}
	if err := a.frames.Flush(ctx); err != nil {
		return rec, err
	}
	crashpoint("frames stored")
	return c.record(rec, g.w.cfg.WorkerID, resultPath, object, time.Now()), nil
}

func (g *delegation) storeResult(ctx context.Context, rec protocol.Record, result string) (stored protocol.ResultObject, err error) {
	err = g.w.persist(ctx, func() error {
		stored, err = g.w.bus.PutResult(ctx, rec.DelegationID, rec.SessionID, []byte(result))
		return err
	})
	return stored, err
}

// writeOutcome writes the final record over the claim. Another's write there
// means that the claim is lost.
func (g *delegation) writeOutcome(ctx context.Context, rec protocol.Record, at uint64) (entry broker.Entry, err error) {
	err = g.w.persist(ctx, func() error {
		entry, err = g.hold.write(ctx, rec, at)
		return err
	})
	switch {
	case errors.Is(err, broker.ErrLost):
		g.hold.lost(ctx)
	case err != nil:
		g.left("the outcome was not written", err)
	default:
		g.cancel.end(entry.Record.Status)
		crashpoint("outcome written")
	}
	return entry, err
}

// completeLost completes a delegation whose worker was lost after its outcome. When
// the parent is still to be told, the record is made this delivery's first: of
// two workers that both have a delivery, one tells.
func (g *delegation) completeLost(ctx context.Context, entry broker.Entry) {
	if g.untold(entry) && g.delivery.Mark().After(entry.Record.Delivery) {
		rec := entry.Record
		rec.Delivery = g.delivery.Mark()
		err := g.step(ctx, func() (err error) {
			entry, err = g.hold.write(ctx, rec, entry.Revision)
			return err
		})
		switch {
		case errors.Is(err, broker.ErrLost):
			g.hold.lost(ctx)
			return
		case err != nil:
			g.left("the delegation was not completed", err)
			return
		}
	}
	g.complete(ctx, entry, attemptEnd{})
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
	place.Traceparent = traceparentOf(ctx)
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
	g.log.Info("job settled", "outcome", o.Status, "duration_ms", o.DurationMS, "delivered", o.Delivered)
}

// tell posts the news to the parent's door and writes down how that went. A
// delegation that the parent ended, or that was posted before, is not posted.
func (g *delegation) tell(ctx context.Context, entry broker.Entry, end attemptEnd) (broker.Entry, error) {
	if !g.untold(entry) {
		return entry, nil
	}
	o := *entry.Record.Outcome
	if err := g.step(ctx, func() error { return nil }); err != nil {
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
		}
		if err == nil {
			entry = written
			g.hold.claim.Store(&entry)
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
	err := g.w.bridge.Deliver(ctx, g.job.Spawner, o, traceparentOf(ctx))
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
	err := g.w.persist(ctx, func() error {
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

// step does one thing that tells others, once it is sure that the job is ours.
func (g *delegation) step(ctx context.Context, do func() error) error {
	return g.w.persist(ctx, func() error {
		if err := g.hold.sure(ctx); err != nil {
			return err
		}
		return do()
	})
}

// left gives a job up without settling it: it is redelivered, and whoever takes
// it goes on from the record.
func (g *delegation) left(what string, err error) {
	g.delivery.Drop()
	if errors.Is(err, errLostClaim) {
		return
	}
	g.w.metrics.left.Inc()
	g.log.Warn("job left to be redelivered: "+what, "error", err)
}

// persist repeats do while the bus is away, until ctx is done.
func (w *Worker) persist(ctx context.Context, do func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := do()
		if err == nil || !errors.Is(err, broker.ErrUnavailable) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}
