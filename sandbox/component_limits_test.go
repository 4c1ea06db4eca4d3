package sandbox_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// hostileComponents are hostile as the modules of hostile are. They have
// 10 MiB of memory, and a deadline of one second where that is to end them.
var hostileComponents = []struct {
	name string
	text string // of the component; else data and body of a command
	data string
	body string
	set  func(*sandbox.Spec)
	kind sandbox.EndingKind
	says string // of the message
}{
	{name: "a trap", body: `unreachable`, kind: sandbox.Trapped, says: "capsule execution trapped: wasm `unreachable` instruction executed"},
	{name: "recursion", body: `(call $recurse) (i32.const 0)`, kind: sandbox.Trapped, says: "call stack exhausted"},
	{name: "a loop", body: `(call $forever) (i32.const 0)`, kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "a loop of the start function", text: runs("(core module $s (start $f) (func $f (loop $l (br $l)))) (core instance (instantiate $s))", "(i32.const 0)"), kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "a trap of the start function", text: runs("(core module $s (start $f) (func $f unreachable)) (core instance (instantiate $s))", "(i32.const 0)"), kind: sandbox.Trapped, says: "wasm `unreachable` instruction executed"},
	{name: "a loop after run", text: strings.Replace(runs("", "(i32.const 0)"), `(func $run (result (result)) (canon lift (core func $i "run")))`,
		`(core module $p (func (export "after") (param i32) (loop $l (br $l)))) (core instance $j (instantiate $p))
		 (func $run (result (result)) (canon lift (core func $i "run") (post-return (func $j "after"))))`, 1), kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "a sleep of an hour", body: `(call $sleep (i64.const 3600000000000)) (i32.const 0)`, kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "calls without an end", body: `(loop $l (call $chunk (i32.const 1024) (i32.const 1)) (br $l)) (i32.const 0)`, kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "stdout without an end", body: `(loop $l (call $print (i32.const 1024) (i32.const 4096)) (br $l)) (i32.const 0)`, kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{name: "stderr without an end", body: `(loop $l (call $eprint (i32.const 1024) (i32.const 4096)) (br $l)) (i32.const 0)`, kind: sandbox.LimitHit, says: "exceeded its 1s deadline"},
	{
		name: "tool calls without an end", data: `{\"event\":\"tool-call\",\"id\":\"a\",\"name\":\"b\",\"input\":1}\0a`,
		body: `(loop $l (call $print (i32.const 1024) (i32.const 52)) (br $l)) (i32.const 0)`,
		set:  func(s *sandbox.Spec) { s.Output = protocol.OutputEvents },
		kind: sandbox.LimitHit, says: "more than 10000 tool calls",
	},
	{
		name: "tool calls without an end by signals", data: `{\"event\":\"tool-call\",\"id\":\"a\",\"name\":\"b\",\"input\":1}`,
		body: `(loop $l (call $emit (i32.const 1024) (i32.const 51)) (br $l)) (i32.const 0)`,
		kind: sandbox.LimitHit, says: "more than 10000 tool calls",
	},
	{
		name: "memory bit by bit", body: `(loop $l (drop (call $alloc (i32.const 0xffff8))) (br $l)) (i32.const 0)`,
		kind: sandbox.LimitHit, says: "linear memory growth to 10551296 bytes exceeds capabilities.limits.memory_bytes (10485760)",
	},
	{
		name: "a large memory", text: runs("(core module $n (memory 161)) (core instance (instantiate $n))", "(i32.const 0)"),
		kind: sandbox.LimitHit, says: "linear memory growth to 10551296 bytes exceeds capabilities.limits.memory_bytes (10485760)",
	},
	{
		name: "memory that does not grow, and no word of it",
		text: runs("(core module $n (memory 1) (start $f) (func $f (drop (memory.grow (i32.const 1000))))) (core instance (instantiate $n))", "(i32.const 0)"),
		kind: sandbox.LimitHit, says: "linear memory growth to 65601536 bytes exceeds capabilities.limits.memory_bytes (10485760)",
	},
	{
		name: "the largest memory", text: runs("(core module $n (memory 65536)) (core instance (instantiate $n))", "(i32.const 0)"),
		kind: sandbox.LimitHit, says: "linear memory growth to 4294967296 bytes exceeds capabilities.limits.memory_bytes (10485760)",
	},
	{
		name: "memories that are large together", text: runs("(core module $n (memory 60)) (core instance (instantiate $n)) (core instance (instantiate $n)) (core instance (instantiate $n))", "(i32.const 0)"),
		kind: sandbox.LimitHit, says: "linear memory growth to 11796480 bytes exceeds capabilities.limits.memory_bytes (10485760)",
	},
	{
		name: "too many instances", text: runs(strings.Repeat("(core instance (instantiate $m))", 10), "(i32.const 0)"),
		set:  func(s *sandbox.Spec) { s.Limits.Instances = 5 },
		kind: sandbox.LimitHit, says: "resource limits: 6 instances or more exceed capabilities.limits.instances (5)",
	},
	{
		name: "a large table", text: runs("(core module $n (table 100001 funcref)) (core instance (instantiate $n))", "(i32.const 0)"),
		kind: sandbox.LimitHit, says: "table growth to 100001 elements exceeds capabilities.limits.table_elements (100000)",
	},
	{
		name: "a table that grows", text: strings.Replace(runs("", `(i32.ne (table.grow $t (ref.null func) (i32.const 100001)) (i32.const -1))`), `(func (export "run")`, `(table $t 0 funcref) (func (export "run")`, 1),
		kind: sandbox.Exited, says: "0", // it was refused
	},
	{
		name: "random bytes beyond all memory", body: `(call $random-bytes (i64.const 0x100000000) (i32.const 64)) (i32.const 0)`,
		kind: sandbox.ProcessDied, says: "its process died",
	},
	{
		name: "random bytes beyond all sizes", body: `(call $random-bytes (i64.const -1) (i32.const 64)) (i32.const 0)`,
		kind: sandbox.ProcessDied, says: "its process died",
	},
	{
		name: "a string beyond the memory", body: `(call $chunk (i32.const 1024) (i32.const -1)) (i32.const 0)`,
		kind: sandbox.Trapped, says: "string pointer/length out of bounds of memory",
	},
	{name: "a string that is not UTF-8", data: `\ff`, body: `(call $chunk (i32.const 1024) (i32.const 1)) (i32.const 0)`, kind: sandbox.Trapped, says: "invalid utf-8"},
	{
		name: "a function of the host as another", text: lowers(`(import "murmur:stream/events@0.1.0" (instance $e (export "emit-chunk" (func (param "a" u64)))))`, "emit-chunk", "i64", "(call $f (i64.const 7))"),
		kind: sandbox.Trapped, says: "imported with another type than it has",
	},
	{
		name: "a function of the host with a result", text: lowers(`(import "starling:capsule/control@0.1.0" (instance $e (export "canceled" (func (param "a" u64) (result u32)))))`, "canceled", "i64) (result i32", "(drop (call $f (i64.const 7)))"),
		kind: sandbox.Trapped, says: "type mismatch",
	},
	{
		name: "a function of the host with many arguments", text: lowers(`(import "starling:capsule/control@0.1.0" (instance $e (export "canceled" (func (param "a" u64) (param "b" u64) (param "c" u64) (param "d" u64) (param "e" u64)))))`, "canceled", "i64 i64 i64 i64 i64", "(call $f (i64.const 7) (i64.const 7) (i64.const 7) (i64.const 7) (i64.const 7))"),
		kind: sandbox.Trapped, says: "imported with another type than it has",
	},
	{
		// RUSTSEC-2026-0085.
		name: "flags that there are not", text: lowers(`(type $t (flags "x")) (import "murmur:stream/events@0.1.0" (instance $e (alias outer 1 $t (type $t)) (export "t" (type $f (eq $t))) (export "emit-chunk" (func (param "a" $f)))))`, "emit-chunk", "i32", "(call $f (i32.const -1))"),
		kind: sandbox.ProcessDied, says: "its process died",
	},
	{
		// RUSTSEC-2026-0316: each is made on the host, with the names of its fields.
		name: "records beyond all memory", text: strings.Replace(lowers(`(type $t (record `+fields(64)+`)) (import "murmur:stream/events@0.1.0" (instance $e (alias outer 1 $t (type $t)) (export "t" (type $r (eq $t))) (export "emit-chunk" (func (param "a" (list $r))))))`, "emit-chunk", "i32 i32", "(call $f (i32.const 0) (i32.const 140000))"), `(memory (export "memory") 1)`, `(memory (export "memory") 150)`, 1),
		kind: sandbox.ProcessDied, says: "its process died",
	},
	{
		// GHSA-q554-3cjc-rx7p.
		name: "handles without an end", text: strings.Replace(strings.Replace(runs(`(type $r (resource (rep i32))) (core func $new (canon resource.new $r))`, `(loop $l (drop (call $new (i32.const 1))) (br $l)) (i32.const 0)`),
			"(core module $m ", `(core module $m (import "h" "new" (func $new (param i32) (result i32))) `, 1),
			"(instantiate $m)", `(instantiate $m (with "h" (instance (export "new" (func $new)))))`, 1),
		kind: sandbox.ProcessDied, says: "its process died",
	},
	{
		// RUSTSEC-2026-0091 to 0093 are in what carries strings from one component to
		// another, which needs several memories.
		name: "a string of one component for another", text: transcodes("utf16", "latin1+utf16", 1, 4),
		kind: sandbox.Refused, says: "multiple memories",
	},
	{
		name: "run of another type", text: strings.Replace(runs("", `(i32.const 7)`), "(result (result))", "(result u32)", 1),
		kind: sandbox.Trapped, says: "the function run has another type",
	},
	{
		name: "run with a parameter", text: strings.Replace(strings.Replace(runs("", `(i32.const 7)`), "(result (result))", `(param "a" u32) (result (result))`, 1), `(func (export "run")`, `(func (export "run") (param i32)`, 1),
		kind: sandbox.Trapped, says: "expected 1 argument",
	},
	{name: "many modules", text: runs(strings.Repeat("(core module)", 998), "(i32.const 0)"), kind: sandbox.Exited, says: "0"},
	{name: "too many modules", text: runs(strings.Repeat("(core module)", 1000), "(i32.const 0)"), kind: sandbox.Refused, says: "it has more than 1000 core modules"},
	{name: "too many modules far inside", text: runs(strings.Repeat("(component ", 16)+strings.Repeat("(core module)", 1000)+strings.Repeat(")", 16), "(i32.const 0)"), kind: sandbox.Refused, says: "it has more than 1000 core modules"},
	{name: "deep components", text: runs(strings.Repeat("(component ", 17)+strings.Repeat(")", 17), "(i32.const 0)"), kind: sandbox.Refused, says: "components are nested more than 16 deep"},
}

// lowers is a component that calls one function of an imported instance $e.
func lowers(imports, name, params, call string) string {
	return fmt.Sprintf(`(component %s
	  (core module $l (memory (export "memory") 1) (func (export "realloc") (param i32 i32 i32 i32) (result i32) unreachable))
	  (core instance $l (instantiate $l))
	  (core func $f (canon lower (func $e "%s") (memory $l "memory") (realloc (func $l "realloc"))))
	  (core module $m (import "e" "f" (func $f (param %s))) (func (export "run") (result i32) %s (i32.const 0)))
	  (core instance $i (instantiate $m (with "e" (instance (export "f" (func $f))))))
	  (func $run (result (result)) (canon lift (core func $i "run")))
	  (instance $command (export "run" (func $run)))
	  (export "wasi:cli/run@0.2.0" (instance $command)))`, imports, name, params, call)
}

// fields are n fields of a record.
func fields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `(field "f%d" u8)`, i)
	}
	return b.String()
}

