package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"starling/protocol"
)

const (
	// joinWithin is how long a fragment waits for its neighbours.
	//
	// Source: docs/protocol.md, section 7, Order.
	joinWithin = 20 * time.Millisecond
	// maxPending and maxPendingBytes bound what waits to be numbered. Beyond them
	// Send blocks, which holds the guest back.
	maxPending      = 256
	maxPendingBytes = 1 << 20
	// splitFrom is the length from which a fragment may not fit one frame.
	splitFrom = 64 << 10
)

// FrameSender publishes the frames of one attempt, numbered from 1 without a
// hole. Frames go out without waiting for their acks, at most 256 in flight;
// after a failed one all from the first without an ack are sent again in order,
// for as long as it takes. Neighbouring fragments are joined before they are
// numbered. It has no goroutine: acks and two timers drive it. One goroutine
// sends; the other methods are safe for concurrent use. Whoever made it closes
// it.
//
// Source: docs/protocol.md, section 7, Order.
type FrameSender struct {
	bus     *Bus
	place   protocol.Place
	subject string

	mu       sync.Mutex // guards what follows
	id       string     // the token of its acks; "" before the first frame and after Close
	pending  []waitingFrame
	bytes    int           // of pending
	inFlight []flyingFrame // inFlight[0] has number acked+1
	flying   int           // bytes of inFlight
	acked    int           // all numbers up to this one are stored
	last     uint64        // sequence in the stream of the latest stored one

	failed   error         // of a frame in flight: nothing new goes out until all were sent again
	pauseFor time.Duration // before they are
	resendAt time.Time
	// refusedSince is when a frame was first refused since one was stored.
	refusedSince time.Time
	complained   bool   // the log has it
	conn         uint64 // reconnects when the first of those in flight was published
	broken       error  // for good
	flushes      int    // callers of Flush: nothing waits to be joined

	mine func() bool // nil: nobody asks; set before the first frame

	joinTimer *time.Timer
	joining   bool // the timer runs
	tickTimer *time.Timer
	ticking   bool
	changed   chan struct{} // closed at the next change that a caller may wait for; nil when none waits
}

// waitingFrame is a frame without a number.
type waitingFrame struct {
	frame protocol.Frame
	since time.Time
}

// NewFrameSender makes the sender of an attempt's frames. place names the task,
// its context, the session and the attempt; its Seq and Time are ignored. It
// does not talk to the bus.
func (b *Bus) NewFrameSender(place protocol.Place) *FrameSender {
	return &FrameSender{bus: b, place: place, subject: b.ns.TaskSubject(place.TaskID)}
}

// SendWhile has the sender hold its frames back while mine says no: a sender
// that was stalled still has frames to send, or to send again, when its task is
// another's. mine is called often, under a lock, and must not block. Call it
// before the first Send.
func (s *FrameSender) SendWhile(mine func() bool) { s.mine = mine }

// Send takes a frame. A text or a thought that is too long for one frame becomes
// several; one that may have neighbours goes out within 20 ms, everything else at
// once. It blocks while the buffer is full, until the bus takes more or ctx is
// done, and then has not taken the frame, or only part of a long one. Errors:
// [ErrClosed] after Close, [protocol.ErrFrame], [ErrDenied], [ErrRefused]: the
// sender can send no more; otherwise the cause of ctx, as [ErrUnavailable].
func (s *FrameSender) Send(ctx context.Context, f protocol.Frame) error {
	if len(f.Text) < splitFrom {
		return s.send(ctx, f)
	}
	for _, piece := range f.Split() {
		if err := s.send(ctx, piece); err != nil {
			return err
		}
	}
	return nil
}

