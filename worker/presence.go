package worker

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"starling/broker"
	"starling/protocol"
)

// presence is how the fleet sees this worker: its entry and its endpoints.
type presence struct {
	heartbeat *broker.Heartbeat
	service   *broker.Service
}

// announce claims the worker's id, answers under it, and looks once more that it
// has it: of two that start at a time both may have found nobody to ask.
func (w *Worker) announce(ctx context.Context) (*presence, error) {
	waiting, stop := context.WithCancel(ctx)
	var drained sync.WaitGroup
	drained.Go(func() { // a worker that waits for its id can be stopped
		select {
		case <-w.drainAsked:
			stop()
		case <-waiting.Done():
		}
	})
	heartbeat, err := w.bus.Announce(waiting, w.info)
	stop()
	drained.Wait()
	if err != nil {
		return nil, err
	}
	life := context.WithoutCancel(ctx)
	service, err := w.bus.Serve(life, broker.ServiceConfig{
		WorkerID: w.cfg.WorkerID, Pool: w.cfg.Pool, Version: w.cfg.Version, Drain: w.drainOnRequest, Stats: w.stats,
	})
	if err != nil {
		return nil, errors.Join(err, heartbeat.Close(life))
	}
	p := &presence{heartbeat, service}
	if err := heartbeat.Confirm(life); err != nil {
		return nil, errors.Join(err, p.close(life))
	}
	return p, nil
}

// drainAnswer bounds how long a drain's asker waits for the worker to take no
// more; then it drains all the same.
const drainAnswer = 3 * time.Second

func (w *Worker) drainOnRequest(ctx context.Context) error {
	w.Drain()
	timer := time.NewTimer(drainAnswer)
	defer timer.Stop()
	select {
	case <-w.left:
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// leave says that the worker takes no more.
func (p *presence) leave(ctx context.Context) error {
	return errors.Join(p.service.LeavePool(ctx), p.heartbeat.Beat(ctx))
}

func (p *presence) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return errors.Join(p.service.Close(ctx), p.heartbeat.Close(ctx))
}

// info is the worker's entry in the registry.
func (w *Worker) info() protocol.WorkerInfo {
	return protocol.WorkerInfo{
		WorkerID: w.cfg.WorkerID, RunID: w.runID, Pool: w.cfg.Pool, Host: w.cfg.Host, PID: os.Getpid(), Version: w.cfg.Version,
		Slots: w.cfg.Slots, Busy: w.taker.Busy(), Draining: w.draining.Load(), JobsDone: w.jobsDone.Load(),
		StartedAt: protocol.NewTime(w.startedAt), SeenAt: protocol.NewTime(time.Now()),
	}
}

// stats is the entry and what runs now.
func (w *Worker) stats() protocol.WorkerStats {
	return protocol.WorkerStats{WorkerInfo: w.info(), Tasks: w.running.tasks()}
}
