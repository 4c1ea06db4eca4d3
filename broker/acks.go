package broker

import (
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// ackRouter hands the bus's answers to published frames to their senders. All
// senders of a Bus share one subscription, made with the first frame and ended
// with the connection; its goroutine is the connection's. The client's own
// asynchronous publish has a timer and two channels for every message, repeats
// on its own, out of order, and cannot call back one publisher among many.
//
// The zero value is ready.
type ackRouter struct {
	mu      sync.RWMutex
	prefix  string // of answers' subjects; "" before the first sender
	counter uint64
	senders map[string]*FrameSender
}

// joinAcks gives a sender the token of its answers.
func (b *Bus) joinAcks(s *FrameSender) (string, error) {
	r := &b.acks
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.prefix == "" {
		prefix := b.frames.NewInbox() + "."
		sub, err := b.frames.Subscribe(prefix+"*.*", r.handle)
		if err != nil {
			return "", err
		}
		if err := sub.SetPendingLimits(-1, -1); err != nil { // senders bound what can come
			return "", err
		}
		r.prefix, r.senders = prefix, map[string]*FrameSender{}
	}
	r.counter++
	id := strconv.FormatUint(r.counter, 36)
	r.senders[id] = s
	return id, nil
}

// leave forgets a sender; answers that still come are dropped.
func (r *ackRouter) leave(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.senders, id)
}

// reply is where the answer to a frame goes.
func (r *ackRouter) reply(id string, seq int) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.prefix + id + "." + strconv.Itoa(seq)
}

func (r *ackRouter) handle(m *nats.Msg) {
	r.mu.RLock()
	id, number, ok := strings.Cut(m.Subject[len(r.prefix):], ".")
	s := r.senders[id]
	r.mu.RUnlock()
	if seq, err := strconv.Atoi(number); ok && err == nil && s != nil {
		s.answer(seq, m)
	}
}
