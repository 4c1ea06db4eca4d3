package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"starling/protocol"
)

// taking is one run of a taker. Everything in it belongs to Run's goroutine.
//
// It speaks the pull protocol itself: the client's Fetch makes a subscription
// and a goroutine for every pull, and loses what a pull brings after it was
// given up. Here a lane has one inbox for the whole run, so that whatever a pull
// brings, however late, meets a slot or is given back.
//
// Source: NATS ADR-13, Pull Subscribe internals.
type taking struct {
	taker    *Taker
	do       func(*Delivery)
	messages chan *nats.Msg // of all lanes
	status   chan nats.Status
	lanes    []*lane // the one that is taken from first first
	asked    int     // pulls so far: names them
	timer    *time.Timer

	draining bool
	retryAt  time.Time // no pull before this
	lastEnd  time.Time // the latest end of a pull that was given up unheard
}

// lane is a consumer. At most one pull of it is open.
type lane struct {
	name  protocol.Lane
	next  string // where pulls are asked for
	inbox string
	sub   *nats.Subscription

	pull string // subject of the open pull's answers, "" when none is open
	want int    // messages that it may still bring
	ends time.Time
	// heard is when a waiting pull counts as lost unless it is heard of. It is
	// zero for a pull that does not wait.
	heard time.Time
}

func (l *lane) open() bool { return l.pull != "" }

func newTaking(t *Taker, do func(*Delivery)) (*taking, error) {
	nc := t.bus.nc
	r := &taking{
		taker: t, do: do, timer: time.NewTimer(time.Hour),
		// Room for whatever open pulls may bring at once: the client drops what
		// does not fit, and a dropped job waits for its ack wait.
		messages: make(chan *nats.Msg, 1024+8*t.cfg.Slots),
		status:   nc.StatusChanged(nats.CONNECTED, nats.CLOSED),
	}
	for i, name := range protocol.Lanes() {
		inbox, sub, err := t.newInbox(i, r.messages)
		if err != nil {
			r.close()
			return nil, t.bus.failure(context.Background(), inbox, err)
		}
		consumer := protocol.LaneConsumer(t.cfg.Pool, name)
		r.lanes = append(r.lanes, &lane{
			name: name, inbox: inbox, sub: sub,
			next: "$JS.API.CONSUMER.MSG.NEXT." + t.bus.ns.JobsStream() + "." + consumer,
		})
	}
	return r, nil
}

func (r *taking) close() {
	for _, l := range r.lanes {
		_ = l.sub.Unsubscribe() // fails only when the connection is gone
	}
	r.taker.bus.nc.RemoveStatusListener(r.status)
	r.timer.Stop()
}

// round does one thing: waits for a slot, takes, or waits for a job. A lane with
// an open pull is empty, or the pull would have ended; so only the others are
// asked, and precedence holds.
func (r *taking) round(ctx context.Context) error {
	if !r.taker.bus.nc.IsConnected() {
		r.backOff() // pulls would pile up in the client and all come at once
	}
	if r.taker.free() == 0 || time.Now().Before(r.retryAt) {
		return r.wait(ctx)
	}
	for _, l := range r.lanes {
		if l.open() {
			continue
		}
		gave, err := r.fetch(ctx, l)
		if err != nil || gave || ctx.Err() != nil || r.taker.free() == 0 || time.Now().Before(r.retryAt) {
			return err
		}
	}
	for _, l := range r.lanes {
		if !l.open() {
			if err := r.openWaiting(l); err != nil {
				return err
			}
		}
	}
	return r.wait(ctx)
}

// fetch takes what is there, as much as there are slots, and reports whether it
// was anything.
func (r *taking) fetch(ctx context.Context, l *lane) (bool, error) {
	want := r.taker.free()
	if err := r.ask(l, want, pullRequest{Batch: want, NoWait: true}); err != nil {
		return false, err
	}
	if !l.open() {
		return false, nil
	}
	l.ends, l.heard = time.Now().Add(fetchWait), time.Time{}
	for l.open() && !r.left() { // also when ctx is done: what the pull brings must be given back
		if err := r.next(ctx); err != nil {
			return false, err
		}
	}
	return l.want < want, nil
}

// openWaiting asks for the next job of a lane, for as long as PullExpires.
func (r *taking) openWaiting(l *lane) error {
	expires := r.taker.cfg.PullExpires
	if err := r.ask(l, 1, pullRequest{Batch: 1, Expires: expires, Heartbeat: expires / 4}); err != nil {
		return err
	}
	now := time.Now()
	l.ends, l.heard = now.Add(expires+pullSlack), now.Add(expires/2+pullSlack)
	return nil
}

