package guesthttp

// What the host does, as far as it matters here. The package imports nothing of
// Starling, so a test compares these, and the codes of errors, with the host's own.
//
// Source: docs/protocol.md, section 5, HTTP.
const (
	maxInFlight     = 16      // requests that a guest may have open
	maxRequestBytes = 8 << 20 // of a request's body

	errnoAgain     = 6 // nothing is there yet
	errnoBadHandle = 8 // no such request
)
