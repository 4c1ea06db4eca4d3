//go:build !linux

package sandbox

import "os"

// inlet is the reading end of a pipe. Here its reader waits in the runtime's poller.
type inlet struct{ *os.File }

func newInlet(fd int) (*inlet, error) {
	f, err := pollable(fd, "pipe")
	return &inlet{f}, err
}

func (i *inlet) setPatience(patience) {}

// Close is idempotent.
func (i *inlet) Close() error { return closeAgain(i.File) }
