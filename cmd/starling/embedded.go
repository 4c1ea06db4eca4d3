package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
	"starling/worker"
)

// closers close in the reverse of the order they were added in.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() error {
	var problems []error
	for i := len(*c) - 1; i >= 0; i-- {
		problems = append(problems, (*c)[i]())
	}
	*c = nil
	return errors.Join(problems...)
}

// connect connects to the bus that the settings name.
func (s busSettings) connect(ctx context.Context, name string, log *slog.Logger) (*broker.Bus, error) {
	return broker.Connect(ctx, s.config(name, log))
}

// staff is a worker and what it stands on.
type staff struct {
	worker  *worker.Worker
	guests  guests
	watched *monitor
	closers closers
}

// newStaff wires a worker to a bus and a monitor. close it after the worker's Run.
// compiling may be nil: see [sandbox.Config].
func newStaff(
	cfg worker.Config, where sandboxSettings, told completion.Config, bus *broker.Bus, watched *monitor, log *slog.Logger,
	compiling func(protocol.Digest) (done func()),
) (*staff, error) {
	s := &staff{watched: watched}
	cfg.Metrics = watched.registerer()
	var err error
	if s.guests, err = where.open(cfg, log, compiling); err != nil {
		return nil, err
	}
	s.closers.add(s.guests.Close)
	bridge, err := completion.NewBridge(told)
	if err != nil {
		return nil, errors.Join(err, s.closers.close())
	}
	s.closers.add(func() error { bridge.Close(); return nil })
	if s.worker, err = worker.New(cfg, bus, s.guests, bridge, log); err != nil {
		return nil, errors.Join(err, s.closers.close())
	}
	watched.serve(s.worker)
	return s, nil
}

// fleet is everything in one process: a server, its topology and a worker that
// runs.
type fleet struct {
	server  *broker.Server
	bus     *broker.Bus // of the command; the worker has its own
	staff   *staff
	done    chan error // gets the worker's end
	tracing tracing

	closers closers
}

// fleetConfig says what one process holds.
type fleetConfig struct {
	server     broker.ServerConfig
	bus        broker.Config
	worker     worker.Config
	sandbox    sandboxSettings
	completion completion.Config
	init       broker.InitConfig
	monitor    monitorSettings
	compiling  func(protocol.Digest) (done func()) // or nil: see newStaff
}

// startFleet starts a server and a worker and returns once jobs are taken.
func startFleet(ctx context.Context, cfg fleetConfig, log *slog.Logger) (_ *fleet, err error) {
	f := &fleet{done: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.closers.close())
		}
	}()
	if f.tracing, err = startTracing(ctx, cfg.bus.Name, log); err != nil {
		return nil, err
	}
	f.closers.add(f.tracing.close)
	cfg.worker.Tracer = f.tracing
	watched, err := cfg.monitor.listen(ctx, log)
	if err != nil {
		return nil, err
	}
	f.closers.add(watched.close)
	if f.server, err = broker.StartServer(ctx, cfg.server); err != nil {
		return nil, err
	}
	f.closers.add(func() error { f.server.Close(); return nil })
	if f.bus, err = broker.ConnectServer(ctx, f.server, cfg.bus); err != nil {
		return nil, err
	}
	f.closers.add(f.bus.Close)
	if err = f.bus.Init(ctx, cfg.init); err != nil {
		return nil, err
	}
	cfg.bus.SeparateFrames = true
	own, err := broker.ConnectServer(ctx, f.server, cfg.bus)
	if err != nil {
		return nil, err
	}
	f.closers.add(own.Close)
	if f.staff, err = newStaff(cfg.worker, cfg.sandbox, cfg.completion, own, watched, log, cfg.compiling); err != nil {
		return nil, err
	}
	f.closers.add(f.staff.closers.close)
	ready := make(chan struct{})
	go func() { f.done <- f.staff.worker.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
		return f, nil
	case err = <-f.done:
		return nil, fmt.Errorf("the embedded worker did not start: %w", err)
	}
}

// stop drains the worker and closes everything.
func (f *fleet) stop() error {
	f.staff.worker.Drain()
	return errors.Join(<-f.done, f.closers.close())
}
