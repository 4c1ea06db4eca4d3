package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// The classes of errors that a caller acts on. Each message goes on with the
// thing and the fix.
var (
	// ErrNoServer: no server answered at the given URLs.
	ErrNoServer = errors.New("no NATS server")
	// ErrTLS: the server's certificate was not accepted here.
	ErrTLS = errors.New("NATS server not trusted")
	// ErrAuth: the server refused the credentials, or the client certificate.
	ErrAuth = errors.New("NATS refused the credentials")
	// ErrPortTaken: another program listens where an embedded server should.
	ErrPortTaken = errors.New("port is taken")
	// ErrOldServer: the server is older than [MinServerVersion].
	ErrOldServer = errors.New("NATS server too old")
	// ErrNoJetStream: the server, or the account, has no JetStream.
	ErrNoJetStream = errors.New("JetStream is off")
	// ErrDenied: the server's permissions refuse what was tried.
	ErrDenied = errors.New("denied by the bus")
	// ErrUnavailable: the bus gave no answer in time, or has no leader now. The
	// operation may have happened. Trying again later can help.
	ErrUnavailable = errors.New("bus unavailable")
	// ErrRefused: the bus answered with an error that no other class covers, such
	// as a lack of storage. Trying again does not help by itself.
	ErrRefused = errors.New("refused by the bus")
	// ErrClosed: the Bus was closed.
	ErrClosed = errors.New("bus closed")
	// ErrConfig: a configuration cannot be used; joined with each problem.
	ErrConfig = errors.New("bus configuration")

	// ErrNotInitialized: a stream or a bucket of the namespace does not exist.
	ErrNotInitialized = errors.New("namespace not initialized")
	// ErrTopology: what exists differs from what section 2 demands; a
	// [TopologyError] says where.
	ErrTopology = errors.New("topology differs")

	// ErrUnknownCapsule: the index has no such name and version.
	ErrUnknownCapsule = errors.New("unknown capsule")
	// ErrCapsuleExists: the version was pushed before with another content.
	ErrCapsuleExists = errors.New("capsule version exists")
	// ErrCapsuleMissing: the index or a job names a module that the store lacks.
	ErrCapsuleMissing = errors.New("capsule module missing")
	// ErrDigestMismatch: bytes, or an index entry, are not those of the digest.
	ErrDigestMismatch = errors.New("digest mismatch")

	// ErrResultMissing: the object store has no such result (any more).
	ErrResultMissing = errors.New("result missing")
	// ErrResultExists: a result of that attempt was stored with other content.
	ErrResultExists = errors.New("result exists")

	// ErrUnknownWorker: no worker of that id answers.
	ErrUnknownWorker = errors.New("unknown worker")
	// ErrWorkerTaken: a live worker has the id.
	ErrWorkerTaken = errors.New("worker id is taken")
	// ErrWorker: a worker answered a control request with an error.
	ErrWorker = errors.New("worker refused")

	// ErrQueueFull: the jobs stream holds as many jobs as it may. Nothing was
	// queued.
	ErrQueueFull = errors.New("queue full")
	// ErrLedgerFull: the ledger holds as many bytes as it may. Nothing was written.
	ErrLedgerFull = errors.New("ledger full")
	// ErrPoolUnserved: no live worker takes from the pool. Nothing was queued.
	ErrPoolUnserved = errors.New("pool not served")
	// ErrPoolUndeclared: the jobs stream has no such pool. Nothing was queued.
	ErrPoolUndeclared = errors.New("pool not declared")
	// ErrUnclear: the bus gave no clear answer; the job may or may not be
	// queued. Dispatching the same delegation again settles it.
	ErrUnclear = errors.New("unclear whether the job was queued")

	// ErrSettled: the delivery was acked, nak'ed or dropped before.
	ErrSettled = errors.New("delivery settled")

	// ErrNoRecord: the ledger has no such delegation: never dispatched,
	// withdrawn or expired.
	ErrNoRecord = errors.New("no such delegation")
	// ErrLost: another wrote the record; see [LostError].
	ErrLost = errors.New("record written by another")
	// ErrFinal: the delegation has its outcome; nothing was changed.
	ErrFinal = errors.New("delegation has ended")
)

