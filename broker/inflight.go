package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// The frames of a [FrameSender] that were published and may not be stored: their
// answers come in any order, and none may be lost, doubled or overtaken.

const (
	// maxInFlight and maxInFlightBytes bound the frames without an ack; one frame
	// may always be in flight. An observer relies on the first.
	maxInFlight      = 256
	maxInFlightBytes = 8 << 20
	// frameTimeout is how long a frame may be without an ack: then it is sent
	// again, for a lost ack never comes.
	frameTimeout = 5 * time.Second
	// ackTick is how often frames in flight are looked after.
	ackTick = 250 * time.Millisecond
	// framePatience is how long frames may be sent again before the log says so.
	framePatience = 10 * time.Second
	// resendMost bounds the growing pause before frames are sent again.
	resendMost = 2 * time.Second
)

// flyingFrame is a frame that was published.
type flyingFrame struct {
	msg      *nats.Msg
	size     int
	sent     time.Time
	stored   bool
	answered bool // stored, or refused since it was last sent
}

// publish sends the frame at index i of those in flight.
func (s *FrameSender) publish(i int) {
	f := &s.inFlight[i]
	f.answered, f.sent = f.stored, time.Now()
	s.bus.counts.frames.Add(1)
	if i == 0 {
		s.conn = s.bus.frames.Stats().Reconnects
	}
	if err := s.bus.frames.PublishMsg(f.msg); err != nil {
		f.answered = true
		s.refused(s.bus.failure(context.Background(), s.subject, err))
		return
	}
	s.armTick(ackTick)
}

// refused notes that a frame in flight was not stored. Errors that no repeat
// can mend end the sender.
func (s *FrameSender) refused(err error) {
	switch {
	case s.broken != nil:
	case errors.Is(err, ErrDenied), errors.Is(err, ErrClosed), errors.Is(err, ErrRefused), errors.Is(err, errTooLarge):
		s.fail(fmt.Errorf("frames of task %s: %w", s.place.TaskID, err))
	case s.failed == nil:
		s.failed = err
		if s.refusedSince.IsZero() {
			s.refusedSince = time.Now()
		}
		s.pauseFor = min(max(2*s.pauseFor, tryAgain), resendMost)
		s.resendAt = time.Now().Add(s.pauseFor)
		s.ticking = false // sooner than the tick that may be set
		s.armTick(s.pauseFor)
	}
}

// answer takes the bus's answer to a frame. It runs on the goroutine of the
// acks.
func (s *FrameSender) answer(seq int, m *nats.Msg) {
	ack, err := parsePubAck(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := seq - s.acked - 1
	if s.broken != nil || i < 0 || i >= len(s.inFlight) || s.inFlight[i].stored {
		return // of a frame that was stored before
	}
	s.inFlight[i].answered = true
	if err != nil {
		s.refused(err)
		return
	}
	s.inFlight[i].stored = true
	s.refusedSince, s.complained = time.Time{}, false
	s.last = max(s.last, ack.Sequence)
	s.pauseFor = 0
	s.settle()
	s.pump()
	if len(s.pending) == 0 && len(s.inFlight) == 0 {
		s.wake()
	}
}

// settle forgets the stored frames at the head of those in flight.
func (s *FrameSender) settle() {
	n := 0
	for n < len(s.inFlight) && s.inFlight[n].stored {
		s.flying -= s.inFlight[n].size
		s.inFlight[n].msg = nil
		n++
	}
	s.acked += n
	if s.inFlight = s.inFlight[n:]; len(s.inFlight) == 0 {
		s.failed = nil // it was answered before it was sent again
	}
}

func (s *FrameSender) armTick(wait time.Duration) {
	if s.ticking {
		return
	}
	s.ticking = true
	if s.tickTimer == nil {
		s.tickTimer = time.AfterFunc(wait, s.tick)
		return
	}
	s.tickTimer.Reset(wait)
}

// tick looks after the frames in flight: what was lost with a connection, or
// stays without an answer, is sent again.
func (s *FrameSender) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ticking = false
	if s.broken != nil {
		return
	}
	if len(s.inFlight) == 0 {
		s.pump() // what was held back
		return
	}
	if time.Since(s.inFlight[0].sent) > frameTimeout || s.bus.frames.Stats().Reconnects != s.conn {
		if err := s.bus.denied(s.subject); err != nil {
			s.refused(err)
			return
		}
		for i := range s.inFlight { // no answer is waited for any more
			s.inFlight[i].answered = true
		}
		s.refused(fmt.Errorf("%w: no ack", ErrUnavailable))
	}
	if s.failed != nil && !time.Now().Before(s.resendAt) && s.allAnswered() && s.mayPublish() {
		s.resend()
	}
	s.pump()
	s.armTick(ackTick)
}

func (s *FrameSender) allAnswered() bool {
	for _, f := range s.inFlight {
		if !f.answered {
			return false
		}
	}
	return true
}

// resend publishes all from the first without an ack again, in order. Their ids
// let the bus drop what it has.
func (s *FrameSender) resend() {
	if !s.complained && time.Since(s.refusedSince) > framePatience {
		s.complained = true
		s.bus.log.Warn("the bus takes no frame: they are sent again until it does",
			"task_id", string(s.place.TaskID), "after_ms", framePatience.Milliseconds(), "error", s.failed)
	}
	s.bus.log.Debug("frames sent again", "task_id", string(s.place.TaskID), "frames", len(s.inFlight), "error", s.failed)
	s.failed = nil
	s.bus.counts.resent.Add(uint64(len(s.inFlight)))
	for i := range s.inFlight {
		if s.publish(i); s.failed != nil || s.broken != nil {
			return
		}
	}
	s.pump()
}
