package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"starling/completion"
	"starling/protocol"
	"starling/testenv"
)

const (
	rejectedText = "the parent rejected the completion: its queue is full or its session has stopped taking work"
	refusedText  = "the parent refused the completion"
	// doorTimeout is the impatient worker's, which meets only doors that hang.
	doorTimeout = 2 * time.Second
)

// doorCase is a door and what becomes of a completion there.
type doorCase struct {
	name      string
	answers   []testenv.Answer
	impatient bool // the worker waits doorTimeout alone for an answer

	posts   int      // how often the door was asked
	methods []string // the dialects, in turn; empty: message/send each time
	says    string   // delivery_error to the letter
	speaks  string   // a part of it, where the words are the system's; both empty: delivered
}

func (c doorCase) delivered() bool { return c.says == "" && c.speaks == "" }

// doorCases are doors that do not do as they should. The table's rules are those
// of docs/protocol.md, section 9.
func doorCases(elsewhere string) []doorCase {
	const ok, other = "message/send", "SendMessage"
	cases := []doorCase{
		{name: "half a body", answers: inTurn(testenv.HalfBody()), posts: 2, speaks: "the door's answer broke off"},
		{name: "an endless body", answers: inTurn(testenv.EndlessBody()), posts: 2, says: "the door's answer is over 1048576 bytes"},
		{name: "hanging", answers: inTurn(testenv.Hang(nil)), impatient: true, posts: 2, says: "the door did not answer within 2s"},
		{name: "hanging in the body", answers: inTurn(hangInBody), impatient: true, posts: 2, speaks: "the door did not answer within 2s"},
		{name: "hung up", answers: inTurn(testenv.Drop()), posts: 2, speaks: "EOF"},
		{name: "hung up, then accepted", answers: inTurn(testenv.Drop(), testenv.Accept()), posts: 2},
		{name: "HTTP 302", answers: inTurn(status(302, "Location", elsewhere)), posts: 2, says: "the door answered HTTP 302"},
		{name: "HTTP 307", answers: inTurn(status(307, "Location", elsewhere)), posts: 2, says: "the door answered HTTP 307"},
		{name: "HTTP 401", answers: inTurn(status(401, "WWW-Authenticate", "Bearer")), posts: 2, says: "the door answered HTTP 401"},
		{name: "HTTP 429", answers: inTurn(status(429, "Retry-After", "3600")), posts: 2, says: "the door answered HTTP 429"},
		{name: "HTTP 429, then accepted", answers: inTurn(status(429, "Retry-After", "3600"), testenv.Accept()), posts: 2},
		{name: "HTTP 500", answers: inTurn(testenv.Raw(500, "<html>")), posts: 2, says: "the door answered HTTP 500"},
		{name: "no JSON", answers: inTurn(testenv.Raw(200, "thanks")), posts: 2, says: "the door answered HTTP 200 with a body that is not JSON"},
		{name: "an error that is null", answers: inTurn(testenv.Raw(200, `{"jsonrpc":"2.0","id":1,"error":null,"result":{}}`)), posts: 2, says: refusedText},
		{name: "an error without words", answers: inTurn(testenv.Raw(200, `{"error":{"code":-32000}}`)), posts: 2, says: refusedText},
		{name: "an answer without a state", answers: inTurn(testenv.Raw(200, `{}`)), posts: 1},
		{name: "rejected", answers: inTurn(testenv.Reject()), posts: 2, says: rejectedText},
		{name: "rejected, then accepted", answers: inTurn(testenv.Reject(), testenv.Accept()), posts: 2},
		{name: "A2A 1.0 by -32601", answers: inTurn(testenv.Speaks10(-32601)), posts: 2, methods: []string{ok, other}},
		{name: "A2A 1.0 by -32009", answers: inTurn(testenv.Speaks10(-32009)), posts: 2, methods: []string{ok, other}},
		{
			name: "A2A 1.0, rejected", answers: inTurn(testenv.Refuse(-32601, "not here"), testenv.Reject(), testenv.Refuse(-32601, "nor here"), testenv.Reject()),
			posts: 4, methods: []string{ok, other, ok, other}, says: "nor here",
		},
	}
	for _, code := range []int{-32700, -32600, -32602, -32603, -32004, -32005, -32000} {
		cases = append(cases, doorCase{
			name: fmt.Sprint("JSON-RPC ", code), answers: inTurn(testenv.Refuse(code, fmt.Sprint("no: ", code))), posts: 2, says: fmt.Sprint("no: ", code),
		})
	}
	for _, code := range []int{-32601, -32009} { // in both dialects
		cases = append(cases, doorCase{
			name: fmt.Sprint("JSON-RPC ", code), answers: inTurn(testenv.Refuse(code, fmt.Sprint("no: ", code))), posts: 4,
			methods: []string{ok, other, ok, other}, says: fmt.Sprint("no: ", code),
		})
	}
	return cases
}

func inTurn(all ...testenv.Answer) []testenv.Answer { return all }

// status answers with a status, a header and no body.
func status(code int, header, value string) testenv.Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ testenv.Post) {
		w.Header().Set(header, value)
		w.WriteHeader(code)
	}
}

