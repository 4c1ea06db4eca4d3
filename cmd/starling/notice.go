package main

import (
	"fmt"
	"time"
)

// patience is how long something may take before the user is told what it is.
const patience = time.Second

// unlessQuick says a line on standard error once patience is over, unless the
// returned function was called before.
func (a *app) unlessQuick(format string, args ...any) (done func()) {
	timer := time.AfterFunc(patience, func() { fmt.Fprintf(a.err, "starling: "+format+"\n", args...) })
	return func() { timer.Stop() }
}

// megabytes is a size for people.
func megabytes(n int) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
