package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

const (
	// cancelSilence is how long no worker may listen for a cancel before the
	// canceller writes over its claim.
	//
	// Source: docs/protocol.md, section 10.
	cancelSilence = 3 * time.Second
	// cancelAnswer is how long one request waits for the guest to be gone; then
	// the record is looked at and the request repeated.
	cancelAnswer = 2 * time.Second
	// cancelTerminal bounds the terminal status that a canceller writes if it may:
	// otherwise whoever takes the job does.
	cancelTerminal = 3 * time.Second
)

// CancelListener takes cancels for one delegation that this worker runs.
type CancelListener struct {
	bus        *Bus
	delegation protocol.DelegationID
	sub        *nats.Subscription
	cancel     context.CancelFunc
	fn         func(context.Context) protocol.CancelAnswer

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// ListenCancel listens for cancels of a delegation. Call it before the claim:
// the server then knows of it before anybody can read that the delegation is
// working, since both go over one connection. For every request that names the
// delegation fn is called, on a goroutine of the subscription, one after the
// other; it blocks until the guest is gone and the outcome is written, and what
// it returns is the answer, unless its status is empty. Its context ends with
// Close, which waits for the answer under way.
func (b *Bus) ListenCancel(
	session protocol.SessionID, delegation protocol.DelegationID, fn func(context.Context) protocol.CancelAnswer,
) (*CancelListener, error) {
	subject := b.ns.CancelSubject(session, delegation)
	ctx, cancel := context.WithCancel(context.Background()) // ended by Close
	l := &CancelListener{bus: b, delegation: delegation, cancel: cancel, fn: fn}
	var err error
	if l.sub, err = b.nc.Subscribe(subject, func(m *nats.Msg) { l.take(ctx, m) }); err != nil {
		cancel()
		return nil, fmt.Errorf("listen for a cancel of %s: %w", delegation, b.failure(ctx, subject, err))
	}
	return l, nil
}

// Close stops listening and waits for fn to return. It is idempotent.
func (l *CancelListener) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	_ = l.sub.Unsubscribe() // fails only when the connection is gone
	l.running.Wait()
}

