// Command starling runs packaged AI agents (capsules) on a fleet of workers over
// NATS JetStream. The command line is thin: it reads settings, wires the parts,
// and turns what they say into text, JSON and an exit status.
//
// A file is a command or what several share: root.go the program, settings.go the
// environment and the flags, source.go and task.go what is run, client.go and
// embedded.go the bus that is there and the fleet in this process, show.go what
// observers see, harmless.go what keeps others' texts from steering a terminal,
// exit.go the exit statuses and what to do about errors.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// A reader that goes (`starling run … | head`) must not end the program before
	// it has cleaned up: writes fail instead.
	signal.Ignore(syscall.SIGPIPE)
	// What libraries print by themselves may be a stranger's word: net/http prints what
	// a server sends that was not asked, which can hold a secret that it was sent.
	log.SetOutput(io.Discard)
	os.Exit(run(context.Background(), os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
