package completion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"starling/protocol"
)

// MaxAnswerBytes bounds the answer of a door, and the body that a door takes.
const MaxAnswerBytes = 1 << 20

// Config says how a [Bridge] posts.
type Config struct {
	Timeout time.Duration // of one post, answer included; default 30 s
	Tries   int           // posts per completion; default 2
	Backoff time.Duration // before the second try, doubled for each later one; default 1 s
	Rule    AddressRule
	Logger  *slog.Logger // default: none
}

// Validate fills in the defaults and joins all problems.
func (c *Config) Validate() error {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Tries == 0 {
		c.Tries = 2
	}
	if c.Backoff == 0 {
		c.Backoff = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var problems []error
	if c.Timeout < 0 {
		problems = append(problems, fmt.Errorf("completion timeout is %s: it is positive", c.Timeout))
	}
	if c.Tries < 1 {
		problems = append(problems, fmt.Errorf("completion tries is %d: it is at least 1", c.Tries))
	}
	if c.Backoff < 0 {
		problems = append(problems, fmt.Errorf("completion backoff is %s: it is positive", c.Backoff))
	}
	return errors.Join(problems...)
}

// Bridge tells parents at their doors that a delegation ended. It is safe for
// concurrent use.
type Bridge struct {
	cfg    Config
	client *http.Client

	mu       sync.Mutex
	dialects map[string]dialect // by door; guarded by mu
}

// maxRememberedDoors bounds the memory of dialects; past it the memory starts
// anew, which costs a door of 1.0 one more refused post.
const maxRememberedDoors = 4096

// NewBridge makes a bridge. Close it when no [Bridge.Deliver] runs any more.
func NewBridge(cfg Config) (*Bridge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Bridge{
		cfg: cfg,
		client: &http.Client{
			Transport: &http.Transport{
				// No proxy: it would dial for us, past the address rule.
				Proxy: nil, DialContext: cfg.Rule.dial, DisableCompression: true,
				TLSHandshakeTimeout: cfg.Timeout, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
				MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		dialects: make(map[string]dialect),
	}, nil
}

// Close drops idle connections.
func (b *Bridge) Close() { b.client.CloseIdleConnections() }

// Deliver posts the outcome to the handle's door and blocks until the door took
// it, every try failed (at most Tries times Timeout and the waits between) or
// ctx is done. The error's text is what delivery_error says: bounded, and
// without the address's secrets. traceparent may be empty.
//
// A handle without an address is a bug of the caller's and an error.
func (b *Bridge) Deliver(ctx context.Context, handle protocol.Spawner, o protocol.Outcome, traceparent string) error {
	log := b.cfg.Logger.With("delegation_id", o.DelegationID)
	return b.DeliverWhile(ctx, log, handle, o, traceparent, func(context.Context) error { return nil })
}

// DeliverWhile is Deliver that asks holds before each try but the first: its error
// ends the delivery and is the result. Somebody else may tell the parent meanwhile.
// log is the job's, with its ids: it gets the first failure.
func (b *Bridge) DeliverWhile(
	ctx context.Context, log *slog.Logger, handle protocol.Spawner, o protocol.Outcome, traceparent string,
	holds func(context.Context) error,
) error {
	door, err := parseDoor(handle.URL)
	if err != nil {
		return err
	}
	wait := b.cfg.Backoff
	for try := 1; ; try++ {
		err := b.post(ctx, door, handle, o, traceparent)
		if err == nil {
			return nil
		}
		err = redact(err, door)
		if try == b.cfg.Tries || errors.Is(err, ErrAddress) {
			return err
		}
		if try == 1 {
			log.WarnContext(ctx, "door did not take the completion, trying again", "door", door.Host, "error", err.Error())
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			wait *= 2
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		if lost := holds(ctx); lost != nil {
			return lost
		}
	}
}

// CheckURL says whether a door could have this URL at all: http or https, with a
// host and, where it names one, a port that can be. The error does not repeat it.
func CheckURL(address string) error {
	_, err := parseDoor(address)
	return err
}

// parseDoor reads a door's address. The error does not repeat it.
func parseDoor(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the door's address is no http or https URL")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, errors.New("the door's address has a port that cannot be: it is 1 to 65535, or left out for the scheme's own")
		}
	}
	return u, nil
}

// post sends the news in the dialect that the door last took, and once in the
// other one when it says that it does not speak that. When both are refused the
// first refusal counts.
func (b *Bridge) post(ctx context.Context, door *url.URL, handle protocol.Spawner, o protocol.Outcome, traceparent string) error {
	d := b.dialectOf(door)
	first := b.send(ctx, d, door, handle, o, traceparent)
	if !otherDialect(first) {
		return first
	}
	if err := b.send(ctx, d.other(), door, handle, o, traceparent); err != nil {
		return first
	}
	b.remember(door, d.other())
	return nil
}

func (b *Bridge) dialectOf(door *url.URL) dialect {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dialects[door.String()]
}

func (b *Bridge) remember(door *url.URL, d dialect) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.dialects) >= maxRememberedDoors {
		clear(b.dialects)
	}
	b.dialects[door.String()] = d
}

// send makes one post and reads its answer.
func (b *Bridge) send(ctx context.Context, d dialect, door *url.URL, handle protocol.Spawner, o protocol.Outcome, traceparent string) error {
	body, err := d.request(handle, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.Timeout,
		fmt.Errorf("the door did not answer within %s", b.cfg.Timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, door.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range map[string]string{
		protocol.HeaderTaskOrigin: string(protocol.OriginCompletion), protocol.HeaderTaskTrust: string(handle.Trust),
		protocol.HeaderDelegationID: string(o.DelegationID), protocol.HeaderCompletionSession: string(handle.SessionID),
	} {
		req.Header.Set(name, value)
	}
	if protocol.ValidTraceparent(traceparent) {
		req.Header.Set(protocol.HeaderTraceparent, traceparent)
	}
	if d == dialect10 {
		req.Header.Set(protocol.HeaderA2AVersion, protocol.A2AVersion)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return cause(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing to learn from it
	answer, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswerBytes+1))
	if err != nil {
		return fmt.Errorf("the door's answer broke off: %w", cause(ctx, err))
	}
	if len(answer) > MaxAnswerBytes {
		return fmt.Errorf("the door's answer is over %d bytes", MaxAnswerBytes)
	}
	return d.readAnswer(resp.StatusCode, answer)
}

// cause unwraps what net/http puts around an error, for that repeats the URL,
// and prefers why the context ended.
func cause(ctx context.Context, err error) error {
	var connect *connectError
	why := context.Cause(ctx)
	switch {
	case errors.As(err, &connect) && why != nil:
		return &connectError{address: connect.address, err: why}
	case errors.As(err, &connect):
		return connect
	case why != nil:
		return why
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return &transportError{err}
}

// transportError is what net/http says of a connection; it may quote the door.
type transportError struct{ error }

func (e *transportError) Unwrap() error { return e.error }
