package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	followBatch     = 256
	followExpires   = 10 * time.Second
	followHeartbeat = 2 * time.Second
	// followIdle is how long the bus keeps the consumer of a reader that does not
	// read.
	followIdle = time.Minute
)

// follower reads a subject of a stream in order, for as long as it takes, through
// an ephemeral consumer. Whatever happens to that (a lost message or heartbeat,
// an election, a restart, a new connection), it makes another one from where it
// was. The client's ordered consumer does the same, but waits without the
// caller's context and leaves goroutines behind. It has no goroutine; one
// goroutine uses it.
//
// Source: NATS ADR-17, Ordered Consumer.
type follower struct {
	bus             *Bus
	stream, subject string
	live            bool // nothing that was stored before

	inbox    string
	sub      *nats.Subscription
	name     string // of the consumer, "" while there is none
	prefix   string
	made     int    // consumers so far
	conn     uint64 // reconnects when it was made
	from     uint64 // the sequence in the stream to go on from; 0: not known yet
	count    uint64 // messages from this consumer
	want     int    // messages that the open pull may still bring
	deadline time.Time
}

// follow subscribes and makes the consumer.
func (b *Bus) follow(ctx context.Context, stream, subject string, live bool) (*follower, error) {
	f := &follower{bus: b, stream: stream, subject: subject, live: live, inbox: b.nc.NewInbox(), prefix: nuid.Next()}
	var err error
	if f.sub, err = b.nc.SubscribeSync(f.inbox + ".*"); err != nil {
		return nil, b.failure(ctx, f.inbox, err)
	}
	for {
		err := f.create(ctx)
		if err == nil {
			return f, nil
		}
		if passes(err) {
			if err = retry(ctx, err); err == nil {
				continue
			}
		}
		f.close()
		return nil, err
	}
}

// close removes the consumer, waiting at most 2 s for that: the bus forgets it
// by itself, too.
func (f *follower) close() {
	_ = f.sub.Unsubscribe() // fails only when the connection is gone
	if f.name == "" || !f.bus.nc.IsConnected() {
		return
	}
	_, err := f.bus.ask(context.Background(), &nats.Msg{Subject: "$JS.API.CONSUMER.DELETE." + f.stream + "." + f.name})
	if err != nil {
		f.bus.log.Debug("consumer not removed", "stream", f.stream, "error", err)
	}
	f.name = ""
}

// create makes a consumer from where the reader is.
func (f *follower) create(ctx context.Context) error {
	f.made++
	name := f.prefix + "_" + strconv.Itoa(f.made)
	config := jetstream.ConsumerConfig{
		Name: name, FilterSubject: f.subject, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true,
		Replicas: 1, InactiveThreshold: followIdle, DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	switch {
	case f.from > 0:
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.from
	case f.live:
		config.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	body, err := json.Marshal(struct {
		Stream string                   `json:"stream_name"`
		Config jetstream.ConsumerConfig `json:"config"`
	}{f.stream, config})
	if err != nil {
		return fmt.Errorf("%w: %v", ErrRefused, err)
	}
	f.conn = f.bus.nc.Stats().Reconnects
	m, err := f.bus.ask(ctx, &nats.Msg{
		Subject: "$JS.API.CONSUMER.CREATE." + f.stream + "." + name + "." + f.subject, Data: body,
	})
	if err != nil {
		return err
	}
	var info struct {
		Error     *jetstream.APIError    `json:"error"`
		Delivered jetstream.SequenceInfo `json:"delivered"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return fmt.Errorf("%w: a consumer is answered with no JSON", ErrRefused)
	}
	if info.Error != nil {
		return storeFailure(info.Error)
	}
	if f.live && f.from == 0 { // what comes from now on, whatever becomes of this consumer
		f.from = info.Delivered.Stream + 1
	}
	f.name, f.count, f.want = name, 0, 0
	return nil
}

// next waits for the next message. Errors: the cause of ctx as [ErrUnavailable],
// [ErrClosed], [ErrDenied], [ErrNotInitialized].
func (f *follower) next(ctx context.Context) (*nats.Msg, error) {
	for {
		m, err := f.step(ctx)
		if m != nil || err != nil && !passes(err) {
			return m, err
		}
		if ctx.Err() != nil {
			return nil, overdue(ctx, err)
		}
		if err != nil {
			f.name = "" // another consumer
			if err := retry(ctx, err); err != nil {
				return nil, err
			}
		}
	}
}

// step does one thing: makes a consumer, pulls, or waits for what a pull brings.
// Without a message and an error there is simply more to do.
func (f *follower) step(ctx context.Context) (*nats.Msg, error) {
	if f.name == "" {
		return nil, f.create(ctx)
	}
	if f.want == 0 {
		return nil, f.pull()
	}
	try, cancel := context.WithDeadline(ctx, f.deadline)
	defer cancel()
	m, err := f.sub.NextMsgWithContext(try)
	if err != nil {
		return nil, f.bus.failure(try, f.pulls(), err)
	}
	return f.read(m)
}

func (f *follower) pull() error {
	body, err := json.Marshal(pullRequest{Batch: followBatch, Expires: followExpires, Heartbeat: followHeartbeat})
	if err != nil {
		return fmt.Errorf("%w: %v", ErrRefused, err)
	}
	if err := f.bus.nc.PublishRequest(f.pulls(), f.inbox+"."+f.name, body); err != nil {
		return f.bus.failure(context.Background(), f.pulls(), err)
	}
	f.want = followBatch
	f.heard()
	return nil
}

// pulls is where the consumer takes pulls.
func (f *follower) pulls() string { return "$JS.API.CONSUMER.MSG.NEXT." + f.stream + "." + f.name }

// heard sets when silence means that the pull is lost.
func (f *follower) heard() { f.deadline = time.Now().Add(2*followHeartbeat + pullSlack) }

// read takes one message of a pull.
func (f *follower) read(m *nats.Msg) (*nats.Msg, error) {
	if m.Reply == "" {
		if m.Subject != f.inbox+"."+f.name {
			return nil, nil // of an earlier consumer
		}
		switch status := m.Header.Get(headerStatus); status {
		case "100":
			f.heard()
			if f.conn != f.bus.nc.Stats().Reconnects {
				return nil, fmt.Errorf("%w: a new connection", ErrUnavailable)
			}
		case "404", "408":
			f.want = 0
		default:
			return nil, fmt.Errorf("%w: status %s: %s", ErrUnavailable, status, m.Header.Get("Description"))
		}
		return nil, nil
	}
	meta, err := m.Metadata()
	if err != nil || meta.Consumer != f.name {
		return nil, nil // of an earlier consumer
	}
	f.heard()
	if meta.Sequence.Consumer != f.count+1 {
		return nil, fmt.Errorf("%w: a message was lost", ErrUnavailable)
	}
	f.count++
	f.want--
	f.from = meta.Sequence.Stream + 1
	return m, nil
}
