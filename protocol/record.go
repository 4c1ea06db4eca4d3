package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// Status is where a delegation stands.
//
// Source: docs/protocol.md, section 6.
type Status string

// The statuses. The last four are final.
const (
	StatusSubmitted  Status = "submitted"
	StatusWorking    Status = "working"
	StatusOK         Status = "ok"
	StatusError      Status = "error"
	StatusCrashed    Status = "crashed"
	StatusTerminated Status = "terminated"
)

// Final reports whether the delegation has its outcome.
func (s Status) Final() bool {
	return s == StatusOK || s == StatusError || s == StatusCrashed || s == StatusTerminated
}

// DeliveryMark orders the deliveries of one job.
type DeliveryMark struct {
	Sequence uint64 `json:"sequence"` // of the stream
	Count    uint64 `json:"count"`    // from 1
}

// After reports whether m is a later delivery than other: only such a one may
// take over a working delegation.
func (m DeliveryMark) After(other DeliveryMark) bool {
	return m.Sequence > other.Sequence || m.Sequence == other.Sequence && m.Count > other.Count
}

// Ending is how an attempt, and so the task, ended for its observers: the state
// and message of the terminal status.
//
// Source: docs/protocol.md, section 7, Endings.
type Ending struct {
	State   a2a.TaskState `json:"state"`
	Message string        `json:"message"`
}

// Record is a delegation's entry in the ledger.
//
// Source: docs/protocol.md, section 6.
type Record struct {
	DelegationID DelegationID `json:"delegation_id"`
	TaskID       TaskID       `json:"task_id"`
	ContextID    ContextID    `json:"context_id"`
	Capsule      CapsuleRef   `json:"capsule"`
	Pool         string       `json:"pool"`
	Lane         Lane         `json:"lane"`
	Origin       Origin       `json:"origin"`
	Trust        Trust        `json:"trust"`
	Spawner      Spawner      `json:"spawner"` // lineage only, without the delegation id
	Status       Status       `json:"status"`
	Attempt      int          `json:"attempt"`  // attempts begun
	Returned     int          `json:"returned"` // attempts handed back by a drain
	WorkerID     WorkerID     `json:"worker_id,omitempty"`
	SessionID    SessionID    `json:"session_id,omitempty"`
	Workdir      string       `json:"workdir,omitempty"`
	Delivery     DeliveryMark `json:"delivery,omitzero"`
	SubmittedAt  Time         `json:"submitted_at,omitzero"`
	StartedAt    Time         `json:"started_at,omitzero"`
	EndedAt      Time         `json:"ended_at,omitzero"`
	Outcome      *Outcome     `json:"outcome,omitempty"`
	Ending       *Ending      `json:"ending,omitempty"`
}

// ErrRecord says that a ledger entry cannot be read.
var ErrRecord = errors.New("bad ledger record")

// ParseRecord reads a record and checks what every reader relies on: ids and
// names, numbers that can be counted on, a known status, and an outcome with an
// ending when it is final.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if err := unmarshalExact(data, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	err := errors.Join(
		ValidateDelegationID("delegation_id", r.DelegationID),
		ValidateName("task_id", string(r.TaskID)),
		ValidateName("spawner.session_id", string(r.Spawner.SessionID)),
		r.Capsule.Validate(),
		ValidateName("pool", r.Pool),
		r.Lane.Validate(),
	)
	if r.WorkerID != "" {
		err = errors.Join(err, ValidateName("worker_id", string(r.WorkerID)))
	}
	if r.SessionID != "" {
		err = errors.Join(err, ValidateName("session_id", string(r.SessionID)))
	}
	if r.Attempt < 0 || r.Attempt > math.MaxInt32 || r.Returned < 0 || r.Returned > r.Attempt {
		err = errors.Join(err, fmt.Errorf("attempt is %d with %d returned: attempts are counted from 0, and no more are returned than begun", r.Attempt, r.Returned))
	}
	switch r.Status {
	case StatusSubmitted, StatusWorking:
	case StatusOK, StatusError, StatusCrashed, StatusTerminated:
		if r.Outcome == nil || r.Ending == nil {
			err = errors.Join(err, fmt.Errorf("status is %s without an outcome and an ending", r.Status))
		}
	default:
		err = errors.Join(err, fmt.Errorf("status is %q", clip(string(r.Status), 32)))
	}
	if err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return r, nil
}

// Encode writes the record. Its spawner is cut to lineage: the door's address
// stays in the job.
func (r Record) Encode() ([]byte, error) {
	r.Spawner = Spawner{SessionID: r.Spawner.SessionID, ContextID: r.Spawner.ContextID}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return body, nil
}

// Key is the record's key in the ledger.
func (r Record) Key() string { return LedgerKey(r.Spawner.SessionID, r.DelegationID) }

// Holds reports whether the record holds what a writer wrote: its own write
// seen again, and not another's. Comparing the session alone is not enough, for
// a crash that another worker reported carries the lost session.
//
// Source: docs/protocol.md, section 6, Writing.
func (r Record) Holds(written Record) bool {
	if r.TaskID != written.TaskID || r.Status != written.Status || r.SessionID != written.SessionID || r.Delivery != written.Delivery ||
		(r.Outcome == nil) != (written.Outcome == nil) {
		return false
	}
	return r.Outcome == nil || r.Outcome.equal(*written.Outcome)
}

// AttemptsLeft reports whether another attempt may begin. Attempts that a drain
// handed back do not count.
func (r Record) AttemptsLeft(maxAttempts int) bool { return r.Attempt-r.Returned < maxAttempts }

// AttemptsSpent reports whether the delegation ended because its worker was lost
// and no attempt was left: its job is then a dead letter. The record says so to
// whoever completes it, also when the worker that wrote it is gone.
//
// Source: docs/protocol.md, section 10.
func (r Record) AttemptsSpent() bool {
	return r.Status == StatusCrashed && r.Outcome != nil && r.Outcome.ReportedBy == ReportedByLauncher &&
		r.Outcome.Detail == LostDetail(r.WorkerID, r.Attempt)
}

// Disagrees names the first member in which a job differs from its record, or
// "" when they agree. Such a job is a dead letter.
func (r Record) Disagrees(j Job) string {
	switch {
	case r.TaskID != j.TaskID:
		return "task_id"
	case r.ContextID != j.ContextID():
		return "context_id"
	case r.Capsule.Name != j.Capsule.Name || r.Capsule.Version != j.Capsule.Version ||
		j.Capsule.Digest != "" && r.Capsule.Digest != j.Capsule.Digest:
		return "capsule"
	case r.Pool != j.Pool:
		return "pool"
	case r.Lane != j.Lane():
		return "lane"
	}
	return ""
}
