package protocol

import (
	"errors"
	"fmt"
	"math"
)

// WorkerInfo is a worker's entry in the workers bucket, renewed by its
// heartbeat. RunID tells one run from another of the same id.
type WorkerInfo struct {
	WorkerID  WorkerID `json:"worker_id"`
	RunID     string   `json:"run_id,omitempty"`
	Pool      string   `json:"pool"`
	Host      string   `json:"host"`
	PID       int      `json:"pid"`
	Version   string   `json:"version"`
	Slots     int      `json:"slots"`
	Busy      int      `json:"busy"`
	Draining  bool     `json:"draining"`
	JobsDone  int64    `json:"jobs_done"`
	StartedAt Time     `json:"started_at,omitzero"`
	SeenAt    Time     `json:"seen_at,omitzero"`
}

// ErrControl says that a control message cannot be read.
var ErrControl = errors.New("bad control message")

// ParseWorkerInfo reads a worker's entry.
func ParseWorkerInfo(data []byte) (WorkerInfo, error) {
	var w WorkerInfo
	if err := unmarshalExact(data, &w); err != nil {
		return WorkerInfo{}, fmt.Errorf("%w: worker: %w", ErrControl, err)
	}
	if err := ValidateName("worker_id", string(w.WorkerID)); err != nil {
		return WorkerInfo{}, fmt.Errorf("%w: worker: %w", ErrControl, err)
	}
	if w.Slots < 0 || w.Slots > math.MaxInt32 || w.Busy < 0 || w.Busy > math.MaxInt32 || w.JobsDone < 0 {
		return WorkerInfo{}, fmt.Errorf("%w: worker %s: slots %d, busy %d, jobs_done %d", ErrControl, w.WorkerID, w.Slots, w.Busy, w.JobsDone)
	}
	return w, nil
}

// WorkerStats is the answer to the verbs "stats" and "drain": the worker's entry,
// and what it runs.
type WorkerStats struct {
	WorkerInfo
	// Tasks run now or are made ready, the oldest first; at most [MaxStatsTasks] of them.
	Tasks []RunningTask `json:"tasks"`
}

// MaxStatsTasks bounds the tasks in a worker's answer, which must fit a message.
const MaxStatsTasks = 1000

// RunningTask is a task whose guest runs on a worker, or is made ready there.
type RunningTask struct {
	DelegationID DelegationID `json:"delegation_id"`
	TaskID       TaskID       `json:"task_id"`
	Capsule      string       `json:"capsule"` // name@version
	Attempt      int          `json:"attempt"`
	StartedAt    Time         `json:"started_at,omitzero"`
}

// ParseWorkerStats reads a worker's answer. One of a worker that does not tell
// its tasks has none.
func ParseWorkerStats(data []byte) (WorkerStats, error) {
	info, err := ParseWorkerInfo(data)
	if err != nil {
		return WorkerStats{}, err
	}
	var more struct {
		Tasks []RunningTask `json:"tasks"`
	}
	if err := unmarshalExact(data, &more); err != nil {
		return WorkerStats{}, fmt.Errorf("%w: worker: %w", ErrControl, err)
	}
	return WorkerStats{WorkerInfo: info, Tasks: more.Tasks}, nil
}

// CancelRequest asks the worker of a running delegation to end it. A body that
// does not name the delegation is ignored.
//
// Source: docs/protocol.md, section 10.
type CancelRequest struct {
	DelegationID DelegationID `json:"delegation_id"`
}

// CancelAnswer says how the delegation stands once its guest is gone.
type CancelAnswer struct {
	Status Status `json:"status"`
}

// ParseCancelRequest reads a cancel and checks that it names the delegation.
func ParseCancelRequest(data []byte, want DelegationID) (CancelRequest, error) {
	var r CancelRequest
	if err := unmarshalExact(data, &r); err != nil {
		return CancelRequest{}, fmt.Errorf("%w: cancel: %w", ErrControl, err)
	}
	if r.DelegationID != want {
		return CancelRequest{}, fmt.Errorf("%w: cancel names another delegation", ErrControl)
	}
	return r, nil
}

// ParseCancelAnswer reads the answer to a cancel.
func ParseCancelAnswer(data []byte) (CancelAnswer, error) {
	var a CancelAnswer
	if err := unmarshalExact(data, &a); err != nil {
		return CancelAnswer{}, fmt.Errorf("%w: cancel answer: %w", ErrControl, err)
	}
	return a, nil
}

// CapsuleEntry is a capsule's entry in the index.
type CapsuleEntry struct {
	Digest   Digest   `json:"digest"`
	Size     int64    `json:"size"`
	Manifest Manifest `json:"manifest"`
	PushedAt Time     `json:"pushed_at,omitzero"`
}

// ErrCapsuleEntry says that an entry of the index cannot be read.
var ErrCapsuleEntry = errors.New("bad entry of the capsule index")

// ParseCapsuleEntry reads and validates an entry of the index. Its errors are
// [ErrCapsuleEntry].
func ParseCapsuleEntry(data []byte) (CapsuleEntry, error) {
	e := CapsuleEntry{Manifest: DefaultManifest("", "")}
	if err := unmarshalExact(data, &e); err != nil {
		return CapsuleEntry{}, fmt.Errorf("%w: %w", ErrCapsuleEntry, err)
	}
	if err := errors.Join(e.Digest.Validate(), e.Manifest.Validate()); err != nil {
		return CapsuleEntry{}, fmt.Errorf("%w: %w", ErrCapsuleEntry, err)
	}
	return e, nil
}
