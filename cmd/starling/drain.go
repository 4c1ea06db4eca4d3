package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

// drainPoll is how often a drain that is waited for is looked at.
const drainPoll = 250 * time.Millisecond

func (a *app) drainCommand() *cobra.Command {
	var buses busSettings
	var wait, asJSON bool
	cmd := &cobra.Command{
		Use:   "drain WORKER",
		Short: "Let a worker take no more jobs, and leave when its tasks have ended",
		Long: `Let a worker take no more jobs. What it runs goes on within its drain timeout
(STARLING_DRAIN_TIMEOUT) and is handed back to the queue after it; then its
process ends. SIGTERM does the same. With --wait the command ends with the
worker: 0 when it left, 1 when it was lost while it drained, whose tasks another
worker takes after the ack wait.`,
		Example: "  starling drain wrk_0190 --wait",
		Args:    oneArg("a worker's id, as `starling workers` lists it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := protocol.WorkerID(args[0])
			if err := protocol.ValidateName("worker", args[0]); err != nil {
				return &usageError{err}
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				state, err := bus.DrainWorker(cmd.Context(), id)
				if err != nil {
					return err
				}
				fmt.Fprintf(a.err, "%s takes no more jobs; it runs %d\n", id, len(state.Tasks))
				if wait {
					ctx, cancel := untilSignal(cmd.Context())
					defer cancel()
					running, err := a.awaitLeave(ctx, bus, state)
					if err != nil {
						if ctx.Err() != nil {
							fmt.Fprintf(a.err, "%s goes on draining: starling workers shows it\n", id)
						}
						return interrupted(ctx, err)
					}
					fmt.Fprintf(a.err, "%s has left\n", id)
					if running > 0 {
						fmt.Fprintf(a.err, "it ran %d when it was last asked: what had not ended within its drain timeout (its STARLING_DRAIN_TIMEOUT) is back in the queue\n", running)
					}
				}
				if asJSON {
					return a.printJSON(state)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the worker has left; Ctrl-C leaves it draining")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the worker's state as it began to drain")
	return bindAll(cmd, &buses)
}

// awaitLeave waits until a draining worker is gone, and gives how many tasks it ran
// when it was last asked. One that left has taken its entry along; one whose entry
// stays without it was lost.
func (a *app) awaitLeave(ctx context.Context, bus *broker.Bus, drained protocol.WorkerStats) (running int, err error) {
	running = len(drained.Tasks)
	for {
		state, err := bus.WorkerStats(ctx, drained.WorkerID)
		switch {
		case errors.Is(err, broker.ErrUnknownWorker):
			return running, a.left(ctx, bus, drained)
		case err != nil && !errors.Is(err, broker.ErrUnavailable):
			return running, err
		case err == nil && state.RunID != drained.RunID:
			return running, nil // a successor with its id works already
		case err == nil && len(state.Tasks) != running:
			running = len(state.Tasks)
			fmt.Fprintf(a.err, "%s runs %d\n", drained.WorkerID, running)
		}
		if err := sleep(ctx, drainPoll); err != nil {
			return running, err
		}
	}
}

// left looks whether a worker that does not answer took its entry along, which it
// does last.
func (a *app) left(ctx context.Context, bus *broker.Bus, drained protocol.WorkerStats) error {
	for deadline := time.Now().Add(broker.HeartbeatEvery); ; {
		workers, err := bus.Workers(ctx)
		if errors.Is(err, broker.ErrNotInitialized) {
			return nil // a server forgot the bucket: it worked unseen
		}
		if err != nil {
			return err
		}
		there := false
		for _, w := range workers {
			there = there || w.WorkerID == drained.WorkerID && w.RunID == drained.RunID
		}
		if !there {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("worker %s was lost while it drained: it does not answer, and its entry still stood %s later: what it ran goes to another worker after the ack wait",
				drained.WorkerID, broker.HeartbeatEvery)
		}
		if err := sleep(ctx, drainPoll); err != nil {
			return err
		}
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
