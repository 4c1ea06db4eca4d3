package sandbox

import (
	"errors"
	"io"
	"os"
	"testing"

	"starling/protocol"
	"starling/testenv"
)

// guestsAtWrite notes how many guests have their memory at each write.
type guestsAtWrite struct {
	fixed
	engine *Engine
	guests []int64
}

func (g *guestsAtWrite) Write(p []byte) (int, error) {
	n := int64(0)
	for _, pool := range g.engine.machines.pools {
		n += pool.taken.Load()
	}
	g.guests = append(g.guests, n)
	return g.fixed.Write(p)
}

// openEngine is an engine that is closed with the test.
func openEngine(t *testing.T) *Engine {
	t.Helper()
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

// kept is a run of a module that e has, in a slot of a process with this density.
func kept(t *testing.T, e *Engine, conn conn, density int, module string) *childRun {
	t.Helper()
	path := testenv.WAT(t, module)
	binary, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	digest := protocol.DigestOf(binary)
	if err := e.modules.load(source{path: path, digest: digest}); err != nil {
		t.Fatal(err)
	}
	slot := &childSlot{c: &child{cfg: helloRun{Density: density}, engine: e}, data: newPipe(conn)}
	return newChildRun(slot, &remoteSpec{number: 1, Spec: Spec{Module: path, Digest: digest, Limits: protocol.DefaultLimits()}})
}

// TestAnEndingThatCannotBeTold is an error, which ends the process, also when that came
// up before the memory was put back.
func TestAnEndingThatCannotBeTold(t *testing.T) {
	t.Parallel()
	e := openEngine(t)
	r := kept(t, e, &fixed{}, 1, "noop")
	r.pipe.broken = io.ErrClosedPipe
	end := r.run()
	if err := r.tellEnding(&end); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("tellEnding = %v, want why it could not be told", err)
	}
}

// TestAnEndingIsToldBeforeTheMemoryIsPutBack after a short run: nobody waits for it.
// With neighbours, who would be blamed for a process that dies of it, it comes first,
// and after a longer run, which may leave a lot.
func TestAnEndingIsToldBeforeTheMemoryIsPutBack(t *testing.T) {
	t.Parallel()
	e := openEngine(t)
	for _, test := range []struct {
		density int
		module  string
		end     EndingKind
	}{{1, "noop", Exited}, {2, "noop", Exited}, {1, "sleep1h", LimitHit}} {
		conn := &guestsAtWrite{engine: e}
		r := kept(t, e, conn, test.density, test.module)
		r.spec.Limits.DeadlineSeconds = 1
		end := r.run()
		if err := r.tellEnding(&end); err != nil || end.Kind != test.end {
			t.Fatalf("run = %+v, %v, want %s", end, err, test.end)
		}
		sent := said(conn.sent.Bytes())
		last := messageKind(0)
		for kind, _, err := sent.receive(); err == nil; kind, _, err = sent.receive() {
			last = kind
		}
		if last != msgEnding {
			t.Errorf("%+v: the last word is %q, want the ending", test, last)
		}
		want := int64(0)
		if test.density == 1 && end.Duration < shortRun { // the machine may be busy
			want = 1
		}
		if got := conn.guests[len(conn.guests)-1]; got != want {
			t.Errorf("%+v, after %s: %d guests have their memory when the ending is told, want %d", test, end.Duration, got, want)
		}
	}
}
