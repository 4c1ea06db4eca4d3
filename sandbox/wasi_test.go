package sandbox_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// wasi is the text of a module that exits with the status that body leaves on
// the stack. Its memory has four pages.
func wasi(body string) string {
	return `(module
	  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
	  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "path_open"
	    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
	  (memory (export "memory") 4)
	  (data (i32.const 0) "\20\00\00\00\05\00\00\00\ff\ff\03\00\02\00\00\00\f0\ff\ff\ff\20\00\00\00")
	  (data (i32.const 32) "hello")
	  (data (i32.const 48) "file")
	  (func $ok (param i32) (if (local.get 0) (then (call $exit (local.get 0)))))
	  (func (export "_start") (local $n i64) (call $exit ` + body + `)))`
}

func TestWASI(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	// The memory of wasi holds at 0 a buffer "hello", at 8 one that ends past
	// the memory, at 16 one that wraps around.
	tests := []struct {
		name   string
		body   string
		status int
		stdout string
		stderr []string
	}{
		{"write to stdout", `(call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 64))`, 0, "hello", nil},
		{"write to stderr", `(call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 64))`, 0, "", []string{"hello"}},
		{"bytes written", `(block (result i32) (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 64))) (i32.load (i32.const 64)))`, 5, "hello", nil},
		{"write of nothing", `(call $write (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 64))`, 0, "", nil},
		{"write past the memory", `(call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 64))`, 21, "", nil},
		{"write around the memory", `(call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 64))`, 21, "", nil},
		{"write of too many buffers", `(call $write (i32.const 1) (i32.const 0) (i32.const 0x20000000) (i32.const 64))`, 21, "", nil},
		{"result past the memory", `(call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0x3fffd))`, 21, "", nil},
		{"write to no file", `(call $write (i32.const 9) (i32.const 0) (i32.const 1) (i32.const 64))`, 8, "", nil},
		{"write to a closed stdout", `(block (result i32) (call $ok (call $close (i32.const 1))) (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 64)))`, 8, "", nil},
		{"close no file", `(call $close (i32.const 9))`, 8, "", nil},
		{"stderr moved to stdout", `(block (result i32) (call $ok (call $renumber (i32.const 2) (i32.const 1))) (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 64)))`, 0, "", []string{"hello"}},
		{"stderr is gone where it was", `(block (result i32) (call $ok (call $renumber (i32.const 2) (i32.const 1))) (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 64)))`, 8, "", nil},
		{
			"a file moved to stdout",
			`(block (result i32)
			  (call $ok (call $open (i32.const 3) (i32.const 0) (i32.const 48) (i32.const 4) (i32.const 1) (i64.const 64) (i64.const 64) (i32.const 0) (i32.const 128)))
			  (call $ok (call $renumber (i32.load (i32.const 128)) (i32.const 1)))
			  (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 64)))`,
			0, "", nil,
		},
		{"random bytes", `(call $random (i32.const 1024) (i32.const 1024))`, 0, "", nil},
		{"random bytes past the memory", `(call $random (i32.const 1024) (i32.const -1))`, 21, "", nil},
		{"yield", `(call $yield)`, 0, "", nil},
		{"wall clock", `(block (result i32) (call $ok (call $clock (i32.const 0) (i64.const 0) (i32.const 64))) (i64.lt_u (i64.load (i32.const 64)) (i64.const 1700000000000000000)))`, 0, "", nil},
		{"monotonic clock never goes back", `(block (result i32)
		  (call $ok (call $clock (i32.const 1) (i64.const 0) (i32.const 64)))
		  (call $ok (call $clock (i32.const 1) (i64.const 0) (i32.const 72)))
		  (i64.gt_u (i64.load (i32.const 64)) (i64.load (i32.const 72))))`, 0, "", nil},
		{"no such clock", `(call $clock (i32.const 2) (i64.const 0) (i32.const 64))`, 28, "", nil},
		{"time past the memory", `(call $clock (i32.const 1) (i64.const 0) (i32.const 0x3fffc))`, 21, "", nil},
		{"wait for nothing", `(call $poll (i32.const 256) (i32.const 512) (i32.const 0) (i32.const 64))`, 28, "", nil},
		{"wait for too much", `(call $poll (i32.const 256) (i32.const 512) (i32.const 4097) (i32.const 64))`, 28, "", nil},
		{"wait past the memory", `(call $poll (i32.const 0x3fff0) (i32.const 512) (i32.const 1) (i32.const 64))`, 21, "", nil},
		{"events past the memory", `(call $poll (i32.const 256) (i32.const 0x3fff0) (i32.const 1) (i32.const 64))`, 21, "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, wat(t, wasi(tt.body)))
			s.WorkDir = t.TempDir()
			got, _ := run(t, e, s)
			want := sandbox.Ending{Kind: sandbox.Exited, Status: tt.status, Stdout: tt.stdout, StderrTail: tt.stderr}
			got.Duration = 0
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Run (-want +got):\n%s", diff)
			}
			if tt.name == "a file moved to stdout" {
				if text, err := os.ReadFile(filepath.Join(s.WorkDir, "file")); string(text) != "hello" {
					t.Errorf("file = %q, %v, want hello", text, err)
				}
			}
		})
	}
}

