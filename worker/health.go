package worker

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// turnWithin is how long one turn of the worker's housekeeping may take.
const turnWithin = time.Minute

// Ready is nil while the worker takes jobs and can run them, and else says why not.
// It does not ask the bus. A worker that could not start its latest task takes the
// next one, after a pause, all the same: that is how the fault is seen to be over.
func (w *Worker) Ready() error {
	switch {
	case w.draining.Load():
		return errors.New("the worker drains")
	case !w.taking.Load():
		return errors.New("the worker takes no jobs")
	case !w.bus.Connected():
		return errors.New("the bus is away")
	}
	return w.fault.get()
}

// hostFault is why the latest attempt could not be started on this host. It is safe
// for concurrent use; the zero value is a host without a fault.
type hostFault struct{ latest atomic.Pointer[fault] }

type fault struct {
	err error
	at  time.Time
}

// faultCounts is how long a fault makes a worker that is given nothing more not
// ready: the host may be well by then, and only a task shows it.
const faultCounts = 5 * time.Minute

// set notes a fault, or nil: a guest has run.
func (f *hostFault) set(err error) {
	if err == nil {
		f.latest.Store(nil)
		return
	}
	f.latest.Store(&fault{fmt.Errorf("this host could not start its latest task: %w", err), time.Now()})
}

func (f *hostFault) get() error {
	if latest := f.latest.Load(); latest != nil && time.Since(latest.at) < faultCounts {
		return latest.err
	}
	return nil
}

// Alive is nil while the worker's own loop turns, and else says since when it
// does not: then the process should be replaced. A bus that is away is no reason.
func (w *Worker) Alive() error {
	if stuck := time.Since(time.Unix(0, w.turned.Load())); w.taking.Load() && stuck > turnWithin {
		return fmt.Errorf("the worker's loop has not turned for %s", stuck.Round(time.Second))
	}
	return nil
}

// busy is how many slots hold a job.
func (w *Worker) busy() int {
	if !w.taking.Load() { // before Run has a taker, and after it
		return 0
	}
	return w.taker.Busy()
}
