package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
type Heartbeat struct {
	bus    *Bus
	info   func() protocol.WorkerInfo
	worker protocol.WorkerID

	write chan struct{} // one write at a time: an old state never follows a newer one

	stop  context.CancelFunc
	done  chan struct{}
	close sync.Once
	err   error // of the close
}

// Announce writes the worker's entry, then renews it every 10 s until
// [Heartbeat.Close], whatever becomes of ctx, which bounds the first write only.
// info is called from the heartbeat's goroutine and by Beat; it must not block
// and must be safe for concurrent use. A failed renewal is logged and the next
// one comes all the same; so is a first write into a bucket that is not there.
//
// Source: docs/protocol.md, section 2, workers.
func (b *Bus) Announce(ctx context.Context, info func() protocol.WorkerInfo) (*Heartbeat, error) {
	return b.announce(ctx, HeartbeatEvery, info)
}

func (b *Bus) announce(ctx context.Context, every time.Duration, info func() protocol.WorkerInfo) (*Heartbeat, error) {
	h := &Heartbeat{
		bus: b, info: info, worker: info().WorkerID,
		write: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if err := protocol.ValidateName("worker_id", string(h.worker)); err != nil {
		return nil, err
	}
	// A server without peers forgets the bucket, which is in memory, when it
	// restarts. That hides workers until the next Init and stops none.
	if err := h.Beat(ctx); errors.Is(err, ErrNotInitialized) {
		b.log.Warn("heartbeat not stored: the worker works unseen", "worker_id", string(h.worker), "error", err)
	} else if err != nil {
		return nil, err
	}
	// The life of the heartbeat is Close's, not the caller's first request's.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	go h.run(running, every)
	return h, nil
}

func (h *Heartbeat) run(ctx context.Context, every time.Duration) {
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

// Beat writes the entry now, for a change that observers should not wait for,
// such as a drain. It blocks until the write is acked, at most 5 s.
func (h *Heartbeat) Beat(ctx context.Context) error {
	select {
	case h.write <- struct{}{}:
		defer func() { <-h.write }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	info := h.info()
	info.SeenAt = protocol.NewTime(time.Now())
	body, err := json.Marshal(info)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return h.put(ctx, &nats.Msg{Data: body})
}

func (h *Heartbeat) put(ctx context.Context, m *nats.Msg) error {
	bucket := h.bus.ns.WorkerBucket()
	m.Subject = kvSubject(bucket, string(h.worker))
	if _, err := h.bus.store(ctx, h.bus.nc, kvStream(bucket), m); err != nil {
		return fmt.Errorf("heartbeat of %s: %w", h.worker, err)
	}
	return nil
}

// Close ends the heartbeat and removes the entry, so that nobody waits 30 s to
// see that the worker left. It is idempotent and blocks until both is done, at
// most until ctx ends.
func (h *Heartbeat) Close(ctx context.Context) error {
	h.close.Do(func() {
		h.stop()
		<-h.done
		marker := nats.NewMsg("")
		marker.Header.Set(headerKVOperation, "DEL")
		if h.err = h.put(ctx, marker); errors.Is(h.err, ErrNotInitialized) {
			h.err = nil // the bucket is gone, and the entry with it
		}
	})
	return h.err
}

// Workers lists the live workers, by pool and id: those that wrote their entry
// within the last 30 s. It needs an operator's rights. Entries that cannot be
// read are left out and logged.
func (b *Bus) Workers(ctx context.Context) ([]protocol.WorkerInfo, error) {
	bucket := b.ns.WorkerBucket()
	var workers []protocol.WorkerInfo
	for m, err := range b.scan(ctx, b.nc, kvStream(bucket), kvSubject(bucket, ">"), 1) {
		if err != nil {
			return nil, fmt.Errorf("listing workers: %w", err)
		}
		if m.deleted() {
			continue
		}
		info, err := protocol.ParseWorkerInfo(m.data)
		if err != nil {
			b.log.Warn("worker entry unreadable", "subject", m.subject, "error", err)
			continue
		}
		workers = append(workers, info)
	}
	slices.SortFunc(workers, func(a, b protocol.WorkerInfo) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.WorkerID, b.WorkerID))
	})
	return workers, nil
}
