package testenv

import (
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
)

// Port is a port of this host that is taken and where nobody listens yet: who
// connects is refused, and no other program can get it meanwhile.
type Port struct {
	t    testing.TB
	file *os.File
	addr string
}

// ClosedPort takes a free port until the test ends.
func ClosedPort(t testing.TB) *Port {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &Port{t: t, file: os.NewFile(uintptr(fd), "closed port")}
	t.Cleanup(func() { _ = p.file.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	p.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.(*syscall.SockaddrInet4).Port))
	return p
}

// Addr is its host and port.
func (p *Port) Addr() string { return p.addr }

// Open lets connections in. The listener is the caller's.
func (p *Port) Open() net.Listener {
	p.t.Helper()
	if err := syscall.Listen(int(p.file.Fd()), syscall.SOMAXCONN); err != nil {
		p.t.Fatal(err)
	}
	listener, err := net.FileListener(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	return listener
}
