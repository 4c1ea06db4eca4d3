package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
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
		Long: `Show a task's frames from its start, or live, to its end. The exit status tells
how the task ended, as that of dispatch --wait does. By its task id alone the
task is watched with an observer's rights, and its last frame tells: then a
crash and a passed deadline are failures (3).`,
		Example: "  starling watch ses_0190.dlg_0190 --live",
		Args:    oneArg(delegationArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := parseDelegation(args[0])
			if err != nil {
				return err
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				return a.watch(cmd.Context(), bus, ref, live, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "only what comes from now on")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a frame")
	return bindAll(cmd, &buses)
}

// watch takes a task id as it is: an observer may have no right to read the
// ledger.
func (a *app) watch(ctx context.Context, bus *broker.Bus, ref delegationRef, live, asJSON bool) error {
	ctx, cancel := untilSignal(ctx)
	defer cancel()
	task := ref.task
	var entry broker.Entry
	var err error
	if task == "" {
		if entry, err = findRecord(ctx, bus, ref); err != nil {
			return ifDenied(err, true, "an observer watches by the task id (tsk_…), without the ledger")
		}
		task = entry.Record.TaskID
		if entry.Record.Status.Final() {
			stored := false // live: nothing comes from now on
			if !live {
				if stored, err = bus.FramesStored(ctx, task); err != nil {
					return err
				}
			}
			if !stored {
				fmt.Fprintln(a.err, endingLine(entry.Record))
				return outcomeError(entry.Record.Status)
			}
		}
	}
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
	last, err := follow(ctx, bus, watch, notice)
	if err != nil {
		return interrupted(ctx, err)
	}
	return a.ended(ctx, bus, entry, last, asJSON)
}

// ended says how a task that was watched ended, in the line that dispatch says too,
// and gives the exit status: its record's, which was written before the last frame,
// or, without one, what that frame says.
func (a *app) ended(ctx context.Context, bus *broker.Bus, entry broker.Entry, last *protocol.ReceivedFrame, asJSON bool) error {
	say := func(line string) {
		if !asJSON {
			fmt.Fprintln(a.err, line)
		}
	}
	if rec := entry.Record; rec.DelegationID != "" {
		for deadline := time.Now().Add(recordPatience); ; {
			now, err := bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, 0)
			if err == nil && now.Record.Status.Final() {
				say(endingLine(now.Record))
				return outcomeError(now.Record.Status)
			}
			if err != nil || time.Now().After(deadline) {
				break // expired since: the frame is what is left
			}
		}
	}
	if last == nil {
		return nil
	}
	say(fmt.Sprintf("%s: %s", last.TaskID, cell(last.Text)))
	switch last.State {
	case a2a.TaskStateCompleted:
		return nil
	case a2a.TaskStateCanceled:
		return outcomeError(protocol.StatusTerminated)
	case a2a.TaskStateRejected:
		return outcomeError(protocol.StatusCrashed)
	}
	return outcomeError(protocol.StatusError)
}

// recordPatience is how long a replica may be behind the record that stood before
// the last frame.
const recordPatience = 2 * time.Second

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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "result DELEGATION",
		Short: "Print the result of a finished task",
		Long: `Print the result of a finished task: from its response frame (kept 72 hours) or,
when it is large, from the object store (kept 7 days). The exit status tells how
the task ended. With --json it is the member "result" beside the record.`,
		Example: "  starling result ses_0190.dlg_0190 > answer.txt",
		Args:    oneArg(delegationArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := parseDelegation(args[0])
			if err != nil {
				return err
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
				entry, err := findRecord(cmd.Context(), bus, ref)
				if err != nil {
					return err
				}
				return a.result(cmd.Context(), bus, entry.Record, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the record and the result as one JSON object")
	return bindAll(cmd, &buses)
}

func (a *app) result(ctx context.Context, bus *broker.Bus, rec protocol.Record, asJSON bool) error {
	switch {
	case !rec.Status.Final():
		return fmt.Errorf("delegation %s is still %s; `starling watch %s` shows it", rec.DelegationID, rec.Status, rec.Key())
	case rec.Status != protocol.StatusOK && asJSON:
		return errors.Join(a.printJSON(recordWithResult{Record: rec}), outcomeError(rec.Status))
	case rec.Status != protocol.StatusOK:
		fmt.Fprintln(a.err, endingLine(rec))
		return outcomeError(rec.Status)
	}
	var text strings.Builder
	switch {
	case asJSON:
		if err := a.resultText(ctx, bus, rec, &text); err != nil {
			return err
		}
		whole := text.String()
		return a.printJSON(recordWithResult{rec, &whole})
	case terminal(a.out):
		out := &printableWriter{out: io.MultiWriter(a.out, &text)}
		err := errors.Join(a.resultText(ctx, bus, rec, out), out.Close())
		if err == nil && !strings.HasSuffix(text.String(), "\n") {
			err = line(a.out)
		}
		return err
	}
	return a.resultText(ctx, bus, rec, a.out)
}

// recordWithResult is what result --json prints; result is null without one.
type recordWithResult struct {
	Record protocol.Record `json:"record"`
	Result *string         `json:"result"`
}

// resultText writes the result as it is.
func (a *app) resultText(ctx context.Context, bus *broker.Bus, rec protocol.Record, out io.Writer) error {
	if rec.Outcome.ResultObject != nil {
		return bus.FetchResult(ctx, *rec.Outcome.ResultObject, out)
	}
	keep := &responseShower{}
	stored, err := bus.FramesStored(ctx, rec.TaskID) // else none would ever come
	if err != nil {
		return err
	}
	if stored {
		watch, err := bus.WatchTask(ctx, rec.TaskID, broker.WatchOptions{})
		if err != nil {
			return err
		}
		defer watch.Close()
		if _, err := follow(ctx, bus, watch, keep); err != nil {
			return err
		}
	}
	if keep.response == nil {
		return fmt.Errorf("the frames of %s have expired; on its worker the result is %s in %s",
			rec.TaskID, cell(dash(rec.Outcome.ResultPath)), cell(dash(rec.Outcome.Workdir)))
	}
	_, err = io.WriteString(out, *keep.response)
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
func (s *responseShower) writer() io.Writer           { return io.Discard }
func (s *responseShower) failed() error               { return nil }
