package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/testenv"
)

// TestParentByHand runs the parent of docs/parents.md: nats.go and net/http
// alone.
func TestParentByHand(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := f.server.ClientURL()
	if got := starling(t, "", "capsule", "push", hello(t), "--url", url); got.status != exitOK {
		t.Fatalf("push: %s", got.err)
	}
	var said output
	if err := parent(t.Context(), url, "by hand", func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) }); err != nil {
		t.Fatal(err)
	}
	contains(t, "what the parent heard", said.String(),
		"frame status-update ", "frame text ", "frame artifact ", "frame response ", `"state":"TASK_STATE_COMPLETED"`,
		"completion trusted dlg_", ` ses_`, "Delegated capsule finished.", `"method":"message/send"`,
		`outcome {"delegation_id":"dlg_`, `"status":"ok"`, `"delivered":true`)
}

func TestCommandsOfADelegation(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := []string{"--url", f.server.ClientURL()}
	must := func(args ...string) string {
		t.Helper()
		got := starling(t, "", append(args, url...)...)
		if got.status != exitOK {
			t.Fatalf("starling %v = %d, want 0\n%s%s", args, got.status, got.out, got.err)
		}
		return got.out
	}
	must("capsule", "push", hello(t))
	contains(t, "capsule ls", must("capsule", "ls"), "hello@1.0.0", "sha256:")
	var entry protocol.CapsuleEntry
	if err := json.Unmarshal([]byte(must("capsule", "inspect", "hello@1.0.0")), &entry); err != nil || entry.Manifest.Output != protocol.OutputEvents {
		t.Errorf("capsule inspect = %+v, %v", entry, err)
	}
	contains(t, "workers", must("workers"), string(f.staff.worker.ID()), "default")

	key := strings.TrimSpace(must("dispatch", "hello@1.0.0", "--task", "the fleet"))
	if !strings.HasPrefix(key, "ses_") || !strings.Contains(key, ".dlg_") {
		t.Fatalf("dispatch printed %q, want SESSION.DELEGATION", key)
	}
	contains(t, "watch", must("watch", key), "Hello, THE FLEET!")
	if got := must("result", key); got != "Hello, THE FLEET!" {
		t.Errorf("result = %q, want the result alone", got)
	}
	session, delegation, _ := strings.Cut(key, ".")
	twice := starling(t, "", append([]string{"dispatch", "hello@1.0.0", "--task", "another", "--session", session, "--delegation", delegation}, url...)...)
	if twice.status != exitOK || strings.TrimSpace(twice.out) != key {
		t.Errorf("dispatch of the same delegation = %d %q, want 0 and %s", twice.status, twice.out, key)
	}
	contains(t, "stderr of the second dispatch", twice.err, delegation, "dispatched before", "the task of that dispatch")
	if got := must("result", delegation); got != "Hello, THE FLEET!" {
		t.Errorf("result by delegation id = %q", got)
	}
	contains(t, "ps --all", must("ps", "--all"), delegation, "hello@1.0.0", "ok")
	if got := must("ps"); strings.Contains(got, delegation) {
		t.Errorf("ps lists an ended delegation:\n%s", got)
	}
	again := starling(t, "", append([]string{"cancel", key}, url...)...)
	if again.status != exitFailure {
		t.Errorf("cancel of an ended delegation = %d, want %d", again.status, exitFailure)
	}
	contains(t, "stderr", again.err, " is ok, and nothing was changed")
	contains(t, "dispatch --follow", must("dispatch", "hello@1.0.0", "--task", "again", "--follow"), "Hello, AGAIN!")
	must("capsule", "rm", "hello@1.0.0")
	gone := starling(t, "", append([]string{"dispatch", "hello@1.0.0", "--task", "x"}, url...)...)
	if gone.status != exitNotFound {
		t.Errorf("dispatch of a removed capsule = %d, want %d\n%s", gone.status, exitNotFound, gone.err)
	}
}

