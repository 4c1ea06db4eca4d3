package testenv

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// ModelCall is a tool call that a model writes, its arguments in pieces.
type ModelCall struct {
	ID, Name  string
	Arguments []string
}

// ModelAnswer is one answer of a model, each text in the pieces it streams.
type ModelAnswer struct {
	Thinking, Text []string
	Calls          []ModelCall
	Usage          [2]int // tokens of the prompt and of the completion

	Before func(piece int) // called before each piece, from 0; or nil
	Hang   bool            // no more is sent until the caller goes
	Refuse int             // another status, with an error object; 0: answer
}

// ModelRequest is what a model was asked.
type ModelRequest struct {
	Authorization string
	Model         string
	Stream        bool
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Messages []struct {
		Role, Content string
		ToolCallID    string `json:"tool_call_id"`
	}
	Tools []json.RawMessage
}

// ModelServer is an OpenAI-compatible server: a real HTTP server that streams
// the answers it was given, in order, as server-sent events.
type ModelServer struct {
	server *httptest.Server

	mu       sync.Mutex     // guards what follows
	answers  []ModelAnswer  // those to come
	requests []ModelRequest // those that came
}

// Model starts a server. It ends with the test, once its callers have gone.
func Model(tb testing.TB, answers ...ModelAnswer) *ModelServer {
	tb.Helper()
	m := &ModelServer{answers: answers}
	m.server = httptest.NewServer(http.HandlerFunc(m.serve))
	tb.Cleanup(m.server.Close)
	return m
}

// Origin is scheme, host and port, as network.allow has it.
func (m *ModelServer) Origin() string { return m.server.URL }

// URL is the base of the API.
func (m *ModelServer) URL() string { return m.server.URL + "/v1" }

// Requests are those that came so far, in order.
func (m *ModelServer) Requests() []ModelRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]ModelRequest(nil), m.requests...)
}

func (m *ModelServer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	asked := ModelRequest{Authorization: r.Header.Get("Authorization")}
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" || err != nil || !asked.Stream {
		refuseModel(w, http.StatusBadRequest, fmt.Sprintf("%s %s: %v", r.Method, r.URL.Path, err))
		return
	}
	m.mu.Lock()
	m.requests = append(m.requests, asked)
	if len(m.answers) == 0 {
		m.mu.Unlock()
		refuseModel(w, http.StatusBadRequest, "the test has no more answers")
		return
	}
	answer := m.answers[0]
	m.answers = m.answers[1:]
	m.mu.Unlock()
	if answer.Refuse != 0 {
		refuseModel(w, answer.Refuse, "the model does not want to")
		return
	}
	answer.stream(w, asked)
	if answer.Hang {
		<-r.Context().Done()
	}
}

func refuseModel(w http.ResponseWriter, status int, why string) {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": why, "type": "refused"}})
	writeJSON(w, status, string(body))
}

// stream writes the pieces of an answer in the order a model has them.
func (a ModelAnswer) stream(w http.ResponseWriter, asked ModelRequest) {
	w.Header().Set("Content-Type", "text/event-stream")
	pieces := 0
	event := func(body map[string]any) {
		body["id"], body["object"], body["created"], body["model"] = "chatcmpl-1", "chat.completion.chunk", 1, asked.Model
		data, _ := json.Marshal(body)
		fmt.Fprintf(w, "data: %s\n\n", data)
		w.(http.Flusher).Flush()
	}
	delta := func(member string, value any) {
		if a.Before != nil {
			a.Before(pieces)
		}
		pieces++
		event(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{member: value}, "finish_reason": nil}}})
	}
	event(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{"role": "assistant", "content": ""}}}})
	for _, piece := range a.Thinking {
		delta("reasoning_content", piece)
	}
	for _, piece := range a.Text {
		delta("content", piece)
	}
	for i, call := range a.Calls {
		for n, piece := range call.Arguments {
			part := map[string]any{"index": i, "function": map[string]any{"arguments": piece}}
			if n == 0 {
				part["id"], part["type"] = call.ID, "function"
				part["function"] = map[string]any{"name": call.Name, "arguments": piece}
			}
			delta("tool_calls", []any{part})
		}
	}
	if a.Hang {
		return
	}
	reason := "stop"
	if len(a.Calls) > 0 {
		reason = "tool_calls"
	}
	event(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": reason}}})
	if asked.StreamOptions.IncludeUsage {
		event(map[string]any{"choices": []any{}, "usage": map[string]int{
			"prompt_tokens": a.Usage[0], "completion_tokens": a.Usage[1], "total_tokens": a.Usage[0] + a.Usage[1],
		}})
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
