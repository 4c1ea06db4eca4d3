package sandbox

import (
	"errors"
	"fmt"
	"sync"

	"starling/sandbox/internal/wasmtimex"
)

// A component runs in a sandbox process that runs nothing after it, alone, in an
// engine of its own that is made for it. Nothing in this file and in
// component*.go runs unless [ProcessConfig].Components is set.

// componentSettings is settings for a compiled component.
const componentSettings = settings + " components memory-of-the-host no-copy-on-write"

// newComponents makes the engine of a component, with what it may import.
func newComponents() (*wasmtimex.Components, error) {
	components, err := wasmtimex.NewComponents(wasmConfig(), componentInterfaces())
	if err != nil {
		return nil, fmt.Errorf("sandbox: define the imports of components: %w", err)
	}
	return components, nil
}

// runComponent is [childRun.run] for a component.
func (r *childRun) runComponent() Ending {
	if err := r.spec.code.check(); err != nil {
		return refused(err)
	}
	components, err := newComponents()
	if err != nil {
		return refused(err)
	}
	defer components.Close()
	component, err := components.Load(r.spec.code.Path)
	if err != nil {
		return refused(fmt.Errorf("artifact %s: %s", r.spec.code.Path, engineText(err.Error())))
	}
	defer component.Close()
	r.engine.machines.components.Store(components)
	defer r.engine.machines.components.Store(nil)
	r.must(r.pipe.send(msgStarted, nil)) // nothing is left that could be this host's fault
	guest := &componentRun{run: newRun(r.ctx, r.engine, &r.spec.Spec, r.emit, childHTTP{r})}
	return guest.conclude(guest.execute(components, component, r.spec.preopens))
}

// componentRun is the run of a component. Its output is read on goroutines of
// their own, so everything of run that output and host functions touch is
// guarded by mu from execute on until that returns.
type componentRun struct {
	*run
	mu sync.Mutex
	// Set by listen.
	stdoutPipe, stderrPipe *guestPipe
}

// execute returns an error when the guest never started.
func (r *componentRun) execute(components *wasmtimex.Components, component *wasmtimex.Component, preopens []wasmtimex.Preopen) (_ outcome, err error) {
	stop, err := r.listen()
	if err != nil {
		return outcome{}, err
	}
	defer stop()
	l := r.spec.Limits
	guest, err := components.NewGuest(r, wasmtimex.Limits{
		MemoryBytes: l.MemoryBytes, TableElements: l.TableElements, Instances: l.Instances,
	})
	if err != nil {
		return outcome{}, fmt.Errorf("make a store: %w", err)
	}
	defer guest.Close()
	defer r.watch()() // from here on: a store knows the epoch that it was made in
	result, err := guest.Instantiate(component, wasmtimex.WASI{
		Args: r.spec.Args, Env: r.spec.Env, Stdin: r.spec.Stdin, Preopens: preopens,
		Stdout: r.stdoutPipe.path, Stderr: r.stderrPipe.path,
	})
	if err != nil {
		return outcome{}, err
	}
	if n := instancesIn(result.Text); n > 0 {
		return outcome{result: result, instances: n}, nil
	}
	if result.Kind == wasmtimex.Failed && r.stopped() == stopNone && guest.MemoryWanted() == 0 {
		return outcome{}, refusef("the component cannot be instantiated: %s: build it for WASI 0.2 (wasm32-wasip2)", engineText(result.Text))
	}
	if result.Kind == wasmtimex.Returned {
		if result, err = r.command(guest); err != nil {
			return outcome{}, err
		}
	}
	// Of a guest too that went on after its memory could not grow, and returned: the
	// engine has no way to end it there.
	return outcome{result: result, memoryWanted: guest.MemoryWanted()}, nil
}

// command calls what the component exports to be run.
func (r *componentRun) command(guest *wasmtimex.ComponentGuest) (wasmtimex.Result, error) {
	result, status, ok := guest.Run(wasiRun, true)
	if !ok {
		result, status, ok = guest.Run(murmurRun, false)
	}
	if !ok {
		return result, refusef("the component exports no function run of wasi:cli/run@0.2 or %s: build it as a command", murmurRun)
	}
	if result.Kind == wasmtimex.Returned && status != 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.exit(status)
	}
	return result, nil
}

// listen reads what the guest writes, until stop, after which all of it was
// heard.
func (r *componentRun) listen() (stop func(), err error) {
	hear := func(to stream) func([]byte) {
		return func(piece []byte) {
			if r.stop == stopCalls || r.stop == stopPanic { // nobody hears it any more
				return
			}
			if !r.guarded(func() bool { return r.write(to, piece) }) {
				r.hurry()
			}
		}
	}
	if r.stdoutPipe, err = newGuestPipe(&r.mu, hear(streamStdout)); err == nil {
		r.stderrPipe, err = newGuestPipe(&r.mu, hear(streamStderr))
	}
	if err != nil {
		if r.stdoutPipe != nil {
			err = errors.Join(err, r.stdoutPipe.close())
		}
		return nil, fmt.Errorf("make the guest's pipes: %w", err)
	}
	var readers sync.WaitGroup
	readers.Go(r.stdoutPipe.follow)
	readers.Go(r.stderrPipe.follow)
	return func() {
		r.mu.Lock()
		r.stdoutPipe.drain()
		r.stderrPipe.drain()
		r.mu.Unlock()
		_, _ = r.stdoutPipe.close(), r.stderrPipe.close() // only pipes, of which all was read
		readers.Wait()
	}, nil
}

// CallComponent implements [wasmtimex.ComponentHost]: it runs a host function,
// after what was written before.
func (r *componentRun) CallComponent(number int, c *wasmtimex.ComponentCall) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stdoutPipe.drain()
	if r.stop != stopNone {
		return false
	}
	return r.guarded(func() bool { return componentFunctions[number].call(r.run, c) })
}

// Tick implements [wasmtimex.ComponentHost].
func (r *componentRun) Tick() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alive()
}

func (r *componentRun) stopped() stop {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stop
}
