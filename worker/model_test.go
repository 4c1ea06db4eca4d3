package worker_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

const modelKey = "sk-0123456789abcdef"

// modelFleet is a fleet whose worker lets capsules call a model, with a key of the
// operator's.
func modelFleet(t *testing.T, model *testenv.ModelServer) (*fleet, *member) {
	t.Helper()
	store := secrets(t, fmt.Sprintf("OPENAI_API_KEY: {value: %s, hosts: [%q], headers: [Authorization]}\n", modelKey, model.Origin()))
	f := newFleet(t)
	f.patient(t)
	m := f.hire(t, func(c *worker.Config) {
		c.Ceiling.Network, c.Secrets, c.CancelGrace = []string{model.Origin()}, store, soon
	})
	return f, m
}

// modelJob is a task of the capsule that drives a model. It is compiled before, which
// is most of a minute on a machine that is busy.
func (f *fleet) modelJob(t *testing.T, m *member, model *testenv.ModelServer, change ...func(*protocol.Manifest)) protocol.Job {
	t.Helper()
	path := testenv.GoCapsule(t, "llm")
	module, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	capsule := f.push(t, "llm", module, append([]func(*protocol.Manifest){events, func(m *protocol.Manifest) {
		m.Capabilities.Env.Allow = []string{"OPENAI_BASE_URL", "OPENAI_MODEL"}
		m.Capabilities.Network.Allow = []string{model.Origin()}
		m.Capabilities.Secrets.Allow = []string{"OPENAI_API_KEY"}
	}}, change...)...)
	if err := m.sandbox.Prepare(t.Context(), path, capsule.Digest); err != nil {
		t.Fatal(err)
	}
	return f.job(capsule, "What is 6 times 7?", func(j *protocol.Job) {
		j.Env = map[string]string{"OPENAI_BASE_URL": model.URL(), "OPENAI_MODEL": "lark-1"}
	})
}

// told are frames in short, without what only numbers and times tell apart.
func told(frames []protocol.ReceivedFrame) []string {
	var all []string
	for _, f := range frames {
		line := string(f.Kind)
		switch f.Kind {
		case protocol.FrameStatus:
			line += " " + strings.ToLower(strings.TrimPrefix(string(f.State), "TASK_STATE_")) + ": " + f.Text
		case protocol.FrameText:
			line += fmt.Sprintf(" %q append=%t final=%t", f.Text, f.Append, f.Final)
		case protocol.FrameToolCallStarted:
			line += " " + f.ToolCallID + " " + f.ToolName
		case protocol.FrameToolCallProgress:
			line += fmt.Sprint(" ", f.ToolCallID, " ", f.InputBytes)
		case protocol.FrameArtifact:
			line += fmt.Sprintf(" %s %s %q error=%t", f.ToolCallID, f.ToolName, f.Content, f.IsError)
		default:
			line += fmt.Sprintf(" %q", f.Text)
		}
		all = append(all, line)
	}
	return all
}

// TestACapsuleDrivesAModel has a third party's client call a model, whose pieces
// become frames one by one: the model says the next piece only when the frame of
// the one before is on the bus.
func TestACapsuleDrivesAModel(t *testing.T) {
	t.Parallel()
	var f *fleet
	var job protocol.Job
	dispatched := make(chan struct{})
	heard := func(texts ...string) func(int) {
		return func(piece int) {
			<-dispatched
			if piece > 0 && piece <= len(texts) {
				f.saying(t, job, texts[piece-1])
			}
		}
	}
	model := testenv.Model(t,
		testenv.ModelAnswer{
			Thinking: []string{"I can ", "multiply."}, Text: []string{"Let me ", "calculate."},
			Calls: []testenv.ModelCall{
				{ID: "call_1", Name: "multiply", Arguments: []string{`{"a":6,`, `"b":7}`}},
				{ID: "call_2", Name: "divide", Arguments: []string{`{}`}},
			},
			Usage: [2]int{100, 20}, Before: heard("I can ", "multiply.", "Let me ", "calculate."),
		},
		testenv.ModelAnswer{Text: []string{"6 times 7 ", "is 42."}, Usage: [2]int{130, 10}, Before: heard("6 times 7 ")})
	var m *member
	f, m = modelFleet(t, model)
	job = f.modelJob(t, m, model)
	f.dispatch(t, job)
	close(dispatched)
	rec := f.settled(t, job)
	got := told(f.frames(t, job))
	// When progress is told depends on the time; each call's last report has all of it.
	var frames []string
	progress := map[string]string{}
	for _, line := range got {
		if report, ok := strings.CutPrefix(line, "tool-call-progress "); ok {
			id, bytes, _ := strings.Cut(report, " ")
			progress[id] = bytes
			continue
		}
		frames = append(frames, line)
	}
	if diff := cmp.Diff(map[string]string{"call_1": "13", "call_2": "2"}, progress); diff != "" {
		t.Errorf("the last reports of progress (-want +got):\n%s", diff)
	}
	want := []string{
		"status-update working: inference turn 1",
		`thinking "I can "`, `thinking "multiply."`,
		`text "Let me " append=false final=false`, `text "calculate." append=true final=false`,
		"tool-call-started call_1 multiply", "tool-call-started call_2 divide",
		`text "" append=true final=true`,
		`artifact call_1 multiply "42" error=false`,
		`artifact call_2 divide "there is no tool \"divide\"" error=true`,
		"status-update working: inference turn 2",
		`text "6 times 7 " append=false final=false`, `text "is 42." append=true final=false`,
		`text "" append=true final=true`,
		`response "6 times 7 is 42."`,
		"status-update completed: session ended",
	}
	if diff := cmp.Diff(want, frames); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
	if rec.Status != protocol.StatusOK {
		t.Errorf("status = %s, want ok", rec.Status)
	}
	requests := model.Requests()
	if len(requests) != 2 {
		t.Fatalf("the model was asked %d times, want 2", len(requests))
	}
	for _, r := range requests {
		if r.Authorization != "Bearer "+modelKey || r.Model != "lark-1" || len(r.Tools) != 1 {
			t.Errorf("the model was asked as %q for %q with %d tools", r.Authorization, r.Model, len(r.Tools))
		}
	}
	if said := requests[1].Messages; len(said) != 5 || said[3].Role != "tool" || said[3].Content != "42" || said[3].ToolCallID != "call_1" {
		t.Errorf("the second request says %+v, want the result of call_1", said)
	}
	if strings.Contains(fmt.Sprint(got, m.log.all()), modelKey) {
		t.Error("the key is in a frame or a log")
	}
}

