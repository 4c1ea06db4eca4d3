package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// LaneStats is the queue of one lane.
type LaneStats struct {
	Pending    uint64 `json:"pending"`           // jobs that were never handed out
	InProgress int    `json:"in_progress"`       // handed out and not acked: they run, report, or were given back a moment ago
	OldestMS   int64  `json:"oldest_waiting_ms"` // age of the oldest pending job, 0 without one
}

// PoolStats is what an autoscaler looks at: what waits, what runs, and who works.
// Pending jobs with no free slot (Slots - Busy) ask for workers; the age of the
// oldest says for how long.
type PoolStats struct {
	Pool string `json:"pool"`
	LaneStats
	Lanes    map[protocol.Lane]LaneStats `json:"lanes"`
	Workers  int                         `json:"workers"`  // that take jobs
	Draining int                         `json:"draining"` // workers that take none any more
	Slots    int                         `json:"slots"`    // of the workers that take jobs
	Busy     int                         `json:"busy"`     // of those slots
}

// PoolStats reads every declared pool's, sorted by name, with the workers of
// [Bus.Workers]. It needs an operator's rights. The queue is the consumers' leaders'
// view, the workers the registry's, which is up to 10 s old.
func (b *Bus) PoolStats(ctx context.Context, workers []protocol.WorkerInfo) ([]PoolStats, error) {
	pools, err := b.PoolNames(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]PoolStats, 0, len(pools))
	for _, pool := range pools {
		p, err := b.PoolStatsOf(ctx, pool, workers)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// PoolStatsOf reads those of one pool; workers are those of all pools, as
// [Bus.Workers] gives them. A lane without its consumer is [ErrNotInitialized].
func (b *Bus) PoolStatsOf(ctx context.Context, pool string, workers []protocol.WorkerInfo) (PoolStats, error) {
	p := PoolStats{Pool: pool, Lanes: make(map[protocol.Lane]LaneStats)}
	for _, lane := range protocol.Lanes() {
		l, err := b.LaneStats(ctx, pool, lane, true)
		if err != nil {
			return p, fmt.Errorf("pool %s, lane %s: %w", pool, lane, err)
		}
		p.Lanes[lane] = l
		p.Pending, p.InProgress, p.OldestMS = p.Pending+l.Pending, p.InProgress+l.InProgress, max(p.OldestMS, l.OldestMS)
	}
	for _, w := range workers {
		switch {
		case w.Pool != pool:
		case w.Draining:
			p.Draining++
		default:
			p.Workers, p.Slots, p.Busy = p.Workers+1, p.Slots+w.Slots, p.Busy+w.Busy
		}
	}
	return p, nil
}

// LaneStats reads the queue of one lane. The age of its oldest job needs the right
// to read jobs, which a worker has not; the rest needs a worker's rights.
func (b *Bus) LaneStats(ctx context.Context, pool string, lane protocol.Lane, withAge bool) (LaneStats, error) {
	info, err := b.consumerInfo(ctx, protocol.LaneConsumer(pool, lane))
	if err != nil {
		return LaneStats{}, err
	}
	stats := LaneStats{Pending: info.NumPending, InProgress: info.NumAckPending}
	if info.NumPending == 0 || !withAge {
		return stats, nil
	}
	// Lanes are disjoint, so what stands behind the last delivery was not handed out.
	for m, err := range b.scan(ctx, b.nc, b.ns.JobsStream(), b.ns.LaneJobs(pool, lane), info.Delivered.Stream+1) {
		if err != nil {
			return LaneStats{}, err
		}
		now := cmp.Or(info.TimeStamp, time.Now()) // the server's clock, as the job's
		stats.OldestMS = max(now.Sub(m.at).Milliseconds(), 1)
		break
	}
	return stats, nil
}

// consumerInfo reads a consumer of the jobs stream from its leader.
func (b *Bus) consumerInfo(ctx context.Context, name string) (*jetstream.ConsumerInfo, error) {
	var info *jetstream.ConsumerInfo
	err := b.settled(ctx, func(ctx context.Context) error {
		subject := "$JS.API.CONSUMER.INFO." + b.ns.JobsStream() + "." + name
		ctx, done := b.guard(ctx, subject)
		defer done()
		consumer, err := b.js.Consumer(ctx, b.ns.JobsStream(), name)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("%w: stream %s has no consumer %s: run `%s`", ErrNotInitialized, b.ns.JobsStream(), name, b.initCommand())
		}
		if err != nil {
			return b.failure(ctx, subject, err)
		}
		info = consumer.CachedInfo()
		return nil
	})
	return info, err
}
