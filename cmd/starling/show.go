package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"starling/broker"
	"starling/protocol"
)

// shower prints what an observer of a task sees.
type shower interface {
	printer
	// writer is where it prints, and failed why that takes no more, or nil.
	writer() io.Writer
	failed() error
}

// printer is one way to print it.
type printer interface {
	frame(f *protocol.ReceivedFrame)
	hole(h *broker.Hole)
	// cut is where the whole response is when its frame had only the beginning,
	// and nothing else showed it.
	cut() *protocol.ResultObject
}

// newShower prints to out: JSON lines for machines, streaming text and tool
// calls on a terminal, plain lines elsewhere. Notices for people go to errs.
func newShower(out, errs io.Writer, asJSON bool) shower {
	checked := &checkedOutput{Writer: out, terminal: terminal(out)}
	switch {
	case asJSON:
		return &checkedShower{&jsonShower{out: json.NewEncoder(jsonWriter{checked})}, checked}
	case terminal(out):
		return &checkedShower{&liveShower{out: checked, tools: make(map[string]string)}, checked}
	default:
		return &checkedShower{&plainShower{out: checked, errs: errs}, checked}
	}
}

// checkedShower is a printer whose output is watched.
type checkedShower struct {
	printer
	out *checkedOutput
}

func (s *checkedShower) writer() io.Writer { return s.out }
func (s *checkedShower) failed() error     { return s.out.err }

// errUnread ends a command that shows a task when its pipe or its terminal is closed.
var errUnread = errors.New("nobody reads it any more")

// checkedOutput notes the first write that fails, as those to a closed pipe do.
type checkedOutput struct {
	io.Writer
	terminal bool // one that is gone gives EIO
	err      error
}

func (o *checkedOutput) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err != nil && o.err == nil {
		// Not %w: a closed pipe ends other commands without a word, and here it is
		// said, for the task may go on.
		o.err = fmt.Errorf("standard output: %v", err)
		if errors.Is(err, syscall.EPIPE) || o.terminal && errors.Is(err, syscall.EIO) {
			o.err = fmt.Errorf("standard output: %v: %w", err, errUnread)
		}
	}
	return n, err
}

// follow prints a task's frames until its terminal one, which it returns, and a
// response that was too large for its frame from the object store. It ends when
// nobody reads what it prints any more.
func follow(ctx context.Context, bus *broker.Bus, w *broker.Watch, s shower) (*protocol.ReceivedFrame, error) {
	var last *protocol.ReceivedFrame
	for {
		event, err := w.Next(ctx)
		if errors.Is(err, io.EOF) {
			if object := s.cut(); object != nil {
				err := showWhole(ctx, bus, *object, s.writer())
				return last, cmp.Or(s.failed(), err)
			}
			return last, nil
		}
		if err != nil {
			return last, err
		}
		if event.Hole != nil {
			s.hole(event.Hole)
			continue
		}
		last = event.Frame
		s.frame(event.Frame)
		if err := s.failed(); err != nil {
			return last, err
		}
	}
}

// showWhole prints a response out of the object store, or says where it is to an
// observer who may not read it.
func showWhole(ctx context.Context, bus *broker.Bus, object protocol.ResultObject, out io.Writer) error {
	text := &printableWriter{out: out}
	err := errors.Join(bus.FetchResult(ctx, object, text), text.Close())
	if errors.Is(err, broker.ErrDenied) {
		_, err := fmt.Fprintf(out, "(the result, %d bytes, is the object %s of the bucket %s, which this user may not read)\n",
			object.Size, printable(object.Name), printable(object.Bucket))
		return err
	}
	return errors.Join(err, line(out))
}

// line ends a line.
func line(out io.Writer) error {
	_, err := fmt.Fprintln(out)
	return err
}

// jsonShower writes a line per frame: its place, its kind and the A2A object.
type jsonShower struct{ out *json.Encoder }

