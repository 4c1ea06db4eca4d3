package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"starling/broker"
	"starling/protocol"
)

// runFlags are those of `starling run`.
type runFlags struct {
	taskFlags
	bare bare
	json bool

	worker     workerSettings
	sandbox    sandboxSettings
	completion completionSettings
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run FILE.wasm|DIR",
		Short: "Run one task with everything embedded",
		Long: `Run one task of a capsule with an embedded server and worker, print what it
says as it says it, and exit 0 only when it completed.

FILE.wasm is a WASI preview 1 command, with or without a murmur.yaml beside it.
DIR holds one .wasm file, or the source of a Go command, which is built first.

On a terminal, text streams and tool calls show their progress. Elsewhere the
capsule's text goes to standard output and notices to standard error. With
--json, standard output gets one JSON object a frame.

MURMUR_SPAWNER in the environment is the handle of a parent: it is told at its
door when the task ends.`,
		Example: "  starling run sandbox/guest/examples/hello --task 'greet the fleet'\n" +
			"  starling run gojq.wasm --task '{\"a\":1}'",
		Args: oneArg("the capsule: FILE.wasm or DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("slots") {
				return &usageError{errors.New("starling run runs one task: --slots is for starling worker")}
			}
			return a.run(cmd.Context(), f, args[0])
		},
	}
	f.bind(cmd)
	f.bare.bind(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "one JSON object a frame")
	bindAll(cmd, &f.worker, &f.sandbox, &f.completion)
	_ = cmd.Flags().MarkHidden("slots") // it is there
	return cmd
}

func (a *app) run(ctx context.Context, f *runFlags, path string) (err error) {
	spawner, err := protocol.ParseSpawnerEnv(os.Getenv(protocol.SpawnerEnv))
	if err != nil {
		return &usageError{err}
	}
	env, err := f.environment()
	if err != nil {
		return err
	}
	capabilities, err := f.narrowed()
	if err != nil {
		return err
	}
	log := a.quietLogger()
	cfg, err := f.fleet(log)
	if err != nil {
		return err
	}
	text, err := a.text(f.taskFlags)
	if err != nil {
		return err
	}
	f.bare.env = slices.Sorted(maps.Keys(env))
	capsule, err := a.capsuleAt(ctx, path, f.bare) // which may build it
	if err != nil {
		return err
	}
	if err := f.check(path, capsule, spawner); err != nil {
		return err
	}
	signals, restore := stopSignals() // from here on there is something to remove
	defer restore()
	store, err := os.MkdirTemp("", "starling-run-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(store)) }()
	fleet, err := a.startRun(ctx, cfg, log, store, capsule)
	if errors.Is(err, broker.ErrRefused) {
		return fmt.Errorf("%w; the server of this run keeps its store in %s: free room there, or name another place with TMPDIR", err, os.TempDir())
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.stop()) }()
	entry, err := fleet.bus.PushCapsule(ctx, capsule.manifest, capsule.module)
	if err != nil {
		return err
	}
	select {
	case <-signals:
		return &silentError{exitInterrupted}
	default:
	}
	job := newJob(entry.CapsuleEntry, text, env, spawner)
	job.Capabilities = capabilities
	return a.dispatchAndFollow(ctx, fleet, job, f.json, signals)
}

// check refuses a module that cannot run as capsule push does. A parent that is to be
// told hears of it instead, from the worker.
func (f *runFlags) check(path string, capsule source, spawner *protocol.Spawner) error {
	if spawner != nil && spawner.HasAddress() {
		return nil
	}
	if n := int64(len(capsule.module)); n > f.sandbox.MaxModuleBytes {
		return &usageError{fmt.Errorf("capsule %s has %d bytes, and at most %d are compiled: build it without debug information, or raise --max-module-bytes (STARLING_MAX_MODULE_BYTES)",
			path, n, f.sandbox.MaxModuleBytes)}
	}
	return capsule.check(path, f.sandbox.Components == componentsOn)
}

// fleet is a fleet of one slot that opens no port. It judges the settings and makes
// nothing.
func (f *runFlags) fleet(log *slog.Logger) (fleetConfig, error) {
	f.worker.Slots = 1
	cfg := fleetConfig{
		server: broker.ServerConfig{InProcessOnly: true},
		bus:    broker.Config{Name: "starling run", Logger: log}, sandbox: f.sandbox,
		init: broker.InitConfig{MaxJobBytes: 1 << 20}, // reserved on the disk, for one job
	}
	err := f.sandbox.validate()
	if err != nil {
		return cfg, err
	}
	if cfg.worker, err = f.worker.config(protocol.DefaultPool); err != nil {
		return cfg, err
	}
	cfg.worker.PullExpires = 100 * time.Millisecond // its drain is waited for
	cfg.completion, err = f.completion.config(log)
	return cfg, err
}

// startRun starts a fleet for one capsule, whose server keeps its data in store.
func (a *app) startRun(ctx context.Context, cfg fleetConfig, log *slog.Logger, store string, capsule source) (*fleet, error) {
	cfg.server.StoreDir = store
	cfg.compiling = func(protocol.Digest) func() {
		return a.unlessQuick("compiling %s (%s) for this host; it is kept in %s for the next run",
			capsule.manifest.Name, megabytes(len(capsule.module)), cfg.worker.CacheDir)
	}
	return startFleet(ctx, cfg, log)
}