// TestPoll has the answers to subscriptions: a guest takes them from stdin, so
// they are made here.
func TestPoll(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	module := wat(t, `(module
	  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
	  (memory (export "memory") 1)
	  (data (i32.const 0) "\00\01\00\00\00\10\00\00")
	  (func (export "_start")
	    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
	    (drop (call $poll (i32.const 256) (i32.const 8192)
	      (i32.div_u (i32.load (i32.const 8)) (i32.const 48)) (i32.const 12)))
	    (i32.store (i32.const 16) (i32.const 8192))
	    (i32.store (i32.const 20) (i32.mul (i32.load (i32.const 12)) (i32.const 32)))
	    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24)))))`)
	clock := func(userdata uint64, id uint32, timeout time.Duration, flags uint16) []byte {
		b := make([]byte, 48)
		binary.LittleEndian.PutUint64(b, userdata)
		binary.LittleEndian.PutUint32(b[16:], id)
		binary.LittleEndian.PutUint64(b[24:], uint64(timeout))
		binary.LittleEndian.PutUint16(b[40:], flags)
		return b
	}
	other := func(userdata uint64, tag byte, fd uint32) []byte {
		b := make([]byte, 48)
		binary.LittleEndian.PutUint64(b, userdata)
		b[8] = tag
		binary.LittleEndian.PutUint32(b[16:], fd)
		return b
	}
	const monotonic, realtime, absolute = 1, 0, 1
	untilSoon := func() []byte {
		return clock(7, realtime, time.Duration(time.Now().Add(20*time.Millisecond).UnixNano()), absolute)
	}
	tests := []struct {
		name string
		in   [][]byte
		want string // userdata:errno:type of each event
		wait time.Duration
	}{
		{"a sleep", [][]byte{clock(7, monotonic, 20*time.Millisecond, 0)}, "7:0:0", 20 * time.Millisecond},
		{"a sleep on the wall clock", [][]byte{clock(7, realtime, 20*time.Millisecond, 0)}, "7:0:0", 20 * time.Millisecond},
		{"until a time since the start", [][]byte{clock(7, monotonic, 20*time.Millisecond, absolute)}, "7:0:0", 10 * time.Millisecond},
		{"until a time that has passed", [][]byte{clock(7, monotonic, 1, absolute)}, "7:0:0", 0},
		{"until a time of day", nil, "7:0:0", 10 * time.Millisecond},
		{"the first of two clocks", [][]byte{clock(1, monotonic, time.Hour, 0), clock(2, monotonic, 1, 0)}, "2:0:0", 0},
		{"clocks that end together", [][]byte{clock(1, monotonic, 5, 0), clock(2, monotonic, 5, 0)}, "1:0:0 2:0:0", 0},
		{"stdin is ready before any clock", [][]byte{clock(1, monotonic, time.Hour, 0), other(2, 1, 0)}, "2:0:1", 0},
		{"stdout is ready", [][]byte{other(3, 2, 1), other(4, 2, 2)}, "3:0:2 4:0:2", 0},
		{"no such clock", [][]byte{clock(5, 9, time.Hour, 0)}, "5:28:0", 0},
		{"no such subscription", [][]byte{other(6, 3, 0), clock(1, monotonic, time.Hour, 0)}, "6:28:3", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			s := spec(t, module)
			for _, in := range tt.in {
				s.Stdin = append(s.Stdin, in...)
			}
			if tt.in == nil {
				s.Stdin = untilSoon()
			}
			begun := time.Now()
			ending := e.Run(t.Context(), s, func(ev protocol.Event) { out.WriteString(ev.Text) })
			if ending.Kind != sandbox.Exited {
				t.Fatalf("Run = %+v", ending)
			}
			var events []string
			for b := []byte(out.String()); len(b) >= 32; b = b[32:] {
				events = append(events, fmt.Sprintf("%d:%d:%d", binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint16(b[8:]), b[10]))
			}
			if got := strings.Join(events, " "); got != tt.want {
				t.Errorf("events %q, want %q", got, tt.want)
			}
			if took := time.Since(begun); took < tt.wait {
				t.Errorf("took %s, want at least %s", took, tt.wait)
			}
		})
	}
}

