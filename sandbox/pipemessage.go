package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"starling/protocol"
	"starling/sandbox/internal/confine"
	"starling/sandbox/internal/wasmtimex"
)

// hello is the first message to a process: what it is for, and what it keeps.
type hello struct {
	Version int           `json:"version"`
	Rules   confine.Rules `json:"rules"`
	// Run is set for a process that runs guests, Compile for one that compiles a
	// module.
	Run     *helloRun     `json:"run,omitempty"`
	Compile *helloCompile `json:"compile,omitempty"`
}

type helloRun struct {
	Density       int           `json:"density"` // so many places with their pipes there are
	MaxModules    int           `json:"max_modules"`
	Tick          time.Duration `json:"tick"`
	ResidentBytes int64         `json:"resident_bytes"`
	Components    bool          `json:"components,omitempty"`
}

type helloCompile struct {
	Name           string          `json:"name"` // for messages
	Digest         protocol.Digest `json:"digest"`
	MaxModuleBytes int64           `json:"max_module_bytes"`
	Components     bool            `json:"components,omitempty"`
}

// ready answers a hello. Error is set when the process cannot work.
type ready struct {
	Version  int            `json:"version"`
	Confined confine.Report `json:"confined"`
	Error    string         `json:"error,omitempty"`
}

// compileAnswer ends a compilation. Of Refused and Error at most one is set.
type compileAnswer struct {
	Refused string `json:"refused,omitempty"`
	Damaged bool   `json:"damaged,omitempty"`
	Error   string `json:"error,omitempty"`
	Needs   needs  `json:"needs"`
}

func (p *pipe) sendJSON(kind messageKind, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.send(kind, func(e *encoder) { e.b = append(e.b, text...) })
}

// receiveJSON takes one message of a kind.
func (p *pipe) receiveJSON(kind messageKind, v any) error {
	got, body, err := p.receive()
	if err != nil {
		return err
	}
	if got != kind {
		return fmt.Errorf("%w: it is a %q, not a %q", errBadMessage, got, kind)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", errBadMessage, err)
	}
	return nil
}

// remoteSpec is a [Spec] whose module is compiled and whose directories are
// granted.
type remoteSpec struct {
	Spec
	number   int64 // of the run in its place, from 1
	asksRoom bool  // in the process: there is a Room to ask
	code     code
	preopens []wasmtimex.Preopen
}

func (s *remoteSpec) encode(e *encoder) {
	e.num(s.number)
	e.str(string(s.Digest))
	e.str(s.code.Path)
	e.str(s.code.Sum)
	e.yes(s.code.needs.Component)
	e.strs(s.Args)
	e.num(int64(len(s.Env)))
	for name, value := range s.Env {
		e.str(name)
		e.str(value)
	}
	e.num(int64(len(s.preopens)))
	for _, p := range s.preopens {
		e.str(p.Host)
		e.str(p.Guest)
		e.yes(p.Writable)
	}
	e.num(s.Limits.MemoryBytes)
	e.num(s.Limits.TableElements)
	e.num(s.Limits.Instances)
	e.num(s.Limits.DeadlineSeconds)
	e.num(s.Limits.WorkdirBytes)
	e.yes(s.Room != nil)
	e.str(string(s.Output))
	e.str(string(s.Stdin))
}

func decodeSpec(body []byte) (*remoteSpec, error) {
	d := decoder{b: body}
	s := &remoteSpec{number: d.num()}
	s.Digest = protocol.Digest(d.str())
	s.code = code{Path: d.str(), Sum: d.str(), needs: needs{Component: d.yes()}}
	s.Args = d.strs()
	s.Env = map[string]string{}
	for n := d.num(); n > 0 && d.err == nil; n-- {
		name := d.str()
		s.Env[name] = d.str()
	}
	for n := d.num(); n > 0 && d.err == nil; n-- {
		s.preopens = append(s.preopens, wasmtimex.Preopen{Host: d.str(), Guest: d.str(), Writable: d.yes()})
	}
	s.Limits = protocol.Limits{
		MemoryBytes: d.num(), TableElements: d.num(), Instances: d.num(), DeadlineSeconds: d.num(),
		WorkdirBytes: d.num(),
	}
	s.asksRoom = d.yes()
	s.Output = protocol.OutputMode(d.str())
	s.Stdin = []byte(d.str())
	return s, d.end()
}

// eventParts says which members of an event follow: most have one or two.
const (
	partID = 1 << iota
	partName
	partText
	partResult
	partInputBytes
	partOthers
)

