package sandbox

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"starling/protocol"
)

// Spec is one run of one guest. The worker has decided everything in it: the
// sandbox grants exactly this and nothing else.
//
// Source: docs/protocol.md, section 5.
type Spec struct {
	// Module is the path of the wasm file on the host.
	Module string
	// Digest is the file's content. It is checked when the file is compiled; a
	// compiled module is found by it alone.
	Digest protocol.Digest
	// Args is argv; Args[0] is the capsule's name.
	Args []string
	// Env is the whole environment of the guest.
	Env map[string]string
	// WorkDir is the host directory that the guest sees as "/". Empty means no
	// file system at all.
	WorkDir string
	// Filesystem moves "/" to a subdirectory of WorkDir, which must exist, and
	// makes directories below it read-only.
	Filesystem protocol.Filesystem
	// Network is what the guest may call; nothing by default.
	Network Network
	// Limits bound the run. Every member must be set; see
	// [protocol.DefaultLimits]. WorkdirBytes is the caller's to enforce, with Room.
	Limits protocol.Limits
	// Room, if set, says how many bytes the guest may write to files before it is asked
	// again. It is asked after the write that passes Limits.WorkdirBytes, and then after
	// each that passes its last answer. A write counts in blocks of 4096 bytes, with one
	// more. The guest waits for the answer, so what it has on the disk does not change;
	// after an answer below 1 it waits until it is stopped. Room is called as emit is,
	// with a context that ends with the run's. A component's writes are not counted.
	Room func(ctx context.Context) int64
	// Output says how stdout is read. Empty is [protocol.OutputText].
	Output protocol.OutputMode
	// Stdin is what the guest reads on stdin before the end of the file.
	Stdin []byte
	// Stderr, if set, is given the first [protocol.MaxStderrBytes] of stderr as
	// the guest writes it. Its errors are ignored; while it blocks the guest waits.
	Stderr io.Writer
	// Canceled, if set, is closed when the guest should stop by itself: the host
	// import "canceled" then answers 1 and a sleep under way is cut short.
	Canceled <-chan struct{}
}

// validate reports what the engine would cut or drop in silence: argv and
// environment with NUL or bad UTF-8, and limits that are not set.
func (s *Spec) validate() error {
	if err := s.Digest.Validate(); err != nil {
		return err
	}
	if s.Output != "" && s.Output != protocol.OutputText && s.Output != protocol.OutputEvents {
		return fmt.Errorf("output mode %q is neither text nor events", s.Output)
	}
	for i, arg := range s.Args {
		if !cString(arg) {
			return fmt.Errorf("argument %d holds a NUL byte or is no UTF-8: pass it on stdin or in a file", i)
		}
	}
	for name, value := range s.Env {
		if name == "" || strings.Contains(name, "=") || !cString(name) {
			return fmt.Errorf("environment name %q cannot be passed to a guest: it is UTF-8 without NUL and '='", name)
		}
		if !cString(value) {
			return fmt.Errorf("environment variable %s holds a NUL byte or is no UTF-8", name)
		}
	}
	l := s.Limits
	if l.MemoryBytes < 1 || l.TableElements < 1 || l.Instances < 1 || l.DeadlineSeconds < 1 {
		return fmt.Errorf("limits %+v are not all set: zero is not unlimited", l)
	}
	return nil
}

func cString(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}
