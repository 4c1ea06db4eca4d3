package broker

import "errors"

// The classes of errors in the flow of a job. Each message goes on with the
// thing and the fix.
var (
	// ErrQueueFull: the jobs stream holds as many jobs as it may. Nothing was
	// queued.
	ErrQueueFull = errors.New("queue full")
	// ErrPoolUnserved: no live worker takes from the pool. Nothing was queued.
	ErrPoolUnserved = errors.New("pool not served")
	// ErrPoolUndeclared: the jobs stream has no such pool. Nothing was queued.
	ErrPoolUndeclared = errors.New("pool not declared")
	// ErrUnclear: the bus gave no clear answer; the job may or may not be
	// queued. Dispatching the same delegation again settles it.
	ErrUnclear = errors.New("unclear whether the job was queued")

	// ErrSettled: the delivery was acked, nak'ed or dropped before.
	ErrSettled = errors.New("delivery settled")

	// ErrNoRecord: the ledger has no such delegation: never dispatched,
	// withdrawn or expired.
	ErrNoRecord = errors.New("no such delegation")
	// ErrLost: another wrote the record; see [LostError].
	ErrLost = errors.New("record written by another")
	// ErrFinal: the delegation has its outcome; nothing was changed.
	ErrFinal = errors.New("delegation has ended")
)
