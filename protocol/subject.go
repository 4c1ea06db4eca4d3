package protocol

import (
	"fmt"
	"strings"
)

// Namespace is the first token of every subject and the prefix of every stream
// and bucket, so that several fleets can share one account.
//
// Source: docs/protocol.md, section 2.
type Namespace string

// DefaultNamespace is the namespace of a fleet that names none.
const DefaultNamespace Namespace = "starling"

// DefaultPool is the pool of a job that names none.
const DefaultPool = "default"

// Validate checks the form.
func (ns Namespace) Validate() error {
	if spelled(string(ns), 1, 32, lowerLetters+digits+"_-") {
		return nil
	}
	return fmt.Errorf("%w: namespace is %q: it is 1 to 32 of a-z 0-9 _ -", ErrName, clip(string(ns), 80))
}

func (ns Namespace) upper() string { return strings.ToUpper(string(ns)) }

// JobsStream is the name of the work queue.
func (ns Namespace) JobsStream() string { return ns.upper() + "_JOBS" }

// TasksStream is the name of the stream of frames.
func (ns Namespace) TasksStream() string { return ns.upper() + "_TASKS" }

// DeadLetterStream is the name of the stream of dead letters.
func (ns Namespace) DeadLetterStream() string { return ns.upper() + "_DLQ" }

// LedgerBucket is the key-value bucket of delegation records.
func (ns Namespace) LedgerBucket() string { return string(ns) + "-delegations" }

// CapsuleBucket is the object store of modules.
func (ns Namespace) CapsuleBucket() string { return string(ns) + "-capsules" }

// CapsuleIndexBucket is the key-value bucket from name and version to digest
// and manifest.
func (ns Namespace) CapsuleIndexBucket() string { return string(ns) + "-capsule-index" }

// ResultBucket is the object store of large results.
func (ns Namespace) ResultBucket() string { return string(ns) + "-results" }

// WorkerBucket is the key-value bucket of live workers.
func (ns Namespace) WorkerBucket() string { return string(ns) + "-workers" }

// JobSubject is where one job waits.
func (ns Namespace) JobSubject(pool string, lane Lane, task TaskID) string {
	return fmt.Sprintf("%s.jobs.%s.%s.%s", ns, pool, lane, task)
}

// PoolJobs is the subject filter of all jobs of a pool, as the stream has it.
func (ns Namespace) PoolJobs(pool string) string { return fmt.Sprintf("%s.jobs.%s.*.*", ns, pool) }

// LaneJobs is the subject filter of one lane's consumer.
func (ns Namespace) LaneJobs(pool string, lane Lane) string {
	return fmt.Sprintf("%s.jobs.%s.%s.*", ns, pool, lane)
}

// LaneConsumer is the name of the durable consumer of one lane of a pool.
func LaneConsumer(pool string, lane Lane) string { return pool + "-" + string(lane) }

// JobPlace is what a job's subject says.
type JobPlace struct {
	Pool string
	Lane Lane
	Task TaskID
}

// ParseJobSubject reads a job's subject; the error is [ErrName].
func (ns Namespace) ParseJobSubject(subject string) (JobPlace, error) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 5 || tokens[0] != string(ns) || tokens[1] != "jobs" {
		return JobPlace{}, fmt.Errorf("%w: subject %q is not %s.jobs.<pool>.<lane>.<task_id>", ErrName, clip(subject, 200), ns)
	}
	p := JobPlace{Pool: tokens[2], Lane: Lane(tokens[3]), Task: TaskID(tokens[4])}
	if err := ValidateName("pool", p.Pool); err != nil {
		return JobPlace{}, err
	}
	if err := p.Lane.Validate(); err != nil {
		return JobPlace{}, err
	}
	if err := ValidateName("task_id", string(p.Task)); err != nil {
		return JobPlace{}, err
	}
	return p, nil
}

// TaskSubject is where the frames of a task are.
func (ns Namespace) TaskSubject(task TaskID) string { return fmt.Sprintf("%s.tasks.%s", ns, task) }

// DelegationSubject is where the bus mirrors a delegation's record.
func (ns Namespace) DelegationSubject(session SessionID, delegation DelegationID) string {
	return fmt.Sprintf("%s.delegations.%s.%s", ns, session, delegation)
}

// LedgerKey is the key of a delegation's record.
func LedgerKey(session SessionID, delegation DelegationID) string {
	return string(session) + "." + string(delegation)
}

// CapsuleKey is the index key of a capsule: its name and its version with
// "_", "." and "+" escaped.
func CapsuleKey(name, version string) string {
	return name + "." + strings.NewReplacer("_", "_5F", ".", "_2E", "+", "_2B").Replace(version)
}

// ResultObjectName is the name of a large result: one per attempt.
func ResultObjectName(delegation DelegationID, session SessionID) string {
	return fmt.Sprintf("%s/%s.txt", delegation, session)
}

// WorkerSubject is where a worker answers a verb ("drain", "stats").
func (ns Namespace) WorkerSubject(worker WorkerID, verb string) string {
	return fmt.Sprintf("%s.workers.%s.%s", ns, worker, verb)
}

// PoolSubject is where the workers that take from a pool answer.
func (ns Namespace) PoolSubject(pool string) string { return fmt.Sprintf("%s.pools.%s", ns, pool) }

// CancelSubject is where the worker of a running delegation takes its cancel.
func (ns Namespace) CancelSubject(session SessionID, delegation DelegationID) string {
	return fmt.Sprintf("%s.cancel.%s.%s", ns, session, delegation)
}

// DeadLetterSubject is where a job that cannot run ends.
func (ns Namespace) DeadLetterSubject(pool string, task TaskID) string {
	return fmt.Sprintf("%s.dlq.%s.%s", ns, pool, task)
}

// Headers of jobs, frames and dead letters.
const (
	HeaderLedgerRevision = "Starling-Ledger-Revision"
	HeaderFrame          = "Starling-Frame"
	HeaderAttempt        = "Starling-Attempt"
	HeaderSeq            = "Starling-Seq"
	HeaderSession        = "Starling-Session"
	HeaderA2AVersion     = "A2A-Version"
	HeaderReason         = "Starling-Reason"
	HeaderDetail         = "Starling-Detail"
	HeaderTraceparent    = "traceparent"
	A2AVersion           = "1.0"
)

// DeadLetterReason says why a job became a dead letter.
//
// Source: docs/protocol.md, section 10.
type DeadLetterReason string

// The reasons.
const (
	DeadUnreadable    DeadLetterReason = "unreadable"
	DeadMismatch      DeadLetterReason = "mismatch"
	DeadNoRecord      DeadLetterReason = "no-record"
	DeadAttemptsSpent DeadLetterReason = "attempts-spent"
)
