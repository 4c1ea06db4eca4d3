package broker

import (
	"context"

	"starling/protocol"
)

// watch.go
type WatchOptions struct{ Live bool } // only frames from now on
type Watch struct{}
type Hole struct{ Attempt, From, To int }
type WatchEvent struct { // exactly one is set
	Frame *protocol.ReceivedFrame
	Hole  *Hole
}

func (b *Bus) WatchTask(ctx context.Context, task protocol.TaskID, opts WatchOptions) (*Watch, error) {
	panic("being written")
}
func (w *Watch) Next(ctx context.Context) (WatchEvent, error) { panic("being written") } // io.EOF after the terminal frame
func (w *Watch) Close()                                       { panic("being written") }

type DelegationWatch struct{}

func (b *Bus) WatchDelegation(ctx context.Context, session protocol.SessionID, delegation protocol.DelegationID) (*DelegationWatch, error) {
	panic("being written")
}

// Next: the record whenever it is newer than the last; ErrNoRecord when withdrawn.
func (w *DelegationWatch) Next(ctx context.Context) (Entry, error) { panic("being written") }
func (w *DelegationWatch) Close()                                  { panic("being written") }

// cancel.go
type CancelListener struct{}

// ListenCancel calls fn for every request that names the delegation; fn blocks
// until the guest is gone and the outcome is written. Its ctx ends with Close.
func (b *Bus) ListenCancel(session protocol.SessionID, delegation protocol.DelegationID, fn func(context.Context) protocol.CancelAnswer) (*CancelListener, error) {
	panic("being written")
}
func (l *CancelListener) Close() { panic("being written") } // waits for fn

type CancelOptions struct {
	RemoveJob bool // an operator's: also takes a queued job out of the stream
}
type CancelResult struct {
	Entry
	GuestMayRun bool // no worker answered
}

// Cancel: ErrNoRecord, ErrFinal (result holds the record).
func (b *Bus) Cancel(ctx context.Context, session protocol.SessionID, delegation protocol.DelegationID, opts CancelOptions) (CancelResult, error) {
	panic("being written")
}
