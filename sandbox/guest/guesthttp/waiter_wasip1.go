//go:build wasip1 && !starling_portable

package guesthttp

import (
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"time"
	"unsafe"
)

const (
	// minWait and maxWait bound how long the host is waited for before timers are
	// looked at again: it doubles while nothing happens. Each look costs the host
	// about 0.2 ms.
	minWait = time.Millisecond
	maxWait = 128 * time.Millisecond
)

// requests are those that a goroutine waits for. The host has one list for the
// whole module.
var requests waiter

// waiter waits at the host for all goroutines that wait for a request. Its own
// goroutine is there while one does.
type waiter struct {
	mu      sync.Mutex // guards what follows; goroutines may change at any call
	waiting []*exchange
	running bool
}

func (w *waiter) add(x *exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, x) // at the end: who was just served comes last
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *waiter) remove(x *exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = slices.DeleteFunc(w.waiting, func(other *exchange) bool { return other == x })
}

// run wakes goroutines until none waits.
func (w *waiter) run() {
	runnable := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	patience := minWait
	for {
		runtime.Gosched() // the others run until they wait too
		waiting, deadline := w.list()
		if waiting == nil {
			return
		}
		timeout := patience
		if metrics.Read(runnable); runnable[0].Value.Kind() == metrics.KindUint64 && runnable[0].Value.Uint64() > 0 {
			timeout = 0 // someone computes, and gives way now and then
		}
		if !deadline.IsZero() {
			timeout = max(0, min(timeout, time.Until(deadline)+time.Millisecond)) // not before it
		}
		handles := make([]uint32, len(waiting))
		for i, x := range waiting {
			handles[i] = x.handle
		}
		began := time.Now()
		n := hostWait(unsafe.Pointer(&handles[0]), uint32(len(handles)), timeout.Milliseconds())
		switch {
		case n >= 0:
			patience = minWait
			w.wake(waiting[n])
		case n == -errnoAgain && timeout >= patience && time.Since(began) >= timeout-time.Millisecond:
			patience = min(2*patience, maxWait)
		default: // a cancel or a deadline came, or one of them was closed since the list was made
			patience = minWait
		}
	}
}

// list is who waits, and the first of their deadlines; or nil, and then run ends.
func (w *waiter) list() (waiting []*exchange, deadline time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = len(w.waiting) > 0
	if !w.running {
		return nil, time.Time{}
	}
	waiting = slices.Clone(w.waiting[:min(len(w.waiting), maxInFlight)])
	for _, x := range waiting {
		if d, ok := x.ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
			deadline = d
		}
	}
	return waiting, deadline
}

func (w *waiter) wake(x *exchange) {
	w.remove(x)
	select {
	case x.ready <- struct{}{}:
	default: // it is told already
	}
}
