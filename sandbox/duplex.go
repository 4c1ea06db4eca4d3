package sandbox

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// duplex is one end of the kernel's pipes between a worker and a sandbox process, one
// for each direction. Reads are one goroutine's, the rest is safe for concurrent use.
type duplex struct {
	in  *inlet   // nil: this end only writes
	out *os.File // nil: this end only reads
}

// patience is how a reader waits before it does so in the runtime's poller. The zero
// value is not at all. See docs/rationale.md, "Why pipes, and how are they waited for?".
type patience struct {
	// awake is how long it looks again and again, before it sleeps: for about as long as
	// it takes to be woken. Whoever else wants the processor gets it.
	awake time.Duration
	// most is how long it sleeps in the kernel after that.
	most time.Duration
	// keepsProcessor says that the runtime does not hear of it: no other goroutine gets
	// the processor meanwhile, and the runtime does not look after the thread.
	keepsProcessor bool
}

var (
	// workerPatience is above what a short guest takes.
	workerPatience = patience{awake: 20 * time.Microsecond, most: 500 * time.Microsecond}
	// processPatience is above what lies between the runs of a worker with much to do.
	// A process with one guest at a time has nothing else to do.
	processPatience = patience{awake: 50 * time.Microsecond, most: 2 * time.Millisecond, keepsProcessor: true}
)

func (d *duplex) Read(b []byte) (int, error)  { return d.in.Read(b) }
func (d *duplex) Write(b []byte) (int, error) { return d.out.Write(b) }

// SetDeadline bounds reads and writes; a read notices within its patience.
func (d *duplex) SetDeadline(at time.Time) error {
	var problems []error
	if d.in != nil {
		problems = append(problems, d.in.SetDeadline(at))
	}
	if d.out != nil {
		problems = append(problems, d.out.SetWriteDeadline(at))
	}
	return errors.Join(problems...)
}

// Close is idempotent.
func (d *duplex) Close() error {
	var problems []error
	if d.in != nil {
		problems = append(problems, d.in.Close())
	}
	if d.out != nil {
		problems = append(problems, closeAgain(d.out))
	}
	return errors.Join(problems...)
}

// closeAgain closes a file that may be closed.
func closeAgain(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// dataPipes are the worker's end of what goes both ways, and the files of the
// process's end.
func dataPipes() (*duplex, []*os.File, error) {
	d, theirIn, err := pipeToProcess()
	if err != nil {
		return nil, nil, err
	}
	fail := func(err error) (*duplex, []*os.File, error) {
		return nil, nil, errors.Join(err, d.Close(), theirIn.Close())
	}
	fds, err := newPipeFiles()
	if err != nil {
		return fail(err)
	}
	in, err := newInlet(fds[0])
	if err != nil {
		return fail(errors.Join(err, unix.Close(fds[1])))
	}
	in.setPatience(workerPatience)
	d.in = in
	return d, []*os.File{theirIn, os.NewFile(uintptr(fds[1]), "to the worker")}, nil
}

// pipeToProcess is the worker's end of what goes to the process alone, and the file of
// the process's end.
func pipeToProcess() (*duplex, *os.File, error) {
	fds, err := newPipeFiles()
	if err != nil {
		return nil, nil, err
	}
	out, err := pollable(fds[1], "to a sandbox process")
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]))
	}
	return &duplex{out: out}, os.NewFile(uintptr(fds[0]), "from the worker"), nil
}

// newPipeFiles is a pipe of which no process that is started meanwhile has a part.
func newPipeFiles() (fds [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := unix.Pipe(fds[:]); err != nil {
		return fds, fmt.Errorf("pipe: %w", err)
	}
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	return fds, nil
}

// inheritedPipes are an end whose descriptors this process was started with; out is
// -1 where there is none.
func inheritedPipes(in, out int) (_ *duplex, err error) {
	for _, fd := range []int{in, out} {
		if fd >= 0 && !isPipe(fd) {
			return nil, fmt.Errorf("descriptor %d is no pipe", fd)
		}
	}
	d := &duplex{}
	if out >= 0 {
		unix.CloseOnExec(out)
		if d.out, err = pollable(out, "to the worker"); err != nil {
			return nil, err
		}
	}
	unix.CloseOnExec(in)
	if d.in, err = newInlet(in); err != nil {
		return nil, err // and this process ends
	}
	return d, nil
}

func isPipe(fd int) bool {
	var stat unix.Stat_t
	return unix.Fstat(fd, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFIFO
}

// pollable is a file that is waited for in the runtime's poller. It owns fd, also when
// it fails.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("descriptor %d: %w", fd, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}
