package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
)

type dispatchFlags struct {
	taskFlags
	bus  busSettings
	pool poolSettings

	session, context, delegation string
	origin, door, trust          string
	maxAttempts                  int
	deadline                     time.Duration
	follow, wait, json, unserved bool
}

func (a *app) dispatchCommand() *cobra.Command {
	f := &dispatchFlags{}
	cmd := &cobra.Command{
		Use:   "dispatch NAME@VERSION",
		Short: "Delegate a task to a capsule",
		Long: `Delegate a task to a capsule of the store. Prints the delegation's ledger key,
SESSION.DELEGATION, which watch, result and cancel take. Dispatching one
delegation id twice is one delegation.

With --wait, standard output gets the last line (with --json the record) when the
task has ended and its parent was told, or could not be; standard error gets the
key at once, and at the end whether the parent at --door was told. With
--follow, standard output gets the capsule's text (with --json an object a frame),
standard error the key, notices and the last line. Only starling result prints
the result alone. Ctrl-C leaves the delegation to go on. Both end at the deadline
when no worker has taken the job by then.`,
		Example: "  starling dispatch summarizer@1.2.0 --task 'the text' --follow\n" +
			"  starling dispatch summarizer@1.2.0 --door http://10.0.0.7:7777 < text",
		Args: oneArg("the capsule: NAME@VERSION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := a.job(f, args[0])
			if err != nil {
				return err
			}
			return a.withBus(cmd.Context(), f.bus, func(bus *broker.Bus) error {
				return a.dispatch(cmd.Context(), bus, f, job)
			})
		},
	}
	f.bind(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.session, "session", "", "the parent's session id; empty: a new one")
	flags.StringVar(&f.context, "context-id", "", "the task's context id; empty: a new one")
	flags.StringVar(&f.delegation, "delegation", "", "the delegation id; empty: a new one")
	flags.StringVar(&f.origin, "origin", "user", "user, peer, schedule, event, completion or system; decides the lane")
	flags.StringVar(&f.door, "door", "", "URL of the parent's door, told when the task ends")
	flags.StringVar(&f.trust, "trust", "trusted", "trust class of the parent: trusted or untrusted")
	flags.IntVar(&f.maxAttempts, "max-attempts", protocol.DefaultMaxAttempts, "attempts before a lost task is given up")
	flags.DurationVar(&f.deadline, "deadline", 0, "how long from now until a worker ends the delegation, or refuses to start it; 0: no deadline")
	flags.BoolVar(&f.follow, "follow", false, "show the task to its end on standard output; the exit status tells how it ended")
	flags.BoolVar(&f.wait, "wait", false, "wait for the outcome and print its last line; the exit status tells it")
	flags.BoolVar(&f.json, "json", false, "print JSON: the record, or with --follow an object a frame")
	flags.BoolVar(&f.unserved, "allow-unserved", false, "queue the job even when no worker takes from the pool now")
	return bindAll(cmd, &f.bus, &f.pool)
}

// job builds the delegation that the flags describe.
func (a *app) job(f *dispatchFlags, capsule string) (protocol.Job, error) {
	ref, err := protocol.ParseCapsuleRef(capsule)
	if err != nil {
		return protocol.Job{}, fmt.Errorf("%w, such as hello@1.0.0; `starling capsule ls` lists what was pushed", err)
	}
	text, err := a.text(f.taskFlags)
	if err != nil {
		return protocol.Job{}, err
	}
	env, err := f.environment()
	if err != nil {
		return protocol.Job{}, err
	}
	job := newJob(protocol.CapsuleEntry{Manifest: protocol.Manifest{Name: ref.Name, Version: ref.Version}}, text, env, nil)
	if job.Capabilities, err = f.narrowed(); err != nil {
		return protocol.Job{}, err
	}
	job.Origin, job.Pool, job.MaxAttempts = protocol.Origin(f.origin), f.pool.Pool, f.maxAttempts
	if f.context != "" {
		job.Message.ContextID = f.context
	}
	if f.delegation != "" {
		if f.session == "" {
			return protocol.Job{}, &usageError{errors.New("--delegation says which of a parent's delegations this is: say --session too, as that dispatch did")}
		}
		job.DelegationID = protocol.DelegationID(f.delegation)
	}
	if f.session != "" {
		job.Spawner.SessionID = protocol.SessionID(f.session)
	}
	job.Spawner.ContextID, job.Spawner.DelegationID = job.ContextID(), job.DelegationID
	switch {
	case f.door != "":
		if err := completion.CheckURL(f.door); err != nil {
			return protocol.Job{}, &usageError{fmt.Errorf("--door: %w", err)}
		}
		job.Spawner.URL, job.Spawner.Trust = f.door, protocol.Trust(f.trust)
	case f.trust != string(protocol.Trusted):
		return protocol.Job{}, &usageError{errors.New("--trust is the class of the parent behind --door, and there is none")}
	}
	if f.deadline < 0 {
		return protocol.Job{}, &usageError{fmt.Errorf("--deadline is %s: it is from now on, or 0 for none", f.deadline)}
	}
	if f.deadline > 0 {
		job.Deadline = protocol.NewTime(time.Now().Add(f.deadline))
	}
	return job, job.Validate()
}

