package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

const letterArg = "a task id (tsk_…), as `starling dlq ls` lists it"

func (a *app) dlqCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dlq", Short: "List, show, retry and drop dead letters: jobs that cannot run",
		Args: unknownCommand, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.dlqList(), a.dlqShow(), a.dlqRetry(), a.dlqDrop())
	return cmd
}

// letter is a dead letter as it is printed: without its body.
type letter struct {
	TaskID       protocol.TaskID           `json:"task_id"`
	Pool         string                    `json:"pool"`
	Sequence     uint64                    `json:"sequence"`
	At           protocol.Time             `json:"at"`
	Reason       protocol.DeadLetterReason `json:"reason"`
	Detail       string                    `json:"detail"`
	DelegationID protocol.DelegationID     `json:"delegation_id,omitempty"` // of a body that can be read
	SessionID    protocol.SessionID        `json:"session_id,omitempty"`
	Capsule      string                    `json:"capsule,omitempty"`
	Bytes        int                       `json:"bytes"`
}

func asLetter(l broker.DeadLetter) letter {
	shown := letter{
		TaskID: l.TaskID, Pool: l.Pool, Sequence: l.Sequence, At: protocol.NewTime(l.At), Reason: l.Reason, Detail: l.Detail, Bytes: len(l.Body),
	}
	if job, err := protocol.ParseJob(l.Body); err == nil {
		shown.DelegationID, shown.SessionID, shown.Capsule = job.DelegationID, job.Spawner.SessionID, job.Capsule.String()
	}
	return shown
}

func (a *app) dlqList() *cobra.Command {
	var buses busSettings
	var pool string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List dead letters, the oldest first", Args: noArgs,
		Example: "  starling dlq ls --pool gpu",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pool != "" {
				if err := protocol.ValidateName("pool", pool); err != nil {
					return &usageError{err}
				}
			}
			return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error { return a.listLetters(cmd.Context(), bus, pool, asJSON) })
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "only those of this pool")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one dead letter a line")
	return bindAll(cmd, &buses)
}

func (a *app) listLetters(ctx context.Context, bus *broker.Bus, pool string, asJSON bool) error {
	var table *table
	if !asJSON {
		table = newTable(a.out, "TASK", "POOL", "AGE", "REASON", "CAPSULE", "DETAIL")
	}
	for l, err := range bus.DeadLetters(ctx, pool) {
		if err != nil {
			return err
		}
		shown := asLetter(l)
		if !asJSON {
			table.row(shown.TaskID, shown.Pool, age(shown.At), shown.Reason, shown.Capsule, shown.Detail)
		} else if err := a.printJSON(shown); err != nil {
			return err
		}
	}
	if asJSON {
		return nil
	}
	return table.flush()
}

// letterCommand is a command about the dead letters of one task.
func (a *app) letterCommand(cmd *cobra.Command, do func(ctx context.Context, bus *broker.Bus, letters []broker.DeadLetter) error) *cobra.Command {
	var buses busSettings
	cmd.Args = oneArg(letterArg)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := protocol.ValidateName("task", args[0]); err != nil {
			return &usageError{err}
		}
		return a.withBus(cmd.Context(), buses, func(bus *broker.Bus) error {
			letters, err := bus.DeadLettersOf(cmd.Context(), protocol.TaskID(args[0]))
			if err != nil {
				return err
			}
			return do(cmd.Context(), bus, letters)
		})
	}
	return bindAll(cmd, &buses)
}

// retryFlags are what a retry may be given.
type retryFlags struct {
	deadline      time.Duration
	deadlineGiven bool // else the job keeps its own
	unserved      bool
	json          bool
}

func (a *app) dlqRetry() *cobra.Command {
	var f retryFlags
	cmd := &cobra.Command{
		Use:   "retry TASK",
		Short: "Dispatch the job of a dead letter anew, as a new delegation",
		Long: `Dispatch the job of a dead letter anew, and then remove the letter. The old
delegation keeps its outcome, so the retry is a new one, with a task of its own,
of the same parent: its door is told of it under the new id. Prints the new
delegation's key. A retry that was cut short is repeated as the same delegation.
What cannot be read cannot be retried: dispatch it anew from dlq show --body.`,
		Example: "  starling dlq retry tsk_0190",
	}
	cmd.Flags().DurationVar(&f.deadline, "deadline", 0, "deadline of the retry from now on, 0 for none; without the flag the job's own")
	cmd.Flags().BoolVar(&f.unserved, "allow-unserved", false, "queue the job even when no worker takes from the pool now")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if f.deadline < 0 {
			return &usageError{fmt.Errorf("--deadline is %s: it is from now on, or 0 for none", f.deadline)}
		}
		return nil
	}
	cmd.Flags().BoolVar(&f.json, "json", false, "print the new delegation's record as JSON")
	return a.letterCommand(cmd, func(ctx context.Context, bus *broker.Bus, letters []broker.DeadLetter) error {
		f.deadlineGiven = cmd.Flags().Changed("deadline")
		return a.retry(ctx, bus, letters, f)
	})
}

// retry dispatches the job of a letter anew and removes the letter: all of letters,
// which are one job that was stored more than once.
func (a *app) retry(ctx context.Context, bus *broker.Bus, letters []broker.DeadLetter, f retryFlags) error {
	l := letters[len(letters)-1]
	job, err := l.Retry()
	if err != nil {
		return fmt.Errorf("the dead letter of %s cannot be retried: %w: `starling dlq show %s --body` has what was queued, `starling dlq drop` removes it", l.TaskID, err, l.TaskID)
	}
	switch {
	case f.deadlineGiven:
		job.Deadline = protocol.Time{}
		if f.deadline > 0 {
			job.Deadline = protocol.NewTime(time.Now().Add(f.deadline))
		}
	case !job.Deadline.IsZero() && time.Now().After(job.Deadline.Std()):
		return &usageError{fmt.Errorf("the deadline of the job of %s has passed: give the retry one with --deadline, such as 10m, or 0 for none", l.TaskID)}
	}
	traceparent := ""
	if values := l.Header[protocol.HeaderTraceparent]; len(values) > 0 {
		traceparent = values[0]
	}
	done, err := bus.Dispatch(ctx, job, broker.DispatchOptions{AllowUnserved: f.unserved, Traceparent: traceparent, Header: l.Header})
	if err != nil {
		return fmt.Errorf("the dead letter of %s stays: %w", l.TaskID, err)
	}
	if done.Existing {
		fmt.Fprintf(a.err, "starling: %s was retried before as this delegation, which is %s\n", l.TaskID, done.Record.Status)
	}
	var problems []error
	for _, l := range letters {
		problems = append(problems, bus.RemoveDeadLetter(ctx, l))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("%s was dispatched as %s, and its letter stays: %w: retry it again to remove it", l.TaskID, done.Record.Key(), err)
	}
	if f.json {
		return a.printJSON(done.Record)
	}
	_, err = io.WriteString(a.out, done.Record.Key()+"\n")
	return err
}

func (a *app) dlqDrop() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "drop TASK",
		Short:   "Remove a dead letter for good",
		Example: "  starling dlq drop tsk_0190",
	}
	return a.letterCommand(cmd, func(ctx context.Context, bus *broker.Bus, letters []broker.DeadLetter) error {
		for _, l := range letters {
			if err := bus.RemoveDeadLetter(ctx, l); err != nil {
				return err
			}
		}
		fmt.Fprintf(a.err, "dropped the dead letter of %s\n", letters[0].TaskID)
		return nil
	})
}
