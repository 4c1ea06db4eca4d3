package worker

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"starling/protocol"
)

// guest is one that runs now.
type guest struct {
	dir   *workdir
	quota int64
	stop  context.CancelCauseFunc
	task  protocol.RunningTask
}

func runningTask(rec protocol.Record) protocol.RunningTask {
	return protocol.RunningTask{
		DelegationID: rec.DelegationID, TaskID: rec.TaskID, Capsule: rec.Capsule.String(), Attempt: rec.Attempt, StartedAt: rec.StartedAt,
	}
}

// running is the set of guests that run now. It is safe for concurrent use.
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

// tasks are what runs now, the oldest first, as an operator is told.
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

func (r *running) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.guests)
}

const (
	quotaInterval = time.Second
	pruneInterval = time.Hour
)

// housekeep measures the work directories of running guests against their quota
// and prunes old ones, until ctx is done.
func (w *Worker) housekeep(ctx context.Context) {
	quotas, prunes := time.NewTicker(quotaInterval), time.NewTicker(pruneInterval)
	defer quotas.Stop()
	defer prunes.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-quotas.C:
			w.turned.Store(now.UnixNano())
			for _, g := range w.running.snapshot() {
				if used := g.dir.size(g.quota); used > g.quota {
					g.stop(&quotaError{used, g.quota})
				}
			}
		case now := <-prunes.C:
			if err := w.prune(now); err != nil {
				w.log.Warn("old work directories not removed", "error", err)
			}
		}
	}
}
