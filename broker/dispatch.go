package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

const (
	// dispatchWait bounds a dispatch whose context has no deadline.
	dispatchWait = 15 * time.Second
	// undeclaredWait is how long nobody may answer for a job's subject before the
	// pool counts as undeclared: an election takes less.
	undeclaredWait = 3 * time.Second
	// withdrawWait bounds taking a record back after a refused publish, which
	// also happens when the caller's context is over.
	withdrawWait = 5 * time.Second
)

// DispatchOptions change how a job is dispatched.
type DispatchOptions struct {
	// AllowUnserved queues the job although no live worker takes from its pool:
	// it then waits for one.
	AllowUnserved bool
	// Traceparent is the W3C trace that the job continues; "" for none.
	Traceparent string
	// Header are further headers of the job. Those that instruct the bus (Nats-…)
	// and Starling's own are left out.
	Header map[string][]string
}

// Dispatched is a delegation that is in the fleet's hands.
type Dispatched struct {
	Record   protocol.Record
	Revision uint64 // of the record
	// Existing says that the delegation had been dispatched before: Record is
	// then the first dispatch's, which may have ended by now. Two dispatches of
	// one job within a millisecond may both say false.
	Existing bool
}

// Dispatch hands a job to the fleet: it asks whether the pool is served, creates
// the delegation's record and queues the job. Dispatching the same delegation
// again is one delegation: it gives the first's record, and queues the job again
// if it may not have been. Blocks until the bus has said what became of it, ctx
// is done, or, without a deadline in ctx, 15 s have passed.
//
// Refusals, after which nothing is queued and no record stays: [ErrPoolUnserved],
// [ErrPoolUndeclared], [ErrNotInitialized], [ErrUnknownCapsule], [ErrQueueFull],
// [ErrLedgerFull], [protocol.ErrJobTooLarge], [protocol.ErrJob], [ErrDenied]. [ErrUnclear]: the
// bus gave no clear answer; dispatch the same delegation again. Others:
// [ErrUnavailable] and [ErrClosed], before anything was written, and
// [protocol.ErrRecord].
//
// Source: docs/protocol.md, section 3.
func (b *Bus) Dispatch(ctx context.Context, job protocol.Job, opts DispatchOptions) (Dispatched, error) {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dispatchWait)
		defer cancel()
	}
	d, err := b.dispatch(ctx, job, opts)
	if err != nil {
		return Dispatched{}, fmt.Errorf("dispatch %s: %w", job.DelegationID, err)
	}
	return d, nil
}

func (b *Bus) dispatch(ctx context.Context, job protocol.Job, opts DispatchOptions) (Dispatched, error) {
	job, refusal := b.admit(ctx, job, opts)
	if refusal != nil {
		// What was dispatched before is not undone by a pool that is idle now.
		if !errors.Is(refusal, ErrPoolUnserved) && !errors.Is(refusal, ErrUnknownCapsule) && !errors.Is(refusal, ErrPoolUndeclared) {
			return Dispatched{}, refusal
		}
		e, err := b.ReadRecord(ctx, job.Spawner.SessionID, job.DelegationID, 0)
		if err != nil {
			return Dispatched{}, refusal
		}
		return b.again(ctx, e, job, opts)
	}
	rec := job.NewRecord(time.Now())
	e, err := b.CreateRecord(ctx, rec)
	var lost *LostError
	switch {
	case errors.As(err, &lost):
		return b.again(ctx, lost.Current, job, opts)
	case errors.Is(err, ErrUnavailable):
		return Dispatched{}, unclear(err)
	case err != nil:
		return Dispatched{}, err
	}
	// The same job may have been dispatched before: its record then holds what
	// this one says, but for the time.
	existing := e.Record.SubmittedAt != rec.SubmittedAt
	e, moved, err := b.queue(ctx, e, job, opts)
	return Dispatched{Record: e.Record, Revision: e.Revision, Existing: existing || moved}, err
}

