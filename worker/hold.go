package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"starling/broker"
	"starling/protocol"
)

// errLostClaim ends a job whose delegation another worker, or a canceller, has
// taken: the guest is stopped and nothing more is written, acked, nak'ed or
// renewed.
var errLostClaim = errors.New("the claim was lost")

// errLapsed leaves a job that nobody claimed to its next delivery.
var errLapsed = errors.New("the delivery was not renewed in time")

// hold keeps a delivery from being redelivered while its job lives: it renews
// it every ack wait / 3 from a goroutine of its own, which neither a guest nor a
// download can hold up. It is also the fence: JetStream acks are not fenced, so
// after an ack wait without a renewal the record decides whether the job is
// still this worker's. The server's clock runs from the moment it sent the
// delivery, which nobody here knows: the first renewal is early, after ack wait / 8,
// and until it is confirmed three quarters of an ack wait count.
//
// Source: docs/protocol.md, sections 6 (Claim) and 10.
type hold struct {
	bus      *broker.Bus
	delivery *broker.Delivery
	log      *slog.Logger
	metrics  *metrics
	ackWait  time.Duration

	lose    context.CancelCauseFunc
	stop    context.CancelFunc
	stopped chan struct{}

	start   time.Time
	renewed atomic.Int64                 // since start, of the last renewal; written by renew
	lapsed  atomic.Bool                  // the latest counted no more: never again false
	checked atomic.Int64                 // since start, of the last look at the record; written by sure
	claim   atomic.Pointer[broker.Entry] // what is held; nil before the claim
	gone    atomic.Bool                  // the claim was lost
	telling atomic.Bool                  // the parent's door is being asked
	writing atomic.Bool                  // the record, by this worker
}

// hold starts to renew a delivery. The context it returns is done, with
// errLostClaim as its cause, when the claim is lost. End it with hold.end.
func (w *Worker) hold(ctx context.Context, d *broker.Delivery, log *slog.Logger) (context.Context, *hold) {
	ctx, lose := context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(ctx)
	h := &hold{
		bus: w.bus, delivery: d, log: log, metrics: w.metrics, ackWait: w.taker.AckWait(),
		lose: lose, stop: stop, stopped: make(chan struct{}), start: time.Now(),
	}
	go h.renew(renewing)
	return ctx, h
}

// end stops the renewals and waits for the one under way.
func (h *hold) end() {
	h.stop()
	<-h.stopped
	h.lose(nil)
}

func (h *hold) renew(ctx context.Context) {
	defer close(h.stopped)
	ticker := time.NewTicker(h.ackWait / 8) // the first time
	defer ticker.Stop()
	looked := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			ticker.Reset(h.ackWait / 3)
		}
		// After a stall the record is read before the delivery is renewed: a
		// renewal of a lost job would hold back its new owner's redelivery.
		if h.sure(ctx) != nil {
			continue
		}
		// Once a record is read that need not be: how long the delivery was under way
		// before it came here, nobody knows.
		if claim := h.claim.Load(); claim != nil && !looked {
			bounded, cancel := context.WithTimeout(ctx, h.ackWait/6)
			err := h.look(bounded, claim)
			cancel()
			if errors.Is(err, errLostClaim) {
				continue
			}
			looked = err == nil
		}
		answer, cancel := context.WithTimeout(ctx, h.ackWait/3)
		began := time.Now()
		err := h.delivery.Extend(answer)
		cancel()
		switch {
		case err == nil:
			h.confirmed(began, time.Now())
		case errors.Is(err, broker.ErrSettled):
			return
		case ctx.Err() == nil:
			h.log.WarnContext(ctx, "job not renewed", "error", err)
		}
	}
}

// confirmed notes a renewal that was begun and confirmed at those times. The
// server says yes to a lost job too: one that took longer than what was left of
// the ack wait may have come too late, and proves nothing.
func (h *hold) confirmed(began, at time.Time) {
	if !h.counts(at.Sub(h.start)) {
		h.lapse()
	}
	h.renewed.Store(int64(began.Sub(h.start)))
}

// counts reports whether, so long after start, the latest renewal still does: it counts
// for an ack wait. Before there was one the delivery does, which may have been under way
// for a quarter of that.
func (h *hold) counts(at time.Duration) bool {
	renewed := time.Duration(h.renewed.Load())
	if renewed == 0 {
		return at <= h.ackWait*3/4
	}
	return at-renewed <= h.ackWait
}

