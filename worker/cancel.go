package worker

import (
	"context"
	"sync"
	"time"

	"starling/protocol"
)

// cancellation is the cancel of one job: asked for at any time after the worker
// listens, answered once the outcome is written.
type cancellation struct {
	grace time.Duration

	asked chan struct{} // closed when a cancel was accepted

	mu     sync.Mutex // guards what follows
	killed bool       // the grace is over
	ask    func()     // stops the preparation; nil before
	kill   func()     // stops the guest; nil before

	endOnce sync.Once
	ended   chan struct{} // closed when status is set
	status  protocol.Status
}

func newCancellation(grace time.Duration) *cancellation {
	return &cancellation{
		grace: grace, asked: make(chan struct{}), ended: make(chan struct{}),
	}
}

// accept asks the guest to stop, has it killed after the grace, and blocks until
// end was called, which comes before the listener is closed. It runs on the
// goroutine of the cancel's request.
func (c *cancellation) accept(context.Context) protocol.CancelAnswer {
	c.request()
	timer := time.NewTimer(c.grace)
	defer timer.Stop()
	for {
		select {
		case <-c.ended:
			return protocol.CancelAnswer{Status: c.status}
		case <-timer.C:
			c.expire()
		}
	}
}

// request accepts the cancel.
func (c *cancellation) request() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accepted() {
		return
	}
	close(c.asked)
	if c.ask != nil {
		c.ask()
	}
}

// expire ends the grace.
func (c *cancellation) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed = true
	if c.kill != nil {
		c.kill()
	}
}

// onAsk and onKill say how the preparation, and the guest, are stopped. The
// functions must not block.
func (c *cancellation) onAsk(ask func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ask = ask; c.accepted() {
		ask()
	}
}

func (c *cancellation) onKill(kill func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kill = kill; c.killed {
		kill()
	}
}

// accepted reports whether a cancel was accepted.
func (c *cancellation) accepted() bool {
	select {
	case <-c.asked:
		return true
	default:
		return false
	}
}

// end answers every cancel with the status that the ledger holds; empty when
// the job was not ended here.
func (c *cancellation) end(status protocol.Status) {
	c.endOnce.Do(func() {
		c.status = status
		close(c.ended)
	})
}
