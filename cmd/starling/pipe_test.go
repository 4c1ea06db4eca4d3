package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/testenv"
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

// TestADoorThatNobodyReads closes, and says what it took: later news stay with whoever
// brings them.
func TestADoorThatNobodyReads(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close() // nobody reads
	t.Cleanup(func() { _ = writer.Close() })
	var said output
	door := program(t, "door", "--session", "ses_unread", "--listen", "127.0.0.1:0")
	door.Stdout, door.Stderr = writer, &said
	process := startProcess(t, door)
	var address string
	testenv.EventuallyTrue(t, 30*time.Second, "the door's address", func() bool {
		_, address, _ = strings.Cut(said.String(), " at ")
		return strings.HasSuffix(address, "\n")
	})
	rec := decoded[protocol.Record](t, o.must("dispatch", "hello@1.0.0", "--task", "x", "--session", "ses_unread", "--door", strings.TrimSpace(address), "--wait", "--json"))
	if status := exitCode(process.ended(t)); status != exitFailure {
		t.Errorf("the door ends with %d, want %d", status, exitFailure)
	}
	contains(t, "the door's stderr", said.String(), string(protocol.CompletionMessageID(rec.DelegationID)), string(rec.DelegationID), "was taken and not printed", "it is closed")
}
