package completion

import (
	"encoding/json"

	"starling/protocol"
)

// dialect is the version of A2A that a door speaks.
type dialect int

const (
	dialect03 dialect = iota // message/send
	dialect10                // SendMessage
)

func (d dialect) other() dialect { return 1 - d }

// The request, its members in the order of section 9.
type (
	request struct {
		Version string             `json:"jsonrpc"`
		ID      protocol.RequestID `json:"id"`
		Method  string             `json:"method"`
		Params  params             `json:"params"`
	}
	params struct {
		Message       message `json:"message"`
		Configuration any     `json:"configuration"`
	}
	message struct {
		Kind      string             `json:"kind,omitempty"`
		MessageID protocol.MessageID `json:"messageId"`
		ContextID protocol.ContextID `json:"contextId"`
		Role      string             `json:"role"`
		Parts     []part             `json:"parts"`
	}
	part struct {
		Kind string `json:"kind,omitempty"`
		Text string `json:"text"`
	}
	blocking struct {
		Blocking bool `json:"blocking"`
	}
	returnImmediately struct {
		ReturnImmediately bool `json:"returnImmediately"`
	}
)

// request is the body of the post. "kind" and "configuration" are not Murmur's:
// its doors ignore them, other doors of 0.3 refuse, or wait, without them.
func (d dialect) request(handle protocol.Spawner, o protocol.Outcome) ([]byte, error) {
	m := message{
		MessageID: protocol.CompletionMessageID(o.DelegationID), ContextID: handle.ContextID,
		Parts: []part{{Text: o.Text()}},
	}
	r := request{Version: "2.0", ID: protocol.NewRequestID()}
	if d == dialect10 {
		m.Role, r.Method = "ROLE_USER", "SendMessage"
		r.Params = params{Message: m, Configuration: returnImmediately{true}}
	} else {
		m.Role, m.Kind, m.Parts[0].Kind, r.Method = "user", "message", "text", "message/send"
		r.Params = params{Message: m, Configuration: blocking{false}}
	}
	return json.Marshal(r)
}

// rejected reads the state of the task in an answer without an error.
func (d dialect) rejected(answer map[string]any) bool {
	if d == dialect10 {
		return member(answer, "result", "task", "status", "state") == "TASK_STATE_REJECTED"
	}
	return member(answer, "result", "status", "state") == "rejected"
}