func (s *FrameSender) send(ctx context.Context, f protocol.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := len(f.Text) + len(f.Content)
	for s.broken == nil && len(s.pending) > 0 && (len(s.pending) >= maxPending || s.bytes+size > maxPendingBytes) {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	if s.broken != nil {
		return s.broken
	}
	s.bytes += size
	if n := len(s.pending); n > 0 {
		if joined, ok := s.pending[n-1].frame.Join(f); ok {
			s.pending[n-1].frame = joined
			s.pump()
			return s.broken
		}
	}
	s.pending = append(s.pending, waitingFrame{frame: f, since: time.Now()})
	s.pump()
	return s.broken
}

// Flush blocks until every frame that was sent is stored, or ctx is done. It
// sends at once what waits for its neighbours. Errors as [FrameSender.Send].
func (s *FrameSender) Flush(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushes++
	defer func() { s.flushes-- }()
	s.pump()
	for s.broken == nil && (len(s.pending) > 0 || len(s.inFlight) > 0) {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return s.broken
}

// NextSeq is the number that the next frame would get: after a Flush that of the
// terminal status.
func (s *FrameSender) NextSeq() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked + len(s.inFlight) + 1
}

// LastSequence is the sequence in the tasks stream of the latest stored frame,
// 0 when none is.
func (s *FrameSender) LastSequence() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Close stops the sender: it publishes nothing more, and forgets what is not
// stored. Flush first, unless the claim was lost. It is idempotent and does not
// wait for the bus. Send and Flush then give [ErrClosed].
func (s *FrameSender) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(fmt.Errorf("%w: the frames of task %s", ErrClosed, s.place.TaskID))
}

// fail ends the sender for good.
func (s *FrameSender) fail(err error) {
	if s.broken != nil {
		return
	}
	s.broken = err
	s.pending, s.inFlight, s.bytes = nil, nil, 0
	s.bus.acks.leave(s.id)
	for _, t := range []*time.Timer{s.joinTimer, s.tickTimer} {
		if t != nil {
			t.Stop()
		}
	}
	s.wake()
}

// await waits for a change, without the lock.
func (s *FrameSender) await(ctx context.Context) error {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("frames of task %s: %w", s.place.TaskID, overdue(ctx, s.trouble()))
	}
}

// trouble is what keeps frames from being stored now, or nil.
func (s *FrameSender) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *FrameSender) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// pump publishes what may go out. The lock is held while the client copies each
// frame into its buffer: numbers and order are one. That waits for the network
// only when the connection is stuck, and then all publishers wait.
func (s *FrameSender) pump() {
	for s.broken == nil && s.failed == nil && len(s.pending) > 0 && len(s.inFlight) < maxInFlight {
		w := s.pending[0]
		if wait := s.joinWait(w); wait > 0 {
			s.armJoin(wait)
			return
		}
		if !s.mayPublish() {
			s.armTick(ackTick)
			return
		}
		msg, err := s.encode(w)
		if err != nil {
			s.fail(err)
			return
		}
		size := len(msg.Data)
		if len(s.inFlight) > 0 && s.flying+size > maxInFlightBytes {
			return
		}
		s.pending[0] = waitingFrame{}
		s.pending = s.pending[1:]
		s.bytes -= len(w.frame.Text) + len(w.frame.Content)
		s.inFlight = append(s.inFlight, flyingFrame{msg: msg, size: size})
		s.flying += size
		s.publish(len(s.inFlight) - 1)
		s.wake()
	}
}

func (s *FrameSender) mayPublish() bool { return s.mine == nil || s.mine() }

// joinWait is how long the first waiting frame still waits for neighbours. Only
// the last of the buffer does, and only a fragment.
func (s *FrameSender) joinWait(w waitingFrame) time.Duration {
	if len(s.pending) > 1 || s.flushes > 0 || w.frame.Final {
		return 0
	}
	if w.frame.Kind != protocol.FrameText && w.frame.Kind != protocol.FrameThinking {
		return 0
	}
	return joinWithin - time.Since(w.since)
}

func (s *FrameSender) armJoin(wait time.Duration) {
	if s.joining {
		return
	}
	s.joining = true
	if s.joinTimer == nil {
		s.joinTimer = time.AfterFunc(wait, s.join)
		return
	}
	s.joinTimer.Reset(wait)
}

func (s *FrameSender) join() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joining = false
	s.pump()
}

// encode numbers a frame: the number is that of the place behind all in flight.
func (s *FrameSender) encode(w waitingFrame) (*nats.Msg, error) {
	if s.id == "" {
		id, err := s.bus.joinAcks(s)
		if err != nil {
			return nil, s.bus.failure(context.Background(), s.subject, err)
		}
		s.id = id
	}
	place := s.place
	place.Seq, place.Time = s.acked+len(s.inFlight)+1, w.since
	encoded, err := w.frame.Encode(place)
	if err != nil {
		return nil, err
	}
	m := frameMessage(s.subject, encoded)
	m.Reply = s.bus.acks.reply(s.id, place.Seq)
	return m, nil
}
