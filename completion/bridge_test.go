package completion_test

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"starling/completion"
	"starling/protocol"
	"starling/testenv"
)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func outcome(id protocol.DelegationID) protocol.Outcome {
	return protocol.Outcome{
		DelegationID: id, CapsuleName: "worker", CapsuleVersion: "0.1.0", SessionID: "ses_child", Status: protocol.StatusOK,
		ResultPath: "out/result.txt", Workdir: "/w", DurationMS: 42, ReportedBy: protocol.ReportedByChild, WorkerID: "wrk_1",
	}
}

func handle(id protocol.DelegationID, url string) protocol.Spawner {
	return protocol.Spawner{SessionID: "ses_parent", ContextID: "ctx_parent", DelegationID: id, URL: url, Trust: protocol.Untrusted}
}

func newBridge(t *testing.T, cfg completion.Config) *completion.Bridge {
	t.Helper()
	b, err := completion.NewBridge(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// once is a bridge that tries once.
func once(t *testing.T) *completion.Bridge { return newBridge(t, completion.Config{Tries: 1}) }

func deliver(t *testing.T, b *completion.Bridge, url string) error {
	t.Helper()
	return b.Deliver(t.Context(), handle("dlg_1", url), outcome("dlg_1"), traceparent)
}

// wantError checks the text to the letter.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("Deliver = %v, want %s", err, want)
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	var c completion.Config
	if err := c.Validate(); err != nil || c.Timeout != 30*time.Second || c.Tries != 2 || c.Backoff != time.Second || c.Logger == nil {
		t.Errorf("Validate() = %v and %+v, want 30 s, 2 tries, 1 s", err, c)
	}
	c = completion.Config{Timeout: -1, Tries: -1, Backoff: -1}
	_, err := completion.NewBridge(c)
	for _, name := range []string{"timeout", "tries", "backoff"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("NewBridge = %v, want it to name %s too", err, name)
		}
	}
}

var requestID = regexp.MustCompile(`"id":"req_[0-9a-f]{32}"`)

// TestPostToTheLetter has the post of docs/protocol.md, section 9, in both dialects.
func TestPostToTheLetter(t *testing.T) {
	t.Parallel()
	const text = `Delegated capsule finished.\ndelegation_id: dlg_1\ncapsule: worker@0.1.0\nsession_id: ses_child\nstatus: ok\nduration_ms: 42\nworkdir: /w\n` +
		`result: out/result.txt (in that workdir)\n\nThe child's own output is in that file and is not reproduced here.`
	const (
		body03 = `{"jsonrpc":"2.0","id":"req_","method":"message/send","params":{"message":{"kind":"message","messageId":"msg_1",` +
			`"contextId":"ctx_parent","role":"user","parts":[{"kind":"text","text":"` + text + `"}]},"configuration":{"blocking":false}}}`
		body10 = `{"jsonrpc":"2.0","id":"req_","method":"SendMessage","params":{"message":{"messageId":"msg_1",` +
			`"contextId":"ctx_parent","role":"ROLE_USER","parts":[{"text":"` + text + `"}]},"configuration":{"returnImmediately":true}}}`
	)
	door := testenv.Door(t, testenv.Speaks10(-32601))
	if err := deliver(t, once(t), door.URL()); err != nil {
		t.Fatal(err)
	}
	posts := door.Posts()
	if len(posts) != 2 {
		t.Fatalf("the door got %d posts, want 2", len(posts))
	}
	for i, want := range []string{body03, body10} {
		post := posts[i]
		if got := requestID.ReplaceAllString(string(post.Body), `"id":"req_"`); got != want {
			t.Errorf("post %d has the body %s, want %s", i, got, want)
		}
		header := http.Header{
			"Content-Type": {"application/json"}, "Content-Length": {post.Header.Get("Content-Length")},
			"X-Murmur-Task-Origin": {"completion"}, "X-Murmur-Task-Trust": {"untrusted"}, "X-Murmur-Delegation-Id": {"dlg_1"},
			"X-Murmur-Completion-Session": {"ses_parent"}, "Traceparent": {traceparent}, "User-Agent": {"Go-http-client/1.1"},
		}
		if i == 1 {
			header["A2a-Version"] = []string{"1.0"}
		}
		if diff := cmp.Diff(header, post.Header); diff != "" || post.HTTP != http.MethodPost {
			t.Errorf("post %d by %s (-want +got header):\n%s", i, post.HTTP, diff)
		}
		if n := post.Header.Get("Content-Length"); n == "" || n == "0" {
			t.Errorf("post %d has the Content-Length %q", i, n)
		}
	}
}

