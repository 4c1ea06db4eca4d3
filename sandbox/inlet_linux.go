package sandbox

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inlet is the reading end of a pipe. When its last wait was short, the reader waits on
// its own thread first, as its patience says; otherwise in the runtime's poller at once.
//
// The poller does not know the pipe but a descriptor beside it, the gate, that is
// readable when the pipe is, once, after it was asked to: a pipe in the poller wakes
// the thread that waits there for each message, also when another reads it.
type inlet struct {
	file     *os.File // that does not block and is not in the poller
	fd       syscall.RawConn
	patience patience
	quick    bool // the last wait was short; the reader's
	made     time.Time
	deadline atomic.Int64 // in nanoseconds after made; 0: none

	gate     *os.File // an epoll instance with the pipe in it
	gateConn syscall.RawConn
	known    bool // the pipe is in it; the reader's
}

// newInlet owns fd, also when it fails.
func newInlet(fd int) (_ *inlet, err error) {
	// A file that does not block when it is made is put in the poller.
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(fmt.Errorf("descriptor %d: %w", fd, err), unix.Close(fd))
	}
	i := &inlet{made: time.Now(), file: os.NewFile(uintptr(fd), "pipe")}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.file.Close())
		}
	}()
	if i.fd, err = i.file.SyscallConn(); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if i.gate, err = pollable(epoll, "gate"); err != nil {
		return nil, err
	}
	if i.gateConn, err = i.gate.SyscallConn(); err != nil {
		return nil, errors.Join(err, i.gate.Close())
	}
	return i, nil
}

// setPatience is called before the first read, or by the reader.
func (i *inlet) setPatience(p patience) { i.patience = p }

// Read is [io.Reader]'s. Past the deadline it is [os.ErrDeadlineExceeded], also when
// there is something to read; of a closed inlet it is an error of no certain kind.
func (i *inlet) Read(b []byte) (int, error) {
	for {
		began := time.Now()
		if at := i.deadline.Load(); at != 0 && began.Sub(i.made) >= time.Duration(at) {
			return 0, os.ErrDeadlineExceeded // also when there is always something to read
		}
		if err := i.await(); err != nil {
			return 0, err
		}
		n, err := i.file.Read(b)
		if i.quick = time.Since(began) < i.patience.most; errors.Is(err, unix.EAGAIN) {
			continue // the other side can read its own words away
		}
		return n, err
	}
}

// await returns when there is something to read, or there was.
func (i *inlet) await() error {
	if i.quick {
		if ready, err := i.wait(); ready || err != nil {
			return err
		}
	}
	return i.pass()
}

// wait waits on this thread, for a moment, and reports whether there is something to
// read. A signal ends it too.
func (i *inlet) wait() (ready bool, err error) {
	err = i.fd.Control(func(fd uintptr) {
		for began := time.Now(); time.Since(began) < i.patience.awake; {
			if ready = i.poll(fd, 0); ready {
				return
			}
			i.yield()
		}
		ready = i.poll(fd, i.patience.most)
	})
	return ready, err
}

// poll reports whether there is something to read, and waits for so long at most.
func (i *inlet) poll(fd uintptr, most time.Duration) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	timeout := unix.NsecToTimespec(int64(most))
	if !i.patience.keepsProcessor {
		n, err := unix.Ppoll(fds[:], &timeout, nil)
		return err == nil && n > 0
	}
	n, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 1,
		uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	return errno == 0 && n > 0
}

// yield lets other threads run that wait for this one's processor. It does not fail.
func (i *inlet) yield() {
	if i.patience.keepsProcessor {
		_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		return
	}
	_, _, _ = syscall.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// pass waits in the poller until there is something to read.
func (i *inlet) pass() error {
	var problem error
	asked := false
	err := i.gateConn.Read(func(gate uintptr) bool {
		if !asked { // in here: what comes from now on is not overlooked
			asked = true
			problem = i.ask(int(gate))
			return problem != nil
		}
		var events [1]unix.EpollEvent
		n, _ := unix.EpollWait(int(gate), events[:], 0) // of a gate that is open it does not fail
		return n > 0
	})
	return errors.Join(problem, err)
}

// ask has the gate become readable, once, when the pipe is.
func (i *inlet) ask(gate int) (err error) {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
	operation := unix.EPOLL_CTL_MOD
	if !i.known {
		operation = unix.EPOLL_CTL_ADD
	}
	problem := i.fd.Control(func(fd uintptr) { err = unix.EpollCtl(gate, operation, int(fd), &event) })
	if err = errors.Join(problem, err); err == nil {
		i.known = true
	}
	return err
}

// SetDeadline bounds reads; the zero time is no bound.
func (i *inlet) SetDeadline(at time.Time) error {
	after := int64(0)
	if !at.IsZero() {
		after = max(1, int64(at.Sub(i.made)))
	}
	i.deadline.Store(after)
	return i.gate.SetReadDeadline(at)
}

// Close is idempotent. A reader that waits is woken, or notices within patience.
func (i *inlet) Close() error {
	return errors.Join(closeAgain(i.gate), closeAgain(i.file))
}
