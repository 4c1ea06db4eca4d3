package sandbox_test

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// BenchmarkRoundTrip has a byte go to a process that does nothing else and back:
// what a sandbox process adds to a run is more than that, on whatever machine. After a
// pause the processors sleep, as they do while a guest runs for longer. It gives medians.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("at once", func(b *testing.B) { roundTrips(b, 0) })
	b.Run("after a pause", func(b *testing.B) { roundTrips(b, time.Millisecond) })
}

func roundTrips(b *testing.B, pause time.Duration) {
	b.Helper()
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
	var took []time.Duration
	for b.Loop() {
		time.Sleep(pause)
		began := time.Now()
		if _, err := toCat.Write(one[:]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(fromCat, one[:]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "µs")
}
