package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestAReaderThatGoesIsNoError of the command's: it ends without a word.
func TestAReaderThatGoesIsNoError(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	for _, command := range []string{"ps --all", "workers", "stats", "stats --json", "capsule ls", "dlq ls", "doctor"} {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = reader.Close() // nobody reads
		var said bytes.Buffer
		cmd := program(t, append(strings.Fields(command), "--url", f.server.ClientURL())...)
		cmd.Stdout, cmd.Stderr = writer, &said
		_ = cmd.Run() // 1, for nothing was written
		_ = writer.Close()
		if cmd.ProcessState.ExitCode() != exitFailure || said.Len() > 0 {
			t.Errorf("starling %s into a closed pipe = %v, says %q; want %d and no word", command, cmd.ProcessState, said.String(), exitFailure)
		}
	}
}