// admit checks what can be checked before anything is written, and pins the
// digest.
func (b *Bus) admit(ctx context.Context, job protocol.Job, opts DispatchOptions) (protocol.Job, error) {
	if _, err := job.Encode(); err != nil {
		return job, err
	}
	if !opts.AllowUnserved {
		served, err := b.PoolServed(ctx, job.Pool)
		if err != nil {
			return job, err
		}
		if !served {
			if err := b.declared(ctx, job); err != nil {
				return job, err
			}
			return job, fmt.Errorf("%w: no live worker takes from %q: start one with `starling worker --pool %s`, or let the job wait",
				ErrPoolUnserved, job.Pool, job.Pool)
		}
	}
	if job.Capsule.Digest == "" {
		capsule, err := b.ResolveCapsule(ctx, job.Capsule.Name, job.Capsule.Version)
		if err != nil {
			return job, err
		}
		job.Capsule.Digest = capsule.Digest
	}
	return job, nil
}

// declared asks whether the jobs stream has the pool, which nothing but a right
// to publish jobs is needed for: the job's subject, with a condition that never
// holds. Nobody who listens there for a while is [ErrPoolUndeclared], or
// [ErrNotInitialized] when the namespace has no ledger either.
func (b *Bus) declared(ctx context.Context, job protocol.Job) error {
	probe := &nats.Msg{
		Subject: b.ns.JobSubject(job.Pool, job.Lane(), job.TaskID),
		Header:  nats.Header{jetstream.ExpectedStreamHeader: {"none"}},
	}
	ledger := kvStream(b.ns.LedgerBucket())
	for deadline := time.Now().Add(undeclaredWait); ; {
		_, err := b.publish(ctx, probe)
		if !errors.Is(err, errNoResponders) {
			return nil // the stream refused it, or nobody can tell
		}
		if err := b.absent(ctx, ledger); errors.Is(err, ErrNotInitialized) || errors.Is(err, ErrNoJetStream) {
			return err
		}
		if time.Now().After(deadline) {
			return b.silence(ctx, job)
		}
		if err := retry(ctx, err); err != nil {
			return err
		}
	}
}

// silence says why nobody has listened on a job's subject for a while. Either the
// pool is not declared, or the stream has no leader, which is [ErrUnavailable]: the
// loss of a server can leave it so for longer than an election takes. A pool that a
// worker takes from is declared; otherwise the stream is asked for, by those who may.
func (b *Bus) silence(ctx context.Context, job protocol.Job) error {
	leaderless := fmt.Errorf("%w: the jobs stream of namespace %s has no leader now", ErrUnavailable, b.ns)
	if served, err := b.PoolServed(ctx, job.Pool); err != nil || served {
		return leaderless
	}
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := b.streamInfo(asking, b.ns.JobsStream())
	switch {
	case errors.Is(err, ErrClosed):
		return err
	case errors.Is(err, ErrDenied), errors.Is(err, ErrNotInitialized), err == nil && !slices.Contains(b.poolsOf(info.Config.Subjects), job.Pool):
		return b.undeclared(job.Pool)
	}
	return leaderless // it is declared, or the stream is offline
}

func (b *Bus) undeclared(pool string) error {
	return fmt.Errorf("%w: the jobs stream of namespace %s has no pool %q: declare it with `%s --pools %s`; if it is declared, the stream has no leader now",
		ErrPoolUndeclared, b.ns, pool, b.initCommand(), pool)
}

// again answers a dispatch of a delegation that has a record: while that is
// submitted its job may not have been queued, so it is, built from the record.
func (b *Bus) again(ctx context.Context, e Entry, job protocol.Job, opts DispatchOptions) (Dispatched, error) {
	if e.Record.Status == protocol.StatusSubmitted {
		job, err := asRecorded(job, e.Record)
		if err != nil {
			return Dispatched{}, err
		}
		if e, _, err = b.queue(ctx, e, job, opts); err != nil {
			return Dispatched{}, err
		}
	}
	return Dispatched{Record: e.Record, Revision: e.Revision, Existing: true}, nil
}