// transcodes is a component of two, of which one gives the other a string of n units
// at a place of its memory. Each has its own encoding of strings.
func transcodes(from, to string, at, n int) string {
	return fmt.Sprintf(`(component
	  (component $to
	    (core module $m (memory (export "memory") 1) (func (export "take") (param i32 i32))
	      (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
	    (core instance $i (instantiate $m))
	    (func (export "take") (param "s" string)
	      (canon lift (core func $i "take") (memory $i "memory") (realloc (func $i "realloc")) string-encoding=%s)))
	  (component $from
	    (import "take" (func $take (param "s" string)))
	    (core module $l (memory (export "memory") 1))
	    (core instance $l (instantiate $l))
	    (core func $take (canon lower (func $take) (memory $l "memory") string-encoding=%s))
	    (core module $m (import "e" "take" (func $take (param i32 i32)))
	      (func (export "run") (result i32) (call $take (i32.const %d) (i32.const %d)) (i32.const 0)))
	    (core instance $i (instantiate $m (with "e" (instance (export "take" (func $take))))))
	    (func (export "run") (result (result)) (canon lift (core func $i "run"))))
	  (instance $t (instantiate $to))
	  (instance $f (instantiate $from (with "take" (func $t "take"))))
	  (instance $command (export "run" (func $f "run")))
	  (export "wasi:cli/run@0.2.0" (instance $command)))`, to, from, at, n)
}

