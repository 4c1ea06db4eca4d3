package guesthttp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"testing"
)

func TestErrorsAreClassified(t *testing.T) {
	t.Parallel()
	// As a client wraps it.
	timedOut := &url.Error{Op: "Get", URL: "https://a.example", Err: &Error{ErrTimedOut, "no response came within 5m0s"}}
	denied := fmt.Errorf("ask: %w", &Error{ErrNotGranted, "https://a.example is not granted"})
	for _, test := range []struct {
		err, target error
		want        bool
	}{
		{timedOut, ErrTimedOut, true},
		{timedOut, os.ErrDeadlineExceeded, true},
		{timedOut, ErrNotGranted, false},
		{timedOut, context.DeadlineExceeded, false}, // that is the guest's own
		{denied, ErrNotGranted, true},
		{denied, fs.ErrPermission, true},
		{denied, os.ErrDeadlineExceeded, false},
		{ErrConnReset, ErrConnReset, true},
	} {
		if got := errors.Is(test.err, test.target); got != test.want {
			t.Errorf("errors.Is(%v, %v) = %t, want %t", test.err, test.target, got, test.want)
		}
	}
	var e *Error
	if !errors.As(denied, &e) || e.Sentence != "https://a.example is not granted" {
		t.Errorf("errors.As finds %v", e)
	}
	if !timedOut.Timeout() {
		t.Error("a client does not see the timeout")
	}
	if got := Code(77).Error(); got != "HTTP errno 77" {
		t.Errorf("an unknown code says %q", got)
	}
}
