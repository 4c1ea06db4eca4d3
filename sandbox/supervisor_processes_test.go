package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// TestGuestsThatShareAProcess: who made us kill it is to blame and the others are
// not; when nobody knows, each is alone the next time.
func TestGuestsThatShareAProcess(t *testing.T) {
	t.Parallel()
	t.Run("one has to be killed", func(t *testing.T) {
		t.Parallel()
		s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.Density = 2 })
		ctx, cancel := context.WithCancel(t.Context())
		one, other := begin(t, ctx, s, talker(t)), begin(t, t.Context(), s, talker(t))
		testenv.Freeze(t, only(t, s))
		cancel()
		if end := one.ended(t); end.Kind != sandbox.Interrupted {
			t.Errorf("the guest that was stopped: %+v, want interrupted", end)
		}
		if end := other.ended(t); end.Kind != sandbox.ProcessDied || end.Blame != sandbox.BlameOther {
			t.Errorf("its neighbour: %+v, want a death that another is to blame for", end)
		}
	})
	t.Run("nobody knows which", func(t *testing.T) {
		t.Parallel()
		s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.Density = 2 })
		loop, ctx := talker(t), t.Context()
		guests := []*started{begin(t, ctx, s, loop), begin(t, ctx, s, loop)}
		signal(t, only(t, s), syscall.SIGKILL)
		for _, g := range guests {
			if end := g.ended(t); end.Kind != sandbox.ProcessDied || end.Blame != sandbox.BlameUnclear {
				t.Errorf("Run = %+v, want a death that nobody knows the cause of", end)
			}
		}
		stopping, stop := context.WithCancel(ctx)
		guests = []*started{begin(t, stopping, s, loop), begin(t, stopping, s, loop)}
		if pids := s.PIDs(); len(pids) != 2 {
			t.Errorf("PIDs = %v, want a process for each", pids)
		}
		stop()
		for _, g := range guests {
			g.ended(t)
		}
	})
}

func TestSandboxProcessesAreConfined(t *testing.T) {
	t.Setenv("STARLING_TEST_SECRET", "of the worker")
	f, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	leaked, err := syscall.Dup(int(f.Fd())) // without close-on-exec, as a C library does
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(leaked)
	s := newSupervisor(t)
	g := begin(t, t.Context(), s, talker(t))
	pid := only(t, s)
	proc := func(name string) string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if env := proc("environ"); strings.Contains(env, "STARLING") || strings.Contains(env, "PATH=") || strings.Contains(env, "HOME=") {
		t.Errorf("environment %q, want nothing of this process's", env)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())) // it may be closed by now
		if to == "/etc/hostname" {
			t.Errorf("descriptor %s is %s, which it inherited", fd.Name(), to)
		}
	}
	status := proc("status")
	for _, line := range []string{"NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} {
		if !strings.Contains(status, line) {
			t.Errorf("status lacks %q:\n%s", line, status)
		}
	}
	if missing := sandbox.MissingConfinement(); missing == nil {
		if !strings.Contains(status, "Seccomp:\t2") {
			t.Errorf("no seccomp filter:\n%s", status)
		}
		if got := s.Confinement(); got != nil {
			t.Errorf("Confinement = %q, want nothing missing", got)
		}
	}
	if limits := proc("limits"); !regexp.MustCompile(`Max core file size +0 +0 `).MatchString(limits) ||
		!regexp.MustCompile(`Max open files +576 +576 `).MatchString(limits) ||
		regexp.MustCompile(`Max address space +unlimited`).MatchString(limits) {
		t.Errorf("limits:\n%s", limits)
	}
	signal(t, pid, syscall.SIGKILL)
	g.ended(t)
}

func TestSupervisorConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := sandbox.NewSupervisor(sandbox.ProcessConfig{
		WorkRoot: "relative", Density: 65, CompileTimeout: time.Millisecond, CompileMemoryBytes: 1, KillAfter: -1,
	})
	for _, want := range []string{"WorkRoot", "Density", "CompileTimeout", "CompileMemoryBytes", "KillAfter"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewSupervisor = %v, want %s in it", err, want)
		}
	}
}

func TestACommandThatIsNoSandboxIsAnError(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"/bin/true"}, {"/no/such/program"}, {"/bin/sh", "-c", "echo wrong program >&2; exit 3"}} {
		_, err := sandbox.NewSupervisor(sandbox.ProcessConfig{WorkRoot: t.TempDir(), Command: command})
		if err == nil || !strings.Contains(err.Error(), "sandbox process") {
			t.Errorf("NewSupervisor with %q = %v, want an error", command, err)
		}
		if len(command) > 2 && !strings.Contains(err.Error(), "exit status 3: wrong program") {
			t.Errorf("NewSupervisor = %v, want the command's own words", err)
		}
	}
}

// TestAProcessThatDiesWhileItStarts is known to be gone at once: others may wait
// for the place in it.
func TestAProcessThatDiesWhileItStarts(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, err := sandbox.NewSupervisor(sandbox.ProcessConfig{
		WorkRoot: t.TempDir(), Command: []string{"sh", "-c", "sleep 1; kill -KILL $$"},
	})
	if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "killed") || took > 15*time.Second {
		t.Errorf("NewSupervisor = %v after %s, want at once that it was killed", err, took)
	}
}

// TestAFirstProcessThatIsKilledIsStartedAgain, as a host that is short of memory
// may kill one; three are a reason to give up.
func TestAFirstProcessThatIsKilledIsStartedAgain(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, kills := range []int{1, 2, 3} {
		root := t.TempDir()
		// Each life leaves a line; the last becomes a sandbox process.
		script := `echo >>"$0/lives"; [ $(wc -l <"$0/lives") -gt "$2" ] || kill -KILL $$; exec "$1" sandbox`
		s, err := sandbox.NewSupervisor(sandbox.ProcessConfig{
			Config: sandbox.Config{CacheDir: testenv.CompiledCache(t)}, WorkRoot: root,
			Command: []string{"sh", "-c", script, root, self, fmt.Sprint(kills)},
		})
		if kills < 3 && err != nil || kills == 3 && (err == nil || !strings.Contains(err.Error(), "signal: killed")) {
			t.Errorf("killed %d times: %v", kills, err)
		}
		if s != nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestProcessesDieWithTheirWorker: the worker is a process of its own here, and
// is killed while a guest loops.
func TestProcessesDieWithTheirWorker(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	loop := talker(t)
	worker := exec.Command(self, "supervise", loop.Module, string(loop.Digest), t.TempDir())
	out, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	worker.Stderr = t.Output()
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	signal(t, worker.Process.Pid, syscall.SIGKILL)
	_ = worker.Wait() // killed
	testenv.EventuallyTrue(t, soon, "the end of the sandbox process", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(text), ") Z ") // nobody may have waited for it
	})
}

// supervise is the worker of the test above: it says which process runs its
// guest, and waits to be killed.
func supervise(module, digest, root string) int {
	s, err := sandbox.NewSupervisor(sandbox.ProcessConfig{WorkRoot: root})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	end := s.Run(context.Background(), sandbox.Spec{
		Module: module, Digest: protocol.Digest(digest), Limits: protocol.DefaultLimits(),
	}, func(protocol.Event) { fmt.Println(s.PIDs()[0]) })
	fmt.Fprintf(os.Stderr, "the guest ended: %+v\n", end)
	return 1
}
