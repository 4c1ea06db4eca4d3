package sandbox

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"starling/protocol"
	"starling/sandbox/internal/wasmtimex"
)

// fixed is a connection whose other side has said all it will say.
type fixed struct {
	io.Reader
	sent bytes.Buffer
}

func (f *fixed) Write(p []byte) (int, error) { return f.sent.Write(p) }
func (f *fixed) Close() error                { return nil }
func (f *fixed) SetDeadline(time.Time) error { return nil }
func said(b []byte) *pipe                    { return newPipe(&fixed{Reader: bytes.NewReader(b)}) }
func body(encode func(*encoder)) []byte      { var e encoder; encode(&e); return e.b }
func sample() *remoteSpec {
	return &remoteSpec{
		Spec: Spec{
			Digest: protocol.DigestOf(nil), Args: []string{"capsule", ""}, Env: map[string]string{"A": "1", "B": ""},
			Limits: protocol.Limits{MemoryBytes: 1, TableElements: 2, Instances: 3, DeadlineSeconds: 1 << 40, WorkdirBytes: 4},
			Output: protocol.OutputEvents, Stdin: []byte("in\x00\xff"),
		},
		number: 7, code: code{Path: "/p", Sum: "s"},
		preopens: []wasmtimex.Preopen{{Host: "/h", Guest: "/", Writable: true}, {Host: "/r", Guest: "/r"}},
	}
}

var sampleEvents = []protocol.Event{
	{Kind: protocol.EventTextDelta, Text: "text"},
	{Kind: protocol.EventToolCallProgress, ID: "id", InputBytes: -1},
	{Kind: protocol.EventToolCall, ID: "id", Name: "n", Input: []byte(`{"a":[1]}`)},
	{Kind: protocol.EventToolResult, ID: "id", Output: "out", IsError: true},
	{Kind: protocol.EventUsage, Usage: protocol.Usage{Input: 1, Output: 2, CacheRead: 3, CacheCreation: 4, Thinking: 5}},
	{Kind: protocol.EventSessionStarted, ID: "i", Auth: "a", Model: "m"},
	{Kind: protocol.EventRetry, Attempt: 3, Reason: "r"},
	{Kind: protocol.EventTurnFailed, Failure: protocol.FailQuota, Message: "m"},
	{Kind: protocol.EventTurnEnd, Result: "r"},
	{Kind: protocol.EventNote},
}

var sampleEnding = Ending{
	Kind: Exited, Status: 126, Trap: "t", Limit: LimitDeadline, Message: "m", Stdout: "out", StderrTail: []string{"a", ""},
	Duration: time.Second, StdoutDropped: 1, StderrDropped: 2, SignalsDropped: 3,
}

