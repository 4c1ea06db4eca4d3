package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"starling/protocol"
	"starling/sandbox/internal/confine"
)

// The descriptors of a sandbox process beside stdio. First come the pipes, three
// for each guest at a time: one for what it is given, one for what it says, one for
// what stops it. The very first two say hello. A process that compiles has those, then
// the module's file and the one for its compiled form.
const (
	firstPipe     = 3
	pipesPerGuest = 3
	moduleFile    = 5
	compiledFile  = 6
)

// errWorkerGone ends a guest whose worker closed its pipes.
var errWorkerGone = errors.New("the worker is gone")

// ProcessMain is the whole program of a sandbox process, which a [Supervisor]
// starts: it takes away its own rights, runs guests or compiles one module, and
// returns the exit status once the worker's ends of its pipes are closed. Nothing
// else may run in that process.
func ProcessMain() int {
	first, err := openData(0)
	if err != nil {
		fmt.Fprintf(os.Stderr, "starling sandbox is started by a worker, with pipes as descriptors from %d on: %s\n", firstPipe, err)
		return 2
	}
	control := newPipe(first)
	var h hello
	if err := control.receiveJSON(msgHello, &h); err != nil {
		fmt.Fprintln(os.Stderr, "no hello from the worker:", err)
		return 2
	}
	answer := ready{Version: pipeVersion}
	serve, err := h.prepare(first, control)
	if err == nil {
		answer.Confined, err = confine.Apply(h.Rules)
	}
	if err == nil {
		err = serve.start()
	}
	if err != nil {
		answer.Error = err.Error()
	}
	if told := control.sendJSON(msgReady, answer); told != nil || err != nil {
		return 2
	}
	return serve.serve()
}

// service is what a process is for. start is called with the rights that it
// keeps.
type service interface {
	start() error
	serve() int
}

// prepare opens what must be open before the process is confined.
func (h *hello) prepare(first *duplex, control *pipe) (service, error) {
	if h.Version != pipeVersion {
		return nil, fmt.Errorf("the worker speaks version %d of the sandbox protocol and this program %d: run both from one binary",
			h.Version, pipeVersion)
	}
	switch {
	case h.Run != nil:
		c := &child{cfg: *h.Run}
		for i := range h.Run.Density {
			s := &childSlot{c: c, data: control}
			if i > 0 {
				data, err := openData(i)
				if err != nil {
					return nil, err
				}
				s.data = newPipe(data)
			}
			stops, err := openControl(i)
			if err != nil {
				return nil, err
			}
			s.control = newPipe(stops)
			c.slots = append(c.slots, s)
		}
		if h.Run.Density == 1 {
			first.in.setPatience(processPatience)
		}
		return c, closeInherited(firstPipe + pipesPerGuest*h.Run.Density)
	case h.Compile != nil:
		c := &compileChild{cfg: *h.Compile, control: control}
		c.module = os.NewFile(moduleFile, h.Compile.Name)
		c.compiled = os.NewFile(compiledFile, "compiled module")
		return c, closeInherited(compiledFile + 1)
	}
	return nil, fmt.Errorf("%w: a hello for nothing", errBadMessage)
}

// openData is this process's end of what goes both ways for the guest's place i.
func openData(i int) (*duplex, error) {
	at := firstPipe + i*pipesPerGuest
	return inheritedPipes(at, at+1)
}

// openControl is this process's end of what stops the guest in place i.
func openControl(i int) (*duplex, error) { return inheritedPipes(firstPipe+i*pipesPerGuest+2, -1) }

// child runs guests, one at a time in each slot.
type child struct {
	cfg    helloRun
	slots  []*childSlot
	engine *Engine
}

func (c *child) start() (err error) {
	c.engine, err = New(Config{
		MaxModules: c.cfg.MaxModules, Tick: c.cfg.Tick, Guests: c.cfg.Density, ResidentBytes: c.cfg.ResidentBytes,
	})
	return err
}

// serve returns when the worker closed a pipe: it owns this process, so it is
// gone or wants it to be. The guests that run end with the process.
func (c *child) serve() int {
	gone := make(chan error, 2*len(c.slots))
	for _, s := range c.slots {
		go func() { gone <- s.serve() }()
		go func() { gone <- s.listen() }()
	}
	if err := <-gone; !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "the worker's pipe:", err)
		return 1
	}
	return 0
}

// childSlot is a place for one guest at a time. The worker may have been told of an
// ending while the guest's memory is still to be put back: what it sends next waits in
// the pipe.
type childSlot struct {
	c             *child
	data, control *pipe

	mu      sync.Mutex
	current *childRun // guarded by mu; nil between runs
	// The last run that was to be canceled and to be stopped, which may be one that
	// has not come yet. Guarded by mu.
	canceled, stopped int64
}

// serve runs what comes until the pipe is closed.
func (s *childSlot) serve() error {
	for {
		kind, body, err := s.data.receive()
		if err != nil {
			return err
		}
		switch kind {
		case msgPing:
			err = s.data.send(msgPong, nil)
		case msgRun:
			err = s.runGuest(body)
		default:
			err = fmt.Errorf("%w: it is a %q", errBadMessage, kind)
		}
		if err != nil {
			return err
		}
	}
}

func (s *childSlot) runGuest(body []byte) error {
	spec, err := decodeSpec(body)
	if err != nil {
		return err
	}
	r := newChildRun(s, spec)
	s.setCurrent(r)
	end := r.run()
	return r.tellEnding(&end)
}

// setCurrent makes r the guest that the worker can stop; nil is none.
func (s *childSlot) setCurrent(r *childRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = r
	s.tell()
}

