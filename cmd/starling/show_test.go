package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"starling/protocol"
	"starling/testenv"
)

// TestLiveShowerRedrawsAToolCallInItsLine shows a call as a terminal gets it: its
// end stands where its progress stood.
func TestLiveShowerRedrawsAToolCallInItsLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &liveShower{out: &out, tools: make(map[string]string)}
	took := int64(3)
	for _, f := range []protocol.Frame{
		{Kind: protocol.FrameText, Text: "Let me see."},
		{Kind: protocol.FrameToolCallStarted, ToolCallID: "c", ToolName: "look"},
		{Kind: protocol.FrameToolCallProgress, ToolCallID: "c", InputBytes: 12},
		{Kind: protocol.FrameText, Append: true, Final: true},
		{Kind: protocol.FrameArtifact, ToolCallID: "c", ToolName: "look", Content: "three\x1b[2J hits", DurationMS: &took},
	} {
		s.frame(&protocol.ReceivedFrame{Frame: f})
	}
	want := "Let me see.\n" + dim + "⚙ look …" + reset + erase + dim + "⚙ look … 12 bytes" + reset +
		erase + green + "✓ look" + reset + " ended after 3 ms: three[2J hits\n"
	if got := out.String(); got != want {
		t.Errorf("shown = %q, want %q", got, want)
	}
}

// TestFollowEndsWhenNobodyReads: a closed pipe ends it at the first frame that it
// cannot print.
func TestFollowEndsWhenNobodyReads(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	url := []string{"--url", f.server.ClientURL()}
	must := func(args ...string) result {
		t.Helper()
		got := starling(t, "", append(args, url...)...)
		if got.status != exitOK {
			t.Fatalf("starling %v = %d\n%s", args, got.status, got.err)
		}
		return got
	}
	must("capsule", "push", agent(t, "text"))
	done := must("dispatch", "agent@1.0.0", "--task", "lines 100", "--wait")
	key := strings.Fields(strings.TrimPrefix(done.err, "delegated "))[0]
	for _, args := range [][]string{
		{"watch", key},
		{"watch", key, "--json"},
		{"dispatch", "agent@1.0.0", "--task", "lines 100", "--follow"},
		runArgs(t, "run", agent(t, "text"), "--task", "lines 100"),
	} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = read.Close() // nobody reads
		var said strings.Builder
		if args[0] != "run" {
			args = append(args, url...)
		}
		status := run(t.Context(), args, streams{in: strings.NewReader(""), out: write, err: &said})
		_ = write.Close()
		if status != exitInterrupted || !strings.Contains(said.String(), "standard output") || !strings.Contains(said.String(), errUnread.Error()) {
			t.Errorf("starling %v = %d %q, want %d and why", args, status, said.String(), exitInterrupted)
		}
	}
	// Of one that has ended nothing comes from now on.
	contains(t, "watch --live", must("watch", key, "--live").err, "ok (session ended")
}

// TestATerminalThatGoesIsAnInterrupt of each command that shows a task, however the
// signal and the first write that fails come one after the other.
func TestATerminalThatGoesIsAnInterrupt(t *testing.T) {
	t.Parallel()
	hangupsAreHeard(t)
	f := testFleet(t, func(c *fleetConfig) { c.worker.DrainTimeout = 100 * time.Millisecond }) // its guests do not end
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", agent(t, protocol.OutputEvents))
	waiting := strings.TrimSpace(o.must("dispatch", "agent@1.0.0", "--task", "endless"))
	for name, args := range map[string][]string{
		"watch":                 {"watch", waiting, "--url", o.url},
		"dispatch":              {"dispatch", "agent@1.0.0", "--task", "endless", "--follow", "--url", o.url},
		"run":                   runArgs(t, "run", agent(t, protocol.OutputEvents), "--task", "endless", "--cancel-grace", "100ms"),
		"run of one that talks": runArgs(t, "run", agent(t, protocol.OutputEvents), "--task", "chatty 100000000 8", "--cancel-grace", "100ms", "--drain-timeout", "10m"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := program(t, args...)
			screen, said := onTerminal(t, command)
			process := startProcess(t, command)
			testenv.EventuallyTrue(t, 60*time.Second, "the task says something", func() bool {
				return strings.Contains(said.String(), "waiting") || strings.Contains(said.String(), "xxxxxxxx")
			})
			if err := screen.Close(); err != nil { // which hangs up
				t.Fatal(err)
			}
			if status := exitCode(process.ended(t)); status != exitInterrupted {
				t.Errorf("status = %d, want %d", status, exitInterrupted)
			}
		})
	}
}

// onTerminal gives a command that does not run yet a terminal of its own, and the other
// end of it with what it shows.
func onTerminal(t *testing.T, command *exec.Cmd) (screen *os.File, said *output) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0) // else Close waits for a read
	if err != nil {
		t.Fatal(err)
	}
	conn, err := screen.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	if controlled := conn.Control(func(fd uintptr) {
		if number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
	}); controlled != nil || err != nil {
		t.Fatal(controlled, err)
	}
	end, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	said = &output{}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		_, _ = io.Copy(said, screen) // until it is closed
	}()
	t.Cleanup(func() {
		_ = screen.Close() // it may be closed
		_ = end.Close()
		<-reading
	})
	command.Stdin, command.Stdout, command.Stderr = end, end, end
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return screen, said
}