type jsonFrame struct {
	TaskID  protocol.TaskID    `json:"task_id"`
	Attempt int                `json:"attempt"`
	Seq     int                `json:"seq"`
	Kind    protocol.FrameKind `json:"kind"`
	Frame   a2a.StreamResponse `json:"frame"`
}

func (s *jsonShower) frame(f *protocol.ReceivedFrame) {
	_ = s.out.Encode(jsonFrame{f.TaskID, f.Attempt, f.Seq, f.Kind, f.A2A}) // a closed pipe ends the command elsewhere
}

func (s *jsonShower) cut() *protocol.ResultObject { return nil }

func (s *jsonShower) hole(h *broker.Hole) {
	_ = s.out.Encode(map[string]any{"hole": map[string]int{"attempt": h.Attempt, "from": h.From, "to": h.To}})
}

// streamed keeps the text of the last segment, to tell whether a response was
// shown already, and where it is when it was not.
type streamed struct {
	text    strings.Builder
	missing *protocol.ResultObject
}

func (s *streamed) add(f *protocol.ReceivedFrame) {
	if !f.Append {
		s.text.Reset()
	}
	s.text.WriteString(f.Text)
}

// shows reports whether a response needs no printing.
func (s *streamed) shows(f *protocol.ReceivedFrame) bool {
	text, response := strings.TrimSpace(s.text.String()), strings.TrimSpace(f.Text)
	if !f.Truncated || f.Object == nil {
		return text == response
	}
	if !strings.HasPrefix(text, response) {
		s.missing = f.Object
	}
	return true
}

func (s *streamed) cut() *protocol.ResultObject { return s.missing }

// plainShower writes the capsule's text to out, line by line, and what happens
// beside it to errs: so a pipe gets the text alone.
type plainShower struct {
	out, errs io.Writer
	line      strings.Builder // text that has not ended its line
	streamed
}

func (s *plainShower) say(format string, args ...any) {
	s.endLine()
	fmt.Fprintf(s.errs, format+"\n", args...)
}

func (s *plainShower) endLine() {
	if s.line.Len() > 0 {
		fmt.Fprintln(s.out, s.line.String())
		s.line.Reset()
	}
}

func (s *plainShower) frame(f *protocol.ReceivedFrame) {
	switch f.Kind {
	case protocol.FrameText:
		s.add(f)
		s.print(f.Text, f.Append, f.Final)
	case protocol.FrameResponse:
		if !s.shows(f) {
			s.print(f.Text, false, true)
		}
	case protocol.FrameToolCallStarted:
		s.say("[tool] %s started", cell(f.ToolName))
	case protocol.FrameToolCallProgress:
		s.say("[tool] %d bytes of input", f.InputBytes)
	case protocol.FrameArtifact:
		s.say("[tool] %s %s", cell(f.ToolName), toolEnd(f))
	case protocol.FrameStatus:
		if f.State.Terminal() {
			s.endLine()
		} else {
			s.say("[%s]", cell(f.Text))
		}
	}
}

func (s *plainShower) print(text string, appends, final bool) {
	if !appends {
		s.endLine()
	}
	s.line.WriteString(printable(text))
	whole := s.line.String()
	if cut := strings.LastIndexByte(whole, '\n'); cut >= 0 {
		fmt.Fprint(s.out, whole[:cut+1])
		s.line.Reset()
		s.line.WriteString(whole[cut+1:])
	}
	if final {
		s.endLine()
	}
}

func (s *plainShower) hole(h *broker.Hole) {
	s.say("starling: frames %d to %d of attempt %d are missing", h.From, h.To, h.Attempt)
}

// liveShower streams to a terminal and redraws a tool call's progress in place.
type liveShower struct {
	out    io.Writer
	column bool              // the cursor is not at the start of a line
	tools  map[string]string // names of the calls under way, by id
	streamed
}

