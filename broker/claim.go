package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"starling/protocol"
)

// ClaimKind says what became of a claim, and so what is to be done.
type ClaimKind int

// The kinds.
const (
	Claimed   ClaimKind = iota + 1 // it was submitted and is this worker's now: run it
	TakenOver                      // it was a lost worker's and is this worker's now: run it
	Final                          // it has its outcome: complete it from the record
	Earlier                        // a later delivery holds or held it: drop this one, without ack or nak
	Spent                          // it is a lost worker's and no attempt is left: report it crashed
)

// String names the kind.
func (k ClaimKind) String() string {
	names := [...]string{"none", "claimed", "taken over", "final", "earlier", "spent"}
	if k < 0 || int(k) >= len(names) {
		return "unknown"
	}
	return names[k]
}

// Claim is the record as it stands after a claim. With Claimed and TakenOver it
// is the fence: whatever the worker writes names its revision, and fails once
// another has taken over.
type Claim struct {
	Entry
	Prior protocol.Record // as it was before the claim; that of the entry where nothing was written
	Kind  ClaimKind
}

// DeadJobError says that a job cannot run and why: it is a dead letter.
type DeadJobError struct {
	Reason protocol.DeadLetterReason
	Detail string
}

func (e *DeadJobError) Error() string { return "dead letter (" + string(e.Reason) + "): " + e.Detail }

// Claim makes the job this worker's, by writing its record as working. begin
// fills in what the worker knows (worker, session, work directory, start): it
// gets the record with status, attempt and delivery set, and may be called more
// than once, each time for a new attempt number. A job without a record, whose
// parent published it by hand, gets one; its digest is pinned from the index, or
// stays empty when the index has no such capsule, or no entry that can be read: the
// worker then refuses it.
//
// Blocks until the ledger says whose the job is, or ctx is done
// ([ErrUnavailable]: the claim may have landed; claiming again with the same
// delivery then gives Earlier, so let the delivery run out). Errors beside it:
// [DeadJobError], [ErrLedgerFull] (of a job without a record), [protocol.ErrRecord],
// [ErrDenied], [ErrClosed].
//
// Source: docs/protocol.md, section 6, Claim.
func (b *Bus) Claim(
	ctx context.Context, d *Delivery, job protocol.Job, begin func(protocol.Record) protocol.Record,
) (Claim, error) {
	if err := agreesWithSubject(d, job); err != nil {
		return Claim{}, err
	}
	e, err := b.recordOf(ctx, d, job)
	for err == nil {
		if member := e.Record.Disagrees(job); member != "" {
			return Claim{}, &DeadJobError{
				protocol.DeadMismatch,
				fmt.Sprintf("the job's %s is not that of its record in the ledger", member),
			}
		}
		kind := claimKind(e.Record, d.mark, job.MaxAttempts)
		if kind != Claimed && kind != TakenOver {
			return Claim{Entry: e, Prior: e.Record, Kind: kind}, nil
		}
		next := e.Record
		next.Status, next.Attempt, next.Delivery = protocol.StatusWorking, e.Record.Attempt+1, d.mark
		var mine Entry
		mine, err = b.WriteRecord(ctx, begin(next), e.Revision)
		if err == nil {
			return Claim{Entry: mine, Prior: e.Record, Kind: kind}, nil
		}
		var lost *LostError
		switch {
		case errors.As(err, &lost) && lost.Current.Record.DelegationID == "":
			return Claim{}, noRecord(job)
		case errors.Is(err, ErrNoRecord):
			return Claim{}, b.confirmGone(ctx, job, e.Revision)
		case errors.As(err, &lost): // look again at what is there now
			e, err = lost.Current, nil
		}
	}
	return Claim{}, err
}

// claimKind is the table of section 6.
func claimKind(rec protocol.Record, mark protocol.DeliveryMark, maxAttempts int) ClaimKind {
	switch {
	case rec.Status.Final() && rec.Delivery.After(mark):
		return Earlier // the later delivery completes it, or the one after that
	case rec.Status.Final():
		return Final
	case rec.Status == protocol.StatusSubmitted:
		return Claimed
	case !mark.After(rec.Delivery):
		return Earlier
	case !rec.AttemptsLeft(maxAttempts):
		return Spent
	}
	return TakenOver
}