// asRecorded is the job with what the record says of it.
func asRecorded(job protocol.Job, rec protocol.Record) (protocol.Job, error) {
	message := *job.Message
	message.ContextID = string(rec.ContextID)
	job.Message, job.TaskID, job.Capsule = &message, rec.TaskID, rec.Capsule
	job.Pool, job.Origin = rec.Pool, rec.Origin
	if job.Lane() != rec.Lane {
		return job, fmt.Errorf("%w: delegation %s has origin %s in lane %s", protocol.ErrRecord, rec.DelegationID, rec.Origin, rec.Lane)
	}
	return job, nil
}

// queue publishes the job of a submitted record and says whether the record was
// seen to move on meanwhile: then an earlier publish of the job had landed.
func (b *Bus) queue(ctx context.Context, e Entry, job protocol.Job, opts DispatchOptions) (Entry, bool, error) {
	m, err := b.jobMessage(e, job, opts)
	if err == nil {
		if err = b.publishJob(ctx, m, job); err == nil {
			return e, false, nil
		}
		if errors.Is(err, ErrUnclear) || errors.Is(err, ErrClosed) {
			return Entry{}, false, err
		}
	}
	return b.withdraw(ctx, e, err)
}

// withdraw takes the record of a refused job back. A record that has changed
// since shows that the job is in the fleet's hands after all.
func (b *Bus) withdraw(ctx context.Context, e Entry, refusal error) (Entry, bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWait)
	defer cancel()
	err := b.deleteRecord(ctx, e)
	var lost *LostError
	switch {
	case err == nil:
		return Entry{}, false, refusal
	case errors.As(err, &lost):
		return lost.Current, true, nil
	}
	return Entry{}, false, fmt.Errorf("%w: %v; its record could not be taken back: %w: dispatch the same delegation again",
		ErrUnclear, refusal, err)
}

func (b *Bus) jobMessage(e Entry, job protocol.Job, opts DispatchOptions) (*nats.Msg, error) {
	body, err := job.Encode()
	if err != nil {
		return nil, err
	}
	m := expecting(b.ns.JobSubject(job.Pool, job.Lane(), job.TaskID), 0, body)
	for name, values := range opts.Header {
		if carriesOver(name) {
			m.Header[name] = values
		}
	}
	m.Header[protocol.HeaderLedgerRevision] = []string{strconv.FormatUint(e.Revision, 10)}
	if opts.Traceparent != "" {
		m.Header[protocol.HeaderTraceparent] = []string{oneLine(opts.Traceparent)}
	}
	return m, nil
}

// publishJob queues the job once, however often it is tried: its subject is its
// identity. A refusal is certain only when no try stayed without an answer.
func (b *Bus) publishJob(ctx context.Context, m *nats.Msg, job protocol.Job) error {
	var unanswered error
	silentSince := time.Time{} // since when nobody listens
	for {
		_, err := b.publish(ctx, m)
		switch {
		case err == nil, errors.Is(err, errWrongSequence) && !errors.Is(err, errOvertaken):
			return nil // it is there, from this try or an earlier one
		case errors.Is(err, errNoResponders):
			if silentSince.IsZero() {
				silentSince = time.Now()
			}
			if unanswered == nil && time.Since(silentSince) > undeclaredWait {
				if err := b.silence(ctx, job); !errors.Is(err, ErrUnavailable) {
					return err
				}
				silentSince = time.Now()
			}
		case errors.Is(err, ErrUnavailable):
			unanswered = err
		case errors.Is(err, errWrongSequence), errors.Is(err, errInFlight):
		case errors.Is(err, errAtLimit):
			return fmt.Errorf("%w: %s; or try again later", ErrQueueFull, b.full(b.ns.JobsStream(), err))
		case errors.Is(err, errStreamFull):
			return fmt.Errorf("%w: stream %s: %v: try again later", ErrQueueFull, b.ns.JobsStream(), err)
		case errors.Is(err, errTooLarge):
			return fmt.Errorf("%w: %v", protocol.ErrJobTooLarge, err)
		default:
			return err
		}
		if !errors.Is(err, errNoResponders) {
			silentSince = time.Time{}
		}
		if err := retry(ctx, err); err != nil {
			return unclear(err)
		}
	}
}

func unclear(err error) error {
	return fmt.Errorf("%w: dispatch the same delegation again: %w", ErrUnclear, err)
}
