package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// CompletionFile is the name of the outcome's file in the work directory.
const CompletionFile = "completion.json"

// MaxDetailBytes bounds detail, delivery_error and the message of an ending; a
// longer text is cut and marked.
const MaxDetailBytes = 2000

const cutMark = " […]"

// Reporter says who wrote an outcome.
type Reporter string

// The reporters.
const (
	ReportedByChild    Reporter = "child"    // the session ended and said so
	ReportedByLauncher Reporter = "launcher" // the runtime says it for a child that could not
)

// ResultObject names a result in the object store.
type ResultObject struct {
	Bucket string `json:"bucket"`
	Name   string `json:"name"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Outcome is what became of a delegation. It carries no output.
//
// Source: docs/protocol.md, section 8; the members stand in its order.
type Outcome struct {
	DelegationID   DelegationID  `json:"delegation_id"`
	CapsuleName    string        `json:"capsule_name"`
	CapsuleVersion string        `json:"capsule_version"`
	SessionID      SessionID     `json:"session_id"` // the child's; empty when no attempt began
	Status         Status        `json:"status"`
	ResultPath     string        `json:"result_path,omitempty"` // relative to Workdir
	Workdir        string        `json:"workdir"`               // absolute; empty when no attempt began
	DurationMS     int64         `json:"duration_ms"`           // of the attempt
	Detail         string        `json:"detail,omitempty"`      // crashed and terminated only
	ReportedBy     Reporter      `json:"reported_by"`
	Delivered      bool          `json:"delivered"`
	DeliveryError  string        `json:"delivery_error,omitempty"`
	WorkerID       WorkerID      `json:"worker_id,omitempty"`
	ResultObject   *ResultObject `json:"result_object,omitempty"`
}

// ErrOutcome says that an outcome cannot be read.
var ErrOutcome = errors.New("bad outcome")

// ParseOutcome reads an outcome, from a file or a record.
func ParseOutcome(data []byte) (Outcome, error) {
	var o Outcome
	if err := unmarshalExact(data, &o); err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", ErrOutcome, err)
	}
	if err := ValidateDelegationID("delegation_id", o.DelegationID); err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", ErrOutcome, err)
	}
	if !o.Status.Final() {
		return Outcome{}, fmt.Errorf("%w: status is %q: it is ok, error, crashed or terminated", ErrOutcome, clip(string(o.Status), 32))
	}
	return o, nil
}

// File is the content of completion.json: indented by two spaces, without HTML
// escapes, and a newline.
func (o Outcome) File() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(o); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOutcome, err)
	}
	return b.Bytes(), nil
}

// Text is the completion as a parent reads it.
//
// Source: docs/protocol.md, section 9.
func (o Outcome) Text() string {
	lines := []string{
		"Delegated capsule finished.",
		"delegation_id: " + string(o.DelegationID),
		"capsule: " + o.CapsuleName + "@" + o.CapsuleVersion,
		"session_id: " + string(o.SessionID),
		"status: " + string(o.Status),
		"duration_ms: " + strconv.FormatInt(o.DurationMS, 10),
		"workdir: " + o.Workdir,
	}
	if o.ResultPath != "" {
		lines = append(lines, "result: "+o.ResultPath+" (in that workdir)")
	} else {
		lines = append(lines, "result: none (the child wrote no result file)")
	}
	if o.Detail != "" {
		lines = append(lines, "detail: "+o.Detail)
	}
	lines = append(lines, "", "The child's own output is in that file and is not reproduced here.")
	return strings.Join(lines, "\n")
}

// ParentEnded reports whether the parent ended the delegation itself, so that
// it is not told.
func (o Outcome) ParentEnded() bool {
	return o.Status == StatusTerminated && o.Detail == ParentEndedDetail
}

func (o Outcome) equal(other Outcome) bool { return reflect.DeepEqual(o, other) }

// Bound cuts a text over [MaxDetailBytes] at the last character boundary at or
// before it and marks the cut. Bytes that are no UTF-8 become U+FFFD first.
func Bound(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= MaxDetailBytes {
		return text
	}
	return clip(text, MaxDetailBytes) + cutMark
}

// ResultPaths are where a capsule may have written its result, relative to the
// work directory; the first that is a regular file counts.
func ResultPaths(session SessionID, task TaskID) []string {
	own := path.Join(".murmur", string(session), "out")
	return []string{
		path.Join(own, "result_"+string(task)+".txt"), path.Join(own, "result.txt"),
		"out/result_" + string(task) + ".txt", DefaultResultPath,
	}
}

// DefaultResultPath is where the runtime writes the result of a capsule that
// wrote none.
const DefaultResultPath = "out/result.txt"

// MaxStderrTailLines is how many of the last lines of stderr a crash quotes.
const MaxStderrTailLines = 20

// The details of section 8's table.

// CrashDetail is the detail of a guest that trapped, or whose process died.
// cause is the trap, the signal or the exit status; stderr the last lines.
func CrashDetail(cause string, stderr []string) string {
	detail := "the capsule ended without recording a completion (" + cause + ")"
	if len(stderr) > MaxStderrTailLines {
		stderr = stderr[len(stderr)-MaxStderrTailLines:]
	}
	if len(stderr) > 0 {
		detail += "; its last stderr lines were:\n" + strings.Join(stderr, "\n")
	}
	return Bound(detail)
}

// RefusedDetail is the detail of a capsule that was refused before it started.
func RefusedDetail(why string) string { return Bound("the capsule did not start: " + why) }

// LostDetail is the detail of a delegation whose worker was lost with no
// attempt left.
func LostDetail(worker WorkerID, attempt int) string {
	return fmt.Sprintf("worker %s was lost while running attempt %d", worker, attempt)
}

// DeadlineDetail is the detail of a capsule that was ended at the delegation
// deadline, in whole seconds.
func DeadlineDetail(seconds int64) string {
	return fmt.Sprintf("the capsule was still running after %ds and was ended at the delegation deadline", seconds)
}

// The details that carry nothing.
const (
	DeadlineBeforeStartDetail = "the delegation deadline passed before the capsule was started"
	ParentEndedDetail         = "the parent ended this delegation"
)

// The messages of section 7's endings.
const (
	MessageSessionEnded         = "session ended"
	MessageCanceled             = "task canceled"
	MessageCanceledKilled       = "task canceled; the harness was killed and its session may not resume cleanly"
	MessageCanceledBeforeStart  = "task canceled before it started"
	messageSpendCeilingTemplate = "spend ceiling reached: inference.max_session_tokens is %d and this session has used %d; the operator set this limit; retrying will not get past it."
)

// SpendMessage is the message of an attempt that hit its spend ceiling.
func SpendMessage(ceiling, used int64) string {
	return fmt.Sprintf(messageSpendCeilingTemplate, ceiling, used)
}

// RunDeadlineMessage is the message of an attempt whose guest ran past its own
// deadline, in seconds.
//
// Source: docs/protocol.md, section 5.
func RunDeadlineMessage(seconds int64) string {
	return fmt.Sprintf("capsule execution exceeded its %ds deadline and was interrupted; raise capabilities.limits.deadline_seconds"+
		" in murmur.yaml if the capsule legitimately needs longer", seconds)
}

// MaxTurnsMessage is the message of an attempt that used up its turns.
func MaxTurnsMessage(turns int64) string {
	return fmt.Sprintf("max_turns exceeded: the task used all %d inference turns", turns)
}

// ExitMessage is the message of a guest that exited with a status.
func ExitMessage(status int, lastStderrLine string) string {
	message := fmt.Sprintf("exit status %d", status)
	if lastStderrLine != "" {
		message += ": " + lastStderrLine
	}
	return message
}

// validUTF8 is used where JSON would replace silently.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
