package confine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// minLandlock is the first version that can allow renames across directories.
const minLandlock = 2

// Apply confines this process, all its threads and those to come, and reports
// what the kernel did. What the kernel lacks is in the report; what it refuses
// is an error. It cannot be undone.
func Apply(rules Rules) (Report, error) {
	var report Report
	if err := limit(rules); err != nil {
		return report, err
	}
	if rules.Nice != 0 {
		if _, _, errno := psx.Syscall3(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, uintptr(rules.Nice)); errno != 0 {
			return report, fmt.Errorf("lower the priority: %w", errno)
		}
	}
	// A process of root would still pass every file mode and more.
	if err := cap.NewSet().SetProc(); err != nil {
		return report, fmt.Errorf("drop capabilities: %w", err)
	}
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return report, fmt.Errorf("set no_new_privs: %w", errno)
	}
	report.NoNewPrivs = true
	if version := landlockVersion(); version >= minLandlock {
		err := landlock.V10.BestEffort().Restrict(
			landlock.PathAccess(ll.AccessFSReadFile|ll.AccessFSReadDir, rules.ReadDirs...),
			// No devices, sockets or FIFOs, and nothing can be executed.
			landlock.PathAccess(writable, rules.WriteDirs...),
		)
		if err != nil {
			return report, fmt.Errorf("landlock: %w", err)
		}
		report.Landlock = version
	}
	if seccomp.Supported() {
		err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: policy()})
		if err != nil {
			return report, err
		}
		report.Seccomp = true
	}
	return report, nil
}

// writable is what a guest may do in its directory.
const writable = ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile | ll.AccessFSTruncate |
	ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSym |
	ll.AccessFSRefer

// Support reports what the kernel can enforce. It changes nothing.
func Support() Report {
	report := Report{NoNewPrivs: true, Seccomp: seccomp.Supported()}
	if version := landlockVersion(); version >= minLandlock {
		report.Landlock = version
	}
	return report
}

func landlockVersion() int {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return version
}

// limit sets what the kernel counts for a process. No core is ever written: it
// would hold what a guest was given.
func limit(rules Rules) error {
	limits := []struct {
		name     string
		resource int
		value    uint64
	}{
		{"core", unix.RLIMIT_CORE, 0},
		{"nofile", unix.RLIMIT_NOFILE, rules.OpenFiles},
		{"cpu", unix.RLIMIT_CPU, rules.CPUSeconds},
	}
	if rules.AddressSpaceBytes > 0 {
		mapped, err := mapped()
		if err != nil {
			return fmt.Errorf("limit the address space: %w", err)
		}
		limits = append(limits, struct {
			name     string
			resource int
			value    uint64
		}{"as", unix.RLIMIT_AS, mapped + rules.AddressSpaceBytes})
	}
	for _, l := range limits {
		if l.value == 0 && l.resource != unix.RLIMIT_CORE {
			continue
		}
		var now unix.Rlimit
		if err := unix.Getrlimit(l.resource, &now); err != nil {
			return fmt.Errorf("limit %s: %w", l.name, err)
		}
		least := min(l.value, now.Max) // it may already be narrower
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: least, Max: least}); err != nil {
			return fmt.Errorf("limit %s to %d: %w", l.name, least, err)
		}
	}
	return nil
}

// mapped is the size of this process's address space in bytes.
func mapped() (uint64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) == 0 {
		return 0, errors.New("/proc/self/statm is empty")
	}
	pages, err := strconv.ParseUint(fields[0], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}