// TestTokensOfAModelCount ends tasks by their inference.max_session_tokens, which
// may be used up to the last token.
func TestTokensOfAModelCount(t *testing.T) {
	t.Parallel()
	call := []testenv.ModelCall{{ID: "call_1", Name: "multiply", Arguments: []string{`{"a":6,"b":7}`}}}
	for name, c := range map[string]struct {
		ceiling int64
		want    []string
	}{
		"up to the last":  {260, []string{`response "42"`, "status-update completed: session ended"}},
		"one is too many": {259, []string{"status-update failed: spend ceiling reached: inference.max_session_tokens is 259 and this session has used 260; the operator set this limit; retrying will not get past it."}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := testenv.Model(t,
				testenv.ModelAnswer{Calls: call, Usage: [2]int{100, 20}},
				testenv.ModelAnswer{Text: []string{"42"}, Usage: [2]int{130, 10}})
			f, m := modelFleet(t, model)
			e := f.end(t, f.modelJob(t, m, model, func(m *protocol.Manifest) { m.Inference.MaxSessionTokens = c.ceiling }))
			got := told(e.frames)
			if diff := cmp.Diff(c.want, got[max(0, len(got)-len(c.want)):]); diff != "" {
				t.Errorf("the last frames (-want +got):\n%s", diff)
			}
		})
	}
}

// TestASpentSessionAsksNoMore stops a guest that waits for the model's next answer
// when its tokens are spent.
func TestASpentSessionAsksNoMore(t *testing.T) {
	t.Parallel()
	model := testenv.Model(t,
		testenv.ModelAnswer{Calls: []testenv.ModelCall{{ID: "call_1", Name: "multiply", Arguments: []string{`{"a":6,"b":7}`}}}, Usage: [2]int{100, 20}},
		testenv.ModelAnswer{Hang: true})
	f, m := modelFleet(t, model)
	job := f.modelJob(t, m, model, func(m *protocol.Manifest) { m.Inference.MaxSessionTokens = 119 })
	e := f.end(t, job)
	message := protocol.SpendMessage(119, 120)
	e.check(t, f, job, situation{protocol.StatusError, protocol.ReportedByChild, "", "TASK_STATE_FAILED", message, nil, "error: " + message})
}

// TestAModelThatDoesNotAnswer has what a task says whose model refuses it, or cannot
// be called.
func TestAModelThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	model := testenv.Model(t,
		testenv.ModelAnswer{Refuse: 401}, testenv.ModelAnswer{Refuse: 429})
	f, m := modelFleet(t, model)
	for _, c := range []struct {
		name, want string
		job        protocol.Job
	}{
		{"unauthorized", "error, status code: 401, status: 401 Unauthorized, message: the model does not want to", f.modelJob(t, m, model)},
		{"quota", "error, status code: 429, status: 429 Too Many Requests, message: the model does not want to", f.modelJob(t, m, model)},
		{
			"not granted", "is not granted: capabilities.network.allow is empty",
			f.modelJob(t, m, model, func(m *protocol.Manifest) { m.Version, m.Capabilities.Network.Allow = "2.0.0", nil }),
		},
	} {
		if c.name == "not granted" {
			c.job.Capsule.Version = "2.0.0"
		}
		e := f.end(t, c.job)
		if got := e.rec.Ending; got.State != "TASK_STATE_FAILED" || !strings.Contains(got.Message, c.want) {
			t.Errorf("%s: the task ended %s %q, want %q in it", c.name, got.State, got.Message, c.want)
		}
	}
}

// TestACancelReachesAGuestThatWaitsForAModel lets it stop when asked.
func TestACancelReachesAGuestThatWaitsForAModel(t *testing.T) {
	t.Parallel()
	model := testenv.Model(t, testenv.ModelAnswer{Text: []string{"Let me "}, Hang: true})
	f, m := modelFleet(t, model)
	job := f.dispatch(t, f.modelJob(t, m, model))
	f.saying(t, job, "Let me ")
	if _, err := f.cancel(t, job); err != nil {
		t.Fatal(err)
	}
	rec := f.settled(t, job)
	ended{rec, f.frames(t, job)}.check(t, f, job, canceled(wasCanceled))
}
