package worker

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"starling/protocol"
)

// guest is one that runs now, or is made ready.
type guest struct {
	dir   *workdir
	quota atomic.Int64 // of its work directory; 0 until it runs
	stop  context.CancelCauseFunc
	task  protocol.RunningTask
	due   time.Time // of the next look at its directory; housekeep's own
}

func runningTask(rec protocol.Record) protocol.RunningTask {
	return protocol.RunningTask{
		DelegationID: rec.DelegationID, TaskID: rec.TaskID, Capsule: rec.Capsule.String(), Attempt: rec.Attempt, StartedAt: rec.StartedAt,
	}
}

// running is the set of guests that run now or are made ready, as by a compilation.
// It is safe for concurrent use.
type running struct {
	mu     sync.Mutex
	guests map[protocol.SessionID]*guest // guarded by mu
}

// add puts a guest into the set and returns how it leaves.
func (r *running) add(id protocol.SessionID, g *guest) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.guests == nil {
		r.guests = make(map[protocol.SessionID]*guest)
	}
	r.guests[id] = g
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.guests, id)
	}
}

func (r *running) has(id protocol.SessionID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.guests[id] != nil
}

func (r *running) snapshot() map[protocol.SessionID]*guest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.guests)
}

// tasks are what is made ready or runs now, the oldest first, as an operator is told.
func (r *running) tasks() []protocol.RunningTask {
	tasks := []protocol.RunningTask{}
	for _, g := range r.snapshot() {
		tasks = append(tasks, g.task)
	}
	slices.SortFunc(tasks, func(a, b protocol.RunningTask) int {
		return cmp.Or(a.StartedAt.Std().Compare(b.StartedAt.Std()), cmp.Compare(a.TaskID, b.TaskID))
	})
	return tasks[:min(len(tasks), protocol.MaxStatsTasks)]
}

// count is how many guests run now.
func (r *running) count() int {
	n := 0
	for _, g := range r.snapshot() {
		if g.quota.Load() > 0 {
			n++
		}
	}
	return n
}

const (
	quotaInterval = time.Second
	pruneInterval = time.Hour

	// measureShare is how much longer a directory is left alone than it took to
	// measure: a guest with very many files does not keep the worker busy.
	measureShare = 4
	// roomShare of its quota is what a guest may always write before it is measured again.
	roomShare = 16
	// longestRest bounds how much longer a guest waits than the look takes.
	longestRest = 250 * time.Millisecond
)

// pruneEvery is how often old work directories are looked for: they are kept for a
// quarter longer than asked at most, or for an hour.
func (w *Worker) pruneEvery() time.Duration {
	return max(quotaInterval, min(pruneInterval, w.cfg.Retention/4))
}

// housekeep measures the work directories of running guests against their quota
// and prunes old ones, until ctx is done.
func (w *Worker) housekeep(ctx context.Context) {
	quotas, prunes := time.NewTicker(quotaInterval), time.NewTicker(w.pruneEvery())
	defer quotas.Stop()
	defer prunes.Stop()
	unread := false // whether the removed files of guests could not be read
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-quotas.C:
			w.turned.Store(now.UnixNano())
			unread = w.measure(unread)
		case now := <-prunes.C:
			if err := w.prune(now); err != nil {
				w.log.Warn("old work directories not removed", "error", err)
			}
		}
	}
}

// room is how much a guest may write until it is asked again; one that is over its quota
// is stopped. The guest waits, so it can hide nothing, as it can while [Worker.measure]
// looks: it may move what it has to where that has been. It waits for longer than the
// look took, so that one that asks again and again does not keep the worker busy.
func (w *Worker) room(ctx context.Context, g *guest) int64 {
	began := time.Now()
	held, _ := w.guests.UnlinkedBytes() // measure says when that fails
	quota := g.quota.Load()
	left, over := g.dir.measure(quota, held[g.dir.path])
	if over != nil {
		g.stop(over)
		return 0
	}
	rest := time.NewTimer(min(measureShare*time.Since(began), longestRest))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	}
	return max(left, quota/roomShare, 1)
}

// measure stops the guests that are over their quota: what is in their directory,
// and what they hold open that is in it no more. It says once that the latter cannot
// be read: unread is what the last measure returned.
func (w *Worker) measure(unread bool) bool {
	guests := w.running.snapshot()
	if len(guests) == 0 {
		return unread
	}
	held, err := w.guests.UnlinkedBytes()
	if err != nil && !unread {
		w.log.Warn("removed files of guests do not count in their quota", "error", err)
	}
	for _, g := range guests {
		quota, began := g.quota.Load(), time.Now()
		if quota == 0 {
			continue // not yet started
		}
		gone := held[g.dir.path]
		if gone <= quota && began.Before(g.due) {
			continue // it has many files
		}
		if _, over := g.dir.measure(quota, gone); over != nil {
			g.stop(over)
		}
		g.due = time.Now().Add(measureShare * time.Since(began))
	}
	return err != nil
}
