package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// Ids are a prefix and a version 7 UUID in 32 lower-case hex digits, so they
// sort by the time they were minted. Each kind is a type of its own so that two
// cannot be swapped.
//
// Source: docs/protocol.md, section 1.
type (
	DelegationID string // dlg_…
	TaskID       string // tsk_…
	ContextID    string // ctx_…
	SessionID    string // ses_…, one per attempt; a parent has one too
	WorkerID     string // wrk_…
	MessageID    string // msg_…
	RequestID    string // req_…, of JSON-RPC
)

// NewDelegationID mints an id for a delegation.
func NewDelegationID() DelegationID { return DelegationID(mint("dlg_")) }

// NewTaskID mints an id for a task.
func NewTaskID() TaskID { return TaskID(mint("tsk_")) }

// NewContextID mints an id for a context.
func NewContextID() ContextID { return ContextID(mint("ctx_")) }

// NewSessionID mints an id for a session.
func NewSessionID() SessionID { return SessionID(mint("ses_")) }

// NewWorkerID mints an id for a worker.
func NewWorkerID() WorkerID { return WorkerID(mint("wrk_")) }

// NewRunID mints what tells one run of a worker from another of the same id.
func NewRunID() string { return mint("run_") }

// NewMessageID mints an id for a message.
func NewMessageID() MessageID { return MessageID(mint("msg_")) }

// NewRequestID mints an id for a JSON-RPC request.
func NewRequestID() RequestID { return RequestID(mint("req_")) }

func mint(prefix string) string {
	// NewV7 fails only when the system has no randomness, which Go makes fatal.
	id := uuid.Must(uuid.NewV7())
	return prefix + hex.EncodeToString(id[:])
}

// NewTempName is the middle of a temporary file's name: a version 7 UUID in hex.
func NewTempName() string { return mint("") }

// CompletionMessageID is the id of every post of one delegation, whichever
// worker makes it: "msg_" and what follows "dlg_".
func CompletionMessageID(id DelegationID) MessageID {
	return MessageID("msg_" + strings.TrimPrefix(string(id), "dlg_"))
}

// ErrName says that an id or a name cannot be part of a subject or a key.
var ErrName = errors.New("bad name")

// What names are spelled with.
const (
	lowerHex     = "0123456789abcdef"
	lowerLetters = "abcdefghijklmnopqrstuvwxyz"
	letters      = lowerLetters + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits       = "0123456789"
)

// spelled reports whether s has least to most bytes, all of a set of ASCII
// characters. Names are looked at for every frame, and by every process that
// starts: a pattern that counts takes a millisecond to compile.
func spelled(s string, least, most int, set string) bool {
	return least <= len(s) && len(s) <= most && strings.Trim(s, set) == ""
}

// ValidateName checks an id or a name that becomes part of a subject or a key.
// field is how the error calls it.
func ValidateName(field, value string) error {
	if spelled(value, 1, 64, letters+digits+"_-") {
		return nil
	}
	return fmt.Errorf("%w: %s is %q: it is 1 to 64 of A-Z a-z 0-9 _ -", ErrName, field, clip(value, 80))
}

// ValidateVersion checks a capsule's version, which may also hold "." and "+".
func ValidateVersion(field, value string) error {
	if spelled(value, 1, 64, letters+digits+"_-.+") {
		return nil
	}
	return fmt.Errorf("%w: %s is %q: it is 1 to 64 of A-Z a-z 0-9 _ - . +", ErrName, field, clip(value, 80))
}

// ValidateDelegationID checks the form of a delegation id.
func ValidateDelegationID(field string, id DelegationID) error {
	if err := ValidateName(field, string(id)); err != nil {
		return err
	}
	if hex, ok := strings.CutPrefix(string(id), "dlg_"); !ok || !spelled(hex, 1, 60, lowerHex) {
		return fmt.Errorf("%w: %s is %q: it is dlg_ and lower-case hex digits", ErrName, field, clip(string(id), 80))
	}
	return nil
}

// Digest names a module by its content: "sha256:" and 64 lower-case hex digits.
type Digest string

// DigestOf is the digest of b.
func DigestOf(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// Validate checks the form.
func (d Digest) Validate() error {
	if hex, ok := strings.CutPrefix(string(d), "sha256:"); ok && spelled(hex, 64, 64, lowerHex) {
		return nil
	}
	return fmt.Errorf("%w: digest is %q: it is sha256: and 64 lower-case hex digits", ErrName, clip(string(d), 80))
}

// Hex is the digest without its algorithm.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Object is the digest's name in the object store: "sha256-<hex>".
func (d Digest) Object() string { return "sha256-" + d.Hex() }