func (l *CancelListener) take(ctx context.Context, m *nats.Msg) {
	// Whoever may make consumers can have any message sent here: only a body
	// that names the delegation is a cancel.
	if _, err := protocol.ParseCancelRequest(m.Data, l.delegation); err != nil {
		l.bus.log.Debug("cancel ignored", "subject", m.Subject, "error", err)
		return
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.running.Add(1)
	l.mu.Unlock()
	defer l.running.Done()
	answer := l.fn(ctx)
	if m.Reply == "" || answer.Status == "" {
		return
	}
	body, err := json.Marshal(answer)
	if err == nil {
		err = l.bus.nc.Publish(m.Reply, body)
	}
	if err != nil {
		l.bus.log.Warn("cancel not answered", "subject", m.Subject, "error", err)
	}
}

// CancelOptions change how a delegation is canceled.
type CancelOptions struct {
	// RemoveJob also takes a job that was still queued out of the stream. It
	// needs an operator's rights.
	RemoveJob bool
}

// CancelResult is how a canceled delegation stands.
type CancelResult struct {
	Entry
	// GuestMayRun says that no worker answered: the outcome was written over its
	// claim, and if it is alive its guest runs until it notices.
	GuestMayRun bool
}

// Cancel ends a delegation, whose outcome is then terminated. One that is queued
// never starts. One that runs is ended by its worker, and Cancel returns when
// the guest is gone. When no worker listens for 3 s the outcome is written over
// its claim. Blocks for as long as the worker needs, or until ctx is done
// ([ErrUnavailable]: cancel again). A delegation that has ended, or ends by
// itself meanwhile, is [ErrFinal], with its record in the result. Others:
// [ErrNoRecord], [ErrDenied], [ErrClosed]; and with RemoveJob an error of the
// removal, after the cancel itself took place.
//
// Source: docs/protocol.md, section 10.
func (b *Bus) Cancel(
	ctx context.Context, session protocol.SessionID, delegation protocol.DelegationID, opts CancelOptions,
) (CancelResult, error) {
	c := canceling{bus: b}
	e, err := b.recordToCancel(ctx, session, delegation)
	for err == nil {
		var done bool
		if e, done, err = c.step(ctx, e); !done {
			continue
		}
		if err == nil && opts.RemoveJob && c.queued {
			err = b.removeJob(ctx, e.Record)
		}
		return CancelResult{Entry: e, GuestMayRun: c.overruled}, err
	}
	return CancelResult{}, fmt.Errorf("cancel %s: %w", delegation, err)
}

// recordToCancel reads a record that its parent may have written a moment ago, and
// that a server which was away may not have yet. That there is none is [ErrNoRecord]
// only by the leader's word; when the leader has one, the error is [ErrUnavailable].
// For a user who may not ask the leader, the read decides.
func (b *Bus) recordToCancel(ctx context.Context, session protocol.SessionID, delegation protocol.DelegationID) (Entry, error) {
	e, err := b.ReadRecord(ctx, session, delegation, 1)
	if !errors.Is(err, ErrNoRecord) {
		return e, err
	}
	bucket, key := b.ns.LedgerBucket(), protocol.LedgerKey(session, delegation)
	switch e, rerr := b.readOnce(ctx, key); {
	case rerr != nil:
		return Entry{}, rerr
	case e.Record.DelegationID != "":
		return e, nil // it came meanwhile
	case e.Revision > 0:
		return Entry{}, err // it was withdrawn
	}
	switch held, lerr := b.led(ctx, kvStream(bucket), kvSubject(bucket, key)); {
	case passes(lerr):
		return Entry{}, lerr
	case lerr == nil && held > 0:
		return Entry{}, fmt.Errorf("%w: the server that was asked does not have the record of %s yet: cancel again", ErrUnavailable, delegation)
	}
	return Entry{}, err
}

// canceling is one cancel.
type canceling struct {
	bus       *Bus
	asked     protocol.SessionID // the attempt that was asked to end
	silent    time.Time          // since when nobody listens for it
	queued    bool               // it was ended in the queue
	overruled bool               // it was ended over a worker's claim
}

// step brings the cancel forward by one action and gives the record after it.
func (c *canceling) step(ctx context.Context, e Entry) (Entry, bool, error) {
	rec := e.Record
	switch {
	case rec.Status.Final() && c.asked != "" && rec.Outcome.ParentEnded():
		return e, true, nil // its answer may have been lost
	case rec.Status.Final():
		return e, true, fmt.Errorf("%w: %s is %s", ErrFinal, rec.DelegationID, rec.Status)
	case rec.Status == protocol.StatusSubmitted:
		c.queued = true
		return c.terminate(ctx, e, protocol.MessageCanceledBeforeStart)
	}
	if c.asked != rec.SessionID {
		c.asked, c.silent = rec.SessionID, time.Time{}
	}
	err := c.request(ctx, rec)
	switch {
	case err == nil:
		// The record says what came of it.
	case errors.Is(err, errNoResponders):
		if c.silent.IsZero() {
			c.silent = time.Now()
		}
		if time.Since(c.silent) >= cancelSilence {
			c.overruled = true
			return c.terminate(ctx, e, protocol.MessageCanceled)
		}
	case !errors.Is(err, ErrUnavailable):
		return e, true, err
	}
	if err := retry(ctx, err); err != nil {
		return e, true, err
	}
	e, err = c.bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, e.Revision)
	return e, err != nil, err
}

