// Command echo is a Go program that knows nothing of Starling: it writes what it
// reads.
package main

import (
	"io"
	"log"
	"os"
)

func main() {
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		log.Fatal(err)
	}
}
