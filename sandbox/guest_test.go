package sandbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// TestGo runs ordinary Go programs: arguments, environment, stdin to its end,
// files, sleep, exit statuses and panics.
func TestGo(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	tests := []struct {
		task   string
		status int
		stdout string
		stderr []string
	}{
		{"echo hello wörld", 0, "echo hello wörld", nil},
		{"cat", 0, "3 then 0 bytes, error <nil>\n", nil},
		{"fail 4", 4, "", []string{"something is wrong", "giving up"}},
		{"fail 200", 200, "", []string{"something is wrong", "giving up"}},
		{"nap 5", 0, "rested", nil},
		{"lines 3", 0, "0\n1\n2\n", nil},
		{"unheard-of", 2, "", []string{"no such behaviour: unheard-of"}},
	}
	for _, tt := range tests {
		t.Run(tt.task, func(t *testing.T) {
			t.Parallel()
			got, r := run(t, e, agent(t, "", tt.task))
			want := sandbox.Ending{Kind: sandbox.Exited, Status: tt.status, Stdout: tt.stdout, StderrTail: tt.stderr}
			got.Duration = 0
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Run (-want +got):\n%s", diff)
			}
			if r.text() != tt.stdout {
				t.Errorf("fragments %q, want %q", r.text(), tt.stdout)
			}
		})
	}
	t.Run("panic", func(t *testing.T) {
		t.Parallel()
		got, _ := run(t, e, agent(t, "", "panic"))
		if got.Status != 2 || !slices.Contains(got.StderrTail, "panic: a bug in the capsule") {
			t.Errorf("Run = %+v, want exit 2 and the panic on stderr", got)
		}
	})
	t.Run("env", func(t *testing.T) {
		t.Parallel()
		s := agent(t, "", "env")
		s.Args = []string{"agent", "a b", "ü"}
		s.Env = map[string]string{"MURMUR_SESSION_ID": "ses_1", "STARLING_ATTEMPT": "2", "EMPTY": ""}
		got, _ := run(t, e, s)
		for _, want := range []string{`["agent" "a b" "ü"]`, `"EMPTY="`, `ID:ses_1`, `Attempt:2`} {
			if !strings.Contains(got.Stdout, want) {
				t.Errorf("env printed %q, want it to hold %q", got.Stdout, want)
			}
		}
		if strings.Contains(got.Stdout, "PATH") {
			t.Errorf("the host's environment is visible: %q", got.Stdout)
		}
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		s := agent(t, "", "memory 64")
		s.Limits.MemoryBytes = 32 << 20
		if got, _ := run(t, e, s); got.Limit != sandbox.LimitMemory || !strings.HasSuffix(got.Message, "(33554432)") {
			t.Errorf("Run = %+v, want the memory limit", got)
		}
	})
	t.Run("stderr is passed on", func(t *testing.T) {
		t.Parallel()
		var stderr strings.Builder
		s := agent(t, "", "fail 1")
		s.Stderr = &stderr
		run(t, e, s)
		if want := "something is wrong\ngiving up\n"; stderr.String() != want {
			t.Errorf("stderr = %q, want %q", stderr.String(), want)
		}
	})
}

// TestGoEvents runs capsules that use the SDK.
func TestGoEvents(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	end := protocol.Event{Kind: protocol.EventTurnEnd, Result: "done"}
	t.Run("turns", func(t *testing.T) {
		t.Parallel()
		_, r := run(t, e, agent(t, "", "turns 1"))
		want := []protocol.Event{
			{Kind: protocol.EventTextDelta, Text: "turn 1"},
			{Kind: protocol.EventToolCallStarted, ID: "call-1", Name: "tool"},
			{Kind: protocol.EventToolCallProgress, ID: "call-1", InputBytes: 10},
			{Kind: protocol.EventToolCall, ID: "call-1", Name: "tool", Input: []byte(`{"n":1}`)},
			{Kind: protocol.EventToolResult, ID: "call-1", Output: "output 1"},
			end,
		}
		if diff := cmp.Diff(want, r.all()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
	for _, calls := range []int{protocol.MaxToolCalls, protocol.MaxToolCalls + 1} {
		t.Run(fmt.Sprint(calls, " calls"), func(t *testing.T) {
			t.Parallel()
			got, r := run(t, e, agent(t, "", fmt.Sprint("calls ", calls)))
			events := r.all()
			if calls <= protocol.MaxToolCalls {
				if got.Kind != sandbox.Exited || len(events) != calls+1 {
					t.Errorf("Run = %+v with %d events, want exited with %d", got, len(events), calls+1)
				}
				return
			}
			want := "capsule execution exceeded its configured resource limits: more than 10000 tool calls"
			if got.Limit != sandbox.LimitCalls || got.Message != want || len(events) != protocol.MaxToolCalls {
				t.Errorf("Run = %+v with %d events, want %q with %d", got, len(events), want, protocol.MaxToolCalls)
			}
		})
	}
	for behaviour, message := range map[string]string{
		"sleeper": "stopped when asked", "asker": "the task was canceled", "talker": "the task was canceled",
	} {
		t.Run("canceled, a "+behaviour, func(t *testing.T) {
			t.Parallel()
			canceled := make(chan struct{})
			s := agent(t, "", behaviour)
			s.Canceled = canceled
			var last protocol.Event
			got := e.Run(context.Background(), s, func(ev protocol.Event) {
				if last = ev; ev.Text == "ready" {
					close(canceled)
				}
			})
			want := protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailCanceled, Message: message}
			if got.Kind != sandbox.Exited || !cmp.Equal(last, want) {
				t.Errorf("Run = %s with %+v, want exited with %+v", got.Kind, last, want)
			}
		})
	}
	t.Run("stubborn", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		got := e.Run(ctx, agent(t, "", "stubborn"), func(protocol.Event) { cancel() })
		if got.Kind != sandbox.Interrupted {
			t.Errorf("Run = %s %s, want interrupted", got.Kind, got.Message)
		}
	})
	t.Run("hello", func(t *testing.T) {
		t.Parallel()
		s := spec(t, testenv.GoCapsule(t, "hello"))
		s.Stdin, s.Output = []byte("Ada \"x\"\n"), protocol.OutputEvents
		_, r := run(t, e, s)
		events := r.all()
		if last := events[len(events)-1]; last.Kind != protocol.EventTurnEnd || last.Result != `Hello, ADA "X"!` {
			t.Errorf("the last event is %+v", last)
		}
		calls := 0
		for _, ev := range events {
			if ev.Kind == protocol.EventToolCall {
				calls++
			}
		}
		if calls != 2 || !strings.Contains(r.text(), "how loud?") {
			t.Errorf("%d calls, text %q", calls, r.text())
		}
	})
}

// ExampleEngine_Run runs one capsule and prints what it says.
func ExampleEngine_Run() {
	engine, err := sandbox.New(sandbox.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	ending := engine.Run(context.Background(), sandbox.Spec{
		Module: "../testenv/testdata/capsules/signals.wasm",
		Digest: "sha256:76e4a5bd425093e024bf7b433d7c23f9215e83709c15ecbfd905a9fbbb7ab98e",
		Args:   []string{"signals"},
		Limits: protocol.DefaultLimits(),
	}, func(e protocol.Event) {
		if e.Kind == protocol.EventTextDelta {
			fmt.Println(e.Text)
		}
	})
	fmt.Println(ending.Kind, ending.Status)
	// Output:
	// out
	// chunk
	// chunk
	// exited 0
}