// TestPostWithoutATrace: none, or one that is no header value and must not keep
// the parent from being told.
func TestPostWithoutATrace(t *testing.T) {
	t.Parallel()
	for _, trace := range []string{"", traceparent + "\x01", "trace\r\nx: y"} {
		door := testenv.Door(t)
		if err := once(t).Deliver(t.Context(), handle("dlg_1", door.URL()), outcome("dlg_1"), trace); err != nil {
			t.Fatalf("%q: %v", trace, err)
		}
		if _, there := door.Posts()[0].Header["Traceparent"]; there {
			t.Errorf("%q: the post has a traceparent, want none where there is no trace", trace)
		}
	}
}

// TestGoldenAnswers has the answers of a door of 0.3.
func TestGoldenAnswers(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../protocol/testdata/completion.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Answers []struct {
			Status    int
			Body      string
			Delivered bool
			Error     string
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil || len(golden.Answers) == 0 {
		t.Fatalf("the golden file has %d answers, %v", len(golden.Answers), err)
	}
	b := once(t)
	for _, a := range golden.Answers {
		err := deliver(t, b, testenv.Door(t, testenv.Raw(a.Status, a.Body)).URL())
		if (err == nil) != a.Delivered || a.Error != "" && err.Error() != a.Error {
			t.Errorf("HTTP %d %s: Deliver = %v, want it delivered: %v, %q", a.Status, a.Body, err, a.Delivered, a.Error)
		}
	}
}

const rejected = "the parent rejected the completion: its queue is full or its session has stopped taking work"

// TestAnswers has what the golden file has not.
func TestAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		rule   string
		status int
		body   string
		want   string // "" is delivered
	}{
		{"any 2xx", 299, `{"result":{}}`, ""},
		{"JSON that is no object", 200, `[]`, ""},
		{"a state of another case", 200, `{"result":{"status":{"state":"Rejected"}}}`, ""},
		{"a rejected task of the other dialect", 200, `{"result":{"task":{"status":{"state":"TASK_STATE_REJECTED"}}}}`, ""},
		{"text after the JSON", 200, `{"result":{}} x`, "the door answered HTTP 200 with a body that is not JSON"},
		{"an error beside a rejected task", 200, `{"error":{"message":"no"},"result":{"status":{"state":"rejected"}}}`, "no"},
		{"an error message that is no text", 200, `{"error":{"message":7}}`, "the parent refused the completion"},
		{"an empty error message", 200, `{"error":{"message":""}}`, "the parent refused the completion"},
		{"an error message in another case", 200, `{"error":{"Message":"no"}}`, "the parent refused the completion"},
		{"an error with HTTP 500", 500, `{"error":{"message":"boom"}}`, "boom"},
		{"HTTP 404 without JSON", 404, `not found`, "the door answered HTTP 404"},
		{"a long error message", 200, `{"error":{"message":"` + strings.Repeat("é", 2000) + `"}}`, strings.Repeat("é", 1000) + " […]"},
	}
	b := once(t)
	for _, tt := range tests {
		err := deliver(t, b, testenv.Door(t, testenv.Raw(tt.status, tt.body)).URL())
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("%s: Deliver = %v, want %q", tt.rule, err, tt.want)
		}
	}
}

