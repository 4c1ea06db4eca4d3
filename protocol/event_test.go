package protocol_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

// TestParseEvent has the table of events of docs/protocol.md, section 5.
func TestParseEvent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		line string
		want protocol.Event
	}{
		{`{"event":"session-started","id":"s1"}`, protocol.Event{Kind: protocol.EventSessionStarted, ID: "s1"}},
		{
			`{"event":"session-started","id":"s1","auth":"key","model":"m"}`,
			protocol.Event{Kind: protocol.EventSessionStarted, ID: "s1", Auth: "key", Model: "m"},
		},
		{`{"event":"text-delta","text":"a"}`, protocol.Event{Kind: protocol.EventTextDelta, Text: "a"}},
		{`{"event":"thinking-delta","text":"a"}`, protocol.Event{Kind: protocol.EventThinkingDelta, Text: "a"}},
		{`{"event":"text","text":"a"}`, protocol.Event{Kind: protocol.EventText, Text: "a"}},
		{`{"event":"thinking","text":"a"}`, protocol.Event{Kind: protocol.EventThinking, Text: "a"}},
		{`{"event":"tool-call-started","id":"c","name":"n"}`, protocol.Event{Kind: protocol.EventToolCallStarted, ID: "c", Name: "n"}},
		{`{"event":"tool-call-progress","id":"c","input_bytes":7}`, protocol.Event{Kind: protocol.EventToolCallProgress, ID: "c", InputBytes: 7}},
		{
			`{"event":"tool-call","id":"c","name":"n","input":{"a":[1, null]}}`,
			protocol.Event{Kind: protocol.EventToolCall, ID: "c", Name: "n", Input: []byte(`{"a":[1, null]}`)},
		},
		{`{"event":"tool-call","id":"c","name":"n","input":"text"}`, protocol.Event{Kind: protocol.EventToolCall, ID: "c", Name: "n", Input: []byte(`"text"`)}},
		{`{"event":"tool-call","id":"c","name":"n"}`, protocol.Event{Kind: protocol.EventToolCall, ID: "c", Name: "n"}},
		{`{"event":"tool-result","id":"c","output":"o","is_error":true}`, protocol.Event{Kind: protocol.EventToolResult, ID: "c", Output: "o", IsError: true}},
		{`{"event":"tool-result","id":"c","output":"o"}`, protocol.Event{Kind: protocol.EventToolResult, ID: "c", Output: "o"}},
		{`{"event":"retry","attempt":2,"reason":"r"}`, protocol.Event{Kind: protocol.EventRetry, Attempt: 2, Reason: "r"}},
		{
			`{"event":"usage","input":1,"output":2,"cache_read":3,"cache_creation":4,"thinking":5}`,
			protocol.Event{Kind: protocol.EventUsage, Usage: protocol.Usage{Input: 1, Output: 2, CacheRead: 3, CacheCreation: 4, Thinking: 5}},
		},
		{`{"event":"note","text":"a"}`, protocol.Event{Kind: protocol.EventNote, Text: "a"}},
		{`{"event":"turn-end","result":"r"}`, protocol.Event{Kind: protocol.EventTurnEnd, Result: "r"}},
		{`{"event":"turn-end"}`, protocol.Event{Kind: protocol.EventTurnEnd}},
		{`{"event":"turn-failed","kind":"auth","message":"m"}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailAuth, Message: "m"}},
		{`{"event":"turn-failed","kind":"quota","message":""}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailQuota}},
		{`{"event":"turn-failed","kind":"max-turns"}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailMaxTurns}},
		{`{"event":"turn-failed","kind":"canceled"}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailCanceled}},
		{`{"event":"turn-failed","kind":"harness-error"}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailHarness}},
		{`{"event":"turn-failed","kind":"other"}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailOther}},
		// Beyond the table.
		{`{"event":"turn-failed","kind":"unheard-of"}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailOther}},
		{`{"event":"turn-failed"}`, protocol.Event{Kind: protocol.EventTurnFailed, Failure: protocol.FailOther}},
		{` {"text":"a", "event":"text", "more":{}} `, protocol.Event{Kind: protocol.EventText, Text: "a"}},
		{`{"event":"text","text":null}`, protocol.Event{Kind: protocol.EventText}},
		{`{"event":"text","Text":"another case","TEXT":"too"}`, protocol.Event{Kind: protocol.EventText}},
		{"{\"event\":\"text\",\"text\":\"a\xffb\"}", protocol.Event{Kind: protocol.EventText, Text: "a\uFFFDb"}},
		{"{\"event\":\"tool-call\",\"input\":\"a\xffb\"}", protocol.Event{Kind: protocol.EventToolCall, Input: []byte("\"a\uFFFDb\"")}},
	}
	for _, tt := range tests {
		got, err := protocol.ParseEvent([]byte(tt.line))
		if err != nil {
			t.Errorf("ParseEvent(%s) = %v", tt.line, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("ParseEvent(%s) (-want +got):\n%s", tt.line, diff)
		}
	}
}

func TestParseEventErrors(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"empty":                     "",
		"text":                      "hello",
		"half":                      `{"event":"text"`,
		"two":                       `{"event":"text"} {"event":"text"}`,
		"array":                     `[{"event":"text"}]`,
		"string":                    `"text"`,
		"null":                      `null`,
		"no event":                  `{"text":"a"}`,
		"event of another case":     `{"Event":"text"}`,
		"unknown event":             `{"event":"text-deltas"}`,
		"event that is no string":   `{"event":1}`,
		"text that is no string":    `{"event":"text","text":1}`,
		"bytes that are no integer": `{"event":"tool-call-progress","id":"c","input_bytes":1.5}`,
		"bytes that are too many":   `{"event":"tool-call-progress","id":"c","input_bytes":9223372036854775808}`,
		"error that is no boolean":  `{"event":"tool-result","id":"c","is_error":"no"}`,
		"usage that is a string":    `{"event":"usage","input":"1"}`,
	} {
		if got, err := protocol.ParseEvent([]byte(line)); !errors.Is(err, protocol.ErrEvent) {
			t.Errorf("%s: ParseEvent(%s) = %+v, %v, want ErrEvent", name, line, got, err)
		}
	}
	_, err := protocol.ParseEvent([]byte(`{"event":"` + strings.Repeat("é", 1000) + `"}`))
	if len(err.Error()) > 200 || !utf8.ValidString(err.Error()) {
		t.Errorf("the error quotes %d bytes of what a capsule wrote", len(err.Error()))
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	for kind, want := range map[protocol.EventKind]bool{
		protocol.EventTurnEnd: true, protocol.EventTurnFailed: true, protocol.EventText: false, "": false,
	} {
		if got := kind.Terminal(); got != want {
			t.Errorf("%q.Terminal() = %v, want %v", kind, got, want)
		}
	}
}

func TestUsageSpent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		usage protocol.Usage
		want  int64
	}{
		{protocol.Usage{}, 0},
		{protocol.Usage{Input: 1, Output: 2, CacheRead: 4, CacheCreation: 8, Thinking: 16}, 3},
		{protocol.Usage{Input: math.MaxInt64, Output: 1}, math.MaxInt64},
		{protocol.Usage{Input: math.MaxInt64, Output: math.MaxInt64}, math.MaxInt64},
		{protocol.Usage{Input: 10, Output: -3}, 10},
		{protocol.Usage{Input: math.MinInt64, Output: math.MinInt64}, 0},
	}
	for _, tt := range tests {
		if got := tt.usage.Spent(); got != tt.want {
			t.Errorf("%+v.Spent() = %d, want %d", tt.usage, got, tt.want)
		}
	}
}

func TestEventMarshalErrors(t *testing.T) {
	t.Parallel()
	if _, err := json.Marshal(protocol.Event{Kind: "no-such"}); !errors.Is(err, protocol.ErrEvent) {
		t.Errorf("Marshal = %v, want ErrEvent", err)
	}
}

// FuzzParseEvent: what was read is written so that it is read again.
func FuzzParseEvent(f *testing.F) {
	for _, seed := range []string{
		`{"event":"tool-call","id":"c","name":"n","input":{"a":1}}`,
		`{"event":"usage","input":1,"output":2,"cache_read":3,"cache_creation":4,"thinking":5}`,
		`{"event":"session-started","id":"\ud800","auth":"a","model":"m"}`,
		`{"event":"turn-failed","kind":"auth","message":"m"}`,
		"{\"event\":\"text\",\"text\":\"a\xffb<&>\u2028\"}",
		`{"event":"tool-result","id":"c","output":"o","is_error":true}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		event, err := protocol.ParseEvent(line)
		if err != nil {
			return
		}
		written, err := json.Marshal(event)
		if err != nil {
			t.Fatalf("Marshal(%+v) = %v", event, err)
		}
		if !utf8.Valid(written) {
			t.Fatalf("written %q is no UTF-8", written)
		}
		again, err := protocol.ParseEvent(written)
		if err != nil {
			t.Fatalf("ParseEvent(%s) = %v", written, err)
		}
		// JSON is compared by what it says: absent is null.
		for _, e := range []*protocol.Event{&event, &again} {
			if e.Kind == protocol.EventToolCall {
				var v any
				_ = json.Unmarshal(e.Input, &v) // it was read before
				e.Input, _ = json.Marshal(v)
			}
		}
		if diff := cmp.Diff(event, again); diff != "" {
			t.Errorf("read, written and read again (-first +second):\n%s", diff)
		}
	})
}
