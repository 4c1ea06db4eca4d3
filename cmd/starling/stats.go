package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

func (a *app) statsCommand() *cobra.Command {
	var buses busSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats [WORKER...]",
		Short: "Show what pools and workers have to do, for people and autoscalers",
		Long: `Show the queue of each pool (jobs that wait, jobs in progress, the age of the
oldest that waits, workers, slots) and the state of each worker with its tasks; or
of the workers that are named alone. With --json it is one object with the members
"pools" and "workers". docs/operations.md says how an autoscaler reads it.`,
		Example: "  starling stats --json | jq '.pools[] | {pool, pending, oldest_waiting_ms, slots}'",
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, id := range args {
				if err := protocol.ValidateName("worker", id); err != nil {
					return &usageError{err}
				}
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				s, err := readStats(cmd.Context(), bus, args)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(s)
				}
				return a.printStats(s)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one object with all of it")
	return bindAll(cmd, &buses)
}

// fleetStats is what stats prints.
type fleetStats struct {
	Pools   []broker.PoolStats `json:"pools,omitempty"`
	Workers []workerStats      `json:"workers"`
}

// workerStats is a worker's own answer, or, of one that gave none in time, its
// entry in the registry.
type workerStats struct {
	protocol.WorkerStats
	Answered bool `json:"answered"`
}

func readStats(ctx context.Context, bus *broker.Bus, named []string) (fleetStats, error) {
	s := fleetStats{Workers: []workerStats{}}
	for _, id := range named {
		answer, err := bus.WorkerStats(ctx, protocol.WorkerID(id))
		if err != nil {
			return s, err
		}
		s.Workers = append(s.Workers, workerStats{answer, true})
	}
	if len(named) > 0 {
		return s, nil
	}
	workers, err := bus.Workers(ctx)
	if err != nil && !errors.Is(err, broker.ErrNotInitialized) { // a server forgot the bucket: nobody is seen
		return s, err
	}
	if s.Pools, err = bus.PoolStats(ctx, workers); err != nil {
		return s, err
	}
	s.Workers, err = askAll(ctx, bus, workers)
	return s, err
}

const (
	// statsWait is how long a worker may take to answer, and statsAsks how many are
	// asked at a time: stalled ones must not hold up the rest.
	statsWait = 2 * time.Second
	statsAsks = 16
)

// askAll asks every worker for its state, in the order of the list.
func askAll(ctx context.Context, bus *broker.Bus, workers []protocol.WorkerInfo) ([]workerStats, error) {
	answers, errs := make([]workerStats, len(workers)), make([]error, len(workers))
	places := make(chan struct{}, statsAsks)
	var asking sync.WaitGroup
	for i, w := range workers {
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			try, cancel := context.WithTimeout(ctx, statsWait)
			defer cancel()
			answer, err := bus.WorkerStats(try, w.WorkerID)
			switch {
			case err == nil:
				answers[i] = workerStats{answer, true}
			case errors.Is(err, broker.ErrUnknownWorker), errors.Is(err, broker.ErrUnavailable):
				answers[i] = workerStats{protocol.WorkerStats{WorkerInfo: w}, false}
			default:
				errs[i] = err
			}
		})
	}
	asking.Wait()
	return answers, errors.Join(errs...)
}

func (a *app) printStats(s fleetStats) error {
	if s.Pools != nil {
		pools := newTable(a.out, "POOL", "PENDING", "IN PROGRESS", "OLDEST", "WORKERS", "DRAINING", "SLOTS", "BUSY")
		for _, p := range s.Pools {
			oldest := "-"
			if p.Pending > 0 {
				oldest = short(time.Duration(p.OldestMS) * time.Millisecond)
			}
			pools.row(p.Pool, p.Pending, p.InProgress, oldest, p.Workers, p.Draining, p.Slots, p.Busy)
		}
		if err := errors.Join(pools.flush(), line(a.out)); err != nil {
			return err
		}
	}
	workers := newTable(a.out, "WORKER", "POOL", "STATE", "SLOTS", "BUSY", "DONE", "UP", "TASKS")
	for _, w := range s.Workers {
		state := workerState(w.WorkerInfo)
		if !w.Answered {
			state += ", silent"
		}
		workers.row(w.WorkerID, w.Pool, state, w.Slots, w.Busy, w.JobsDone, age(w.StartedAt), len(w.Tasks))
		for _, task := range w.Tasks {
			workers.row("  "+string(task.DelegationID), task.Capsule, fmt.Sprintf("attempt %d", task.Attempt), " ", " ", " ", age(task.StartedAt), " ")
		}
	}
	return workers.flush()
}
