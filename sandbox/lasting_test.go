package sandbox

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"starling/protocol"
)

func TestARunThatLastsIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := lasting{after: time.Millisecond}
		defer l.close()
		var short, long, later young
		at := map[*young]time.Duration{}
		began := time.Now()
		note := func(y *young) func() { return func() { at[y] = time.Since(began) } }
		l.add(&short, note(&short))
		l.add(&long, note(&long))
		time.Sleep(500 * time.Microsecond)
		l.remove(&short)
		l.remove(&short) // twice is nothing
		l.add(&later, note(&later))
		time.Sleep(time.Second)
		synctest.Wait()
		l.remove(&long)
		if _, called := at[&short]; called {
			t.Error("a run that was over was found")
		}
		for y, lasted := range map[*young]time.Duration{&long: at[&long], &later: at[&later] - 500*time.Microsecond} {
			if at[y] == 0 || lasted < l.after || lasted > 2*l.after {
				t.Errorf("a run was found after %s, want after one to two times %s", lasted, l.after)
			}
		}
		if l.armed {
			t.Error("the timer goes on without runs")
		}
		l.add(&short, note(&short)) // again, with the timer that stopped
		time.Sleep(time.Second)
		synctest.Wait()
		if at[&short] == 0 {
			t.Error("a run after a quiet time was not found")
		}
	})
}

// TestAFirstRunIsAnnouncedAtOnce: a guest that brings its process down does so in
// its first run, and must not be taken for one that never started.
func TestAFirstRunIsAnnouncedAtOnce(t *testing.T) {
	t.Parallel()
	e := openEngine(t)
	var there fixed
	r := &childRun{engine: e, pipe: newPipe(&there)}
	started := body(func(p *encoder) { p.b = []byte{1, 0, 0, 0, byte(msgStarted)} })
	module := &compiled{}
	r.sayStarted(module)
	if !bytes.Equal(there.sent.Bytes(), started) {
		t.Errorf("the first run wrote %q, want its start", there.sent.Bytes())
	}
	there.sent.Reset()
	module.ran.Store(true)
	r.sayStarted(module)
	if there.sent.Len() > 0 {
		t.Errorf("the second run wrote %q at once", there.sent.Bytes())
	}
	r.emit(protocol.Event{Kind: protocol.EventNote})
	if err := r.pipe.send(msgEnding, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(there.sent.Bytes(), started) {
		t.Errorf("then it wrote %q, want its start first", there.sent.Bytes())
	}
	e.lasting.remove(&r.unsaid)
}

// TestASilentRunIsAnnouncedInTime: the worker counts a guest's time from then on.
func TestASilentRunIsAnnouncedInTime(t *testing.T) {
	t.Parallel()
	e := openEngine(t)
	ours, theirs := pipes(t)
	r := &childRun{engine: e, pipe: theirs}
	module := &compiled{}
	module.ran.Store(true)
	r.sayStarted(module)
	if kind, _, err := ours.receive(); kind != msgStarted || err != nil {
		t.Errorf("receive = %q, %v, want the start", kind, err)
	}
}

// pipes is both ends of what goes both ways.
func pipes(t *testing.T) (ours, theirs *pipe) {
	t.Helper()
	worker, files, err := dataPipes()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(files[0].Fd())) // which has an owner, as the pipe has
	if err != nil {
		t.Fatal(err)
	}
	in, err := newInlet(fd)
	if err != nil {
		t.Fatal(err)
	}
	process := &duplex{in: in, out: files[1]}
	t.Cleanup(func() { _, _, _ = worker.Close(), process.Close(), files[0].Close() }) // a test may have closed them
	return newPipe(worker), newPipe(process)
}
