package main

import "testing"

// TestADeniedUserHearsWhatItLeftOut: a party of docs/deploy/nats-server.conf that
// does not say which one it is.
func TestADeniedUserHearsWhatItLeftOut(t *testing.T) {
	s := confServer(t)
	as(t, s, "operator", "pw-operator")
	want(t, "operator", "init")
	want(t, "operator", "capsule", "push", agent(t, "text"))
	for _, c := range []struct {
		user, password string
		args           []string
		says           string
	}{
		{"parent-1", "pw-parent", []string{"dispatch", "agent@1.0.0", "--task", "x", "--allow-unserved"}, "--session"},
		{"parent-1", "pw-parent", []string{"cancel", "dlg_01"}, "SESSION.DELEGATION"},
		{"parent-1", "pw-parent", []string{"result", "tsk_01"}, "SESSION.DELEGATION"},
		{"worker-1", "pw-worker", []string{"worker", "--work-root", t.TempDir(), "--cache-dir", t.TempDir()}, "--worker-id (STARLING_WORKER_ID)"},
		{"observer", "pw-observer", []string{"watch", confSession + ".dlg_01"}, "by the task id (tsk_…)"},
	} {
		as(t, s, c.user, c.password)
		got := starling(t, "", c.args...)
		if got.status != exitDenied {
			t.Errorf("%s: starling %v = %d, want %d\n%s", c.user, c.args, got.status, exitDenied, got.err)
		}
		contains(t, c.user+": stderr", got.err, c.says, "denied by the bus")
	}
	as(t, s, "parent-1", "pw-parent")
	want(t, "parent", "dispatch", "agent@1.0.0", "--task", "x", "--allow-unserved", "--session", confSession)
	t.Setenv("STARLING_INBOX_PREFIX", "")
	got := starling(t, "", "dispatch", "agent@1.0.0", "--task", "x", "--session", confSession)
	contains(t, "stderr without an inbox prefix", got.err, "--inbox-prefix (STARLING_INBOX_PREFIX)")
}