func encodeEvent(e *encoder, v *protocol.Event) {
	parts := int64(0)
	set := func(part int64, there bool) {
		if there {
			parts |= part
		}
	}
	set(partID, v.ID != "")
	set(partName, v.Name != "")
	set(partText, v.Text != "")
	set(partResult, v.Result != "")
	set(partInputBytes, v.InputBytes != 0)
	set(partOthers, v.Auth != "" || v.Model != "" || v.Message != "" || v.Reason != "" || v.Output != "" ||
		v.Attempt != 0 || v.IsError || v.Input != nil || v.Failure != "" || v.Usage != protocol.Usage{})
	e.str(string(v.Kind))
	e.num(parts)
	for _, s := range []struct {
		part int64
		text string
	}{{partID, v.ID}, {partName, v.Name}, {partText, v.Text}, {partResult, v.Result}} {
		if parts&s.part != 0 {
			e.str(s.text)
		}
	}
	if parts&partInputBytes != 0 {
		e.num(v.InputBytes)
	}
	if parts&partOthers == 0 {
		return
	}
	for _, s := range []string{v.Auth, v.Model, v.Message, v.Reason, v.Output, string(v.Input), string(v.Failure)} {
		e.str(s)
	}
	e.yes(v.IsError)
	for _, n := range []int64{
		v.Attempt, v.Usage.Input, v.Usage.Output, v.Usage.CacheRead, v.Usage.CacheCreation, v.Usage.Thinking,
	} {
		e.num(n)
	}
}

func decodeEvent(body []byte) (protocol.Event, error) {
	d := decoder{b: body}
	v := protocol.Event{Kind: protocol.EventKind(d.str())}
	parts := d.num()
	for _, s := range []struct {
		part int64
		to   *string
	}{{partID, &v.ID}, {partName, &v.Name}, {partText, &v.Text}, {partResult, &v.Result}} {
		if parts&s.part != 0 {
			*s.to = d.str()
		}
	}
	if parts&partInputBytes != 0 {
		v.InputBytes = d.num()
	}
	if parts&partOthers != 0 {
		for _, to := range []*string{&v.Auth, &v.Model, &v.Message, &v.Reason, &v.Output} {
			*to = d.str()
		}
		if input := d.bytes(); len(input) > 0 {
			v.Input = json.RawMessage(append([]byte(nil), input...))
		}
		v.Failure = protocol.FailureKind(d.str())
		v.IsError = d.yes()
		for _, to := range []*int64{
			&v.Attempt, &v.Usage.Input, &v.Usage.Output, &v.Usage.CacheRead, &v.Usage.CacheCreation, &v.Usage.Thinking,
		} {
			*to = d.num()
		}
	}
	if err := d.end(); err != nil {
		return protocol.Event{}, err
	}
	return v, checkEvent(&v)
}

// checkEvent refuses an event that no guest's output becomes: what comes out of
// a sandbox process is as little trusted as the guest.
func checkEvent(v *protocol.Event) error {
	if !knownEvent(v.Kind) {
		return fmt.Errorf("%w: there is no event %q", errBadMessage, v.Kind)
	}
	if v.Input != nil && !json.Valid(v.Input) {
		return fmt.Errorf("%w: the input of a tool call is no JSON", errBadMessage)
	}
	return nil
}

func knownEvent(kind protocol.EventKind) bool {
	switch kind {
	case protocol.EventSessionStarted, protocol.EventTextDelta, protocol.EventThinkingDelta, protocol.EventText,
		protocol.EventThinking, protocol.EventToolCallStarted, protocol.EventToolCallProgress, protocol.EventToolCall,
		protocol.EventToolResult, protocol.EventRetry, protocol.EventUsage, protocol.EventNote, protocol.EventTurnEnd,
		protocol.EventTurnFailed:
		return true
	}
	return false
}

func encodeEnding(e *encoder, v *Ending) {
	e.num(int64(v.Kind))
	e.num(int64(v.Status))
	e.str(v.Trap)
	e.str(string(v.Limit))
	e.str(v.Message)
	e.yes(v.Err != nil)
	e.yes(errors.Is(v.Err, ErrRefused))
	e.str(v.Stdout)
	e.strs(v.StderrTail)
	e.num(int64(v.Duration))
	e.num(v.StdoutDropped)
	e.num(v.StderrDropped)
	e.num(v.SignalsDropped)
}

// decodeEnding reads an ending. Of a refusal's error the text comes through, and
// whether it is the capsule's fault: of a component that shows only when it runs.
func decodeEnding(body []byte) (Ending, error) {
	d := decoder{b: body}
	v := Ending{
		Kind: EndingKind(d.num()), Status: int(d.num()), Trap: d.str(), Limit: Limit(d.str()), Message: d.str(),
	}
	failed, capsules := d.yes(), d.yes()
	switch {
	case failed && capsules:
		v.Err = refusal(v.Message)
	case failed:
		v.Err = fmt.Errorf("sandbox process: %s", v.Message)
	}
	v.Stdout, v.StderrTail, v.Duration = d.str(), d.strs(), time.Duration(d.num())
	v.StdoutDropped, v.StderrDropped, v.SignalsDropped = d.num(), d.num(), d.num()
	if err := d.end(); err != nil {
		return Ending{}, err
	}
	if v.Kind < Exited || v.Kind > Refused {
		return Ending{}, fmt.Errorf("%w: there is no ending %d", errBadMessage, v.Kind)
	}
	if failed != (v.Kind == Refused || v.Kind == Interrupted) {
		return Ending{}, fmt.Errorf("%w: the ending %q and its error do not fit", errBadMessage, v.Kind)
	}
	if len(v.StderrTail) > tailLines {
		return Ending{}, fmt.Errorf("%w: %d lines of stderr", errBadMessage, len(v.StderrTail))
	}
	return v, nil
}
