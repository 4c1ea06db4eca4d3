package sandbox

import (
	"fmt"
	"time"
)

// killBy sets when the process is killed unless it has ended the guest, or said
// something when it has not begun it. Nobody looks before the run has lasted a
// while. r.mu is held.
func (r *remoteRun) killBy(at time.Time) {
	r.killAt = at
	if r.stopWatcher != nil && !r.ended {
		_ = r.slot.pipe.conn.SetDeadline(at) // it fails when the pipe is closed, which receive says
	}
}

// starting bounds the time until the guest starts.
func (r *remoteRun) starting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killBy(time.Now().Add(readyTimeout))
}

// started bounds the guest by its deadline, which the process watches too.
func (r *remoteRun) started() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = time.Now()
	// Not before: the guest before it may still have files open. What this one has removed
	// is seen from now on, and whenever it asks for room.
	if r.spec.WorkDir != "" {
		r.leave = r.slot.process.dirs.add(r.spec.WorkDir)
	}
	if r.stopping == nil {
		r.overdue = r.begun.Add(time.Duration(r.spec.Limits.DeadlineSeconds)*time.Second + r.s.cfg.KillAfter)
		r.killBy(r.overdue)
	}
}

// stop bounds a guest that was told to stop.
func (r *remoteRun) stop(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = cause
	at := time.Now().Add(r.s.cfg.KillAfter)
	if r.overdue.IsZero() || at.Before(r.overdue) {
		r.overdue = at
	}
	if at.Before(r.killAt) {
		r.killBy(at)
	}
}

// holdingBack calls what the process waits for.
func (r *remoteRun) holdingBack(call func()) {
	began := time.Now()
	call()
	if took := time.Since(began); took > slowEmit {
		r.heldBack(took)
	}
}

// heldBack gives the process time again, after it waited so long for the worker. Once
// it is overdue, what it takes itself beside those waits is ownTime at most.
func (r *remoteRun) heldBack(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.held += max(0, min(took, now.Sub(r.overdue)))
	at, most := now.Add(r.s.cfg.KillAfter), r.overdue.Add(r.held+ownTime*r.s.cfg.KillAfter)
	if most.Before(at) {
		at = most
	}
	if at.After(r.killAt) {
		r.killBy(at)
	}
}

// ownTime is in times of KillAfter.
const ownTime = 4

// slowEmit is how long the worker may hold a guest back before that counts
// against the process's time to stop.
const slowEmit = 50 * time.Millisecond

// maxLate bounds what a process that was held back may still say when its guest
// should be gone: more messages than the pipe and the buffers at its ends hold.
const maxLate = 1 << 15

// bounded is an error once a process has said more than maxLate messages since its
// guest was stopped or overdue.
func (r *remoteRun) bounded() error {
	if !r.late() {
		return nil
	}
	if r.lateWords++; r.lateWords > maxLate {
		return fmt.Errorf("%w: it goes on past its guest's end", errBadMessage)
	}
	return nil
}

// late reports whether the guest was stopped or is overdue.
func (r *remoteRun) late() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopping != nil || !time.Now().Before(r.overdue)
}

func (r *remoteRun) stopped() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopping
}
