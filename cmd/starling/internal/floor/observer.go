package floor

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Noop is a WASI command that does nothing.
//
//go:embed noop.wasm
var Noop []byte

// Observer tells when tasks end: it listens to frames as they pass.
type Observer struct {
	nc *nats.Conn

	mu    sync.Mutex
	ended map[string]chan time.Time // by subject, closed over when the terminal status passed; guarded by mu
}

// Observe listens to a subject of frames.
func Observe(url, subject string) (*Observer, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	o := &Observer{nc: nc, ended: make(map[string]chan time.Time)}
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
		if strings.HasSuffix(m.Header.Get("Nats-Msg-Id"), ".end") {
			o.task(m.Subject) <- time.Now()
		}
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("observe %s: %w", subject, err)
	}
	return o, nil
}

// Ended gives the time at which the task of a subject ended, once.
func (o *Observer) Ended(subject string) <-chan time.Time { return o.task(subject) }

func (o *Observer) task(subject string) chan time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.ended[subject]
	if c == nil {
		c = make(chan time.Time, 1) // one terminal status: the listener never waits
		o.ended[subject] = c
	} else {
		delete(o.ended, subject) // the second of the two who meet here
	}
	return c
}

// Close disconnects.
func (o *Observer) Close() { o.nc.Close() }
