package sandbox

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// closeInherited closes the descriptors from first on that this process was
// started with. What it opened itself is marked to be closed on exec; what
// survived an exec is not.
func closeInherited(first int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd < first {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // closed by now, or ours
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("close the inherited descriptor %d: %w", fd, err)
		}
	}
	return nil
}
