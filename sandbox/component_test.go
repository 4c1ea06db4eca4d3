package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// command is a component around a core module with this function run, and with
// data in its memory from 1024 on.
func command(tb testing.TB, data, body string) string {
	tb.Helper()
	text, err := os.ReadFile("testdata/component/command.wat")
	if err != nil {
		tb.Fatal(err)
	}
	return wat(tb, strings.Replace(string(text), "(; BODY ;)", `
	  (import "libc" "memory" (memory 1))
	  (import "libc" "alloc" (func $alloc (param i32) (result i32)))
	  (import "lib" "print" (func $print (param i32 i32)))
	  (import "lib" "eprint" (func $eprint (param i32 i32)))
	  (import "lib" "sleep" (func $sleep (param i64)))
	  (import "lib" "get-stdin" (func $get-stdin (result i32)))
	  (import "lib" "blocking-read" (func $blocking-read (param i32 i64 i32)))
	  (import "lib" "get-arguments" (func $get-arguments (param i32)))
	  (import "lib" "get-environment" (func $get-environment (param i32)))
	  (import "lib" "exit-result" (func $exit-result (param i32)))
	  (import "lib" "exit-code" (func $exit-code (param i32)))
	  (import "lib" "random-bytes" (func $random-bytes (param i64 i32)))
	  (import "lib" "open-at" (func $open-at (param i32 i32 i32 i32 i32 i32 i32)))
	  (import "lib" "read" (func $read (param i32 i64 i64 i32)))
	  (import "lib" "write" (func $write (param i32 i32 i32 i64 i32)))
	  (import "lib" "get-directories" (func $get-directories (param i32)))
	  (import "lib" "chunk" (func $chunk (param i32 i32)))
	  (import "lib" "thinking" (func $thinking (param i32 i32)))
	  (import "lib" "started" (func $started (param i32 i32 i32 i32)))
	  (import "lib" "bytes" (func $bytes (param i32 i32 i64)))
	  (import "lib" "emit" (func $emit (param i32 i32)))
	  (import "lib" "canceled" (func $canceled (result i32)))
	  (data (i32.const 1024) "`+data+`")
	  (func $forever (loop $l (br $l)))
	  (func $recurse (call $recurse) (call $recurse))
	  ;; prints the strings of a list at $at, whose items have $size bytes
	  (func $list (param $at i32) (param $size i32) (local $item i32) (local $end i32)
	    (local.set $item (i32.load (local.get $at)))
	    (local.set $end (i32.add (local.get $item) (i32.mul (local.get $size) (i32.load offset=4 (local.get $at)))))
	    (block $done (loop $l
	      (br_if $done (i32.ge_u (local.get $item) (local.get $end)))
	      (call $print (i32.load (local.get $item)) (i32.load offset=4 (local.get $item)))
	      (if (i32.eq (local.get $size) (i32.const 16))
	        (then (call $print (i32.load offset=8 (local.get $item)) (i32.load offset=12 (local.get $item)))))
	      (local.set $item (i32.add (local.get $item) (local.get $size)))
	      (br $l))))
	  ;; opens a path in preopen $i: the handle, or the error code and 1000
	  (func $open (param $i i32) (param $path i32) (param $len i32) (param $how i32) (param $flags i32) (result i32)
	    (call $get-directories (i32.const 64))
	    (call $open-at (i32.load (i32.add (i32.load (i32.const 64)) (i32.mul (i32.const 12) (local.get $i))))
	      (i32.const 1) (local.get $path) (local.get $len) (local.get $how) (local.get $flags) (i32.const 96))
	    (if (i32.load8_u (i32.const 96)) (then (return (i32.add (i32.const 1000) (i32.load8_u (i32.const 100))))))
	    (i32.load (i32.const 100)))
	  (func (export "run") (result i32) (local $a i32) (local $b i32) `+body+`)`, 1))
}

// withComponents is a supervisor that runs them.
func withComponents(tb testing.TB, change ...func(*sandbox.ProcessConfig)) *sandbox.Supervisor {
	tb.Helper()
	return newSupervisor(tb, append(change, func(c *sandbox.ProcessConfig) { c.Components = true })...)
}