// TestSignals: signals come after all stdout that was written before them, and
// the bad ones are counted.
func TestSignals(t *testing.T) {
	t.Parallel()
	got, r := run(t, newEngine(t), spec(t, testenv.WAT(t, "signals")))
	want := []protocol.Event{
		{Kind: protocol.EventTextDelta, Text: "out"},
		{Kind: protocol.EventTextDelta, Text: "chunk"},
		{Kind: protocol.EventThinkingDelta, Text: "think"},
		{Kind: protocol.EventToolCallStarted, ID: "c1", Name: "search"},
		{Kind: protocol.EventToolCallProgress, ID: "c1", InputBytes: 42},
		{Kind: protocol.EventTextDelta, Text: "chunk"},
		{Kind: protocol.EventNote, Text: "by import"},
	}
	if diff := cmp.Diff(want, r.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got.Kind != sandbox.Exited || got.SignalsDropped != 3 || got.Stdout != "out" {
		t.Errorf("Run = %+v, want exited with 3 signals dropped", got)
	}
}

// FuzzHostCalls calls every host function with any pointers and lengths. None
// may bring the process down, and none but proc_exit ends the guest.
func FuzzHostCalls(f *testing.F) {
	type function struct{ module, name, params string }
	functions := []function{
		{"wasi_snapshot_preview1", "fd_write", "i32 i32 i32 i32"},
		{"wasi_snapshot_preview1", "fd_close", "i32"},
		{"wasi_snapshot_preview1", "fd_renumber", "i32 i32"},
		{"wasi_snapshot_preview1", "random_get", "i32 i32"},
		{"wasi_snapshot_preview1", "poll_oneoff", "i32 i32 i32 i32"},
		{"wasi_snapshot_preview1", "clock_time_get", "i32 i64 i32"},
		{"murmur:stream/events@0.1.0", "emit-chunk", "i32 i32"},
		{"murmur:stream/events@0.1.0", "emit-thinking-chunk", "i32 i32"},
		{"murmur:stream/events@0.1.0", "tool-call-started", "i32 i32 i32 i32"},
		{"murmur:stream/events@0.1.0", "tool-call-input-bytes", "i32 i32 i64"},
		{"starling:capsule/events@0.1.0", "emit", "i32 i32"},
	}
	var imports, calls strings.Builder
	for i, fn := range functions {
		result, drop := "", ""
		if fn.module == "wasi_snapshot_preview1" {
			result, drop = "(result i32)", "drop"
		}
		fmt.Fprintf(&imports, "(import %q %q (func $f%d (param %s) %s))\n", fn.module, fn.name, i, fn.params, result)
		fmt.Fprintf(&calls, "(if (i32.eq (i32.rem_u (i32.load (i32.const 64)) (i32.const %d)) (i32.const %d)) (then\n", len(functions), i)
		for n, param := range strings.Fields(fn.params) {
			fmt.Fprintf(&calls, "(%s.load (i32.const %d))\n", param, 68+4*n)
		}
		fmt.Fprintf(&calls, "call $f%d %s))\n", i, drop)
	}
	module := wat(f, `(module
	  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
	  `+imports.String()+`
	  (memory (export "memory") 1)
	  (data (i32.const 0) "\40\00\00\00\00\10\00\00")
	  (func (export "_start")
	    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
	    `+calls.String()+`))`)
	e := newEngine(f)
	s := spec(f, module)
	s.Limits.DeadlineSeconds = 1
	for i := range functions {
		for _, args := range [][4]uint32{{64, 8, 64, 8}, {0xffffffff, 1, 0, 0}, {65535, 2, 65535, 2}, {0, 0xffffffff, 0, 0}, {1, 64, 1, 128}} {
			in := binary.LittleEndian.AppendUint32(nil, uint32(i))
			for _, a := range args {
				in = binary.LittleEndian.AppendUint32(in, a)
			}
			f.Add(in)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := s
		s.Stdin = in
		got := e.Run(t.Context(), s, func(protocol.Event) {})
		if got.Kind != sandbox.Exited && got.Limit != sandbox.LimitDeadline { // a long sleep
			t.Errorf("Run(%x) = %s %s, want exited", in, got.Kind, got.Message)
		}
	})
}
