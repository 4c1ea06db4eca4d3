package guest

import (
	"io"
	"os"
	"strconv"
)

// Task is the task's text: all of stdin, or, where that is empty, the file
// task.md in the work directory. It reads stdin to its end, so it is called once.
func Task() (string, error) {
	text, err := io.ReadAll(os.Stdin)
	if err == nil && len(text) > 0 {
		return string(text), nil
	}
	if file, missing := os.ReadFile("/task.md"); missing == nil {
		return string(file), nil
	}
	return string(text), err
}

// WriteResult writes out/result.txt, which is the result of a capsule whatever
// it printed.
func WriteResult(text string) error {
	if err := os.MkdirAll("/out", 0o755); err != nil {
		return err
	}
	return os.WriteFile("/out/result.txt", []byte(text), 0o644)
}

// Session says in which task a capsule runs. What the host did not set is empty.
type Session struct {
	ID             string // of this attempt
	CapsuleName    string
	CapsuleVersion string
	DelegationID   string
	TaskID         string
	ContextID      string
	MessageID      string
	Attempt        int // from 1; 0 when unknown
	// Spawner is the parent's lineage as JSON; empty when there is no parent.
	Spawner string
}

// CurrentSession reads the runtime's environment variables.
func CurrentSession() Session {
	attempt, err := strconv.Atoi(os.Getenv("STARLING_ATTEMPT"))
	if err != nil {
		attempt = 0
	}
	return Session{
		ID:             os.Getenv("MURMUR_SESSION_ID"),
		CapsuleName:    os.Getenv("MURMUR_CAPSULE_NAME"),
		CapsuleVersion: os.Getenv("MURMUR_CAPSULE_VERSION"),
		DelegationID:   os.Getenv("STARLING_DELEGATION_ID"),
		TaskID:         os.Getenv("STARLING_TASK_ID"),
		ContextID:      os.Getenv("STARLING_CONTEXT_ID"),
		MessageID:      os.Getenv("STARLING_MESSAGE_ID"),
		Attempt:        attempt,
		Spawner:        os.Getenv("MURMUR_SPAWNER"),
	}
}
