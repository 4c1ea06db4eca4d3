package sandbox

import (
	"bytes"
	"io"
	"strings"
	"sync"

	"starling/protocol"
)

// The bounds of what is kept of stderr for a report.
const (
	tailLines     = protocol.MaxStderrTailLines
	tailLineBytes = 1024
)

// tail keeps the last lines of stderr. They are the last of all of it: what is
// beyond the bound on stderr is not passed on, but a report of a crash is of no
// use without its end.
type tail struct {
	also io.Writer // Spec.Stderr; may be nil

	whole   []string // the last whole lines
	pending []byte   // of the line that has not ended, the first tailLineBytes
	begun   bool     // a line has begun
	passed  int64
	dropped int64
}

func (t *tail) write(piece []byte) {
	keep := piece[:min(int64(len(piece)), protocol.MaxStderrBytes-t.passed)]
	t.passed += int64(len(keep))
	t.dropped += int64(len(piece) - len(keep))
	if t.also != nil && len(keep) > 0 {
		_, _ = t.also.Write(keep) // a reader that went away does not stop the guest
	}
	for {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			t.hold(piece)
			return
		}
		t.hold(piece[:end])
		t.end()
		piece = piece[end+1:]
	}
}

func (t *tail) hold(part []byte) {
	t.begun = t.begun || len(part) > 0
	t.pending = append(t.pending, part[:min(len(part), tailLineBytes+utf8Slack-len(t.pending))]...)
}

// utf8Slack lets cut find a boundary and say that it cut.
const utf8Slack = 4

func (t *tail) end() {
	line := cut(validText(bytes.TrimSuffix(t.pending, []byte("\r"))), tailLineBytes)
	t.pending, t.begun = t.pending[:0], false
	if strings.TrimSpace(line) == "" {
		return
	}
	if len(t.whole) == tailLines {
		t.whole = append(t.whole[:0], t.whole[1:]...)
	}
	t.whole = append(t.whole, line)
}

// lines is the tail. A guest's last line need not be ended. Blank lines are
// left out: they would push out lines that say something.
func (t *tail) lines() []string {
	if t.begun {
		t.end()
	}
	return t.whole
}

// processStderr keeps the first lines that a process wrote itself: a healthy one
// writes none, one that dies says why, and then prints its registers. It is safe
// for concurrent use.
type processStderr struct {
	mu   sync.Mutex
	text []byte
}

const (
	maxProcessStderr = 4096
	deathLines       = 4
)

func (s *processStderr) Write(piece []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, piece[:min(len(piece), maxProcessStderr-len(s.text))]...)
	return len(piece), nil
}

func (s *processStderr) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for line := range strings.Lines(validText(s.text)) {
		if line = strings.TrimSpace(line); line != "" && len(lines) < deathLines {
			lines = append(lines, cut(line, tailLineBytes))
		}
	}
	return lines
}
