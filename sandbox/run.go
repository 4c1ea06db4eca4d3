package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"starling/protocol"
	"starling/sandbox/internal/wasm"
	"starling/sandbox/internal/wasmtimex"
)

// Run runs one guest and blocks until it is gone. It prepares the module when
// that was not done; the deadline begins after that.
//
// emit is given every driver event, in order and never concurrently, on the
// calling goroutine. It may block: the guest then waits, and so does Run, even
// past the deadline or the end of ctx; whoever gives an emit that blocks sees to
// it that it ends. When ctx ends the guest is interrupted within a few ticks.
//
// Run does not fail: whatever happens is an [Ending].
func (e *Engine) Run(ctx context.Context, spec Spec, emit func(protocol.Event)) Ending {
	if !e.enter() {
		return interrupted(ErrClosed)
	}
	defer e.work.Done()
	if err := spec.validate(); err != nil {
		return refused(refusal(err.Error()))
	}
	return e.run(ctx, source{path: spec.Module, digest: spec.Digest}, spec.Limits, func(s seat) Ending {
		if end, over := s.module.needs.over(spec.Limits); over {
			return end
		}
		files, err := grantFiles(&spec)
		if err != nil {
			return refused(err)
		}
		if spec.WorkDir != "" {
			defer e.dirs.add(spec.WorkDir)()
		}
		defer files.putAllBack(e.cfg.Logger)
		guest := newRun(ctx, e, &spec, emit, &directHTTP{make: func() *httpCalls {
			return newHTTPCalls(ctx, e.cfg.HTTP, spec.Network)
		}})
		defer guest.close()
		return guest.run(s.form, files.preopens)
	})
}

// run does what a run of a module needs around it.
func (e *Engine) run(ctx context.Context, src source, l protocol.Limits, do func(seat) Ending) Ending {
	s, err := e.modules.seat(ctx, src, l)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return interrupted(err)
		}
		return refused(err)
	}
	defer e.modules.leave(s)
	return do(s)
}

// over reports that a module does not fit into the limits from the start.
func (n needs) over(l protocol.Limits) (Ending, bool) {
	switch {
	case n.MemoryBytes > uint64(l.MemoryBytes):
		return memoryEnding(n.MemoryBytes, l.MemoryBytes), true
	case n.TableElements > uint64(l.TableElements):
		return tableEnding(n.TableElements, l.TableElements), true
	}
	return Ending{}, false
}

func interrupted(err error) Ending {
	return Ending{Kind: Interrupted, Err: err, Message: err.Error()}
}

func refused(err error) Ending {
	return Ending{Kind: Refused, Err: err, Message: err.Error()}
}

// run is one guest's run. It is used by the goroutine that called Run alone; for a
// component see [componentRun].
type run struct {
	// ctx is kept because the guest's calls come back through C, which carries
	// no arguments of ours. It lives as long as the call of Run that made it.
	ctx      context.Context
	engine   *Engine
	spec     *Spec
	begun    time.Time
	deadline time.Time

	guest  *wasmtimex.Guest
	stdio  stdio
	output output
	stderr tail
	timer  *time.Timer // of poll_oneoff

	http guestHTTP
	room int64 // bytes; below zero when it is used up

	stop    stop
	status  int   // stopExit
	cause   error // stopInterrupted, stopPanic
	woken   bool  // a sleep was cut short by Spec.Canceled
	dropped int64 // signals

	haste atomic.Int32 // see watch
	young young
	alarm alarm
}

// The states of run.haste.
const (
	notUrgent int32 = iota
	urgent
	over
)

// watch has the guest asked to stop once its deadline has passed or its context
// has ended, until the function that it returns is called. For a guest that is
// gone soon it sets no timer: see [lasting].
func (r *run) watch() (stop func()) {
	release := context.AfterFunc(r.ctx, r.hurry)
	r.engine.lasting.add(&r.young, func() { r.alarm.set(r.deadline, r.hurry) })
	return func() {
		release()
		r.engine.lasting.remove(&r.young)
		r.alarm.off()
		if r.haste.Swap(over) == urgent {
			r.engine.calm()
		}
	}
}

// hurry may be called when the guest is gone.
func (r *run) hurry() {
	if r.haste.CompareAndSwap(notUrgent, urgent) {
		r.engine.hurry()
	}
}

// alarm calls a function at a time, unless it is off. It is safe for concurrent
// use.
type alarm struct {
	mu    sync.Mutex
	over  bool
	timer *time.Timer
}

func (a *alarm) set(at time.Time, f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.timer = time.AfterFunc(time.Until(at), f)
	}
}

func (a *alarm) off() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

// stop is why the host stopped the guest. The first reason stays.
type stop int

const (
	stopNone stop = iota
	stopExit
	stopDeadline
	stopCalls
	stopInterrupted
	stopPanic
)

func newRun(ctx context.Context, e *Engine, spec *Spec, emit func(protocol.Event), web requester) *run {
	begun := time.Now()
	return &run{
		ctx: ctx, engine: e, spec: spec, begun: begun,
		deadline: begun.Add(time.Duration(spec.Limits.DeadlineSeconds) * time.Second),
		stdio:    newStdio(),
		output:   output{lines: spec.Output == protocol.OutputEvents, emit: emit},
		stderr:   tail{also: spec.Stderr},
		http:     guestHTTP{requester: web},
		room:     spec.Limits.WorkdirBytes,
	}
}

