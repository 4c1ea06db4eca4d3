package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// InitConfig says what [Bus.Init] creates. A zero field of an existing
// namespace leaves what is there; a field that is set changes it, where that is
// possible at all.
type InitConfig struct {
	// Pools to declare; empty: the default pool. Pools of earlier calls stay.
	Pools []string
	// Replicas of every stream and bucket, 1, 3 or 5; 0: 1.
	Replicas int
	// AckWait is how long a worker may be silent before its job is given to
	// another; 0: 30 s. Workers renew every third of it.
	AckWait time.Duration

	// MaxJobs and MaxJobBytes bound what waits or runs: a queue always has limits.
	MaxJobs     int64 // 0: 1,000,000
	MaxJobBytes int64 // 0: 1 GiB; at least a largest job
	// MaxFrameBytes, MaxLedgerBytes and MaxResultBytes bound the frames of all tasks,
	// the ledger and large results. 0 and [NoLimit]: as much as the account may. Less
	// than one largest frame, record or result takes is refused.
	MaxFrameBytes  int64
	MaxLedgerBytes int64
	MaxResultBytes int64

	FrameAge      time.Duration // frames are kept for; 0: 72 h
	LedgerAge     time.Duration // records are kept for; 0: 7 d
	ResultAge     time.Duration // large results are kept for; 0: 7 d
	DeadLetterAge time.Duration // dead letters are kept for; 0: 30 d
	// MaxObservers may follow tasks at the same time; 0: 100,000. Each costs the
	// bus about 70 KB.
	MaxObservers int

	// Names are what errors call the fields, as in [Config].
	Names map[string]string
}

// NoLimit, for MaxFrameBytes, MaxLedgerBytes and MaxResultBytes, takes off the limit
// that is set.
const NoLimit = -1

// The settings of section 2 that are not an operator's.
const (
	maxJobMsgBytes  = 272 << 10
	maxRecordBytes  = 64 << 10
	workerTTL       = 30 * time.Second
	frameDuplicates = 30 * time.Second

	// 2.15 servers cap consumers at 1,000 a stream where it sets nothing.
	maxLaneConsumers = 10_000
	maxConsumers     = 10_000

	// Above all slots of a fleet, and above all its open pulls.
	maxAckPending = 1 << 17
	maxWaiting    = 1 << 16

	day = 24 * time.Hour
)

// Validate checks every field and joins all problems; each is [ErrConfig].
func (c InitConfig) Validate() error {
	var problems []error
	name := func(field string) string { return cmp.Or(c.Names[field], field) }
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	for _, pool := range c.Pools {
		if err := protocol.ValidateName("pool", pool); err != nil {
			bad("%s: %w", name("Pools"), err)
		}
	}
	switch c.Replicas {
	case 0, 1, 3, 5:
	default:
		bad("%s is %d: it is 1, 3 or 5", name("Replicas"), c.Replicas)
	}
	if c.AckWait != 0 && c.AckWait < 100*time.Millisecond {
		bad("%s is %s: it is at least 100ms, and more than a worker may stall", name("AckWait"), c.AckWait)
	}
	for _, n := range []struct {
		field string
		value int64
	}{
		{"MaxJobs", c.MaxJobs},
		{"MaxObservers", int64(c.MaxObservers)},
		{"FrameAge", int64(c.FrameAge)},
		{"LedgerAge", int64(c.LedgerAge)},
		{"ResultAge", int64(c.ResultAge)},
		{"DeadLetterAge", int64(c.DeadLetterAge)},
	} {
		if n.value < 0 {
			bad("%s is negative: leave it 0 for the default", name(n.field))
		}
	}
	for _, l := range c.limits() {
		if l.value != 0 && l.value < l.least && !(l.value == NoLimit && l.optional) {
			bad("%s is %d: it is at least %d, the room of %s", name(l.field), l.value, l.least, l.largest)
		}
	}
	return errors.Join(problems...)
}

// Init creates the whole topology of the namespace, and later each new pool,
// without disturbing what is there: it may be called again, by several at a
// time, on a running fleet. It needs an operator's rights and blocks until all
// of it stands or ctx ends. What exists with other settings, where they matter,
// is a [TopologyError] and nothing is changed.
//
// Source: docs/protocol.md, section 2.
func (b *Bus) Init(ctx context.Context, cfg InitConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if len(cfg.Pools) == 0 {
		cfg.Pools = []string{protocol.DefaultPool}
	}
	wanted := b.streams(cfg)
	for i := range wanted {
		if err := b.check(ctx, &wanted[i]); err != nil {
			return err
		}
	}
	for _, w := range wanted {
		if err := b.ensureStream(ctx, w); err != nil {
			return err
		}
	}
	return b.ensurePools(ctx, cfg)
}

// PoolNames lists the declared pools, sorted. Reading them needs the right to
// ask for the jobs stream. A namespace that was never initialized is
// [ErrNotInitialized].
func (b *Bus) PoolNames(ctx context.Context) ([]string, error) {
	info, err := b.streamInfo(ctx, b.ns.JobsStream())
	if err != nil {
		return nil, err
	}
	return b.poolsOf(info.Config.Subjects), nil
}

