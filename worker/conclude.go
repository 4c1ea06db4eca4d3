package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"starling/protocol"
	"starling/sandbox"
)

// conclusion is how an attempt ended, before anybody is told.
type conclusion struct {
	handBack  bool // the task goes back to the queue: nothing below counts
	hostFault bool // the same, because this host could not run it
	charged   bool // with handBack: it costs the attempt

	status   protocol.Status
	reporter protocol.Reporter
	detail   string
	ending   protocol.Ending
	response *string // of a finished attempt
}

// conclude maps the end of a guest to the attempt's conclusion. cause is why it
// was stopped from outside, if it was.
//
// Source: docs/protocol.md, section 7 (Endings) and section 8 (situations).
func (a *attempt) conclude(ctx context.Context, cause error, end sandbox.Ending) conclusion {
	canceled := a.cancel.accepted() // once: one that is accepted from here on comes too late
	if canceled {
		a.segments.Interrupt()
	}
	c := a.ended(ctx, cause, end, canceled)
	if a.unsent && !c.handBack {
		a.log.Warn("frames not published: the task is handed back")
		return conclusion{hostFault: true}
	}
	return c
}

// ended is conclude for a guest whose frames could all be sent.
func (a *attempt) ended(ctx context.Context, cause error, end sandbox.Ending, canceled bool) conclusion {
	var quota *quotaError
	switch {
	case end.Kind == sandbox.Refused && errors.Is(end.Err, sandbox.ErrRefused):
		return refused(a.named(end.Message))
	case end.Kind == sandbox.Refused: // this host could not run it: another may
		a.w.fault.set(end.Err)
		a.log.Error("guest not started: the task is handed back", "error", end.Message)
		return conclusion{hostFault: true}
	case a.segments.Ended():
		// The session said how it ended; what happened to its process afterwards
		// changes nothing.
	case end.Kind == sandbox.Exited:
		a.write(ctx, a.exited(end, canceled))
	case end.Kind == sandbox.LimitHit:
		a.write(ctx, a.segments.Killed(end.Message))
	case end.Kind == sandbox.ProcessDied && !a.toBlame(end) && !canceled:
		// Another guest brought its process down, or may have.
		a.log.Warn("the guest's process died: the task is handed back", "how", end.Trap)
		return conclusion{handBack: true, charged: end.Blame == sandbox.BlameUnclear}
	case end.Kind == sandbox.Trapped || end.Kind == sandbox.ProcessDied:
		a.write(ctx, a.segments.Killed(end.Message))
		if !canceled {
			if end.Kind == sandbox.ProcessDied {
				a.log.Warn("the guest's process died: the job crashed", "how", end.Trap)
			}
			return crashed(end.Message, end.Trap, end.StderrTail)
		}
	case errors.As(cause, &quota):
		a.write(ctx, a.segments.Killed(quota.Error()))
	case canceled && !errors.Is(cause, errLostClaim): // also when a deadline came before the guest was gone
		a.write(ctx, a.segments.Killed(errCanceled.Error()))
	case errors.Is(cause, errDelegationDeadline):
		a.write(ctx, a.segments.Killed(cause.Error()))
		return a.pastDeadline()
	default: // handed back, the claim lost, or the engine closed
		return conclusion{handBack: true}
	}
	return a.sessionEnded()
}

// toBlame reports whether a process's death is this guest's to answer for: it was
// its fault, or it may have been and there is no attempt left.
func (a *attempt) toBlame(end sandbox.Ending) bool {
	return end.Blame == sandbox.BlameGuest ||
		end.Blame == sandbox.BlameUnclear && !a.claim.Record.AttemptsLeft(a.job.MaxAttempts)
}

// exited ends the turn of a guest that exited by itself. One that left its directory
// over its quota has not succeeded: it may have been gone before that was looked at.
func (a *attempt) exited(end sandbox.Ending, canceled bool) []protocol.Frame {
	lastLine := ""
	if n := len(end.StderrTail); n > 0 {
		lastLine = end.StderrTail[n-1]
	}
	if end.Status != 0 {
		return a.segments.Exited(end.Status, lastLine, nil)
	}
	if _, over := a.dir.measure(a.manifest.Capabilities.Limits.WorkdirBytes, 0); over != nil && !canceled { // a cancel wins
		return a.segments.Killed(over.Error())
	}
	answer, err := a.dir.answer(a.manifest.Capabilities.Filesystem.Scope)
	if err != nil {
		return a.segments.Killed(err.Error())
	}
	if answer == nil && a.manifest.Output == protocol.OutputText {
		answer = &end.Stdout
	}
	return a.segments.Exited(0, "", answer)
}