// run instantiates the guest, runs it, and says how it ended. The caller calls close
// after it, also when the guest never started.
func (r *run) run(module *form, preopens []wasmtimex.Preopen) Ending {
	return r.conclude(r.execute(module, preopens))
}

// close gives back the guest's memory and what it has open.
func (r *run) close() {
	if r.guest != nil {
		r.guest.Close()
	}
}

// conclude says how the guest ended, of which the engine said this.
func (r *run) conclude(said outcome, err error) Ending {
	r.http.requester.close() // nothing of the guest is left on the network
	late := !time.Now().Before(r.deadline)
	if r.stop != stopPanic {
		r.guarded(func() bool { return r.output.flush() || r.halt(stopCalls, nil) })
	}
	if err != nil {
		return refused(err)
	}
	ending := r.ending(said, late)
	ending.Duration = time.Since(r.begun)
	ending.Stdout, ending.StdoutDropped = r.output.text.String(), r.output.dropped
	ending.StderrTail, ending.StderrDropped = r.stderr.lines(), r.stderr.dropped
	ending.SignalsDropped = r.dropped
	return ending
}

// outcome is what the engine said of a guest, with the sizes that the guest
// asked for in vain.
type outcome struct {
	result         wasmtimex.Result
	memoryWanted   uint64 // bytes
	elementsWanted uint64
	instances      uint64 // that a component has, at least, when they were too many
}

// execute returns an error when the guest never started.
func (r *run) execute(module *form, preopens []wasmtimex.Preopen) (outcome, error) {
	l := r.spec.Limits
	guest, err := module.machine.linker.NewGuest(r, wasmtimex.Limits{
		MemoryBytes: l.MemoryBytes, TableElements: l.TableElements, Instances: l.Instances,
	})
	if err != nil {
		return outcome{}, fmt.Errorf("make a store: %w", err)
	}
	r.guest = guest
	defer r.watch()() // from here on: a store knows the epoch that it was made in
	result, err := guest.Instantiate(module.pre, wasmtimex.WASI{
		Args: r.spec.Args, Env: r.spec.Env, Stdin: r.spec.Stdin, Preopens: preopens,
	})
	if err != nil {
		return outcome{}, err
	}
	for _, function := range []string{wasm.ExportStart, "_start"} {
		if result.Kind == wasmtimex.Returned {
			if again, ok := guest.Call(function); ok {
				result = again
			}
		}
	}
	o := outcome{result: result}
	if result.Kind != wasmtimex.Returned {
		o.memoryWanted, _ = guest.Global(wasm.ExportMemoryWanted)
		o.elementsWanted, _ = guest.Global(wasm.ExportTableWanted)
	}
	return o, nil
}

// ending decides how the guest ended. A limit wins over the trap that followed.
// late says that the deadline had passed when the guest had stopped: the time may
// have run out in its last host call.
func (r *run) ending(o outcome, late bool) Ending {
	l := r.spec.Limits
	switch {
	case r.stop == stopPanic:
		r.engine.cfg.Logger.Error("host function panicked", slog.Any("error", r.cause))
		return trapEnding("a host function failed, which is a bug of starling")
	case r.stop == stopInterrupted:
		return interrupted(r.cause)
	case r.stop == stopCalls:
		return callsEnding()
	case r.stop == stopNone && o.memoryWanted > uint64(l.MemoryBytes):
		return memoryEnding(o.memoryWanted, l.MemoryBytes)
	case r.stop == stopNone && o.elementsWanted > uint64(l.TableElements):
		return tableEnding(o.elementsWanted, l.TableElements)
	case r.stop == stopNone && o.instances > 0:
		return instancesEnding(o.instances, l.Instances)
	case r.stop == stopDeadline || late:
		return deadlineEnding(l.DeadlineSeconds)
	case r.stop == stopExit:
		return Ending{Kind: Exited, Status: r.status}
	case o.result.Kind == wasmtimex.Returned:
		return Ending{Kind: Exited}
	default:
		return trapEnding(trapText(o.result.Text))
	}
}

// Tick implements [wasmtimex.Host].
func (r *run) Tick() bool { return r.alive() }

// alive reports whether the guest goes on, and notes why when it does not.
func (r *run) alive() bool {
	if r.stop != stopNone {
		return false
	}
	if r.ctx.Err() != nil {
		return r.halt(stopInterrupted, context.Cause(r.ctx))
	}
	select {
	case <-r.engine.closing:
		return r.halt(stopInterrupted, ErrClosed)
	default:
	}
	if !time.Now().Before(r.deadline) {
		return r.halt(stopDeadline, nil)
	}
	return true
}

// halt notes why the guest is stopped and returns false.
func (r *run) halt(why stop, cause error) bool {
	if r.stop == stopNone {
		r.stop, r.cause = why, cause
	}
	return false
}

// Call implements [wasmtimex.Host]: it runs a host function.
func (r *run) Call(number int, c *wasmtimex.Call) bool {
	return r.guarded(func() bool { return hostFunctions[number].call(r, c) })
}

// guarded keeps a panic of ours, or of emit, from unwinding the guest's stack,
// which would end the process.
func (r *run) guarded(f func() bool) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			r.stop, r.cause = stopPanic, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			ok = false
		}
	}()
	return f()
}