// TestComponents runs commands of WASI 0.2: what they are given, and how they
// end.
func TestComponents(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := withComponents(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root })
	const read = `(call $read (local.get $a) (i64.const 100) (i64.const 0) (i32.const 96))
	  (call $print (i32.load (i32.const 100)) (i32.load (i32.const 104))) (i32.const 0)`
	code := func(open string) string { // exits with the error code of an open that must fail
		return `(local.set $a ` + open + `)
		  (if (i32.lt_u (local.get $a) (i32.const 1000)) (then unreachable))
		  (call $exit-code (i32.sub (local.get $a) (i32.const 1000))) (i32.const 0)`
	}
	const noEntry, notPermitted = 20, 31 // of the error codes of wasi:filesystem
	tests := []struct {
		name, data, body string
		set              func(*sandbox.Spec)
		status           int
		stdout           string
		stderr           []string
	}{
		{name: "stdout", data: "héllo", body: `(call $print (i32.const 1024) (i32.const 6)) (i32.const 0)`, stdout: "héllo"},
		{
			name: "arguments", body: `(call $get-arguments (i32.const 64)) (call $list (i32.const 64) (i32.const 8)) (i32.const 0)`,
			set: func(s *sandbox.Spec) { s.Args = []string{"capsule", " a b", "ü"} }, stdout: "capsule a bü",
		},
		{
			name: "environment", body: `(call $get-environment (i32.const 64)) (call $list (i32.const 64) (i32.const 16)) (i32.const 0)`,
			set: func(s *sandbox.Spec) { s.Env = map[string]string{"STARLING_ATTEMPT": "2"} }, stdout: "STARLING_ATTEMPT2",
		},
		{name: "an empty environment", body: `(call $get-environment (i32.const 64)) (call $exit-code (i32.load (i32.const 68))) (i32.const 0)`},
		{
			name: "stdin to its end", body: `(local.set $a (call $get-stdin))
			  (block $end (loop $l (call $blocking-read (local.get $a) (i64.const 3) (i32.const 64))
			    (br_if $end (i32.load8_u (i32.const 64)))
			    (call $print (i32.load (i32.const 68)) (i32.load (i32.const 72))) (br $l))) (i32.const 0)`,
			set: func(s *sandbox.Spec) { s.Stdin = []byte("the text of a task") }, stdout: "the text of a task",
		},
		{
			name: "stderr", data: `wrong\0a`, body: `(call $eprint (i32.const 1024) (i32.const 6)) (i32.const 1)`,
			status: 1, stderr: []string{"wrong"},
		},
		{name: "run returns ok", body: `(i32.const 0)`},
		{name: "run returns err", body: `(i32.const 1)`, status: 1},
		{name: "exit with ok", body: `(call $exit-result (i32.const 0)) unreachable`},
		{name: "exit with err", body: `(call $exit-result (i32.const 1)) unreachable`, status: 1},
		{name: "exit with 7", body: `(call $exit-code (i32.const 7)) unreachable`, status: 7},
		{name: "exit with 200", body: `(call $exit-code (i32.const 200)) unreachable`, status: 200},
		{name: "a short sleep", data: "rested", body: `(call $sleep (i64.const 5000000)) (call $print (i32.const 1024) (i32.const 6)) (i32.const 0)`, stdout: "rested"},
		{name: "random", body: `(call $random-bytes (i64.const 8) (i32.const 64)) (i64.eqz (i64.load (i32.load (i32.const 64))))`},
		{
			name: "memory within the limit", body: `(drop (call $alloc (i32.const 0x300000))) (i32.const 0)`,
			set: func(s *sandbox.Spec) { s.Limits.MemoryBytes = 4 << 20 },
		},

		{name: "a file is read", data: "in/task.md", body: `(local.set $a (call $open (i32.const 0) (i32.const 1024) (i32.const 10) (i32.const 0) (i32.const 1)))` + read, stdout: "in"},
		{
			name: "a file is written", data: "new.txt", body: `(local.set $a (call $open (i32.const 0) (i32.const 1024) (i32.const 7) (i32.const 9) (i32.const 3)))
			  (call $write (local.get $a) (i32.const 1024) (i32.const 3) (i64.const 0) (i32.const 96))` + read, stdout: "new",
		},
		{name: "a file that is not there", data: "none", body: code(`(call $open (i32.const 0) (i32.const 1024) (i32.const 4) (i32.const 0) (i32.const 1))`), status: noEntry},
		{name: "a path out", data: "../secret", body: code(`(call $open (i32.const 0) (i32.const 1024) (i32.const 9) (i32.const 0) (i32.const 1))`), status: notPermitted},
		{name: "an absolute path", data: "/etc/passwd", body: code(`(call $open (i32.const 0) (i32.const 1024) (i32.const 11) (i32.const 0) (i32.const 1))`), status: notPermitted},
		{name: "a link out", data: "link", body: code(`(call $open (i32.const 0) (i32.const 1024) (i32.const 4) (i32.const 0) (i32.const 1))`), status: notPermitted},
		{
			name: "a read-only directory is read", data: "task.md", body: `(local.set $a (call $open (i32.const 1) (i32.const 1024) (i32.const 7) (i32.const 0) (i32.const 1)))` + read,
			set: func(s *sandbox.Spec) { s.Filesystem.ReadOnly = []string{"in"} }, stdout: "in",
		},
		{
			name: "a read-only directory is not written", data: "task.md", body: code(`(call $open (i32.const 1) (i32.const 1024) (i32.const 7) (i32.const 1) (i32.const 3))`),
			set: func(s *sandbox.Spec) { s.Filesystem.ReadOnly = []string{"in"} }, status: notPermitted,
		},
		{
			name: "a scope", data: "task.md", body: `(local.set $a (call $open (i32.const 0) (i32.const 1024) (i32.const 7) (i32.const 0) (i32.const 1)))` + read,
			set: func(s *sandbox.Spec) { s.Filesystem.Scope = "in" }, stdout: "in",
		},
		{
			name: "no directory", body: `(call $get-directories (i32.const 64)) (i32.load (i32.const 68))`,
			set: func(s *sandbox.Spec) { s.WorkDir = "" },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := withDirectory(t, root, spec(t, command(t, tt.data, tt.body)))
			furnish(t, s.WorkDir)
			if tt.set != nil {
				tt.set(&s)
			}
			r := &recorder{}
			got := p.Run(t.Context(), s, r.emit)
			got.Duration = 0
			want := sandbox.Ending{Kind: sandbox.Exited, Status: tt.status, Stdout: tt.stdout, StderrTail: tt.stderr}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Run (-want +got):\n%s", diff)
			}
			if r.text() != tt.stdout {
				t.Errorf("fragments %q, want %q", r.text(), tt.stdout)
			}
		})
	}
}

