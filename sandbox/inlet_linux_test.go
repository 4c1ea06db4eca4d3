package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"starling/testenv"
)

// inletOf is the reading end of a pipe and the file that writes to it. With patience
// it waits in the kernel first.
func inletOf(t *testing.T, p patience) (*inlet, *os.File) {
	t.Helper()
	fds, err := newPipeFiles()
	if err != nil {
		t.Fatal(err)
	}
	in, err := newInlet(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	in.setPatience(p)
	in.quick = p.most > 0
	out := os.NewFile(uintptr(fds[1]), "out")
	t.Cleanup(func() { _, _ = in.Close(), closeAgain(out) }) // a test may have closed them
	return in, out
}

// waysToWait are in the poller, and in the kernel: for a moment, and for as long as a
// test lasts.
var waysToWait = map[string]patience{
	"in the poller":                        {},
	"for a moment":                         {most: time.Microsecond},
	"awake first":                          {awake: time.Millisecond, most: time.Millisecond},
	"in the kernel":                        {most: time.Minute},
	"in the kernel, keeping the processor": {most: time.Second, keepsProcessor: true},
}

// TestNoMessageIsOverlooked sends bytes to and fro between readers that wait in
// every way, in turns.
func TestNoMessageIsOverlooked(t *testing.T) {
	t.Parallel()
	for name, p := range waysToWait {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, toHere := inletOf(t, p)
			there, toThere := inletOf(t, p)
			var other sync.WaitGroup
			defer other.Wait()
			other.Go(func() {
				defer closeAgain(toHere)
				var b [1]byte
				for {
					if _, err := there.Read(b[:]); err != nil {
						return
					}
					if _, err := toHere.Write(b[:]); err != nil {
						return
					}
				}
			})
			defer closeAgain(toThere)
			for n := range 2000 {
				if n%3 == 0 {
					here.quick = !here.quick
				}
				b := [1]byte{byte(n)}
				if _, err := toThere.Write(b[:]); err != nil {
					t.Fatal(err)
				}
				if n%2 == 0 {
					runtime.Gosched()
				}
				if got, err := here.Read(b[:]); got != 1 || err != nil || b[0] != byte(n) {
					t.Fatalf("Read = %d, %v with %d, want %d", got, err, b[0], byte(n))
				}
			}
		})
	}
}

// reading is a Read that is under way.
type reading struct {
	id  string // of its goroutine, as stacks name it
	err chan error
}

func startReading(in *inlet) *reading {
	r, ids := &reading{err: make(chan error, 1)}, make(chan string)
	go func() {
		var stack [64]byte
		id, _, _ := strings.Cut(string(stack[:runtime.Stack(stack[:], false)]), " [")
		ids <- id
		_, err := in.Read(make([]byte, 1))
		r.err <- err
	}()
	r.id = <-ids
	return r
}

// await returns once it waits for something to read, or did.
func (r *reading) await(t *testing.T) {
	t.Helper()
	all := make([]byte, 4<<20)
	testenv.EventuallyTrue(t, 30*time.Second, "the reader waits", func() bool {
		for stack := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
			if strings.HasPrefix(stack, r.id+" [") {
				return strings.Contains(stack, "(*inlet).await")
			}
		}
		return len(r.err) > 0
	})
}

// TestAReaderHearsOfTheEnd: the other side's, its own, and that of its time, before it
// reads and while it waits.
func TestAReaderHearsOfTheEnd(t *testing.T) {
	t.Parallel()
	ends := map[string]struct {
		end  func(*inlet, *os.File) error
		want error // nil: any
	}{
		"the other side closed": {func(_ *inlet, out *os.File) error { return out.Close() }, io.EOF},
		"it was closed":         {func(in *inlet, _ *os.File) error { return in.Close() }, nil},
		"its time was over": {
			func(in *inlet, _ *os.File) error { return in.SetDeadline(time.Now()) }, os.ErrDeadlineExceeded,
		},
	}
	for way, p := range waysToWait {
		p.most = min(p.most, 10*time.Millisecond)
		for name, c := range ends {
			check := func(t *testing.T, err error) {
				t.Helper()
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("Read = %v, want %v", err, c.want)
				}
			}
			t.Run(fmt.Sprintf("%s %s", name, way), func(t *testing.T) {
				t.Parallel()
				in, out := inletOf(t, p)
				r := startReading(in)
				r.await(t)
				if err := c.end(in, out); err != nil {
					t.Fatal(err)
				}
				check(t, <-r.err)
			})
			t.Run(fmt.Sprintf("%s before, %s", name, way), func(t *testing.T) {
				t.Parallel()
				in, out := inletOf(t, p)
				if err := c.end(in, out); err != nil {
					t.Fatal(err)
				}
				_, err := in.Read(make([]byte, 1))
				check(t, err)
			})
		}
	}
}

// TestTimeIsOverAlsoForWhoNeverWaits: a process that always says something is killed
// at its deadline like one that says nothing.
func TestTimeIsOverAlsoForWhoNeverWaits(t *testing.T) {
	t.Parallel()
	for way, p := range waysToWait {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			in, out := inletOf(t, p)
			if _, err := out.Write(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			if _, err := in.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if err := in.SetDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			if n, err := in.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read = %d, %v, want that its time is over", n, err)
			}
			if err := in.SetDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if n, err := in.Read(make([]byte, 100)); n != 99 || err != nil {
				t.Errorf("Read = %d, %v, want the rest", n, err)
			}
		})
	}
}

// TestWordsThatAreReadAway: a process can open its end of the pipe again and read what
// it wrote itself. Who was told that there is something to read must not wait for it
// without a bound.
func TestWordsThatAreReadAway(t *testing.T) {
	t.Parallel()
	for way, p := range waysToWait {
		p.most = min(p.most, 10*time.Millisecond)
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			in, out := inletOf(t, p)
			if n, err := in.file.Read(make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
				t.Fatalf("a read of an empty pipe = %d, %v, want that it would block", n, err)
			}
			again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", out.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			var stolen atomic.Int64
			stop := make(chan struct{})
			var thief sync.WaitGroup
			thief.Go(func() {
				b := make([]byte, 1)
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := out.Write(b); err != nil {
						return
					}
					_ = again.SetReadDeadline(time.Now().Add(time.Millisecond))
					if n, _ := again.Read(b); n > 0 { // it may be too late
						stolen.Add(1)
					}
				}
			})
			defer thief.Wait()
			defer close(stop)
			for err == nil && stolen.Load() < 100 {
				_, err = in.Read(make([]byte, 1))
			}
			if err != nil {
				t.Fatalf("Read = %v while there is time", err)
			}
			if err := in.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = in.Read(make([]byte, 1))
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read = %v, want that its time is over", err)
			}
		})
	}
}
