package completion_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/completion"
	"starling/protocol"
)

const (
	message03 = `{"kind":"message","messageId":"msg_1","contextId":"ctx_1","role":"user","parts":[{"kind":"text","text":"hi"}]}`
	message10 = `{"messageId":"msg_1","contextId":"ctx_1","role":"ROLE_USER","parts":[{"text":"hi"}]}`
	call03    = `{"jsonrpc":"2.0","id":"req_1","method":"message/send","params":{"message":` + message03 + `}}`
	call10    = `{"jsonrpc":"2.0","id":"req_1","method":"SendMessage","params":{"message":` + message10 + `}}`
)

func newDoor(t *testing.T, cfg completion.DoorConfig) (*completion.Door, *httptest.Server) {
	t.Helper()
	if cfg.SessionID == "" {
		cfg.SessionID = "ses_parent"
	}
	door, err := completion.NewDoor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(door)
	t.Cleanup(func() {
		server.Client().CloseIdleConnections()
		server.Close()
	})
	return door, server
}

// answer is what a door answers.
type answer struct {
	Status int // of HTTP
	ID     any `json:"id"`
	Error  *struct {
		Code    int
		Message string
	}
	Result any
}

// post sends a completion of the delegation; more headers replace its own.
func post(t *testing.T, server *httptest.Server, delegation protocol.DelegationID, body string, more ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "X-Murmur-Task-Origin": {"completion"}, "X-Murmur-Task-Trust": {"trusted"},
		"X-Murmur-Delegation-Id": {string(delegation)}, "X-Murmur-Completion-Session": {"ses_parent"}, "Traceparent": {traceparent},
	}
	for i := 0; i < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	return do(t, server, req)
}

func do(t *testing.T, server *httptest.Server, req *http.Request) answer {
	t.Helper()
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var version struct{ JSONRPC string }
	a := answer{Status: resp.StatusCode}
	if json.Unmarshal(body, &a) != nil || json.Unmarshal(body, &version) != nil || version.JSONRPC != "2.0" || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("the door answered %s %s, want JSON-RPC 2.0", resp.Header.Get("Content-Type"), body)
	}
	if (a.Error == nil) == (a.Result == nil) {
		t.Fatalf("the door answered %s, want either a result or an error", body)
	}
	return a
}

func (a answer) state() string {
	result, _ := a.Result.(map[string]any)
	if task, ok := result["task"].(map[string]any); ok {
		result = task
	}
	status, _ := result["status"].(map[string]any)
	return fmt.Sprint(status["state"])
}

// queued is what waits at the door now.
func queued(door *completion.Door) []completion.Received {
	var all []completion.Received
	for {
		select {
		case got, open := <-door.Received():
			if !open {
				return all
			}
			all = append(all, got)
		default:
			return all
		}
	}
}

func TestDoorTakesBothDialects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ method, body, state string }{
		{"message/send", call03, "submitted"}, {"SendMessage", call10, "TASK_STATE_SUBMITTED"},
	} {
		door, server := newDoor(t, completion.DoorConfig{})
		a := post(t, server, "dlg_1", tt.body, "Content-Type", "application/json; charset=utf-8")
		if a.Status != 200 || a.Error != nil || a.ID != "req_1" || a.state() != tt.state {
			t.Errorf("%s: the answer is %+v, want a %s task", tt.method, a, tt.state)
		}
		result := a.Result.(map[string]any)
		if tt.method == "SendMessage" {
			result = result["task"].(map[string]any)
		} else if result["kind"] != "task" {
			t.Errorf("%s: the result is %v, want a task of 0.3", tt.method, result)
		}
		if id, _ := result["id"].(string); !strings.HasPrefix(id, "tsk_") || result["contextId"] != "ctx_1" {
			t.Errorf("%s: the task is %v, want an id and the message's context", tt.method, result)
		}
		want := []completion.Received{{
			Class:   protocol.Class{Origin: "completion", Trust: "trusted", Lane: "bg"},
			Dialect: tt.method, MessageID: "msg_1", ContextID: "ctx_1", Text: "hi",
			DelegationID: "dlg_1", SessionID: "ses_parent", Traceparent: traceparent,
		}}
		if diff := cmp.Diff(want, queued(door)); diff != "" {
			t.Errorf("%s: Received (-want +got):\n%s", tt.method, diff)
		}
	}
}