// TestHostileComponentsEndWithinTheirLimits, and a neighbour in the next process
// goes on.
func TestHostileComponentsEndWithinTheirLimits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := withComponents(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root })
	neighbour := begin(t, t.Context(), p, withDirectory(t, root, talker(t)))
	t.Run("guests", func(t *testing.T) { endAll(t, p, root) })
	select {
	case end := <-neighbour.end:
		t.Errorf("the neighbour ended: %+v", end)
	default:
	}
}

func endAll(t *testing.T, p *sandbox.Supervisor, root string) {
	for _, h := range hostileComponents {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			var s sandbox.Spec
			if h.text != "" {
				s = spec(t, wat(t, h.text))
			} else {
				s = spec(t, command(t, h.data, h.body))
			}
			s.Limits.DeadlineSeconds, s.Limits.MemoryBytes = 60, 10<<20
			if strings.Contains(h.says, "1s deadline") {
				s.Limits.DeadlineSeconds = 1
			}
			if h.set != nil {
				h.set(&s)
			}
			end := p.Run(t.Context(), withDirectory(t, root, s), func(protocol.Event) {})
			says := end.Message
			if end.Kind == sandbox.Exited {
				says = fmt.Sprint(end.Status)
			}
			if deadline := time.Duration(s.Limits.DeadlineSeconds) * time.Second; end.Limit != sandbox.LimitDeadline && end.Duration >= deadline {
				t.Errorf("it ran for %s, into its deadline, and not into what should have ended it", end.Duration)
			}
			if end.Kind != h.kind || !strings.Contains(says, h.says) {
				t.Errorf("ended %s %q (%v) %q, want %s with %q", end.Kind, says, end.Err, end.StderrTail, h.kind, h.says)
			}
		})
	}
}