// errNoResponders is internal: nobody listens on a subject. What that means
// depends on the subject.
var errNoResponders = errors.New("no responders")

// Codes of JetStream's errors, as nats-server/server/errors.json numbers them.
const (
	codeStreamNotFound     jetstream.ErrorCode = 10059
	codeNotEnabled         jetstream.ErrorCode = 10076
	codeNotEnabledAccount  jetstream.ErrorCode = 10039
	codeClusterUnavailable jetstream.ErrorCode = 10008
	codeNoPeers            jetstream.ErrorCode = 10005
	codeWrongLastSequence  jetstream.ErrorCode = 10071
	codeWrongLastConstant  jetstream.ErrorCode = 10164
	codeInFlight           jetstream.ErrorCode = 10158
	codeReplicasAlone      jetstream.ErrorCode = 10074 // more than one without a cluster
	codeStoreFailed        jetstream.ErrorCode = 10077
	codeTooLarge           jetstream.ErrorCode = 10054
	codeConsumerNotFound   jetstream.ErrorCode = 10014
	codeNoStorage          jetstream.ErrorCode = 10047
	codeNoMemory           jetstream.ErrorCode = 10028
	codeAccountLimit       jetstream.ErrorCode = 10002
)

// failure translates an error of the client at the package's edge: the class,
// and the cause only as text. subject is what was published to, "" when there
// is none.
func (b *Bus) failure(ctx context.Context, subject string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrDenied) {
		return cause
	}
	var api jetstream.JetStreamError
	switch {
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: %s", ErrClosed, subject)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w: %s", errNoResponders, subject)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return b.noAnswer(ctx, subject)
	case isPermission(err):
		return fmt.Errorf("%w: %s", ErrDenied, subject)
	case errors.As(err, &api) && api.APIError() != nil:
		return b.apiFailure(api.APIError())
	case errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrDisconnected),
		errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrStaleConnection),
		errors.As(err, new(net.Error)), errors.Is(err, io.ErrClosedPipe): // a write met the end of the connection
		return fmt.Errorf("%w: the connection is down: %v", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %s: %v", ErrRefused, subject, err)
}

// noAnswer says why none came: the caller's own end, a refusal, or the bus.
func (b *Bus) noAnswer(ctx context.Context, subject string) error {
	if denied := b.denied(subject); denied != nil {
		return denied
	}
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return fmt.Errorf("waiting for an answer on %s: %w", subject, cause)
	} else if cause != nil {
		return fmt.Errorf("%w: no answer on %s: %w", ErrUnavailable, subject, cause)
	}
	return fmt.Errorf("%w: no answer on %s", ErrUnavailable, subject)
}

// apiFailure translates what the JetStream API answers, and names the init that makes
// a stream that is not there.
func (b *Bus) apiFailure(api *jetstream.APIError) error {
	if api.ErrorCode == codeStreamNotFound {
		return fmt.Errorf("%w: %s: run `%s`", ErrNotInitialized, api.Description, b.initCommand())
	}
	return apiFailure(api)
}

// apiFailure is [Bus.apiFailure] of an answer about a stream that is there.
func apiFailure(api *jetstream.APIError) error {
	switch api.ErrorCode {
	case codeNotEnabled, codeNotEnabledAccount:
		return fmt.Errorf("%w: for this account: enable it in the server's configuration", ErrNoJetStream)
	case codeClusterUnavailable, codeNoPeers, codeInFlight:
		return fmt.Errorf("%w: %s", ErrUnavailable, api.Description)
	}
	return fmt.Errorf("%w: %s (%d)", ErrRefused, api.Description, api.ErrorCode)
}

// noStream is the error of a namespace without one of its streams.
func (b *Bus) noStream(name string) error {
	return fmt.Errorf("%w: there is no stream %s: run `%s`", ErrNotInitialized, name, b.initCommand())
}

// initCommand is the command that makes what this bus's namespace lacks.
func (b *Bus) initCommand() string { return b.Command("init") }

// Command is a command line of the program about this bus's namespace, for advice:
// words are what stands behind the program's name.
func (b *Bus) Command(words string) string {
	if b.ns == protocol.DefaultNamespace {
		return "starling " + words
	}
	return "starling " + words + " --namespace " + string(b.ns)
}
