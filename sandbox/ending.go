package sandbox

import (
	"fmt"
	"time"

	"starling/protocol"
)

// EndingKind says how a guest ended.
type EndingKind int

// The ways a guest ends.
const (
	// Exited: it returned from _start or called proc_exit. Status says with what.
	Exited EndingKind = iota + 1
	// Trapped: the engine stopped it. Trap says why.
	Trapped
	// LimitHit: it ran into a limit of the manifest. Limit says which.
	LimitHit
	// Interrupted: the run's context ended, or the engine was closed.
	Interrupted
	// Refused: it never started. Message says why and what to do.
	Refused
	// ProcessDied: the sandbox process that ran it died. Trap says how, Blame
	// whose fault it was.
	ProcessDied
)

// Blame says whose fault it is that a sandbox process died.
type Blame int

// Where the blame lies.
const (
	// BlameGuest: this guest's. It was alone in its process, or had to be killed.
	BlameGuest Blame = iota + 1
	// BlameOther: another guest's, which had to be killed.
	BlameOther
	// BlameUnclear: one of the guests that shared the process, nobody knows which.
	// The next run of each is alone in its process.
	BlameUnclear
)

// String is the kind in lower case, fit for a log or a label.
func (k EndingKind) String() string {
	switch k {
	case Exited:
		return "exited"
	case Trapped:
		return "trapped"
	case LimitHit:
		return "limit"
	case Interrupted:
		return "interrupted"
	case Refused:
		return "refused"
	case ProcessDied:
		return "process died"
	default:
		return fmt.Sprintf("EndingKind(%d)", int(k))
	}
}

// Limit names a limit that ended a run.
type Limit string

// The limits that end a run.
const (
	LimitDeadline Limit = "deadline"
	LimitMemory   Limit = "memory"
	LimitTable    Limit = "table"
	// LimitInstances is of components alone: a module is one instance.
	LimitInstances Limit = "instances"
	LimitCalls     Limit = "calls"
)

// Ending is how one run ended. Only the members of its Kind carry meaning; the
// output members and Duration are set for every guest that started.
type Ending struct {
	Kind EndingKind

	Status  int    // Exited: the exit status, 0 is success
	Trap    string // Trapped: the trap in one line; ProcessDied: the signal or exit status
	Limit   Limit  // LimitHit
	Message string // Trapped, LimitHit, ProcessDied: the sentence of docs/protocol.md, section 5; Refused: why, and the fix
	Blame   Blame  // ProcessDied
	Err     error  // Interrupted: the context's cause, or ErrClosed; Refused: the cause, ErrRefused

	Stdout     string   // text mode: all of stdout that was kept
	StderrTail []string // the last lines of stderr, at most 20, bounded
	Duration   time.Duration

	StdoutDropped  int64 // bytes of stdout and import payloads beyond the bound
	StderrDropped  int64 // bytes of stderr beyond the bound
	SignalsDropped int64 // import signals that were out of bounds, not UTF-8 or no event
}

// The sentences of docs/protocol.md, section 5.
const resourceLimits = "capsule execution exceeded its configured resource limits: "

func deadlineEnding(seconds int64) Ending {
	return Ending{Kind: LimitHit, Limit: LimitDeadline, Message: protocol.RunDeadlineMessage(seconds)}
}

func memoryEnding(bytes uint64, limit int64) Ending {
	return Ending{Kind: LimitHit, Limit: LimitMemory, Message: fmt.Sprintf(
		resourceLimits+"linear memory growth to %d bytes exceeds capabilities.limits.memory_bytes (%d)", bytes, limit)}
}

func tableEnding(elements uint64, limit int64) Ending {
	return Ending{Kind: LimitHit, Limit: LimitTable, Message: fmt.Sprintf(
		resourceLimits+"table growth to %d elements exceeds capabilities.limits.table_elements (%d)", elements, limit)}
}

func instancesEnding(instances uint64, limit int64) Ending {
	return Ending{Kind: LimitHit, Limit: LimitInstances, Message: fmt.Sprintf(
		resourceLimits+"%d instances or more exceed capabilities.limits.instances (%d)", instances, limit)}
}

func callsEnding() Ending {
	return Ending{Kind: LimitHit, Limit: LimitCalls, Message: fmt.Sprintf(
		resourceLimits+"more than %d tool calls", protocol.MaxToolCalls)}
}

func trapEnding(trap string) Ending {
	return Ending{Kind: Trapped, Trap: trap, Message: "capsule execution trapped: " + trap}
}

func diedEnding(how string, blame Blame) Ending {
	return Ending{Kind: ProcessDied, Trap: how, Blame: blame, Message: "capsule execution trapped: its process died: " + how}
}
