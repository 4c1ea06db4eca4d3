package worker_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/worker"
)

// goldenCase is one case of segments.json.
type goldenCase struct {
	Name     string
	MaxTurns int64 `json:"max_turns"`
	IDs      *bool `json:"ids"`
	Events   []json.RawMessage
	Frames   []map[string]any
	Ending   struct {
		State, Message string
		Response       *string
	}
}

// goldenStep is what stands between driver events.
type goldenStep struct {
	AtMS    *int64 `json:"at_ms"`
	Runtime string
	Name    string
	Payload string
	Status  int
	Stderr  string
}

func TestSegmentsGolden(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../protocol/testdata/segments.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Cases []goldenCase }
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) < 30 {
		t.Fatalf("segments.json has %d cases, want all of them", len(golden.Cases))
	}
	for _, c := range golden.Cases {
		t.Run(c.Name, func(t *testing.T) { t.Parallel(); runGolden(t, c) })
	}
}

func runGolden(t *testing.T, c goldenCase) {
	cfg := worker.SegmentConfig{MaxTurns: 10, Silent: c.IDs != nil && !*c.IDs}
	if c.MaxTurns > 0 {
		cfg.MaxTurns = c.MaxTurns
	}
	machine := worker.NewSegments(cfg)
	now := time.Unix(0, 0)
	var frames []protocol.Frame
	for _, raw := range c.Events {
		var step goldenStep
		if err := json.Unmarshal(raw, &step); err != nil {
			t.Fatal(err)
		}
		if step.AtMS != nil {
			now = time.Unix(0, 0).Add(time.Duration(*step.AtMS) * time.Millisecond)
		}
		switch step.Runtime {
		case "interrupt":
			machine.Interrupt()
		case "kill":
			frames = append(frames, machine.Killed("killed")...)
		case "exit":
			frames = append(frames, machine.Exited(step.Status, step.Stderr, nil)...)
		case "hook":
			machine.Hook(step.Name, step.Payload)
		default:
			e, err := protocol.ParseEvent(raw)
			if err != nil {
				t.Fatalf("ParseEvent(%s): %v", raw, err)
			}
			frames = append(frames, machine.Event(now, e)...)
		}
	}
	ending, response := machine.Ending()
	if got, want := string(ending.State), "TASK_STATE_"+upper(c.Ending.State); got != want || ending.Message != c.Ending.Message {
		t.Errorf("ending = %s %q, want %s %q", got, ending.Message, want, c.Ending.Message)
	}
	if diff := cmp.Diff(c.Ending.Response, response); diff != "" {
		t.Errorf("response (-want +got):\n%s", diff)
	}
	if len(frames) != len(c.Frames) {
		t.Fatalf("%d frames, want %d: %+v", len(frames), len(c.Frames), frames)
	}
	for i, want := range c.Frames {
		compareFrame(t, i, frames[i], want)
	}
}

// compareFrame compares the members that the case shows with the frame as it
// stands on the wire.
func compareFrame(t *testing.T, i int, f protocol.Frame, want map[string]any) {
	t.Helper()
	wire, err := f.Encode(protocol.Place{TaskID: "tsk_1", ContextID: "ctx_1", SessionID: "ses_1", Attempt: 1, Seq: i + 1, Time: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	var body map[string]any
	if err := json.Unmarshal(wire.Body, &body); err != nil {
		t.Fatal(err)
	}
	got := map[string]any{"kind": wire.Header[protocol.HeaderFrame]}
	if update, ok := body["artifactUpdate"].(map[string]any); ok {
		got["text"] = dig(update, "artifact", "parts", 0, "text")
		got["append"] = update["append"] == true
		got["final"] = dig(update, "metadata", protocol.StreamExtension, "final") == true
		if (update["lastChunk"] == true) != got["final"] {
			t.Errorf("frame %d: lastChunk is %v, want final", i, update["lastChunk"])
		}
	} else {
		state := dig(body, "statusUpdate", "status", "state").(string)
		got["state"] = lower(state[len("TASK_STATE_"):])
		got["text"] = dig(body, "statusUpdate", "status", "message", "parts", 0, "text")
		data, _ := dig(body, "statusUpdate", "status", "message", "parts", 0, "data").(map[string]any)
		for name, value := range data {
			got[name] = value
		}
	}
	for name, value := range want {
		if diff := cmp.Diff(value, got[name]); diff != "" {
			t.Errorf("frame %d, %s (-want +got):\n%s", i, name, diff)
		}
	}
}

// dig follows keys and indexes into decoded JSON.
func dig(value any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := value.(map[string]any)
			value = m[step]
		case int:
			list, _ := value.([]any)
			if step >= len(list) {
				return nil
			}
			value = list[step]
		}
	}
	return value
}

func upper(s string) string { return strings.ToUpper(s) }
func lower(s string) string { return strings.ToLower(s) }
