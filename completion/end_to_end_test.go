package completion_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/completion"
	"starling/protocol"
)

// TestBridgeToDoor posts twice to our own door, behind a front that knows one
// dialect alone.
func TestBridgeToDoor(t *testing.T) {
	t.Parallel()
	for dialect, other := range map[string]string{"message/send": `"SendMessage"`, "SendMessage": `"message/send"`} {
		door, err := completion.NewDoor(completion.DoorConfig{SessionID: "ses_parent"})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			body = bytes.Replace(body, []byte(`"method":`+other), []byte(`"method":"unheard-of"`), 1)
			r.Body = io.NopCloser(bytes.NewReader(body))
			door.ServeHTTP(w, r)
		}))
		b := once(t)
		for range 2 {
			if err := deliver(t, b, server.URL); err != nil {
				t.Errorf("%s: Deliver = %v", dialect, err)
			}
		}
		b.Close()
		server.Close()
		want := []completion.Received{{
			Class:   protocol.Class{Origin: "completion", Trust: "untrusted", Lane: "bg"},
			Dialect: dialect, MessageID: "msg_1", ContextID: "ctx_parent", Text: outcome("dlg_1").Text(),
			DelegationID: "dlg_1", SessionID: "ses_parent", Traceparent: traceparent,
		}}
		if diff := cmp.Diff(want, queued(door)); diff != "" {
			t.Errorf("%s: Received (-want +got):\n%s", dialect, diff)
		}
		door.Close()
	}
}

// TestDoorOfAnotherSession: what the door says is what delivery_error says.
func TestDoorOfAnotherSession(t *testing.T) {
	t.Parallel()
	_, server := newDoor(t, completion.DoorConfig{SessionID: "ses_other"})
	wantError(t, deliver(t, once(t), server.URL),
		"completion is addressed to session ses_parent, which is not the session running here")
}
