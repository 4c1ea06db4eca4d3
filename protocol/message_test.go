package protocol_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

func TestParseMessageShapes(t *testing.T) {
	t.Parallel()
	hello := &a2a.Message{ID: "msg_1", ContextID: "ctx_1", Role: a2a.MessageRoleUser, Parts: a2a.ContentParts{a2a.NewTextPart("hi")}}
	with := func(parts ...*a2a.Part) *a2a.Message {
		m := *hello
		m.Parts = append(a2a.ContentParts{a2a.NewTextPart("hi")}, parts...)
		return &m
	}
	withPart := func(part string) string {
		return `{"messageId":"msg_1","contextId":"ctx_1","role":"user","parts":[{"kind":"text","text":"hi"},` + part + `]}`
	}
	tests := []struct {
		shape, in string
		want      *a2a.Message
	}{
		{"1.0", `{"messageId":"msg_1","contextId":"ctx_1","role":"ROLE_USER","parts":[{"text":"hi"}]}`, hello},
		{"0.3", `{"kind":"message","messageId":"msg_1","contextId":"ctx_1","role":"user","parts":[{"kind":"text","text":"hi"}]}`, hello},
		{"snake_case", `{"message_id":"msg_1","context_id":"ctx_1","role":"user","parts":[{"kind":"text","text":"hi"}]}`, hello},
		{"nulls are absent", `{"messageId":"msg_1","contextId":"ctx_1","taskId":null,"role":"ROLE_USER","metadata":null,"extensions":null,"parts":[{"text":"hi","file":null,"data":null,"url":null,"raw":null,"metadata":null}]}`, hello},
		{"members of another case are ignored", `{"messageId":"msg_1","MessageId":"x","contextId":"ctx_1","role":"ROLE_USER","Role":"agent","parts":[{"text":"hi","Text":"no"}]}`, hello},
		{
			"the rest of 1.0", `{"messageId":"msg_1","contextId":"ctx_1","taskId":"tsk_1","role":"ROLE_USER","extensions":["urn:x"],"metadata":{"a":1},"parts":[{"text":"hi","metadata":{"b":2}}]}`,
			&a2a.Message{
				ID: "msg_1", ContextID: "ctx_1", TaskID: "tsk_1", Role: a2a.MessageRoleUser, Extensions: []string{"urn:x"},
				Metadata: map[string]any{"a": 1.0}, Parts: a2a.ContentParts{{Content: a2a.Text("hi"), Metadata: map[string]any{"b": 2.0}}},
			},
		},
		{"data", withPart(`{"kind":"data","data":{"n":[1]}}`), with(a2a.NewDataPart(map[string]any{"n": []any{1.0}}))},
		{"a url of 1.0", withPart(`{"url":"http://x/f","filename":"f","mediaType":"a/b"}`), with(&a2a.Part{Content: a2a.URL("http://x/f"), Filename: "f", MediaType: "a/b"})},
		{"raw of 1.0", withPart(`{"raw":"AQI=","filename":"f","media_type":"a/b"}`), with(&a2a.Part{Content: a2a.Raw{1, 2}, Filename: "f", MediaType: "a/b"})},
		{"a file of 0.3 by address", withPart(`{"kind":"file","file":{"uri":"http://x/f","name":"f","mimeType":"a/b"}}`), with(&a2a.Part{Content: a2a.URL("http://x/f"), Filename: "f", MediaType: "a/b"})},
		{"a file of 0.3 by bytes", withPart(`{"kind":"file","file":{"bytes":"AQI=","name":"f","mime_type":"a/b"}}`), with(&a2a.Part{Content: a2a.Raw{1, 2}, Filename: "f", MediaType: "a/b"})},
	}
	for _, tt := range tests {
		got, err := protocol.ParseMessage([]byte(tt.in))
		if err != nil {
			t.Errorf("%s: ParseMessage(%s) = %v", tt.shape, tt.in, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: ParseMessage(%s) (-want +got):\n%s", tt.shape, tt.in, diff)
		}
	}
}

func TestParseMessageRefusals(t *testing.T) {
	t.Parallel()
	message := func(role, parts string) string {
		return `{"messageId":"msg_1","contextId":"ctx_1","role":` + role + `,"parts":` + parts + `}`
	}
	tests := []struct{ rule, in, member string }{
		{"nothing", ``, "message"},
		{"half", `{"role":"ROLE_USER"`, "message"},
		{"a list", `[]`, "message"},
		{"null", `null`, "message.role"},
		{"no role", message(`""`, `[{"text":"a"}]`), "message.role"},
		{"an agent's", message(`"ROLE_AGENT"`, `[{"text":"a"}]`), "message.role"},
		{"an agent's of 0.3", message(`"agent"`, `[{"text":"a"}]`), "message.role"},
		{"a role of another case", message(`"User"`, `[{"text":"a"}]`), "message.role"},
		{"a role that is a number", message(`1`, `[{"text":"a"}]`), "message"},
		{"no parts", message(`"user"`, `null`), "message.parts"},
		{"an empty list of parts", message(`"user"`, `[]`), "message.parts"},
		{"parts that are text", message(`"user"`, `"a"`), "parts"},
		{"empty text", message(`"user"`, `[{"text":""}]`), "message.parts"},
		{"data alone", message(`"user"`, `[{"data":{}}]`), "message.parts"},
		{"text that is a number", message(`"user"`, `[{"text":1}]`), "message.parts[0]"},
		{"a part that is null", message(`"user"`, `[{"text":"a"},null]`), "message.parts[1]"},
		{"a part without content", message(`"user"`, `[{"text":"a"},{"kind":"text"}]`), "message.parts[1]"},
		{"a part with an empty url", message(`"user"`, `[{"text":"a"},{"url":""}]`), "message.parts[1]"},
		{"raw that is no base64", message(`"user"`, `[{"text":"a"},{"raw":"*"}]`), "message.parts[1]"},
		{"a file that is text", message(`"user"`, `[{"text":"a"},{"file":"f"}]`), "message.parts[1]"},
		{"parts under another case", `{"role":"user","Parts":[{"text":"a"}]}`, "message.parts"},
	}
	for _, tt := range tests {
		m, err := protocol.ParseMessage([]byte(tt.in))
		if m != nil || !errors.Is(err, protocol.ErrMessage) || !strings.Contains(err.Error(), tt.member) {
			t.Errorf("%s: ParseMessage(%s) = %v, %v, want an ErrMessage that says %s", tt.rule, tt.in, m, err, tt.member)
		}
	}
}

func TestMessageText(t *testing.T) {
	t.Parallel()
	m := &a2a.Message{Parts: a2a.ContentParts{a2a.NewTextPart("a"), a2a.NewDataPart(1), a2a.NewTextPart("b\n"), a2a.NewTextPart("c")}}
	if got := protocol.MessageText(m); got != "a\nb\n\nc" {
		t.Errorf("MessageText = %q, want the text parts joined by a newline", got)
	}
	if got := protocol.MessageText(nil); got != "" {
		t.Errorf("MessageText(nil) = %q, want nothing", got)
	}
	got := protocol.NewUserMessage("ctx_1", "hi")
	if err := protocol.ValidateName("messageId", got.ID); err != nil || protocol.MessageText(got) != "hi" ||
		got.ContextID != "ctx_1" || got.Role != a2a.MessageRoleUser {
		t.Errorf("NewUserMessage = %+v (%v)", got, err)
	}
}

// FuzzParseMessage: what was read is written in the form of 1.0, which is read
// again as the same message.
func FuzzParseMessage(f *testing.F) {
	for _, seed := range []string{
		`{"messageId":"m","contextId":"c","taskId":"t","role":"ROLE_USER","parts":[{"text":"hi"},{"data":[null,1e300]},{"url":"u"},{"raw":""}]}`,
		`{"kind":"message","message_id":"m","role":"user","parts":[{"kind":"text","text":"<&>\u2028\ud800"},{"kind":"file","file":{"uri":"u","name":"n"}}]}`,
		`{"role":"user","metadata":{"a":{}},"extensions":["x"],"parts":[{"text":"a","metadata":{"b":[]},"filename":"f","media_type":"m"}]}`,
		`{"role":"user","parts":[{"text":"a"},{"data":null}]}`, `{"role":"user","parts":[{"text":"a"},{"url":""}]}`, `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := protocol.ParseMessage(data)
		if err != nil {
			if !errors.Is(err, protocol.ErrMessage) {
				t.Fatalf("ParseMessage(%q) = %v, want ErrMessage", data, err)
			}
			return
		}
		if protocol.MessageText(m) == "" || m.Role != a2a.MessageRoleUser {
			t.Fatalf("ParseMessage(%q) = %+v, want a user's with text", data, m)
		}
		written, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("Marshal(%+v) = %v", m, err)
		}
		again, err := protocol.ParseMessage(written)
		if err != nil {
			t.Fatalf("ParseMessage(%s) = %v", written, err)
		}
		rewritten, err := json.Marshal(again)
		if err != nil || string(written) != string(rewritten) {
			t.Errorf("written %s, read and written %s, %v", written, rewritten, err)
		}
		var official a2a.Message
		if err := json.Unmarshal(written, &official); err != nil {
			t.Errorf("the official decoder refuses %s: %v", written, err)
		}
	})
}
