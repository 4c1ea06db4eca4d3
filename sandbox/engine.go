// Package sandbox runs capsules: it compiles a module, grants it exactly what a
// [Spec] says, bounds it, turns what it says into driver events, and reports
// how it ended. It knows nothing of the bus or of where a module came from.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"starling/protocol"
)

// ErrClosed says that the engine was closed before or while a guest ran.
var ErrClosed = errors.New("sandbox engine is closed")

// ErrRefused says that a module or a run was refused before it started. The
// error's text names the thing and the fix.
var ErrRefused = errors.New("refused")

// Config is how an [Engine] runs.
type Config struct {
	// CacheDir keeps compiled modules across processes. It is made with mode
	// 0700 and must belong to this user alone, for what is in it runs as native
	// code. Several processes may share it. Empty means no disk cache.
	CacheDir string
	// MaxModules bounds the compiled modules that are kept in memory; 0 is 64.
	MaxModules int
	// MaxModuleBytes bounds the size of a wasm file; 0 is 64 MiB.
	MaxModuleBytes int64
	// Tick is how often a running guest is asked whether it must stop; 0 is 5 ms.
	Tick time.Duration
	// Logger is given what an operator should know; nil discards it.
	Logger *slog.Logger
}

// Validate reports all members that make no sense.
func (c Config) Validate() error {
	var problems []error
	if c.MaxModules < 0 {
		problems = append(problems, fmt.Errorf("MaxModules is %d: it is at least 1, or 0 for the default", c.MaxModules))
	}
	if c.MaxModuleBytes < 0 {
		problems = append(problems, fmt.Errorf("MaxModuleBytes is %d: it is at least 1, or 0 for the default", c.MaxModuleBytes))
	}
	if c.Tick < 0 || c.Tick > time.Second {
		problems = append(problems, fmt.Errorf("Tick is %s: it is at most 1s, or 0 for the default", c.Tick))
	}
	return errors.Join(problems...)
}

// Engine compiles and runs guests. Its methods are safe for concurrent use.
// [Engine.Close] frees it.
type Engine struct{}

// New makes an engine and starts its one goroutine, the epoch ticker, which
// [Engine.Close] stops and waits for.
func New(cfg Config) (*Engine, error) {
	return nil, errors.New("sandbox: not built yet")
}

// Close interrupts the guests that still run, waits for them, for compilations
// under way and for the ticker, and frees the engine. It is idempotent.
func (e *Engine) Close() error { return nil }

// Prepare makes a module ready for [Engine.Run]: from memory, from the disk
// cache, or by compiling the file, which takes seconds for a large one. Callers
// that ask for one digest at the same time share one compilation. A compilation
// cannot be interrupted: when ctx ends Prepare returns its cause and the work
// goes on for the next caller. A module that cannot run is [ErrRefused].
func (e *Engine) Prepare(ctx context.Context, module string, digest protocol.Digest) error {
	return errors.New("sandbox: not built yet")
}

// Run runs one guest and blocks until it is gone. It prepares the module when
// that was not done; the deadline begins after that.
//
// emit is given every driver event, in order and never concurrently, while Run
// runs. It may block: the guest then waits, and so does Run, even past the
// deadline or the end of ctx; whoever gives an emit that blocks must see to it
// that it ends. When ctx ends the guest is interrupted within a few ticks.
func (e *Engine) Run(ctx context.Context, spec Spec, emit func(protocol.Event)) Ending {
	return Ending{Kind: Refused, Message: "sandbox: not built yet"}
}
