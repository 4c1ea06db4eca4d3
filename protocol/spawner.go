package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// SpawnerEnv is the environment variable that carries a spawner handle.
const SpawnerEnv = "MURMUR_SPAWNER"

// Spawner is the handle of the parent that spawned a capsule. Without URL and
// Trust it is lineage only: the child knows its parent and nothing is posted.
// URL is the parent's door, possibly with a secret in it: it never goes into a
// log, a frame or an error.
//
// Source: docs/protocol.md, section 4.
type Spawner struct {
	SessionID    SessionID    `json:"session_id"`
	ContextID    ContextID    `json:"context_id"`
	DelegationID DelegationID `json:"delegation_id,omitempty"`
	URL          string       `json:"url,omitempty"`
	Trust        Trust        `json:"trust,omitempty"`
}

// HasAddress reports whether the parent wants to be told.
func (s Spawner) HasAddress() bool { return s.URL != "" }

// Lineage is the handle without its door.
func (s Spawner) Lineage() Spawner {
	return Spawner{SessionID: s.SessionID, ContextID: s.ContextID, DelegationID: s.DelegationID}
}

// String is the handle as compact JSON.
func (s Spawner) String() string {
	b, err := json.Marshal(s)
	if err != nil {
		return "" // strings always marshal
	}
	return string(b)
}

// ErrSpawner says that a handle cannot be read; the text after it is one of the
// reasons of section 4.
var ErrSpawner = errors.New("unreadable spawner handle")

// SpawnerEnvError refuses a launch whose MURMUR_SPAWNER cannot be read.
type SpawnerEnvError struct{ Reason string }

func (e *SpawnerEnvError) Error() string {
	return SpawnerEnv + " does not carry a readable spawner handle: " + e.Reason +
		"; a delegated child must be able to tell its spawner that it finished, so the launch is refused rather than run unreportable"
}

// Is makes the error an [ErrSpawner].
func (e *SpawnerEnvError) Is(target error) bool { return target == ErrSpawner }

// ParseSpawnerEnv reads the value of MURMUR_SPAWNER. An absent or blank one is
// no parent: nil and no error. What cannot be read is a [SpawnerEnvError].
func ParseSpawnerEnv(value string) (*Spawner, error) {
	value = strings.TrimSpace(value)
	if value == "" {
		return nil, nil
	}
	s, reason := readSpawner([]byte(value))
	if reason != "" {
		return nil, &SpawnerEnvError{Reason: reason}
	}
	return &s, nil
}

// ParseSpawner reads a handle, without the rule that blank means none. The
// error is [ErrSpawner] and the reason.
func ParseSpawner(data []byte) (Spawner, error) {
	s, reason := readSpawner(data)
	if reason != "" {
		return Spawner{}, fmt.Errorf("%w: %s", ErrSpawner, reason)
	}
	return s, nil
}

// readSpawner checks in the order of section 4's table. It reads into a map,
// for struct decoding folds case and cannot tell null from absent.
func readSpawner(data []byte) (s Spawner, reason string) {
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		return s, "it is not JSON: " + err.Error()
	}
	members, _ := document.(map[string]any)
	text := func(name string) string { v, _ := members[name].(string); return v }
	_, hasURL := members["url"]
	_, hasTrust := members["trust"]
	switch {
	case hasURL && !hasTrust:
		return s, "it carries a 'url' with no 'trust'; a completion address is both or neither"
	case hasTrust && !hasURL:
		return s, "it carries a 'trust' with no 'url'; a completion address is both or neither"
	case hasTrust && text("trust") == "":
		return s, "it carries no 'trust'"
	case hasTrust && !Trust(text("trust")).known():
		return s, "'" + clip(text("trust"), 64) + "' is not a trust class"
	case hasURL && text("url") == "":
		return s, "it carries no 'url'"
	}
	for _, name := range []string{"session_id", "context_id", "delegation_id"} {
		if text(name) == "" {
			return s, "it carries no '" + name + "'"
		}
	}
	return Spawner{
		SessionID: SessionID(text("session_id")), ContextID: ContextID(text("context_id")),
		DelegationID: DelegationID(text("delegation_id")), URL: text("url"), Trust: Trust(text("trust")),
	}, ""
}
