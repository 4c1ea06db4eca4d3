package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Errno is a WASI preview 1 errno.
type Errno int32

// The errnos of failed requests.
const (
	ErrnoTooBig      Errno = 1  // the request is too large
	ErrnoAgain       Errno = 6  // nothing is there yet
	ErrnoBadHandle   Errno = 8  // no such request
	ErrnoCanceled    Errno = 11 // the run ends
	ErrnoRefused     Errno = 14 // nobody listens there
	ErrnoReset       Errno = 15 // the connection broke
	ErrnoFault       Errno = 21 // a pointer is out of bounds
	ErrnoUnreachable Errno = 23 // the name or the address cannot be reached
	ErrnoInvalid     Errno = 28 // it is no request
	ErrnoIO          Errno = 29 // anything else
	ErrnoTooMany     Errno = 33 // too many in flight
	ErrnoMessageSize Errno = 35 // the response is too large
	ErrnoProtocol    Errno = 65 // what answers does not speak HTTP as it should
	ErrnoTimedOut    Errno = 73
	ErrnoNotGranted  Errno = 76
)

// Error is why a request failed. Sentence is for the guest's author and holds no
// secret.
type Error struct {
	Errno    Errno
	Sentence string
}

func (e *Error) Error() string { return e.Sentence }

func refuse(errno Errno, format string, args ...any) *Error {
	return &Error{errno, fmt.Sprintf(format, args...)}
}

// classify is the error of a request that err ended.
func classify(ctx context.Context, err error) *Error {
	var own *Error
	if errors.As(context.Cause(ctx), &own) || errors.As(err, &own) {
		return own
	}
	var dns *net.DNSError
	var netErr net.Error
	var op *net.OpError
	switch {
	case ctx.Err() != nil:
		return refuse(ErrnoCanceled, "the request was canceled")
	case errors.As(err, &dns):
		return refuse(ErrnoUnreachable, "the host %q cannot be resolved: %s", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return refuse(ErrnoRefused, "the host refuses the connection")
	case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE):
		return refuse(ErrnoReset, "the host reset the connection")
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return refuse(ErrnoUnreachable, "the host cannot be reached")
	case errors.As(err, &netErr) && netErr.Timeout():
		return refuse(ErrnoTimedOut, "the request timed out")
	case errors.As(err, &op):
		return refuse(ErrnoIO, "%s: %s", op.Op, op.Err)
	}
	return refuse(ErrnoProtocol, "the response cannot be read: %s", err)
}