// agreesWithSubject compares a job with where it waited.
func agreesWithSubject(d *Delivery, job protocol.Job) error {
	place, err := d.Place()
	if err != nil {
		return &DeadJobError{protocol.DeadMismatch, err.Error()}
	}
	var differ []string
	for _, m := range []struct {
		name string
		same bool
	}{
		{"task_id", place.Task == job.TaskID}, {"pool", place.Pool == job.Pool}, {"lane", place.Lane == job.Lane()},
	} {
		if !m.same {
			differ = append(differ, m.name)
		}
	}
	if differ == nil {
		return nil
	}
	return &DeadJobError{
		protocol.DeadMismatch,
		fmt.Sprintf("the job's %s is not that of its subject %s", strings.Join(differ, ", "), d.msg.Subject),
	}
}

func noRecord(job protocol.Job) error {
	return &DeadJobError{
		protocol.DeadNoRecord,
		fmt.Sprintf("the ledger has no record of %s: it was withdrawn, or is older than the ledger keeps", job.DelegationID),
	}
}

// confirmGone makes sure that the record of a job is gone before the job becomes a
// dead letter. A replica that is cut off from the others, or comes back, answers
// reads as of then for as long as that lasts. So what was read is written once more,
// under its revision: a record as it is, and the marker of a withdrawn one where there
// is none. That takes a majority, and is refused where another write came after it:
// then it is [ErrUnavailable], and the claim can be tried again. atLeast is the least
// revision that the job may see.
func (b *Bus) confirmGone(ctx context.Context, job protocol.Job, atLeast uint64) error {
	key := protocol.LedgerKey(job.Spawner.SessionID, job.DelegationID)
	seen, err := b.readOnce(ctx, key)
	if err != nil {
		return err
	}
	there := seen.Record.DelegationID != ""
	switch {
	case seen.Revision >= atLeast && there:
		return fmt.Errorf("%w: the record of %s was not read in time", ErrUnavailable, job.DelegationID)
	case seen.Revision >= atLeast:
		return noRecord(job) // the marker came after the record
	}
	m := expecting(kvSubject(b.ns.LedgerBucket(), key), seen.Revision, nil)
	if there {
		if m.Data, err = seen.Record.Encode(); err != nil {
			return err
		}
	} else {
		m.Header.Set(headerKVOperation, "DEL")
	}
	_, err = b.publish(ctx, m)
	switch {
	case err == nil:
		return noRecord(job)
	case errors.Is(err, errWrongSequence):
		return fmt.Errorf("%w: the record of %s is read from a replica that is behind", ErrUnavailable, job.DelegationID)
	case undecided(err) == nil:
		return fmt.Errorf("%w: nobody can tell whether the record of %s is gone: %v", ErrUnavailable, job.DelegationID, err)
	}
	return err
}

// recordOf reads the record of a job, or makes one for a job that came without.
func (b *Bus) recordOf(ctx context.Context, d *Delivery, job protocol.Job) (Entry, error) {
	revision, dispatched := d.LedgerRevision()
	e, err := b.ReadRecord(ctx, job.Spawner.SessionID, job.DelegationID, revision)
	switch {
	case !errors.Is(err, ErrNoRecord):
		return e, err
	case dispatched:
		return Entry{}, b.confirmGone(ctx, job, revision)
	}
	rec := job.NewRecord(time.Now())
	if rec.Capsule.Digest == "" {
		capsule, err := b.ResolveCapsule(ctx, rec.Capsule.Name, rec.Capsule.Version)
		if err != nil && !errors.Is(err, ErrUnknownCapsule) && !errors.Is(err, protocol.ErrCapsuleEntry) {
			return Entry{}, err
		}
		rec.Capsule.Digest = capsule.Digest
	}
	e, err = b.CreateRecord(ctx, rec)
	var lost *LostError
	if errors.As(err, &lost) { // the read was late, or another worker was faster
		return lost.Current, nil
	}
	return e, err
}

// StillMine reads whether a claim, at the revision that this worker last wrote,
// still holds. Ask it after an ack wait without a confirmed [Delivery.Extend]. On
// a replicated ledger the read may be some 100 ms old, so true is no promise;
// the fence itself is the revision of the next write. Errors as [Bus.ReadRecord],
// without [ErrNoRecord]: a claim on a record that is gone does not hold.
func (b *Bus) StillMine(ctx context.Context, e Entry) (bool, error) {
	current, err := b.ReadRecord(ctx, e.Record.Spawner.SessionID, e.Record.DelegationID, e.Revision)
	if errors.Is(err, ErrNoRecord) {
		return false, nil
	}
	return err == nil && current.Revision == e.Revision, err
}
