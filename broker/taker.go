package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

const (
	// defaultPullExpires is how long a waiting pull stays open.
	//
	// Source: docs/rationale.md.
	defaultPullExpires = 10 * time.Second
	// minPullExpires keeps idle pulls from becoming a load.
	minPullExpires = 100 * time.Millisecond
	// fetchWait is how long a pull that does not wait may stay unanswered.
	fetchWait = 2 * time.Second
	// pullBackoff is the pause after a pull ended for a reason that the next one
	// would meet too: no leader, too many pulls.
	pullBackoff = 250 * time.Millisecond
	// pullSlack is what a waiting pull may be late with its heartbeat or its end.
	pullSlack = time.Second
)

// TakerConfig says what to take, and how much at once.
type TakerConfig struct {
	Pool  string // empty: protocol.DefaultPool
	Slots int    // jobs at once, at least 1
	// PullExpires is how long a waiting pull stays open, and so how long Run may
	// need to end; 0: 10 s, at least 100 ms. Shorter ones cost the bus requests
	// while the worker is idle: six each time they expire.
	PullExpires time.Duration
}

// Taker takes jobs of one pool: with a free slot only, from lane user before
// peer before bg, first in first out inside a lane. A delivery that meets no
// free slot is given back at once, so that no job waits in a busy worker. Make
// one with [Bus.NewTaker] and run it once.
//
// Source: docs/protocol.md, section 2, and docs/rationale.md.
type Taker struct {
	bus     *Bus
	cfg     TakerConfig
	ackWait time.Duration
	busy    atomic.Int64  // slots that hold a delivery
	freed   chan struct{} // holds one token: look at busy again
	started atomic.Bool

	abandon   sync.Once
	abandoned chan struct{} // closed by Abandon
}

// NewTaker checks that the pool is declared and reads its ack wait: one request
// for each lane. It starts nothing. Errors: [ErrPoolUndeclared],
// [ErrNotInitialized], [protocol.ErrName], [ErrConfig], [ErrDenied],
// [ErrUnavailable], [ErrClosed].
func (b *Bus) NewTaker(ctx context.Context, cfg TakerConfig) (*Taker, error) {
	if cfg.Pool == "" {
		cfg.Pool = protocol.DefaultPool
	}
	if cfg.PullExpires == 0 {
		cfg.PullExpires = defaultPullExpires
	}
	if err := protocol.ValidateName("pool", cfg.Pool); err != nil {
		return nil, err
	}
	if cfg.Slots < 1 || cfg.PullExpires < minPullExpires {
		return nil, fmt.Errorf("%w: a taker has at least 1 slot and pulls of at least %s, not %d and %s",
			ErrConfig, minPullExpires, cfg.Slots, cfg.PullExpires)
	}
	t := &Taker{bus: b, cfg: cfg, freed: make(chan struct{}, 1), abandoned: make(chan struct{})}
	for _, lane := range protocol.Lanes() {
		wait, err := b.consumerAckWait(ctx, cfg.Pool, lane)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", cfg.Pool, err)
		}
		if t.ackWait == 0 || wait < t.ackWait {
			t.ackWait = wait
		}
	}
	return t, nil
}

func (b *Bus) consumerAckWait(ctx context.Context, pool string, lane protocol.Lane) (time.Duration, error) {
	subject := "$JS.API.CONSUMER.INFO." + b.ns.JobsStream() + "." + protocol.LaneConsumer(pool, lane)
	m, err := b.request(ctx, b.nc, &nats.Msg{Subject: subject})
	if errors.Is(err, errNoResponders) {
		return 0, b.absent(ctx, b.ns.JobsStream())
	}
	if err != nil {
		return 0, err
	}
	var info struct {
		Error  *jetstream.APIError `json:"error"`
		Config struct {
			AckWait time.Duration `json:"ack_wait"`
		} `json:"config"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return 0, fmt.Errorf("%w: %s is answered with no JSON", ErrRefused, subject)
	}
	switch {
	case info.Error == nil:
		return info.Config.AckWait, nil
	case info.Error.ErrorCode == codeConsumerNotFound:
		return 0, fmt.Errorf("%w: it has no consumer %s: run `%s --pools %s`",
			ErrPoolUndeclared, protocol.LaneConsumer(pool, lane), b.initCommand(), pool)
	}
	return 0, b.apiFailure(info.Error)
}

// AckWait is how long the bus waits for a sign of a job before it gives it to
// another worker: the shortest of the pool's lanes.
func (t *Taker) AckWait() time.Duration { return t.ackWait }

// Busy is how many slots hold a delivery.
func (t *Taker) Busy() int { return int(t.busy.Load()) }

// Run takes jobs and hands each to do, on Run's own goroutine: do must not
// block. When ctx is done it takes no more: it naks what open pulls still bring
// and returns nil once they have ended, at most PullExpires and a second later.
// Deliveries in flight are not its concern; releasing them after Run is fine. It
// outlives disconnects, elections and restarts of servers; it ends by itself
// only with [ErrClosed], or when a subscription fails. It can run once.
func (t *Taker) Run(ctx context.Context, do func(*Delivery)) error {
	if t.started.Swap(true) {
		return fmt.Errorf("%w: a taker runs once", ErrConfig)
	}
	r, err := newTaking(t, do)
	if err != nil {
		return fmt.Errorf("pool %s: take: %w", t.cfg.Pool, err)
	}
	defer r.close()
	for ctx.Err() == nil {
		if err := r.round(ctx); err != nil {
			return fmt.Errorf("pool %s: take: %w", t.cfg.Pool, err)
		}
	}
	return r.drain()
}

// Abandon makes a Run that was told to stop return at once instead of waiting
// for its open pulls. A job that one of them still brings waits for its ack wait
// and is then given to another worker. It does not block. Idempotent.
func (t *Taker) Abandon() { t.abandon.Do(func() { close(t.abandoned) }) }

func (t *Taker) free() int { return t.cfg.Slots - int(t.busy.Load()) }

func (t *Taker) release() {
	t.busy.Add(-1)
	select {
	case t.freed <- struct{}{}:
	default: // a token is there already
	}
}

// newInbox is where the pulls of one lane are answered.
func (t *Taker) newInbox(lane int, messages chan *nats.Msg) (string, *nats.Subscription, error) {
	inbox := t.bus.nc.NewInbox() + "." + strconv.Itoa(lane)
	sub, err := t.bus.nc.ChanSubscribe(inbox+".*", messages)
	return inbox, sub, err
}
