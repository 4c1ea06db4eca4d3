package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TopologyError says which setting of an existing stream or consumer is not
// what section 2 demands. It is [ErrTopology].
type TopologyError struct {
	Stream  string // the stream's name, and the consumer's
	Setting string
	Have    string
	Want    string
}

func (e *TopologyError) Error() string {
	return fmt.Sprintf("%v: %s has %s %s, not %s: another program made it, or an older version: delete it, or use another namespace",
		ErrTopology, e.Stream, e.Setting, e.Have, e.Want)
}

// Is makes the error an [ErrTopology].
func (e *TopologyError) Is(target error) bool { return target == ErrTopology }

// wantedStream is a stream of the topology. tuned is set from what the operator
// asked for explicitly: it is applied to an existing stream, the rest of config
// only to a new one.
type wantedStream struct {
	config jetstream.StreamConfig
	tuned  func(*jetstream.StreamConfig)
	update *jetstream.StreamConfig // of an existing one; nil: nothing to change
	exists bool
}

// streams is section 2, as one table. Buckets are streams by the conventions of NATS (ADR-8,
// ADR-20), made directly because the client's calls cannot set MaxConsumers.
func (b *Bus) streams(cfg InitConfig) []wantedStream {
	unlimited := func(n int64) int64 { return cmp.Or(n, -1) }
	stream := func(c jetstream.StreamConfig, age time.Duration, maxBytes int64, tune func(*jetstream.StreamConfig)) wantedStream {
		c.Replicas, c.AllowDirect = cmp.Or(cfg.Replicas, 1), true
		c.MaxConsumers = cmp.Or(c.MaxConsumers, maxConsumers)
		return wantedStream{config: c, tuned: func(c *jetstream.StreamConfig) {
			c.Replicas = cmp.Or(cfg.Replicas, c.Replicas)
			c.MaxAge, c.MaxBytes = cmp.Or(age, c.MaxAge), cmp.Or(maxBytes, c.MaxBytes)
			if tune != nil {
				tune(c)
			}
		}}
	}
	bucket := func(name, description string, age time.Duration, maxBytes int64) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: kvStream(name), Subjects: []string{"$KV." + name + ".>"}, Description: description,
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true,
			MaxAge: age, MaxBytes: unlimited(maxBytes), Duplicates: min(cmp.Or(age, 2*time.Minute), 2*time.Minute),
		}
	}
	objects := func(name, description string, age time.Duration, maxBytes int64) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: objStream(name), Subjects: []string{"$O." + name + ".C.>", "$O." + name + ".M.>"}, Description: description,
			Discard: jetstream.DiscardNew, AllowRollup: true, MaxAge: age, MaxBytes: unlimited(maxBytes),
		}
	}

	jobs := stream(jetstream.StreamConfig{
		Name: b.ns.JobsStream(), Description: "jobs that wait or run", Retention: jetstream.WorkQueuePolicy,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgSize: maxJobMsgBytes,
		MaxMsgs: cmp.Or(cfg.MaxJobs, 1_000_000), MaxBytes: cmp.Or(cfg.MaxJobBytes, 1<<30), MaxConsumers: maxLaneConsumers,
	}, 0, cfg.MaxJobBytes, func(c *jetstream.StreamConfig) { c.MaxMsgs = cmp.Or(cfg.MaxJobs, c.MaxMsgs) })
	for _, pool := range cfg.Pools {
		jobs.config.Subjects = append(jobs.config.Subjects, b.ns.PoolJobs(pool))
	}
	slices.Sort(jobs.config.Subjects)
	jobs.config.Subjects = slices.Compact(jobs.config.Subjects)

	tasks := stream(jetstream.StreamConfig{
		Name: b.ns.TasksStream(), Description: "frames of tasks", Subjects: []string{string(b.ns) + ".tasks.*"},
		MaxAge: cmp.Or(cfg.FrameAge, 3*day), MaxBytes: unlimited(cfg.MaxFrameBytes),
		Duplicates:   min(frameDuplicates, cmp.Or(cfg.FrameAge, frameDuplicates)),
		MaxConsumers: cmp.Or(cfg.MaxObservers, 100_000),
	}, cfg.FrameAge, cfg.MaxFrameBytes, func(c *jetstream.StreamConfig) { c.MaxConsumers = cmp.Or(cfg.MaxObservers, c.MaxConsumers) })

	ledger := bucket(b.ns.LedgerBucket(), "delegation ledger", cmp.Or(cfg.LedgerAge, 7*day), cfg.MaxLedgerBytes)
	ledger.MaxMsgSize = maxRecordBytes
	ledger.RePublish = &jetstream.RePublish{Source: "$KV." + b.ns.LedgerBucket() + ".>", Destination: string(b.ns) + ".delegations.>"}

	workers := bucket(b.ns.WorkerBucket(), "live workers", workerTTL, 0)
	workers.Storage = jetstream.MemoryStorage

	results := objects(b.ns.ResultBucket(), "large results", cmp.Or(cfg.ResultAge, 7*day), cfg.MaxResultBytes)

	return []wantedStream{
		jobs, tasks,
		stream(ledger, cfg.LedgerAge, cfg.MaxLedgerBytes, nil),
		stream(objects(b.ns.CapsuleBucket(), "capsule modules", 0, 0), 0, 0, nil),
		stream(bucket(b.ns.CapsuleIndexBucket(), "capsules by name and version", 0, 0), 0, 0, nil),
		stream(results, cfg.ResultAge, cfg.MaxResultBytes, nil),
		stream(workers, 0, 0, nil),
		stream(jetstream.StreamConfig{
			Name: b.ns.DeadLetterStream(), Description: "jobs that cannot run", Subjects: []string{string(b.ns) + ".dlq.*.*"},
			MaxAge: cmp.Or(cfg.DeadLetterAge, 30*day),
		}, cfg.DeadLetterAge, 0, nil),
	}
}

