package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"starling/protocol"
)

// recordWait is how long a record that must be there may be missing from reads
// before it counts as expired or withdrawn.
//
// Source: docs/protocol.md, section 6, Claim.
const recordWait = 2 * time.Second

// Entry is a delegation's record and the revision it stands under in the
// ledger. A write names the revision it was read at.
type Entry struct {
	Record   protocol.Record
	Revision uint64
}

// LostError says that another wrote the record first. Current is what stands
// there now; its Record is the zero value when the record was withdrawn. It is
// an [ErrLost].
type LostError struct{ Current Entry }

func (e *LostError) Error() string {
	if e.Current.Record.DelegationID == "" {
		return fmt.Sprintf("%v: it was withdrawn at revision %d", ErrLost, e.Current.Revision)
	}
	return fmt.Sprintf("%v: %s is %s at revision %d, by worker %q", ErrLost,
		e.Current.Record.DelegationID, e.Current.Record.Status, e.Current.Revision, e.Current.Record.WorkerID)
}

// Is makes the error an [ErrLost].
func (e *LostError) Is(target error) bool { return target == ErrLost }

// ReadRecord reads a delegation's record at revision atLeast or newer: an older
// one, or none, is a read that a replica answered late, and is read again for up
// to 2 s. With atLeast 0 it is one read, up to some 100 ms old on a replicated
// ledger. Blocks until the bus answers or ctx is done. Errors: [ErrNoRecord],
// [protocol.ErrRecord], [protocol.ErrName], [ErrDenied], [ErrClosed],
// [ErrUnavailable].
func (b *Bus) ReadRecord(
	ctx context.Context, session protocol.SessionID, delegation protocol.DelegationID, atLeast uint64,
) (Entry, error) {
	err := errors.Join(
		protocol.ValidateName("session_id", string(session)),
		protocol.ValidateDelegationID("delegation_id", delegation),
	)
	if err != nil {
		return Entry{}, err
	}
	e, err := b.readRecord(ctx, protocol.LedgerKey(session, delegation), atLeast)
	if err != nil {
		return Entry{}, fmt.Errorf("read delegation %s: %w", delegation, err)
	}
	if e.Record.DelegationID == "" {
		return Entry{}, fmt.Errorf("%w: %s of session %s: it was never dispatched, was withdrawn, or is older than the ledger keeps",
			ErrNoRecord, delegation, session)
	}
	return e, nil
}

// readRecord is ReadRecord with a zero Record for a withdrawn one (Revision is
// the marker's) and for none (Revision 0).
func (b *Bus) readRecord(ctx context.Context, key string, atLeast uint64) (Entry, error) {
	deadline := time.Now().Add(recordWait)
	for {
		e, err := b.readOnce(ctx, key)
		switch {
		case err != nil && !passes(err):
			return Entry{}, err
		case err != nil:
			deadline = time.Now().Add(recordWait) // the bus was away: that says nothing about the record
		case atLeast == 0, e.Revision >= atLeast && e.Record.DelegationID != "":
			return e, nil
		case time.Now().After(deadline):
			return Entry{Revision: e.Revision}, nil
		}
		if err := retry(ctx, err); err != nil {
			return Entry{}, err
		}
	}
}

func (b *Bus) readOnce(ctx context.Context, key string) (Entry, error) {
	bucket := b.ns.LedgerBucket()
	m, err := b.read(ctx, kvStream(bucket), kvSubject(bucket, key))
	if err != nil || m.seq == 0 || m.deleted() {
		return Entry{Revision: m.seq}, err
	}
	rec, err := recordUnder(key, m.data)
	if err != nil {
		return Entry{}, fmt.Errorf("%w (revision %d)", err, m.seq)
	}
	return Entry{Record: rec, Revision: m.seq}, nil
}

// recordUnder reads what stands under a key of the ledger.
func recordUnder(key string, value []byte) (protocol.Record, error) {
	rec, err := protocol.ParseRecord(value)
	if err == nil && rec.Key() != key {
		return protocol.Record{}, fmt.Errorf("%w: under key %s stands the record of %s", protocol.ErrRecord, key, rec.Key())
	}
	return rec, err
}

// WriteRecord writes a record over the one at revision at, and gives it with its
// new revision. It settles lost answers, refused repeats and late reads as the
// protocol says, so that a write is either this caller's or another's; it blocks
// until that is known or ctx is done ([ErrUnavailable], the write may have
// landed: call it again with the same arguments). A ledger at its limit is waited
// for too, and logged: it has room again when records expire. Errors: [LostError],
// [ErrNoRecord] (expired), [protocol.ErrRecord] (too large for the ledger),
// [ErrDenied], [ErrClosed].
//
// Source: docs/protocol.md, section 6, Writing.
func (b *Bus) WriteRecord(ctx context.Context, rec protocol.Record, at uint64) (Entry, error) {
	e, err := b.writeRecord(ctx, rec, at, false)
	if err != nil {
		return Entry{}, fmt.Errorf("write delegation %s: %w", rec.DelegationID, err)
	}
	return e, nil
}