// hangInBody begins an answer and does not end it.
func hangInBody(w http.ResponseWriter, r *http.Request, _ testenv.Post) {
	_, _ = w.Write([]byte(`{"jsonrpc":`))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// doorFleet is a fleet and what tells of its delegations.
type doorFleet struct {
	*fleet
	operator
}

func newDoorFleet(t *testing.T, timeout time.Duration) doorFleet {
	t.Helper()
	f := testFleet(t, func(c *fleetConfig) {
		if timeout > 0 {
			c.completion.Timeout = timeout
		}
	})
	d := doorFleet{f, operator{t, f.server.ClientURL()}}
	d.must("capsule", "push", testenv.WAT(t, "noop"), "--name", "noop", "--capsule-version", "1")
	return d
}

// dispatch runs a task for a parent at a door.
func (f doorFleet) dispatch(t *testing.T, door string, more ...string) protocol.Record {
	t.Helper()
	args := append([]string{"dispatch", "noop@1", "--task", "x", "--door", door, "--json"}, more...)
	return decoded[protocol.Record](t, operator{t, f.url}.must(args...))
}

// posted waits until the ledger says how the post went.
func (f doorFleet) posted(t *testing.T, rec protocol.Record) protocol.Record {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, func() error {
		entry, err := f.bus.ReadRecord(t.Context(), rec.Spawner.SessionID, rec.DelegationID, 0)
		if err != nil {
			return err
		}
		rec = entry.Record
		if !rec.Status.Final() || !rec.Outcome.Delivered && rec.Outcome.DeliveryError == "" {
			return fmt.Errorf("record = %+v, want the post ended", rec)
		}
		return nil
	})
	return rec
}

// TestDoorsThatDoNotDoAsTheyShould has the same bus, worker and door at each row:
// what the ledger and completion.json say, how often the door was asked, who is
// listed as not told, and a post by hand with the same id and text.
func TestDoorsThatDoNotDoAsTheyShould(t *testing.T) {
	t.Parallel()
	patient, impatient := newDoorFleet(t, 0), newDoorFleet(t, doorTimeout)
	elsewhere := testenv.Door(t)
	t.Run("rows", func(t *testing.T) {
		for _, c := range doorCases(elsewhere.URL()) {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				f := patient
				if c.impatient {
					f = impatient
				}
				door := testenv.Door(t, c.answers...)
				rec := f.posted(t, f.dispatch(t, door.URL()))
				f.check(t, c, rec, door)
				door.Answer(testenv.Accept())
				f.byHand(t, rec, door, c.delivered())
			})
		}
		t.Run("down", func(t *testing.T) { t.Parallel(); patient.aDoorThatIsDown(t) })
		t.Run("slow", func(t *testing.T) { t.Parallel(); patient.aSlowDoor(t) })
		t.Run("a parent that started again", func(t *testing.T) { t.Parallel(); patient.aParentThatStartedAgain(t) })
	})
	for _, f := range []doorFleet{patient, impatient} {
		if out := f.must("ps", "--undelivered", "--json"); out != "" {
			t.Errorf("ps --undelivered lists some still:\n%s", out)
		}
	}
	if n := len(elsewhere.Posts()); n != 0 {
		t.Errorf("%d posts went where a redirect pointed", n)
	}
}

// check compares the ledger, the file, the list and the door's book with a case.
func (f doorFleet) check(t *testing.T, c doorCase, rec protocol.Record, door *testenv.RecordingDoor) {
	t.Helper()
	o := rec.Outcome
	if rec.Status != protocol.StatusOK || o.Delivered != c.delivered() || c.says != "" && o.DeliveryError != c.says ||
		!strings.Contains(o.DeliveryError, c.speaks) || c.delivered() && o.DeliveryError != "" {
		t.Errorf("outcome = %+v, want ok, delivered %t, delivery error %q%q", o, c.delivered(), c.says, c.speaks)
	}
	if rec.Attempt != 1 || rec.Returned != 0 {
		t.Errorf("attempt %d, returned %d; want one attempt: a door's fault costs none", rec.Attempt, rec.Returned)
	}
	f.fileSays(t, rec)
	if door != nil {
		var methods []string
		for _, p := range door.PostsOf(rec.DelegationID) {
			methods = append(methods, p.Method)
		}
		want := c.methods
		if want == nil {
			want = slices.Repeat([]string{"message/send"}, c.posts)
		}
		if !slices.Equal(methods, want) {
			t.Errorf("the door was asked %v, want %v", methods, want)
		}
		sameNews(t, rec, door)
	}
	listed := false
	for line := range strings.Lines(operator{t, f.url}.must("ps", "--undelivered", "--json")) {
		if one := decoded[protocol.Record](t, line); one.DelegationID == rec.DelegationID {
			listed = true
			if one.Outcome.DeliveryError != o.DeliveryError {
				t.Errorf("ps --undelivered says %q, want %q", one.Outcome.DeliveryError, o.DeliveryError)
			}
		}
	}
	if listed == c.delivered() {
		t.Errorf("ps --undelivered lists it: %t, want %t", listed, !c.delivered())
	}
}