func TestDialectFallback(t *testing.T) {
	t.Parallel()
	for _, code := range []int{-32601, -32009} {
		door, b := testenv.Door(t, testenv.Speaks10(code)), once(t)
		for range 2 {
			if err := deliver(t, b, door.URL()); err != nil {
				t.Errorf("%d: Deliver = %v", code, err)
			}
		}
		if got, want := methods(door.Posts()), []string{"message/send", "SendMessage", "SendMessage"}; !slices.Equal(got, want) {
			t.Errorf("%d: the door got %q, want %q: the dialect is remembered", code, got, want)
		}
		other := testenv.Door(t)
		if err := deliver(t, b, other.URL()); err != nil || !slices.Equal(methods(other.Posts()), []string{"message/send"}) {
			t.Errorf("%d: another door got %q, %v: the dialect is remembered for one door", code, methods(other.Posts()), err)
		}
	}
}

func methods(posts []testenv.Post) []string {
	var all []string
	for _, p := range posts {
		all = append(all, p.Method)
	}
	return all
}

func TestRememberedDialectIsGivenUp(t *testing.T) {
	t.Parallel()
	speaks03 := func(w http.ResponseWriter, r *http.Request, p testenv.Post) {
		if p.Method == "message/send" {
			testenv.Accept()(w, r, p)
			return
		}
		testenv.Refuse(-32601, "no such method")(w, r, p)
	}
	door, b := testenv.Door(t, testenv.Refuse(-32601, "x"), testenv.Accept(), speaks03), once(t)
	for range 3 {
		if err := deliver(t, b, door.URL()); err != nil {
			t.Error(err)
		}
	}
	want := []string{"message/send", "SendMessage", "SendMessage", "message/send", "message/send"}
	if got := methods(door.Posts()); !slices.Equal(got, want) {
		t.Errorf("the door got %q, want %q", got, want)
	}
}

func TestNoOtherRefusalChangesTheDialect(t *testing.T) {
	t.Parallel()
	for _, code := range []int{-32600, -32602, -32700, -32603, -32004, 0} {
		door := testenv.Door(t, testenv.Refuse(code, "no"))
		wantError(t, deliver(t, once(t), door.URL()), "no")
		if n := len(door.Posts()); n != 1 {
			t.Errorf("%d: the door got %d posts, want 1", code, n)
		}
	}
}

func TestBothDialectsRefused(t *testing.T) {
	t.Parallel()
	for _, second := range []testenv.Answer{testenv.Refuse(-32009, "second"), testenv.Reject(), testenv.Drop(), testenv.Raw(500, "x")} {
		door := testenv.Door(t, testenv.Refuse(-32601, "first"), second)
		wantError(t, deliver(t, once(t), door.URL()), "first")
		if got := methods(door.Posts()); !slices.Equal(got, []string{"message/send", "SendMessage"}) {
			t.Errorf("the door got %q, want both dialects once", got)
		}
	}
}

func TestRejectedInBothDialects(t *testing.T) {
	t.Parallel()
	door, b := testenv.Door(t, testenv.Reject(), testenv.Refuse(-32601, "x"), testenv.Accept(), testenv.Reject()), once(t)
	wantError(t, deliver(t, b, door.URL()), rejected)
	if err := deliver(t, b, door.URL()); err != nil {
		t.Fatal(err)
	}
	wantError(t, deliver(t, b, door.URL()), rejected)
	if got := methods(door.Posts()); got[len(got)-1] != "SendMessage" {
		t.Errorf("the last post was %s, want SendMessage", got[len(got)-1])
	}
}

