package sandbox

import (
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

// TestAnEndingIsToldBeforeTheMemoryIsPutBack: that takes a while, and nobody waits for
// it. With neighbours, who would be blamed for a process that dies of it, it comes first.
func TestAnEndingIsToldBeforeTheMemoryIsPutBack(t *testing.T) {
	t.Parallel()
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	path := testenv.WAT(t, "noop")
	binary, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	digest := protocol.DigestOf(binary)
	if err := e.modules.load(source{path: path, digest: digest}); err != nil {
		t.Fatal(err)
	}
	for density, want := range map[int]int64{1: 1, 2: 0} {
		conn := &guestsAtWrite{engine: e}
		place := &childSlot{c: &child{cfg: helloRun{Density: density}, engine: e}, data: newPipe(conn)}
		r := newChildRun(place, &remoteSpec{number: 1, Spec: Spec{Module: path, Digest: digest, Limits: protocol.DefaultLimits()}})
		end := r.run()
		if err := place.end(r, &end); err != nil || end.Kind != Exited {
			t.Fatalf("run = %+v, %v, want exited", end, err)
		}
		sent := said(conn.sent.Bytes())
		last := messageKind(0)
		for kind, _, err := sent.receive(); err == nil; kind, _, err = sent.receive() {
			last = kind
		}
		if last != msgEnding {
			t.Errorf("density %d: the last word is %q, want the ending", density, last)
		}
		if got := conn.guests[len(conn.guests)-1]; got != want {
			t.Errorf("density %d: %d guests have their memory when the ending is told, want %d", density, got, want)
		}
	}
}
