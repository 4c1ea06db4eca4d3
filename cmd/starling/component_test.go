package main

import (
	"os"
	"path/filepath"
	"testing"

	"starling/testenv"
)

// TestRunComponent: the flag decides, and the variable.
func TestRunComponent(t *testing.T) {
	t.Parallel()
	module := testenv.WAT(t, "component")
	on := starling(t, "", runArgs(t, "run", module, "--task", "a task", "--components", "on")...)
	if on.status != exitOK || on.out != "a task\n" {
		t.Errorf("run --components on = %d, %q\n%s; want %d and the task", on.status, on.out, on.err, exitOK)
	}
	off := starling(t, "", runArgs(t, "run", module, "--task", "a task")...)
	if off.status != exitUsage || off.out != "" {
		t.Errorf("run = %d, %q, want %d", off.status, off.out, exitUsage)
	}
	contains(t, "stderr", off.err, "is a WASI 0.2 component, and components are off: turn them on for the worker with STARLING_COMPONENTS=on")
	murmur := starling(t, "", runArgs(t, "run", testenv.WAT(t, "murmur"), "--task", "a task", "--components", "on")...)
	if murmur.status != exitOK || murmur.out != "hello from murmur\n" {
		t.Errorf("run of murmur:capsule/run = %d, %q\n%s", murmur.status, murmur.out, murmur.err)
	}
}

func TestComponentSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--components", "yes"}, `STARLING_COMPONENTS (--components) is "yes": it is on or off`},
		{[]string{"--components", "on", "--sandbox", "inprocess"}, "components run in sandbox processes only"},
	} {
		got := starling(t, "", runArgs(t, append([]string{"worker"}, tt.args...)...)...)
		if got.status != exitUsage {
			t.Errorf("worker %v = %d, want %d", tt.args, got.status, exitUsage)
		}
		contains(t, "stderr", got.err, tt.want)
	}
}

// TestFleetComponent: it is pushed with a warning, runs where the workers have the
// setting, and is refused by those that have not.
func TestFleetComponent(t *testing.T) {
	t.Parallel()
	for _, components := range []string{componentsOn, componentsOff} {
		t.Run(components, func(t *testing.T) {
			t.Parallel()
			f := testFleet(t, func(c *fleetConfig) { c.sandbox.Components = components })
			o := operator{t, f.server.ClientURL()}
			pushed := o.do("capsule", "push", testenv.WAT(t, "component"), "--capsule-version", "1.0.0")
			if pushed.status != exitOK {
				t.Fatalf("push = %d\n%s", pushed.status, pushed.err)
			}
			contains(t, "stderr of push", pushed.err, "is a WASI 0.2 component: workers refuse it unless STARLING_COMPONENTS is on")
			got := o.do("dispatch", "component@1.0.0", "--task", "a task", "--follow")
			if components == componentsOn {
				if got.status != exitOK || got.out != "a task\n" {
					t.Errorf("dispatch = %d, %q\n%s; want the task", got.status, got.out, got.err)
				}
				return
			}
			if got.status != exitCrashed {
				t.Errorf("dispatch = %d, want %d", got.status, exitCrashed)
			}
			contains(t, "stderr", got.err, "is a WASI 0.2 component, and components are off: turn them on for the worker with STARLING_COMPONENTS=on")
		})
	}
}

// TestPushComponentThatCannotRun is refused before it is stored.
func TestPushComponentThatCannotRun(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.wasm")
	if err := os.WriteFile(empty, []byte("\x00asm\x0d\x00\x01\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := starling(t, "", "capsule", "push", empty)
	if got.status != exitUsage {
		t.Errorf("push = %d, want %d", got.status, exitUsage)
	}
	contains(t, "stderr", got.err, "exports neither wasi:cli/run@0.2 nor murmur:capsule/run@0.1.0")
}
