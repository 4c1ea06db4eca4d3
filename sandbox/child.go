package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"starling/protocol"
	"starling/sandbox/internal/confine"
)

// The descriptors of a sandbox process beside stdio. Sockets come first, one per
// guest at a time; the first is the one that says hello. A process that compiles
// has one socket, then the module's file and the one for its compiled form.
const (
	firstSocket  = 3
	moduleFile   = 4
	compiledFile = 5
)

// errWorkerGone ends a guest whose worker closed its socket.
var errWorkerGone = errors.New("the worker is gone")

var errRunUnderWay = errors.New("one is under way")

// ProcessMain is the whole program of a sandbox process, which a [Supervisor]
// starts: it takes away its own rights, runs guests or compiles one module, and
// returns the exit status once the worker's end of its socket is closed. Nothing
// else may run in that process.
func ProcessMain() int {
	control, err := openSocket(firstSocket)
	if err != nil {
		fmt.Fprintf(os.Stderr, "starling sandbox is started by a worker, with a socket as descriptor %d: %s\n", firstSocket, err)
		return 2
	}
	var h hello
	if err := control.receiveJSON(msgHello, &h); err != nil {
		fmt.Fprintln(os.Stderr, "no hello from the worker:", err)
		return 2
	}
	answer := ready{Version: pipeVersion}
	serve, err := h.prepare(control)
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
func (h *hello) prepare(control *pipe) (service, error) {
	if h.Version != pipeVersion {
		return nil, fmt.Errorf("the worker speaks version %d of the sandbox protocol and this program %d: run both from one binary",
			h.Version, pipeVersion)
	}
	switch {
	case h.Run != nil:
		c := &child{cfg: *h.Run, slots: []*pipe{control}}
		for i := 1; i < h.Run.Density; i++ {
			slot, err := openSocket(firstSocket + i)
			if err != nil {
				return nil, err
			}
			c.slots = append(c.slots, slot)
		}
		return c, closeInherited(firstSocket + len(c.slots))
	case h.Compile != nil:
		c := &compileChild{cfg: *h.Compile, control: control}
		c.module = os.NewFile(moduleFile, h.Compile.Name)
		c.compiled = os.NewFile(compiledFile, "compiled module")
		return c, closeInherited(compiledFile + 1)
	}
	return nil, fmt.Errorf("%w: a hello for nothing", errBadMessage)
}

func openSocket(fd int) (*pipe, error) {
	f := os.NewFile(uintptr(fd), "socket")
	if f == nil {
		return nil, errors.New("there is no such descriptor")
	}
	defer f.Close() // FileConn has its own
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return newPipe(conn), nil
}

// child runs guests, one at a time on each socket.
type child struct {
	cfg    helloRun
	slots  []*pipe
	engine *Engine
}

func (c *child) start() (err error) {
	c.engine, err = New(Config{MaxModules: c.cfg.MaxModules, Tick: c.cfg.Tick})
	return err
}

// serve returns when the worker closed a socket: it owns this process, so it is
// gone or wants it to be. The guests that run end with the process.
func (c *child) serve() int {
	gone := make(chan struct{}, len(c.slots))
	for _, slot := range c.slots {
		go func() {
			c.serveSlot(slot)
			gone <- struct{}{}
		}()
	}
	<-gone
	return 0
}

// serveSlot reads a socket until it is closed. A guest runs on a goroutine of
// its own, so that a cancel is heard meanwhile.
func (c *child) serveSlot(slot *pipe) {
	var guest *childRun
	for {
		kind, body, err := slot.receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "the worker's socket:", err)
			}
			return
		}
		switch kind {
		case msgRun:
			spec, err := decodeSpec(body)
			if err != nil || (guest != nil && !guest.ended()) {
				fmt.Fprintln(os.Stderr, "the worker asks for a run:", cmp.Or(err, errRunUnderWay))
				return
			}
			guest = newChildRun(c.engine, slot, spec)
			go guest.run()
		case msgCancel:
			if guest != nil {
				guest.cancel()
			}
		case msgStop:
			if guest != nil {
				guest.stop(context.Canceled)
			}
		default:
			fmt.Fprintf(os.Stderr, "the worker sent a %q\n", kind)
			return
		}
	}
}

// childRun is one guest in this process.
type childRun struct {
	engine *Engine
	slot   *pipe
	spec   *remoteSpec

	ctx      context.Context // of the guest, which outlives the call that made it
	stop     context.CancelCauseFunc
	canceled chan struct{}
	cancel   func()
	done     chan struct{} // closed before the ending is sent
}

func newChildRun(engine *Engine, slot *pipe, spec *remoteSpec) *childRun {
	r := &childRun{engine: engine, slot: slot, spec: spec, canceled: make(chan struct{}), done: make(chan struct{})}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	r.cancel = sync.OnceFunc(func() { close(r.canceled) })
	spec.Canceled, spec.Stderr = r.canceled, stderrPipe{r}
	return r
}

func (r *childRun) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *childRun) run() {
	src := source{path: r.spec.code.Path, digest: r.spec.Digest, code: &r.spec.code}
	end := r.engine.run(r.ctx, src, func(module *compiled) Ending {
		r.must(r.slot.sendSoon(msgStarted, nil))
		return newRun(r.ctx, r.engine, &r.spec.Spec, r.emit).run(module, r.spec.preopens)
	})
	r.stop(nil)
	close(r.done)
	r.must(r.slot.send(msgEnding, func(e *encoder) { encodeEnding(e, &end) }))
}

// emit blocks while the worker is slow, and so holds the guest back.
func (r *childRun) emit(event protocol.Event) {
	r.must(r.slot.sendSoon(msgEvent, func(e *encoder) { encodeEvent(e, &event) }))
}

// must stops the guest when the worker does not hear it any more. serveSlot sees
// the closed socket and ends the process.
func (r *childRun) must(err error) {
	if err != nil {
		r.stop(fmt.Errorf("%w: %w", errWorkerGone, err))
	}
}

// stderrPipe hands stderr to the worker.
type stderrPipe struct{ r *childRun }

func (s stderrPipe) Write(piece []byte) (int, error) {
	s.r.must(s.r.slot.sendSoon(msgStderr, func(e *encoder) { e.b = append(e.b, piece...) }))
	return len(piece), nil
}

// compileChild compiles one module.
type compileChild struct {
	cfg              helloCompile
	control          *pipe
	module, compiled *os.File
}

func (c *compileChild) start() error { return nil }

func (c *compileChild) serve() int {
	var answer compileAnswer
	var no refusal
	var bad damaged
	n, err := c.compile()
	switch {
	case err == nil:
		answer.Needs = n
	case errors.As(err, &bad):
		answer.Refused, answer.Damaged = err.Error(), true
	case errors.As(err, &no):
		answer.Refused = err.Error()
	default:
		answer.Error = err.Error()
	}
	if err := c.control.sendJSON(msgCompiled, answer); err != nil {
		return 1
	}
	return 0
}

func (c *compileChild) compile() (needs, error) {
	binary, n, err := readModuleFrom(c.module, c.cfg.Name, c.cfg.Digest, c.cfg.MaxModuleBytes)
	if err != nil {
		return n, err
	}
	// Without a linker: an engine alone.
	engine := newWasmEngine()
	defer engine.Close()
	module, err := compile(engine, c.cfg.Name, binary)
	if err != nil {
		return n, err
	}
	defer module.Close()
	content, err := module.Serialize()
	if err != nil {
		return n, fmt.Errorf("serialize: %w", err)
	}
	_, err = c.compiled.Write(content)
	return n, errors.Join(err, c.compiled.Close())
}
