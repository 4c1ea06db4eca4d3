package sandbox_test

import (
	"io"
	"os"
	"os/exec"
	"testing"
)

// BenchmarkRoundTrip has a byte go to a process that does nothing else and back:
// what a sandbox process adds to a run is more than that, on whatever machine.
func BenchmarkRoundTrip(b *testing.B) {
	cat := exec.Command("cat")
	in, toCat, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	fromCat, out, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	cat.Stdin, cat.Stdout = in, out
	if err := cat.Start(); err != nil {
		b.Fatal(err)
	}
	_, _ = in.Close(), out.Close()  // cat has its own
	_, _ = toCat.Fd(), fromCat.Fd() // from here on they block, on this thread
	defer func() {
		_ = toCat.Close() // which ends it
		if err := cat.Wait(); err != nil {
			b.Error(err)
		}
		_ = fromCat.Close()
	}()
	var one [1]byte
	for b.Loop() {
		if _, err := toCat.Write(one[:]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(fromCat, one[:]); err != nil {
			b.Fatal(err)
		}
	}
}