// check compares an existing stream with what is wanted and keeps what is to be
// updated. It changes nothing.
func (b *Bus) check(ctx context.Context, w *wantedStream) error {
	info, err := b.streamInfo(ctx, w.config.Name)
	if errors.Is(err, ErrNotInitialized) {
		return nil
	}
	if err != nil {
		return err
	}
	w.exists = true
	have := info.Config
	if differences := b.streamDifferences(have, w.config); len(differences) > 0 {
		return differences[0]
	}
	update := have
	w.tuned(&update)
	if update.MaxConsumers < w.config.MaxConsumers && update.MaxConsumers <= 0 {
		update.MaxConsumers = w.config.MaxConsumers
	}
	for _, limit := range []struct {
		of, flag         string
		held, have, want int64
	}{
		{"bytes", limitOf(w.config.Name).flag, int64(info.State.Bytes), have.MaxBytes, update.MaxBytes},
		{"messages", limitOf(w.config.Name).messages, int64(info.State.Msgs), have.MaxMsgs, update.MaxMsgs},
	} {
		if limit.want > 0 && limit.want != limit.have && limit.want < limit.held {
			return fmt.Errorf("%w: stream %s holds %d %s, more than %s %d allows: give more, or wait until it holds less",
				ErrConfig, w.config.Name, limit.held, limit.of, limit.flag, limit.want)
		}
	}
	if update.MaxAge > 0 {
		update.Duplicates = min(update.Duplicates, update.MaxAge)
	}
	if update.Replicas != have.Replicas || update.MaxAge != have.MaxAge || update.MaxBytes != have.MaxBytes ||
		update.MaxMsgs != have.MaxMsgs || update.MaxConsumers != have.MaxConsumers {
		w.update = &update
	}
	return nil
}