// TestComponentsHaveNoNetwork, although WASI's interface of it is there.
func TestComponentsHaveNoNetwork(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	text, err := os.ReadFile("testdata/component/network.wat")
	if err != nil {
		t.Fatal(err)
	}
	const accessDenied, resolverFailure = 1, 20
	for way, code := range map[string]int{"name": resolverFailure, "socket": accessDenied} {
		s := spec(t, wat(t, strings.Replace(string(text), "$WAY", "$"+way, 1)))
		if got := p.Run(t.Context(), s, nil); got.Kind != sandbox.Exited || got.Status != 100+code {
			t.Errorf("%s: Run = %+v, want the exit status %d, which stands for an error", way, got, 100+code)
		}
	}
}

// TestComponentOutputIsBounded as that of a module is.
func TestComponentOutputIsBounded(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	s := spec(t, command(t, "", `(loop $l
	    (call $print (i32.const 1024) (i32.const 4096)) (call $eprint (i32.const 1024) (i32.const 1024))
	    (br_if $l (i32.lt_u (local.tee $a (i32.add (local.get $a) (i32.const 1))) (i32.const 3000)))) (i32.const 0)`))
	r := &recorder{}
	end := p.Run(t.Context(), s, r.emit)
	const written, errors = 3000 * 4096, 3000 * 1024
	if end.Kind != sandbox.Exited || len(end.Stdout) != protocol.MaxOutputBytes || end.StdoutDropped != written-protocol.MaxOutputBytes ||
		end.StderrDropped != errors-protocol.MaxStderrBytes {
		t.Errorf("Run = %s with %d bytes of stdout, %d and %d dropped; want exited with %d, %d and %d", end.Kind, len(end.Stdout), end.StdoutDropped,
			end.StderrDropped, protocol.MaxOutputBytes, written-protocol.MaxOutputBytes, errors-protocol.MaxStderrBytes)
	}
	if n := len(r.text()); n != protocol.MaxOutputBytes {
		t.Errorf("%d bytes in fragments, want %d", n, protocol.MaxOutputBytes)
	}
}

// TestAComponentsBoundIsItsOwn: the memory of the guest before it in its process does
// not count in the bound on its own.
func TestAComponentsBoundIsItsOwn(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	component := spec(t, command(t, "héllo", `(call $print (i32.const 1024) (i32.const 6)) (i32.const 0)`))
	pid := 0
	bound := func() int64 {
		var text []byte
		end := p.Run(t.Context(), component, func(protocol.Event) {
			var err error
			pid = only(t, p)
			if text, err = os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid)); err != nil {
				t.Error(err)
			}
		})
		if end.Kind != sandbox.Exited {
			t.Fatalf("Run = %+v, want exited", end)
		}
		_, rest, _ := strings.Cut(string(text), "Max data size")
		var soft int64
		if _, err := fmt.Sscan(rest, &soft); err != nil {
			t.Fatalf("limits: %v\n%s", err, text)
		}
		return soft
	}
	alone := bound()
	testenv.EventuallyTrue(t, soon, "its process is gone", func() bool { return len(p.PIDs()) == 0 })
	// In no pool, as it has more tables than one has places for; and gone soon, so that
	// its ending is told before its memory is put back.
	hungry := spec(t, wat(t, `(module (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)
	  (memory (export "memory") 6000)
	  (func (export "_start") (memory.fill (i32.const 0) (i32.const 1) (i32.const 16777216))))`))
	if end := p.Run(t.Context(), hungry, func(protocol.Event) {}); end.Kind != sandbox.Exited {
		t.Fatalf("Run = %+v, want exited", end)
	}
	its := only(t, p)
	if after := bound(); pid != its {
		t.Errorf("the component ran in process %d, want %d, that of the guest before it", pid, its)
	} else if after > alone+64<<20 {
		t.Errorf("after a guest of 375 MiB a component's process may have %d MiB more than alone", (after-alone)>>20)
	}
}