// writeRecord gives a first record up with [ErrLedgerFull] when the ledger refuses it
// for certain: no try stayed without an answer.
func (b *Bus) writeRecord(ctx context.Context, rec protocol.Record, at uint64, first bool) (Entry, error) {
	body, err := rec.Encode()
	if err != nil {
		return Entry{}, err
	}
	missingSince, unanswered, told := time.Time{}, false, false
	for {
		ack, refusal := b.publish(ctx, expecting(kvSubject(b.ns.LedgerBucket(), rec.Key()), at, body))
		if refusal == nil {
			return Entry{Record: rec, Revision: ack.Sequence}, nil
		}
		if err := undecided(refusal); err != nil {
			return Entry{}, err
		}
		unanswered = unanswered || passes(refusal)
		current, err := b.readOnce(ctx, rec.Key())
		switch {
		case err != nil && !passes(err):
			return Entry{}, err
		case err != nil: // nothing learnt
		case current.Revision > at:
			return ownWrite(current, body)
		case current.Revision == 0 && at > 0 && saysNothingThere(refusal):
			if missingSince.IsZero() {
				missingSince = time.Now()
			}
			if time.Since(missingSince) > recordWait {
				return Entry{}, fmt.Errorf("%w: it expired", ErrNoRecord)
			}
		default:
			missingSince = time.Time{}
		}
		if errors.Is(refusal, errAtLimit) && err == nil {
			err = fmt.Errorf("%w: %s", ErrLedgerFull, b.full(kvStream(b.ns.LedgerBucket()), refusal))
			if first && !unanswered {
				return Entry{}, err
			}
			if !told {
				told = true
				b.log.Warn("the ledger is full: the record is written again until there is room", "delegation_id", string(rec.DelegationID), "error", err)
			}
		}
		if err := retry(ctx, err); err != nil {
			return Entry{}, err
		}
	}
}

// undecided is nil for an answer to a write that leaves open what the ledger
// holds, so that it must be read.
func undecided(err error) error {
	switch {
	case errors.Is(err, errWrongSequence), passes(err), errors.Is(err, errStreamFull):
		return nil
	case errors.Is(err, errTooLarge):
		return fmt.Errorf("%w: %w", protocol.ErrRecord, err)
	}
	return err
}

// saysNothingThere reports whether a refused write says that nothing stands under
// its key. Unlike a read, which any replica answers as of whenever it was cut off,
// that is the leader's word.
func saysNothingThere(err error) bool {
	var wrong *sequenceError
	return errors.As(err, &wrong) && wrong.last == 0
}

// ownWrite tells a write that landed from another's. body is what was written:
// reading it back gives exactly what a reader of the ledger would see.
func ownWrite(current Entry, body []byte) (Entry, error) {
	written, err := protocol.ParseRecord(body)
	if err != nil {
		return Entry{}, err
	}
	if current.Record.DelegationID == "" || !current.Record.Holds(written) {
		return Entry{}, &LostError{Current: current}
	}
	return current, nil
}

// CreateRecord writes the first record of a delegation. Where one exists it
// gives a [LostError] with it, unless that holds what was to be written: then it
// is taken for this caller's, since nothing tells the two apart. Blocks and
// fails as [Bus.WriteRecord] does, but does not wait for room: a ledger at its
// limit is [ErrLedgerFull].
func (b *Bus) CreateRecord(ctx context.Context, rec protocol.Record) (Entry, error) {
	var at uint64
	for {
		e, err := b.writeRecord(ctx, rec, at, true)
		var lost *LostError
		switch {
		case err == nil:
			return e, nil
		case errors.As(err, &lost) && lost.Current.Record.DelegationID == "":
			at = lost.Current.Revision // over the marker of a withdrawn one
		case errors.Is(err, ErrNoRecord):
			at = 0 // the marker expired
		default:
			return Entry{}, fmt.Errorf("create delegation %s: %w", rec.DelegationID, err)
		}
	}
}

// deleteRecord withdraws a record under its revision. A record that changed
// since is a [LostError]; one that is gone is no error.
func (b *Bus) deleteRecord(ctx context.Context, e Entry) error {
	m := expecting(kvSubject(b.ns.LedgerBucket(), e.Record.Key()), e.Revision, nil)
	m.Header.Set(headerKVOperation, "DEL")
	for {
		_, err := b.publish(ctx, m)
		if err == nil {
			return nil
		}
		nothing := saysNothingThere(err)
		if err = undecided(err); err != nil {
			return err
		}
		current, err := b.readOnce(ctx, e.Record.Key())
		switch {
		case err != nil && !passes(err):
			return err
		case err != nil:
		case current.Revision > e.Revision && current.Record.DelegationID == "":
			return nil
		case current.Revision > e.Revision:
			return &LostError{Current: current}
		case current.Revision == 0 && nothing:
			return nil
		}
		if err := retry(ctx, err); err != nil {
			return err
		}
	}
}