const (
	dim   = "\x1b[2m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	reset = "\x1b[0m"
	erase = "\r\x1b[K"
)

func (s *liveShower) frame(f *protocol.ReceivedFrame) {
	switch f.Kind {
	case protocol.FrameText:
		s.add(f)
		s.print(f.Text, f.Append, f.Final)
	case protocol.FrameResponse:
		if !s.shows(f) {
			s.print(f.Text, false, true)
		}
	case protocol.FrameThinking:
		fmt.Fprint(s.out, dim+printable(f.Text)+reset)
		s.column = true
	case protocol.FrameToolCallStarted:
		s.newLine()
		s.tools[f.ToolCallID] = cell(f.ToolName)
		fmt.Fprintf(s.out, "%s⚙ %s …%s", dim, cell(f.ToolName), reset)
		s.column = true
	case protocol.FrameToolCallProgress:
		fmt.Fprintf(s.out, "%s%s⚙ %s … %d bytes%s", erase, dim, s.tools[f.ToolCallID], f.InputBytes, reset)
		s.column = true
	case protocol.FrameArtifact:
		mark := green + "✓"
		if f.IsError {
			mark = red + "✗"
		}
		if s.tools[f.ToolCallID] == "" {
			s.newLine() // nothing to redraw: the line holds something else
		}
		fmt.Fprintf(s.out, "%s%s %s%s %s\n", erase, mark, cell(f.ToolName), reset, toolEnd(f))
		s.column = false
		delete(s.tools, f.ToolCallID)
	case protocol.FrameStatus:
		s.newLine()
		if !f.State.Terminal() && !strings.HasPrefix(f.Text, "inference turn ") {
			fmt.Fprintf(s.out, "%s%s%s\n", dim, cell(f.Text), reset)
		}
	}
}

func (s *liveShower) print(text string, appends, final bool) {
	if !appends {
		s.newLine()
	}
	text = printable(text)
	fmt.Fprint(s.out, text)
	if text != "" {
		s.column = !strings.HasSuffix(text, "\n")
	}
	if final && (text != "" || len(s.tools) == 0) { // else the line is a tool call's
		s.newLine()
	}
}

func (s *liveShower) newLine() {
	if s.column {
		fmt.Fprintln(s.out)
		s.column = false
	}
}

func (s *liveShower) hole(h *broker.Hole) {
	s.newLine()
	fmt.Fprintf(s.out, "%sframes %d to %d of attempt %d are missing%s\n", red, h.From, h.To, h.Attempt, reset)
}

// toolEnd is how a call ended, in a line.
func toolEnd(f *protocol.ReceivedFrame) string {
	word := "ended"
	if f.IsError {
		word = "failed"
	}
	first, _, more := strings.Cut(printable(f.Content), "\n")
	if len(first) > 120 {
		first, more = strings.ToValidUTF8(first[:120], ""), true
	}
	if more {
		first += " …"
	}
	if f.DurationMS != nil {
		return fmt.Sprintf("%s after %d ms: %s", word, *f.DurationMS, first)
	}
	return word + ": " + first
}

// endingLine is the last line about a task, and where its files are.
func endingLine(rec protocol.Record) string {
	o := rec.Outcome
	line := fmt.Sprintf("%s: %s (%s, %d ms)", rec.DelegationID, cell(string(o.Status)), cell(rec.Ending.Message), o.DurationMS)
	if o.Workdir != "" {
		line += "\nworkdir: " + cell(o.Workdir) + stderrLine(o)
	}
	return line
}

// stderrLine says where the whole standard error of a task that did not end well is:
// the error has one line of it, and a program that panics writes many.
func stderrLine(o *protocol.Outcome) string {
	if o.Status != protocol.StatusError && o.Status != protocol.StatusCrashed || !filepath.IsAbs(o.Workdir) {
		return ""
	}
	file := filepath.Join(filepath.Dir(filepath.Clean(o.Workdir)), "stderr.log")
	if _, err := os.Stat(file); err == nil {
		return "\nstderr: " + cell(file)
	}
	if _, err := os.Stat(o.Workdir); err == nil || o.WorkerID == "" {
		return "" // it wrote none, or no worker is known
	}
	return fmt.Sprintf("\nstderr: %s, on the host of %s, if it wrote any", cell(file), cell(string(o.WorkerID)))
}
