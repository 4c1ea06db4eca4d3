package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limitData lets a process have so many bytes of memory beyond what it has.
func limitData(pid int, more uint64) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	_, rest, ok := strings.Cut(string(text), "\nVmData:")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 1 {
		return errors.New("/proc has no VmData")
	}
	kibibytes, err := strconv.ParseUint(fields[0], 10, 54)
	if err != nil {
		return err
	}
	bytes := kibibytes<<10 + more
	return unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: bytes, Max: bytes}, nil)
}
