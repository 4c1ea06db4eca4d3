package guesthttp

import (
	"testing"

	"starling/sandbox/internal/egress"
)

// TestTheHostSaysTheSame: errnos and bounds are written down twice, since a guest
// links nothing of the host.
func TestTheHostSaysTheSame(t *testing.T) {
	t.Parallel()
	codes := map[Code]egress.Errno{
		ErrRequestTooLarge: egress.ErrnoTooBig, ErrConnRefused: egress.ErrnoRefused, ErrConnReset: egress.ErrnoReset,
		ErrUnreachable: egress.ErrnoUnreachable, ErrInvalidRequest: egress.ErrnoInvalid, ErrOther: egress.ErrnoIO,
		ErrTooMany: egress.ErrnoTooMany, ErrResponseTooLarge: egress.ErrnoMessageSize, ErrBadResponse: egress.ErrnoProtocol,
		ErrTimedOut: egress.ErrnoTimedOut, ErrNotGranted: egress.ErrnoNotGranted,
		errnoAgain: egress.ErrnoAgain, errnoBadHandle: egress.ErrnoBadHandle,
	}
	for code, errno := range codes {
		if int32(code) != int32(errno) {
			t.Errorf("%s is %d here and %d at the host", code, code, errno)
		}
	}
	for code := range codeTexts {
		if _, ok := codes[code]; !ok {
			t.Errorf("%s is not compared with the host's", code)
		}
	}
	if maxInFlight != egress.MaxInFlight || maxRequestBytes != egress.MaxRequestBytes {
		t.Errorf("the bounds are %d and %d here, and %d and %d at the host",
			maxInFlight, maxRequestBytes, egress.MaxInFlight, egress.MaxRequestBytes)
	}
}
