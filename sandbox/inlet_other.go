//go:build !linux

package sandbox

import "os"

// inlet is the reading end of a pipe. Here its reader waits in the runtime's poller.
type inlet struct{ *os.File }

// newInlet owns fd, also when it fails.
func newInlet(fd int) (*inlet, error) {
	f, err := pollable(fd, "pipe")
	if err != nil {
		return nil, err
	}
	return &inlet{f}, nil
}

func (i *inlet) setPatience(patience) {}

// Close is idempotent.
func (i *inlet) Close() error { return closeAgain(i.File) }
