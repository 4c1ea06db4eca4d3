package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/sandbox"
)

// Why a guest is stopped from outside, as the cause of its context.
var (
	errHandBack           = errors.New("the worker drains and hands the task back")
	errCanceled           = errors.New("the parent ended this delegation")
	errDelegationDeadline = errors.New("the delegation deadline passed")
	errBudget             = errors.New("the capsule used up what it may spend")
	errFrames             = errors.New("the task's frames cannot be published")
)

// quotaError ends a guest whose work directory grew past its quota, or too deep
// to be measured.
type quotaError struct {
	used, limit int64
	deep        error // or nil
}

func (e *quotaError) Error() string {
	const exceeded = "capsule execution exceeded its configured resource limits: "
	if e.deep != nil {
		return exceeded + "work directory: " + e.deep.Error()
	}
	return fmt.Sprintf(exceeded+
		"work directory growth to %d bytes exceeds capabilities.limits.workdir_bytes (%d)", e.used, e.limit)
}

// attempt is one run of one delegation under one claim. One goroutine uses it.
type attempt struct {
	w      *Worker
	log    *slog.Logger
	hold   *hold
	cancel *cancellation
	job    protocol.Job
	claim  broker.Claim

	dir      *workdir
	trace    *trace
	frames   *broker.FrameSender
	module   string // the module's path on this host, once it is there
	manifest protocol.Manifest
	segments *Segments
	unsent   bool // a frame could not be sent: the attempt cannot be reported
	started  time.Time
}

// newAttempt makes the attempt's directory and trace. Close it.
func (w *Worker) newAttempt(ctx context.Context, log *slog.Logger, h *hold, c *cancellation, job protocol.Job, claim broker.Claim) (*attempt, error) {
	rec := claim.Record
	dir, err := w.makeWorkdir(rec.SessionID)
	if err != nil {
		return nil, err
	}
	tr, err := openTrace(dir.base)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("trace: %w", err), dir.close())
	}
	tr.start(time.Now(), rec)
	frames := w.bus.NewFrameSender(protocol.Place{
		TaskID: rec.TaskID, ContextID: rec.ContextID, SessionID: rec.SessionID, Attempt: rec.Attempt,
		Traceparent: Traceparent(ctx),
	})
	frames.SendWhile(h.mine)
	return &attempt{
		w: w, log: log, hold: h, cancel: c, job: job, claim: claim, dir: dir, trace: tr, started: time.Now(),
		frames:   frames,
		segments: NewSegments(SegmentConfig{MaxTurns: protocol.DefaultManifest("", "").Inference.MaxTurns}),
	}, nil
}

func (a *attempt) close() {
	a.frames.Close()
	if err := errors.Join(a.trace.close(), a.dir.close()); err != nil {
		a.log.Warn("trace not written", "error", err)
	}
}

// run runs the guest and says how the attempt ended. It returns once the guest
// is gone and everything it said has been given to the frames. guests is done
// when running guests must be handed back.
func (a *attempt) run(ctx, guests context.Context) conclusion {
	running, stop := context.WithCancelCause(ctx) // the guest's life; ctx is the job's
	defer stop(nil)
	defer context.AfterFunc(guests, func() { stop(errHandBack) })()
	if deadline := a.job.Deadline; !deadline.IsZero() {
		var cancel context.CancelFunc
		running, cancel = context.WithDeadlineCause(running, deadline.Std(), errDelegationDeadline)
		defer cancel()
	}
	g := &guest{dir: a.dir, stop: stop, task: runningTask(a.claim.Record)}
	defer a.w.running.add(a.claim.Record.SessionID, g)()
	preparing, stopPreparing := context.WithCancelCause(running)
	defer stopPreparing(nil)
	a.cancel.onAsk(func() { stopPreparing(errCanceled) })
	began := time.Now()
	preparing, prepared := a.w.span(preparing, "prepare")
	capsule, env, err := a.prepare(ctx, preparing)
	prepared(err)
	a.w.metrics.prepare.Observe(time.Since(began).Seconds())
	if a.cancel.accepted() {
		return canceledBeforeStart()
	}
	if err != nil {
		return a.notStarted(running, err)
	}
	a.segments = NewSegments(SegmentConfig{
		MaxTurns: a.manifest.Inference.MaxTurns, MaxTokens: a.manifest.Inference.MaxSessionTokens,
	})
	a.cancel.onKill(func() { stop(errCanceled) })
	g.quota.Store(a.manifest.Capabilities.Limits.WorkdirBytes)
	stderr := &lazyFile{path: filepath.Join(a.dir.base, "stderr.log")}
	defer stderr.close()
	running, ran := a.w.span(running, "run")
	if trace := Traceparent(running); trace != "" {
		env[protocol.TraceparentEnv] = trace
	}
	end := a.w.guests.Run(running, sandbox.Spec{
		Module: capsule.path, Digest: capsule.Digest, Args: []string{a.manifest.Name}, Env: env,
		WorkDir: a.dir.path, Filesystem: a.manifest.Capabilities.Filesystem,
		Network: a.network(),
		Limits:  a.manifest.Capabilities.Limits, Output: a.manifest.Output,
		Stdin: []byte(protocol.MessageText(a.job.Message)), Stderr: stderr, Canceled: a.cancel.asked,
		Room: func(ctx context.Context) int64 { return a.w.room(ctx, g) },
	}, func(e protocol.Event) { a.event(ctx, stop, e) })
	ran(nil)
	if end.Kind != sandbox.Refused {
		a.w.fault.set(nil)
	}
	a.w.metrics.guest.Observe(end.Duration.Seconds())
	if end.SignalsDropped > 0 {
		a.trace.note(time.Now(), fmt.Sprintf("%d signals were dropped: over 1 MiB, out of bounds, not UTF-8 or no event", end.SignalsDropped))
		a.log.Warn("signals of the capsule dropped", "signals_dropped", end.SignalsDropped)
	}
	if end.StdoutDropped > 0 {
		a.log.Warn("output of the capsule dropped beyond its bounds", "stdout_dropped", end.StdoutDropped,
			"bound", protocol.MaxOutputBytes, "line_bound", protocol.MaxLineBytes)
	}
	a.log.Debug("guest gone", "ending", end.Kind.String(), "duration_ms", end.Duration.Milliseconds(),
		"stdout_dropped", end.StdoutDropped, "stderr_dropped", end.StderrDropped, "signals_dropped", end.SignalsDropped)
	return a.conclude(ctx, context.Cause(running), end)
}

