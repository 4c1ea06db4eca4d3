package main

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/protocol"
)

// mirrored is what the bus's mirror said, by delegation. It is core NATS: what is
// said while the connection is down is not heard.
type mirrored struct {
	mu       sync.Mutex
	outcomes map[protocol.DelegationID]map[string]bool // distinct outcomes, deliveries aside
	changed  chan struct{}                             // closed and replaced at each outcome
}

func listenMirror(t *testing.T, url string) *mirrored {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	m := &mirrored{outcomes: make(map[protocol.DelegationID]map[string]bool), changed: make(chan struct{})}
	sub, err := nc.Subscribe("starling.delegations.>", func(msg *nats.Msg) {
		if rec, err := protocol.ParseRecord(msg.Data); err == nil && rec.Status.Final() {
			m.hear(rec)
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe(); nc.Close() })
	return m
}

func (m *mirrored) hear(rec protocol.Record) {
	story := *rec.Outcome
	story.Delivered, story.DeliveryError = false, ""
	text, _ := json.Marshal(story)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.outcomes[rec.DelegationID] == nil {
		m.outcomes[rec.DelegationID] = make(map[string]bool)
	}
	m.outcomes[rec.DelegationID][string(text)] = true
	close(m.changed)
	m.changed = make(chan struct{})
}

// stories is how many different outcomes a delegation had.
func (m *mirrored) stories(id protocol.DelegationID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.outcomes[id])
}

// wait blocks until enough holds, ctx is done or the time is over, and reports
// whether it holds.
func (m *mirrored) wait(ctx context.Context, within time.Duration, enough func() bool) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		m.mu.Lock()
		done, changed := enough(), m.changed
		m.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// waitFinal blocks until n delegations have an outcome.
func (m *mirrored) waitFinal(t *testing.T, n int) {
	t.Helper()
	have := 0
	if !m.wait(t.Context(), 4*time.Minute, func() bool { have = len(m.outcomes); return have >= n }) {
		t.Fatalf("%d delegations have an outcome, want %d", have, n)
	}
}

// waitOutcome blocks until a delegation has an outcome, at most within.
func (m *mirrored) waitOutcome(ctx context.Context, id protocol.DelegationID, within time.Duration) bool {
	return m.wait(ctx, within, func() bool { return len(m.outcomes[id]) > 0 })
}
