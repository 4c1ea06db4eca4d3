package guest

import (
	"context"
	"errors"
	"time"
)

// ErrCanceled is the cause of a [Context] that ended because the task was
// canceled.
var ErrCanceled = errors.New("the task was canceled")

// Context is a context that ends when the task is canceled, within 50 ms, with
// the cause [ErrCanceled]. Call stop to let go of it.
func Context(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
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
	return ctx, func() { end(context.Canceled) }
}
