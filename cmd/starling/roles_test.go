package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"

	"starling/protocol"
	"starling/testenv"
)

// The parties of docs/deploy/nats-server.conf.
const (
	confWorker  = "wrk_host-1"
	confSession = "ses_parent-1"
)

// confOptions is docs/deploy/nats-server.conf as the server itself reads it. The
// test must not be parallel.
func confOptions(t *testing.T) *server.Options {
	t.Helper()
	for _, who := range []string{"OPERATOR", "WORKER", "PARENT", "OBSERVER"} {
		t.Setenv(who+"_PASSWORD", "pw-"+strings.ToLower(who))
	}
	return processed(t, "../../docs/deploy/nats-server.conf")
}

// processed is a configuration as the server reads it.
func processed(t *testing.T, file string) *server.Options {
	t.Helper()
	loaded, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !loaded.JetStream || loaded.StoreDir == "" {
		t.Errorf("the configuration turns JetStream on: %t, store %q", loaded.JetStream, loaded.StoreDir)
	}
	return loaded
}

// confServer is a server with the users of docs/deploy/nats-server.conf.
func confServer(t *testing.T) *testenv.Server {
	t.Helper()
	loaded := confOptions(t)
	return testenv.NATS(t, testenv.WithOptions(func(o *server.Options) { o.Users = loaded.Users }))
}

// as makes the settings of a party the environment's.
func as(t *testing.T, server *testenv.Server, user, password string) {
	t.Helper()
	t.Setenv("STARLING_URL", server.URL())
	t.Setenv("STARLING_USER", user)
	t.Setenv("STARLING_PASSWORD", password)
	t.Setenv("STARLING_INBOX_PREFIX", "_INBOX_"+user)
}

// want runs a command that must succeed.
func want(t *testing.T, who string, args ...string) result {
	t.Helper()
	got := starling(t, "", args...)
	if got.status != 0 {
		t.Errorf("%s: starling %s = %d\n%s%s", who, strings.Join(args, " "), got.status, got.out, got.err)
	}
	return got
}

// TestEachPartyDoesItsJobWithItsRightsAlone runs every command of each party
// against the server of docs/deploy/nats-server.conf.
func TestEachPartyDoesItsJobWithItsRightsAlone(t *testing.T) {
	s := confServer(t)
	operator := func() { as(t, s, "operator", "pw-operator") }
	operator()
	want(t, "operator", "init", "--pools", "default,gpu")
	want(t, "operator", "capsule", "push", agent(t, "text"))

	as(t, s, "worker-1", "pw-worker")
	worked := make(chan result, 1)
	dir := t.TempDir()
	go func() {
		worked <- starling(t, "", "worker", "--worker-id", confWorker, "--work-root", filepath.Join(dir, "work"),
			"--cache-dir", testenv.CompiledCache(t), "--cancel-grace", "200ms")
	}()
	operator()
	testenv.EventuallyTrue(t, 30*time.Second, "a worker", func() bool {
		return strings.Contains(starling(t, "", "workers").out, confWorker)
	})

	door := testenv.Door(t)
	as(t, s, "parent-1", "pw-parent")
	want(t, "parent", "dispatch", "agent@1.0.0", "--session", confSession, "--task", "echo hi", "--door", door.URL(), "--wait")
	door.WaitFor(t, 1, 30*time.Second)
	large := want(t, "parent", "dispatch", "agent@1.0.0", "--session", confSession, "--task", "repeat 300000", "--wait")
	key := strings.TrimSpace(strings.TrimPrefix(large.err, "delegated "))
	task := taskOf(t, s, key)
	if got := want(t, "parent", "result", key); len(got.out) < 300000 {
		t.Errorf("parent: result = %d bytes, want the whole of a large one", len(got.out))
	}
	running := strings.TrimSpace(want(t, "parent", "dispatch", "agent@1.0.0", "--session", confSession, "--task", "stubborn").out)

	as(t, s, "observer", "pw-observer")
	contains(t, "what an observer sees of a large result", want(t, "observer", "watch", task).out, "300000 bytes", "may not read")

	as(t, s, "parent-1", "pw-parent")
	want(t, "parent", "cancel", running)

	operator()
	for _, command := range []string{"ps --all", "ps --undelivered", "stats", "doctor", "dlq ls", "capsule ls", "capsule inspect agent@1.0.0", "result " + key} {
		want(t, "operator", strings.Fields(command)...)
	}
	as(t, s, "parent-1", "pw-parent")
	queued := strings.TrimSpace(want(t, "parent", "dispatch", "agent@1.0.0", "--session", confSession, "--task", "x", "--pool", "gpu", "--allow-unserved").out)
	contains(t, "what a parent is told of a queued job", want(t, "parent", "cancel", queued).err, "stays queued", "--keep-job")

	operator()
	want(t, "operator", "capsule", "rm", "agent@1.0.0")
	want(t, "operator", "drain", confWorker, "--wait")
	if got := <-worked; got.status != 0 || strings.Contains(strings.ToLower(got.err), "violation") {
		t.Errorf("worker = %d; it met the end of its rights, or worse:\n%s", got.status, got.err)
	}
}

