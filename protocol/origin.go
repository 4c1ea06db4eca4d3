package protocol

import "fmt"

// Origin says what caused a job.
//
// Source: docs/protocol.md, sections 2 and 3.
type Origin string

// The origins.
const (
	OriginUser       Origin = "user"
	OriginPeer       Origin = "peer"
	OriginSchedule   Origin = "schedule"
	OriginEvent      Origin = "event"
	OriginCompletion Origin = "completion"
	OriginSystem     Origin = "system"
)

// Validate checks that section 2 names the origin.
func (o Origin) Validate() error {
	switch o {
	case OriginUser, OriginPeer, OriginSchedule, OriginEvent, OriginCompletion, OriginSystem:
		return nil
	}
	return fmt.Errorf("%w: origin is %q: it is user, peer, schedule, event, completion or system", ErrName, clip(string(o), 32))
}

// Lane is where a job of this origin waits.
func (o Origin) Lane() Lane {
	switch o {
	case OriginUser:
		return LaneUser
	case OriginPeer:
		return LanePeer
	default:
		return LaneBackground
	}
}

// Lane is a queue of a pool. A worker takes from user before peer before bg.
type Lane string

// The lanes.
const (
	LaneUser       Lane = "user"
	LanePeer       Lane = "peer"
	LaneBackground Lane = "bg"
)

// Lanes are all lanes, the one that is taken from first first.
func Lanes() []Lane { return []Lane{LaneUser, LanePeer, LaneBackground} }

// Validate checks that section 2 names the lane.
func (l Lane) Validate() error {
	switch l {
	case LaneUser, LanePeer, LaneBackground:
		return nil
	}
	return fmt.Errorf("%w: lane is %q: it is user, peer or bg", ErrName, clip(string(l), 32))
}

// Trust is what a task may be believed. It is derived, never declared: only
// [DeriveTrust] and [Classify] make one.
type Trust string

// The trust classes.
const (
	Trusted   Trust = "trusted"
	Untrusted Trust = "untrusted"
)

func (t Trust) known() bool { return t == Trusted || t == Untrusted }

// DeriveTrust is the trust of a task: user, schedule and system are trusted,
// events are not, and peers and completions inherit their sender's, which is
// untrusted when it is missing or unknown.
func DeriveTrust(origin Origin, sender Trust) Trust {
	switch origin {
	case OriginUser, OriginSchedule, OriginSystem:
		return Trusted
	case OriginPeer, OriginCompletion:
		if sender == Trusted {
			return Trusted
		}
	}
	return Untrusted
}

// Headers of the post to a parent's door.
//
// Source: docs/protocol.md, section 9.
const (
	HeaderTaskOrigin        = "x-murmur-task-origin"
	HeaderTaskTrust         = "x-murmur-task-trust"
	HeaderDelegationID      = "x-murmur-delegation-id"
	HeaderCompletionSession = "x-murmur-completion-session"
)

// Class is what a request over HTTP is taken for.
type Class struct {
	Origin Origin
	Trust  Trust
	Lane   Lane
}

// Classify reads the two headers of an HTTP request. Only peer and completion
// are believed as origins; every other value, or none, is an event.
func Classify(origin, trust string) Class {
	o := Origin(origin)
	if o != OriginPeer && o != OriginCompletion {
		o = OriginEvent
	}
	return Class{Origin: o, Trust: DeriveTrust(o, Trust(trust)), Lane: o.Lane()}
}
