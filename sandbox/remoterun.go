package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"starling/protocol"
)

// maxTries bounds how often a run is begun, for a process may die before its guest
// starts, or find that its compiled module was removed; and how often a supervisor's
// first process is started.
const maxTries = 3

// Run is [Engine.Run] in a sandbox process. What ends with the process is a
// [ProcessDied]; a guest that does not stop at its deadline or when ctx ends is
// killed with its process, and its ending is that of the deadline or of ctx.
func (s *Supervisor) Run(ctx context.Context, spec Spec, emit func(protocol.Event)) Ending {
	if !s.enter() {
		return interrupted(ErrClosed)
	}
	defer s.work.Done()
	if err := spec.validate(); err != nil {
		return refused(refusal(err.Error()))
	}
	if err := s.reachable(spec.WorkDir); err != nil {
		return refused(err)
	}
	var err error
	var died *diedError
	for range maxTries {
		// A guest without a directory needs only its compiled module. When that is gone
		// its process refuses, and the next try looks at the disk, in [Supervisor.make].
		if spec.WorkDir != "" {
			if _, err = s.ground(); err != nil {
				break
			}
		}
		var found code
		if found, err = s.compiled(ctx, spec.Module, spec.Digest); err != nil {
			break
		}
		if end, over := found.needs.over(spec.Limits); over {
			return end
		}
		var end Ending
		if end, err = s.tryRun(ctx, &spec, found, emit); err == nil {
			return end
		}
		if ctx.Err() != nil || s.ctx.Err() != nil {
			break
		}
		s.memory.forget(spec.Digest) // it is verified, or compiled, anew
	}
	if cause := s.cause(ctx); cause != nil {
		return interrupted(cause)
	}
	if errors.As(err, &died) { // again and again: it is the capsule's fault
		return diedEnding(died.how, BlameGuest)
	}
	return refused(err)
}

// diedError says that a process died before it said that its guest started,
// which a guest that ends it at once may prevent.
type diedError struct{ how string }

func (e *diedError) Error() string { return "sandbox process died before its guest started: " + e.how }

// cause is why a run is to stop; nil while it may go on.
func (s *Supervisor) cause(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.ctx.Err() != nil:
		return ErrClosed
	}
	return nil
}

// reachable reports a work directory that sandbox processes may not open.
func (s *Supervisor) reachable(dir string) error {
	if dir == "" {
		return nil
	}
	below, err := filepath.Rel(s.cfg.WorkRoot, dir)
	if err != nil || !filepath.IsLocal(below) {
		return fmt.Errorf("work directory %s is not below the work root %s, which is all that sandbox processes can reach", dir, s.cfg.WorkRoot)
	}
	return nil
}

// tryRun runs a guest in a process. Its error says that the guest never started.
func (s *Supervisor) tryRun(ctx context.Context, spec *Spec, found code, emit func(protocol.Event)) (Ending, error) {
	files, err := grantFiles(spec)
	if err != nil {
		return refused(err), nil
	}
	defer files.putAllBack(s.cfg.Logger) // here and not in the process, which may die
	place, err := s.take(ctx, spec.Digest, found.needs.Component)
	if err != nil {
		return Ending{}, err
	}
	defer s.give(place)
	if found.needs.Component {
		if err := place.spend(spec.Limits.MemoryBytes); err != nil {
			return Ending{}, err
		}
	}
	r := &remoteRun{
		s: s, slot: place, emit: emit, spec: &remoteSpec{Spec: *spec, code: found, preopens: files.preopens},
		stderr: tail{also: spec.Stderr},
	}
	r.http = newWorkerHTTP(ctx, r)
	defer r.http.close() // before the place is given to another
	defer func() {
		if !r.over { // emit panicked: nobody reads the rest
			place.process.kill(place)
			<-place.process.dead
		}
	}()
	return r.run(ctx)
}

