package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// selfProgram is this program, even when its file was replaced meanwhile.
func selfProgram() string { return "/proc/self/exe" }

// processAttributes: a group of its own, so that a Ctrl-C at the terminal is the
// worker's to handle, and SIGKILL when the worker dies.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// processorTime is what a process has used of the processors; false when nobody can
// tell.
//
// Source: proc_pid_stat(5): utime and stime are the 14th and 15th field, in ticks, of
// which Linux shows 100 a second on every architecture.
func processorTime(pid int) (time.Duration, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the 2nd, a name, may hold anything
	if len(fields) < 13 {
		return 0, false
	}
	var ticks uint64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseUint(string(field), 10, 63)
		if err != nil {
			return 0, false
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), true
}