func (h *hold) lapse() {
	if !h.lapsed.Swap(true) {
		h.log.Warn("renewals lapsed: from now on the record says whose the job is")
	}
}

// sure reports that the job is this worker's. It is for as long as its latest
// renewal counts. Once it lapsed the job may have been given to another, whose
// claim can come after any look at the record: so from then on the record is
// read again and again, at least before each renewal. It is errLapsed when
// nothing was claimed before, errLostClaim when another has the job or may have it
// unseen, and the bus's error when nobody can tell.
func (h *hold) sure(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	now := time.Since(h.start)
	if !h.lapsed.Load() {
		if h.counts(now) {
			return nil
		}
		h.lapse()
	}
	claim := h.claim.Load()
	switch {
	case claim == nil:
		return errLapsed
	case claim.Record.Status == protocol.StatusSubmitted, claim.Record.Status.Final() && !h.telling.Load():
		// A record that was handed back or has its outcome is nobody's: another may
		// have the job without a word in it. Its next delivery does the rest, or a
		// late nak would take it out of that one's hands, or both would tell the parent.
		return h.give(ctx, claim)
	}
	if looked := time.Duration(h.checked.Load()); looked > 0 && now-looked < h.ackWait/4 {
		return nil
	}
	return h.look(ctx, claim)
}

// sure is hold.sure once the bus can tell, or the error of ctx's end.
func (w *Worker) sure(ctx context.Context, h *hold) error {
	return w.persist(ctx, h.log, func() error { return h.sure(ctx) })
}

// look reads whether the claim holds. It is errLostClaim when it does not, and the
// bus's error when nobody can tell.
func (h *hold) look(ctx context.Context, claim *broker.Entry) error {
	began := time.Since(h.start)
	mine, err := h.bus.StillMine(ctx, *claim)
	if err != nil {
		return err
	}
	switch {
	case mine:
		h.checked.Store(int64(began))
		return nil
	case h.writing.Load() || h.claim.Load() != claim:
		return fmt.Errorf("%w: the record is being written", broker.ErrUnavailable) // by this worker, or it will learn that it lost
	}
	return h.give(ctx, claim)
}

// unclaimed is errLostClaim when another worker has the job by now: the bus delivers
// one again also while its worker lives, as when the consumer's leader was lost. A bus
// that cannot tell says nothing.
func (h *hold) unclaimed(ctx context.Context) error {
	claim := h.claim.Load()
	if claim == nil {
		return nil
	}
	if err := h.look(ctx, claim); errors.Is(err, errLostClaim) {
		return err
	}
	return nil
}

// write writes what becomes of a record that stands at revision at, and holds
// that from then on.
func (h *hold) write(ctx context.Context, rec protocol.Record, at uint64) (broker.Entry, error) {
	h.writing.Store(true)
	defer h.writing.Store(false)
	entry, err := h.bus.WriteRecord(ctx, rec, at)
	if err == nil {
		h.claim.Store(&entry)
	}
	return entry, err
}

// give leaves the job to whoever has it, or gets it next.
func (h *hold) give(ctx context.Context, claim *broker.Entry) error {
	h.giveUp()
	h.log.WarnContext(ctx, "claim lost: the job is left to its new owner", "revision", claim.Revision)
	return errLostClaim
}

// mine reports, without asking anybody, that the job was this worker's a moment
// ago: what was given to the bus before a stall may go out.
func (h *hold) mine() bool {
	now := time.Since(h.start)
	if !h.lapsed.Load() {
		return h.counts(now)
	}
	looked := time.Duration(h.checked.Load())
	return looked > 0 && now-looked < h.ackWait/2
}

// giveUp leaves the job to its new owner.
func (h *hold) giveUp() {
	h.delivery.Drop()
	if !h.gone.Swap(true) {
		h.metrics.lostClaims.Inc()
	}
	h.lose(errLostClaim)
}

// lost gives the job up because a write met another's.
func (h *hold) lost(ctx context.Context) {
	h.giveUp()
	h.log.WarnContext(ctx, "claim lost: another wrote the record first")
}
