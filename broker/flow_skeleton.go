package broker

import (
	"context"
	"time"

	"starling/protocol"
)

// dispatch.go
// errors: ErrQueueFull, ErrUnknownCapsule, ErrPoolUnserved, ErrPoolUndeclared,
// ErrUnclear, ErrDenied, protocol.ErrJob, protocol.ErrJobTooLarge.
type DispatchOptions struct {
	AllowUnserved bool
	Traceparent   string
}
type Dispatched struct {
	Record   protocol.Record
	Revision uint64
	Existing bool
}

func (b *Bus) Dispatch(ctx context.Context, job protocol.Job, opts DispatchOptions) (Dispatched, error) {
	panic("being written")
}

// taker.go
type TakerConfig struct {
	Pool        string
	Slots       int
	PullExpires time.Duration // 0: 10 s; how long a waiting pull stays open, and so how long a drain may take to hear the last of it
}
type Taker struct{}

func (b *Bus) NewTaker(ctx context.Context, cfg TakerConfig) (*Taker, error) { panic("being written") }
func (t *Taker) AckWait() time.Duration                                      { panic("being written") }
func (t *Taker) Busy() int                                                   { panic("being written") }

// Run takes until ctx is done, then naks what open pulls still bring and
// returns when they have ended. do must not block.
func (t *Taker) Run(ctx context.Context, do func(*Delivery)) error { panic("being written") }

// delivery.go; ErrSettled after a settlement
type Delivery struct{}

func (d *Delivery) Body() []byte                       { panic("being written") }
func (d *Delivery) Place() (protocol.JobPlace, error)  { panic("being written") }
func (d *Delivery) Mark() protocol.DeliveryMark        { panic("being written") }
func (d *Delivery) LedgerRevision() (uint64, bool)     { panic("being written") }
func (d *Delivery) Traceparent() string                { panic("being written") }
func (d *Delivery) Release()                           { panic("being written") }
func (d *Delivery) Extend(ctx context.Context) error   { panic("being written") }
func (d *Delivery) Ack(ctx context.Context) error      { panic("being written") }
func (d *Delivery) Nak(ctx context.Context) error      { panic("being written") }
func (d *Delivery) Drop()                              { panic("being written") }
func (d *Delivery) DeadLetter(ctx context.Context, reason protocol.DeadLetterReason, detail string) error {
	panic("being written")
}

// ledger.go
type Entry struct {
	Record   protocol.Record
	Revision uint64
}

// LostError: another wrote the record; Current is what stands there now. It is
// an ErrLost.
type LostError struct{ Current Entry }

func (e *LostError) Error() string { panic("being written") }

// ReadRecord: ErrNoRecord.
func (b *Bus) ReadRecord(ctx context.Context, session protocol.SessionID, delegation protocol.DelegationID, atLeast uint64) (Entry, error) {
	panic("being written")
}
func (b *Bus) WriteRecord(ctx context.Context, rec protocol.Record, at uint64) (Entry, error) {
	panic("being written")
}
func (b *Bus) CreateRecord(ctx context.Context, rec protocol.Record) (Entry, error) {
	panic("being written")
}

// claim.go
type ClaimKind int

const (
	Claimed   ClaimKind = iota + 1 // from submitted
	TakenOver                      // from a lost worker
	Final                          // complete from the record
	Earlier                        // drop the delivery
	Spent                          // working without attempts left: report crashed at Entry.Revision
)

type Claim struct {
	Entry
	Prior protocol.Record // as it was before the claim
	Kind  ClaimKind
}

// DeadJobError: the job is a dead letter.
type DeadJobError struct {
	Reason protocol.DeadLetterReason
	Detail string
}

func (e *DeadJobError) Error() string { panic("being written") }

// Claim may call begin more than once.
func (b *Bus) Claim(ctx context.Context, d *Delivery, job protocol.Job, begin func(protocol.Record) protocol.Record) (Claim, error) {
	panic("being written")
}

// StillMine reads the record after a stall.
func (b *Bus) StillMine(ctx context.Context, e Entry) (bool, error) { panic("being written") }

// frames.go
type FrameSender struct{}

// NewFrameSender numbers frames from 1; place.Seq and place.Time are ignored.
func (b *Bus) NewFrameSender(place protocol.Place) *FrameSender { panic("being written") }

func (s *FrameSender) Send(ctx context.Context, f protocol.Frame) error { panic("being written") }
func (s *FrameSender) Flush(ctx context.Context) error                  { panic("being written") }
func (s *FrameSender) NextSeq() int                                     { panic("being written") } // for the terminal status
func (s *FrameSender) LastSequence() uint64                             { panic("being written") } // of the stream, acked
func (s *FrameSender) Close()                                           { panic("being written") } // publishes nothing more; idempotent

// terminal.go
type TerminalOptions struct {
	Seq          int    // FrameSender.NextSeq of the attempt's worker, 0 for any other
	LastSequence uint64 // FrameSender.LastSequence, 0: read it
}

func (b *Bus) WriteTerminal(ctx context.Context, rec protocol.Record, opts TerminalOptions) error {
	panic("being written")
}

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
