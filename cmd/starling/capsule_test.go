package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"starling/testenv"
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
	store, err := testenv.JetStream(t, o.url).Stream(t.Context(), "OBJ_starling-capsules")
	if err == nil {
		err = store.Purge(t.Context(), jetstream.WithPurgeSubject("$O.starling-capsules.C.>"))
	}
	if err != nil {
		t.Fatal(err)
	}
	third := o.do("capsule", "push", dir)
	contains(t, "the push after a purge", third.err, "had lost bytes of its module: they are stored again, ", " MB")
	if first.out != second.out || first.out != third.out {
		t.Errorf("stdout = %q, then %q, then %q", first.out, second.out, third.out)
	}
	contains(t, "a task after it", o.must("dispatch", "hello@1.0.0", "--task", "x", "--wait"), "ok (")
	if got := o.must("capsule", "inspect", "hello@1.0.0", "--json"); strings.Count(got, "\n") != 1 {
		t.Errorf("capsule inspect --json = %q, want a line", got)
	}
	if got := o.must("capsule", "inspect", "hello@1.0.0"); strings.Count(got, "\n") < 10 {
		t.Errorf("capsule inspect = %q, want a line a setting", got)
	}
	contains(t, "capsule rm", o.do("capsule", "rm", "hello@1.0.0").err, "removed hello@1.0.0")
	again := o.do("capsule", "rm", "hello@1.0.0")
	contains(t, "capsule rm of what is gone", again.err, "there is no hello@1.0.0 to remove: `starling capsule ls` lists what there is")
	if again.status != exitNotFound {
		t.Errorf("capsule rm of what is gone = %d, want %d", again.status, exitNotFound)
	}
	gone := o.do("dispatch", "hello@1.0.0", "--task", "x")
	contains(t, "dispatch of what was not pushed", gone.err, "push it", "starling capsule ls")
}
