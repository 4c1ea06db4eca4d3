package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// ErrMessage says that an A2A message cannot be a task.
var ErrMessage = errors.New("bad message")

// ParseMessage reads an A2A 1.0 message, and the shapes of A2A 0.3: role
// "user", parts with a kind, snake_case names. A message without text, or from
// an agent, is [ErrMessage].
func ParseMessage(data []byte) (*a2a.Message, error) {
	refuse := func(format string, args ...any) (*a2a.Message, error) {
		return nil, fmt.Errorf("%w: "+format, append([]any{ErrMessage}, args...)...)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return refuse("message: %w", jsonError(err))
	}
	r := eventReader{members: members}
	m := &a2a.Message{
		ID: r.first("messageId", "message_id"), ContextID: r.first("contextId", "context_id"),
		TaskID: a2a.TaskID(r.first("taskId", "task_id")),
	}
	switch role := r.str("role"); role {
	case "ROLE_USER", "user":
		m.Role = a2a.MessageRoleUser
	default:
		return refuse("message.role is %q: it is ROLE_USER", clip(role, 32))
	}
	r.read("metadata", &m.Metadata)
	r.read("extensions", &m.Extensions)
	var parts []map[string]json.RawMessage
	r.read("parts", &parts)
	if r.err != nil {
		return refuse("message: %w", r.err)
	}
	for i, part := range parts {
		p, err := readPart(part)
		if err != nil {
			return refuse("message.parts[%d]: %w", i, err)
		}
		m.Parts = append(m.Parts, p)
	}
	if MessageText(m) == "" {
		return refuse("message.parts has no text: a task is text")
	}
	return m, nil
}

// readPart reads one part of either version. A file of 0.3 stands under "file".
func readPart(members map[string]json.RawMessage) (*a2a.Part, error) {
	r := eventReader{members: members}
	p := &a2a.Part{}
	r.read("metadata", &p.Metadata)
	if r.has("file") {
		r.members = nil
		if err := json.Unmarshal(members["file"], &r.members); err != nil {
			return nil, jsonError(err)
		}
	}
	p.Filename = r.first("filename", "name")
	p.MediaType = r.first("mediaType", "media_type", "mimeType", "mime_type")
	switch {
	case r.has("text"):
		p.Content = a2a.Text(r.str("text"))
	case r.has("data"):
		var value any
		r.read("data", &value)
		p.Content = a2a.Data{Value: value}
	case r.first("url", "uri") != "":
		p.Content = a2a.URL(r.first("url", "uri"))
	case r.has("raw"), r.has("bytes"):
		var raw []byte
		r.read("raw", &raw)
		r.read("bytes", &raw)
		p.Content = a2a.Raw(raw)
	default:
		return nil, errors.New("it has no text, data, url or raw")
	}
	return p, r.err
}

// MessageText is what a capsule reads of a message: its text parts joined by a
// newline.
func MessageText(m *a2a.Message) string {
	if m == nil {
		return ""
	}
	var texts []string
	for _, p := range m.Parts {
		if text, ok := p.Content.(a2a.Text); ok {
			texts = append(texts, string(text))
		}
	}
	return strings.Join(texts, "\n")
}

// NewUserMessage is a message with one text part.
func NewUserMessage(context ContextID, text string) *a2a.Message {
	return &a2a.Message{
		ID: string(NewMessageID()), ContextID: string(context), Role: a2a.MessageRoleUser,
		Parts: a2a.ContentParts{a2a.NewTextPart(text)},
	}
}