// furnish fills a work directory: a file of its own, and a link out of it.
func furnish(t *testing.T, dir string) {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	for path, content := range map[string]string{filepath.Join(dir, "in", "task.md"): "in", secret: "secret"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
}

// TestComponentSignals: they come after what was written before them, and one
// that is no event is dropped.
func TestComponentSignals(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	s := spec(t, command(t, `ab{\"event\":\"note\",\"text\":\"by import\"}nonsense`, `
	  (call $print (i32.const 1024) (i32.const 1))
	  (call $chunk (i32.const 1025) (i32.const 1))
	  (call $thinking (i32.const 1025) (i32.const 1))
	  (call $print (i32.const 1024) (i32.const 1))
	  (call $started (i32.const 1024) (i32.const 1) (i32.const 1025) (i32.const 1))
	  (call $bytes (i32.const 1024) (i32.const 1) (i64.const 42))
	  (call $emit (i32.const 1026) (i32.const 35))
	  (call $emit (i32.const 1061) (i32.const 8))
	  (call $canceled)`))
	r := &recorder{}
	got := p.Run(t.Context(), s, r.emit)
	if got.Kind != sandbox.Exited || got.Status != 0 || got.Stdout != "aa" || got.SignalsDropped != 1 {
		t.Errorf("Run = %+v, want exit 0, the stdout aa and one signal dropped", got)
	}
	want := []protocol.Event{
		{Kind: protocol.EventTextDelta, Text: "a"},
		{Kind: protocol.EventTextDelta, Text: "b"},
		{Kind: protocol.EventThinkingDelta, Text: "b"},
		{Kind: protocol.EventTextDelta, Text: "a"},
		{Kind: protocol.EventToolCallStarted, ID: "a", Name: "b"},
		{Kind: protocol.EventToolCallProgress, ID: "a", InputBytes: 42},
		{Kind: protocol.EventNote, Text: "by import"},
	}
	if diff := cmp.Diff(want, r.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestComponentSignalsKeepTheirOrder, however fast they and stdout come.
func TestComponentSignalsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	const turns = 3000
	s := spec(t, command(t, "ab", fmt.Sprintf(`(loop $l
	  (call $print (i32.const 1024) (i32.const 1)) (call $chunk (i32.const 1025) (i32.const 1))
	  (br_if $l (i32.lt_u (local.tee $a (i32.add (local.get $a) (i32.const 1))) (i32.const %d)))) (i32.const 0)`, turns)))
	r := &recorder{}
	if got := p.Run(t.Context(), s, r.emit); got.Kind != sandbox.Exited {
		t.Errorf("Run = %+v, want exited", got)
	}
	if got := r.text(); got != strings.Repeat("ab", turns) {
		t.Errorf("%d characters, and not %d times stdout, then a signal", len(got), turns)
	}
}

// TestComponentEventsOnStdout: a line is an event in mode events.
func TestComponentEventsOnStdout(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	s := spec(t, command(t, `{\"event\":\"turn-end\",\"result\":\"done\"}`, `(call $print (i32.const 1024) (i32.const 36)) (i32.const 0)`))
	s.Output = protocol.OutputEvents
	r := &recorder{}
	if got := p.Run(t.Context(), s, r.emit); got.Kind != sandbox.Exited {
		t.Errorf("Run = %+v, want exited", got)
	}
	if diff := cmp.Diff([]protocol.Event{{Kind: protocol.EventTurnEnd, Result: "done"}}, r.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestComponentIsToldToStop: canceled turns 1.
func TestComponentIsToldToStop(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	s := spec(t, command(t, "ready", `(call $chunk (i32.const 1024) (i32.const 5))
	  (loop $l (br_if $l (i32.eqz (call $canceled)))) (i32.const 0)`))
	canceled := make(chan struct{})
	s.Canceled = canceled
	if got := p.Run(t.Context(), s, func(protocol.Event) { close(canceled) }); got.Kind != sandbox.Exited {
		t.Errorf("Run = %+v, want exited", got)
	}
}

// TestComponentIsStopped at once: one that computes, one that sleeps, which only
// its process's end stops, and one that waits for a reader.
func TestComponentIsStopped(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	for name, body := range map[string]string{
		"computing": `(call $forever) (i32.const 0)`,
		"sleeping":  `(call $sleep (i64.const 3600000000000)) (i32.const 0)`,
		"printing":  `(loop $l (call $print (i32.const 1024) (i32.const 4096)) (br $l)) (i32.const 0)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := p.Run(ctx, spec(t, command(t, "ready", `(call $chunk (i32.const 1024) (i32.const 5))`+body)), func(protocol.Event) { cancel() })
			if got.Kind != sandbox.Interrupted {
				t.Errorf("Run = %+v, want interrupted", got)
			}
		})
	}
}

// TestMurmurComponent: a component of Murmur's interface, whose run has no
// result.
func TestMurmurComponent(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	r := &recorder{}
	got := p.Run(t.Context(), spec(t, testenv.WAT(t, "murmur")), r.emit)
	if got.Kind != sandbox.Exited || got.Status != 0 {
		t.Errorf("Run = %+v, want exit 0", got)
	}
	if diff := cmp.Diff([]protocol.Event{{Kind: protocol.EventTextDelta, Text: "hello from murmur"}}, r.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestComponentsAreRefused with a sentence that names what to do.
func TestComponentsAreRefused(t *testing.T) {
	t.Parallel()
	const off = "is a WASI 0.2 component, and components are off: turn them on for the worker with STARLING_COMPONENTS=on"
	module := command(t, "", `(i32.const 0)`)
	dir := t.TempDir() // which holds its compiled form then
	on := withComponents(t, func(c *sandbox.ProcessConfig) { c.CacheDir = dir })
	if got := on.Run(t.Context(), spec(t, module), func(protocol.Event) {}); got.Kind != sandbox.Exited {
		t.Fatalf("Run where they are on = %+v, want exited", got)
	}
	without := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir = dir })
	for name, run := range map[string]func(context.Context, sandbox.Spec, func(protocol.Event)) sandbox.Ending{
		"off": without.Run, "in process": newEngineWith(t, sandbox.Config{CacheDir: dir}).Run,
	} {
		if got := run(t.Context(), spec(t, module), nil); got.Kind != sandbox.Refused || !strings.Contains(got.Message, off) {
			t.Errorf("%s: Run = %+v, want refused with %q", name, got, off)
		}
	}
	for _, tt := range []struct{ name, text, want string }{
		{"no run", `(component)`, "exports neither wasi:cli/run@0.2 nor murmur:capsule/run@0.1.0"},
		{"another run", strings.ReplaceAll(runs("", "unreachable"), "wasi:cli/run@0.2.0", "wasi:cli/run@0.3.0"), "exports neither"},
		{"an unknown interface", runs(`(import "murmur:shell/execute@0.1.0" (instance))`, ""), `imports "murmur:shell/execute@0.1.0", and there is no such interface`},
		{"HTTP", runs(`(import "wasi:http/types@0.2.0" (instance))`, ""), `imports "wasi:http/types@0.2.0", and there is no such interface`},
		{"a function of its own", runs(`(import "system" (func))`, ""), `imports "system", and there is no such interface`},
		{"no function run", strings.Replace(runs("", "(i32.const 0)"), `(export "run" (func $run))`, `(export "go" (func $run))`, 1), "exports no function run of wasi:cli/run@0.2"},
		{"an unknown function", runs(`(import "wasi:cli/stdout@0.2.0" (instance (export "fork" (func))))`, "(i32.const 0)"), "cannot be instantiated: component imports instance `wasi:cli/stdout@0.2.0`"},
		{"invalid code", runs("", "i32.const 1 i32.const 2"), "cannot be compiled"},
		{"threads", runs("(core module (memory 1 2 shared))", ""), "cannot be compiled"},
		{"64-bit memory", runs("(core module (memory i64 1))", ""), "cannot be compiled"},
		{"a branch to too many places", runs("(core module (func (block $b (br_table "+strings.Repeat("$b ", 1<<16+1)+"$b (i32.const 0)))))", ""), "a br_table of 65537 targets"},
		{"tail calls", runs("(core module (func $f return_call $f))", ""), "cannot be compiled"},
		{"async", runs("(core func (canon task.cancel))", ""), "cannot be compiled"},
		{"too many memories", runs("(core module $n (memory 1))"+strings.Repeat("(core instance (instantiate $n))", 5), "(i32.const 0)"), "memory count too high at 5"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, wat(t, tt.text))
			s.Limits.Instances = 5
			got := on.Run(t.Context(), s, nil)
			if got.Kind != sandbox.Refused || !strings.Contains(got.Message, tt.want) || !errors.Is(got.Err, sandbox.ErrRefused) {
				t.Errorf("Run = %s %q %v, want refused, by the component's fault, with %q", got.Kind, got.Message, got.Err, tt.want)
			}
		})
	}
	s := spec(t, file(t, []byte("\x00asm\x0d\x00\x01\x00\x01\x7f")))
	if got := on.Run(t.Context(), s, nil); got.Kind != sandbox.Refused || !strings.Contains(got.Message, "cannot be read: malformed WebAssembly: it ends inside a section") {
		t.Errorf("Run of what is cut off = %s %q", got.Kind, got.Message)
	}
}

// runs is a component with no import of its own, beside what stands before it,
// and this function run.
func runs(before, body string) string {
	return fmt.Sprintf(`(component
	  (core module $m (func (export "run") (result i32) %s))
	  %s
	  (core instance $i (instantiate $m))
	  (func $run (result (result)) (canon lift (core func $i "run")))
	  (instance $command (export "run" (func $run)))
	  (export "wasi:cli/run@0.2.0" (instance $command)))`, body, before)
}

// TestNothingRunsAfterAComponent in its process.
func TestNothingRunsAfterAComponent(t *testing.T) {
	t.Parallel()
	p := withComponents(t)
	before := p.PIDs()
	if got := p.Run(t.Context(), spec(t, command(t, "", `(i32.const 0)`)), nil); got.Kind != sandbox.Exited {
		t.Fatalf("Run = %+v, want exited", got)
	}
	if got := p.Run(t.Context(), spec(t, testenv.WAT(t, "noop")), nil); got.Kind != sandbox.Exited {
		t.Fatalf("Run of a module = %+v, want exited", got)
	}
	testenv.EventuallyTrue(t, soon, "the process of the component is gone", func() bool {
		after := p.PIDs()
		return len(before) == 1 && len(after) == 1 && before[0] != after[0]
	})
	if n := p.Deaths(); n != 0 {
		t.Errorf("%d deaths of processes, want none: it was ended", n)
	}
}

// TestComponentIsAlone in its process, also where guests share one, and what
// ends its process ends no neighbour.
func TestComponentIsAlone(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := withComponents(t, func(c *sandbox.ProcessConfig) { c.WorkRoot, c.Density = root, 4 })
	neighbour := begin(t, t.Context(), p, withDirectory(t, root, talker(t)))
	s := spec(t, command(t, "", `(call $sleep (i64.const 3600000000000)) (i32.const 0)`))
	s.Limits.DeadlineSeconds = 1
	if got := p.Run(t.Context(), s, nil); got.Limit != sandbox.LimitDeadline {
		t.Errorf("Run = %+v, want the deadline", got)
	}
	select {
	case end := <-neighbour.end:
		t.Errorf("the neighbour ended: %+v", end)
	default:
	}
}