// sessionEnded is the conclusion of a session that said how it ended, or that a
// limit, a budget or a cancel ended.
func (a *attempt) sessionEnded() conclusion {
	ending, response := a.segments.Ending()
	c := conclusion{status: protocol.StatusOK, reporter: protocol.ReportedByChild, ending: ending, response: response}
	switch ending.State {
	case a2a.TaskStateFailed:
		c.status = protocol.StatusError
	case a2a.TaskStateCanceled:
		c.status, c.reporter, c.detail = protocol.StatusTerminated, protocol.ReportedByLauncher, protocol.ParentEndedDetail
	}
	return c
}

// notStarted concludes an attempt whose preparation failed.
func (a *attempt) notStarted(running context.Context, err error) conclusion {
	var no *refusal
	switch cause := context.Cause(running); {
	case errors.As(err, &no):
		return refused(no.why)
	case errors.Is(err, sandbox.ErrRefused):
		return refused(a.named(err.Error()))
	case errors.Is(cause, errDelegationDeadline):
		return deadlineBeforeStart()
	case cause == nil:
		a.w.fault.set(err)
		a.log.Error("attempt not started: the task is handed back", "error", err)
		return conclusion{hostFault: true}
	}
	return conclusion{handBack: true}
}

// named says the capsule's name instead of where its module is on this host,
// which is nobody's business elsewhere.
func (a *attempt) named(why string) string {
	if a.module == "" {
		return why
	}
	return strings.ReplaceAll(why, "module "+a.module, "capsule "+a.claim.Record.Capsule.String())
}

func refused(why string) conclusion {
	return conclusion{
		status: protocol.StatusCrashed, reporter: protocol.ReportedByLauncher, detail: protocol.RefusedDetail(why),
		ending: protocol.Ending{State: a2a.TaskStateRejected, Message: protocol.Bound(why)},
	}
}

func crashed(message, trap string, stderr []string) conclusion {
	return conclusion{
		status: protocol.StatusCrashed, reporter: protocol.ReportedByLauncher, detail: protocol.CrashDetail(trap, stderr),
		ending: protocol.Ending{State: a2a.TaskStateFailed, Message: protocol.Bound(message)},
	}
}

func (a *attempt) pastDeadline() conclusion {
	return terminated(protocol.DeadlineDetail(wholeSeconds(time.Since(a.claim.Record.StartedAt.Std()))))
}

func deadlineBeforeStart() conclusion { return terminated(protocol.DeadlineBeforeStartDetail) }

// terminated is the conclusion of the delegation's deadline.
func terminated(detail string) conclusion {
	return conclusion{
		status: protocol.StatusTerminated, reporter: protocol.ReportedByLauncher, detail: detail,
		ending: protocol.Ending{State: a2a.TaskStateFailed, Message: detail},
	}
}

func canceledBeforeStart() conclusion {
	return conclusion{
		status: protocol.StatusTerminated, reporter: protocol.ReportedByLauncher, detail: protocol.ParentEndedDetail,
		ending: protocol.Ending{State: a2a.TaskStateCanceled, Message: protocol.MessageCanceledBeforeStart},
	}
}

// lostWorker is the conclusion of a delegation whose worker was lost with no
// attempt left.
func lostWorker(prior protocol.Record) conclusion {
	detail := protocol.LostDetail(prior.WorkerID, prior.Attempt)
	return conclusion{
		status: protocol.StatusCrashed, reporter: protocol.ReportedByLauncher, detail: detail,
		ending: protocol.Ending{State: a2a.TaskStateFailed, Message: detail},
	}
}

// record is the final record of a conclusion over the working one. resultPath
// and object are empty for launcher reports.
func (c conclusion) record(rec protocol.Record, worker protocol.WorkerID, resultPath string, object *protocol.ResultObject, now time.Time) protocol.Record {
	duration := int64(0)
	if !rec.StartedAt.IsZero() {
		duration = max(0, now.Sub(rec.StartedAt.Std()).Milliseconds())
	}
	rec.Status, rec.EndedAt = c.status, protocol.NewTime(now)
	rec.Ending = &c.ending
	rec.Outcome = &protocol.Outcome{
		DelegationID: rec.DelegationID, CapsuleName: rec.Capsule.Name, CapsuleVersion: rec.Capsule.Version,
		SessionID: rec.SessionID, Status: c.status, ResultPath: resultPath, Workdir: rec.Workdir,
		DurationMS: duration, Detail: c.detail, ReportedBy: c.reporter, WorkerID: worker, ResultObject: object,
	}
	return rec
}

// fileText is what the runtime writes as the result of a capsule that wrote
// none.
func (c conclusion) fileText() string {
	if c.response != nil {
		return *c.response
	}
	return "error: " + c.ending.Message
}

// wholeSeconds rounds to the nearest: a delegation with a deadline of 2 s that
// began a moment late ran for 2 s, not for 1.
func wholeSeconds(d time.Duration) int64 { return int64(max(0, d).Round(time.Second) / time.Second) }

func workingFrame(text string) protocol.Frame {
	return protocol.Frame{Kind: protocol.FrameStatus, State: a2a.TaskStateWorking, Text: text}
}
