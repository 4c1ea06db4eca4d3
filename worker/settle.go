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
	if err := g.w.sure(ctx, g.hold); err != nil {
		g.left("the attempt was not begun", err)
		return
	}
	g.w.metrics.attempts.Inc()
	ctx, end := g.w.span(ctx, "attempt", attribute.Int("starling.attempt", claim.Record.Attempt),
		attribute.String("starling.session_id", string(claim.Record.SessionID)))
	defer end(nil)
	a, err := g.w.newAttempt(ctx, log, g.hold, g.cancel, g.job, claim)
	if err != nil {
		g.w.fault.set(err)
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
		g.log.Warn("frames not stored: the task is handed back", "error", err)
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
	err = g.w.persist(ctx, g.log, func() error {
		stored, err = g.w.bus.PutResult(ctx, rec.DelegationID, rec.SessionID, []byte(result))
		return err
	})
	return stored, err
}

// writeOutcome writes the final record over the claim. Another's write there
// means that the claim is lost.
func (g *delegation) writeOutcome(ctx context.Context, rec protocol.Record, at uint64) (entry broker.Entry, err error) {
	err = g.w.persist(ctx, g.log, func() error {
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

// step does one thing that tells others, once it is sure that the job is ours.
func (g *delegation) step(ctx context.Context, do func() error) error {
	return g.w.persist(ctx, g.log, func() error {
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

// busPatience is how long the bus may take nothing of a job before the log says so, as
// it does of frames.
const busPatience = 10 * time.Second

// persist repeats do while the bus is away, until ctx is done.
func (w *Worker) persist(ctx context.Context, log *slog.Logger, do func() error) error {
	late := time.AfterFunc(busPatience, func() {
		log.Warn("the bus takes nothing: the worker tries on", "after_ms", busPatience.Milliseconds())
	})
	defer late.Stop()
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
