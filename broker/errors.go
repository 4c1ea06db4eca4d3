package broker

import "errors"

// The classes of errors that a caller acts on. Each message goes on with the
// thing and the fix.
var (
	// ErrNoServer: no server answered at the given URLs.
	ErrNoServer = errors.New("no NATS server")
	// ErrAuth: the server refused the credentials.
	ErrAuth = errors.New("NATS refused the credentials")
	// ErrOldServer: the server is older than [MinServerVersion].
	ErrOldServer = errors.New("NATS server too old")
	// ErrNoJetStream: the server, or the account, has no JetStream.
	ErrNoJetStream = errors.New("JetStream is off")
	// ErrDenied: the server's permissions refuse what was tried.
	ErrDenied = errors.New("denied by the bus")
	// ErrUnavailable: the bus gave no answer in time, or has no leader now. The
	// operation may have happened. Trying again later can help.
	ErrUnavailable = errors.New("bus unavailable")
	// ErrClosed: the Bus was closed.
	ErrClosed = errors.New("bus closed")
	// ErrConfig: a Config cannot be used; joined with each problem.
	ErrConfig = errors.New("bus configuration")

	// ErrNotInitialized: a stream or a bucket of the namespace does not exist.
	ErrNotInitialized = errors.New("namespace not initialized")
	// ErrTopology: what exists differs from what section 2 demands.
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
	// ErrWorker: a worker answered a control request with an error.
	ErrWorker = errors.New("worker refused")
)