func TestDoorClassifiesByHeaders(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		origin, trust string
		want          protocol.Class
	}{
		{"peer", "trusted", protocol.Class{Origin: "peer", Trust: "trusted", Lane: "peer"}},
		{"peer", "", protocol.Class{Origin: "peer", Trust: "untrusted", Lane: "peer"}},
		{"user", "trusted", protocol.Class{Origin: "event", Trust: "untrusted", Lane: "bg"}},
		{"", "", protocol.Class{Origin: "event", Trust: "untrusted", Lane: "bg"}},
		{"Completion", "trusted", protocol.Class{Origin: "event", Trust: "untrusted", Lane: "bg"}},
	} {
		door, server := newDoor(t, completion.DoorConfig{})
		// The headers of a completion mean nothing for what is none.
		if a := post(t, server, "dlg_1", call03, protocol.HeaderTaskOrigin, tt.origin, protocol.HeaderTaskTrust, tt.trust, protocol.HeaderCompletionSession, "ses_x"); a.Error != nil {
			t.Errorf("%q, %q: the door answered %+v, want it taken", tt.origin, tt.trust, a.Error)
		}
		got := queued(door)
		if len(got) != 1 || got[0].Class != tt.want || got[0].DelegationID != "" || got[0].SessionID != "" {
			t.Errorf("%q, %q: Received %+v, want %+v", tt.origin, tt.trust, got, tt.want)
		}
	}
}

// TestDoorRefusals has the refusals of docs/protocol.md, section 9, "Receiving side".
func TestDoorRefusals(t *testing.T) {
	t.Parallel()
	replace := func(old, new string) string { return strings.Replace(call03, old, new, 1) }
	session := func(id string) []string { return []string{protocol.HeaderCompletionSession, id} }
	const anything = ""
	tests := []struct {
		rule, body string
		header     []string
		http, code int
		id         any
		message    string
	}{
		{"another session", call03, session("ses_other"), 200, -32004, "req_1", "completion is addressed to session ses_other, which is not the session running here"},
		{"a session of another case", call03, session("SES_parent"), 200, -32004, "req_1", "completion is addressed to session SES_parent, which is not the session running here"},
		{"unaddressed", call03, session(""), 200, -32004, "req_1", "completion is addressed to session <unaddressed>, which is not the session running here"},
		{"no delegation id", call03, []string{protocol.HeaderDelegationID, ""}, 200, -32602, "req_1", anything},
		{"a delegation id of another form", call03, []string{protocol.HeaderDelegationID, "dlg_X"}, 200, -32602, "req_1", anything},
		{"text as content type", call03, []string{"Content-Type", "text/plain"}, 415, -32005, nil, anything},
		{"no content type", call03, []string{"Content-Type", ""}, 415, -32005, nil, anything},
		{"nothing", ``, nil, 200, -32700, nil, anything},
		{"half", call03[:40], nil, 200, -32700, nil, anything},
		{"text after the JSON", call03 + "x", nil, 200, -32700, nil, anything},
		{"a batch", `[` + call03 + `]`, nil, 200, -32600, nil, anything},
		{"null", `null`, nil, 200, -32600, nil, anything},
		{"no version", replace(`"jsonrpc":"2.0",`, ``), nil, 200, -32600, "req_1", anything},
		{"version 1.0", replace(`"2.0"`, `"1.0"`), nil, 200, -32600, "req_1", anything},
		{"no method", replace(`"method":"message/send",`, ``), nil, 200, -32600, "req_1", anything},
		{"a method that is null", replace(`"message/send"`, `null`), nil, 200, -32600, "req_1", anything},
		{"a method that is a number", replace(`"message/send"`, `7`), nil, 200, -32600, "req_1", anything},
		{"unknown method", replace(`message/send`, `message/stream`), nil, 200, -32601, "req_1", anything},
		{"a method of another case", replace(`message/send`, `Message/Send`), nil, 200, -32601, "req_1", anything},
		{"no params", `{"jsonrpc":"2.0","id":"req_1","method":"message/send"}`, nil, 200, -32602, "req_1", anything},
		{"params that are null", `{"jsonrpc":"2.0","id":"req_1","method":"message/send","params":null}`, nil, 200, -32602, "req_1", anything},
		{"params that are a list", `{"jsonrpc":"2.0","id":"req_1","method":"message/send","params":[]}`, nil, 200, -32602, "req_1", anything},
		{"no message", replace(`"message":{`, `"massage":{`), nil, 200, -32602, "req_1", anything},
		{"a message that is null", replace(message03, `null`), nil, 200, -32602, "req_1", anything},
		{"a message without text", replace(`"hi"`, `""`), nil, 200, -32602, "req_1", anything},
		{"an agent's message", replace(`"role":"user"`, `"role":"agent"`), nil, 200, -32602, "req_1", anything},
		{"params of another case", replace(`"params"`, `"Params"`), nil, 200, -32602, "req_1", anything},
		{"message of another case", replace(`"message":{`, `"Message":{`), nil, 200, -32602, "req_1", anything},
		{"method of another case", replace(`"method"`, `"Method"`), nil, 200, -32600, "req_1", anything},
		{"parts of another case", replace(`"parts"`, `"Parts"`), nil, 200, -32602, "req_1", anything},
		{"an id that is a number", `{"jsonrpc":"2.0","id":7,"method":"message/send"}`, nil, 200, -32602, 7.0, anything},
		{"an id that is an object", `{"jsonrpc":"2.0","id":{},"method":"message/send"}`, nil, 200, -32602, nil, anything},
		{"an id of another case", `{"jsonrpc":"2.0","Id":"req_1","method":"message/send"}`, nil, 200, -32602, nil, anything},
	}
	door, server := newDoor(t, completion.DoorConfig{})
	for _, tt := range tests {
		a := post(t, server, "dlg_1", tt.body, tt.header...)
		if a.Status != tt.http || a.Error == nil || a.Error.Code != tt.code || a.ID != tt.id ||
			a.Error.Message == "" || tt.message != anything && a.Error.Message != tt.message {
			t.Errorf("%s: the answer to %s is HTTP %d, id %v, %+v, want HTTP %d, id %v, %d %s", tt.rule, tt.body, a.Status, a.ID, a.Error, tt.http, tt.id, tt.code, tt.message)
		}
	}
	if got := queued(door); len(got) != 0 {
		t.Errorf("Received %+v, want nothing of what was refused", got)
	}
	// A delegation that was refused was not taken: it may come again.
	if a := post(t, server, "dlg_1", call03); a.state() != "submitted" || len(queued(door)) != 1 {
		t.Errorf("after refusals the delegation is answered %s, want it taken", a.state())
	}
}

