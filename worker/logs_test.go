package worker_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// logs keeps a worker's log lines and lets a test wait for one.
type logs struct {
	*logLines
	attrs []slog.Attr
}

type logLines struct {
	mu      sync.Mutex
	lines   []logLine
	changed chan struct{} // closed and replaced at each line
}

type logLine struct {
	level   slog.Level
	message string
	attrs   map[string]string
}

func newLogs(t *testing.T) *logs {
	l := &logs{logLines: &logLines{changed: make(chan struct{})}}
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range l.all() {
				t.Logf("log: %s %s %v", line.level, line.message, line.attrs)
			}
		}
	})
	return l
}

func (l *logs) Enabled(context.Context, slog.Level) bool { return true }
func (l *logs) WithGroup(string) slog.Handler            { return l }

func (l *logs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logs{l.logLines, append(append([]slog.Attr(nil), l.attrs...), attrs...)}
}

func (l *logs) Handle(_ context.Context, r slog.Record) error {
	line := logLine{r.Level, r.Message, map[string]string{}}
	keep := func(a slog.Attr) bool { line.attrs[a.Key] = a.Value.String(); return true }
	for _, a := range l.attrs {
		keep(a)
	}
	r.Attrs(keep)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

func (l *logLines) all() []logLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]logLine(nil), l.lines...)
}

// wait blocks until a line with the message was logged, and gives it.
func (l *logLines) wait(t *testing.T, message string) logLine {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	for {
		line, found, changed := l.find(message)
		if found {
			return line
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("the log never says %q", message)
		}
	}
}

// find looks for a line; changed is closed when there are more.
func (l *logLines) find(message string) (line logLine, found bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if line.message == message {
			return line, true, l.changed
		}
	}
	return logLine{}, false, l.changed
}
