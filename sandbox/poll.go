package sandbox

import (
	"encoding/binary"
	"math"
	"time"

	"starling/sandbox/internal/wasmtimex"
)

// Sizes, tags and flags of poll_oneoff.
//
// Source: WASI snapshot preview 1, "subscription" and "event".
const (
	subscriptionBytes = 48
	eventBytes        = 32
	maxSubscriptions  = 4096

	tagClock   = 0
	tagFDRead  = 1
	tagFDWrite = 2

	clockAbsolute = 1 // flag
)

// subscription is one thing that a guest waits for.
type subscription struct {
	userdata uint64
	tag      byte
	errno    uint16
	wait     time.Duration // of a clock: from now on; of all others zero
}

// pollOneoff is ours because the engine's sleeps past every deadline. It waits
// for the first clock, and no longer than the run may last. Files, stdin and
// stdout are always ready, as they are for the engine. When [Spec.Canceled] is
// closed, the sleep under way is cut short, once: a guest that polls canceled
// between sleeps hears of it, and one that does not is not made to spin.
func (r *run) pollOneoff(c *wasmtimex.Call) bool {
	n := c.U32(2)
	if n == 0 || n > maxSubscriptions {
		c.Return(errnoInval)
		return true
	}
	in, ok := c.Bytes(c.U32(0), n*subscriptionBytes)
	out, ok2 := c.Bytes(c.U32(1), n*eventBytes)
	count, ok3 := c.Bytes(c.U32(3), 4)
	if !ok || !ok2 || !ok3 {
		c.Return(errnoFault)
		return true
	}
	subscriptions := make([]subscription, n)
	wait := time.Duration(math.MaxInt64)
	for i := range subscriptions {
		subscriptions[i] = r.subscription(in[i*subscriptionBytes:][:subscriptionBytes])
		wait = min(wait, subscriptions[i].wait)
	}
	if wait > 0 && !r.sleep(wait) {
		return false
	}
	events := uint32(0)
	for _, s := range subscriptions {
		if s.wait <= wait {
			s.event(out[events*eventBytes:][:eventBytes])
			events++
		}
	}
	binary.LittleEndian.PutUint32(count, events)
	c.Return(errnoSuccess)
	return true
}

func (r *run) subscription(in []byte) subscription {
	s := subscription{userdata: binary.LittleEndian.Uint64(in), tag: in[8]}
	switch s.tag {
	case tagClock:
		now, ok := r.now(binary.LittleEndian.Uint32(in[16:]))
		if !ok {
			s.errno = errnoInval
			return s
		}
		timeout := binary.LittleEndian.Uint64(in[24:])
		if binary.LittleEndian.Uint16(in[40:])&clockAbsolute != 0 {
			timeout -= min(timeout, now)
		}
		s.wait = time.Duration(min(timeout, math.MaxInt64))
	case tagFDRead, tagFDWrite:
	default:
		s.errno = errnoInval
	}
	return s
}

// event writes the answer; a ready descriptor says that one byte or more can be
// read or written.
func (s subscription) event(out []byte) {
	clear(out)
	binary.LittleEndian.PutUint64(out, s.userdata)
	binary.LittleEndian.PutUint16(out[8:], s.errno)
	out[10] = s.tag
	if s.errno == errnoSuccess && s.tag != tagClock {
		out[16] = 1
	}
}

// sleep waits for d or until the guest is told to stop. It reports whether the
// guest goes on.
func (r *run) sleep(d time.Duration) bool {
	if d = min(d, time.Until(r.deadline)); d > 0 {
		if r.timer == nil {
			r.timer = time.NewTimer(d)
		} else {
			r.timer.Reset(d)
		}
		var canceled <-chan struct{}
		if !r.woken {
			canceled = r.spec.Canceled
		}
		select {
		case <-r.timer.C:
		case <-r.ctx.Done():
		case <-r.engine.closing:
		case <-canceled:
			r.woken = true
		}
		r.timer.Stop()
	}
	return r.alive()
}
