package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// sameStop is how long after the first signal another one still means the same: who
// signals both a process and its group, as timeout(1) does, or passes on the Ctrl-C
// that the terminal sent to all, gives one request twice. A person who asks again has
// read what the first one did.
const sameStop = 500 * time.Millisecond

// stops are the signals that ask to stop. SIGHUP, of a terminal that goes away, is one
// unless the program was started to outlive it, as nohup(1) does.
func stops() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// stopSignals gives the signals that ask to stop: the first, and a second that insists.
func stopSignals() (_ <-chan os.Signal, restore func()) {
	raw := make(chan os.Signal, 16) // some, for while the goroutine waits for a processor
	stop := make(chan os.Signal, 2) // both are heard even when nobody listens yet
	signal.Notify(raw, stops()...)
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() { passStops(raw, stop, done) })
	return stop, func() {
		signal.Stop(raw)
		close(done)
		passing.Wait()
	}
}

// passStops passes on the first signal, and each that comes later than sameStop after
// it. It drops what has no room: nobody asks a third time. It returns when done is
// closed.
func passStops(raw <-chan os.Signal, stop chan<- os.Signal, done <-chan struct{}) {
	var first time.Time
	for {
		select {
		case sig := <-raw:
			switch {
			case first.IsZero():
				first = time.Now()
			case time.Since(first) < sameStop:
				continue
			}
			select {
			case stop <- sig:
			default:
			}
		case <-done:
			return
		}
	}
}

// untilSignal is done at the first signal that asks to stop.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, stops()...)
}
