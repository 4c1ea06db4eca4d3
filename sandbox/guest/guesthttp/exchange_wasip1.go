//go:build wasip1 && !starling_portable

package guesthttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"unsafe"
)

// maxInFlight is how many requests the host lets a guest have open.
const maxInFlight = 16

// slots are taken by the requests that are open. They belong to the module, as
// the host's bound does.
var slots = make(chan struct{}, maxInFlight)

func roundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	head, err := requestHead(r)
	if err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, err
	}
	body, err := requestBody(r, func(f func()) func() bool { return context.AfterFunc(ctx, f) })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	handle, err := send(head, body)
	if err != nil {
		<-slots
		return nil, err
	}
	x := &exchange{ctx: ctx, handle: handle, ready: make(chan struct{}, 1), closed: make(chan struct{})}
	text, err := x.head()
	if err != nil {
		x.release()
		return nil, err
	}
	answer, err := response(text, r)
	if err != nil {
		x.release()
		return nil, err
	}
	if answer.Body = x; r.Method == http.MethodHead || answer.ContentLength == 0 {
		x.release()
		answer.Body = http.NoBody
	}
	return answer, nil
}

// exchange is one request that is open at the host, and the body of its response.
type exchange struct {
	ctx    context.Context // of the request, whose body may be read long after RoundTrip
	handle uint32
	ready  chan struct{} // the waiter says that there is something to take
	once   sync.Once
	closed chan struct{} // by release
	err    error         // what ended the body; its reader's own
}

// release closes the request at the host, once.
func (x *exchange) release() {
	x.once.Do(func() {
		close(x.closed)
		requests.remove(x)
		hostClose(x.handle)
		<-slots
	})
}

// head waits for the head of the response.
func (x *exchange) head() (string, error) {
	buffer := make([]byte, 4<<10)
	for {
		n := hostHead(x.handle, unsafe.Pointer(&buffer[0]), uint32(len(buffer)))
		switch {
		case int(n) > len(buffer):
			buffer = make([]byte, n)
		case n >= 0:
			return string(buffer[:n]), nil
		case n != -errnoAgain:
			return "", failure(x.handle, n)
		default:
			if err := x.wait(); err != nil {
				return "", err
			}
		}
	}
}

// Read gives the next bytes of the body. It blocks, this goroutine only, until
// some are there.
func (x *exchange) Read(p []byte) (int, error) {
	for x.err == nil && len(p) > 0 {
		if err := x.over(); err != nil {
			return 0, x.fail(err)
		}
		n := hostRead(x.handle, unsafe.Pointer(&p[0]), uint32(len(p)))
		switch {
		case n > 0:
			return int(n), nil
		case n == 0:
			return 0, x.fail(io.EOF)
		case n == -errnoBadHandle:
			return 0, x.fail(errClosed)
		case n != -errnoAgain:
			return 0, x.fail(failure(x.handle, n))
		}
		if err := x.wait(); err != nil {
			return 0, x.fail(err)
		}
	}
	return 0, x.err
}

func (x *exchange) fail(err error) error {
	x.err = err
	x.release()
	return err
}

// Close ends the request. A Read that waits returns an error.
func (x *exchange) Close() error {
	x.release()
	return nil
}

// over is why nothing more is to be read, or nil.
func (x *exchange) over() error {
	select {
	case <-x.closed:
		return errClosed
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	default:
		return nil
	}
}

// wait blocks until there may be something to take.
func (x *exchange) wait() error {
	requests.add(x)
	defer requests.remove(x)
	select {
	case <-x.ready:
		return nil
	case <-x.closed:
		return errClosed
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
}
