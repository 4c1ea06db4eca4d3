//go:build !linux

package sandbox

import (
	"os"
	"syscall"
	"time"
)

func selfProgram() string {
	self, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return self
}

// processAttributes: a group of its own, so that a Ctrl-C at the terminal is the
// worker's to handle. The closed pipe tells of the worker's death.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// processorTime is what a process has used of the processors, which nobody tells here.
func processorTime(int) (time.Duration, bool) { return 0, false }
