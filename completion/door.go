package completion

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"sync"

	"starling/protocol"
)

// Received is a message that a parent's door took.
type Received struct {
	Class     protocol.Class
	Dialect   string // "message/send" or "SendMessage"
	MessageID protocol.MessageID
	ContextID protocol.ContextID
	Text      string

	// Of a completion.
	DelegationID protocol.DelegationID
	SessionID    protocol.SessionID // the parent's
	Traceparent  string
}

// DoorConfig says whose door it is.
type DoorConfig struct {
	SessionID protocol.SessionID // of the parent; completions for another are refused
	Queue     int                // messages that wait to be read before the door rejects; default 64
	Remember  int                // delegations that are known as taken; default 100,000, the oldest go first
	Logger    *slog.Logger       // default: none
}

// Door takes completions, and messages of peers, for a parent in Go. Mount it
// as an http.Handler; read what it took from [Door.Received]. A delegation is
// handed on once, however often it is posted. It is safe for concurrent use.
//
// Source: docs/protocol.md, section 9, "Receiving side".
type Door struct {
	cfg      DoorConfig
	received chan Received

	mu     sync.Mutex // guards what follows
	taken  map[protocol.DelegationID]bool
	order  []protocol.DelegationID // of taken, oldest first
	closed bool
}

// NewDoor makes a door. Close it when the session stops taking work.
func NewDoor(cfg DoorConfig) (*Door, error) {
	if err := protocol.ValidateName("session_id", string(cfg.SessionID)); err != nil {
		return nil, fmt.Errorf("door: %w", err)
	}
	if cfg.Queue == 0 {
		cfg.Queue = 64
	}
	if cfg.Remember == 0 {
		cfg.Remember = 100_000
	}
	if cfg.Queue < 0 || cfg.Remember < 0 {
		return nil, errors.New("door: queue and remember are positive")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Door{
		cfg: cfg, taken: make(map[protocol.DelegationID]bool),
		// The capacity is the queue: a full one is told to the sender.
		received: make(chan Received, cfg.Queue),
	}, nil
}

// Received gives what the door took, in order. It is closed by [Door.Close],
// after what was still queued.
func (d *Door) Received() <-chan Received { return d.received }

// Close makes the door reject whatever comes from now on. Idempotent.
func (d *Door) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		close(d.received)
	}
}

// rpcError is a JSON-RPC error and the HTTP status that goes with it.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	status  int
}

// ServeHTTP answers one JSON-RPC request.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, got, failure := d.read(w, r)
	answer := map[string]any{"jsonrpc": "2.0", "id": id}
	status := http.StatusOK
	if failure != nil {
		answer["error"] = failure
		if failure.status != 0 {
			status = failure.status
		}
	} else {
		answer["result"] = result(got, d.take(got))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		d.cfg.Logger.DebugContext(r.Context(), "door's answer was not read", "error", err)
	}
}

