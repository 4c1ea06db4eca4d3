package main

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// traceCollector is an OTLP receiver that keeps what it is sent.
type traceCollector struct {
	mu    sync.Mutex
	raw   bytes.Buffer
	spans []*tracepb.Span
}

func (c *traceCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	content, err := io.ReadAll(body)
	var request collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(content, &request)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(content)
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// named are the spans of a name.
func (c *traceCollector) named(name string) []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*tracepb.Span
	for _, s := range c.spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// startCollector makes OpenTelemetry's variables name a collector. The test must
// not be parallel.
func startCollector(t *testing.T) *traceCollector {
	t.Helper()
	c := &traceCollector{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	return c
}

func TestOneTraceFromTheDispatchToThePost(t *testing.T) {
	c := startCollector(t)
	const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	t.Setenv(protocol.TraceparentEnv, caller)
	door := testenv.Door(t)
	var frames []protocol.ReceivedFrame
	t.Run("a job", func(t *testing.T) { // whose end is the fleet's, which exports the last spans
		f := testFleet(t, nil)
		url := f.server.ClientURL()
		for _, args := range [][]string{
			{"capsule", "push", agent(t, "text"), "--url", url},
			{"dispatch", "agent@1.0.0", "--url", url, "--task", "env", "--wait", "--door", door.URL()},
		} {
			if got := starling(t, "", args...); got.status != 0 {
				t.Fatalf("starling %v = %+v", args, got)
			}
		}
		frames = framesOfOnlyTask(t, f.bus)
	})
	trace := strings.Split(caller, "-")[1]
	parents := map[string]string{ // of each span that there must be
		"dispatch": "", "job": "dispatch", "claim": "job", "attempt": "job", "prepare": "attempt", "run": "attempt",
		"report": "attempt", "post": "report",
	}
	for name, parent := range parents {
		spans := c.named(name)
		if len(spans) != 1 {
			t.Errorf("%d spans %q, want 1", len(spans), name)
			continue
		}
		if got := hex.EncodeToString(spans[0].TraceId); got != trace {
			t.Errorf("span %q has the trace %s, want the caller's, %s", name, got, trace)
		}
		want := strings.Split(caller, "-")[2]
		if parent != "" && len(c.named(parent)) == 1 {
			want = hex.EncodeToString(c.named(parent)[0].SpanId)
		}
		if got := hex.EncodeToString(spans[0].ParentSpanId); got != want {
			t.Errorf("span %q has the parent %s, want %s (%s)", name, got, want, parent)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	of := func(name string) string {
		return "00-" + trace + "-" + hex.EncodeToString(c.named(name)[0].SpanId) + "-01"
	}
	if posts := door.Posts(); len(posts) != 1 || posts[0].Header.Get("traceparent") != of("post") {
		t.Errorf("the door got %+v, want one post with traceparent %s", posts, of("post"))
	}
	answer := ""
	for _, frame := range frames {
		want := of("attempt")
		if frame.Terminal() {
			want = of("report")
		}
		if frame.Traceparent != want {
			t.Errorf("frame %d has traceparent %q, want %q", frame.Seq, frame.Traceparent, want)
		}
		answer += frame.Text
	}
	contains(t, "the capsule's environment", answer, "TRACEPARENT="+of("run"))
}

func TestACollectorThatIsAwayCostsNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	got := starling(t, "", runArgs(t, "run", agent(t, "text"), "--task", "echo hi")...)
	if got.status != 0 || !strings.Contains(got.out, "hi") {
		t.Errorf("run without its collector = %+v", got)
	}
}

// framesOfOnlyTask reads the one task of a namespace to its end.
func framesOfOnlyTask(t *testing.T, bus *broker.Bus) []protocol.ReceivedFrame {
	t.Helper()
	var task protocol.TaskID
	for rec, err := range bus.Delegations(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		task = rec.TaskID
	}
	watch, err := bus.WatchTask(t.Context(), task, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	var frames []protocol.ReceivedFrame
	for {
		e, err := watch.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, *e.Frame)
	}
}

// TestSecretsReachNothingThatIsKept runs a job whose every secret is a canary,
// logging all there is.
func TestSecretsReachNothingThatIsKept(t *testing.T) {
	c := startCollector(t)
	door := testenv.Door(t)
	secrets := map[string]string{
		"a door's password": "canary-door-password", "a door's path": "canary-door-path", "a door's query": "canary-door-query",
		"a variable of the job": "canary-variable", "a variable of the worker": "canary-worker-variable",
		"a collector's header": "canary-collector-header", "the task": "canary-task",
	}
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=canary-collector-header")
	t.Setenv("CANARY_TOKEN", "canary-worker-variable")
	address := strings.Replace(door.URL(), "http://", "http://user:canary-door-password@", 1) + "/canary-door-path?key=canary-door-query"
	var out, logged output
	var kept []string
	t.Run("a job", func(t *testing.T) {
		a := &app{streams: streams{in: strings.NewReader(""), out: &out, err: &logged}}
		a.log.LogLevel, a.log.LogFormat = "debug", "json"
		f := testFleetLogging(t, a.logger(), monitored)
		url := f.server.ClientURL()
		capsule := capsuleDir(t, testenv.GoCapsule(t, "agent"), "name: agent\nversion: 1.0.0\ncapabilities: {env: {allow: [PLAIN]}}\n")
		if got := starling(t, "", "capsule", "push", capsule, "--url", url); got.status != 0 {
			t.Fatalf("push = %+v", got)
		}
		got := starling(t, "", "dispatch", "agent@1.0.0", "--url", url, "--task", "fail 3 canary-task", "--wait", "--json",
			"--door", address, "--env", "PLAIN=canary-variable", "--log-level", "debug")
		if got.status != exitTaskFailed {
			t.Fatalf("dispatch = %+v", got)
		}
		_, metrics := f.staff.watched.look(t, "/metrics")
		kept = append(kept, got.out, got.err, metrics)
		for _, frame := range framesOfOnlyTask(t, f.bus) {
			kept = append(kept, frame.Text)
		}
	})
	kept = append(kept, logged.String(), c.raw.String())
	if len(c.spans) == 0 || logged.String() == "" {
		t.Fatal("nothing was logged or traced: the test looks at nothing")
	}
	for what, secret := range secrets {
		if slices.ContainsFunc(kept, func(text string) bool { return strings.Contains(text, secret) }) {
			t.Errorf("%s is kept somewhere", what)
		}
	}
}
