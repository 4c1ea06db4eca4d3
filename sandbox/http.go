package sandbox

import (
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"starling/protocol"
	"starling/sandbox/internal/egress"
	"starling/sandbox/internal/wasmtimex"
)

// Network is what a run may call over HTTP, and with which secrets. The zero
// value is nothing.
type Network struct {
	Allow   []protocol.NetworkRule
	Secrets []Secret

	// Misdirected is told when the guest asks for one of Secrets in a request to an
	// origin (scheme://host), or in a header, that it is not bound to: the request was
	// refused. It is called by several goroutines at a time and must not block; nil:
	// nobody is told.
	Misdirected func(s Secret, origin, header string)
}

// MinSecretBytes is the length of the shortest value of a secret.
const MinSecretBytes = egress.MinSecretBytes

// Secret is one value of the operator's store. It stays in the process that
// called Run.
type Secret = egress.Secret

// PublicAddress reports whether an address is one of the public Internet: others
// are called only where they are listed literally.
func PublicAddress(a netip.Addr) bool { return egress.Public(a) }

// HTTPConfig is how the requests of all guests are made. net/http prints what a
// server sends unasked through the logger of package log, where a host that secrets
// are sent to could put one: a program with secrets discards that logger's output.
type HTTPConfig struct {
	// Roots verify https; nil is the system's.
	Roots *x509.CertPool

	resolver egress.Resolver // nil: the system's
	limits   egress.Limits
}

// requester makes the requests of one run. Its methods are called on the guest's
// goroutine and do not wait for the network, but for close.
type requester interface {
	begin(id uint32, r egress.Request, x *exchange)
	consumed(id uint32, bytes int) // the guest read so much
	cancel(id uint32)
	close() // cancels all and waits until they are gone
}

// exchange is one request as the guest sees it. The requester writes, the guest
// reads.
type exchange struct {
	wake chan struct{} // of the run, of capacity 1: something came

	untold int // bytes that the guest read; of its goroutine

	mu     sync.Mutex // guards what follows
	head   []byte
	headed bool
	body   []byte
	done   bool
	err    *egress.Error
}

func (x *exchange) change(f func()) {
	x.mu.Lock()
	f()
	x.mu.Unlock()
	select {
	case x.wake <- struct{}{}:
	default: // it will look anyway
	}
}

func (x *exchange) putHead(head []byte)  { x.change(func() { x.head, x.headed = head, true }) }
func (x *exchange) putBody(piece []byte) { x.change(func() { x.body = append(x.body, piece...) }) }

// finish ends the exchange; nil: well.
func (x *exchange) finish(err *egress.Error) { x.change(func() { x.done, x.err = true, err }) }

// ready reports whether the guest would not wait for it. headTaken: it has the head.
func (x *exchange) ready(headTaken bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.done || len(x.body) > 0 || (x.headed && !headTaken)
}

// guestHTTP are the requests of one run. Most runs make none: wake and open are nil until
// the first.
type guestHTTP struct {
	requester requester
	wake      chan struct{}
	last      uint32
	open      map[uint32]*guestExchange
	bodies    int    // bytes of the bodies of those
	refused   string // the sentence of the last send that failed
}

type guestExchange struct {
	*exchange
	headTaken bool
	sent      int // bytes of the request's body
}

// begin begins one, with a request's body of so many bytes, and gives its handle.
func (h *guestHTTP) begin(sent int) (uint32, *exchange) {
	if h.open == nil {
		h.wake, h.open = make(chan struct{}, 1), map[uint32]*guestExchange{}
	}
	h.last++
	x := &exchange{wake: h.wake}
	h.open[h.last] = &guestExchange{exchange: x, sent: sent}
	h.bodies += sent
	return h.last, x
}

// result answers a guest: a negative number is an errno.
func result(c *wasmtimex.Call, n int) bool {
	c.Return(uint32(int32(n)))
	return true
}

func failed(c *wasmtimex.Call, errno egress.Errno) bool { return result(c, -int(errno)) }

// httpSend begins a request and answers its handle.
func (r *run) httpSend(c *wasmtimex.Call) bool {
	head, ok := c.Bytes(c.U32(0), c.U32(1))
	body, ok2 := c.Bytes(c.U32(2), c.U32(3))
	refuse := func(errno egress.Errno, sentence string) bool {
		r.http.refused = sentence
		return failed(c, errno)
	}
	switch {
	case !ok || !ok2:
		return refuse(egress.ErrnoFault, "the request is not all inside the memory")
	case len(r.http.open) >= egress.MaxInFlight:
		return refuse(egress.ErrnoTooMany, fmt.Sprintf("too many requests in flight: at most %d, close one", egress.MaxInFlight))
	case len(head) > egress.MaxHeadBytes || len(body) > egress.MaxRequestBytes: // before it is copied
		return refuse(egress.ErrnoTooBig, fmt.Sprintf("the request is too large: a head has at most %d bytes and a body %d",
			egress.MaxHeadBytes, egress.MaxRequestBytes))
	case r.http.bodies+len(body) > egress.MaxBodiesBytes:
		return refuse(egress.ErrnoTooMany, fmt.Sprintf("the bodies of the requests in flight have more than %d bytes together: close one",
			egress.MaxBodiesBytes))
	}
	request := egress.Request{Head: string(head), Body: append([]byte(nil), body...)}
	if err := request.Validate(); err != nil {
		return refuse(err.Errno, err.Sentence)
	}
	id, x := r.http.begin(len(body))
	r.http.requester.begin(id, request, x)
	return result(c, int(id))
}

