package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"starling/protocol"
	"starling/testenv"
)

func TestRunStreamsTextShowsToolCallsPrintsTheResultAndExits0(t *testing.T) {
	t.Parallel()
	got := starling(t, "", runArgs(t, "run", hello(t), "--task", "starling")...)
	if got.status != exitOK {
		t.Fatalf("status = %d, want 0\n%s%s", got.status, got.out, got.err)
	}
	contains(t, "stdout", got.out, "Let me look who is there.\n", "A name of 8 letters.", "Hello, STARLING!\n")
	contains(t, "stderr", got.err, "[inference turn 1]", "[tool] count_letters started", "[tool] count_letters ended",
		"[tool] upper_case started", "[tool] upper_case ended", ": ok (session ended, ")
	if n := strings.Count(got.out, "Hello, STARLING!"); n != 1 {
		t.Errorf("the result is printed %d times, want once: it was streamed", n)
	}
}

func TestRunBuildsGoSource(t *testing.T) {
	t.Parallel()
	got := starling(t, "", runArgs(t, "run", "../../sandbox/guest/examples/hello", "--task", "x")...)
	if got.status != exitOK {
		t.Fatalf("status = %d, want 0\n%s%s", got.status, got.out, got.err)
	}
	contains(t, "stdout", got.out, "Hello, X!")
}

func TestRunPrintsJSONLines(t *testing.T) {
	t.Parallel()
	got := starling(t, "starling", runArgs(t, "run", hello(t), "--json")...)
	if got.status != exitOK {
		t.Fatalf("status = %d, want 0\n%s", got.status, got.err)
	}
	kinds := map[protocol.FrameKind]int{}
	for line := range strings.Lines(got.out) {
		var frame struct {
			Kind  protocol.FrameKind
			Frame map[string]any
		}
		if err := json.Unmarshal([]byte(line), &frame); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		kinds[frame.Kind]++
		if len(frame.Frame) != 1 {
			t.Errorf("frame %q is no StreamResponse", line)
		}
	}
	if kinds[protocol.FrameArtifact] != 2 || kinds[protocol.FrameResponse] != 1 || kinds[protocol.FrameToolCallStarted] != 2 {
		t.Errorf("frames = %v, want two tool calls and one response", kinds)
	}
}

func TestRunExitsWithTheOutcome(t *testing.T) {
	t.Parallel()
	limited := capsuleDir(t, testenv.GoCapsule(t, "agent"),
		"name: agent\nversion: 1.0.0\noutput: text\ncapabilities: {limits: {memory_bytes: 33554432}}\n")
	short := capsuleDir(t, testenv.WAT(t, "spin"),
		"name: spin\nversion: 1.0.0\ncapabilities: {limits: {deadline_seconds: 1}}\n")
	for _, c := range []struct {
		name, capsule, task string
		status              int
		says                string
	}{
		{"a capsule that fails", agent(t, protocol.OutputText), "fail 7", exitTaskFailed, "error (exit status 7: giving up"},
		{"a turn that fails", agent(t, protocol.OutputEvents), "failed quota none-left", exitTaskFailed, "error (none-left"},
		{"a trap", testenv.WAT(t, "trap"), "x", exitCrashed, "crashed (capsule execution trapped: "},
		{"a deadline", short, "x", exitTaskFailed, "error (capsule execution exceeded its 1s deadline and was interrupted; " +
			"raise capabilities.limits.deadline_seconds in murmur.yaml if the capsule legitimately needs longer"},
		{"a memory limit", limited, "memory 100", exitTaskFailed, "error (capsule execution exceeded its configured resource limits: linear memory growth to "},
		{"a module without _start", testenv.WAT(t, "nostart"), "x", exitUsage, "_start"},
		{"an import that does not exist", testenv.WAT(t, "badimport"), "x", exitUsage, "import"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := starling(t, "", runArgs(t, "run", c.capsule, "--task", c.task)...)
			if got.status != c.status {
				t.Errorf("status = %d, want %d\n%s", got.status, c.status, got.err)
			}
			contains(t, "stderr", got.err, c.says)
		})
	}
}

// TestRunPrintsAResponseThatItsFrameCuts prints the whole, once, whether it was
// streamed before or not.
func TestRunPrintsAResponseThatItsFrameCuts(t *testing.T) {
	t.Parallel()
	big := capsuleDir(t, testenv.GoCapsule(t, "agent"), "name: agent\nversion: 1.0.0\noutput: events\n")
	text := capsuleDir(t, testenv.GoCapsule(t, "agent"), "name: agent\nversion: 1.0.0\noutput: text\n")
	for _, c := range []struct{ name, dir, task, want string }{
		{"streamed", text, "lines 60000", "\n59999\n"},
		{"not streamed", big, "repeat 350000", strings.Repeat("x", 350_000) + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := starling(t, "", runArgs(t, "run", c.dir, "--task", c.task)...)
			if got.status != exitOK {
				t.Fatalf("status = %d\n%s", got.status, got.err)
			}
			if !strings.HasSuffix(got.out, c.want) || len(got.out) < 300_000 || len(got.out) > 360_000 {
				t.Errorf("stdout has %d bytes and ends in %q, want the whole once", len(got.out), got.out[max(0, len(got.out)-20):])
			}
		})
	}
}

