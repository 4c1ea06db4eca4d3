package guesthttp

import (
	"io/fs"
	"os"
	"strconv"
)

// Code classifies why a request failed; [errors.Is] finds it in an error of a
// [Transport]. It is a WASI preview 1 errno.
type Code int32

// The classes of failures.
//
// Source: docs/protocol.md, section 5, HTTP.
const (
	ErrRequestTooLarge  Code = 1  // URL, headers or body are over their bound
	ErrConnRefused      Code = 14 // nobody listens there
	ErrConnReset        Code = 15 // the connection broke
	ErrUnreachable      Code = 23 // the name or the address cannot be reached
	ErrInvalidRequest   Code = 28 // it is no request that the host makes
	ErrOther            Code = 29
	ErrTooMany          Code = 33 // too many in flight, beside this package's
	ErrResponseTooLarge Code = 35 // headers or body are over their bound
	ErrBadResponse      Code = 65 // what answered does not speak HTTP as it should
	ErrTimedOut         Code = 73 // also an os.ErrDeadlineExceeded
	ErrNotGranted       Code = 76 // the manifest does not list it; also an fs.ErrPermission
)

var codeTexts = map[Code]string{
	ErrRequestTooLarge: "request too large", ErrConnRefused: "connection refused", ErrConnReset: "connection reset",
	ErrUnreachable: "host unreachable", ErrInvalidRequest: "invalid request", ErrOther: "request failed",
	ErrTooMany: "too many requests in flight", ErrResponseTooLarge: "response too large",
	ErrBadResponse: "bad response", ErrTimedOut: "request timed out", ErrNotGranted: "not granted",
}

func (c Code) Error() string {
	if text := codeTexts[c]; text != "" {
		return text
	}
	return "HTTP errno " + strconv.Itoa(int(c))
}

// Is makes a code match the class of the standard library that it belongs to.
func (c Code) Is(target error) bool {
	return c == ErrTimedOut && target == os.ErrDeadlineExceeded || c == ErrNotGranted && target == fs.ErrPermission
}

// Timeout reports whether it is [ErrTimedOut].
func (c Code) Timeout() bool { return c == ErrTimedOut }

// Error is why a request failed.
type Error struct {
	Code     Code
	Sentence string // the host's: what happened, and what to do
}

func (e *Error) Error() string { return e.Sentence }

// Unwrap gives the code.
func (e *Error) Unwrap() error { return e.Code }

// Timeout reports whether the host gave up waiting, as [net.Error] has it.
func (e *Error) Timeout() bool { return e.Code.Timeout() }