func TestDoorTakesPOSTAlone(t *testing.T) {
	t.Parallel()
	_, server := newDoor(t, completion.DoorConfig{})
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a := do(t, server, req); a.Status != http.StatusMethodNotAllowed || a.Error == nil || a.Error.Code != -32600 {
			t.Errorf("%s: the answer is %+v, want HTTP 405 and -32600", method, a)
		}
	}
}

func TestDoorBodyBound(t *testing.T) {
	t.Parallel()
	door, server := newDoor(t, completion.DoorConfig{})
	pad := func(size int) string { return call03 + strings.Repeat(" ", size-len(call03)) }
	if a := post(t, server, "dlg_1", pad(1<<20)); a.Status != 200 || a.state() != "submitted" {
		t.Errorf("a body of 1 MiB is answered %+v, want it taken", a)
	}
	if a := post(t, server, "dlg_2", pad(1<<20+1)); a.Status != http.StatusRequestEntityTooLarge || a.Error == nil || a.Error.Code != -32600 || a.ID != nil {
		t.Errorf("a body of 1 MiB and 1 is answered %+v, want HTTP 413 and -32600", a)
	}
	if got := queued(door); len(got) != 1 {
		t.Errorf("Received %d messages, want 1", len(got))
	}
}

func TestFullDoorRejects(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{call03: "rejected", call10: "TASK_STATE_REJECTED"} {
		door, server := newDoor(t, completion.DoorConfig{Queue: 1})
		post(t, server, "dlg_1", body)
		if a := post(t, server, "dlg_2", body); a.Status != 200 || a.Error != nil || a.state() != want {
			t.Errorf("a full door answers %+v, want a %s task", a, want)
		}
		if a := post(t, server, "dlg_1", body); a.state() == want {
			t.Errorf("a full door rejects what it has taken before")
		}
		if got := queued(door); len(got) != 1 || got[0].DelegationID != "dlg_1" {
			t.Errorf("Received %+v, want dlg_1", got)
		}
		// What was rejected was not taken: it is welcome once there is room.
		if a := post(t, server, "dlg_2", body); a.state() == want || len(queued(door)) != 1 {
			t.Errorf("with room the door answers %s, want dlg_2 taken", a.state())
		}
	}
}