func TestRunTellsAMurmurParentAtItsDoor(t *testing.T) {
	door := testenv.Door(t)
	t.Setenv(protocol.SpawnerEnv, `{"session_id":"ses_parent","context_id":"ctx_parent","delegation_id":"dlg_0a","url":"`+
		door.URL()+`","trust":"untrusted"}`)
	got := starling(t, "", runArgs(t, "run", hello(t), "--task", "parent")...)
	if got.status != exitOK {
		t.Fatalf("status = %d, want 0\n%s", got.status, got.err)
	}
	posts := door.Posts()
	if len(posts) != 1 {
		t.Fatalf("the door got %d posts, want 1", len(posts))
	}
	post := posts[0]
	for name, want := range map[string]string{
		protocol.HeaderTaskOrigin: "completion", protocol.HeaderTaskTrust: "untrusted",
		protocol.HeaderDelegationID: "dlg_0a", protocol.HeaderCompletionSession: "ses_parent",
	} {
		if got := post.Header.Get(name); got != want {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
	contains(t, "the post", post.Text, "Delegated capsule finished.\ndelegation_id: dlg_0a\ncapsule: hello@1.0.0\n", "status: ok\n")
}

func TestRunRefusesAnUnreadableSpawner(t *testing.T) {
	t.Setenv(protocol.SpawnerEnv, `{"url":"http://x"}`)
	got := starling(t, "", runArgs(t, "run", hello(t), "--task", "x")...)
	if got.status != exitUsage {
		t.Errorf("status = %d, want %d", got.status, exitUsage)
	}
	contains(t, "stderr", got.err, "MURMUR_SPAWNER does not carry a readable spawner handle: it carries a 'url' with no 'trust'; "+
		"a completion address is both or neither; a delegated child must be able to tell its spawner that it finished, "+
		"so the launch is refused rather than run unreportable")
}

func TestUsageErrorsNameTheThingAndTheFix(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	badManifest := t.TempDir()
	if err := os.WriteFile(filepath.Join(badManifest, protocol.ManifestFile), []byte("name: a b\nversion: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(badManifest, "x.wasm"), []byte("\x00asm"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"no capsule", []string{"run"}, "takes the capsule: FILE.wasm or DIR"},
		{"no such file", []string{"run", "nowhere.wasm", "--task", "x"}, "capsule nowhere.wasm: no such file"},
		{"nothing in the directory", []string{"run", empty, "--task", "x"}, "holds neither a .wasm file nor Go source"},
		{"a bad manifest", []string{"run", badManifest, "--task", "x"}, `name is "a b"`},
		{"an empty task", []string{"run", testenv.WAT(t, "noop"), "--task", "  "}, "the task is empty"},
		{"a bad --env", []string{"run", testenv.WAT(t, "noop"), "--task", "x", "--env", "A"}, "--env is NAME=VALUE"},
		{"an unknown flag", []string{"run", "--nope"}, "unknown flag: --nope"},
		{"a bad log level", []string{"version", "--log-level", "loud"}, "STARLING_LOG_LEVEL (--log-level) is \"loud\""},
		{"a capsule without a version", []string{"dispatch", "hello", "--task", "x", "--url", "nats://127.0.0.1:1"}, "it is NAME@VERSION"},
		{"a bad slot count", []string{"worker", "--slots", "-1"}, "slots is -1"},
		{"no slots", []string{"worker", "--slots", "0"}, "slots) is 0"},
		{"an unknown command", []string{"pss"}, `has no command "pss"; did you mean ps?`},
		{"an unknown subcommand", []string{"capsule", "bogus"}, `starling capsule has no command "bogus"`},
		{"an argument too many", []string{"worker", "extra"}, `takes no arguments, and there is "extra"`},
		{"a door that is no URL", []string{"dispatch", "a@1", "--task", "x", "--door", "foo"}, "--door: the door's address is no http or https URL"},
		{"a door whose port cannot be", []string{"dispatch", "a@1", "--task", "x", "--door", "http://10.0.0.7:65536"}, "--door: the door's address has a port that cannot be"},
		{"a deadline in the past", []string{"dispatch", "a@1", "--task", "x", "--deadline", "-1s"}, "--deadline is -1s"},
		{"a trust class of nobody", []string{"dispatch", "a@1", "--task", "x", "--trust", "untrusted"}, "--trust is the class of the parent behind --door"},
		{"a push of no capsule", []string{"capsule", "push", "../../testenv/testdata/capsules/nostart.wasm", "--url", "nats://127.0.0.1:1"}, "does not export a function _start"},
		{"a sandbox of nobody", []string{"worker", "--sandbox", "vm"}, `STARLING_SANDBOX (--sandbox) is "vm": it is process or inprocess`},
		{"no density", []string{"worker", "--sandbox-density", "0"}, "STARLING_SANDBOX_DENSITY (--sandbox-density) is 0"},
		{"negative memory", []string{"worker", "--resident-bytes", "-1"}, "STARLING_RESIDENT_BYTES (--resident-bytes) is -1"},
		{"no time to compile", []string{"worker", "--compile-timeout", "1ms"}, "STARLING_COMPILE_TIMEOUT (--compile-timeout) is 1ms"},
		{"a bad door list", []string{"worker", "--door-allow", "x"}, "STARLING_DOOR_ALLOW (--door-allow)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := starling(t, "", c.args...)
			if got.status != exitUsage {
				t.Errorf("status = %d, want %d\n%s", got.status, exitUsage, got.err)
			}
			contains(t, "stderr", got.err, c.says)
		})
	}
}

func TestAnUnreachableBusIsExit8AndSaysWhere(t *testing.T) {
	t.Parallel()
	got := starling(t, "", "ps", "--url", "nats://127.0.0.1:1")
	if got.status != exitNoBus {
		t.Errorf("status = %d, want %d", got.status, exitNoBus)
	}
	contains(t, "stderr", got.err, "127.0.0.1:1", "STARLING_URL")
}

func TestSandboxByHandSaysWhoStartsIt(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(self, "sandbox").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
		t.Errorf("starling sandbox = %v, want status %d", err, exitUsage)
	}
	contains(t, "stderr", string(out), "starling sandbox is started by a worker")
}
