package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// parent delegates one task with nothing but a NATS client and an HTTP server:
// docs/parents.md shows it.
func parent(ctx context.Context, natsURL, text string, say func(format string, args ...any)) error {
	id := func(prefix string) string {
		return prefix + strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", "")
	}
	session, delegation, task, contextID := id("ses_"), id("dlg_"), id("tsk_"), id("ctx_")

	// The door: one POST tells that the delegation ended.
	told := make(chan string, 2)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		say("%s %s %s %s", r.Header.Get("x-murmur-task-origin"), r.Header.Get("x-murmur-task-trust"),
			r.Header.Get("x-murmur-delegation-id"), r.Header.Get("x-murmur-completion-session"))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"result":{"status":{"state":"submitted"}}}`)
		told <- string(body)
	})}
	go func() { _ = server.Serve(listener) }() // ends with Close
	defer func() { _ = server.Close() }()

	nc, err := nats.Connect(natsURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	frames, err := nc.SubscribeSync("starling.tasks." + task)
	if err != nil {
		return err
	}
	outcomes, err := nc.SubscribeSync("starling.delegations." + session + "." + delegation)
	if err != nil {
		return err
	}
	job, err := json.Marshal(map[string]any{
		"delegation_id": delegation, "task_id": task, "origin": "user",
		"capsule": map[string]any{"name": "hello", "version": "1.0.0"},
		"message": map[string]any{"messageId": id("msg_"), "contextId": contextID, "role": "ROLE_USER", "parts": []any{map[string]any{"text": text}}},
		"spawner": map[string]any{"session_id": session, "context_id": contextID, "delegation_id": delegation, "url": "http://" + listener.Addr().String(), "trust": "trusted"},
	})
	if err != nil {
		return err
	}
	m := nats.NewMsg("starling.jobs.default.user." + task)
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", "0")
	m.Data = job
	if answer, err := nc.RequestMsgWithContext(ctx, m); err != nil || strings.Contains(string(answer.Data), `"error"`) {
		return fmt.Errorf("the job was not queued: %v", err)
	}
	for {
		frame, err := frames.NextMsgWithContext(ctx)
		if err != nil {
			return err
		}
		say("frame %s %s", frame.Header.Get("Starling-Frame"), frame.Data)
		if strings.HasSuffix(frame.Header.Get("Nats-Msg-Id"), ".end") {
			break
		}
	}
	say("told %s", <-told)
	for {
		record, err := outcomes.NextMsgWithContext(ctx)
		if err != nil {
			return err
		}
		if strings.Contains(string(record.Data), `"delivered":true`) {
			say("outcome %s", record.Data)
			return nil
		}
	}
}
