package guest

import (
	"context"
	"errors"
	"time"
)

// ErrCanceled is the cause of a [Context] that ended because the task was
// canceled.
var ErrCanceled = errors.New("the task was canceled")

// Context is a context that ends when the task is canceled, with the cause
// [ErrCanceled]: at once for who asks its Err, and within 50 ms for who waits for its
// Done and for contexts made from it. But a goroutine of a WebAssembly program that
// computes lets no other run, not even the one that looks for the cancel, until it
// waits, gives way, emits an event or reads a response: in a loop without any of these
// ask Err of this context, or [Canceled]. Call stop to let go of it.
func Context(parent context.Context) (_ context.Context, stop context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	go func() {
		look := time.NewTicker(50 * time.Millisecond)
		defer look.Stop()
		for !Canceled() {
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
		end(ErrCanceled)
	}()
	return &taskContext{ctx, end}, func() { end(context.Canceled) }
}

// taskContext looks for the cancel itself when it is asked.
type taskContext struct {
	context.Context
	end context.CancelCauseFunc
}

func (c *taskContext) Err() error {
	if Canceled() {
		c.end(ErrCanceled)
	}
	return c.Context.Err()
}
