//go:build wasip1 && !starling_portable

package guesthttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"sync"
	"unsafe"
)

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
	body, err := requestBody(r)
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
	x.stop = context.AfterFunc(ctx, x.release) // the body may never be read or closed
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

// errClosed is what reading a closed body gives.
var errClosed = errors.New("guesthttp: read on a closed response body")

// exchange is one request that is open at the host, and the body of its response.
type exchange struct {
	ctx    context.Context // of the request, whose body may be read long after RoundTrip
	handle uint32
	ready  chan struct{} // the waiter says that there is something to take
	stop   func() bool   // of the release that the context's end brings
	once   sync.Once
	closed chan struct{} // by release
	err    error         // what ended the body; its reader's own
}

// release closes the request at the host, once.
func (x *exchange) release() {
	x.once.Do(func() {
		close(x.closed)
		if x.stop != nil { // else the context ended before it was set
			x.stop()
		}
		requests.remove(x)
		hostClose(x.handle)
		<-slots
	})
}

// head waits for the head of the response.
func (x *exchange) head() (string, error) {
	buffer := make([]byte, 4<<10)
	for {
		if err := x.over(); err != nil {
			return "", err
		}
		n := hostHead(x.handle, unsafe.Pointer(&buffer[0]), uint32(len(buffer)))
		switch {
		case int(n) > len(buffer):
			buffer = make([]byte, n)
		case n >= 0:
			return string(buffer[:n]), nil
		case n != -errnoAgain:
			return "", x.failure(n)
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
			runtime.Gosched() // a loop that reads would keep others from running
			return int(n), nil
		case n == 0:
			return 0, x.fail(io.EOF)
		case n != -errnoAgain:
			return 0, x.fail(x.failure(n))
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
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	select {
	case <-x.closed:
		return errClosed
	default:
		return nil
	}
}

// failure is what a negative result means. A request that was released since it was
// looked at has no handle any more.
func (x *exchange) failure(result int32) error {
	if err := x.over(); err != nil && result == -errnoBadHandle {
		return err
	}
	return failure(x.handle, result)
}

// wait blocks until there may be something to take.
func (x *exchange) wait() error {
	requests.add(x)
	defer requests.remove(x)
	select {
	case <-x.ready:
		return nil
	case <-x.closed:
	case <-x.ctx.Done():
	}
	return x.over()
}