// remoteRun is one guest in a process, as the goroutine that called Run sees it.
type remoteRun struct {
	s    *Supervisor
	slot *slot
	spec *remoteSpec
	emit func(protocol.Event)
	http *workerHTTP

	begun     time.Time // of the guest; zero before it started
	leave     func()    // forgets its directory; nil: none is known
	stderr    tail
	text      int64 // bytes of events
	lateWords int   // messages since it was stopped or overdue
	over      bool  // the guest's ending came, or the process is gone

	young       young
	watcher     sync.WaitGroup
	mu          sync.Mutex
	ended       bool          // nothing more is to be set up
	stopWatcher func()        // nil while there is none: see grown
	killAt      time.Time     // the process is killed unless it says something by then
	stopping    error         // why the guest was told to stop
	overdue     time.Time     // its deadline or the stop, and the time to keep it; zero before
	held        time.Duration // that the worker held it back since
}

// run returns an error when the guest did not start and might in another process.
func (r *remoteRun) run(ctx context.Context) (Ending, error) {
	pipe := r.slot.pipe
	r.slot.runs++
	r.spec.number = r.slot.runs
	r.starting()
	r.s.lasting.add(&r.young, func() { r.grown(ctx) })
	defer r.end()
	if err := pipe.send(msgRun, r.spec.encode); err != nil {
		return r.lost(err)
	}
	for {
		kind, body, err := pipe.receive()
		var end *Ending
		if err == nil {
			end, err = r.handle(ctx, kind, body)
		}
		if err != nil {
			return r.lost(err)
		}
		if end == nil {
			continue
		}
		r.over = true
		if r.begun.IsZero() && end.Kind == Refused { // with the module: this host's fault
			return Ending{}, end.Err
		}
		if end.Kind == Interrupted {
			*end = r.interrupted(*end)
		}
		return *end, nil
	}
}

// grown sets up what a run needs that lasts: somebody who tells it to stop, and
// the time at which its process is killed. It is called on another goroutine,
// when the run may just be over.
func (r *remoteRun) grown(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	watching, stop := context.WithCancel(ctx)
	r.stopWatcher = stop
	r.watcher.Go(func() { r.watch(watching, ctx) })
	r.killBy(r.killAt)
}

// end takes down what grown and started set up, so that the next run finds the pipe as new.
func (r *remoteRun) end() {
	r.s.lasting.remove(&r.young)
	r.mu.Lock()
	r.ended = true
	stop := r.stopWatcher
	r.mu.Unlock()
	if r.leave != nil {
		r.leave()
	}
	if stop == nil {
		return
	}
	stop()
	r.watcher.Wait()
	_ = r.slot.pipe.conn.SetDeadline(time.Time{}) // it fails when the process is gone
}

// watch tells the guest to stop: by itself, then at once.
func (r *remoteRun) watch(done, ctx context.Context) {
	canceled := r.spec.Canceled
	for {
		select {
		case <-canceled:
			canceled = nil
			r.tell(msgCancel)
			continue
		case <-done.Done():
		case <-r.s.ctx.Done():
		}
		cause := r.s.cause(ctx)
		if cause == nil {
			return // the guest is gone
		}
		r.stop(cause)
		r.tell(msgStop)
		return
	}
}

// tell says something of this run beside its events. A process that is gone is
// seen by run.
func (r *remoteRun) tell(kind messageKind) { _ = r.control(kind, func(*encoder) {}) }

