package main

import (
	"strings"
	"testing"
)

// TestWhatACapsuleCommandDidIsSaid on standard error, for people.
func TestWhatACapsuleCommandDidIsSaid(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	dir := hello(t)
	first := o.do("capsule", "push", dir)
	contains(t, "the first push", first.err, "stored, ", " MB")
	second := o.do("capsule", "push", dir)
	contains(t, "the second push", second.err, "the store has it already", "nothing was changed")
	if first.out != second.out {
		t.Errorf("stdout = %q, then %q", first.out, second.out)
	}
	if got := o.must("capsule", "inspect", "hello@1.0.0", "--json"); strings.Count(got, "\n") != 1 {
		t.Errorf("capsule inspect --json = %q, want a line", got)
	}
	if got := o.must("capsule", "inspect", "hello@1.0.0"); strings.Count(got, "\n") < 10 {
		t.Errorf("capsule inspect = %q, want a line a setting", got)
	}
	contains(t, "capsule rm", o.do("capsule", "rm", "hello@1.0.0").err, "removed hello@1.0.0")
	gone := o.do("dispatch", "hello@1.0.0", "--task", "x")
	contains(t, "dispatch of what was not pushed", gone.err, "push it", "starling capsule ls")
}
