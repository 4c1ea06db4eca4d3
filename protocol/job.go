package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// The bounds of a job.
const (
	MaxJobBytes        = 256 << 10 // of the body
	MaxHandleBytes     = 2048      // of each string of the spawner handle
	DefaultMaxAttempts = 3
)

// ErrJob says that a job's body is unreadable or says something that section 3
// does not allow.
var ErrJob = errors.New("bad job")

// ErrJobTooLarge says that a job's body is over [MaxJobBytes].
var ErrJobTooLarge = errors.New("job too large")

// CapsuleRef names a capsule; without a digest the dispatcher resolves it.
type CapsuleRef struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Digest  Digest `json:"digest,omitempty"`
}

// String is name@version.
func (c CapsuleRef) String() string { return c.Name + "@" + c.Version }

// ParseCapsuleRef reads name@version.
func ParseCapsuleRef(s string) (CapsuleRef, error) {
	name, version, ok := strings.Cut(s, "@")
	if !ok {
		return CapsuleRef{}, fmt.Errorf("%w: capsule is %q: it is NAME@VERSION", ErrName, clip(s, 140))
	}
	c := CapsuleRef{Name: name, Version: version}
	return c, c.Validate()
}

// Validate checks all three members.
func (c CapsuleRef) Validate() error {
	err := errors.Join(ValidateName("capsule.name", c.Name), ValidateVersion("capsule.version", c.Version))
	if c.Digest != "" {
		err = errors.Join(err, c.Digest.Validate())
	}
	return err
}

// Job is one delegation as it is dispatched.
//
// Source: docs/protocol.md, section 3.
type Job struct {
	DelegationID DelegationID
	TaskID       TaskID
	Capsule      CapsuleRef
	Message      *a2a.Message
	Spawner      Spawner
	Origin       Origin
	Pool         string
	MaxAttempts  int
	Deadline     Time // zero: none
	Env          map[string]string
	Capabilities *JobCapabilities // nil: as the manifest has them
}

