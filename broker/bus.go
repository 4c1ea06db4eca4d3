package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// MinServerVersion is the oldest server that has all that is used here: batched
// direct gets came with it.
const MinServerVersion = "2.11"

const (
	// requestTimeout bounds one request to the bus. What can be repeated safely
	// waits answerTimeout for an answer, and is tried answerTries times.
	requestTimeout = 5 * time.Second
	answerTimeout  = 2 * time.Second
	answerTries    = 3

	// A dead connection is noticed after pingInterval × maxPings, well inside
	// the default ack wait.
	pingInterval = 5 * time.Second
	maxPings     = 2

	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 250 * time.Millisecond

	// closeTimeout bounds the last flush.
	closeTimeout = 2 * time.Second
)

// Bus is a connection to the message bus of one fleet: NATS JetStream under one
// namespace. It is safe for concurrent use. It reconnects by itself, for ever;
// until then operations end with [ErrUnavailable] or their context. Whoever
// connects closes it.
type Bus struct {
	ns  protocol.Namespace
	log *slog.Logger

	// nc carries pulls, acks, the ledger and requests; frames has a connection
	// of its own so that a flood of frames cannot delay an ack, and carries
	// modules and results for the same reason. Without Config.SeparateFrames
	// both are the same.
	nc     *nats.Conn
	js     jetstream.JetStream
	frames *nats.Conn

	denials denials   // of both connections
	counts  counts    // for Stats
	acks    ackRouter // of published frames
}

// Connect connects and makes one round trip before it returns. It blocks until
// every server was tried once or ctx ends. Errors are [ErrConfig],
// [ErrNoServer], [ErrTLS], [ErrAuth], [ErrOldServer], [ErrNoJetStream] and, when the
// inbox is refused, [ErrDenied].
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil { // again, for what the context brought
		return nil, fmt.Errorf("with nats context %q: %w", cfg.Context, err)
	}
	return connect(ctx, cfg)
}

