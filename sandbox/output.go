package sandbox

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"starling/protocol"
)

// maxNoteBytes bounds the note that a line becomes when it is no event.
const maxNoteBytes = 4096

// output turns stdout and import signals into driver events within the bounds
// of docs/protocol.md, section 5. Its methods report false when the guest made
// more tool calls than an attempt may have, at most [protocol.MaxToolCalls].
type output struct {
	emit  func(protocol.Event)
	lines bool // mode events

	text    strings.Builder // mode text: what was kept
	pending []byte          // a line, or a character, that has not ended yet
	long    bool            // the pending line is over its bound and is being dropped

	kept    int64
	dropped int64
	full    bool // something was dropped; from then on all text is
	ended   bool // a terminal event went out; the rest is ignored
	calls   int
	starts  int
}

// write is given the next piece of stdout.
func (o *output) write(piece []byte) bool {
	if !o.lines {
		o.writeText(piece)
		return true
	}
	for {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			o.hold(piece)
			return true
		}
		o.hold(piece[:end])
		piece = piece[end+1:]
		if !o.line() {
			return false
		}
	}
}

// flush ends stdout: what is pending is its last line, or a broken character.
func (o *output) flush() bool {
	if len(o.pending) == 0 && !o.long {
		return true
	}
	if o.lines {
		return o.line()
	}
	o.send(protocol.Event{Kind: protocol.EventTextDelta, Text: o.keep(o.pending)})
	o.pending = nil
	return true
}

// writeText keeps and sends what there is room for, and counts the rest.
func (o *output) writeText(piece []byte) {
	room := protocol.MaxOutputBytes - o.kept
	if o.full {
		room = 0
	}
	kept := piece[:min(int64(len(piece)), room)]
	o.kept += int64(len(kept))
	o.sendText(kept)
	if rest := len(piece) - len(kept); rest > 0 {
		o.overflow(int64(rest + len(o.pending)))
		o.pending = nil
	}
}

// sendText sends what ends at a character's boundary and holds the rest back.
func (o *output) sendText(piece []byte) {
	if len(o.pending) > 0 {
		piece = append(o.pending, piece...)
		o.pending = nil
	}
	whole := len(piece) - unfinished(piece)
	o.pending = append(o.pending, piece[whole:]...)
	if whole > 0 {
		o.send(protocol.Event{Kind: protocol.EventTextDelta, Text: o.keep(piece[:whole])})
	}
}

// keep returns bytes as text and keeps that for the result.
func (o *output) keep(b []byte) string {
	text := validText(b)
	o.text.WriteString(text)
	return text
}

// hold adds to the pending line as much as a line may have.
func (o *output) hold(part []byte) {
	if room := protocol.MaxLineBytes - len(o.pending); len(part) > room {
		o.dropped += int64(len(part) - room)
		o.long = true
		part = part[:room]
	}
	o.pending = append(o.pending, part...)
}

// line handles the pending line.
func (o *output) line() bool {
	line, long := o.pending, o.long
	o.pending, o.long = o.pending[:0], false
	if cap(o.pending) > pieceBytes {
		o.pending = nil
	}
	if long {
		return o.event(protocol.Event{Kind: protocol.EventNote, Text: fmt.Sprintf(
			"a line of stdout has more than %d bytes and is no event; it begins: %s",
			protocol.MaxLineBytes, cut(validText(line[:256]), 200))}, len(line))
	}
	event, err := protocol.ParseEvent(line)
	if err != nil {
		text := validText(bytes.TrimSuffix(line, []byte("\r")))
		event = protocol.Event{Kind: protocol.EventNote, Text: cut(text, maxNoteBytes)}
	}
	return o.event(event, len(line))
}

// event sends an event that took size bytes. Beyond the bound its text is
// dropped; what else it says still counts.
func (o *output) event(e protocol.Event, size int) bool {
	if o.full || o.kept+int64(size) > protocol.MaxOutputBytes {
		o.overflow(int64(size))
		if e = withoutText(e); e.Kind == "" {
			return true
		}
	} else {
		o.kept += int64(size)
	}
	switch e.Kind {
	case protocol.EventToolCall:
		o.calls++
	case protocol.EventToolCallStarted:
		o.starts++
	}
	if o.calls > protocol.MaxToolCalls || o.starts > protocol.MaxToolCalls {
		return false
	}
	o.send(e)
	return true
}

// overflow counts what is dropped and says so the first time.
func (o *output) overflow(n int64) {
	o.dropped += n
	if !o.full {
		o.full = true
		o.send(protocol.Event{Kind: protocol.EventNote, Text: fmt.Sprintf(
			"output passed %d bytes; text beyond that is counted and dropped", protocol.MaxOutputBytes)})
	}
}

func (o *output) send(e protocol.Event) {
	if o.ended {
		return
	}
	o.ended = e.Kind.Terminal()
	o.emit(e)
}

// withoutText is the event without text that could be of any length; the zero
// event when it is nothing else. A terminal event keeps its own, which is one
// line: it is the result.
func withoutText(e protocol.Event) protocol.Event {
	const mark = "[dropped: output limit]"
	switch e.Kind {
	case protocol.EventTextDelta, protocol.EventThinkingDelta, protocol.EventText, protocol.EventThinking,
		protocol.EventNote:
		return protocol.Event{}
	case protocol.EventToolCall:
		e.Input = []byte(`"` + mark + `"`)
	case protocol.EventToolResult:
		e.Output = mark
	case protocol.EventRetry:
		e.Reason = mark
	}
	return e
}

// unfinished is how many bytes at the end of b may begin a character.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// validText turns each byte that is no UTF-8 into U+FFFD, as Go's JSON does.
func validText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string(bytes.Runes(b))
}

// cut shortens s to at most n bytes at a character's boundary and marks it.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + " […]"
}