func TestDuplicatesAreTakenAndHandedOnOnce(t *testing.T) {
	t.Parallel()
	door, server := newDoor(t, completion.DoorConfig{Queue: 1000})
	var wg sync.WaitGroup
	for i := range 8 {
		for n := range 25 {
			wg.Go(func() {
				body := []string{call03, call10}[i%2]
				if a := post(t, server, protocol.DelegationID(fmt.Sprintf("dlg_%x", n)), body); !strings.HasSuffix(strings.ToLower(a.state()), "submitted") {
					t.Errorf("the answer is %s, want every one submitted", a.state())
				}
			})
		}
	}
	wg.Wait()
	seen := map[protocol.DelegationID]int{}
	for _, got := range queued(door) {
		seen[got.DelegationID]++
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was handed on %d times", id, n)
		}
	}
	if len(seen) != 25 {
		t.Errorf("%d delegations were handed on, want 25", len(seen))
	}
}

// TestMessagesOfPeersAreNoDuplicates: only completions are known by their
// delegation.
func TestMessagesOfPeersAreNoDuplicates(t *testing.T) {
	t.Parallel()
	door, server := newDoor(t, completion.DoorConfig{})
	for range 2 {
		post(t, server, "dlg_1", call03, protocol.HeaderTaskOrigin, "peer")
	}
	if got := queued(door); len(got) != 2 {
		t.Errorf("Received %d messages of a peer, want 2", len(got))
	}
}

func TestDoorRemembersTheLatest(t *testing.T) {
	t.Parallel()
	door, server := newDoor(t, completion.DoorConfig{Remember: 2})
	for _, id := range []protocol.DelegationID{"dlg_1", "dlg_2", "dlg_3", "dlg_2", "dlg_3", "dlg_1"} {
		post(t, server, id, call03)
	}
	var got []protocol.DelegationID
	for _, r := range queued(door) {
		got = append(got, r.DelegationID)
	}
	if diff := cmp.Diff([]protocol.DelegationID{"dlg_1", "dlg_2", "dlg_3", "dlg_1"}, got); diff != "" {
		t.Errorf("Received (-want +got):\n%s", diff)
	}
}

func TestClosedDoorRejects(t *testing.T) {
	t.Parallel()
	door, server := newDoor(t, completion.DoorConfig{})
	post(t, server, "dlg_1", call03)
	door.Close()
	door.Close()
	if a := post(t, server, "dlg_2", call03); a.state() != "rejected" {
		t.Errorf("a closed door answers %s, want rejected", a.state())
	}
	if a := post(t, server, "dlg_1", call03); a.state() != "submitted" {
		t.Errorf("a closed door answers %s to what it has taken, want submitted", a.state())
	}
	var got int
	for range door.Received() { // ends, for it is closed
		got++
	}
	if got != 1 {
		t.Errorf("Received %d messages, want the one that was queued", got)
	}
}

// TestCloseAmongPosts closes while posts come: none is lost, none panics.
func TestCloseAmongPosts(t *testing.T) {
	t.Parallel()
	door, server := newDoor(t, completion.DoorConfig{Queue: 100})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var taken int
	for i := range 40 {
		wg.Go(func() {
			if i == 20 {
				door.Close()
			}
			if post(t, server, protocol.DelegationID(fmt.Sprintf("dlg_%x", i)), call03).state() == "submitted" {
				mu.Lock()
				taken++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var got int
	for range door.Received() {
		got++
	}
	if got != taken {
		t.Errorf("%d messages were taken and %d handed on", taken, got)
	}
}

func TestNewDoorRefusals(t *testing.T) {
	t.Parallel()
	for says, cfg := range map[string]completion.DoorConfig{
		"session_id": {}, "session_id is": {SessionID: "a.b"}, "queue": {SessionID: "s", Queue: -1}, "remember": {SessionID: "s", Remember: -1},
	} {
		if _, err := completion.NewDoor(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("NewDoor(%+v) = %v, want an error that says %s", cfg, err, says)
		}
	}
}
