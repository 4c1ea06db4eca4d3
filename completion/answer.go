package completion

import (
	"encoding/json"
	"errors"
	"fmt"
)

// The texts of section 9 for a door that did not take the news.
const (
	refusedText  = "the parent refused the completion"
	rejectedText = "the parent rejected the completion: its queue is full or its session has stopped taking work"
)

// JSON-RPC error codes.
const (
	codeParse           = -32700
	codeInvalidRequest  = -32600
	codeMethodNotFound  = -32601
	codeInvalidParams   = -32602
	codeNotThisSession  = -32004
	codeContentType     = -32005
	codeVersionMismatch = -32009
)

// refusal is an answer that is no delivery. Code is the JSON-RPC error's, or 0.
type refusal struct {
	code   int
	text   string
	quoted bool // text is the door's own
}

func (r *refusal) Error() string { return r.text }

// otherDialect reports whether the door says that it does not speak the
// dialect it was asked in.
func otherDialect(err error) bool {
	var r *refusal
	return errors.As(err, &r) && (r.code == codeMethodNotFound || r.code == codeVersionMismatch)
}

// readAnswer says whether the answer is a delivery: HTTP 2xx, JSON without an
// error member, and a task that was not rejected. Everything is read into maps:
// struct decoding folds case and cannot tell null from absent.
func (d dialect) readAnswer(status int, body []byte) error {
	var document any
	parseErr := json.Unmarshal(body, &document)
	answer, _ := document.(map[string]any)
	failure, refused := answer["error"]
	if parseErr == nil && refused {
		r := &refusal{text: refusedText}
		if members, ok := failure.(map[string]any); ok {
			if message, ok := members["message"].(string); ok && message != "" {
				r.text, r.quoted = message, true
			}
			if code, ok := members["code"].(float64); ok {
				r.code = int(code)
			}
		}
		return r
	}
	switch {
	case status/100 != 2:
		return &refusal{text: fmt.Sprintf("the door answered HTTP %d", status)}
	case parseErr != nil:
		return &refusal{text: fmt.Sprintf("the door answered HTTP %d with a body that is not JSON", status)}
	case d.rejected(answer):
		return &refusal{text: rejectedText}
	}
	return nil
}

// member follows keys through objects; anything else on the way is nil.
func member(value any, path ...string) any {
	for _, name := range path {
		members, _ := value.(map[string]any)
		value = members[name]
	}
	return value
}