// TestAParentThatReadsFramesNeedsTheLinesThatAreCommentedOut in
// docs/deploy/nats-server.conf.
func TestAParentThatReadsFramesNeedsTheLinesThatAreCommentedOut(t *testing.T) {
	options := confOptions(t) // and its passwords
	text := readDoc(t, "docs/deploy/nats-server.conf")
	commented := regexp.MustCompile(`(?m)^ +# ("\$JS\.API\..*STARLING_TASKS.*")$`)
	lines := commented.FindAllString(text, -1)
	if len(lines) != 5 {
		t.Fatalf("%d lines are commented out, want 5", len(lines))
	}
	file := filepath.Join(t.TempDir(), "nats-server.conf")
	if err := os.WriteFile(file, []byte(commented.ReplaceAllString(text, "          $1")), 0o600); err != nil {
		t.Fatal(err)
	}
	var own *server.Options
	s := testenv.NATS(t, testenv.WithOptions(func(o *server.Options) { own, o.Users = o, processed(t, file).Users }))
	as(t, s, "operator", "pw-operator")
	want(t, "operator", "init")
	want(t, "operator", "capsule", "push", agent(t, "text"))
	as(t, s, "worker-1", "pw-worker")
	worked := make(chan result, 1)
	dir := t.TempDir()
	go func() {
		worked <- starling(t, "", "worker", "--worker-id", confWorker, "--work-root", filepath.Join(dir, "work"), "--cache-dir", testenv.CompiledCache(t))
	}()
	as(t, s, "operator", "pw-operator")
	testenv.EventuallyTrue(t, 30*time.Second, "a worker", func() bool {
		return strings.Contains(starling(t, "", "workers").out, confWorker)
	})
	as(t, s, "parent-1", "pw-parent")
	followed := want(t, "parent", "dispatch", "agent@1.0.0", "--session", confSession, "--task", "echo hi", "--follow")
	contains(t, "what a parent follows", followed.out, "hi")
	first, _, _ := strings.Cut(followed.err, "\n")
	key := strings.TrimPrefix(first, "delegated ")
	reads := [][]string{{"watch", key}, {"result", key}}
	for _, args := range reads {
		contains(t, args[0], want(t, "parent", args...).out, "hi")
	}
	as(t, s, "operator", "pw-operator")
	want(t, "operator", "drain", confWorker, "--wait")
	if got := <-worked; got.status != 0 {
		t.Errorf("worker = %d\n%s", got.status, got.err)
	}
	own.Users = options.Users // as the page has them
	s.Restart()
	as(t, s, "parent-1", "pw-parent")
	for _, args := range reads {
		if got := starling(t, "", args...); got.status != exitDenied {
			t.Errorf("starling %v without those lines = %d, want %d\n%s", args, got.status, exitDenied, got.err)
		}
	}
}

// taskOf is the task of a delegation, by an operator.
func taskOf(t *testing.T, s *testenv.Server, key string) string {
	t.Helper()
	bus, err := busSettings{URL: s.URL(), Namespace: "starling", User: "operator", Password: "pw-operator"}.connect(t.Context(), "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bus.Close(); err != nil {
			t.Error(err)
		}
	}()
	session, delegation, _ := strings.Cut(key, ".")
	entry, err := bus.ReadRecord(t.Context(), protocol.SessionID(session), protocol.DelegationID(delegation), 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(entry.Record.TaskID)
}