// tell passes on to the current guest what the worker asked for. s.mu is held.
func (s *childSlot) tell() {
	r := s.current
	if r == nil {
		return
	}
	if s.canceled >= r.spec.number {
		r.cancel()
	}
	if s.stopped >= r.spec.number {
		r.stop(context.Canceled)
	}
}

// listen hears who is to be stopped, and what requests are answered, until the pipe
// is closed.
func (s *childSlot) listen() error {
	for {
		kind, body, err := s.control.receive()
		if err != nil {
			return err
		}
		d := decoder{b: body}
		switch number := d.num(); kind {
		case msgHTTPHead, msgHTTPBody, msgHTTPDone, msgRoomIs:
			err = s.answer(number, kind, &d)
		default:
			err = s.interrupt(number, kind, &d)
		}
		if err != nil {
			return err
		}
	}
}

// answer gives the guest of a run what it is answered: one of its requests, or how much
// it may still write.
func (s *childSlot) answer(number int64, kind messageKind, d *decoder) error {
	s.mu.Lock()
	r := s.current
	s.mu.Unlock()
	if r == nil || r.spec.number != number { // that run is over
		return nil
	}
	if kind == msgRoomIs {
		return r.takeRoom(d)
	}
	return errors.Join(d.err, r.takeHTTP(kind, d))
}

// interrupt cancels or stops the guest of a run, also of one that has not come yet.
func (s *childSlot) interrupt(number int64, kind messageKind, d *decoder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch kind {
	case msgCancel:
		s.canceled = max(s.canceled, number)
	case msgStop:
		s.stopped = max(s.stopped, number)
	default:
		err = fmt.Errorf("%w: it is a %q", errBadMessage, kind)
	}
	s.tell()
	return errors.Join(err, d.end())
}

// childRun is one guest in this process.
type childRun struct {
	slot   *childSlot
	engine *Engine
	pipe   *pipe // of slot, to the worker
	spec   *remoteSpec

	told    bool  // tellEnding was called
	tellErr error // of that call

	ctx    context.Context // of the guest, which outlives the call that made it
	stop   context.CancelCauseFunc
	cancel func()

	httpMu    sync.Mutex
	exchanges map[uint32]*exchange // the guest's requests; guarded by httpMu

	roomIs chan int64 // what askRoom is answered

	unsaid young // that the guest started, while the worker was not told
}

func newChildRun(slot *childSlot, spec *remoteSpec) *childRun {
	r := &childRun{slot: slot, engine: slot.c.engine, pipe: slot.data, spec: spec, exchanges: map[uint32]*exchange{}}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	canceled := make(chan struct{})
	r.cancel = sync.OnceFunc(func() { close(canceled) })
	spec.Canceled, spec.Stderr = canceled, stderrPipe{r}
	if spec.asksRoom {
		r.roomIs, spec.Room = make(chan int64, 1), r.askRoom
	}
	return r
}

// shortRun is too short for a guest to leave much: its memory is put back, and its files
// are closed, within some milliseconds, for which the next guest waits.
const shortRun = 10 * time.Millisecond

// run runs the guest. After a short run it tells the worker of the ending before it puts
// the guest's memory back; see docs/rationale.md. Not with neighbours: they would share
// the blame if the process died of that.
func (r *childRun) run() Ending {
	defer r.stop(nil)
	if r.spec.code.needs.Component {
		if !r.slot.c.cfg.Components {
			return refused(refuseComponent(r.spec.Module))
		}
		return r.runComponent()
	}
	src := source{path: r.spec.code.Path, digest: r.spec.Digest, code: &r.spec.code}
	return r.engine.run(r.ctx, src, r.spec.Limits, func(s seat) Ending {
		r.sayStarted(s.module)
		guest := newRun(r.ctx, r.engine, &r.spec.Spec, r.emit, childHTTP{r})
		defer guest.close()
		end := guest.run(s.form, r.spec.preopens)
		r.engine.lasting.remove(&r.unsaid)
		s.module.ran.Store(true)
		if r.slot.c.cfg.Density == 1 && end.Duration < shortRun {
			_ = r.tellEnding(&end) // runGuest is given its error
		}
		return end
	})
}

// tellEnding tells the worker how the guest ended. Called again it does nothing and
// returns the first call's error.
func (r *childRun) tellEnding(end *Ending) error {
	if !r.told {
		r.told = true
		r.slot.setCurrent(nil)
		r.tellErr = r.pipe.send(msgEnding, func(e *encoder) { encodeEnding(e, end) })
	}
	return r.tellErr
}

// sayStarted tells the worker at once of a module's first run in this process,
// which it may bring down. Of later ones it tells with the first thing that the
// guest says, its end, or after a part of a second.
func (r *childRun) sayStarted(module *compiled) {
	if !module.ran.Load() {
		r.must(r.pipe.send(msgStarted, nil))
		return
	}
	r.must(r.pipe.sendLater(msgStarted, nil))
	r.engine.lasting.add(&r.unsaid, r.pipe.hasten)
}

// emit blocks while the worker is slow, and so holds the guest back.
func (r *childRun) emit(event protocol.Event) {
	r.must(r.pipe.sendSoon(msgEvent, func(e *encoder) { encodeEvent(e, &event) }))
}

// must stops the guest when the worker does not hear it any more. listen sees the
// closed pipe and ends the process.
func (r *childRun) must(err error) {
	if err != nil {
		r.stop(fmt.Errorf("%w: %w", errWorkerGone, err))
	}
}

// stderrPipe hands stderr to the worker.
type stderrPipe struct{ r *childRun }

func (s stderrPipe) Write(piece []byte) (int, error) {
	s.r.must(s.r.pipe.sendSoon(msgStderr, func(e *encoder) { e.b = append(e.b, piece...) }))
	return len(piece), nil
}