func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		other := testenv.Door(t)
		door := testenv.Door(t, func(w http.ResponseWriter, _ *http.Request, _ testenv.Post) {
			w.Header().Set("Location", other.URL())
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"result":{}}`)) // would be a delivery
		})
		if err := deliver(t, once(t), door.URL()); err == nil || !strings.Contains(err.Error(), "the door answered HTTP 30") {
			t.Errorf("HTTP %d: Deliver = %v, want it refused", status, err)
		}
		if n := len(other.Posts()); n != 0 {
			t.Errorf("HTTP %d: the redirect was followed", status)
		}
	}
}

// TestNoProxyOfTheEnvironment posts to a name that only a proxy could resolve.
func TestNoProxyOfTheEnvironment(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https"} {
		err := deliver(t, once(t), scheme+"://door.invalid/")
		if err == nil || !strings.Contains(err.Error(), "failed to connect") {
			t.Errorf("%s: Deliver = %v, want failed to connect", scheme, err)
		}
	}
	if n := proxied.Load(); n != 0 {
		t.Errorf("the proxy got %d requests, want none", n)
	}
}

func TestTLSDoor(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get(protocol.HeaderDelegationID)
		_, _ = w.Write([]byte(`{"result":{}}`))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the refused handshake below
	server.StartTLS()
	defer server.Close()
	b := once(t)
	defer b.Close()
	if err := deliver(t, b, server.URL); err != nil {
		t.Fatalf("Deliver = %v", err)
	}
	if id := <-got; id != "dlg_1" {
		t.Errorf("the door got %q, want dlg_1", id)
	}
	// The certificate is for 127.0.0.1 and not for this name of it.
	err := deliver(t, b, strings.Replace(server.URL, "127.0.0.1", "localhost", 1))
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Deliver to another name = %v, want its certificate refused", err)
	}
}

func TestConcurrentDeliver(t *testing.T) {
	t.Parallel()
	doors := []*testenv.RecordingDoor{testenv.Door(t), testenv.Door(t, testenv.Speaks10(-32601)), testenv.Door(t)}
	b := once(t)
	var wg sync.WaitGroup
	for _, door := range doors {
		for range 20 {
			wg.Go(func() {
				id := protocol.NewDelegationID()
				if err := b.Deliver(t.Context(), handle(id, door.URL()), outcome(id), traceparent); err != nil {
					t.Errorf("Deliver(%s) = %v", id, err)
				}
			})
		}
	}
	wg.Wait()
	for i, door := range doors {
		taken := map[protocol.DelegationID]bool{}
		for _, p := range door.Posts() {
			if string(p.MessageID) != "msg_"+strings.TrimPrefix(string(p.DelegationID), "dlg_") || !strings.Contains(p.Text, "delegation_id: "+string(p.DelegationID)+"\n") {
				t.Errorf("door %d: a post mixes delegations: %s, %s, %s", i, p.DelegationID, p.MessageID, p.Text)
			}
			taken[p.DelegationID] = true
		}
		if len(taken) != 20 {
			t.Errorf("door %d got %d delegations, want 20", i, len(taken))
		}
	}
}

func TestDeliverWithoutAnAddress(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "s3cret", "ftp://s3cret/", "http://", "http://[s3cret/", "//s3cret/", "file:///s3cret"} {
		err := once(t).Deliver(context.Background(), handle("dlg_1", url), outcome("dlg_1"), "")
		wantError(t, err, "the door's address is no http or https URL")
	}
}

// TestDoorsOfPortsThatCannotBe are refused before anything is dialled, by the
// dispatcher's look and by the worker's, which takes nobody's word.
func TestDoorsOfPortsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, port := range []string{"0", "00", "65536", "99999999999999999999"} {
		url := "http://user:s3cret@127.0.0.1:" + port + "/t0ken"
		const want = "the door's address has a port that cannot be: it is 1 to 65535, or left out for the scheme's own"
		wantError(t, completion.CheckURL(url), want)
		wantError(t, once(t).Deliver(context.Background(), handle("dlg_1", url), outcome("dlg_1"), ""), want)
	}
	for _, host := range []string{"127.0.0.1", "127.0.0.1:", "127.0.0.1:1", "127.0.0.1:65535", "[::1]:65535"} {
		if err := completion.CheckURL("https://" + host + "/x"); err != nil {
			t.Errorf("CheckURL(%s) = %v, want none", host, err)
		}
	}
}
