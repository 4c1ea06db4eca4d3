package sandbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// hostile are guests that try to hold, fill or break what runs them, each with the
// ending that it is to have. They run in sandbox processes with a deadline of one
// second.
//
// Source: docs/security.md, What stands between a capsule and its host.
var hostile = []struct {
	name string
	text string // of the module; one of testenv's by name where there is none
	set  func(*sandbox.Spec)
	kind sandbox.EndingKind
	says string // of the message
}{
	{name: "spin", kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "hostspin", kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "sleep1h", kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "stdoutflood", kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "recursion", kind: sandbox.Trapped, says: "call stack exhausted"},
	{name: "memhog", set: func(s *sandbox.Spec) { s.Limits.MemoryBytes = 10 << 20 }, kind: sandbox.LimitHit, says: "memory_bytes"},
	{name: "tablehog", set: func(s *sandbox.Spec) { s.Limits.TableElements = 1000 }, kind: sandbox.LimitHit, says: "table_elements"},
	{name: "litter", kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "nest", kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{
		name: "a loop in the start function", text: `(module (memory (export "memory") 1) (start $s) (func $s (loop $l (br $l))) (func (export "_start")))`,
		kind: sandbox.LimitHit, says: "exceeded its 1s deadline",
	},
	{
		name: "bulk memory without an end", text: `(module (memory (export "memory") 4096)
		  (func (export "_start") (loop $l
		    (memory.fill (i32.const 0) (i32.const 1) (i32.const 0x10000000))
		    (memory.copy (i32.const 0) (i32.const 0x8000000) (i32.const 0x8000000)) (br $l))))`,
		kind: sandbox.LimitHit, says: "exceeded its 1s deadline",
	},
	{
		name: "bulk tables without an end", text: `(module (memory (export "memory") 1) (table $t 100000 funcref)
		  (func (export "_start") (loop $l (table.fill $t (i32.const 0) (ref.null func) (i32.const 100000)) (br $l))))`,
		kind: sandbox.LimitHit, says: "exceeded its 1s deadline",
	},
	{
		name: "a table of 64 bits", text: `(module (memory (export "memory") 1) (table i64 0xffffffffffff funcref) (func (export "_start")))`,
		kind: sandbox.Refused, says: "cannot be compiled",
	},
	{
		name: "a table of 2^32 elements", text: `(module (memory (export "memory") 1) (table 0xffffffff funcref) (func (export "_start")))`,
		kind: sandbox.LimitHit, says: "table growth to 4294967295 elements",
	},
	{
		name: "stderr without an end", text: calls(`(loop $l (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 64))) (br $l))`),
		kind: sandbox.LimitHit, says: "exceeded its 1s deadline",
	},
	{
		name: "random bytes without an end", text: calls(`(loop $l (drop (call $random (i32.const 1024) (i32.const 0x3f0000))) (br $l))`),
		kind: sandbox.LimitHit, says: "exceeded its 1s deadline",
	},
	{
		name: "random bytes past the memory", text: calls(`(call $exit (call $random (i32.const 1024) (i32.const -1)))`),
		kind: sandbox.Exited, says: "21",
	},
	{
		name: "a million subscriptions", text: calls(`(call $exit (call $poll (i32.const 0) (i32.const 0x200000) (i32.const 1000000) (i32.const 64)))`),
		kind: sandbox.Exited, says: "28",
	},
	{
		name: "descriptors until there are no more", text: calls(`(local $n i32) (local $e i32) (loop $l
		    (local.set $e (call $open (i32.const 3) (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 1) (i64.const 64) (i64.const 64) (i32.const 0) (i32.const 64)))
		    (local.set $n (i32.add (local.get $n) (i32.const 1)))
		    (br_if $l (i32.and (i32.eqz (local.get $e)) (i32.lt_u (local.get $n) (i32.const 200000)))))
		  (call $exit (local.get $e))`),
		set:  func(s *sandbox.Spec) { s.Limits.DeadlineSeconds = 20 },
		kind: sandbox.Exited, says: "29", // an error of opening, and the process lives on
	},
	{
		// RUSTSEC-2026-0182: what a descriptor is moved over stays open. The descriptors
		// of the process bound it.
		name: "descriptors moved over one", text: calls(`(local $n i32) (local $e i32) (loop $l
		    (local.set $e (call $open (i32.const 3) (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 1) (i64.const 64) (i64.const 64) (i32.const 0) (i32.const 64)))
		    (if (i32.and (i32.eqz (local.get $e)) (local.get $n))
		      (then (local.set $e (call $renumber (i32.load (i32.const 64)) (i32.const 4)))))
		    (local.set $n (i32.add (local.get $n) (i32.const 1)))
		    (br_if $l (i32.and (i32.eqz (local.get $e)) (i32.lt_u (local.get $n) (i32.const 200000)))))
		  (call $exit (local.get $e))`),
		set:  func(s *sandbox.Spec) { s.Limits.DeadlineSeconds = 20 },
		kind: sandbox.Exited, says: "29",
	},
	{
		// RUSTSEC-2026-0314: dates that the host cannot count.
		name: "times at the end of all times", text: calls(`
		  (drop (call $open (i32.const 3) (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 1) (i64.const 0xe00060) (i64.const 0xe00060) (i32.const 0) (i32.const 64)))
		  (drop (call $times (i32.load (i32.const 64)) (i64.const -1) (i64.const -1) (i32.const 5)))
		  (call $exit (call $stat (i32.load (i32.const 64)) (i32.const 128)))`),
		kind: sandbox.Exited, says: "0",
	},
	{
		// RUSTSEC-2026-0321.
		name: "preview 0", text: `(module (import "wasi_unstable" "poll_oneoff" (func (param i32 i32 i32 i32) (result i32)))
		  (memory (export "memory") 1) (func (export "_start")))`,
		kind: sandbox.Refused, says: "there is no such interface",
	},
	{
		name: "a sparse file of 10 GiB", text: calls(`(drop (call $open (i32.const 3) (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 1) (i64.const 0x400060) (i64.const 0x400060) (i32.const 0) (i32.const 64)))
		  (call $exit (call $resize (i32.load (i32.const 64)) (i64.const 10737418240)))`),
		kind: sandbox.Exited, says: "0", // the worker's quota counts its length: see TestTreeBytes
	},
}

// calls is a module of 64 MiB with functions of WASI; at 0 stands one buffer, "hello"
// at 16.
func calls(body string) string {
	return `(module
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_filestat_set_size" (func $resize (param i32 i64) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_filestat_set_times" (func $times (param i32 i64 i64 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_filestat_get" (func $stat (param i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
	  (memory (export "memory") 1024)
	  (data (i32.const 0) "\10\00\00\00\05\00\00\00")
	  (data (i32.const 16) "hello")
	  (func (export "_start") ` + body + `))`
}

// TestHostileGuestsEndWithinTheirLimits, and a neighbour in the next process goes on.
func TestHostileGuestsEndWithinTheirLimits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	processes := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root })
	neighbour := begin(t, t.Context(), processes, withDirectory(t, root, talker(t)))
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			module := ""
			if h.text != "" {
				module = wat(t, h.text)
			} else {
				module = testenv.WAT(t, h.name)
			}
			s := spec(t, module)
			s.Limits.DeadlineSeconds = 1
			if h.set != nil {
				h.set(&s)
			}
			s = withDirectory(t, root, s)
			left := opened(t, s.WorkDir)
			defer func() {
				if err := sandbox.RemoveTree(left, "d"); err != nil { // deep, of nest
					t.Error(err)
				}
			}()
			begun := time.Now()
			end := processes.Run(t.Context(), s, func(protocol.Event) {})
			says := end.Message
			if end.Kind == sandbox.Exited {
				says = fmt.Sprint(end.Status)
			}
			if end.Kind != h.kind || !strings.Contains(says, h.says) {
				t.Errorf("ended %s %q (%v), want %s with %q", end.Kind, says, end.Err, h.kind, h.says)
			}
			if took := time.Since(begun); took > 20*time.Second+time.Duration(s.Limits.DeadlineSeconds)*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	select {
	case end := <-neighbour.end:
		t.Errorf("the neighbour ended: %+v", end)
	default:
	}
}