// prepare gets everything ready that can fail before the guest starts. The
// deadline of the run does not count yet.
func (a *attempt) prepare(ctx, preparing context.Context) (capsule, map[string]string, error) {
	if why := a.why(); why != "" {
		if err := a.send(ctx, workingFrame(why)); err != nil {
			return capsule{}, nil, err
		}
	}
	found, err := a.w.capsules.find(preparing, a.claim.Record.Capsule)
	if err != nil {
		return found, nil, err
	}
	crashpoint("capsule fetched")
	a.module, a.manifest = found.path, found.Manifest
	a.manifest.Capabilities, err = a.w.granted(a.job, found.Manifest)
	if err != nil {
		return found, nil, err
	}
	rec := a.claim.Record
	env, err := a.w.environment(a.job, a.manifest, rec.SessionID, rec.Attempt)
	if err != nil {
		return found, nil, err
	}
	if err := a.dir.prepare(a.manifest.Capabilities.Filesystem.Scope, protocol.MessageText(a.job.Message)); err != nil {
		return found, nil, err
	}
	if err := a.compile(preparing, found); err != nil {
		return found, nil, err
	}
	crashpoint("prepared")
	// Getting ready may have taken long: nothing starts for a task that is another's.
	return found, env, a.w.persist(preparing, a.log, func() error { return a.hold.sure(ctx) })
}

// compile gets the module ready. A damaged copy on this host is no fault of the
// capsule's: it is fetched again.
func (a *attempt) compile(ctx context.Context, c capsule) error {
	err := a.w.guests.Prepare(ctx, c.path, c.Digest)
	if !errors.Is(err, sandbox.ErrDamaged) {
		return err
	}
	a.log.Warn("the copy of the capsule on this host is damaged: it is fetched again", "error", err)
	if err := a.w.capsules.get(ctx, c); err != nil {
		return err
	}
	if err = a.w.guests.Prepare(ctx, c.path, c.Digest); errors.Is(err, sandbox.ErrDamaged) {
		return fmt.Errorf("capsule cache: it damages what is put into it: %v", err) // this host's fault
	}
	return err
}

// why is what the first frame of a later attempt tells.
func (a *attempt) why() string {
	prior, n := a.claim.Prior, a.claim.Record.Attempt
	switch {
	case n <= 1:
		return ""
	case prior.Status == protocol.StatusWorking:
		return fmt.Sprintf("attempt %d: worker %s was lost", n, prior.WorkerID)
	default:
		return fmt.Sprintf("attempt %d: worker %s gave the task back", n, prior.WorkerID)
	}
}

// event takes what the guest said to the trace and, as frames, to the bus. It
// blocks while the bus is slow, and so holds the guest back.
func (a *attempt) event(ctx context.Context, stop context.CancelCauseFunc, e protocol.Event) {
	now := time.Now()
	if a.cancel.accepted() {
		a.segments.Interrupt()
	}
	a.trace.event(now, e)
	if !a.write(ctx, a.segments.Event(now, e)) {
		stop(errFrames)
		return
	}
	crashpoint("guest running")
	if a.segments.Refused() {
		stop(errBudget)
	}
}

// write sends frames and reports whether the job is still this worker's. What
// stops a guest does not stop its frames: nothing that it said is dropped.
func (a *attempt) write(ctx context.Context, frames []protocol.Frame) bool {
	for _, f := range frames {
		if err := a.send(ctx, f); err != nil {
			a.unsent = true
			return false
		}
	}
	return true
}

// send sends one frame once it is sure that the claim holds.
func (a *attempt) send(ctx context.Context, f protocol.Frame) error {
	if err := a.w.sure(ctx, a.hold); err != nil {
		return err
	}
	return a.frames.Send(ctx, f)
}

// lazyFile is a file that is made when something is written to it.
type lazyFile struct {
	path string
	file *os.File
}

var _ io.Writer = (*lazyFile)(nil)

func (l *lazyFile) Write(p []byte) (int, error) {
	if l.file == nil {
		f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return 0, err
		}
		l.file = f
	}
	return l.file.Write(p)
}

func (l *lazyFile) close() {
	if l.file != nil {
		_ = l.file.Close() // a copy for the operator: nothing depends on it
	}
}
