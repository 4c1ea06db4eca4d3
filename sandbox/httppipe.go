package sandbox

import (
	"context"
	"fmt"

	"starling/sandbox/internal/egress"
)

// A guest in a process has its requests made by the worker. The process asks on
// the pipe of its events; the worker answers on the one that stops guests,
// which the process always reads. What it answers is bounded by the window of a
// request: the process acknowledges what its guest has read.

// workerHTTP are the requests of a guest in a process, on the worker's side. The
// goroutine that called Run uses it.
type workerHTTP struct {
	run   *remoteRun
	make  func() *httpCalls
	calls *httpCalls // nil before the first
}

func newWorkerHTTP(ctx context.Context, r *remoteRun) *workerHTTP {
	return &workerHTTP{run: r, make: func() *httpCalls { return newHTTPCalls(ctx, r.s.cfg.HTTP, r.spec.Network) }}
}

// take handles a process's message about a request.
func (h *workerHTTP) take(kind messageKind, body []byte) error {
	d := decoder{b: body}
	id := uint32(d.num())
	switch kind {
	case msgHTTPSend:
		request := egress.Request{Head: d.str(), Body: append([]byte(nil), d.bytes()...)}
		if err := d.end(); err != nil {
			return err
		}
		if h.calls == nil {
			h.calls = h.make()
		}
		answers := pipeSink{h.run, id}
		if err := h.calls.start(id, request, answers, answers.done); err != nil && !h.calls.over() {
			return fmt.Errorf("%w: %w", errBadMessage, err)
		}
		return nil
	case msgHTTPRead:
		n := d.num()
		if h.calls != nil {
			h.calls.consumed(id, int(n))
		}
	case msgHTTPClose:
		if h.calls != nil {
			h.calls.cancel(id)
		}
	}
	return d.end()
}

func (h *workerHTTP) close() {
	if h.calls != nil {
		h.calls.close()
	}
}

// pipeSink gives a response to the process. An error means that the process is
// gone, or about to be killed.
type pipeSink struct {
	run *remoteRun
	id  uint32
}

func (s pipeSink) send(kind messageKind, more func(*encoder)) error {
	return s.run.control(kind, func(e *encoder) {
		e.num(int64(s.id))
		more(e)
	})
}

func (s pipeSink) Head(head string) error {
	return s.send(msgHTTPHead, func(e *encoder) { e.str(head) })
}

func (s pipeSink) Body(piece []byte) error {
	return s.send(msgHTTPBody, func(e *encoder) { e.str(string(piece)) })
}

func (s pipeSink) done(err *egress.Error) {
	if err == nil {
		err = &egress.Error{}
	}
	_ = s.send(msgHTTPDone, func(e *encoder) { // the process is gone, which run sees
		e.num(int64(err.Errno))
		e.str(err.Sentence)
	})
}

// childHTTP is the requester of a guest in this process, which has no network.
type childHTTP struct{ r *childRun }

func (h childHTTP) begin(id uint32, request egress.Request, x *exchange) {
	h.r.httpMu.Lock()
	h.r.exchanges[id] = x
	h.r.httpMu.Unlock()
	h.r.must(h.r.pipe.send(msgHTTPSend, func(e *encoder) {
		e.num(int64(id))
		e.str(request.Head)
		e.str(string(request.Body))
	}))
}

func (h childHTTP) consumed(id uint32, bytes int) {
	h.r.httpMu.Lock()
	x := h.r.exchanges[id]
	h.r.httpMu.Unlock()
	if x.untold += bytes; x.untold < tellAfter {
		return
	}
	h.r.must(h.r.pipe.send(msgHTTPRead, func(e *encoder) {
		e.num(int64(id))
		e.num(int64(x.untold))
	}))
	x.untold = 0
}

// tellAfter is how much a guest reads before the worker is told: much less than a
// window, so that the next bytes come before it is empty.
const tellAfter = egress.WindowBytes / 8

func (h childHTTP) cancel(id uint32) {
	h.r.httpMu.Lock()
	delete(h.r.exchanges, id)
	h.r.httpMu.Unlock()
	h.r.must(h.r.pipe.send(msgHTTPClose, func(e *encoder) { e.num(int64(id)) }))
}

func (h childHTTP) close() {} // the worker sees the ending

// takeHTTP gives the guest what the worker answers. It runs on the slot's
// listener.
func (r *childRun) takeHTTP(kind messageKind, d *decoder) error {
	id := uint32(d.num())
	r.httpMu.Lock()
	x := r.exchanges[id]
	r.httpMu.Unlock()
	if x == nil {
		return nil // the guest closed it meanwhile
	}
	switch kind {
	case msgHTTPHead:
		head := d.str()
		x.putHead([]byte(head))
	case msgHTTPBody:
		x.putBody(d.bytes())
	case msgHTTPDone:
		errno, sentence := d.num(), d.str()
		if errno == 0 {
			x.finish(nil)
		} else {
			x.finish(&egress.Error{Errno: egress.Errno(errno), Sentence: sentence})
		}
	}
	return d.end()
}
