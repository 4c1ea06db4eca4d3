package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"starling/protocol"
)

// HeartbeatEvery is how often a worker renews its entry; the bucket forgets one
// after 30 s.
const HeartbeatEvery = 10 * time.Second

// Heartbeat keeps a worker's entry in the workers bucket. Its goroutine is its
// own, so that neither a guest nor a download can hold it up; Close ends it.
//
// The entry is one run's: it is created, and renewed under the sequence of this
// run's last write. So two live workers cannot have one id.
type Heartbeat struct {
	bus    *Bus
	info   func() protocol.WorkerInfo
	worker protocol.WorkerID
	run    string // tells this run from another of the same id

	write   chan struct{} // one write at a time: an old state never follows a newer one
	seq     uint64        // of the entry as this run wrote it; with the place in write
	writes  int           // so far; the same
	pending *nats.Msg     // a write that had no clear answer; the same
	foreign uint64        // another's entry, when it was seen; the same

	lostOnce sync.Once
	lost     chan struct{}

	stop  context.CancelFunc
	done  chan struct{}
	close sync.Once
	err   error // of the close
}

// Announce claims the worker's id by creating its entry, then renews it every
// 10 s until [Heartbeat.Close], whatever becomes of ctx, which bounds the wait
// for an id only. info is called from the heartbeat's goroutine and by Beat; it
// must not block and must be safe for concurrent use. A failed renewal is logged
// and the next one comes all the same; so is a first write into a bucket that is
// not there.
//
// An id that a live worker has is [ErrWorkerTaken]. An entry whose worker is gone
// is taken over at once, or, where this user may not ask for the worker, once it
// has expired, which takes up to 30 s.
//
// Source: docs/protocol.md, section 2, workers.
func (b *Bus) Announce(ctx context.Context, info func() protocol.WorkerInfo) (*Heartbeat, error) {
	return b.announce(ctx, HeartbeatEvery, info)
}

func (b *Bus) announce(ctx context.Context, every time.Duration, info func() protocol.WorkerInfo) (*Heartbeat, error) {
	first := info()
	h := &Heartbeat{
		bus: b, info: info, worker: first.WorkerID, run: cmp.Or(first.RunID, protocol.NewRunID()),
		write: make(chan struct{}, 1), lost: make(chan struct{}), done: make(chan struct{}),
	}
	if err := protocol.ValidateName("worker_id", string(h.worker)); err != nil {
		return nil, err
	}
	// A server without peers forgets the bucket, which is in memory, when it
	// restarts. That hides workers until the next Init and stops none.
	if err := h.claim(ctx); errors.Is(err, ErrNotInitialized) {
		b.log.Warn("heartbeat not stored: the worker works unseen", "worker_id", string(h.worker), "error", err)
	} else if err != nil {
		return nil, err
	}
	// The life of the heartbeat is Close's, not the caller's first request's.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	go h.renew(running, every)
	return h, nil
}

func (h *Heartbeat) renew(ctx context.Context, every time.Duration) {
	defer close(h.done)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := h.Beat(ctx); err != nil && ctx.Err() == nil {
				h.bus.log.Warn("heartbeat not stored", "worker_id", string(h.worker), "error", err)
			}
		}
	}
}

// Lost is closed when another worker has taken the id and renews it: this one
// should stop, for the fleet no longer sees it.
func (h *Heartbeat) Lost() <-chan struct{} { return h.lost }

// Beat writes the entry now, for a change that observers should not wait for,
// such as a drain. It blocks until the write is acked, at most some seconds.
// Another's entry in its place is [ErrWorkerTaken].
func (h *Heartbeat) Beat(ctx context.Context) error {
	select {
	case h.write <- struct{}{}:
		defer func() { <-h.write }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	body, err := h.entry()
	if err != nil {
		return err
	}
	err = h.put(ctx, &nats.Msg{Data: body})
	var taken *takenError
	switch {
	case errors.As(err, &taken) && h.foreign != 0 && taken.sequence != h.foreign:
		// Somebody else renews it. One foreign entry alone could be this run's own
		// write whose answer was lost.
		h.lostOnce.Do(func() { close(h.lost) })
	case errors.As(err, &taken):
		h.foreign = taken.sequence
	case err == nil:
		h.foreign = 0
	}
	return err
}

// entry is what the registry shows now.
func (h *Heartbeat) entry() ([]byte, error) {
	info := h.info()
	info.RunID, info.SeenAt = h.run, protocol.NewTime(time.Now())
	body, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	return body, nil
}

// Close ends the heartbeat and removes the entry, so that nobody waits 30 s to
// see that the worker left; another's entry stays. It is idempotent and blocks
// until both is done, at most until ctx ends.
func (h *Heartbeat) Close(ctx context.Context) error {
	h.close.Do(func() {
		h.stop()
		<-h.done
		marker := nats.NewMsg("")
		marker.Header.Set(headerKVOperation, "DEL")
		h.err = h.put(ctx, marker)
		if errors.Is(h.err, ErrNotInitialized) || errors.Is(h.err, ErrWorkerTaken) {
			h.err = nil // the bucket is gone, and the entry with it; or it is another's
		}
	})
	return h.err
}

// SeenWorker is a worker's entry and when the bus stored it, by the bus's clock:
// the worker's own is its SeenAt.
type SeenWorker struct {
	protocol.WorkerInfo
	StoredAt time.Time
}

// Registry is what the workers bucket holds.
type Registry struct {
	Workers    []SeenWorker // by pool and id
	Unreadable []UnreadableWorker
}

// UnreadableWorker is an entry that no worker of this version wrote.
type UnreadableWorker struct {
	Key string // in the bucket
	Err error
}

// Workers lists the live workers, by pool and id: those that wrote their entry
// within the last 30 s. It needs an operator's rights. Entries that cannot be
// read are left out and logged.
func (b *Bus) Workers(ctx context.Context) ([]protocol.WorkerInfo, error) {
	registry, err := b.Registry(ctx)
	var workers []protocol.WorkerInfo
	for _, w := range registry.Workers {
		workers = append(workers, w.WorkerInfo)
	}
	for _, u := range registry.Unreadable {
		b.log.Warn("worker entry unreadable", "key", u.Key, "error", u.Err)
	}
	return workers, err
}

// Registry is Workers with the bus's time of each entry, and with those that cannot
// be read, which it does not log.
func (b *Bus) Registry(ctx context.Context) (Registry, error) {
	bucket := b.ns.WorkerBucket()
	var registry Registry
	for m, err := range b.scan(ctx, b.nc, kvStream(bucket), kvSubject(bucket, ">"), 1) {
		if err != nil {
			return Registry{}, fmt.Errorf("listing workers: %w", err)
		}
		if m.deleted() {
			continue
		}
		info, err := protocol.ParseWorkerInfo(m.data)
		if err != nil {
			registry.Unreadable = append(registry.Unreadable, UnreadableWorker{strings.TrimPrefix(m.subject, kvSubject(bucket, "")), err})
			continue
		}
		registry.Workers = append(registry.Workers, SeenWorker{info, m.at})
	}
	slices.SortFunc(registry.Workers, func(a, b SeenWorker) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.WorkerID, b.WorkerID))
	})
	return registry, nil
}