// read parses a request as far as it can be trusted: the id is null until the
// body is known to be JSON.
func (d *Door) read(w http.ResponseWriter, r *http.Request) (id json.RawMessage, got Received, failure *rpcError) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, got, &rpcError{codeInvalidRequest, "this door takes POST", http.StatusMethodNotAllowed}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, got, &rpcError{codeContentType, "the content type is application/json", http.StatusUnsupportedMediaType}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxAnswerBytes))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, got, &rpcError{codeInvalidRequest, fmt.Sprintf("the body is over %d bytes", MaxAnswerBytes), http.StatusRequestEntityTooLarge}
	}
	if err != nil {
		return nil, got, &rpcError{codeParse, "the body broke off", http.StatusBadRequest}
	}
	var call struct {
		members map[string]json.RawMessage
		method  *string
		params  map[string]json.RawMessage
	}
	if !json.Valid(body) {
		return nil, got, &rpcError{Code: codeParse, Message: "the body is not JSON"}
	}
	if json.Unmarshal(body, &call.members) != nil || call.members == nil {
		return nil, got, &rpcError{Code: codeInvalidRequest, Message: "the request is one JSON-RPC object"}
	}
	id = validID(call.members["id"])
	if string(call.members["jsonrpc"]) != `"2.0"` || json.Unmarshal(call.members["method"], &call.method) != nil || call.method == nil {
		return id, got, &rpcError{Code: codeInvalidRequest, Message: `the request says "jsonrpc":"2.0" and a method`}
	}
	if *call.method != "message/send" && *call.method != "SendMessage" {
		return id, got, &rpcError{Code: codeMethodNotFound, Message: "this door takes message/send and SendMessage"}
	}
	if json.Unmarshal(call.members["params"], &call.params) != nil || call.params["message"] == nil {
		return id, got, &rpcError{Code: codeInvalidParams, Message: "params.message is missing"}
	}
	m, err := protocol.ParseMessage(call.params["message"])
	if err != nil {
		return id, got, &rpcError{Code: codeInvalidParams, Message: err.Error()}
	}
	got = Received{
		Class:   protocol.Classify(r.Header.Get(protocol.HeaderTaskOrigin), r.Header.Get(protocol.HeaderTaskTrust)),
		Dialect: *call.method, MessageID: protocol.MessageID(m.ID), ContextID: protocol.ContextID(m.ContextID),
		Text: protocol.MessageText(m), Traceparent: r.Header.Get(protocol.HeaderTraceparent),
	}
	if got.Class.Origin == protocol.OriginCompletion {
		failure = d.address(&got, r.Header)
	}
	return id, got, failure
}

// validID is the request's id, or null for what JSON-RPC does not allow.
func validID(raw json.RawMessage) json.RawMessage {
	if len(raw) > 0 && len(raw) <= 256 && strings.ContainsAny(string(raw[:1]), `"-0123456789`) {
		return raw
	}
	return nil
}

// address checks that a completion is for this session and names a delegation.
func (d *Door) address(got *Received, h http.Header) *rpcError {
	got.SessionID = protocol.SessionID(h.Get(protocol.HeaderCompletionSession))
	got.DelegationID = protocol.DelegationID(h.Get(protocol.HeaderDelegationID))
	if got.SessionID != d.cfg.SessionID {
		addressee := protocol.Bound(string(got.SessionID))
		if addressee == "" {
			addressee = "<unaddressed>"
		}
		return &rpcError{Code: codeNotThisSession, Message: "completion is addressed to session " + addressee +
			", which is not the session running here"}
	}
	if err := protocol.ValidateDelegationID(protocol.HeaderDelegationID, got.DelegationID); err != nil {
		return &rpcError{Code: codeInvalidParams, Message: err.Error()}
	}
	return nil
}

// take queues a message and reports whether it was taken. A delegation that was
// taken before is taken again without being handed on.
func (d *Door) take(got Received) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	completion := got.Class.Origin == protocol.OriginCompletion
	if completion && d.taken[got.DelegationID] {
		return true
	}
	if d.closed {
		return false
	}
	select {
	case d.received <- got:
	default:
		return false
	}
	if completion {
		d.remember(got.DelegationID)
	}
	return true
}

func (d *Door) remember(id protocol.DelegationID) {
	if len(d.order) >= d.cfg.Remember {
		delete(d.taken, d.order[0])
		d.order = d.order[1:]
	}
	d.taken[id] = true
	d.order = append(d.order, id)
}

// result is the task that answers a message, in the caller's dialect.
func result(got Received, taken bool) any {
	task := map[string]any{"id": protocol.NewTaskID(), "contextId": got.ContextID}
	if got.Dialect == "SendMessage" {
		task["status"] = map[string]any{"state": map[bool]string{true: "TASK_STATE_SUBMITTED", false: "TASK_STATE_REJECTED"}[taken]}
		return map[string]any{"task": task}
	}
	task["kind"] = "task"
	task["status"] = map[string]any{"state": map[bool]string{true: "submitted", false: "rejected"}[taken]}
	return task
}
