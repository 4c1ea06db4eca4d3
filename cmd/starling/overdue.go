package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"starling/broker"
	"starling/protocol"
)

// errOverdue ends the wait for a delegation whose deadline passed in the queue.
var errOverdue = errors.New("the deadline passed in the queue")

const (
	// overdueAfter is how long after the deadline a worker may take to write the end
	// of a delegation that it has.
	overdueAfter = 2 * time.Second
	// overduePoll is how often a delegation that has not ended by then is looked at.
	overduePoll = time.Second
)

// whileInTime is ctx until the deadline has passed and no worker has the job: it
// waits then for one that takes it, perhaps for ever, and nobody writes its end.
func whileInTime(ctx context.Context, bus *broker.Bus, rec protocol.Record, deadline protocol.Time) (context.Context, func()) {
	if deadline.IsZero() {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		wait := time.Until(deadline.Std()) + overdueAfter
		for sleep(ctx, wait) == nil {
			now, err := bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, 0)
			switch {
			case err == nil && now.Record.Status == protocol.StatusSubmitted:
				cancel(errOverdue)
				return
			case err == nil && now.Record.Status.Final():
				return
			}
			wait = overduePoll // a worker has it and ends it, or the bus is away
		}
	})
	return ctx, func() { cancel(nil); looking.Wait() }
}

// overdue says what becomes of a delegation that nobody took in time.
func (a *app) overdue(ctx context.Context, bus *broker.Bus, rec protocol.Record, asJSON bool) error {
	fmt.Fprintf(a.err, "starling: the deadline of %s passed before a worker of pool %s took its job, which still stands in the queue: "+
		"a worker that takes it ends it without running it; starling cancel %[1]s ends it now\n", rec.Key(), rec.Pool)
	if asJSON {
		if now, err := bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, 0); err == nil {
			rec = now.Record
		}
		if err := a.printJSON(rec); err != nil {
			return err
		}
	}
	return &silentError{exitTerminated}
}
