package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"starling/protocol"
)

// The verbs that a worker answers.
const (
	verbDrain = "drain"
	verbStats = "stats"
)

// The names under which `nats micro ls` shows workers. The pool's endpoint is a
// service of its own because a service cannot give up one endpoint, and a
// draining worker leaves its pool and still answers the rest.
const (
	workerService = "starling-worker"
	poolService   = "starling-pool"
)

// ServiceConfig says what a worker answers with.
type ServiceConfig struct {
	WorkerID protocol.WorkerID
	Pool     string
	// Version of the program; one that is not semantic is shown as 0.0.0.
	Version string
	// Drain begins a drain and returns once the worker takes no more, without
	// waiting for its end; ctx ends with the service. Its error is the asker's.
	Drain func(ctx context.Context) error
	// Stats is the worker's state now. It must not block.
	Stats func() protocol.WorkerStats
}

// Service answers control requests for a worker, on the connection's
// goroutines.
//
// Source: docs/protocol.md, section 2, control.
type Service struct {
	bus    *Bus
	worker micro.Service
	stop   context.CancelFunc

	mu   sync.Mutex // pool; never held across a request
	pool micro.Service
}

// Serve answers "drain" and "stats" for the worker, and for its pool as one of a
// queue group. When it returns the server knows all subscriptions; a refused one
// is [ErrDenied]. ctx bounds the start only; whoever starts it closes it.
func (b *Bus) Serve(ctx context.Context, cfg ServiceConfig) (*Service, error) {
	if err := errors.Join(protocol.ValidateName("worker_id", string(cfg.WorkerID)), protocol.ValidateName("pool", cfg.Pool)); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Service{bus: b, stop: stop}
	drain, stats := b.ns.WorkerSubject(cfg.WorkerID, verbDrain), b.ns.WorkerSubject(cfg.WorkerID, verbStats)
	pool := b.ns.PoolSubject(cfg.Pool)
	err := s.add(cfg, &s.worker, workerService, "runs capsules of namespace "+string(b.ns),
		endpoint{verbDrain, drain, "", func(r micro.Request) { answerDrain(running, cfg, r) }},
		endpoint{verbStats, stats, "", func(r micro.Request) { _ = r.RespondJSON(cfg.Stats()) }}, // the asker asks again
	)
	if err == nil {
		served, _ := json.Marshal(poolAnswer{WorkerID: cfg.WorkerID, Pool: cfg.Pool}) // strings always marshal
		err = s.add(cfg, &s.pool, poolService, "takes jobs of pool "+cfg.Pool,
			endpoint{"jobs", pool, "workers", func(r micro.Request) { _ = r.Respond(served) }}) // the asker asks again
	}
	if err == nil {
		err = b.subscribed(ctx, b.nc, drain, stats, pool)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// poolAnswer is what a worker says on its pool's subject.
type poolAnswer struct {
	WorkerID protocol.WorkerID `json:"worker_id"`
	Pool     string            `json:"pool"`
}

type endpoint struct {
	name, subject, queue string
	handle               micro.HandlerFunc
}

func (s *Service) add(cfg ServiceConfig, into *micro.Service, name, description string, endpoints ...endpoint) error {
	version := cfg.Version
	if !semantic.MatchString(version) {
		version = "0.0.0"
	}
	service, err := micro.AddService(s.bus.nc, micro.Config{
		Name: name, Version: version, Description: description,
		Metadata: map[string]string{
			"namespace": string(s.bus.ns), "worker_id": string(cfg.WorkerID), "pool": cfg.Pool,
		},
	})
	if err != nil {
		return fmt.Errorf("serving %s: %w", name, s.bus.failure(context.Background(), "", err))
	}
	*into = service
	for _, e := range endpoints {
		queue := micro.WithEndpointQueueGroupDisabled()
		if e.queue != "" {
			queue = micro.WithEndpointQueueGroup(e.queue)
		}
		if err := service.AddEndpoint(e.name, e.handle, micro.WithEndpointSubject(e.subject), queue); err != nil {
			return fmt.Errorf("serving %s: %w", e.subject, s.bus.failure(context.Background(), "", err))
		}
	}
	return nil
}

// semantic is a part of the rule that every version of a release follows.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[1-9A-Za-z][0-9A-Za-z]*)?$`)

func answerDrain(ctx context.Context, cfg ServiceConfig, r micro.Request) {
	if err := cfg.Drain(ctx); err != nil {
		_ = r.Error("500", err.Error(), nil) // the asker asks again
		return
	}
	_ = r.RespondJSON(cfg.Stats()) // the asker asks again
}

// LeavePool stops answering for the pool: new dispatches count without this
// worker from the moment it returns. The rest is still answered. Idempotent.
func (s *Service) LeavePool(ctx context.Context) error {
	s.mu.Lock()
	pool := s.pool
	s.pool = nil
	s.mu.Unlock()
	if pool == nil {
		return nil
	}
	err := pool.Stop()
	return errors.Join(s.bus.stopped(err), s.bus.subscribed(ctx, s.bus.nc))
}

// Close stops answering at all. It is idempotent. The context of a running Drain
// ends.
func (s *Service) Close(ctx context.Context) error {
	s.stop()
	err := s.LeavePool(ctx)
	if s.worker != nil && !s.worker.Stopped() {
		err = errors.Join(err, s.bus.stopped(s.worker.Stop()), s.bus.subscribed(ctx, s.bus.nc))
	}
	if errors.Is(err, ErrClosed) {
		return nil // then nothing is answered either
	}
	return err
}

func (b *Bus) stopped(err error) error { return b.failure(context.Background(), "", err) }

// DrainWorker asks a worker to drain and returns, with its state, when it takes
// no more jobs; what it runs goes on within its drain timeout. The end shows in
// [Bus.Workers]. Nobody there is [ErrUnknownWorker], a refusal [ErrWorker].
func (b *Bus) DrainWorker(ctx context.Context, id protocol.WorkerID) (protocol.WorkerStats, error) {
	return b.askState(ctx, id, verbDrain)
}

// WorkerStats asks a worker for its state now. Nobody there is
// [ErrUnknownWorker].
func (b *Bus) WorkerStats(ctx context.Context, id protocol.WorkerID) (protocol.WorkerStats, error) {
	return b.askState(ctx, id, verbStats)
}

func (b *Bus) askState(ctx context.Context, id protocol.WorkerID, verb string) (protocol.WorkerStats, error) {
	answer, err := b.askWorker(ctx, id, verb)
	if err != nil {
		return protocol.WorkerStats{}, err
	}
	return protocol.ParseWorkerStats(answer.Data)
}

func (b *Bus) askWorker(ctx context.Context, id protocol.WorkerID, verb string) (*nats.Msg, error) {
	if err := protocol.ValidateName("worker_id", string(id)); err != nil {
		return nil, err
	}
	answer, err := b.request(ctx, b.nc, &nats.Msg{Subject: b.ns.WorkerSubject(id, verb)})
	if errors.Is(err, errNoResponders) {
		return nil, fmt.Errorf("%w: %s: see who lives with `starling workers`", ErrUnknownWorker, id)
	}
	if err != nil {
		return nil, err
	}
	if answer.Header.Get(micro.ErrorCodeHeader) != "" {
		return nil, fmt.Errorf("%w: %s of %s: %s", ErrWorker, verb, id, answer.Header.Get(micro.ErrorHeader))
	}
	return answer, nil
}

const (
	// poolWait is how long one worker of a pool is waited for. The queue group
	// picks it at random, and it may be stalled: then poolAsks are asked at once
	// and the first answer counts.
	poolWait = 250 * time.Millisecond
	poolAsks = 16
)

// PoolServed reports whether a worker takes from the pool now. It costs one
// request, about 0.1 ms. Workers that are there of which none answers within
// about 2 s are [ErrUnavailable].
//
// Source: docs/protocol.md, sections 2 and 3.
func (b *Bus) PoolServed(ctx context.Context, pool string) (bool, error) {
	if err := protocol.ValidateName("pool", pool); err != nil {
		return false, err
	}
	subject := b.ns.PoolSubject(pool)
	bounded, cancel := context.WithTimeout(ctx, poolWait)
	_, err := b.request(bounded, b.nc, &nats.Msg{Subject: subject})
	cancel()
	if errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
		err = b.askMany(ctx, subject)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errNoResponders):
		return false, nil
	}
	return false, fmt.Errorf("asking for workers of pool %s: %w", pool, err)
}

// askMany asks several of a queue group and takes the first answer.
func (b *Bus) askMany(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	guarded, done := b.guard(ctx, subject)
	defer done()
	inbox := b.nc.NewInbox()
	answers, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return b.failure(guarded, subject, err)
	}
	defer func() { _ = answers.Unsubscribe() }() // fails only when the connection is gone
	for range poolAsks {
		if err := b.nc.PublishRequest(subject, inbox, nil); err != nil {
			return b.failure(guarded, subject, err)
		}
	}
	answer, err := answers.NextMsgWithContext(guarded)
	if err != nil {
		return b.failure(guarded, subject, err)
	}
	if answer.Header.Get(headerStatus) == statusNoResponders {
		return fmt.Errorf("%w: %s", errNoResponders, subject)
	}
	return nil
}
