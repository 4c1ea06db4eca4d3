package sandbox

import (
	"unicode/utf8"

	"starling/protocol"
	"starling/sandbox/internal/wasmtimex"
)

// componentFunction is what a component may call of ours. call reports whether
// the guest goes on. It runs on the guest's goroutine, with nothing of stdout
// left to be read.
type componentFunction struct {
	in, name string
	call     func(*run, *wasmtimex.ComponentCall) bool
}

// componentFunctions are the interfaces of docs/capsules.md, and the one of WASI
// whose engine's own would lose an exit status.
var componentFunctions = [...]componentFunction{
	{"wasi:cli/exit@0.2.6", "exit", (*run).componentExit},
	{"wasi:cli/exit@0.2.6", "exit-with-code", (*run).componentExitWithCode},

	{"murmur:stream/events@0.1.0", "emit-chunk", func(r *run, c *wasmtimex.ComponentCall) bool {
		return r.componentFragment(c, protocol.EventTextDelta)
	}},
	{"murmur:stream/events@0.1.0", "emit-thinking-chunk", func(r *run, c *wasmtimex.ComponentCall) bool {
		return r.componentFragment(c, protocol.EventThinkingDelta)
	}},
	{"murmur:stream/events@0.1.0", "tool-call-started", (*run).componentToolCallStarted},
	{"murmur:stream/events@0.1.0", "tool-call-input-bytes", (*run).componentToolCallInputBytes},

	{"starling:capsule/events@0.1.0", "emit", (*run).componentEmit},
	{"starling:capsule/control@0.1.0", "canceled", (*run).componentCanceled},
}

// componentInterfaces is componentFunctions as the linker wants them.
func componentInterfaces() []wasmtimex.Interface {
	var found []wasmtimex.Interface
	for number, f := range componentFunctions {
		if len(found) == 0 || found[len(found)-1].Name != f.in {
			found = append(found, wasmtimex.Interface{Name: f.in, Funcs: map[string]int{}})
		}
		found[len(found)-1].Funcs[f.name] = number
	}
	return found
}

// componentExit has a result as its argument: 1 is ok.
func (r *run) componentExit(c *wasmtimex.ComponentCall) bool {
	ok, _ := c.Number(0)
	return r.exit(1 - int(ok))
}

func (r *run) componentExitWithCode(c *wasmtimex.ComponentCall) bool {
	status, _ := c.Number(0)
	return r.exit(int(status))
}

func (r *run) exit(status int) bool {
	r.status = status
	return r.halt(stopExit, nil)
}

func (r *run) componentFragment(c *wasmtimex.ComponentCall, kind protocol.EventKind) bool {
	text, ok := r.componentText(c, 0)
	return !ok || r.signal(protocol.Event{Kind: kind, Text: text}, len(text))
}

func (r *run) componentToolCallStarted(c *wasmtimex.ComponentCall) bool {
	id, ok := r.componentText(c, 0)
	if !ok {
		return true
	}
	name, ok := r.componentText(c, 1)
	return !ok || r.signal(protocol.Event{Kind: protocol.EventToolCallStarted, ID: id, Name: name}, len(id)+len(name))
}

func (r *run) componentToolCallInputBytes(c *wasmtimex.ComponentCall) bool {
	id, ok := r.componentText(c, 0)
	if !ok {
		return true
	}
	n, ok := c.Number(1)
	return !ok || r.signal(protocol.Event{Kind: protocol.EventToolCallProgress, ID: id, InputBytes: int64(n)}, len(id))
}

func (r *run) componentEmit(c *wasmtimex.ComponentCall) bool {
	text, ok := r.componentText(c, 0)
	return !ok || r.signalObject(text)
}

func (r *run) componentCanceled(c *wasmtimex.ComponentCall) bool {
	c.Answer = r.wasCanceled()
	return true
}

// componentText is a string of one signal, which carries no more than a line.
func (r *run) componentText(c *wasmtimex.ComponentCall, i int) (string, bool) {
	text, ok := c.Text(i)
	if ok && (len(text) > protocol.MaxLineBytes || !utf8.ValidString(text)) {
		r.dropped++
		return "", false
	}
	return text, ok
}
