package confine

import (
	"os"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// allowed are the system calls of Go's runtime, of the C library's and the
// engine's threads and memory, and of WASI's files. There is none that makes a
// process, a socket or a mount, or that looks into another process. A call that
// an architecture does not have is left out.
var allowed = []string{
	// memory
	"brk", "madvise", "mincore", "mmap", "mprotect", "mremap", "munmap", "membarrier", "memfd_create",
	// threads, signals and time
	"arch_prctl", "exit", "exit_group", "futex", "getpid", "gettid", "rseq", "sched_getaffinity", "sched_yield",
	"set_robust_list", "set_tid_address", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait",
	"sigaltstack", "restart_syscall", "clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "nanosleep", "time",
	// descriptors
	"close", "dup", "dup3", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd2",
	"fstat", "lseek", "pipe2", "poll", "ppoll", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2",
	"read", "readv", "write", "writev",
	// files
	"access", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fdatasync", "fstatfs", "fsync",
	"ftruncate", "getcwd", "getdents64", "linkat", "lstat", "mkdirat", "newfstatat", "open", "openat", "openat2",
	"readlink", "readlinkat", "renameat", "renameat2", "stat", "statx", "symlinkat", "unlinkat", "utimensat",
	// the process itself
	"getegid", "geteuid", "getgid", "getrandom", "getrlimit", "getrusage", "getuid", "sched_getparam",
	"sched_getscheduler", "sysinfo", "uname",
}

// policy allows these calls, with any other one failing with EPERM. A clone3
// hides its flags in memory and fails with ENOSYS, so that the C library takes
// clone.
func policy() seccomp.Policy {
	return seccomp.Policy{
		DefaultAction: seccomp.ActionErrno,
		Syscalls: []seccomp.SyscallGroup{
			{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: known("clone3")},
			{Action: seccomp.ActionAllow, Names: known(allowed...), NamesWithCondtions: conditions()},
		},
	}
}

// known are the names that this architecture has.
func known(names ...string) []string {
	info, err := arch.GetInfo("")
	if err != nil {
		return names // the filter says so when it is assembled
	}
	var have []string
	for _, name := range names {
		if _, ok := info.SyscallNames[name]; ok {
			have = append(have, name)
		}
	}
	return have
}

// fcntls are the commands of fcntl that take any argument: copies and flags of
// descriptors, and the seals of the engine's memory images. There is none by which
// the kernel signals for a process (F_SETOWN, F_SETOWN_EX, F_SETSIG, F_NOTIFY), nor
// a lease, for which whoever opens the file has to wait. A list of those that are
// refused would not do: the kernel reads 32 bits of a command and the filter 64.
var fcntls = []uint64{
	unix.F_DUPFD, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_ADD_SEALS, unix.F_GET_SEALS,
}

// conditions allow calls with some arguments only: clone for threads, signals
// to itself, its own limits, names for threads and memory, and what it may do to
// its descriptors.
func conditions() []seccomp.NameWithConditions {
	argument := func(i uint32, op seccomp.Operation, value uint64) seccomp.ArgumentConditions {
		return seccomp.ArgumentConditions{{Argument: i, Operation: op, Value: value}}
	}
	self := uint64(os.Getpid())
	all := []seccomp.NameWithConditions{
		{Name: "clone", Conditions: argument(0, seccomp.BitsSet, unix.CLONE_THREAD)},
		{Name: "tgkill", Conditions: argument(0, seccomp.Equal, self)},
		{Name: "kill", Conditions: argument(0, seccomp.Equal, self)},
		{Name: "prlimit64", Conditions: seccomp.ArgumentConditions{
			{Argument: 0, Operation: seccomp.Equal, Value: 0},
			{Argument: 2, Operation: seccomp.Equal, Value: 0}, // reads alone
		}},
		{Name: "prctl", Conditions: argument(0, seccomp.Equal, unix.PR_SET_NAME)},
		{Name: "prctl", Conditions: argument(0, seccomp.Equal, unix.PR_SET_VMA)},
		{Name: "fcntl", Conditions: seccomp.ArgumentConditions{
			{Argument: 1, Operation: seccomp.Equal, Value: unix.F_SETFL},
			{Argument: 2, Operation: seccomp.BitsNotSet, Value: unix.O_ASYNC}, // it asks for signals
		}},
	}
	for _, command := range fcntls {
		all = append(all, seccomp.NameWithConditions{Name: "fcntl", Conditions: argument(1, seccomp.Equal, command)})
	}
	return all
}