type pullRequest struct {
	Batch     int           `json:"batch"`
	NoWait    bool          `json:"no_wait,omitempty"`
	Expires   time.Duration `json:"expires,omitempty"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

func (r *taking) ask(l *lane, want int, request pullRequest) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrRefused, err) // numbers always marshal
	}
	r.asked++
	l.pull, l.want = l.inbox+"."+strconv.Itoa(r.asked), want
	if err := r.taker.bus.nc.PublishRequest(l.next, l.pull, body); err != nil {
		r.end(l)
		if err = r.taker.bus.failure(context.Background(), l.next, err); !passes(err) {
			return err
		}
		r.backOff()
	}
	return nil
}

// wait handles what comes until something is to be done: a slot was freed, a
// pull ended, time is up.
func (r *taking) wait(ctx context.Context) error {
	idle := r.taker.free()
	open := r.openPulls()
	for {
		if err := r.next(ctx); err != nil {
			return err
		}
		switch now := time.Now(); {
		case ctx.Err() != nil:
			return nil
		case now.Before(r.retryAt): // nothing to do yet
		case r.taker.free() > 0 && (r.taker.free() != idle || r.openPulls() < open || open < len(r.lanes)):
			return nil
		}
	}
}

func (r *taking) openPulls() int {
	n := 0
	for _, l := range r.lanes {
		if l.open() {
			n++
		}
	}
	return n
}

// next handles one thing that happens. It waits for it at most until a pull is
// overdue or a pause is over.
func (r *taking) next(ctx context.Context) error {
	if !r.draining && ctx.Err() != nil {
		r.draining = true
		return nil // to a caller that may be waiting for something else
	}
	done, abandoned := ctx.Done(), (<-chan struct{})(nil)
	if r.draining {
		done, abandoned = nil, r.taker.abandoned
	}
	r.timer.Reset(time.Until(r.alarm()))
	select {
	case m := <-r.messages:
		r.draining = r.draining || ctx.Err() != nil // the drain may have come with the message
		r.handle(m)
	case <-r.taker.freed:
	case status := <-r.status:
		if status == nats.CLOSED {
			return ErrClosed
		}
		for _, l := range r.lanes { // a new connection: no answer is owed on it
			r.giveUp(l)
		}
	case <-r.timer.C:
		r.expire(time.Now())
	case <-done: // the next call drains
	case <-abandoned: // drain sees it
	}
	return nil
}

// alarm is when something is due without anything coming.
func (r *taking) alarm() time.Time {
	at := time.Now().Add(time.Minute)
	sooner := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	for _, l := range r.lanes {
		if l.open() {
			sooner(l.due())
		}
	}
	if time.Now().Before(r.retryAt) {
		sooner(r.retryAt)
	}
	if r.draining && !r.lastEnd.IsZero() {
		sooner(r.lastEnd)
	}
	return at
}

func (l *lane) due() time.Time {
	if !l.heard.IsZero() && l.heard.Before(l.ends) {
		return l.heard
	}
	return l.ends
}

// expire gives up pulls that were not heard of in time.
func (r *taking) expire(now time.Time) {
	for _, l := range r.lanes {
		if l.open() && !now.Before(l.due()) {
			r.taker.bus.log.Debug("pull not answered", "pool", r.taker.cfg.Pool, "lane", string(l.name))
			r.giveUp(l)
		}
	}
}

// giveUp forgets a pull that may still bring something.
func (r *taking) giveUp(l *lane) {
	if l.open() && l.ends.After(r.lastEnd) {
		r.lastEnd = l.ends
	}
	r.end(l)
}

func (r *taking) end(l *lane) { l.pull = "" }

func (r *taking) backOff() { r.retryAt = time.Now().Add(pullBackoff) }

// handle takes one message of a pull: a job, or a word about the pull.
func (r *taking) handle(m *nats.Msg) {
	var l *lane
	for _, l = range r.lanes {
		if l.sub == m.Sub {
			break
		}
	}
	if m.Reply == "" { // only deliveries can be answered
		r.hear(l, m)
		return
	}
	if l.open() {
		if l.want--; l.want == 0 {
			r.end(l)
		}
	}
	if r.draining || r.taker.free() == 0 {
		r.giveBack(m)
		return
	}
	r.taker.busy.Add(1)
	d, err := newDelivery(r.taker.bus, m, r.taker.release)
	if err != nil {
		r.taker.busy.Add(-1)
		r.taker.bus.log.Warn("message is no delivery", "subject", m.Subject, "error", err)
		return
	}
	r.do(d)
}

// hear handles a word about a pull. Of one that was given up nothing matters.
func (r *taking) hear(l *lane, m *nats.Msg) {
	if m.Subject != l.pull {
		return
	}
	switch status := m.Header.Get(headerStatus); status {
	case "100": // a heartbeat
		l.heard = time.Now().Add(r.taker.cfg.PullExpires/2 + pullSlack)
	case "404", "408": // there is nothing, or time is up
		r.end(l)
	default: // no leader, an election, a server that stops, too many pulls
		r.taker.bus.log.Debug("pull ended", "pool", r.taker.cfg.Pool, "lane", string(l.name),
			"status", status, "reason", m.Header.Get("Description"))
		r.end(l)
		r.backOff()
	}
}

// giveBack naks without waiting for an answer.
func (r *taking) giveBack(m *nats.Msg) {
	if err := r.taker.bus.nc.Publish(m.Reply, []byte(ackAgain)); err != nil {
		// It comes back after its ack wait.
		r.taker.bus.log.Warn("job not given back", "subject", m.Subject, "error", err)
	}
}

// left reports whether open pulls are not waited for.
func (r *taking) left() bool {
	select {
	case <-r.taker.abandoned:
		return true
	default:
		return false
	}
}

// drain gives back what open pulls still bring, and returns when all of them,
// also those given up, have ended.
func (r *taking) drain() error {
	r.draining = true
	for !r.left() && (r.openPulls() > 0 || time.Now().Before(r.lastEnd)) {
		if err := r.next(context.Background()); err != nil {
			return err
		}
	}
	// The naks are on their way before the caller may close the connection.
	if err := r.taker.bus.nc.FlushTimeout(answerTimeout); err != nil {
		r.taker.bus.log.Warn("last naks not confirmed", "error", err)
	}
	return nil
}
