package confine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"starling/sandbox/internal/confine"
)

// TestMain makes the test binary the process that is confined and tries.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "try" {
		os.Exit(try(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

// tried is what came of each attempt; empty is success.
type tried struct {
	Report  confine.Report
	Results map[string]string
}

// try confines itself and then does what a guest that broke out would.
func try(dir, listener string) int {
	held, err := os.Open("/etc/hostname") // open before: stays open
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	parent := uintptr(os.Getppid()) // which a confined process cannot ask for
	report, err := confine.Apply(confine.Rules{
		ReadDirs: []string{filepath.Join(dir, "read")}, WriteDirs: []string{filepath.Join(dir, "write")},
		OpenFiles: 64, AddressSpaceBytes: 8 << 30, CPUSeconds: 60, Nice: 5,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	results := map[string]string{}
	for name, attempt := range attempts(dir, listener, held, parent) {
		text := ""
		if err := attempt(); err != nil {
			text = err.Error()
		}
		results[name] = text
	}
	_ = json.NewEncoder(os.Stdout).Encode(tried{report, results})
	return 0
}

func attempts(dir, listener string, held *os.File, parent uintptr) map[string]func() error {
	in := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	write := func(path string) func() error { return func() error { return os.WriteFile(path, []byte("x"), 0o600) } }
	raw := func(number uintptr, args ...uintptr) func() error {
		return func() error {
			var a [6]uintptr
			copy(a[:], args)
			if _, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
				return errno
			}
			return nil
		}
	}
	fcntl := func(command, value uintptr) func() error { return raw(unix.SYS_FCNTL, socket, command, value) }
	ioctl := func(request uint) func() error {
		return func() error { return unix.IoctlSetPointerInt(socket, request, int(parent)) }
	}
	return map[string]func() error{
		"ok: read where it may":    func() error { _, err := os.ReadFile(in("read", "file")); return err },
		"ok: list where it may":    func() error { _, err := os.ReadDir(in("write")); return err },
		"ok: write where it may":   write(in("write", "new")),
		"ok: read an open file":    func() error { _, err := held.Stat(); return err },
		"ok: make a directory":     func() error { return os.Mkdir(in("write", "sub"), 0o700) },
		"ok: rename across":        func() error { return renameAcross(in("write")) },
		"ok: a link to nowhere":    func() error { return os.Symlink("/etc/passwd", in("write", "link")) },
		"ok: more threads":         moreThreads,
		"no: follow the link":      func() error { return renameLink(in("write")) },
		"no: read /etc/passwd":     func() error { _, err := os.ReadFile("/etc/passwd"); return err },
		"no: list /":               func() error { _, err := os.ReadDir("/"); return err },
		"no: read a neighbour":     func() error { _, err := os.ReadFile(in("other", "file")); return err },
		"no: read /proc":           func() error { _, err := os.ReadFile("/proc/" + strconv.Itoa(int(parent)) + "/environ"); return err },
		"no: write where it reads": write(in("read", "new")),
		"no: write outside":        write(in("other", "new")),
		"no: write to /tmp":        write(filepath.Join(os.TempDir(), "starling-confine-test")),
		"no: exec":                 func() error { return syscall.Exec("/bin/true", []string{"true"}, nil) },
		"no: start a program":      func() error { return exec.Command("/bin/true").Run() },
		"no: fork":                 raw(unix.SYS_CLONE, uintptr(syscall.SIGCHLD)),
		"no: connect by TCP":       func() error { return dial("tcp", listener) },
		"no: connect by UDP":       func() error { return dial("udp", listener) },
		"no: a Unix socket":        func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"no: listen":               func() error { _, err := net.Listen("tcp", "127.0.0.1:0"); return err },
		"no: ptrace":               raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, parent),
		"no: read others' memory":  raw(unix.SYS_PROCESS_VM_READV, parent),
		"no: kill the worker":      raw(unix.SYS_KILL, parent, 0),
		"no: kill everybody":       raw(unix.SYS_KILL, ^uintptr(0), 0),
		"no: kill by thread":       raw(unix.SYS_TGKILL, parent, parent, 0),
		"no: unshare":              raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		"no: mount":                raw(unix.SYS_MOUNT),
		"no: io_uring":             raw(unix.SYS_IO_URING_SETUP),
		"no: bpf":                  raw(unix.SYS_BPF),
		"no: userfaultfd":          raw(unix.SYS_USERFAULTFD),
		"no: keys":                 raw(unix.SYS_KEYCTL),
		"no: open by handle":       raw(unix.SYS_OPEN_BY_HANDLE_AT),
		"no: be another user":      raw(unix.SYS_SETUID, 65534),
		"no: take more files":      func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4096, Max: 4096}) },
		"no: too many files":       tooManyFiles,
		"no: too much memory":      tooMuch,
		"no: its own memory":       func() error { _, err := os.ReadFile("/proc/self/mem"); return err },
		"no: be traced":            raw(unix.SYS_PRCTL, unix.PR_SET_PTRACER, parent),
		"no: a FIFO":               raw(unix.SYS_MKNODAT),

		"ok: copy a descriptor":         fcntl(unix.F_DUPFD_CLOEXEC, 0),
		"ok: set a descriptor's flag":   fcntl(unix.F_SETFL, unix.O_NONBLOCK|unix.O_APPEND),
		"ok: seal memory":               sealMemory,
		"EPERM: own a socket's signals": fcntl(unix.F_SETOWN, parent),
		"EPERM: for a group":            fcntl(unix.F_SETOWN, -parent),
		"EPERM: for a thread":           func() error { return ownByThread(parent) },
		"EPERM: with another bit":       fcntl(ignored|unix.F_SETOWN, parent),
		"EPERM: by ioctl":               ioctl(fiosetown),
		"EPERM: for a group by ioctl":   ioctl(unix.SIOCSPGRP),
		"EPERM: choose the signal":      fcntl(unix.F_SETSIG, uintptr(unix.SIGTERM)),
		"EPERM: ask for signals":        fcntl(unix.F_SETFL, unix.O_ASYNC),
		"EPERM: ask with other flags":   fcntl(unix.F_SETFL, ignored|unix.O_ASYNC|unix.O_NONBLOCK),
		"EPERM: ask by ioctl":           ioctl(fioasync),
		"EPERM: ask for a directory's":  func() error { return notify(in("write")) },
		"EPERM: hold up an opener":      raw(unix.SYS_FCNTL, held.Fd(), unix.F_SETLEASE, unix.F_RDLCK),
	}
}