func TestMessagesComeThroughAsTheyWere(t *testing.T) {
	t.Parallel()
	var there fixed
	p := newPipe(&there)
	if err := p.sendSoon(msgStarted, nil); err != nil {
		t.Fatal(err)
	}
	for i := range sampleEvents {
		if err := p.sendSoon(msgEvent, func(e *encoder) { encodeEvent(e, &sampleEvents[i]) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.send(msgEnding, func(e *encoder) { encodeEnding(e, &sampleEnding) }); err != nil {
		t.Fatal(err)
	}
	back := said(there.sent.Bytes())
	if kind, _, err := back.receive(); kind != msgStarted || err != nil {
		t.Fatalf("receive = %q, %v, want the start", kind, err)
	}
	for _, want := range sampleEvents {
		kind, b, err := back.receive()
		if kind != msgEvent || err != nil {
			t.Fatalf("receive = %q, %v, want an event", kind, err)
		}
		got, err := decodeEvent(b)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("event: %v\n%s", err, diff)
		}
	}
	_, b, err := back.receive()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeEnding(b)
	if diff := cmp.Diff(sampleEnding, got); diff != "" || err != nil {
		t.Errorf("ending: %v\n%s", err, diff)
	}
	if _, _, err := back.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("receive = %v, want the end", err)
	}
	spec, err := decodeSpec(body(sample().encode))
	if diff := cmp.Diff(sample(), spec, cmp.AllowUnexported(remoteSpec{}, code{}), cmpopts.IgnoreFields(Spec{}, "Canceled")); diff != "" || err != nil {
		t.Errorf("spec: %v\n%s", err, diff)
	}
}

func TestBadMessagesAreErrors(t *testing.T) {
	t.Parallel()
	for name, in := range map[string][]byte{
		"no length":       {1, 0},
		"length zero":     {0, 0, 0, 0, 'e'},
		"too long":        {0, 0, 0, 0xff, 'e'},
		"a body cut off":  {9, 0, 0, 0, 'e', 1, 2},
		"a long cut body": {0, 0, 0, 1, 'e', 1, 2},
	} {
		if _, _, err := said(in).receive(); err == nil {
			t.Errorf("%s: receive = nil, want an error", name)
		}
	}
	unknown := protocol.Event{Kind: "nonsense"}
	broken := protocol.Event{Kind: protocol.EventToolCall, Input: []byte("{")}
	for name, b := range map[string][]byte{
		"an unknown event": body(func(e *encoder) { encodeEvent(e, &unknown) }),
		"input no JSON":    body(func(e *encoder) { encodeEvent(e, &broken) }),
		"too many bytes":   append(body(func(e *encoder) { encodeEvent(e, &sampleEvents[0]) }), 0),
	} {
		if _, err := decodeEvent(b); !errors.Is(err, errBadMessage) {
			t.Errorf("%s: decodeEvent = %v, want a bad message", name, err)
		}
	}
	for name, end := range map[string]Ending{
		"a death, of which only the worker tells": {Kind: ProcessDied},
		"none":                           {},
		"a refusal without an error":     {Kind: Refused},
		"an interruption without one":    {Kind: Interrupted},
		"an exit with an error":          {Kind: Exited, Err: io.EOF},
		"a limit with a capsule's error": {Kind: LimitHit, Err: refusal("x")},
	} {
		if got, err := decodeEnding(body(func(e *encoder) { encodeEnding(e, &end) })); !errors.Is(err, errBadMessage) {
			t.Errorf("%s: decodeEnding = %+v, %v, want a bad message", name, got, err)
		}
	}
	whole := body(sample().encode)
	for n := range whole {
		if _, err := decodeSpec(whole[:n]); err == nil {
			t.Fatalf("decodeSpec of the first %d bytes = nil, want an error", n)
		}
	}
}

// FuzzPipe takes whatever a process, or a worker, may send: it is read or it is
// an error, and what is read is written back the same.
func FuzzPipe(f *testing.F) {
	var all fixed
	p := newPipe(&all)
	for i := range sampleEvents {
		_ = p.send(msgEvent, func(e *encoder) { encodeEvent(e, &sampleEvents[i]) })
	}
	_ = p.send(msgEnding, func(e *encoder) { encodeEnding(e, &sampleEnding) })
	_ = p.send(msgRun, sample().encode)
	_ = p.sendJSON(msgHello, hello{Version: 1, Run: &helloRun{Density: 1}})
	f.Add(all.sent.Bytes())
	f.Add([]byte{1, 0, 0, 0, 's'})
	f.Fuzz(func(t *testing.T, in []byte) {
		for back := said(in); ; {
			kind, b, err := back.receive()
			if err != nil {
				return
			}
			switch kind {
			case msgEvent:
				event, err := decodeEvent(b)
				if err != nil {
					continue
				}
				again, err := decodeEvent(body(func(e *encoder) { encodeEvent(e, &event) }))
				if diff := cmp.Diff(event, again); diff != "" || err != nil {
					t.Errorf("%v\n%s", err, diff)
				}
			case msgEnding:
				if end, err := decodeEnding(b); err == nil {
					_ = body(func(e *encoder) { encodeEnding(e, &end) })
				}
			case msgRun:
				if spec, err := decodeSpec(b); err == nil {
					_ = body(spec.encode)
				}
			case msgReady:
				var answer ready
				_ = back.receiveJSON(msgReady, &answer)
			}
		}
	})
}
