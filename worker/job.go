package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"starling/broker"
	"starling/protocol"
)

// do is the life of one delivery: parse, claim, run or complete, settle. It
// returns when the delivery is settled, or left to be redelivered. ctx is the
// jobs' life; guests is done when running guests must be handed back.
func (w *Worker) do(ctx, guests context.Context, d *broker.Delivery) {
	defer d.Release()
	crashpoint("fetched")
	log := w.log.With("pool", w.cfg.Pool)
	if place, err := d.Place(); err == nil {
		w.metrics.taken.WithLabelValues(string(place.Lane)).Inc()
	}
	ctx = ContinueTrace(ctx, d.Traceparent())
	job, err := protocol.ParseJob(d.Body())
	if err == nil {
		log = log.With("delegation_id", job.DelegationID, "task_id", job.TaskID, "capsule", job.Capsule.String())
		var span oteltrace.Span
		ctx, span = w.jobSpan(ctx, job)
		defer span.End()
		if id := span.SpanContext().TraceID(); id.IsValid() {
			log = log.With("trace_id", id.String())
		}
	}
	defer func() {
		if bug := recover(); bug != nil {
			// Not settled: the job is redelivered and costs an attempt.
			d.Drop()
			log.Error("bug: job panicked", "panic", fmt.Sprint(bug), "stack", string(debug.Stack()))
		}
	}()
	ctx, hold := w.hold(ctx, d, log)
	defer hold.end()
	if err != nil {
		w.deadLetter(ctx, log, d, &broker.DeadJobError{Reason: protocol.DeadUnreadable, Detail: err.Error()})
		return
	}
	cancel := newCancellation(w.cfg.CancelGrace)
	listener, err := w.bus.ListenCancel(job.Spawner.SessionID, job.DelegationID, cancel.accept)
	if err != nil {
		log.Warn("job left to be redelivered: cannot listen for its cancel", "error", err)
		d.Drop()
		return
	}
	defer listener.Close()
	defer cancel.end("") // first: what listens waits for it
	claim, err := w.claim(ctx, hold, d, job)
	if err != nil {
		w.unclaimed(ctx, log, d, err)
		return
	}
	hold.claim.Store(&claim.Entry)
	w.metrics.waited(claim.Record, time.Now())
	crashpoint("claimed")
	w.settleClaim(ctx, guests, &delegation{w: w, log: log, hold: hold, cancel: cancel, delivery: d, job: job}, claim)
}

// claim writes the claim; a bus that is away is waited for, but no longer than
// the delivery is sure to be this worker's.
func (w *Worker) claim(ctx context.Context, h *hold, d *broker.Delivery, job protocol.Job) (claim broker.Claim, err error) {
	ctx, end := w.span(ctx, "claim")
	defer func() { end(err) }()
	err = w.persist(ctx, h.log, func() error {
		if err := h.sure(ctx); err != nil {
			return err
		}
		claim, err = w.bus.Claim(ctx, d, job, func(rec protocol.Record) protocol.Record {
			crashpoint("claiming")
			return w.begin(job, rec, time.Now())
		})
		return err
	})
	return claim, err
}

// begin fills in what this worker's attempt adds to the claim. A delegation
// whose deadline has passed ends here instead: nothing of it is started, and a
// lost attempt, if there was one, stays in the record.
func (w *Worker) begin(job protocol.Job, rec protocol.Record, now time.Time) protocol.Record {
	if deadline := job.Deadline; !deadline.IsZero() && now.After(deadline.Std()) {
		rec.Attempt--
		c := deadlineBeforeStart()
		if rec.SessionID != "" {
			c = terminated(protocol.DeadlineDetail(wholeSeconds(deadline.Std().Sub(rec.StartedAt.Std()))))
		}
		return c.record(rec, w.cfg.WorkerID, "", nil, now)
	}
	rec.WorkerID, rec.SessionID = w.cfg.WorkerID, protocol.NewSessionID()
	rec.Workdir, rec.StartedAt = w.workdirPath(rec.SessionID), protocol.NewTime(now)
	return rec
}

// unclaimed settles a delivery that could not be claimed.
func (w *Worker) unclaimed(ctx context.Context, log *slog.Logger, d *broker.Delivery, err error) {
	var dead *broker.DeadJobError
	if errors.As(err, &dead) {
		w.deadLetter(ctx, log, d, dead)
		return
	}
	if errors.Is(err, protocol.ErrRecord) {
		// No worker of this version will ever read it: redelivered it would come back
		// at every ack wait, for ever.
		w.deadLetter(ctx, log, d, &broker.DeadJobError{
			Reason: protocol.DeadUnreadable, Detail: "the delegation's record in the ledger: " + err.Error(),
		})
		return
	}
	log.Warn("job left to be redelivered: it could not be claimed", "error", err)
	d.Drop()
}

// deadLetter stores a job that cannot run, then acks it.
func (w *Worker) deadLetter(ctx context.Context, log *slog.Logger, d *broker.Delivery, dead *broker.DeadJobError) {
	err := w.persist(ctx, log, func() error { return d.DeadLetter(ctx, dead.Reason, dead.Detail) })
	if err != nil {
		log.Warn("dead letter not stored: the job is left to be redelivered", "error", err)
		d.Drop()
		return
	}
	w.metrics.dead.WithLabelValues(string(dead.Reason)).Inc()
	log.Warn("job is a dead letter", "reason", dead.Reason, "detail", dead.Detail)
}

// settleClaim does what the claim asks for.
func (w *Worker) settleClaim(ctx, guests context.Context, g *delegation, claim broker.Claim) {
	switch {
	case claim.Kind == broker.Earlier:
		g.delivery.Drop()
	case claim.Kind == broker.Final:
		g.cancel.end(claim.Record.Status)
		g.completeForAnother(ctx, claim.Entry)
	case claim.Record.Status.Final(): // its deadline had passed
		g.cancel.end(claim.Record.Status)
		g.complete(ctx, claim.Entry, attemptEnd{})
	case claim.Kind == broker.Spent:
		// The record stays the lost worker's: its session and work directory are
		// where an operator looks. It is the last the job hears.
		g.endUnrun(ctx, lostWorker(claim.Prior), claim.Prior, claim.Revision)
	default: // claimed, or taken over from a lost worker
		g.attempt(ctx, guests, claim)
	}
}