const (
	socket    = 0       // the standard input of the process that tries
	ignored   = 1 << 32 // a bit of a call's argument that the kernel does not look at
	fioasync  = 0x5452  // asm-generic/ioctls.h
	fiosetown = 0x8901  // asm-generic/sockios.h
)

// ownByThread has the kernel signal a thread of another process for a socket.
func ownByThread(id uintptr) error {
	owner := struct{ kind, id int32 }{0, int32(id)} // F_OWNER_TID, of asm-generic/fcntl.h
	_, _, errno := syscall.Syscall(unix.SYS_FCNTL, socket, unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
	if errno != 0 {
		return errno
	}
	return nil
}

// notify asks for a signal when a file is made in a directory.
func notify(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil // which would be a failure of the test
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_NOTIFY, 4) // DN_CREATE, of linux/fcntl.h
	return errors.Join(err, unix.Close(fd))
}

// sealMemory does what the engine does with the image of a module's memory.
func sealMemory() error {
	fd, err := unix.MemfdCreate("image", unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	return errors.Join(err, unix.Close(fd))
}

// renameAcross moves and links files between directories, as programs do.
func renameAcross(dir string) error {
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	from, to := filepath.Join(dir, "a", "f"), filepath.Join(dir, "b", "f")
	return errors.Join(os.WriteFile(from, nil, 0o600), os.Link(from, to+"2"), os.Rename(from, to))
}

// renameLink reads through a link that the guest may make.
func renameLink(dir string) error {
	link := filepath.Join(dir, "out")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		return nil // which would be a failure of the test
	}
	_, err := os.ReadFile(link)
	return err
}

func dial(network, address string) error {
	conn, err := net.Dial(network, address)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

func moreThreads() error {
	done := make(chan struct{})
	for range 8 {
		go func() {
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 1_000_000}, nil)
			done <- struct{}{}
		}()
	}
	for range 8 {
		<-done
	}
	return nil
}

func tooManyFiles() error {
	var open []int
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	}()
	for range 100 {
		fd, err := unix.Dup(0)
		if err != nil {
			return err
		}
		open = append(open, fd)
	}
	return nil
}

func tooMuch() error {
	p, err := unix.MmapPtr(-1, 0, unsafe.Pointer(nil), 9<<30, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err == nil {
		_ = unix.MunmapPtr(p, 9<<30)
	}
	return err
}

func TestAConfinedProcessCannotDoMoreThanItMay(t *testing.T) {
	t.Parallel()
	if missing := confine.Support().Missing(); len(missing) > 0 {
		if os.Getenv("CI") != "" {
			t.Fatalf("this kernel cannot enforce it, and CI must run this test: %s", strings.Join(missing, "; "))
		}
		t.Skipf("this kernel cannot enforce it: %s", strings.Join(missing, "; "))
	}
	dir := t.TempDir()
	for _, sub := range []string{"read", "write", "other"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, sub, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self, "try", dir, listener.Addr().String())
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	its, ours := os.NewFile(uintptr(pair[0]), "its"), os.NewFile(uintptr(pair[1]), "ours")
	defer its.Close()
	defer ours.Close()
	command.Stdin = its
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, stderr.String(), out)
	}
	var got tried
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	if missing := got.Report.Missing(); len(missing) > 0 {
		t.Errorf("the report misses %q, want nothing", missing)
	}
	for name, text := range got.Results {
		if may := strings.HasPrefix(name, "ok: "); may != (text == "") {
			t.Errorf("%s: %q", name, text)
		}
		if strings.HasPrefix(name, "EPERM: ") && !strings.Contains(text, unix.EPERM.Error()) {
			t.Errorf("%s: %q, want it refused by the filter", name, text)
		}
	}
	if len(got.Results) < 55 {
		t.Errorf("%d attempts, want all", len(got.Results))
	}
}

func TestMissingNamesWhatAKernelLacks(t *testing.T) {
	t.Parallel()
	if got := (confine.Report{NoNewPrivs: true, Seccomp: true, Landlock: 2}).Missing(); got != nil {
		t.Errorf("Missing() = %q, want none", got)
	}
	got := strings.Join(confine.Report{}.Missing(), "\n")
	for _, want := range []string{"no_new_privs", "seccomp", "Landlock"} {
		if !strings.Contains(got, want) {
			t.Errorf("Missing() = %q, want %s in it", got, want)
		}
	}
}
