package main

import (
	"os"
	"testing"
)

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
