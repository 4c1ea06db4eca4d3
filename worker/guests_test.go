package worker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bytecodealliance/wasmtime-go/v39"
)

// program is a guest in the making: what it does, in order, and its constants.
type program struct {
	code, data strings.Builder
	next       int // free address
	labels     int
	known      map[string]string // operands of shared constants
}

// step is one thing that a guest does.
type step func(*program)

// constant places a text in the guest's memory and gives its address and length
// as two operands.
func (p *program) constant(text string) string {
	at := p.next
	p.next += len(text) + 8
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, `\%02x`, c)
	}
	fmt.Fprintf(&p.data, "(data (i32.const %d) \"%s\")\n", at, b.String())
	return fmt.Sprintf("(i32.const %d) (i32.const %d)", at, len(text))
}

// shared is a constant that is placed once.
func (p *program) shared(text string) string {
	if p.known[text] == "" {
		p.known[text] = p.constant(text)
	}
	return p.known[text]
}

func (p *program) do(format string, args ...any) { fmt.Fprintf(&p.code, format+"\n", args...) }

func (p *program) label() string {
	p.labels++
	return fmt.Sprintf("$l%d", p.labels)
}

// guest compiles a module that takes the steps and exits 0.
func guest(tb testing.TB, steps ...step) []byte {
	tb.Helper()
	p := &program{next: 4096, known: map[string]string{}}
	for _, s := range steps {
		s(p)
	}
	if p.next > 1<<16 {
		tb.Fatalf("the guest's constants need %d bytes", p.next)
	}
	module, err := wasmtime.Wat2Wasm(fmt.Sprintf(`(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "starling:capsule/control@0.1.0" "canceled" (func $canceled (result i32)))
  (memory (export "memory") 4)
  (table 0 funcref)
  (func $sleep (param $ns i64)
    (i32.store (i32.const 48) (i32.const 1))
    (i64.store (i32.const 56) (local.get $ns))
    (drop (call $poll (i32.const 32) (i32.const 96) (i32.const 1) (i32.const 160))))
  (func $put (param $fd i32) (param $at i32) (param $n i32)
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (local.get $n))
    (drop (call $write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func (export "_start") (local $i i32)
%s)
%s)`, p.code.String(), p.data.String()))
	if err != nil {
		tb.Fatalf("guest: %v", err)
	}
	return module
}

// say prints to stdout, cry to stderr.
func say(text string) step {
	return func(p *program) { p.do("(call $put (i32.const 1) %s)", p.constant(text)) }
}

func cry(text string) step {
	return func(p *program) { p.do("(call $put (i32.const 2) %s)", p.constant(text)) }
}

// stamp prints the time as 16 digits from a to p: nanoseconds since 1970, in hex.
func stamp() step {
	return func(p *program) {
		p.do(`(drop (call $clock (i32.const 0) (i64.const 1) (i32.const 208)))
    (local.set $i (i32.const 0))
    (loop %[1]s
      (i32.store8 (i32.add (i32.const 216) (local.get $i)) (i32.add (i32.const 97) (i32.wrap_i64 (i64.and (i64.const 15)
        (i64.shr_u (i64.load (i32.const 208)) (i64.extend_i32_u (i32.sub (i32.const 60) (i32.mul (i32.const 4) (local.get $i)))))))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if %[1]s (i32.lt_u (local.get $i) (i32.const 16))))
    (call $put (i32.const 1) (i32.const 216) (i32.const 16))`, p.label())
	}
}

// echo copies stdin to stdout.
func echo() step {
	return func(p *program) {
		loop := p.label()
		p.do(`(loop %[1]s
      (i32.store (i32.const 0) (i32.const 65536))
      (i32.store (i32.const 4) (i32.const 65536))
      (i32.store (i32.const 8) (i32.const 0))
      (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $i (i32.load (i32.const 8)))
      (if (local.get $i) (then (call $put (i32.const 1) (i32.const 65536) (local.get $i)) (br %[1]s))))`, loop)
	}
}

// untilCanceled waits for a cancel; forever does not even look.
func untilCanceled() step {
	return func(p *program) {
		p.do("(loop %[1]s (call $sleep (i64.const 3000000)) (br_if %[1]s (i32.eqz (call $canceled))))", p.label())
	}
}

func forever() step {
	return func(p *program) { p.do("(loop %[1]s (call $sleep (i64.const 3000000)) (br %[1]s))", p.label()) }
}

// nap sleeps for so many milliseconds.
func nap(ms int) step {
	return func(p *program) { p.do("(call $sleep (i64.const %d))", ms*1_000_000) }
}

func exit(status int) step {
	return func(p *program) { p.do("(call $exit (i32.const %d))", status) }
}

func trap() step { return func(p *program) { p.do("unreachable") } }

// growMemory and growTable ask for more than a small limit allows.
func growMemory(pages int) step {
	return func(p *program) {
		p.do("(if (i32.eq (memory.grow (i32.const %d)) (i32.const -1)) (then unreachable))", pages)
	}
}

func growTable(elements int) step {
	return func(p *program) {
		p.do("(if (i32.eq (table.grow (ref.null func) (i32.const %d)) (i32.const -1)) (then unreachable))", elements)
	}
}

func mkdir(path string) step {
	return func(p *program) { p.do("(drop (call $mkdir (i32.const 3) %s))", p.constant(path)) }
}

// symlink plants a link at path.
func symlink(target, path string) step {
	return func(p *program) {
		t := p.constant(target)
		p.do("(drop (call $symlink %s (i32.const 3) %s))", t, p.constant(path))
	}
}

// create opens a new file at a path, a constant; its descriptor stands at 200.
func (p *program) create(path string) {
	p.do(`(drop (call $open (i32.const 3) (i32.const 0) %s (i32.const 9) (i64.const 64) (i64.const 64) (i32.const 0) (i32.const 200)))`, path)
}

// fill writes so many blocks of 64 KiB to the file that create opened.
func (p *program) fill(blocks int) {
	p.do(`(local.set $i (i32.const %d))
    (loop %[2]s (if (local.get $i) (then
      (call $put (i32.load (i32.const 200)) (i32.const 131072) (i32.const 65536))
      (local.set $i (i32.sub (local.get $i) (i32.const 1))) (br %[2]s))))`, blocks, p.label())
}

// heldFile writes so many blocks of 64 KiB to a file that has no name by then and
// stays open.
func heldFile(path string, blocks int) step {
	return func(p *program) {
		name := p.constant(path)
		p.create(name)
		p.do(`(if (call $unlink (i32.const 3) %s) (then unreachable))`, name)
		p.fill(blocks)
	}
}

// file writes a file: text, then so many blocks of 64 KiB.
func file(path, text string, blocks int) step {
	return func(p *program) {
		name := p.constant(path)
		p.create(name)
		p.do(`(call $put (i32.load (i32.const 200)) %s)`, p.constant(text))
		p.fill(blocks)
		p.do(`(drop (call $close (i32.load (i32.const 200))))`)
	}
}