// jobBody is a job on the wire. Message and spawner have readers of their own.
type jobBody struct {
	DelegationID DelegationID      `json:"delegation_id"`
	TaskID       TaskID            `json:"task_id"`
	Capsule      CapsuleRef        `json:"capsule"`
	Message      json.RawMessage   `json:"message"`
	Spawner      json.RawMessage   `json:"spawner"`
	Origin       Origin            `json:"origin"`
	Pool         string            `json:"pool,omitempty"`
	MaxAttempts  *int              `json:"max_attempts,omitempty"`
	Deadline     *Time             `json:"deadline,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	Capabilities json.RawMessage   `json:"capabilities,omitempty"`
}

// ParseJob reads a job's body, fills in the defaults and validates it. Errors
// are [ErrJob], and [ErrJobTooLarge] as well where that is the cause.
func ParseJob(body []byte) (Job, error) {
	if len(body) > MaxJobBytes {
		return Job{}, fmt.Errorf("%w: %w: %d bytes, at most %d", ErrJob, ErrJobTooLarge, len(body), MaxJobBytes)
	}
	var b jobBody
	if err := unmarshalExact(body, &b); err != nil {
		return Job{}, fmt.Errorf("%w: %w", ErrJob, err)
	}
	message, err := ParseMessage(b.Message)
	if err != nil {
		return Job{}, fmt.Errorf("%w: %w", ErrJob, err)
	}
	spawner, err := ParseSpawner(b.Spawner)
	if err != nil {
		return Job{}, fmt.Errorf("%w: spawner: %w", ErrJob, err)
	}
	var capabilities *JobCapabilities
	if len(b.Capabilities) > 0 {
		if capabilities, err = ParseJobCapabilities(b.Capabilities); err != nil {
			return Job{}, err // an ErrJob
		}
	}
	j := Job{
		DelegationID: b.DelegationID, TaskID: b.TaskID, Capsule: b.Capsule, Message: message, Spawner: spawner,
		Origin: b.Origin, Pool: b.Pool, MaxAttempts: DefaultMaxAttempts, Env: b.Env,
		Capabilities: capabilities,
	}
	if b.Deadline != nil {
		j.Deadline = b.Deadline.set()
	}
	if b.MaxAttempts != nil {
		j.MaxAttempts = *b.MaxAttempts
	}
	if j.Pool == "" {
		j.Pool = DefaultPool
	}
	return j, j.Validate()
}

// Encode validates the job and writes its body. It is [ErrJobTooLarge] over
// [MaxJobBytes].
func (j Job) Encode() ([]byte, error) {
	if err := j.Validate(); err != nil {
		return nil, err
	}
	message, err := json.Marshal(j.Message)
	if err != nil {
		return nil, fmt.Errorf("%w: message: %w", ErrJob, err)
	}
	var capabilities json.RawMessage
	if j.Capabilities != nil {
		if capabilities, err = json.Marshal(j.Capabilities); err != nil {
			return nil, fmt.Errorf("%w: capabilities: %w", ErrJob, err)
		}
	}
	var deadline *Time
	if !j.Deadline.IsZero() {
		deadline = &j.Deadline
	}
	body, err := json.Marshal(jobBody{
		DelegationID: j.DelegationID, TaskID: j.TaskID, Capsule: j.Capsule, Message: message,
		Spawner: json.RawMessage(j.Spawner.String()), Origin: j.Origin, Pool: j.Pool,
		MaxAttempts: &j.MaxAttempts, Deadline: deadline, Env: j.Env,
		Capabilities: capabilities,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJob, err)
	}
	if len(body) > MaxJobBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d: pass a large input by reference", ErrJobTooLarge, len(body), MaxJobBytes)
	}
	return body, nil
}

// Validate checks every member and joins all problems; each is [ErrJob] and
// names its member.
func (j Job) Validate() error {
	problems := []error{
		ValidateDelegationID("delegation_id", j.DelegationID),
		ValidateName("task_id", string(j.TaskID)),
		j.Capsule.Validate(),
		ValidateName("spawner.session_id", string(j.Spawner.SessionID)),
		j.Origin.Validate(),
		ValidateName("pool", j.Pool),
	}
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if j.Message == nil || MessageText(j.Message) == "" {
		bad("message.parts has no text: a task is text")
	} else if j.Message.Role != a2a.MessageRoleUser {
		bad("message.role is %q: it is ROLE_USER", clip(string(j.Message.Role), 32))
	} else if err := ValidateName("message.contextId", j.Message.ContextID); err != nil {
		bad("%w", err)
	} else if err := ValidateName("message.messageId", j.Message.ID); err != nil {
		bad("%w", err)
	}
	if _, reason := readSpawner([]byte(j.Spawner.String())); reason != "" {
		bad("spawner: %s", reason)
	}
	if j.Spawner.DelegationID != j.DelegationID {
		bad("spawner.delegation_id is %q: it is this delegation's id", clip(string(j.Spawner.DelegationID), 80))
	}
	for name, value := range map[string]string{
		"session_id": string(j.Spawner.SessionID), "context_id": string(j.Spawner.ContextID), "url": j.Spawner.URL,
	} {
		if len(value) > MaxHandleBytes {
			bad("spawner.%s has %d bytes: at most %d", name, len(value), MaxHandleBytes)
		}
	}
	if j.MaxAttempts < 1 {
		bad("max_attempts is %d: it is at least 1", j.MaxAttempts)
	}
	for name, value := range j.Env {
		if !ValidEnvName(name) {
			bad("env has %q: it is no environment name", clip(name, 64))
		}
		if strings.ContainsRune(value, 0) || !utf8.ValidString(value) {
			bad("env.%s holds a NUL or bytes that are no UTF-8", clip(name, 64))
		}
	}
	problems = append(problems, j.Capabilities.Validate())
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("%w: %w", ErrJob, err)
	}
	return nil
}

// Lane is where the job waits: its origin decides.
func (j Job) Lane() Lane { return j.Origin.Lane() }

// Trust is the task's trust, derived from its origin and its sender.
func (j Job) Trust() Trust { return DeriveTrust(j.Origin, j.Spawner.Trust) }

// ContextID is the context of the task: that of its message.
func (j Job) ContextID() ContextID { return ContextID(j.Message.ContextID) }

// NewRecord is the record that the dispatcher creates for the job.
func (j Job) NewRecord(now time.Time) Record {
	return Record{
		DelegationID: j.DelegationID, TaskID: j.TaskID, ContextID: j.ContextID(), Capsule: j.Capsule,
		Pool: j.Pool, Lane: j.Lane(), Origin: j.Origin, Trust: j.Trust(),
		Spawner: Spawner{SessionID: j.Spawner.SessionID, ContextID: j.Spawner.ContextID},
		Status:  StatusSubmitted, SubmittedAt: NewTime(now),
	}
}
