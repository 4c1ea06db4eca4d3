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
	// looked at again. It grows while nothing happens: 60 looks a second cost less
	// than a thousandth of a core.
	minWait = time.Millisecond
	maxWait = 16 * time.Millisecond
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
		waiting := w.list()
		if waiting == nil {
			return
		}
		timeout := patience
		if metrics.Read(runnable); runnable[0].Value.Kind() == metrics.KindUint64 && runnable[0].Value.Uint64() > 0 {
			timeout = 0 // someone computes, and gives way now and then
		}
		handles := make([]uint32, len(waiting))
		for i, x := range waiting {
			handles[i] = x.handle
		}
		n := hostWait(unsafe.Pointer(&handles[0]), uint32(len(handles)), timeout.Milliseconds())
		switch {
		case n >= 0:
			patience = minWait
			w.wake(waiting[n])
		case n == -errnoAgain:
			patience = min(max(minWait, 2*timeout), maxWait)
		default: // one of them was closed since the list was made
		}
	}
}

// list is who waits, or nil, and then run ends.
func (w *waiter) list() []*exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = len(w.waiting) > 0
	if !w.running {
		return nil
	}
	return slices.Clone(w.waiting[:min(len(w.waiting), maxInFlight)])
}

func (w *waiter) wake(x *exchange) {
	w.remove(x)
	select {
	case x.ready <- struct{}{}:
	default: // it is told already
	}
}
