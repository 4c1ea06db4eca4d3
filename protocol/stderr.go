package protocol

import "strings"

// StderrReason is, of the last lines of a guest's stderr, the one that says why it
// ended: of a Go program that panicked the line "panic: …" or "fatal error: …" before
// its stack, of a Rust one the line "… panicked at …" with the message below it, else
// the last line. It is "" without lines.
//
// Source: docs/protocol.md, section 5, Output.
func StderrReason(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	last := len(lines) - 1
	for i := last - 1; i >= 0; i-- {
		if n := PanicLines(lines[i], lines[last]); n > 0 {
			return strings.Join(lines[i:min(i+n, len(lines))], " ")
		}
	}
	return lines[last]
}

// MayPanic reports whether a line of stderr may be that of a panic: [PanicLines] says
// so once the last line is known.
func MayPanic(line string) bool { return goPanic(line) || rustPanic(line) }

// PanicLines is how many lines, from this one on, say why a program panicked whose
// stderr ends with last; 0 when that is not how a panic ends.
func PanicLines(line, last string) int {
	switch {
	case goPanic(line) && strings.HasPrefix(last, "\t") && strings.Contains(last, ".go:"): // a frame of the stack
		return 1
	case !rustPanic(line) || !strings.HasPrefix(last, "note: "): // of how to see the stack, or of what it leaves out
		return 0
	case strings.HasSuffix(line, ":"): // a place, and the message below it
		return 2
	}
	return 1
}

func goPanic(line string) bool {
	return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
}

func rustPanic(line string) bool {
	return strings.HasPrefix(line, "thread '") && strings.Contains(line, " panicked at ")
}