func TestCancelOfARunningDelegation(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := []string{"--url", f.server.ClientURL()}
	starling(t, "", append([]string{"capsule", "push", agent(t, protocol.OutputEvents)}, url...)...)
	key := strings.TrimSpace(starling(t, "", append([]string{"dispatch", "agent@1.0.0", "--task", "sleeper"}, url...)...).out)
	testenv.EventuallyTrue(t, 20*time.Second, "working", func() bool {
		return strings.Contains(starling(t, "", append([]string{"ps"}, url...)...).out, "working")
	})
	got := starling(t, "", append([]string{"cancel", key}, url...)...)
	if got.status != exitOK {
		t.Fatalf("cancel = %d, want 0\n%s", got.status, got.err)
	}
	contains(t, "cancel", got.out, "terminated (task canceled")
	if got := starling(t, "", append([]string{"result", key}, url...)...); got.status != exitTerminated {
		t.Errorf("result of a canceled task = %d, want %d", got.status, exitTerminated)
	}
}

func TestAPoolThatNobodyServesIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := []string{"--url", f.server.ClientURL()}
	starling(t, "", append([]string{"capsule", "push", hello(t)}, url...)...)
	if got := starling(t, "", append([]string{"init", "--pools", "gpu"}, url...)...); got.status != exitOK {
		t.Fatalf("init = %d\n%s", got.status, got.err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--pool", "gpu"}, "--allow-unserved"},
		{[]string{"--pool", "nope"}, "starling init --pools nope"},
		{[]string{"--pool", "nope", "--allow-unserved"}, "starling init --pools nope"},
	} {
		got := starling(t, "", slices.Concat([]string{"dispatch", "hello@1.0.0", "--task", "x"}, c.args, url)...)
		if got.status != exitRefused {
			t.Errorf("dispatch %v = %d, want %d\n%s", c.args, got.status, exitRefused, got.err)
		}
		contains(t, "stderr", got.err, c.says)
	}
	if got := starling(t, "", append([]string{"dispatch", "hello@1.0.0", "--task", "x", "--pool", "gpu", "--allow-unserved"}, url...)...); got.status != exitOK {
		t.Errorf("dispatch --allow-unserved = %d, want 0\n%s", got.status, got.err)
	}
}

func TestDoorPrintsWhatItIsTold(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := f.server.ClientURL()
	starling(t, "", "capsule", "push", hello(t), "--url", url)
	door, address, closeDoor, err := openDoor("127.0.0.1:0", "ses_cli")
	if err != nil {
		t.Fatal(err)
	}
	got := starling(t, "", "dispatch", "hello@1.0.0", "--task", "door", "--session", "ses_cli", "--door", address, "--wait", "--json", "--url", url)
	if got.status != exitOK {
		t.Fatalf("dispatch = %d\n%s", got.status, got.err)
	}
	contains(t, "the record", got.out, `"delivered":true`)
	told := <-door.Received()
	contains(t, "the door", told.Text, "Delegated capsule finished.", "status: ok")
	if err := closeDoor(); err != nil {
		t.Error(err)
	}
}

// TestDispatchSaysWhetherTheParentWasTold on standard error, whichever way it waits; the
// exit status is the task's.
func TestDispatchSaysWhetherTheParentWasTold(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	deaf := "http://127.0.0.1:1/s3cret"
	for _, c := range []struct {
		door, says string
		flags      []string
	}{
		{testenv.Door(t).URL(), "starling: the parent was told at its door\n", []string{"--wait"}},
		{testenv.Door(t).URL(), "starling: the parent was told at its door\n", []string{"--wait", "--json"}},
		{testenv.Door(t).URL(), "starling: the parent was told at its door\n", []string{"--follow"}},
		{testenv.Door(t).URL(), "starling: the parent was told at its door\n", []string{"--follow", "--json"}},
		{deaf, "starling: the parent was not told: failed to connect to 127.0.0.1:1", []string{"--wait"}},
		{deaf, "starling: the parent was not told: failed to connect to 127.0.0.1:1", []string{"--follow"}},
	} {
		got := o.do(append([]string{"dispatch", "hello@1.0.0", "--task", "x", "--door", c.door}, c.flags...)...)
		if got.status != exitOK || strings.Contains(got.err, "s3cret") || strings.Contains(got.out, "the parent") {
			t.Errorf("dispatch %v = %d, %q, %q", c.flags, got.status, got.out, got.err)
		}
		contains(t, "stderr", got.err, c.says)
	}
	if got := o.do("dispatch", "hello@1.0.0", "--task", "x", "--wait"); strings.Contains(got.err, "the parent") {
		t.Errorf("without a door it says %q", got.err)
	}
}
