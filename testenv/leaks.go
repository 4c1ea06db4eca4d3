package testenv

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// endWithin is how long what a test started may take to end on a busy machine.
const endWithin = 30 * time.Second

// Main runs a package's tests and fails them when goroutines are left. Servers
// take longer to end than goleak waits by itself, so it looks again for a while:
// a goroutine that ends late is no leak.
// In a process that [ServerProcess] started it is the server instead.
func Main(m interface{ Run() int }) {
	if config := os.Getenv(asServer); config != "" {
		os.Exit(serve(config))
	}
	status := m.Run()
	if status == 0 {
		if err := leaks(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines are left %s after the tests: %v\n", endWithin, err)
			status = 1
		}
	}
	os.Exit(status)
}

func leaks() error {
	var err error
	for began := time.Now(); time.Since(began) < endWithin; {
		if err = goleak.Find(); err == nil { // it waits a second or two
			return nil
		}
	}
	return err
}
