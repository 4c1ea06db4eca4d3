// Command starling runs packaged AI agents (capsules) on a fleet of workers over
// NATS JetStream. The command line is thin: it reads settings, wires the parts,
// and turns what they say into text, JSON and an exit status.
//
// Each file is a command; settings.go reads the environment and the flags,
// exit.go maps errors to exit statuses and says what to do about them, show.go
// prints what observers see.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