// fileSays waits until completion.json is the record's outcome: it is written a
// moment after the ledger.
func (f doorFleet) fileSays(t *testing.T, rec protocol.Record) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		text, err := os.ReadFile(filepath.Join(rec.Workdir, protocol.CompletionFile))
		if err != nil {
			return err
		}
		want, err := json.Marshal(rec.Outcome)
		if err != nil {
			return err
		}
		var got bytes.Buffer
		if err := json.Compact(&got, text); err != nil {
			return err
		}
		if got.String() != string(want) {
			return fmt.Errorf("%s = %s, want %s", protocol.CompletionFile, got.String(), want)
		}
		return nil
	})
}

// sameNews checks that every post of a delegation has one id and one text, those
// of its record.
func sameNews(t *testing.T, rec protocol.Record, door *testenv.RecordingDoor) {
	t.Helper()
	id, text := protocol.MessageID("msg_"+strings.TrimPrefix(string(rec.DelegationID), "dlg_")), rec.Outcome.Text()
	for i, p := range door.PostsOf(rec.DelegationID) {
		if p.MessageID != id || p.Text != text {
			t.Errorf("post %d is %s %q, want %s %q", i+1, p.MessageID, p.Text, id, text)
		}
	}
}

// byHand posts once more: by redeliver, and with --again where the parent was told.
func (f doorFleet) byHand(t *testing.T, rec protocol.Record, door *testenv.RecordingDoor, told bool) {
	t.Helper()
	before := len(door.PostsOf(rec.DelegationID))
	args := []string{"redeliver", string(rec.DelegationID), "--door", door.URL(), "--trust", "trusted", "--json"}
	o := operator{t, f.url}
	if told {
		if got := o.do(args...); got.status != exitFailure || !strings.Contains(got.err, "--again") {
			t.Errorf("redeliver of what was told = %d, %s; want it refused", got.status, got.err)
		}
		args = append(args, "--again")
	}
	after := decoded[protocol.Record](t, o.must(args...))
	if !after.Outcome.Delivered || after.Outcome.DeliveryError != "" {
		t.Errorf("outcome after redeliver = %+v, want delivered", after.Outcome)
	}
	if n := len(door.PostsOf(rec.DelegationID)); n != before+1 {
		t.Errorf("redeliver made %d posts, want one", n-before)
	}
	sameNews(t, rec, door)
	f.fileSays(t, rec) // it is the worker's, and stays as that wrote it
}

func (f doorFleet) aDoorThatIsDown(t *testing.T) {
	port := testenv.ClosedPort(t)
	rec := f.posted(t, f.dispatch(t, "http://"+port.Addr()))
	f.check(t, doorCase{speaks: "failed to connect to " + port.Addr()}, rec, nil)
	f.byHand(t, rec, testenv.DoorOn(t, port.Open()), false)
}

// aSlowDoor answers within the timeout, and nothing waits for it meanwhile.
func (f doorFleet) aSlowDoor(t *testing.T) {
	release := make(chan struct{})
	door, quick := testenv.Door(t, testenv.Hang(release), testenv.Accept()), testenv.Door(t)
	slow := f.dispatch(t, door.URL())
	door.WaitFor(t, 1, 30*time.Second)
	f.posted(t, f.dispatch(t, quick.URL()))
	entry, err := f.bus.ReadRecord(t.Context(), slow.Spawner.SessionID, slow.DelegationID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if o := entry.Record.Outcome; o == nil || o.Delivered || o.DeliveryError != "" {
		t.Errorf("outcome = %+v, want one whose post has not ended", o)
	}
	f.fileSays(t, entry.Record)
	close(release)
	rec := f.posted(t, slow)
	f.check(t, doorCase{posts: 1}, rec, door)
	f.byHand(t, rec, door, true)
}

// aParentThatStartedAgain listens at the same address as another session: it is
// not the one that is to be told.
func (f doorFleet) aParentThatStartedAgain(t *testing.T) {
	old, young := protocol.NewSessionID(), protocol.NewSessionID()
	restarted, received := parentOf(t, young)
	door := testenv.Door(t, restarted)
	rec := f.posted(t, f.dispatch(t, door.URL(), "--session", string(old)))
	f.check(t, doorCase{
		posts: 2, says: "completion is addressed to session " + string(old) + ", which is not the session running here",
	}, rec, door)
	resumed, told := parentOf(t, old)
	door.Answer(resumed)
	f.byHand(t, rec, door, false)
	if len(received) != 0 || len(told) != 1 {
		t.Errorf("the new session heard %d times, the old one %d; want 0 and 1", len(received), len(told))
	}
}

// parentOf is the answer of a parent in Go, of one session.
func parentOf(t *testing.T, session protocol.SessionID) (testenv.Answer, <-chan completion.Received) {
	t.Helper()
	parent, err := completion.NewDoor(completion.DoorConfig{SessionID: session})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(parent.Close)
	return func(w http.ResponseWriter, r *http.Request, p testenv.Post) {
		r.Body = io.NopCloser(bytes.NewReader(p.Body)) // which the recording door has read
		parent.ServeHTTP(w, r)
	}, parent.Received()
}
