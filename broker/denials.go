package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// denialMemory is how long a refusal is remembered: longer than any wait for an
// answer that cannot come, short enough that a changed permission is believed.
const denialMemory = 30 * time.Second

// maxDenials bounds the memory; the oldest goes first.
const maxDenials = 256

// denials remembers what the server refused. A refused publish is not an error
// of the call but of the connection: the answer just never comes. The error
// handler of the connection writes here, whoever waits for an answer reads.
type denials struct {
	mu      sync.Mutex
	last    map[string]time.Time                             // "publish <subject>" and "subscribe <subject>"
	waiting map[string]map[*context.CancelCauseFunc]struct{} // guards by the same key
}

// record takes an error of the connection's handler and reports whether it was
// a refusal. The text is the server's: the client gives no other form of it.
func (d *denials) record(err error) bool {
	key, ok := deniedKey(err)
	if !ok {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		d.last = map[string]time.Time{}
	}
	d.last[key] = time.Now()
	if len(d.last) > maxDenials {
		oldest := key
		for k, t := range d.last {
			if t.Before(d.last[oldest]) {
				oldest = k
			}
		}
		delete(d.last, oldest)
	}
	for cancel := range d.waiting[key] {
		(*cancel)(deniedError(key))
	}
	return true
}

// deniedKey reads `… Permissions Violation for Publish to "foo"` and
// `… for Subscription to "foo" using queue "q"`.
func deniedKey(err error) (string, bool) {
	if !isPermission(err) {
		return "", false
	}
	text := err.Error()
	for _, kind := range [...]struct{ mark, verb string }{
		{`Publish to "`, "publish "}, {`Subscription to "`, "subscribe "},
	} {
		if _, rest, ok := strings.Cut(text, kind.mark); ok {
			if subject, _, ok := strings.Cut(rest, `"`); ok {
				return kind.verb + subject, true
			}
		}
	}
	return "", false
}

func deniedError(key string) error {
	return fmt.Errorf("%w: the server's permissions refuse to %s: grant it to this user (docs/configuration.md, Rights)", ErrDenied, key)
}

// denied is an [ErrDenied] when the server refused a publish to subject within
// the last half minute, else nil. Ask it when a publish or a request to subject
// was not answered in time.
func (b *Bus) denied(subject string) error { return b.denials.recent("publish " + subject) }

func (d *denials) recent(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t, ok := d.last[key]; ok && time.Since(t) < denialMemory {
		return deniedError(key)
	}
	return nil
}

// guard is a context for one request to subject that ends with an [ErrDenied]
// as its cause as soon as the server refuses the publish, instead of when time
// is up. Call the function it returns when the answer is there.
func (b *Bus) guard(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	return b.denials.guard(ctx, "publish "+subject)
}

// subscribed flushes and is an [ErrDenied] when the server refused one of the
// subscriptions just made on nc. The refusal comes before the flush's answer,
// and the client keeps it as its last error before any handler runs.
func (b *Bus) subscribed(ctx context.Context, nc *nats.Conn, subjects ...string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		return b.failure(ctx, "", err)
	}
	last, _ := deniedKey(nc.LastError())
	for _, subject := range subjects {
		key := "subscribe " + subject
		if last == key {
			return deniedError(key)
		}
		if err := b.denials.recent(key); err != nil {
			return err
		}
	}
	return nil
}

func (d *denials) guard(ctx context.Context, key string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[string]map[*context.CancelCauseFunc]struct{}{}
	}
	if d.waiting[key] == nil {
		d.waiting[key] = map[*context.CancelCauseFunc]struct{}{}
	}
	d.waiting[key][&cancel] = struct{}{}
	return ctx, func() {
		cancel(context.Canceled)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.waiting[key], &cancel)
		if len(d.waiting[key]) == 0 {
			delete(d.waiting, key)
		}
	}
}

// isPermission reports whether err is a refusal by the server's permissions.
func isPermission(err error) bool {
	return errors.Is(err, nats.ErrPermissionViolation)
}
