package sandbox

import (
	"unicode/utf8"

	"starling/protocol"
	"starling/sandbox/internal/wasmtimex"
)

// The host imports of docs/capsules.md. A signal never traps: one that is out
// of bounds, not UTF-8 or no event is dropped and counted.

func (r *run) emitChunk(c *wasmtimex.Call) bool {
	return r.fragment(c, protocol.EventTextDelta)
}

func (r *run) emitThinkingChunk(c *wasmtimex.Call) bool {
	return r.fragment(c, protocol.EventThinkingDelta)
}

func (r *run) fragment(c *wasmtimex.Call, kind protocol.EventKind) bool {
	text, ok := r.text(c, 0)
	if !ok {
		return true
	}
	return r.signal(protocol.Event{Kind: kind, Text: text}, len(text))
}

func (r *run) toolCallStarted(c *wasmtimex.Call) bool {
	id, ok := r.text(c, 0)
	if !ok {
		return true
	}
	name, ok := r.text(c, 2)
	if !ok {
		return true
	}
	return r.signal(protocol.Event{Kind: protocol.EventToolCallStarted, ID: id, Name: name}, len(id)+len(name))
}

func (r *run) toolCallInputBytes(c *wasmtimex.Call) bool {
	id, ok := r.text(c, 0)
	if !ok {
		return true
	}
	return r.signal(protocol.Event{
		Kind: protocol.EventToolCallProgress, ID: id, InputBytes: int64(c.U64(2)),
	}, len(id))
}

func (r *run) emitEvent(c *wasmtimex.Call) bool {
	text, ok := r.text(c, 0)
	return !ok || r.signalObject(text)
}

// canceled answers 1 once [Spec.Canceled] is closed.
func (r *run) canceled(c *wasmtimex.Call) bool {
	answer := uint32(0)
	if r.wasCanceled() {
		answer = 1
	}
	c.Return(answer)
	return true
}

func (r *run) wasCanceled() bool {
	select {
	case <-r.spec.Canceled:
		return true
	default:
		return false
	}
}

// text copies the string that arguments i and i+1 point at. One signal carries
// no more than a line.
func (r *run) text(c *wasmtimex.Call, i int) (string, bool) {
	b, ok := c.Bytes(c.U32(i), c.U32(i+1))
	if !ok || len(b) > protocol.MaxLineBytes || !utf8.Valid(b) {
		r.dropped++
		return "", false
	}
	return string(b), true
}

// signalObject signals the event of a JSON object.
func (r *run) signalObject(text string) bool {
	event, err := protocol.ParseEvent([]byte(text))
	if err != nil {
		r.dropped++
		return true
	}
	return r.signal(event, len(text))
}

func (r *run) signal(event protocol.Event, size int) bool {
	return r.output.event(event, size) || r.halt(stopCalls, nil)
}
