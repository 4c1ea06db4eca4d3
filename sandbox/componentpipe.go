package sandbox

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// guestPipe is stdout or stderr of a component. The engine opens the other end
// by its path, since components write to files: their streams belong to the
// engine, and no host function can stand in front of them as it does for
// modules. Whatever the guest has written is in the pipe when its call returns.
type guestPipe struct {
	read, write *os.File
	raw         syscall.RawConn // of read
	path        string          // of write
	take        func([]byte)    // is given what was read; called under mu
	mu          *sync.Mutex
	buffer      []byte // guarded by mu
}

func newGuestPipe(mu *sync.Mutex, take func([]byte)) (*guestPipe, error) {
	p := &guestPipe{take: take, mu: mu, buffer: make([]byte, pieceBytes)}
	var err error
	if p.read, p.write, err = os.Pipe(); err != nil {
		return nil, err
	}
	var raw syscall.RawConn
	if p.raw, err = p.read.SyscallConn(); err == nil {
		raw, err = p.write.SyscallConn()
	}
	if err == nil {
		err = raw.Control(func(fd uintptr) { p.path = fmt.Sprintf("/proc/self/fd/%d", fd) })
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// follow reads until close. It blocks.
func (p *guestPipe) follow() {
	_ = p.raw.Read(func(fd uintptr) bool { // ends with close, which is no error
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.readAll(int(fd))
	})
}

// drain reads what is there now. The caller holds mu.
func (p *guestPipe) drain() {
	_ = p.raw.Control(func(fd uintptr) { p.readAll(int(fd)) }) // closed: nothing is there
}

// readAll reads until the pipe is empty and reports whether it is at its end. mu
// is held.
func (p *guestPipe) readAll(fd int) bool {
	for {
		n, err := syscall.Read(fd, p.buffer)
		switch {
		case n > 0:
			p.take(p.buffer[:n])
		case errors.Is(err, syscall.EINTR):
		default:
			return !errors.Is(err, syscall.EAGAIN)
		}
	}
}

func (p *guestPipe) close() error { return errors.Join(p.write.Close(), p.read.Close()) }
