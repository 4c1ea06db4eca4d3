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
// what a sandbox process adds to a run is more than that, on whatever machine. It gives
// medians, without what either side did between.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("at once", func(b *testing.B) { roundTrips(b, func() {}, 0) })
	// The processors sleep.
	b.Run("after a pause", func(b *testing.B) { roundTrips(b, func() { time.Sleep(time.Millisecond) }, 0) })
	// As beside the sieve in BenchmarkBesideFloor: each side sleeps while the other works.
	b.Run("with work", func(b *testing.B) { roundTrips(b, func() { work(700 * time.Microsecond) }, 350*time.Microsecond) })
}

func roundTrips(b *testing.B, between func(), works time.Duration) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	answering := exec.Command(self, "answer", works.String())
	in, ask, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	answers, out, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	answering.Stdin, answering.Stdout, answering.Stderr = in, out, os.Stderr
	if err := answering.Start(); err != nil {
		b.Fatal(err)
	}
	_, _ = in.Close(), out.Close() // the process has its own
	_, _ = ask.Fd(), answers.Fd()  // from here on they block, on this thread
	defer func() {
		_ = ask.Close() // which ends it
		if err := answering.Wait(); err != nil {
			b.Error(err)
		}
		_ = answers.Close()
	}()
	var one [1]byte
	var took []time.Duration
	for b.Loop() {
		between()
		began := time.Now()
		if _, err := ask.Write(one[:]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(answers, one[:]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began)-works)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "µs")
}

// answer is the program on the other side: it works, and answers.
func answer(works string) int {
	d, err := time.ParseDuration(works)
	if err != nil {
		return 2
	}
	var one [1]byte
	for {
		if _, err := os.Stdin.Read(one[:]); err != nil {
			return 0
		}
		work(d)
		if _, err := os.Stdout.Write(one[:]); err != nil {
			return 1
		}
	}
}

func work(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
	}
}
