package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
	"starling/sandbox"
)

// Worker takes jobs of one pool and runs them. Make one with [New], run it once
// with [Worker.Run].
type Worker struct {
	cfg    Config
	bus    *broker.Bus
	guests Sandbox
	bridge *completion.Bridge
	log    *slog.Logger

	metrics *metrics
	tracer  oteltrace.Tracer

	taker    *broker.Taker // set by Run before the first job
	capsules *capsules     // the same
	running  running
	reports  chan struct{} // one place per job that reports outside a slot

	startedAt time.Time
	runID     string // of this run, as the registry shows it
	jobsDone  atomic.Int64
	draining  atomic.Bool
	taking    atomic.Bool  // Run has a taker and has not returned
	turned    atomic.Int64 // Unix nanoseconds of the housekeeping's latest turn
	fault     hostFault

	drainOnce, stopOnce sync.Once
	drainAsked          chan struct{} // closed by Drain
	stopAsked           chan struct{} // closed by Stop
	left                chan struct{} // closed by work when nothing more is taken
}

// Sandbox runs guests: a [sandbox.Supervisor] in processes of their own, or a
// [sandbox.Engine] in this one.
type Sandbox interface {
	// Prepare makes a module ready for Run, which may take long. When ctx ends it
	// returns the cause.
	Prepare(ctx context.Context, module string, digest protocol.Digest) error
	// Run runs one guest and blocks until it is gone. emit is called on the calling
	// goroutine; while it blocks the guest waits.
	Run(ctx context.Context, spec sandbox.Spec, emit func(protocol.Event)) sandbox.Ending
	// UnlinkedBytes is what running guests hold open that has no name any more, by
	// their work directory.
	UnlinkedBytes() (map[string]int64, error)
	// Deaths is how many of its processes died that were still of use.
	Deaths() uint64
}

// New makes a worker on parts that the caller owns and closes after Run. It
// starts nothing.
func New(cfg Config, bus *broker.Bus, guests Sandbox, bridge *completion.Bridge, log *slog.Logger) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w := &Worker{
		cfg: cfg, bus: bus, guests: guests, bridge: bridge, log: log.With("worker_id", cfg.WorkerID),
		tracer:  cfg.Tracer.Tracer("starling/worker"),
		reports: make(chan struct{}, cfg.Reports), startedAt: time.Now(), runID: protocol.NewRunID(),
		drainAsked: make(chan struct{}), stopAsked: make(chan struct{}), left: make(chan struct{}),
	}
	w.metrics = newMetrics(cfg.Metrics, w)
	return w, nil
}

// ID is the worker's.
func (w *Worker) ID() protocol.WorkerID { return w.cfg.WorkerID }

// Drain makes Run take no more jobs and return once those it holds have ended.
// It does not block. Idempotent.
func (w *Worker) Drain() {
	w.drainOnce.Do(func() {
		w.draining.Store(true)
		close(w.drainAsked)
	})
}

// Stop drains and hands running tasks back at once instead of after the drain
// timeout. It does not block. Idempotent.
func (w *Worker) Stop() {
	w.Drain()
	w.stopOnce.Do(func() { close(w.stopAsked) })
}

// handBackTimeout bounds how long stopped guests may take to be handed back;
// what has not settled then is redelivered after the ack wait.
const handBackTimeout = 15 * time.Second

// Run works until ctx is done or [Worker.Drain] is called, then drains: it
// leaves its pool, gives back what open pulls still bring and waits for its
// guests; what runs past the drain timeout is stopped and handed back. It
// returns nil after a drain, and an error when it could not start or lost its
// queue. ready, if not nil, is called once the worker takes jobs.
func (w *Worker) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(w.cfg.WorkRoot, 0o700); err != nil {
		return fmt.Errorf("worker: work root: %w", err)
	}
	var err error
	if w.capsules, err = newCapsules(ctx, w.bus, w.cfg.CacheDir, w.metrics); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	defer w.capsules.close()
	if w.taker, err = w.bus.NewTaker(ctx, broker.TakerConfig{
		Pool: w.cfg.Pool, Slots: w.cfg.Slots, PullExpires: w.cfg.PullExpires,
	}); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	w.turned.Store(time.Now().UnixNano())
	w.taking.Store(true)
	defer w.taking.Store(false)
	presence, err := w.announce(ctx)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	life := context.WithoutCancel(ctx) // a drain outlives ctx
	keeping, stopKeeping := context.WithCancel(life)
	var house sync.WaitGroup
	house.Go(func() { w.housekeep(keeping) })
	w.log.Info("worker ready", "pool", w.cfg.Pool, "slots", w.cfg.Slots)
	err = w.work(ctx, life, presence, ready)
	stopKeeping()
	house.Wait()
	if gone := presence.close(life); errors.Is(gone, broker.ErrUnavailable) {
		w.log.Warn("the end is not in the registry: the worker's entry expires by itself", "error", gone)
	} else {
		err = errors.Join(err, gone)
	}
	w.log.Info("worker stopped", "jobs_done", w.jobsDone.Load())
	return err
}

// work takes jobs until it is told to drain, and drains.
func (w *Worker) work(ctx, life context.Context, presence *presence, ready func()) error {
	taking, takeNoMore := context.WithCancel(life)
	defer takeNoMore()
	jobs, giveUp := context.WithCancelCause(life)
	defer giveUp(nil)
	guests, handBack := context.WithCancelCause(jobs)
	defer handBack(nil)

	select {
	case <-w.drainAsked: // before the start: nothing is taken at all
		takeNoMore()
	default:
	}
	var held sync.WaitGroup
	took := make(chan error, 1)
	go func() {
		took <- w.taker.Run(taking, func(d *broker.Delivery) {
			held.Go(func() { w.do(jobs, guests, d) })
		})
	}()
	if ready != nil {
		ready()
	}
	var err error
	select {
	case <-ctx.Done():
	case <-w.drainAsked:
	case <-presence.heartbeat.Lost():
		err = fmt.Errorf("worker: %w: another worker has %s now: this one stops", broker.ErrWorkerTaken, w.cfg.WorkerID)
	case err = <-took:
		took <- nil // read once more below
	}
	w.Drain()
	w.log.Info("worker drains", "busy", w.taker.Busy(), "drain_timeout", w.cfg.DrainTimeout.String())
	takeNoMore() // before anybody is told: what is dispatched from then on is another's
	if err := presence.leave(life); err != nil {
		w.log.Warn("drain not announced", "error", err)
	}
	close(w.left)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		err = errors.Join(err, <-took)
		held.Wait()
	}()
	w.awaitDrain(settled, handBack, giveUp)
	<-settled
	return err
}

// awaitDrain waits for the jobs that are held: first for their guests, then,
// past the drain timeout or on Stop, for them to be handed back.
func (w *Worker) awaitDrain(settled <-chan struct{}, handBack, giveUp context.CancelCauseFunc) {
	timeout := time.NewTimer(w.cfg.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-settled:
		return
	case <-timeout.C:
	case <-w.stopAsked:
		w.taker.Abandon()
	}
	handBack(errHandBack)
	timeout.Reset(handBackTimeout)
	select {
	case <-settled:
	case <-timeout.C:
		giveUp(errHandBack)
	}
}
