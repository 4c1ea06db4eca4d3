package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

const (
	// idWait is how long an entry is waited for that nobody renews: it expires
	// after workerTTL.
	idWait = workerTTL + 5*time.Second
	// idPoll is how often it is looked at.
	idPoll = time.Second
)

// takenError says that another run's entry stands in place of this one's.
type takenError struct {
	worker   protocol.WorkerID
	sequence uint64
	who      string // where that is known
}

func (e *takenError) Error() string {
	return fmt.Sprintf("%v: a live worker%s has the id %s: give each worker a --worker-id of its own, or none; or stop that one",
		ErrWorkerTaken, e.who, e.worker)
}

// Is makes the error an [ErrWorkerTaken].
func (e *takenError) Is(target error) bool { return target == ErrWorkerTaken }

// claim creates the entry. Where one stands its worker is asked: one that answers
// is alive, and nobody there has left it behind. Where that cannot be told the
// entry is watched: a live worker renews it, another's expires.
func (h *Heartbeat) claim(ctx context.Context) error {
	write := context.WithoutCancel(ctx) // a worker that was told to drain still begins
	var watched uint64
	deadline := time.Now().Add(idWait)
	for {
		body, err := h.entry()
		if err != nil {
			return err
		}
		err = h.put(write, &nats.Msg{Data: body})
		var taken *takenError
		if !errors.As(err, &taken) {
			return err
		}
		there, err := h.owner(ctx)
		switch {
		case err == nil:
			taken.who = fmt.Sprintf(" (on host %q, process %d)", there.Host, there.PID)
			return taken
		case errors.Is(err, ErrUnknownWorker):
			h.seq = taken.sequence // it is gone: over what it left
			continue
		case watched != 0 && watched != taken.sequence, time.Now().After(deadline):
			return taken
		}
		if watched == 0 {
			h.bus.log.Warn("worker id is not free yet: waiting for its entry to expire, or to be renewed",
				"worker_id", string(h.worker), "error", err)
		}
		watched, h.seq = taken.sequence, 0
		if err := pause(ctx, idPoll); err != nil {
			return fmt.Errorf("%w: %w", taken, err)
		}
	}
}

// owner asks whoever has the id for its state.
func (h *Heartbeat) owner(ctx context.Context) (protocol.WorkerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stats, err := h.bus.WorkerStats(ctx, h.worker)
	return stats.WorkerInfo, err
}

// Confirm writes the entry again and refuses another's in its place. Call it
// once the worker answers under its id: of two that began at the same time
// neither could ask the other before.
func (h *Heartbeat) Confirm(ctx context.Context) error {
	err := h.Beat(ctx)
	if errors.Is(err, ErrNotInitialized) {
		return nil // it works unseen
	}
	return err
}

// put stores a message in the entry's place, under the sequence of this run's
// last write. Its id makes a repeated write after a lost answer show as this
// run's own. The caller has the place in h.write, or h is not shared.
func (h *Heartbeat) put(ctx context.Context, m *nats.Msg) error {
	if h.pending != nil {
		if err := h.send(ctx, h.pending); err != nil {
			return err
		}
	}
	h.writes++
	m.Subject = kvSubject(h.bus.ns.WorkerBucket(), string(h.worker))
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	m.Header.Set(protocol.HeaderMsgID, fmt.Sprintf("%s.%s.%d", h.worker, h.run, h.writes))
	return h.send(ctx, m)
}

func (h *Heartbeat) send(ctx context.Context, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for {
		m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(h.seq, 10)}
		ack, err := h.bus.publish(ctx, m)
		var wrong *sequenceError
		switch {
		case err == nil:
			h.seq, h.pending = ack.Sequence, nil
			return nil
		case errors.As(err, &wrong) && wrong.last == 0:
			h.seq = 0 // it expired, or the server forgot it
			continue
		case errors.As(err, &wrong) && h.pending == m:
			// A try had no answer: it may be what stands there.
			own, ownErr := h.stored(ctx, m, wrong.last)
			if err = ownErr; own {
				h.seq, h.pending = wrong.last, nil
				return nil
			}
			if err == nil || !passes(err) {
				h.pending = nil
				return fmt.Errorf("heartbeat of %s: %w", h.worker, &takenError{worker: h.worker, sequence: wrong.last})
			}
		case errors.As(err, &wrong):
			return fmt.Errorf("heartbeat of %s: %w", h.worker, &takenError{worker: h.worker, sequence: wrong.last})
		case errors.Is(err, errNoResponders):
			if err = h.bus.absent(ctx, kvStream(h.bus.ns.WorkerBucket())); errors.Is(err, ErrNotInitialized) {
				h.pending = nil
				return fmt.Errorf("heartbeat of %s: %w", h.worker, err)
			}
		case !passes(err) && !errors.Is(err, errWrongSequence):
			return fmt.Errorf("heartbeat of %s: %w", h.worker, err)
		}
		h.pending = m
		if err := retry(ctx, err); err != nil {
			return fmt.Errorf("heartbeat of %s: %w", h.worker, err)
		}
	}
}

// stored asks whether the message at a sequence is m, without a right to read:
// its id makes the server say where it has it. The condition is one that never
// holds, so that nothing is stored when it has not.
//
// Source: nats-server/server/stream.go, processJetStreamMsg: the id is looked up
// before the last id is compared.
func (h *Heartbeat) stored(ctx context.Context, m *nats.Msg, sequence uint64) (bool, error) {
	probe := &nats.Msg{Subject: m.Subject, Header: nats.Header{
		protocol.HeaderMsgID:              {m.Header.Get(protocol.HeaderMsgID)},
		jetstream.ExpectedLastMsgIDHeader: {"none"},
	}}
	ack, err := h.bus.publish(ctx, probe)
	return err == nil && ack.Duplicate && ack.Sequence == sequence, err
}
