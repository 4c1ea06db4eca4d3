package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Freeze stops a process with SIGSTOP and returns once none of its threads runs
// any more: the signal alone leaves them time to do more.
func Freeze(tb testing.TB, pid int) {
	tb.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		tb.Fatalf("SIGSTOP to %d: %v", pid, err)
	}
	Eventually(tb, 40*time.Second, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return err
		}
		for _, thread := range threads {
			text, err := os.ReadFile(thread)
			if err == nil && !strings.Contains(string(text), ") T ") {
				return fmt.Errorf("a thread of %d runs: %s", pid, text)
			}
		}
		return nil
	})
}
