package testenv

import (
	"testing"
	"time"
)

// pollEvery is how often Eventually looks: often enough not to slow a test down,
// seldom enough for two cores.
const pollEvery = 5 * time.Millisecond

// Eventually calls check until it returns nil, and fails the test with its last
// error when that took longer than within. It calls check at least once, from
// the test's goroutine, and must not be called from another.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %v", within, err)
		case <-ticker.C:
		}
	}
}

// EventuallyTrue is [Eventually] for a condition, which what describes.
func EventuallyTrue(t testing.TB, within time.Duration, what string, check func() bool) {
	t.Helper()
	Eventually(t, within, func() error {
		if check() {
			return nil
		}
		return notYet(what)
	})
}

type notYet string

func (n notYet) Error() string { return string(n) + ": not yet" }