func (a *app) dispatch(ctx context.Context, bus *broker.Bus, f *dispatchFlags, job protocol.Job) (err error) {
	tracing, err := startTracing(ctx, "starling dispatch", a.quietLogger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tracing.close()) }()
	traceparent, traced := tracing.dispatching(ctx, job)
	done, err := bus.Dispatch(ctx, job, broker.DispatchOptions{AllowUnserved: f.unserved, Traceparent: traceparent})
	traced()
	if errors.Is(err, broker.ErrUnclear) {
		return fmt.Errorf("%w (--session %s --delegation %s)", err, job.Spawner.SessionID, job.DelegationID)
	}
	if err != nil {
		return ifDenied(err, f.session == "", "a user that is one parent's has a session of its own: name it with --session")
	}
	if done.Existing {
		fmt.Fprintf(a.err, "starling: %s was dispatched before, at %s: it stays one delegation, with the task of that dispatch\n",
			job.DelegationID, done.Record.SubmittedAt)
	}
	job.TaskID = done.Record.TaskID // an earlier dispatch's, where there was one
	switch {
	case f.follow || f.wait:
		return a.attend(ctx, bus, f, job, done.Record)
	case f.json:
		return a.printJSON(done.Record)
	}
	fmt.Fprintln(a.out, done.Record.Key())
	return nil
}

// attend follows a delegation, or waits for it, until it has ended, its deadline has
// passed in the queue, or its user interrupts. The error is the exit status.
func (a *app) attend(ctx context.Context, bus *broker.Bus, f *dispatchFlags, job protocol.Job, rec protocol.Record) error {
	attending, leave := a.leaving(ctx, rec)
	defer leave()
	inTime, stop := whileInTime(attending, bus, rec, job.Deadline)
	defer stop()
	var err error
	if f.follow {
		err = a.followed(inTime, bus, job, rec, f.json)
	}
	ended := rec
	if err == nil {
		ended, err = settledRecord(inTime, bus, job)
	}
	switch {
	case err == nil:
	case errors.Is(context.Cause(inTime), errOverdue):
		return a.overdue(ctx, bus, rec, f.json && !f.follow)
	case attending.Err() != nil: // goesOn was said
		return &silentError{exitInterrupted}
	default:
		a.goesOn(rec)
		return err
	}
	if f.follow {
		return a.conclude(job, ended, f.json)
	}
	a.explainEnding(job, ended)
	a.sayTold(job, ended)
	return errors.Join(a.printRecord(ended, f.json), outcomeError(ended.Status))
}

// followed shows a task to its end.
func (a *app) followed(ctx context.Context, bus *broker.Bus, job protocol.Job, rec protocol.Record, asJSON bool) error {
	watch, err := bus.WatchTask(ctx, job.TaskID, broker.WatchOptions{})
	if err != nil {
		return err
	}
	defer watch.Close()
	shown := &firstFrame{shower: newShower(a.out, a.err, asJSON)}
	defer a.whileSilent(ctx, bus, rec, &shown.seen)()
	_, err = follow(ctx, bus, watch, shown)
	return err
}

// whileSilent says where a delegation is whose first frame is long in coming, until
// the returned function is called.
func (a *app) whileSilent(ctx context.Context, bus *broker.Bus, rec protocol.Record, seen *atomic.Bool) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		ticker := time.NewTicker(watchPatience)
		defer ticker.Stop()
		for told := protocol.Status(""); told != protocol.StatusWorking; {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			now, err := bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, 0)
			if err != nil || seen.Load() || now.Record.Status.Final() {
				return // what is wrong is said by who follows
			}
			if now.Record.Status == told {
				continue
			}
			told = now.Record.Status
			if told == protocol.StatusWorking {
				fmt.Fprintf(a.err, "starling: worker %s has the task, which has said nothing yet: a capsule that is new to a host is fetched and compiled first, which takes seconds\n",
					cell(string(now.Record.WorkerID)))
			} else {
				fmt.Fprintf(a.err, "starling: it is queued: no worker of pool %s has it now\n", rec.Pool)
			}
		}
	})
	return func() { cancel(); looking.Wait() }
}

// leaving says which delegation is followed, and at an interrupt that it goes on
// without the one who followed it.
func (a *app) leaving(ctx context.Context, rec protocol.Record) (context.Context, func()) {
	fmt.Fprintln(a.err, "delegated "+rec.Key())
	ctx, cancel := context.WithCancel(ctx)
	signals, restore := stopSignals()
	done := make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() {
		select {
		case <-signals:
			a.goesOn(rec)
			cancel()
		case <-done:
		}
	})
	return ctx, func() { close(done); listening.Wait(); restore(); cancel() }
}

// goesOn says what becomes of a delegation that is no longer followed.
func (a *app) goesOn(rec protocol.Record) {
	fmt.Fprintf(a.err, "starling: the delegation goes on: starling watch %s, or starling cancel %[1]s\n", rec.Key())
}

// interrupted is the quiet end of a command that its user left, or err.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &silentError{exitInterrupted}
	}
	return err
}

// printRecord prints a record, as JSON or as its last line.
func (a *app) printRecord(rec protocol.Record, asJSON bool) error {
	if asJSON {
		return a.printJSON(rec)
	}
	fmt.Fprintln(a.out, endingLine(rec))
	return nil
}
