package protocol_test

import (
	"strings"
	"testing"

	"starling/protocol"
)

func TestStderrReason(t *testing.T) {
	t.Parallel()
	const frame = "\tp/main.go:13 +0x4"
	for name, c := range map[string]struct {
		stderr string
		want   string
	}{
		"nothing":                      {"", ""},
		"one line":                     {"panic: alone", "panic: alone"},
		"the last line":                {"reading\nno such file", "no such file"},
		"a Go panic":                   {"reading\npanic: boom\ngoroutine 1 [running]:\nmain.main()\n" + frame, "panic: boom"},
		"a Go panic over a panic":      {"panic: one\n\tpanic: two\ngoroutine 1 [running]:\nmain.main()\n" + frame, "panic: one"},
		"a fatal error of Go":          {"fatal error: all goroutines are asleep - deadlock!\ngoroutine 1 [select (no cases)]:\n" + frame, "fatal error: all goroutines are asleep - deadlock!"},
		"a panic that it went on from": {"panic: first\n" + frame + "\nthe disk is full", "the disk is full"},
		"a stack without a panic":      {"goroutine 1 [running]:\n" + frame, frame},
		"words of a panic":             {"it may panic: so it did\n" + frame, frame},
		"Rust": {
			"thread 'main' panicked at src/main.rs:2:5:\nboom\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
			"thread 'main' panicked at src/main.rs:2:5: boom",
		},
		"Rust with a thread's number": {
			"thread 'main' (1) panicked at src/main.rs:2:5:\nboom\nmore\nnote: run with `RUST_BACKTRACE=1`",
			"thread 'main' (1) panicked at src/main.rs:2:5: boom",
		},
		"Rust before 1.73": {
			"thread 'main' panicked at 'boom', src/main.rs:2:5\nnote: run with `RUST_BACKTRACE=1`", "thread 'main' panicked at 'boom', src/main.rs:2:5",
		},
		"Rust that went on": {"thread 'w' panicked at src/main.rs:2:5:\nboom\nthe worker failed", "the worker failed"},
		"a note alone":      {"note: nothing to do", "note: nothing to do"},
	} {
		var lines []string
		if c.stderr != "" {
			lines = strings.Split(c.stderr, "\n")
		}
		if got := protocol.StderrReason(lines); got != c.want {
			t.Errorf("%s: StderrReason = %q, want %q", name, got, c.want)
		}
	}
}