// TestEachPartyIsRefusedWhatItNeedsNot goes through what the users of
// docs/deploy/nats-server.conf may not do, and what they are told.
func TestEachPartyIsRefusedWhatItNeedsNot(t *testing.T) {
	s := confServer(t)
	as(t, s, "operator", "pw-operator")
	want(t, "operator", "init", "--pools", "default,gpu")
	want(t, "operator", "capsule", "push", agent(t, "text"))
	as(t, s, "parent-1", "pw-parent")
	key := strings.TrimSpace(want(t, "parent", "dispatch", "agent@1.0.0", "--session", confSession, "--task", "x", "--allow-unserved").out)
	capsule := capsuleDir(t, testenv.GoCapsule(t, "hello"), "name: agent\nversion: 2.0.0\n")
	for _, refused := range []struct {
		who, command string
		says         []string // beside the subject of the refusal
	}{
		{"parent-1", "dispatch agent@1.0.0 --session ses_another --task x --allow-unserved", []string{"ses_another"}},
		{"parent-1", "init --pools more", []string{"STREAM"}},
		{"parent-1", "capsule push " + capsule, nil},
		{"parent-1", "capsule rm agent@1.0.0", nil},
		{"parent-1", "workers", nil},
		{"parent-1", "ps", nil},
		{"parent-1", "dlq ls", nil},
		{"parent-1", "drain " + confWorker, []string{confWorker}},
		{"observer", "dispatch agent@1.0.0 --session " + confSession + " --task x --allow-unserved", nil},
		{"observer", "cancel " + key, nil},
		{"observer", "result " + key, nil},
		{"observer", "capsule push " + capsule, nil},
		{"observer", "init", nil},
		{"observer", "ps", nil},
		{"worker-1", "worker --worker-id wrk_another", []string{"wrk_another"}},
		{"worker-1", "worker --pool gpu --worker-id " + confWorker, []string{"gpu"}},
		{"worker-1", "dispatch agent@1.0.0 --session " + confSession + " --task x --allow-unserved", nil},
		{"worker-1", "init --pools more", nil},
		{"worker-1", "capsule push " + capsule, nil},
		{"worker-1", "capsule rm agent@1.0.0", nil},
		{"worker-1", "drain wrk_another", []string{"wrk_another"}},
	} {
		t.Run(refused.who+" "+strings.Split(refused.command, " /")[0], func(t *testing.T) {
			as(t, s, refused.who, "pw-"+strings.TrimSuffix(refused.who, "-1"))
			got := starling(t, "", strings.Fields(refused.command)...)
			if got.status != exitDenied {
				t.Errorf("status %d, want %d\n%s%s", got.status, exitDenied, got.out, got.err)
			}
			contains(t, "stderr", got.err, append(refused.says, "denied by the bus", "Rights")...)
			if strings.Contains(got.err, `"level"`) && !strings.HasPrefix(refused.command, "worker") { // which logs
				t.Errorf("a refusal is told twice: %s", got.err)
			}
			if strings.Contains(got.err, "pw-") {
				t.Errorf("the error holds a password: %s", got.err)
			}
		})
	}
	as(t, s, "parent-1", "pw-wrong")
	if got := starling(t, "", "ps"); got.status != exitNoBus && got.status != exitDenied || strings.Contains(got.err, "pw-wrong") {
		t.Errorf("a wrong password = %+v", got)
	}
}

// TestTheConfigurationGivesTheDocumentedRights compares the file with the rights
// that the tests of every package use.
func TestTheConfigurationGivesTheDocumentedRights(t *testing.T) {
	ns := protocol.DefaultNamespace
	users := map[string]testenv.User{
		"worker-1": testenv.WorkerUser(ns, confWorker, protocol.DefaultPool),
		"parent-1": testenv.ParentUser(ns, confSession),
		"observer": testenv.ObserverUser(ns, confSession, "*"),
	}
	for _, user := range confOptions(t).Users {
		if user.Username == "operator" {
			if user.Permissions != nil {
				t.Error("the operator's rights are narrow")
			}
			continue
		}
		rights, ok := users[user.Username]
		if !ok {
			t.Errorf("user %s is of no party", user.Username)
			continue
		}
		delete(users, user.Username)
		if diff := cmp.Diff(sorted(rights.Publish), sorted(user.Permissions.Publish.Allow)); diff != "" {
			t.Errorf("%s publishes (-documented +file):\n%s", user.Username, diff)
		}
		listens := append([]string{"_INBOX_" + user.Username + ".>"}, rights.Subscribe...)
		if diff := cmp.Diff(sorted(listens), sorted(user.Permissions.Subscribe.Allow)); diff != "" {
			t.Errorf("%s subscribes (-documented +file):\n%s", user.Username, diff)
		}
		if (user.Permissions.Response != nil) != rights.Responses {
			t.Errorf("%s answers: %t, want %t", user.Username, user.Permissions.Response != nil, rights.Responses)
		}
	}
	if len(users) > 0 {
		t.Errorf("users without a place in the file: %v", users)
	}
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}