// newJob is a user's delegation, or that of the parent who started this
// process.
func newJob(entry protocol.CapsuleEntry, text string, env map[string]string, spawner *protocol.Spawner) protocol.Job {
	job := protocol.Job{
		DelegationID: protocol.NewDelegationID(), TaskID: protocol.NewTaskID(),
		Capsule: protocol.CapsuleRef{Name: entry.Manifest.Name, Version: entry.Manifest.Version, Digest: entry.Digest},
		Message: protocol.NewUserMessage(protocol.NewContextID(), text), Origin: protocol.OriginUser,
		Pool: protocol.DefaultPool, MaxAttempts: 1, Env: env,
	}
	if spawner != nil {
		// A delegated child's task is its parent's: it inherits the parent's trust.
		job.Origin, job.Spawner, job.DelegationID = protocol.OriginPeer, *spawner, spawner.DelegationID
		return job
	}
	job.Spawner = protocol.Spawner{
		SessionID: protocol.NewSessionID(), ContextID: job.ContextID(), DelegationID: job.DelegationID,
	}
	return job
}

// dispatchAndFollow shows a task to its end. The first interrupt cancels it, the second
// stops the worker. It is canceled too when nobody reads any more what it says.
func (a *app) dispatchAndFollow(ctx context.Context, fleet *fleet, job protocol.Job, asJSON bool, signals <-chan os.Signal) error {
	watch, err := fleet.bus.WatchTask(ctx, job.TaskID, broker.WatchOptions{})
	if err != nil {
		return err
	}
	defer watch.Close()
	traceparent, traced := fleet.tracing.dispatching(ctx, job)
	defer traced()
	if _, err := fleet.bus.Dispatch(ctx, job, broker.DispatchOptions{Traceparent: traceparent}); err != nil {
		return err
	}
	following := make(chan error, 1)
	go func() {
		_, err := follow(ctx, fleet.bus, watch, newShower(a.out, a.err, asJSON))
		following <- err
	}()
	var canceling sync.WaitGroup
	defer canceling.Wait()
	cancel := func() {
		canceling.Go(func() {
			_, err := fleet.bus.Cancel(ctx, job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
			if err != nil && !errors.Is(err, broker.ErrFinal) {
				fmt.Fprintln(a.err, "starling: not canceled: "+explain(err))
			}
		})
	}
	interrupts, hungUp := 0, false
	for ended := false; !ended; {
		select {
		case err := <-following:
			if errors.Is(err, errUnread) {
				cancel()
				_, settling := settledRecord(ctx, fleet.bus, job)
				return errors.Join(err, settling)
			}
			if err != nil {
				return err
			}
			ended = true
		case sig := <-signals:
			hungUp = hungUp || sig == syscall.SIGHUP
			if interrupts++; interrupts > 1 {
				fmt.Fprintln(a.err, "starling: stopping at once")
				fleet.staff.worker.Stop()
				return errors.Join(<-following, &silentError{exitInterrupted})
			}
			fmt.Fprintln(a.err, "starling: canceling; once more to stop at once")
			cancel()
		}
	}
	rec, err := settledRecord(ctx, fleet.bus, job)
	if err != nil {
		return err
	}
	err = a.conclude(job, rec, asJSON)
	if hungUp { // as if its terminal had been gone at the first write
		return &silentError{exitInterrupted}
	}
	return err
}

// conclude says how a task that was shown ended, and whether its parent was told.
func (a *app) conclude(job protocol.Job, rec protocol.Record, asJSON bool) error {
	if !asJSON {
		fmt.Fprintln(a.err, endingLine(rec))
		a.explainEnding(job, rec)
	}
	a.sayTold(job, rec)
	return outcomeError(rec.Status)
}

// sayTold says whether the parent's door was told, where there is one. It changes no
// exit status.
func (a *app) sayTold(job protocol.Job, rec protocol.Record) {
	switch o := rec.Outcome; {
	case o.DeliveryError != "" && !o.Delivered:
		fmt.Fprintf(a.err, "starling: the parent was not told: %s\n", cell(o.DeliveryError))
	case o.Delivered && job.Spawner.HasAddress():
		fmt.Fprintln(a.err, "starling: the parent was told at its door")
	}
}

// explainEnding says which deadline it was that a job set itself: the ending's words,
// which the protocol has, tell of the manifest's.
func (a *app) explainEnding(job protocol.Job, rec protocol.Record) {
	if c := job.Capabilities; c == nil || c.Limits == nil || c.Limits.DeadlineSeconds == nil ||
		rec.Ending.Message != protocol.RunDeadlineMessage(*c.Limits.DeadlineSeconds) {
		return
	}
	fmt.Fprintf(a.err, "starling: that deadline, %ds, is this job's own (--capabilities), not murmur.yaml's\n", *job.Capabilities.Limits.DeadlineSeconds)
}

// settledRecord waits for the record that nothing will change any more: final,
// and where there is a door, told or refused.
func settledRecord(ctx context.Context, bus *broker.Bus, job protocol.Job) (protocol.Record, error) {
	watch, err := bus.WatchDelegation(ctx, job.Spawner.SessionID, job.DelegationID)
	if err != nil {
		return protocol.Record{}, err
	}
	defer watch.Close()
	for {
		entry, err := watch.Next(ctx)
		if err != nil {
			return protocol.Record{}, err
		}
		rec := entry.Record
		if !rec.Status.Final() {
			continue
		}
		told := !job.Spawner.HasAddress() || rec.Outcome.Delivered || rec.Outcome.DeliveryError != "" ||
			rec.Outcome.ParentEnded()
		if told {
			return rec, nil
		}
	}
}