func (b *Bus) poolsOf(subjects []string) []string {
	var pools []string
	for _, subject := range subjects {
		tokens := strings.Split(subject, ".")
		if len(tokens) == 5 && subject == b.ns.PoolJobs(tokens[2]) {
			pools = append(pools, tokens[2])
		}
	}
	slices.Sort(pools)
	return pools
}

// ensurePools declares the pools: their subjects, then a durable consumer for
// each lane. The stream's subjects cannot be changed under a revision, so two
// calls at a time could each write a list without the other's pool. Hence every
// call also keeps the pools that have consumers, and looks again at the end.
func (b *Bus) ensurePools(ctx context.Context, cfg InitConfig) error {
	for range 10 {
		changed, err := b.ensureSubjects(ctx, cfg.Pools)
		if err != nil {
			return err
		}
		for _, pool := range cfg.Pools {
			for _, lane := range protocol.Lanes() {
				if err := b.ensureConsumer(ctx, cfg, pool, lane); err != nil {
					return err
				}
			}
		}
		if !changed {
			return nil
		}
	}
	return fmt.Errorf("%w: the pools of %s keep changing: run init from one place at a time", ErrUnavailable, b.ns.JobsStream())
}

// ensureSubjects reports whether it had to change the stream.
func (b *Bus) ensureSubjects(ctx context.Context, pools []string) (bool, error) {
	info, err := b.streamInfo(ctx, b.ns.JobsStream())
	if err != nil {
		return false, err
	}
	stream, err := b.js.Stream(ctx, b.ns.JobsStream())
	if err != nil {
		return false, b.failure(ctx, "", err)
	}
	want := slices.Clone(info.Config.Subjects)
	names := stream.ConsumerNames(ctx)
	for name := range names.Name() {
		if pool, lane, ok := cutLast(name, "-"); ok && protocol.Lane(lane).Validate() == nil && protocol.ValidateName("pool", pool) == nil {
			want = append(want, b.ns.PoolJobs(pool))
		}
	}
	if err := names.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return false, b.failure(ctx, "", err)
	}
	for _, pool := range pools {
		want = append(want, b.ns.PoolJobs(pool))
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if len(want) == len(info.Config.Subjects) {
		return false, nil
	}
	config := info.Config
	config.Subjects = want
	return true, b.settled(ctx, func(ctx context.Context) error {
		_, err := b.js.UpdateStream(ctx, config)
		return err
	})
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// ensureConsumer creates the consumer of a lane, or changes its ack wait where
// the operator asks for another.
func (b *Bus) ensureConsumer(ctx context.Context, cfg InitConfig, pool string, lane protocol.Lane) error {
	name, filter := protocol.LaneConsumer(pool, lane), b.ns.LaneJobs(pool, lane)
	want := jetstream.ConsumerConfig{
		Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: cmp.Or(cfg.AckWait, 30*time.Second), MaxDeliver: -1,
		MaxAckPending: maxAckPending, MaxWaiting: maxWaiting,
		Description: "jobs of pool " + pool + ", lane " + string(lane),
	}
	return b.settled(ctx, func(ctx context.Context) error {
		existing, err := b.js.Consumer(ctx, b.ns.JobsStream(), name)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			_, err = b.js.CreateOrUpdateConsumer(ctx, b.ns.JobsStream(), want)
			return err
		}
		if err != nil {
			return err
		}
		have := existing.CachedInfo().Config
		if differences := b.consumerDifferences(have, name, filter); len(differences) > 0 {
			return differences[0]
		}
		update := have
		update.AckWait = cmp.Or(cfg.AckWait, have.AckWait)
		update.MaxAckPending, update.MaxWaiting = max(have.MaxAckPending, maxAckPending), max(have.MaxWaiting, maxWaiting)
		if update.AckWait == have.AckWait && update.MaxAckPending == have.MaxAckPending && update.MaxWaiting == have.MaxWaiting {
			return nil
		}
		_, err = b.js.UpdateConsumer(ctx, b.ns.JobsStream(), update)
		return err
	})
}

// consumerDifferences are the settings of a lane's consumer that section 2 demands
// otherwise.
func (b *Bus) consumerDifferences(have jetstream.ConsumerConfig, name, filter string) []*TopologyError {
	var differences []*TopologyError
	differs := func(setting string, have, want any) {
		differences = append(differences, &TopologyError{
			Stream: b.ns.JobsStream() + " consumer " + name, Setting: setting, Have: fmt.Sprint(have), Want: fmt.Sprint(want),
		})
	}
	if have.FilterSubject != filter {
		differs("filter subject", have.FilterSubject, filter)
	}
	if have.AckPolicy != jetstream.AckExplicitPolicy {
		differs("ack policy", have.AckPolicy, "explicit")
	}
	if have.MaxDeliver > 0 {
		differs("max deliver", have.MaxDeliver, -1)
	}
	if len(have.BackOff) > 0 {
		differs("backoff", have.BackOff, "none")
	}
	return differences
}
