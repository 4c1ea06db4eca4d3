package testenv

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"starling/protocol"
)

// Post is one request that a recording door got.
type Post struct {
	At     time.Time
	HTTP   string // method
	Header http.Header
	Body   []byte

	// Read from the body, and empty where it does not say so.
	Method       string // of JSON-RPC
	MessageID    protocol.MessageID
	ContextID    protocol.ContextID
	Text         string
	DelegationID protocol.DelegationID // from the header
}

// Answer is how a door answers one post. The door's own context ends when the
// test does.
type Answer func(w http.ResponseWriter, r *http.Request, p Post)

// Accept takes the completion, in the dialect it came in.
func Accept() Answer {
	return func(w http.ResponseWriter, _ *http.Request, p Post) {
		if p.Method == "SendMessage" {
			writeJSON(w, http.StatusOK, `{"jsonrpc":"2.0","id":null,"result":{"task":{"id":"tsk_1","contextId":"c","status":{"state":"TASK_STATE_SUBMITTED"}}}}`)
			return
		}
		writeJSON(w, http.StatusOK, `{"jsonrpc":"2.0","id":null,"result":{"kind":"task","id":"tsk_1","contextId":"c","status":{"state":"submitted"}}}`)
	}
}

// Reject answers with a rejected task.
func Reject() Answer {
	return func(w http.ResponseWriter, _ *http.Request, p Post) {
		if p.Method == "SendMessage" {
			writeJSON(w, http.StatusOK, `{"jsonrpc":"2.0","id":null,"result":{"task":{"status":{"state":"TASK_STATE_REJECTED"}}}}`)
			return
		}
		writeJSON(w, http.StatusOK, `{"jsonrpc":"2.0","id":null,"result":{"status":{"state":"rejected"}}}`)
	}
}

// Refuse answers with a JSON-RPC error.
func Refuse(code int, message string) Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Post) {
		body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": message}})
		writeJSON(w, http.StatusOK, string(body))
	}
}

// Raw answers with a status and a body.
func Raw(status int, body string) Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Post) { writeJSON(w, status, body) }
}

// Speaks10 is a door of A2A 1.0: it knows SendMessage alone, and refuses
// another method with the code.
func Speaks10(code int) Answer {
	return func(w http.ResponseWriter, r *http.Request, p Post) {
		if p.Method == "SendMessage" {
			Accept()(w, r, p)
			return
		}
		Refuse(code, "no such method")(w, r, p)
	}
}

// Hang does not answer before release is closed or the caller goes.
func Hang(release <-chan struct{}) Answer {
	return func(w http.ResponseWriter, r *http.Request, p Post) {
		select {
		case <-release:
			Accept()(w, r, p)
		case <-r.Context().Done():
		}
	}
}

// Drop closes the connection without an answer.
func Drop() Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Post) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}

// HalfBody promises more than it sends.
func HalfBody() Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Post) {
		w.Header().Set("Content-Length", "1000")
		writeJSON(w, http.StatusOK, `{"jsonrpc":`)
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}

// EndlessBody sends until the caller goes.
func EndlessBody() Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Post) {
		w.Header().Set("Content-Type", "application/json")
		for chunk := make([]byte, 64<<10); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
}

func writeJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // a caller that has gone is not the door's matter
}

// RecordingDoor is a parent's door: a real HTTP server that keeps what it got.
type RecordingDoor struct {
	server *httptest.Server

	mu      sync.Mutex
	posts   []Post        // guarded by mu
	answers []Answer      // of the next posts; the last one stays
	changed chan struct{} // closed and replaced at each post
}

// Door starts a door that gives the answers in turn, the last one for ever;
// without answers it accepts. It is closed with the test.
func Door(t testing.TB, answers ...Answer) *RecordingDoor {
	t.Helper()
	return DoorOn(t, nil, answers...)
}

// DoorOn is [Door] on a listener, which it closes; nil: a free port of this host.
func DoorOn(t testing.TB, listener net.Listener, answers ...Answer) *RecordingDoor {
	t.Helper()
	if len(answers) == 0 {
		answers = []Answer{Accept()}
	}
	d := &RecordingDoor{answers: answers, changed: make(chan struct{})}
	d.server = httptest.NewUnstartedServer(d)
	if listener != nil {
		_ = d.server.Listener.Close() // the one that it made by itself
		d.server.Listener = listener
	}
	d.server.Start()
	t.Cleanup(func() {
		d.server.CloseClientConnections()
		d.server.Close()
	})
	return d
}

// Answer replaces the answers that are still to come.
func (d *RecordingDoor) Answer(answers ...Answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers = answers
}

// URL is the door's address.
func (d *RecordingDoor) URL() string { return d.server.URL }

// Addr is its host and port.
func (d *RecordingDoor) Addr() net.Addr { return d.server.Listener.Addr() }

// ServeHTTP records the request and gives the next answer.
func (d *RecordingDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		return
	}
	post := readPost(r, body)
	d.mu.Lock()
	answer := d.answers[0]
	if len(d.answers) > 1 {
		d.answers = d.answers[1:]
	}
	d.posts = append(d.posts, post)
	close(d.changed)
	d.changed = make(chan struct{})
	d.mu.Unlock()
	answer(w, r, post)
}

func readPost(r *http.Request, body []byte) Post {
	post := Post{
		At: time.Now(), HTTP: r.Method, Header: r.Header.Clone(), Body: body,
		DelegationID: protocol.DelegationID(r.Header.Get(protocol.HeaderDelegationID)),
	}
	var call struct {
		Method string `json:"method"`
		Params struct {
			Message struct {
				MessageID protocol.MessageID `json:"messageId"`
				ContextID protocol.ContextID `json:"contextId"`
				Parts     []struct {
					Text string `json:"text"`
				} `json:"parts"`
			} `json:"message"`
		} `json:"params"`
	}
	if json.Unmarshal(body, &call) == nil {
		m := call.Params.Message
		post.Method, post.MessageID, post.ContextID = call.Method, m.MessageID, m.ContextID
		if len(m.Parts) > 0 {
			post.Text = m.Parts[0].Text
		}
	}
	return post
}

// Posts are what the door got, in order.
func (d *RecordingDoor) Posts() []Post {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Post(nil), d.posts...)
}

// PostsOf are those about one delegation.
func (d *RecordingDoor) PostsOf(id protocol.DelegationID) []Post {
	var found []Post
	for _, p := range d.Posts() {
		if p.DelegationID == id {
			found = append(found, p)
		}
	}
	return found
}

// WaitFor blocks until the door got n posts and gives them. The test fails when
// that takes longer than within.
func (d *RecordingDoor) WaitFor(t testing.TB, n int, within time.Duration) []Post {
	t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		d.mu.Lock()
		posts, changed := append([]Post(nil), d.posts...), d.changed
		d.mu.Unlock()
		if len(posts) >= n {
			return posts
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("the door got %d posts within %s, want %d", len(posts), within, n)
		}
	}
}
