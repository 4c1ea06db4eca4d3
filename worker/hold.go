package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"starling/broker"
)

// errLostClaim ends a job whose delegation another worker, or a canceller, has
// taken: the guest is stopped and nothing more is written, acked, nak'ed or
// renewed.
var errLostClaim = errors.New("the claim was lost")

// hold keeps a delivery from being redelivered while its job lives: it renews
// it every ack wait / 3 from a goroutine of its own, which neither a guest nor a
// download can hold up. It is also the fence: JetStream acks are not fenced, so
// after an ack wait without a renewal the record decides whether the job is
// still this worker's.
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
	lapsed  atomic.Bool                  // an ack wait went by without one: never again false
	checked atomic.Int64                 // since start, of the last look at the record; written by sure
	claim   atomic.Pointer[broker.Entry] // what is held; nil before the claim
	gone    atomic.Bool                  // the claim was lost
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
	ticker := time.NewTicker(h.ackWait / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// After a stall the record is read before the delivery is renewed: a
		// renewal of a lost job would hold back its new owner's redelivery.
		if h.sure(ctx) != nil {
			continue
		}
		answer, cancel := context.WithTimeout(ctx, h.ackWait/3)
		began := time.Now()
		err := h.delivery.Extend(answer)
		cancel()
		switch {
		case err == nil:
			h.renewed.Store(int64(began.Sub(h.start)))
		case errors.Is(err, broker.ErrSettled):
			return
		case ctx.Err() == nil:
			h.log.WarnContext(ctx, "job not renewed", "error", err)
		}
	}
}

// sure reports that the job is this worker's. It is while it was renewed within
// the ack wait. Once it lapsed the job may have been given to another, whose
// claim can come after any look at the record: so from then on the record is
// read again and again, at least before each renewal. It is errLostClaim when
// another has the job, and the bus's error when nobody can tell.
func (h *hold) sure(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	now := time.Since(h.start)
	if !h.lapsed.Load() {
		if now-time.Duration(h.renewed.Load()) <= h.ackWait {
			return nil
		}
		if !h.lapsed.Swap(true) {
			h.log.WarnContext(ctx, "renewals lapsed: from now on the record says whose the job is")
		}
	}
	claim := h.claim.Load()
	if claim == nil {
		return nil // nothing claimed: the claim itself will tell
	}
	if looked := time.Duration(h.checked.Load()); looked > 0 && now-looked < h.ackWait/4 {
		return nil
	}
	mine, err := h.bus.StillMine(ctx, *claim)
	if err != nil {
		return err
	}
	if !mine {
		h.giveUp()
		h.log.WarnContext(ctx, "claim lost: the job is left to its new owner", "revision", claim.Revision)
		return errLostClaim
	}
	h.checked.Store(int64(now))
	return nil
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
