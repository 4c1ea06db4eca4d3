package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/testenv"
)

// laughs is a manifest that is billions of words once its aliases are written out.
const laughs = `a: &a [l, l, l, l, l, l, l, l, l]
b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]
c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]
d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]
e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]
f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]
g: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f]
name: x
version: 1.0.0
`

func bigManifest(t *testing.T) string {
	t.Helper()
	return capsuleDir(t, testenv.WAT(t, "noop"), "name: x\nversion: 1.0.0\n#"+strings.Repeat("x", 64<<10))
}

// brokenSource is the directory of a Go command that cannot be built.
func brokenSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestWhatWouldBeIgnoredIsRefused: an argument that could not have its effect is
// wrong usage, before anything connects.
func TestWhatWouldBeIgnoredIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"a delegation without its parent's session": {
			[]string{"dispatch", "hello@1.0.0", "--task", "x", "--delegation", "dlg_1"}, []string{"--delegation", "--session"},
		},
		"a name beside a manifest": {
			[]string{"capsule", "push", agent(t, "text"), "--name", "foo"}, []string{"murmur.yaml", "--name"},
		},
		"a version beside a manifest": {
			[]string{"run", agent(t, "text"), "--capsule-version", "9", "--task", "x"}, []string{"murmur.yaml", "--capsule-version"},
		},
		"more slots than the one of run": {
			[]string{"run", agent(t, "text"), "--slots", "2", "--task", "x"}, []string{"--slots", "one task"},
		},
		"capabilities that cannot be read": {
			[]string{"dispatch", "hello@1.0.0", "--task", "x", "--capabilities", `{"limits":{"fuel":1}}`}, []string{"--capabilities", "capabilities.limits.fuel"},
		},
		"capabilities from an empty file": {
			[]string{"dispatch", "hello@1.0.0", "--task", "x", "--capabilities", "@" + os.DevNull}, []string{"--capabilities", "JSON"},
		},
		"a file that is no module": {
			[]string{"run", "main.go", "--task", "x"}, []string{"main.go", "no WebAssembly"},
		},
		"no capabilities at all": {
			[]string{"dispatch", "hello@1.0.0", "--task", "x", "--capabilities", ""}, []string{"--capabilities is empty", "{}"},
		},
		"a module's text": {
			[]string{"run", "../../testenv/testdata/capsules/spin.wat", "--task", "x"}, []string{"text format", "wat2wasm"},
		},
		"a file without an end": {
			[]string{"run", "/dev/zero", "--task", "x"}, []string{"/dev/zero", "no WebAssembly"},
		},
		"a manifest without an end": {
			[]string{"run", bigManifest(t), "--task", "x"}, []string{"murmur.yaml has more than 65536 bytes"},
		},
		"a manifest that grows": {
			[]string{"capsule", "push", capsuleDir(t, testenv.WAT(t, "noop"), laughs)}, []string{"manifest", "excessive aliasing"},
		},
		"a module that is too large": {
			[]string{"run", agent(t, "text"), "--task", "x", "--max-module-bytes", "1000"}, []string{"at most 1000", "STARLING_MAX_MODULE_BYTES"},
		},
		"a door of dev without a port": {
			[]string{"dev", "--door-listen", "foo"}, []string{"--door-listen", "HOST:PORT"},
		},
		"completion for a shell that has none": {
			[]string{"completion", "tcsh"}, []string{`"tcsh"`, "bash", "zsh"},
		},
		"a delegation with two dots": {
			[]string{"cancel", "bad..id"}, []string{`"bad..id" names no delegation`, `".id"`},
		},
		"slots that are no number": {
			[]string{"worker", "--slots", "abc"}, []string{`--slots is "abc"`, "a whole number"},
		},
		"a time that is none": {
			[]string{"worker", "--retention", "3"}, []string{`--retention is "3"`, "30s"},
		},
		"pools and limits that cannot be": {
			[]string{"init", "--pools", "a.b", "--replicas", "2", "--ack-wait", "1ms", "--max-jobs", "-1"},
			[]string{"--pools (STARLING_POOLS)", "--replicas (STARLING_REPLICAS) is 2", "--ack-wait (STARLING_ACK_WAIT)", "--max-jobs (STARLING_MAX_JOBS)"},
		},
		"limits without room for one message": {
			[]string{"init", "--max-job-bytes", "1000", "--max-frame-bytes", "1000", "--max-ledger-bytes", "1000", "--max-result-bytes", "1000"},
			[]string{
				"--max-job-bytes (STARLING_MAX_JOB_BYTES) is 1000: it is at least 279552, the room of one largest job",
				"--max-frame-bytes (STARLING_MAX_FRAME_BYTES) is 1000: it is at least 525312", "--max-ledger-bytes (STARLING_MAX_LEDGER_BYTES) is 1000: it is at least 66560",
				"--max-result-bytes (STARLING_MAX_RESULT_BYTES) is 1000: it is at least 8454144",
			},
		},
		"a queue without a limit": {
			[]string{"init", "--max-job-bytes", "none"}, []string{`--max-job-bytes is "none": it is a whole number`},
		},
		"a limit that is no number": {
			[]string{"init", "--max-frame-bytes", "-1"}, []string{`--max-frame-bytes is "-1": it is a whole number of bytes, or none`},
		},
		"a session that is no id": {
			[]string{"door", "--session", "a.b"}, []string{`--session: bad name: session is "a.b"`, "A-Z"},
		},
		"a work root below a file": {
			[]string{"worker", "--work-root", "main.go/x/y", "--url", "nats://127.0.0.1:1"}, []string{"STARLING_WORK_ROOT (--work-root)", "main.go is no directory"},
		},
		"a cache that is a file, of run": {
			[]string{"run", brokenSource(t), "--cache-dir", "main.go", "--task", "x"}, []string{"STARLING_CACHE_DIR (--cache-dir)", "main.go is no directory"},
		},
		"components that are neither on nor off": {
			[]string{"run", brokenSource(t), "--components", "yes", "--task", "x"}, []string{`--components) is "yes": it is on or off`},
		},
		"source to build, and no task": {
			[]string{"run", brokenSource(t)}, []string{"the task is empty", "--task TEXT"},
		},
		"a flag that there is not": {
			[]string{"dlq", "ls", "--frob"}, []string{"unknown flag: --frob; see starling dlq ls --help"},
		},
		"a command that there is not": {
			[]string{"frobnicate"}, []string{`starling has no command "frobnicate"; see starling --help`},
		},
		"a command that is nearly there": {
			[]string{"dlq", "dorp"}, []string{`starling dlq has no command "dorp"; did you mean drop? see starling dlq --help`},
		},
		"an argument too many": {
			[]string{"door", "x"}, []string{`starling door takes no arguments, and there is "x"; see starling door --help`},
		},
		"an argument too few": {
			[]string{"run"}, []string{"starling run takes the capsule: FILE.wasm or DIR; see starling run --help"},
		},
		"one too many": {
			[]string{"watch", "a", "b"}, []string{"starling watch takes a delegation: ", ", and there are 2 arguments; see starling watch --help"},
		},
		"a listen address without a port": {
			[]string{"door", "--listen", "nonsense"}, []string{"--listen", "HOST:PORT"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := starling(t, "", append(c.args, "--log-level", "error")...)
			if got.status != exitUsage {
				t.Errorf("status %d, want %d\n%s", got.status, exitUsage, got.err)
			}
			contains(t, "stderr", got.err, c.says...)
		})
	}
}

// TestAVariableThatCannotBeReadIsNamed with what it is and what it should be.
func TestAVariableThatCannotBeReadIsNamed(t *testing.T) {
	for _, c := range []struct{ variable, value, wants string }{
		{"STARLING_SLOTS", "abc", "a whole number"},
		{"STARLING_RETENTION", "soon", "a duration"},
		{"STARLING_TLS_FIRST", "maybe", "true or false"},
		{"STARLING_MAX_FRAME_BYTES", "lots", "a whole number of bytes, or none"},
	} {
		t.Run(c.variable, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			command := "worker"
			if strings.HasPrefix(c.variable, "STARLING_MAX_") {
				command = "init"
			}
			got := starling(t, "", command)
			if got.status != exitUsage {
				t.Errorf("status %d, want %d", got.status, exitUsage)
			}
			contains(t, "stderr", got.err, c.variable+` is "`+c.value+`": it is `+c.wants)
		})
	}
}
