package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

const delegationArg = "a delegation: SESSION.DELEGATION, or its delegation or task id"

func (a *app) watchCommand() *cobra.Command {
	var buses busSettings
	var live, asJSON bool
	cmd := &cobra.Command{
		Use:   "watch DELEGATION|TASK",
		Short: "Show a task's frames from its start, or live, to its end",
		Args:  exactArgs(1, delegationArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				task, err := findTask(cmd.Context(), bus, args[0])
				if err != nil {
					return err
				}
				return a.watch(cmd.Context(), bus, task, live, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "only what comes from now on")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a frame")
	return bindAll(cmd, &buses)
}

// findTask takes a task id as it is: an observer may have no right to read the
// ledger.
func findTask(ctx context.Context, bus *broker.Bus, what string) (protocol.TaskID, error) {
	if strings.HasPrefix(what, "tsk_") {
		return protocol.TaskID(what), protocol.ValidateName("task", what)
	}
	entry, err := findRecord(ctx, bus, what)
	return entry.Record.TaskID, err
}

func (a *app) watch(ctx context.Context, bus *broker.Bus, task protocol.TaskID, live, asJSON bool) error {
	ctx, cancel := untilSignal(ctx)
	defer cancel()
	watch, err := bus.WatchTask(ctx, task, broker.WatchOptions{Live: live})
	if err != nil {
		return err
	}
	defer watch.Close()
	notice := &firstFrame{shower: newShower(a.out, a.err, asJSON)}
	nothing := time.AfterFunc(watchPatience, func() {
		if !notice.seen.Load() {
			fmt.Fprintf(a.err, "starling: nothing of %s yet; waiting (is the id right? see starling ps --all)\n", task)
		}
	})
	defer nothing.Stop()
	last, err := follow(ctx, bus, watch, notice, a.out)
	if err != nil {
		return interrupted(ctx, err)
	}
	if last != nil && !asJSON {
		fmt.Fprintf(a.err, "%s: %s\n", task, printable(last.Text))
	}
	return nil
}

// watchPatience is how long nothing may come before the user is told.
const watchPatience = 2 * time.Second

// firstFrame notes that a frame came.
type firstFrame struct {
	shower
	seen atomic.Bool
}

func (s *firstFrame) frame(f *protocol.ReceivedFrame) {
	s.seen.Store(true)
	s.shower.frame(f)
}

func (a *app) resultCommand() *cobra.Command {
	var buses busSettings
	cmd := &cobra.Command{
		Use:   "result DELEGATION",
		Short: "Print the result of a finished task",
		Long: `Print the result of a finished task: from its response frame (kept 72 hours) or,
when it is large, from the object store (kept 7 days). The exit status tells how
the task ended.`,
		Args: exactArgs(1, delegationArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				entry, err := findRecord(cmd.Context(), bus, args[0])
				if err != nil {
					return err
				}
				return a.result(cmd.Context(), bus, entry.Record)
			})
		},
	}
	return bindAll(cmd, &buses)
}

func (a *app) result(ctx context.Context, bus *broker.Bus, rec protocol.Record) error {
	switch {
	case !rec.Status.Final():
		return fmt.Errorf("delegation %s is still %s; `starling watch %s` shows it", rec.DelegationID, rec.Status, rec.Key())
	case rec.Status != protocol.StatusOK:
		fmt.Fprintln(a.err, endingLine(rec))
		return outcomeError(rec.Status)
	case rec.Outcome.ResultObject != nil:
		return bus.FetchResult(ctx, *rec.Outcome.ResultObject, a.out)
	}
	watch, err := bus.WatchTask(ctx, rec.TaskID, broker.WatchOptions{})
	if err != nil {
		return err
	}
	defer watch.Close()
	keep := &responseShower{}
	if _, err := follow(ctx, bus, watch, keep, a.out); err != nil {
		return err
	}
	if keep.response == nil {
		return fmt.Errorf("the frames of %s have expired; on its worker the result is %s in %s",
			rec.TaskID, rec.Outcome.ResultPath, rec.Outcome.Workdir)
	}
	text := *keep.response
	if terminal(a.out) && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err = io.WriteString(a.out, text)
	return err
}

// responseShower keeps the last response.
type responseShower struct{ response *string }

func (s *responseShower) frame(f *protocol.ReceivedFrame) {
	if f.Kind == protocol.FrameResponse {
		s.response = &f.Text
	}
}

func (s *responseShower) hole(*broker.Hole)           {}
func (s *responseShower) cut() *protocol.ResultObject { return nil }
