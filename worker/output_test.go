package worker_test

import (
	"strconv"
	"testing"

	"starling/protocol"
)

// TestOutputBeyondItsBoundIsLogged: the job ends as it would have, with what was kept.
func TestOutputBeyondItsBoundIsLogged(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	const piece, pieces = 64 << 10, protocol.MaxOutputBytes>>16 + 2
	flood := func(p *program) {
		p.do(`(loop %[1]s
      (call $put (i32.const 1) (i32.const 65536) (i32.const %[2]d))
      (br_if %[1]s (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const %[3]d))))`, p.label(), piece, pieces)
	}
	job := f.job(f.push(t, "flood", guest(t, flood)), "x")
	if e := f.end(t, job); e.rec.Status != protocol.StatusOK {
		t.Errorf("the flood ended %s with %+v, want ok", e.rec.Status, e.rec.Ending)
	}
	line := m.log.wait(t, "output of the capsule dropped beyond its bounds")
	if want := strconv.Itoa(2 * piece); line.attrs["stdout_dropped"] != want {
		t.Errorf("logged %v, want %s bytes dropped", line.attrs, want)
	}
}