// control sends a message about this run on the control pipe. An honest process
// always reads there: one that does not is killed. It may be called concurrently.
func (r *remoteRun) control(kind messageKind, more func(*encoder)) error {
	err := r.slot.control.sendWithin(controlPatience*r.s.cfg.KillAfter, kind, func(e *encoder) {
		e.num(r.spec.number)
		more(e)
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		r.slot.process.kill(r.slot)
	}
	return err
}

// controlPatience is how long a process may not read its control pipe, in times of
// KillAfter: the machine may be busy.
const controlPatience = 5

// handle acts on a message; it gives the ending when that is it.
func (r *remoteRun) handle(ctx context.Context, kind messageKind, body []byte) (*Ending, error) {
	if r.begun.IsZero() && kind != msgStarted && kind != msgEnding {
		return nil, fmt.Errorf("%w: a %q before the guest started", errBadMessage, kind)
	}
	switch kind {
	case msgStarted:
		if !r.begun.IsZero() {
			return nil, fmt.Errorf("%w: the guest started twice", errBadMessage)
		}
		r.started()
	case msgEvent:
		event, err := decodeEvent(body)
		if err != nil {
			return nil, err
		}
		if r.text += int64(len(body)); r.text > maxEventBytes && hasText(event.Kind) {
			return nil, fmt.Errorf("%w: more text than a guest may write", errBadMessage)
		}
		r.holdingBack(func() { r.emit(event) })
	case msgRoom:
		if r.spec.Room == nil || len(body) > 0 {
			return nil, fmt.Errorf("%w: nobody says how much it may write", errBadMessage)
		}
		room := int64(0)
		if !r.late() { // a guest that should be gone gets no more, and no more time
			r.holdingBack(func() { room = r.spec.Room(ctx) })
		}
		_ = r.control(msgRoomIs, func(e *encoder) { e.num(room) }) // a process that is gone is seen by run
	case msgHTTPSend, msgHTTPRead, msgHTTPClose:
		if err := r.http.take(kind, body); err != nil {
			return nil, err
		}
	case msgStderr:
		r.stderr.write(body)
	case msgEnding:
		end, err := decodeEnding(body)
		if err == nil && end.Kind == Interrupted && r.stopped() == nil {
			err = fmt.Errorf("%w: a guest was interrupted that nobody told to stop", errBadMessage)
		}
		return &end, err
	default:
		return nil, fmt.Errorf("%w: there is no %q", errBadMessage, kind)
	}
	return nil, r.bounded()
}

// maxEventBytes is more than an honest process sends as text: its own bound is
// [protocol.MaxOutputBytes], of which each byte may become a character of three.
const maxEventBytes = 4 * protocol.MaxOutputBytes

func hasText(kind protocol.EventKind) bool {
	switch kind {
	case protocol.EventTextDelta, protocol.EventThinkingDelta, protocol.EventText, protocol.EventThinking, protocol.EventNote:
		return true
	}
	return false
}

// lost ends a run whose process is gone, says nothing any more or says nonsense.
func (r *remoteRun) lost(err error) (Ending, error) {
	p := r.slot.process
	silent := errors.Is(err, os.ErrDeadlineExceeded)
	if silent || errors.Is(err, errBadMessage) {
		p.kill(r.slot)
	} else {
		r.reap()
	}
	<-p.dead
	r.over = true
	stopping := r.stopped()
	switch {
	case r.begun.IsZero():
		return Ending{}, &diedError{p.how}
	case stopping != nil:
		return r.finish(r.interrupted(Ending{})), nil
	case silent:
		return r.finish(deadlineEnding(r.spec.Limits.DeadlineSeconds)), nil
	}
	how := p.how
	if errors.Is(err, errBadMessage) {
		how = "its sandbox process was killed: " + err.Error()
	}
	end := diedEnding(how, p.blame(r.slot))
	if end.Blame == BlameUnclear {
		r.s.suspect(r.spec.Digest)
	}
	return r.finish(end), nil
}

// reap makes sure that a process that closed its pipe ends.
func (r *remoteRun) reap() {
	timer := time.NewTimer(r.s.cfg.KillAfter)
	defer timer.Stop()
	select {
	case <-r.slot.process.dead:
	case <-timer.C:
		r.slot.process.kill(r.slot)
	}
}

// finish adds what is known of a guest that is gone.
func (r *remoteRun) finish(end Ending) Ending {
	end.Duration = time.Since(r.begun)
	end.StderrTail, end.StderrDropped = r.stderr.lines(), r.stderr.dropped
	if end.Kind == ProcessDied && end.Blame == BlameGuest {
		end.StderrTail = append(end.StderrTail, r.slot.process.stderr.lines()...)
		end.StderrTail = end.StderrTail[max(0, len(end.StderrTail)-tailLines):]
	}
	return end
}

// interrupted gives an ending the cause, which only this process knows.
func (r *remoteRun) interrupted(end Ending) Ending {
	cause := r.stopped()
	end.Kind, end.Err, end.Message = Interrupted, cause, cause.Error()
	return end
}