func connect(ctx context.Context, cfg Config, more ...nats.Option) (*Bus, error) {
	b := &Bus{ns: cfg.Namespace, log: cfg.Logger}
	var err error
	if b.nc, err = b.dial(ctx, cfg, cfg.Name, more); err != nil {
		return nil, err
	}
	b.frames = b.nc
	if cfg.SeparateFrames {
		if b.frames, err = b.dial(ctx, cfg, cfg.Name+" frames", more); err != nil {
			b.nc.Close()
			return nil, err
		}
	}
	if err := b.open(ctx, cfg.name("InboxPrefix")); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// open checks the server and makes the JetStream contexts. prefix is what errors call
// the setting of the inbox.
func (b *Bus) open(ctx context.Context, prefix string) error {
	if version := b.nc.ConnectedServerVersion(); olderThan(version, MinServerVersion) {
		return fmt.Errorf("%w: %s runs %s: upgrade it to %s or later", ErrOldServer, b.nc.ConnectedUrlRedacted(), version, MinServerVersion)
	}
	var err error
	if b.js, err = jetstream.New(b.nc, jetstream.WithDefaultTimeout(requestTimeout)); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	for _, nc := range []*nats.Conn{b.nc, b.frames} {
		if err := b.checkInbox(ctx, nc, prefix); err != nil {
			return err
		}
	}
	return b.checkJetStream(ctx)
}

// checkInbox is the round trip of Connect: without a right to the inbox no
// request would ever be answered.
func (b *Bus) checkInbox(ctx context.Context, nc *nats.Conn, prefix string) error {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return b.failure(ctx, "", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := b.subscribed(ctx, nc, inbox); err != nil {
		return fmt.Errorf("%w: set %s to the one that this user may subscribe to", err, prefix)
	}
	return nil
}

// checkJetStream asks only where the server itself has no JetStream: another of
// its cluster may, and a party with narrow rights may not ask.
func (b *Bus) checkJetStream(ctx context.Context) error {
	if on, _ := b.nc.ConnectedServerJetStream(); on {
		return nil
	}
	if _, err := b.request(ctx, b.nc, &nats.Msg{Subject: "$JS.API.INFO"}); errors.Is(err, errNoResponders) {
		return fmt.Errorf("%w: %s offers none: start it with -js, or a jetstream block in its configuration",
			ErrNoJetStream, b.nc.ConnectedUrlRedacted())
	}
	return nil // any other answer says that somebody has it, or that we may not ask
}

// Namespace is the fleet's.
func (b *Bus) Namespace() protocol.Namespace { return b.ns }

// Connected reports whether the bus can be spoken to now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() && b.frames.IsConnected() }

// Close flushes, for at most 2 s, and closes both connections. It is
// idempotent. What still runs on the Bus ends with [ErrClosed]. It is
// [ErrUnavailable] when the server is there and does not take what was written,
// which matters to acks alone: everything else was answered.
func (b *Bus) Close() error {
	var errs []error
	for _, nc := range []*nats.Conn{b.nc, b.frames} {
		if nc.IsConnected() {
			if err := nc.FlushTimeout(closeTimeout); err != nil && nc.IsConnected() {
				errs = append(errs, fmt.Errorf("%w: last flush: %v", ErrUnavailable, err))
			}
		}
		nc.Close()
	}
	return errors.Join(errs...)
}

// dial opens one connection. The client has no context for it, so the dialer
// carries ctx, until the first connection stands.
func (b *Bus) dial(ctx context.Context, cfg Config, name string, more []nats.Option) (*nats.Conn, error) {
	var established atomic.Bool
	var stops []func() bool // one dial after the other, before Connect returns
	var handshake handshake
	options := append(b.options(cfg, name), handshake.option(cfg), nats.SetCustomDialer(dialFunc(func(network, address string) (net.Conn, error) {
		dialer := net.Dialer{Timeout: cfg.ConnectTimeout}
		if established.Load() {
			return dialer.Dial(network, address)
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		stops = append(stops, context.AfterFunc(ctx, func() { _ = conn.Close() })) // cuts the handshake short
		return conn, nil
	})))
	nc, err := nats.Connect(strings.Join(cfg.servers(), ","), append(options, more...)...)
	established.Store(true)
	for _, stop := range stops {
		stop()
	}
	if err != nil {
		return nil, connectError(ctx, cfg, handshake.asked.Load(), err)
	}
	return nc, nil
}

type dialFunc func(network, address string) (net.Conn, error)

func (f dialFunc) Dial(network, address string) (net.Conn, error) { return f(network, address) }

func (b *Bus) options(cfg Config, name string) []nats.Option {
	log := cfg.Logger.With("connection", name)
	options := []nats.Option{
		nats.Name(name), nats.Timeout(cfg.ConnectTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait),
		// Credentials that were refused may be renewed: the client would give up for
		// ever after the second refusal.
		nats.IgnoreAuthErrorAbort(),
		// Nothing waits in the client for a new connection: a worker that lost its task
		// meanwhile would say it all at once. Callers try again.
		nats.ReconnectBufSize(-1),
		nats.ReconnectJitter(reconnectJitter, 4*reconnectJitter),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(maxPings),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			if b.denials.record(err) { // whoever asked for it gets an error that says more
				log.Info("bus refused", "error", err)
				return
			}
			if isAuth(err) {
				log.Warn("bus refused the credentials, trying again", "error", fmt.Sprintf("%v: %s", err, cfg.credential(time.Now())))
				return
			}
			log.Warn("bus error", "subject", subject, "error", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: we closed it
				log.Warn("bus disconnected", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { log.Info("bus reconnected", "url", nc.ConnectedUrlRedacted()) }),
		nats.LameDuckModeHandler(func(nc *nats.Conn) { log.Info("bus server is leaving", "url", nc.ConnectedUrlRedacted()) }),
	}
	if cfg.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}
	switch {
	case cfg.CredsFile != "":
		options = append(options, nats.UserCredentials(cfg.CredsFile)) // read again at each connect
	case cfg.NKeyFile != "":
		options = append(options, nkeyOption(cfg))
	case cfg.User != "":
		options = append(options, nats.UserInfo(cfg.User, string(cfg.Password)))
	case cfg.Token != "":
		options = append(options, nats.Token(string(cfg.Token)))
	}
	return options
}

// olderThan compares the first two numbers of two versions. A version that
// cannot be read is not older.
func olderThan(version, least string) bool {
	number := func(s string) (int, bool) {
		major, rest, _ := strings.Cut(s, ".")
		minor, _, _ := strings.Cut(rest, ".")
		a, err1 := strconv.Atoi(major)
		b, err2 := strconv.Atoi(minor)
		return a*1000 + b, err1 == nil && err2 == nil
	}
	have, ok1 := number(version)
	want, ok2 := number(least)
	return ok1 && ok2 && have < want
}
