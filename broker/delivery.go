package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"starling/protocol"
)

// The acknowledgements of JetStream.
//
// Source: NATS documentation, Consumer Details, Acknowledgements.
const (
	ackDone       = "+ACK"
	ackAgain      = "-NAK"
	ackInProgress = "+WPI"
)

// Delivery is one job in this worker's hands. It holds a slot of its [Taker]
// until Release, and the job until it is settled: by Ack, Nak, DeadLetter or
// Drop, exactly once. Releasing and settling are independent: the slot is free
// when the guest is gone, the job is done when its parent was told. Safe for
// concurrent use.
type Delivery struct {
	bus     *Bus
	msg     *nats.Msg
	mark    protocol.DeliveryMark
	release func()

	mu    sync.Mutex
	state settlement // guarded by mu
}

type settlement int

const (
	unsettled settlement = iota
	settling             // an ack is on its way
	settled
)

// newDelivery reads the mark from the ack subject, which is the only place that
// has it.
func newDelivery(b *Bus, m *nats.Msg, release func()) (*Delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("%w: a message on %s is no delivery: %v", ErrRefused, m.Subject, err)
	}
	return &Delivery{
		bus: b, msg: m, release: sync.OnceFunc(release),
		mark: protocol.DeliveryMark{Sequence: meta.Sequence.Stream, Count: meta.NumDelivered},
	}, nil
}

// Body is the job as it was published. The caller must not change it.
func (d *Delivery) Body() []byte { return d.msg.Data }

// Place reads the job's subject. The error is [protocol.ErrName]: such a job is
// unreadable.
func (d *Delivery) Place() (protocol.JobPlace, error) {
	return d.bus.ns.ParseJobSubject(d.msg.Subject)
}

// Mark orders this delivery among all of its job. Counts say nothing about
// attempts: a busy worker gives a job back at once.
func (d *Delivery) Mark() protocol.DeliveryMark { return d.mark }

// LedgerRevision is the least revision of the record that the job's worker may
// see, and false for a job whose parent published it by hand.
func (d *Delivery) LedgerRevision() (uint64, bool) {
	n, err := strconv.ParseUint(d.msg.Header.Get(protocol.HeaderLedgerRevision), 10, 64)
	return n, err == nil && n > 0
}

// Traceparent is the trace that the job continues, or "".
func (d *Delivery) Traceparent() string { return d.msg.Header.Get(protocol.HeaderTraceparent) }

// Release frees the slot. It does not touch the job. It is idempotent and does
// not block.
func (d *Delivery) Release() { d.release() }

// Extend tells the server that the job is still worked on, which restarts its
// ack wait, and waits for the server's confirmation, at most 2 s. Call it every
// AckWait/3. An error ([ErrUnavailable], [ErrClosed]) means that the job may be
// on its way to another worker: after an ack wait of those read the record
// ([Bus.StillMine]). A confirmation is no proof of the claim: the server confirms
// for jobs that another runs, too. [ErrSettled] after a settlement.
func (d *Delivery) Extend(ctx context.Context) error {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	if state == settled {
		return fmt.Errorf("%w: job %s cannot be extended", ErrSettled, d.msg.Subject)
	}
	return d.tell(ctx, ackInProgress)
}

// Ack removes the job from the stream and waits until the server confirms it,
// trying again for as long as ctx lasts: repeating an ack is harmless. When ctx
// is done first ([ErrUnavailable]) the delivery is not settled, and Ack may be
// called again.
func (d *Delivery) Ack(ctx context.Context) error {
	if err := d.begin(); err != nil {
		return err
	}
	for {
		err := d.tell(ctx, ackDone)
		if err != nil && passes(err) && ctx.Err() == nil {
			if err = retry(ctx, err); err == nil {
				continue
			}
		}
		d.end(err == nil)
		return err
	}
}

// Nak gives the job back: the server hands it to a worker with a free slot, at
// once. It is sent once and settles the delivery whatever comes: a repeated nak
// could take the job out of the hands of the next worker. An error
// ([ErrUnavailable]) means that the job may come back only after the ack wait.
func (d *Delivery) Nak(ctx context.Context) error {
	if err := d.begin(); err != nil {
		return err
	}
	err := d.tell(ctx, ackAgain)
	d.end(true)
	return err
}

// Drop settles the delivery without a word to the server: for a claim that was
// lost, where the job is another's. It does not block.
func (d *Delivery) Drop() { d.end(true) }

// DeadLetter stores the job's body and headers with the reason among the dead
// letters, then acks it. It blocks until both are confirmed or ctx is done
// ([ErrUnavailable]): then call it again. Storing it twice is harmless. Headers
// that instruct the server (Nats-…) are left out, for they would make it refuse
// the letter.
//
// Source: docs/protocol.md, section 10.
func (d *Delivery) DeadLetter(ctx context.Context, reason protocol.DeadLetterReason, detail string) error {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	if state != unsettled {
		return fmt.Errorf("%w: job %s cannot become a dead letter", ErrSettled, d.msg.Subject)
	}
	letter := d.deadLetter(reason, detail)
	for {
		_, err := d.bus.publish(ctx, letter)
		if err == nil {
			return d.Ack(ctx)
		}
		if !passes(err) && !errors.Is(err, errStreamFull) {
			return fmt.Errorf("dead letter of %s: %w", d.msg.Subject, err)
		}
		if err := retry(ctx, err); err != nil {
			return fmt.Errorf("dead letter of %s: %w", d.msg.Subject, err)
		}
	}
}

// begin starts a settlement; only one can.
func (d *Delivery) begin() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != unsettled {
		return fmt.Errorf("%w: job %s", ErrSettled, d.msg.Subject)
	}
	d.state = settling
	return nil
}

func (d *Delivery) end(done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if done {
		d.state = settled
	} else if d.state == settling {
		d.state = unsettled
	}
}

// tell sends one acknowledgement. Every kind is confirmed when it has a reply
// subject.
//
// Source: nats-server/server/consumer.go, processAck.
func (d *Delivery) tell(ctx context.Context, what string) error {
	_, err := d.bus.ask(ctx, &nats.Msg{Subject: d.msg.Reply, Data: []byte(what)})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoResponders):
		return fmt.Errorf("%w: the consumer of %s has no leader now", ErrUnavailable, d.msg.Subject)
	}
	return fmt.Errorf("%s of job %s: %w", what, d.msg.Subject, err)
}

// deadLetter is the letter of this job. Its id is the job's place in the stream,
// so that a repeated one is dropped.
func (d *Delivery) deadLetter(reason protocol.DeadLetterReason, detail string) *nats.Msg {
	header := nats.Header{}
	for name, values := range d.msg.Header {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			header[name] = values
		}
	}
	header[protocol.HeaderReason] = []string{string(reason)}
	header[protocol.HeaderDetail] = []string{oneLine(protocol.Bound(detail))}
	header[protocol.HeaderMsgID] = []string{d.msg.Subject + "." + strconv.FormatUint(d.mark.Sequence, 10)}
	// A job that cannot be read may still have a subject of this shape, for the
	// stream takes no other. Its tokens are used as they are.
	tokens := strings.Split(d.msg.Subject, ".")
	pool, task := tokens[len(tokens)-3], tokens[len(tokens)-1]
	return &nats.Msg{
		Subject: d.bus.ns.DeadLetterSubject(pool, protocol.TaskID(task)), Header: header, Data: d.msg.Data,
	}
}

// oneLine makes a text fit a header.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