// streamDifferences are the settings of an existing stream that section 2 demands
// otherwise, and that init cannot change.
func (b *Bus) streamDifferences(have, want jetstream.StreamConfig) []*TopologyError {
	type setting struct {
		name       string
		have, want any
	}
	settings := []setting{
		{"retention", have.Retention, want.Retention},
		{"storage", have.Storage, want.Storage},
		{"discard policy", have.Discard, want.Discard},
		{"discard new per subject", have.DiscardNewPerSubject, want.DiscardNewPerSubject},
		{"messages per subject", cmp.Or(have.MaxMsgsPerSubject, -1), cmp.Or(want.MaxMsgsPerSubject, -1)},
		{"message size", cmp.Or(have.MaxMsgSize, -1), cmp.Or(want.MaxMsgSize, -1)},
		{"direct gets", have.AllowDirect, want.AllowDirect},
		{"rollups", have.AllowRollup, want.AllowRollup},
		{"republish", republish(have.RePublish), republish(want.RePublish)},
		{"mirror or sources", have.Mirror != nil || len(have.Sources) > 0, false},
		{"sealed", have.Sealed, false},
	}
	if want.Name == b.ns.JobsStream() {
		// Pools come and go; another subject would be another program's.
		settings = append(settings, setting{"subjects that are no pool", len(have.Subjects) - len(b.poolsOf(have.Subjects)), 0},
			setting{"max age", have.MaxAge, time.Duration(0)})
	} else {
		settings = append(settings, setting{"subjects", sorted(have.Subjects), sorted(want.Subjects)})
	}
	if want.Name == kvStream(b.ns.WorkerBucket()) {
		settings = append(settings, setting{"max age", have.MaxAge, want.MaxAge})
	}
	var differences []*TopologyError
	for _, s := range settings {
		if h, w := fmt.Sprint(s.have), fmt.Sprint(s.want); h != w {
			differences = append(differences, &TopologyError{Stream: want.Name, Setting: s.name, Have: h, Want: w})
		}
	}
	return differences
}

func republish(r *jetstream.RePublish) string {
	if r == nil {
		return "none"
	}
	return r.Source + " to " + r.Destination
}

func sorted(subjects []string) []string {
	subjects = slices.Clone(subjects)
	slices.Sort(subjects)
	return subjects
}

// ensureStream creates or updates one. A stream that another Init creates at
// the same time is as good.
func (b *Bus) ensureStream(ctx context.Context, w wantedStream) error {
	switch {
	case w.update != nil:
		b.log.Info("updating stream", "stream", w.config.Name)
		placed := b.placing("updating", *w.update)
		return b.settled(ctx, func(ctx context.Context) error {
			_, err := b.js.UpdateStream(ctx, *w.update)
			return placed(err)
		})
	case w.exists:
		return nil
	}
	placed := b.placing("creating", w.config)
	return b.settled(ctx, func(ctx context.Context) error {
		_, err := b.js.CreateStream(ctx, w.config)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return b.check(ctx, &w)
		}
		return placed(err)
	})
}

// streamInfo reads a stream's state; a missing one is [ErrNotInitialized].
func (b *Bus) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	var info *jetstream.StreamInfo
	err := b.settled(ctx, func(ctx context.Context) error {
		ctx, done := b.guard(ctx, "$JS.API.STREAM.INFO."+name)
		defer done()
		stream, err := b.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return b.noStream(name)
		}
		if err != nil {
			return b.failure(ctx, "$JS.API.STREAM.INFO."+name, err)
		}
		info = stream.CachedInfo()
		return nil
	})
	return info, err
}

// adminTry and adminWithin bound one try of an administrative request, which an
// election may leave without an answer, and all of them.
const (
	adminTry    = 4 * time.Second
	adminWithin = 30 * time.Second
)

// settled runs an administrative request and repeats it while a cluster that
// just started, or that elects, has no leader for it. All of them are safe to
// repeat.
func (b *Bus) settled(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, adminWithin)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, adminTry)
		err := b.classified(try, do(try))
		done()
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		if pause(ctx, reconnectWait) != nil {
			return err
		}
	}
}

// classified translates what is not yet one of the package's own errors.
func (b *Bus) classified(ctx context.Context, err error) error {
	for _, class := range []error{ErrTopology, ErrNotInitialized, ErrUnavailable, ErrDenied, ErrNoJetStream, ErrRefused, ErrClosed} {
		if errors.Is(err, class) {
			return err
		}
	}
	if errors.Is(err, errNoResponders) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		return fmt.Errorf("%w: nobody answers on $JS.API: start the server with -js", ErrNoJetStream)
	}
	return b.failure(ctx, "$JS.API", err)
}
