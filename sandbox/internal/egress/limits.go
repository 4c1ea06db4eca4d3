package egress

import "time"

// The bounds of requests.
//
// Source: docs/protocol.md, section 5, HTTP.
const (
	MaxInFlight     = 16       // requests of one run that were not closed
	MaxURLBytes     = 8 << 10  // of a request
	MaxHeaderBytes  = 64 << 10 // of a request, and of a response
	MaxHeaders      = 256      // of a request, and of a response
	MaxHeadBytes    = MaxURLBytes + MaxHeaderBytes
	MaxRequestBytes = 8 << 20  // of a request's body
	MaxBodiesBytes  = 16 << 20 // of the bodies of all requests of one run that were not closed
	MaxRedirects    = 5
	WindowBytes     = 256 << 10 // of a response that the guest has not read
)

// Limits are the bounds that tests set lower; zero members are the defaults.
type Limits struct {
	ResponseBytes int64         // of a body, decompressed; default 64 MiB
	Head          time.Duration // until the head of the last response is there; default 5 min
	Idle          time.Duration // between two pieces of a body; default 2 min
}

func (l Limits) withDefaults() Limits {
	if l.ResponseBytes == 0 {
		l.ResponseBytes = 64 << 20
	}
	if l.Head == 0 {
		l.Head = 5 * time.Minute
	}
	if l.Idle == 0 {
		l.Idle = 2 * time.Minute
	}
	return l
}
