//go:build !wasip1 || starling_portable

package guest

import "os"

// send writes a line to stdout. That it cannot is nothing a capsule could tell
// anybody.
func send(o object) { _, _ = os.Stdout.Write(append(o, '\n')) }

// Canceled reports whether the task was canceled; in this build it never is.
func Canceled() bool { return false }
