package guest

import "strconv"

// SessionStarted tells the harness's own session id, and how it authenticates
// and with which model, where that is known.
func SessionStarted(id, auth, model string) {
	o := begin("session-started").str("id", id)
	if auth != "" {
		o = o.str("auth", auth)
	}
	if model != "" {
		o = o.str("model", model)
	}
	o.emit()
}

// TextDelta is the next fragment of the answer's text.
func TextDelta(fragment string) { begin("text-delta").str("text", fragment).emit() }

// Text is a whole text. It replaces its fragments.
func Text(whole string) { begin("text").str("text", whole).emit() }

// ThinkingDelta is the next fragment of what the agent thinks.
func ThinkingDelta(fragment string) { begin("thinking-delta").str("text", fragment).emit() }

// Thinking is a whole thought. It replaces its fragments.
func Thinking(whole string) { begin("thinking").str("text", whole).emit() }

// ToolCallStarted says that a call is being written. Its id is used once.
func ToolCallStarted(id, name string) {
	begin("tool-call-started").str("id", id).str("name", name).emit()
}

// ToolCallProgress says how many bytes of a call's input are written so far.
func ToolCallProgress(id string, inputBytes int64) {
	begin("tool-call-progress").str("id", id).num("input_bytes", inputBytes).emit()
}

// ToolCall says that a call is complete. input is JSON, for instance what
// json.Marshal returned; empty is null.
func ToolCall(id, name, input string) {
	if input == "" {
		input = "null"
	}
	begin("tool-call").str("id", id).str("name", name).raw("input", input).emit()
}

// ToolResult is the answer to a call. It ends the turn that the call was part of.
func ToolResult(id, output string, isError bool) {
	begin("tool-result").str("id", id).str("output", output).raw("is_error", strconv.FormatBool(isError)).emit()
}

// Retry says that attempt n at reaching a model follows, and why.
func Retry(attempt int64, reason string) {
	begin("retry").num("attempt", attempt).str("reason", reason).emit()
}

// Usage is the tokens that the session has used so far: every count is
// cumulative.
type Usage struct {
	Input, Output, CacheRead, CacheCreation, Thinking int64
}

// Emit tells the usage. Input and Output count against the spend ceiling.
func (u Usage) Emit() {
	begin("usage").num("input", u.Input).num("output", u.Output).num("cache_read", u.CacheRead).
		num("cache_creation", u.CacheCreation).num("thinking", u.Thinking).emit()
}

// Note is for the trace; nobody is shown it.
func Note(text string) { begin("note").str("text", text).emit() }

// maxResultEvent is the longest result that surely fits one event, which has at
// most 1 MiB: JSON may write a character in six.
const maxResultEvent = 1<<20/6 - 64

// TurnEnd ends the task well. What is emitted after it is ignored. A result that
// may not fit one event is written to out/result.txt instead, where there is a
// file system: the task then ends with it when the capsule exits with status 0.
func TurnEnd(result string) {
	if len(result) > maxResultEvent && WriteResult(result) == nil {
		return
	}
	begin("turn-end").str("result", result).emit()
}

// FailureKind classifies a failure.
type FailureKind string

// The kinds of failures.
const (
	FailAuth     FailureKind = "auth"
	FailQuota    FailureKind = "quota"
	FailMaxTurns FailureKind = "max-turns"
	FailCanceled FailureKind = "canceled"
	FailHarness  FailureKind = "harness-error"
	FailOther    FailureKind = "other"
)

// TurnFailed ends the task badly. What is emitted after it is ignored.
func TurnFailed(kind FailureKind, message string) {
	begin("turn-failed").str("kind", string(kind)).str("message", message).emit()
}

// Quote is s as a JSON string, for the input of a [ToolCall] that is put
// together by hand.
func Quote(s string) string { return string(appendString(nil, s)) }

// object is a JSON object that is being written. encoding/json would make a
// module half a megabyte larger.
type object []byte

func begin(event string) object { return object(`{"event":"` + event + `"`) }

func (o object) str(name, value string) object {
	return appendString(append(o, `,"`+name+`":`...), value)
}

func (o object) num(name string, value int64) object {
	return strconv.AppendInt(append(o, `,"`+name+`":`...), value, 10)
}

func (o object) raw(name, value string) object {
	return append(append(o, `,"`+name+`":`...), value...)
}

func (o object) emit() { send(append(o, '}')) }

// appendString writes a JSON string; bytes that are no UTF-8 become U+FFFD.
func appendString(o object, s string) object {
	const hex = "0123456789abcdef"
	o = append(o, '"')
	for _, r := range s { // yields U+FFFD for each bad byte
		switch {
		case r == '"' || r == '\\':
			o = append(o, '\\', byte(r))
		case r == '\n':
			o = append(o, `\n`...)
		case r < 0x20 || r == 0x7f:
			o = append(o, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			o = append(o, string(r)...)
		}
	}
	return append(o, '"')
}
