package guesthttp

import "net/http"

// Transport is an [http.RoundTripper] whose requests the host makes. The zero
// value is ready; it is safe for concurrent use.
//
// A request's body is read to its end first, at most 8 MiB. Cancel and deadline
// of a request's context, and Close of a response's body, end the request at the
// host too. A body that was read to its end need not be closed.
//
// The host sets Host, Content-Length, Accept-Encoding and what else is about the
// connection: such headers of a request are dropped. It decompresses, and follows
// up to five redirects itself, each judged as the first address was: a
// client's CheckRedirect is not asked. Responses of 1xx and trailers are not
// passed on, and every response says HTTP/1.1.
//
// Its errors are an [*Error] with the host's sentence, the cause of the
// request's context, or what reading the body returned.
type Transport struct{}

// RoundTrip makes a request. It blocks, this goroutine only, until the head of
// the response is there.
func (Transport) RoundTrip(r *http.Request) (*http.Response, error) { return roundTrip(r) }

// NewClient makes a client that uses a [Transport]. It has no timeout of its own:
// the host waits 5 minutes for a head and 2 between the pieces of a body.
func NewClient() *http.Client { return &http.Client{Transport: Transport{}} }