// httpWait waits until one of some requests is ready, and answers its place.
func (r *run) httpWait(c *wasmtimex.Call) bool {
	n := c.U32(1)
	if n == 0 || n > egress.MaxInFlight {
		return failed(c, egress.ErrnoInvalid)
	}
	list, ok := c.Bytes(c.U32(0), 4*n)
	if !ok {
		return failed(c, egress.ErrnoFault)
	}
	waiting := make([]*guestExchange, n)
	for i := range waiting {
		if waiting[i] = r.http.open[binary.LittleEndian.Uint32(list[4*i:])]; waiting[i] == nil {
			return failed(c, egress.ErrnoBadHandle)
		}
	}
	until := r.deadline
	if ms := int64(c.U64(2)); ms >= 0 && ms < int64(time.Until(r.deadline)/time.Millisecond) {
		until = time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		for i, x := range waiting {
			if x.ready(x.headTaken) {
				return result(c, i)
			}
		}
		var canceled <-chan struct{}
		if !r.woken {
			canceled = r.spec.Canceled
		}
		select {
		case <-r.http.wake:
			continue
		case <-timer.C:
		case <-canceled:
			r.woken = true
		case <-r.ctx.Done():
		case <-r.engine.closing:
		}
		return r.alive() && failed(c, egress.ErrnoAgain)
	}
}

// httpHead gives a response's head, when there is room for all of it, and
// answers its length.
func (r *run) httpHead(c *wasmtimex.Call) bool {
	x, out, errno := r.http.reading(c)
	if errno != 0 {
		return failed(c, errno)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case !x.headed && x.err != nil:
		return failed(c, x.err.Errno)
	case !x.headed:
		return failed(c, egress.ErrnoAgain)
	}
	if len(out) >= len(x.head) {
		copy(out, x.head)
		x.headTaken = true
	}
	return result(c, len(x.head))
}

// httpRead gives the next bytes of a body; 0 is its end.
func (r *run) httpRead(c *wasmtimex.Call) bool {
	x, out, errno := r.http.reading(c)
	if errno != 0 {
		return failed(c, errno)
	}
	if len(out) == 0 {
		return failed(c, egress.ErrnoInvalid) // 0 would be the end
	}
	id := c.U32(0)
	x.mu.Lock()
	n := copy(out, x.body)
	x.body = x.body[n:]
	done, err := x.done, x.err
	x.mu.Unlock()
	switch {
	case n > 0:
		r.http.requester.consumed(id, n)
		return result(c, n)
	case err != nil:
		return failed(c, err.Errno)
	case done:
		return result(c, 0)
	}
	return failed(c, egress.ErrnoAgain)
}

// reading is the request and the room of a call with a handle, a pointer and a
// length.
func (h *guestHTTP) reading(c *wasmtimex.Call) (*guestExchange, []byte, egress.Errno) {
	x := h.open[c.U32(0)]
	if x == nil {
		return nil, nil, egress.ErrnoBadHandle
	}
	out, ok := c.Bytes(c.U32(1), c.U32(2))
	if !ok {
		return nil, nil, egress.ErrnoFault
	}
	return x, out[:min(len(out), 1<<20)], 0
}

// httpError gives the sentence of a request that failed, as much as there is
// room for, and answers its whole length. Handle 0 is the last send that failed.
func (r *run) httpError(c *wasmtimex.Call) bool {
	sentence := r.http.refused
	if id := c.U32(0); id != 0 {
		x := r.http.open[id]
		if x == nil {
			return failed(c, egress.ErrnoBadHandle)
		}
		sentence = ""
		x.mu.Lock()
		if x.err != nil {
			sentence = x.err.Sentence
		}
		x.mu.Unlock()
	}
	out, ok := c.Bytes(c.U32(1), c.U32(2))
	if !ok {
		return failed(c, egress.ErrnoFault)
	}
	copy(out, sentence)
	return result(c, len(sentence))
}

// httpClose cancels a request, or forgets one that is over.
func (r *run) httpClose(c *wasmtimex.Call) bool {
	id := c.U32(0)
	x := r.http.open[id]
	if x == nil {
		return failed(c, egress.ErrnoBadHandle)
	}
	r.http.bodies -= x.sent
	delete(r.http.open, id)
	r.http.requester.cancel(id)
	return result(c, 0)
}