func (c *canceling) request(ctx context.Context, rec protocol.Record) error {
	body, err := json.Marshal(protocol.CancelRequest{DelegationID: rec.DelegationID})
	if err != nil {
		return fmt.Errorf("%w: %v", ErrRefused, err)
	}
	subject := c.bus.ns.CancelSubject(rec.Spawner.SessionID, rec.DelegationID)
	try, cancel := context.WithTimeout(ctx, cancelAnswer)
	defer cancel()
	guarded, release := c.bus.guard(try, subject)
	defer release()
	m, err := c.bus.nc.RequestMsgWithContext(guarded, &nats.Msg{Subject: subject, Data: body})
	if err != nil {
		return c.bus.failure(guarded, subject, err)
	}
	_, err = protocol.ParseCancelAnswer(m.Data)
	return err
}

// terminate writes the outcome of a cancel over a record, then the terminal
// status if this user may. A record that changed is given back to be looked at.
func (c *canceling) terminate(ctx context.Context, e Entry, message string) (Entry, bool, error) {
	now := time.Now()
	rec := canceledRecord(e.Record, message, now)
	written, err := c.bus.WriteRecord(ctx, rec, e.Revision)
	var lost *LostError
	switch {
	case errors.As(err, &lost) && lost.Current.Record.DelegationID != "":
		c.queued, c.overruled = false, false
		return lost.Current, false, nil
	case err != nil:
		return e, true, err
	}
	bounded, cancel := context.WithTimeout(ctx, cancelTerminal)
	defer cancel()
	if err := c.bus.WriteTerminal(bounded, rec, TerminalOptions{}); err != nil {
		// Whoever takes the job writes it from the record.
		c.bus.log.Debug("terminal status left to a worker", "task_id", string(rec.TaskID), "error", err)
	}
	return written, true, nil
}

// canceledRecord is the record of a delegation that its parent ended.
func canceledRecord(rec protocol.Record, message string, now time.Time) protocol.Record {
	outcome := protocol.Outcome{
		DelegationID: rec.DelegationID, CapsuleName: rec.Capsule.Name, CapsuleVersion: rec.Capsule.Version,
		SessionID: rec.SessionID, Status: protocol.StatusTerminated, Workdir: rec.Workdir,
		Detail: protocol.ParentEndedDetail, ReportedBy: protocol.ReportedByLauncher,
	}
	if rec.Status == protocol.StatusWorking && !rec.StartedAt.IsZero() {
		outcome.DurationMS = max(now.Sub(rec.StartedAt.Std()).Milliseconds(), 0)
	}
	rec.Status, rec.EndedAt, rec.Outcome = protocol.StatusTerminated, protocol.NewTime(now), &outcome
	rec.Ending = &protocol.Ending{State: a2a.TaskStateCanceled, Message: message}
	return rec
}

// removeJob takes a queued job out of the stream, by its sequence: a purge by
// subject makes the server forget deliveries of other jobs, which then are never
// redelivered.
//
// Source: measured on 2.15.2, and nats-server/server/consumer.go, purge.
func (b *Bus) removeJob(ctx context.Context, rec protocol.Record) error {
	stream, subject := b.ns.JobsStream(), b.ns.JobSubject(rec.Pool, rec.Lane, rec.TaskID)
	job, err := b.read(ctx, stream, subject)
	if err == nil && job.seq > 0 {
		if err = b.deleteMessage(ctx, stream, job.seq); err != nil {
			// A worker may have taken and acked it meanwhile.
			if left, readErr := b.read(ctx, stream, subject); readErr == nil && left.seq == 0 {
				err = nil
			}
		}
	}
	if err != nil {
		return fmt.Errorf("the delegation is canceled, but its job %s stays queued: %w", rec.TaskID, err)
	}
	return nil
}

// deleteMessage deletes one message of a stream.
func (b *Bus) deleteMessage(ctx context.Context, stream string, seq uint64) error {
	body := fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, seq)
	m, err := b.ask(ctx, &nats.Msg{Subject: "$JS.API.STREAM.MSG.DELETE." + stream, Data: body})
	if err != nil {
		return err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("%w: its answer is not JSON: %v", ErrRefused, err)
	}
	if answer.Error != nil {
		return b.apiFailure(answer.Error)
	}
	return nil
}
