// Command llm answers its task with a model behind an OpenAI-compatible server:
// the client is a third party's, unchanged but for its http.Client. OPENAI_BASE_URL
// and OPENAI_MODEL are what they are elsewhere; the key is a secret of the
// operator's, which the host puts in.
//
// It is a module of its own, so that the product does not depend on the client.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	openai "github.com/sashabaranov/go-openai"

	"starling/sandbox/guest"
	"starling/sandbox/guest/guesthttp"
)

func main() {
	ctx, stop := guest.Context(context.Background())
	defer stop()
	task, err := guest.Task()
	if err == nil {
		err = newAgent(task).run(ctx)
	}
	if err != nil {
		guest.TurnFailed(kindOf(ctx, err), err.Error())
	}
}

// kindOf classifies what ended the task.
func kindOf(ctx context.Context, err error) guest.FailureKind {
	var refused *openai.APIError
	var failed *openai.RequestError
	status := 0
	switch {
	case errors.Is(context.Cause(ctx), guest.ErrCanceled):
		return guest.FailCanceled
	case errors.As(err, &refused):
		status = refused.HTTPStatusCode
	case errors.As(err, &failed):
		status = failed.HTTPStatusCode
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return guest.FailAuth
	case http.StatusTooManyRequests, http.StatusPaymentRequired:
		return guest.FailQuota
	}
	return guest.FailOther
}

// agent is a conversation with a model.
type agent struct {
	client   *openai.Client
	model    string
	messages []openai.ChatCompletionMessage
	usage    guest.Usage
}

func newAgent(task string) *agent {
	config := openai.DefaultConfig("${secret:OPENAI_API_KEY}")
	config.BaseURL = cmp.Or(os.Getenv("OPENAI_BASE_URL"), config.BaseURL)
	config.HTTPClient = guesthttp.NewClient()
	return &agent{
		client: openai.NewClientWithConfig(config), model: cmp.Or(os.Getenv("OPENAI_MODEL"), "gpt-4o-mini"),
		messages: []openai.ChatCompletionMessage{
			{Role: openai.ChatMessageRoleSystem, Content: "Use the tools for arithmetic. Answer in one sentence."},
			{Role: openai.ChatMessageRoleUser, Content: task},
		},
	}
}

// run asks the model until it answers without calling a tool.
func (a *agent) run(ctx context.Context) error {
	for {
		said, err := a.ask(ctx)
		if err != nil {
			return err
		}
		if len(said.ToolCalls) == 0 {
			guest.TurnEnd(said.Content)
			return nil
		}
		a.messages = append(a.messages, said)
		for _, call := range said.ToolCalls {
			output, err := use(call.Function)
			if err != nil {
				output = err.Error()
			}
			guest.ToolResult(call.ID, output, err != nil)
			a.messages = append(a.messages, openai.ChatCompletionMessage{
				Role: openai.ChatMessageRoleTool, ToolCallID: call.ID, Content: output,
			})
		}
	}
}

// ask streams one answer of the model and says it piece by piece.
func (a *agent) ask(ctx context.Context) (openai.ChatCompletionMessage, error) {
	said := openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant}
	stream, err := a.client.CreateChatCompletionStream(ctx, openai.ChatCompletionRequest{
		Model: a.model, Messages: a.messages, Tools: tools, Stream: true,
		StreamOptions: &openai.StreamOptions{IncludeUsage: true},
	})
	if err != nil {
		return said, err
	}
	defer stream.Close()
	var text strings.Builder
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return said, err
		}
		a.count(piece.Usage)
		for _, choice := range piece.Choices {
			if t := choice.Delta.ReasoningContent; t != "" {
				guest.ThinkingDelta(t)
			}
			if t := choice.Delta.Content; t != "" {
				text.WriteString(t)
				guest.TextDelta(t)
			}
			for _, call := range choice.Delta.ToolCalls {
				said.ToolCalls = written(said.ToolCalls, call)
			}
		}
	}
	for _, call := range said.ToolCalls {
		input := call.Function.Arguments
		if !json.Valid([]byte(input)) {
			input = guest.Quote(input)
		}
		guest.ToolCall(call.ID, call.Function.Name, input)
	}
	said.Content = text.String()
	return said, nil
}

// count adds what one answer used to the session's usage.
func (a *agent) count(u *openai.Usage) {
	if u == nil {
		return
	}
	a.usage.Input += int64(u.PromptTokens)
	a.usage.Output += int64(u.CompletionTokens)
	if d := u.PromptTokensDetails; d != nil {
		a.usage.CacheRead += int64(d.CachedTokens)
	}
	if d := u.CompletionTokensDetails; d != nil {
		a.usage.Thinking += int64(d.ReasoningTokens)
	}
	a.usage.Emit()
}

// written adds a piece of a call to the calls that are being written.
func written(calls []openai.ToolCall, piece openai.ToolCall) []openai.ToolCall {
	at := len(calls) - 1
	if piece.Index != nil {
		at = *piece.Index
	}
	if at < 0 || at >= len(calls) {
		calls = append(calls, openai.ToolCall{ID: piece.ID, Type: openai.ToolTypeFunction, Function: openai.FunctionCall{Name: piece.Function.Name}})
		at = len(calls) - 1
		guest.ToolCallStarted(piece.ID, piece.Function.Name)
	}
	call := &calls[at]
	call.Function.Arguments += piece.Function.Arguments
	guest.ToolCallProgress(call.ID, int64(len(call.Function.Arguments)))
	return calls
}

var tools = []openai.Tool{{Type: openai.ToolTypeFunction, Function: &openai.FunctionDefinition{
	Name: "multiply", Description: "Multiply two whole numbers.",
	Parameters: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]}`),
}}}

// use runs a tool.
func use(call openai.FunctionCall) (string, error) {
	if call.Name != "multiply" {
		return "", fmt.Errorf("there is no tool %q", call.Name)
	}
	var in struct{ A, B int64 }
	if err := json.Unmarshal([]byte(call.Arguments), &in); err != nil {
		return "", fmt.Errorf("the input of multiply cannot be read: %w", err)
	}
	return fmt.Sprint(in.A * in.B), nil
}
