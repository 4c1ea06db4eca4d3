package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// lateRead is after how long a record is read once more: a read from a replica
// may be that old, and the mirror told the newer one before we listened.
const lateRead = 300 * time.Millisecond

// DelegationWatch tells how a delegation's record changes: the bus mirrors every
// write. What it tells is read from the ledger, for others may be able to publish
// where the mirror does. One goroutine uses it. Whoever opened it closes it.
type DelegationWatch struct {
	bus        *Bus
	session    protocol.SessionID
	delegation protocol.DelegationID
	sub        *nats.Subscription
	conn       uint64    // reconnects at the last read
	readAt     time.Time // when to read again; zero: no need
	until      time.Time // the mirror told something: a read that is older is repeated until then
	last       uint64    // revision that was told
}

// WatchDelegation begins to listen. The delegation may not exist yet. Errors:
// [protocol.ErrName], [ErrDenied], [ErrClosed], [ErrUnavailable].
func (b *Bus) WatchDelegation(
	ctx context.Context, session protocol.SessionID, delegation protocol.DelegationID,
) (*DelegationWatch, error) {
	err := errors.Join(
		protocol.ValidateName("session_id", string(session)),
		protocol.ValidateDelegationID("delegation_id", delegation),
	)
	if err != nil {
		return nil, err
	}
	subject := b.ns.DelegationSubject(session, delegation)
	sub, err := b.nc.SubscribeSync(subject)
	if err != nil {
		return nil, fmt.Errorf("watch delegation %s: %w", delegation, b.failure(ctx, subject, err))
	}
	w := &DelegationWatch{bus: b, session: session, delegation: delegation, sub: sub, readAt: time.Now()}
	if err := b.subscribed(ctx, b.nc, subject); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch delegation %s: %w", delegation, err)
	}
	return w, nil
}

// Next waits for a record that is newer than the last one told; the first is the
// one that stands. A withdrawn record is [ErrNoRecord]; after it Next may be
// called again. When ctx is done it gives its cause as [ErrUnavailable]. Others:
// [ErrDenied] (this user may not read the record), [ErrClosed],
// [protocol.ErrRecord].
func (w *DelegationWatch) Next(ctx context.Context) (Entry, error) {
	for {
		e, err := w.step(ctx)
		switch {
		case err != nil && passes(err) && ctx.Err() == nil:
			if err := retry(ctx, err); err != nil {
				return Entry{}, err
			}
		case err != nil && ctx.Err() != nil && !errors.Is(err, ErrDenied):
			return Entry{}, overdue(ctx, err)
		case err != nil:
			return Entry{}, err
		case e.Revision > w.last:
			w.last = e.Revision
			if e.Record.DelegationID == "" {
				return Entry{}, fmt.Errorf("%w: %s was withdrawn", ErrNoRecord, w.delegation)
			}
			return e, nil
		}
	}
}

// Close ends the watch. It does not wait for the bus.
func (w *DelegationWatch) Close() { _ = w.sub.Unsubscribe() } // fails only when the connection is gone

// step reads the record when it must, else waits for the mirror.
func (w *DelegationWatch) step(ctx context.Context) (Entry, error) {
	if now := time.Now(); !w.readAt.IsZero() && !now.Before(w.readAt) {
		conn := w.bus.nc.Stats().Reconnects
		e, err := w.bus.readOnce(ctx, protocol.LedgerKey(w.session, w.delegation))
		if err != nil {
			return Entry{}, err
		}
		if w.readAt = (time.Time{}); w.conn != conn || w.last == 0 && e.Revision > 0 {
			w.readAt = now.Add(lateRead)
		}
		if e.Revision <= w.last && now.Before(w.until) { // a replica that is behind the mirror
			w.readAt = now.Add(tryAgain)
		}
		w.conn = conn
		return e, nil
	}
	wait := time.Second // to look at the connection
	if !w.readAt.IsZero() {
		wait = time.Until(w.readAt)
	}
	try, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m, err := w.sub.NextMsgWithContext(try)
	switch {
	case err == nil:
		if revision, bad := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); bad == nil && revision <= w.last {
			return Entry{}, nil // it was told
		}
		w.readAt, w.until = time.Now(), time.Now().Add(recordWait)
		return Entry{}, nil
	case ctx.Err() == nil && try.Err() != nil:
		if w.bus.nc.Stats().Reconnects != w.conn && w.readAt.IsZero() {
			w.readAt = time.Now() // what was told meanwhile was not heard
		}
		return Entry{}, nil
	}
	return Entry{}, w.bus.failure(ctx, w.sub.Subject, err)
}
