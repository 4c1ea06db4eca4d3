package sandbox

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"

	"starling/sandbox/internal/egress"
)

// httpCalls are the requests of one run that this process makes, each on a
// goroutine of its own. Methods are safe for concurrent use; close waits for all.
type httpCalls struct {
	ctx    context.Context // of all requests of the run
	stop   context.CancelFunc
	client *egress.Client
	group  sync.WaitGroup

	// A place for each goroutine and each byte of a request's body, of canceled
	// requests too.
	running chan struct{}
	bodies  *semaphore.Weighted

	mu    sync.Mutex
	calls map[uint32]*httpCall // that were not canceled
}

// httpCall is one request. unread are the bytes that its reader has not taken.
type httpCall struct {
	ctx    context.Context
	stop   context.CancelFunc
	body   int64 // bytes of the request's
	mu     sync.Mutex
	unread int
	room   chan struct{} // of capacity 1: unread fell
}

func newHTTPCalls(ctx context.Context, cfg HTTPConfig, n Network) *httpCalls {
	c := &httpCalls{
		client: egress.NewClient(
			egress.Config{Roots: cfg.Roots, Resolver: cfg.resolver, Limits: cfg.limits},
			egress.Policy{Allow: n.Allow, Secrets: n.Secrets, Misdirected: n.Misdirected},
		),
		calls:   map[uint32]*httpCall{},
		running: make(chan struct{}, 2*egress.MaxInFlight),
		bodies:  semaphore.NewWeighted(egress.MaxBodiesBytes),
	}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c
}

var (
	errHandleUsed = errors.New("a request's handle is used twice")
	errTooMany    = errors.New("too many requests in flight")
	errBodies     = errors.New("too many bytes of requests in flight")
)

// start makes a request. done is called on its goroutine when it is over, unless
// it was canceled. It blocks while canceled ones that are not gone yet take the room.
// One goroutine calls it.
func (c *httpCalls) start(id uint32, r egress.Request, sink egress.Sink, done func(*egress.Error)) error {
	call := &httpCall{body: min(int64(len(r.Body)), egress.MaxRequestBytes), room: make(chan struct{}, 1)} // more is refused
	if err := c.admit(id, call); err != nil {
		return err
	}
	if err := c.bodies.Acquire(c.ctx, call.body); err != nil {
		return err
	}
	select {
	case c.running <- struct{}{}:
	case <-c.ctx.Done():
		c.bodies.Release(call.body)
		return c.ctx.Err()
	}
	call.ctx, call.stop = context.WithCancel(c.ctx)
	c.mu.Lock()
	c.calls[id] = call
	c.mu.Unlock()
	c.group.Go(func() {
		defer func() { c.bodies.Release(call.body); <-c.running }()
		defer call.stop()
		err := c.client.Do(call.ctx, r, heldSink{sink, call})
		if call.ctx.Err() != nil {
			return // nobody listens
		}
		var problem *egress.Error
		if err != nil && !errors.As(err, &problem) {
			problem = &egress.Error{Errno: egress.ErrnoIO, Sentence: err.Error()}
		}
		done(problem)
	})
	return nil
}

// admit reports what a guest whose own host functions count could not have asked for.
func (c *httpCalls) admit(id uint32, call *httpCall) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bodies := call.body
	for _, other := range c.calls {
		bodies += other.body
	}
	switch {
	case c.calls[id] != nil:
		return errHandleUsed
	case len(c.calls) >= egress.MaxInFlight:
		return errTooMany
	case bodies > egress.MaxBodiesBytes:
		return errBodies
	}
	return nil
}

// heldSink holds a request back whose reader has a window full to read.
type heldSink struct {
	egress.Sink
	call *httpCall
}

func (s heldSink) Body(piece []byte) error {
	for {
		s.call.mu.Lock()
		free := s.call.unread < egress.WindowBytes
		if free {
			s.call.unread += len(piece)
		}
		s.call.mu.Unlock()
		if free {
			return s.Sink.Body(piece)
		}
		select {
		case <-s.call.room:
		case <-s.call.ctx.Done():
			return s.call.ctx.Err()
		}
	}
}

func (c *httpCalls) consumed(id uint32, bytes int) {
	c.mu.Lock()
	call := c.calls[id]
	c.mu.Unlock()
	if call == nil {
		return // it was closed meanwhile
	}
	call.mu.Lock()
	call.unread = max(0, call.unread-max(bytes, 0))
	call.mu.Unlock()
	select {
	case call.room <- struct{}{}:
	default:
	}
}

func (c *httpCalls) cancel(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.calls[id]; call != nil {
		call.stop()
		delete(c.calls, id)
	}
}

// over reports whether the run is.
func (c *httpCalls) over() bool { return c.ctx.Err() != nil }

// close cancels all requests and waits until they are gone.
func (c *httpCalls) close() {
	c.stop()
	c.group.Wait()
	c.client.Close()
}

// directHTTP is the requester of a guest in this process. Its calls are made
// when the guest first asks.
type directHTTP struct {
	make  func() *httpCalls
	calls *httpCalls
}

func (d *directHTTP) begin(id uint32, r egress.Request, x *exchange) {
	if d.calls == nil {
		d.calls = d.make()
	}
	// guestHTTP counts, and uses each handle once: what is left is that the run ends.
	if err := d.calls.start(id, r, exchangeSink{x}, x.finish); err != nil {
		x.finish(&egress.Error{Errno: egress.ErrnoCanceled, Sentence: err.Error()})
	}
}

func (d *directHTTP) consumed(id uint32, bytes int) { d.calls.consumed(id, bytes) }
func (d *directHTTP) cancel(id uint32)              { d.calls.cancel(id) }

func (d *directHTTP) close() {
	if d.calls != nil {
		d.calls.close()
	}
}

type exchangeSink struct{ x *exchange }

func (s exchangeSink) Head(head string) error {
	s.x.putHead([]byte(head))
	return nil
}

func (s exchangeSink) Body(piece []byte) error {
	s.x.putBody(piece)
	return nil
}
