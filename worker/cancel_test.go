package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// cancel ends a job's delegation and gives what came of it.
func (f *fleet) cancel(t *testing.T, job protocol.Job) (broker.CancelResult, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return f.bus.Cancel(ctx, job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
}

func canceled(message string) situation {
	return situation{
		protocol.StatusTerminated, protocol.ReportedByLauncher, "the parent ended this delegation", "TASK_STATE_CANCELED", message, nil, "",
	}
}

const (
	wasCanceled  = "task canceled"
	wasKilled    = "task canceled; the harness was killed and its session may not resume cleanly"
	neverStarted = "task canceled before it started"
)

// TestCancelOfARunningGuest are the two endings of a cancel, and what a guest
// may still say: an accepted cancel wins over it.
func TestCancelOfARunningGuest(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.patient(t)
	m := f.hire(t, func(c *worker.Config) { c.Slots = 8 })
	for name, c := range map[string]struct {
		steps   []step
		events  bool
		message string
	}{
		"it obeys":                     {steps: []step{say("ready"), untilCanceled()}, message: wasCanceled},
		"it obeys with a status":       {steps: []step{say("ready"), untilCanceled(), exit(9)}, message: wasCanceled},
		"it obeys and ends its turn":   {steps: []step{echo(), untilCanceled(), say(`{"event":"turn-end","result":"all done"}` + "\n")}, events: true, message: wasCanceled},
		"it obeys and fails its turn":  {steps: []step{echo(), untilCanceled(), say(`{"event":"turn-failed","kind":"canceled","message":"as asked"}` + "\n")}, events: true, message: wasCanceled},
		"it is stubborn":               {steps: []step{say("ready"), forever()}, message: wasKilled},
		"it traps when asked":          {steps: []step{say("ready"), untilCanceled(), trap()}, message: wasKilled},
		"it talks on, and is stubborn": {steps: []step{echo(), untilCanceled(), say(`{"event":"text","text":"no"}` + "\n"), forever()}, events: true, message: wasKilled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			capsule := f.push(t, strings.NewReplacer(" ", "-", ",", "").Replace(name), guest(t, c.steps...), func(m *protocol.Manifest) {
				if c.events {
					m.Output = protocol.OutputEvents
				}
			})
			job := f.dispatch(t, f.job(capsule, `{"event":"text-delta","text":"ready"}`+"\n"))
			f.saying(t, job, "ready")
			result, err := f.cancel(t, job)
			if err != nil || result.GuestMayRun || result.Record.Status != protocol.StatusTerminated {
				t.Fatalf("Cancel = %+v, %v; want terminated, the guest gone", result, err)
			}
			f.settled(t, job)
			ended{f.record(t, job).Record, f.frames(t, job)}.check(t, f, job, canceled(c.message))
		})
	}
	for _, line := range m.log.all() {
		if line.message == "the parent was not told" {
			t.Errorf("log: %v", line)
		}
	}
}

// TestCancelIsAnsweredWhenTheGuestIsGone holds the answer against the grace: a
// stubborn guest lives through all of it.
func TestCancelIsAnsweredWhenTheGuestIsGone(t *testing.T) {
	t.Parallel()
	const grace = 700 * time.Millisecond
	f := newFleet(t)
	f.hire(t, func(c *worker.Config) { c.CancelGrace = grace })
	job := f.dispatch(t, f.job(f.push(t, "stubborn", guest(t, say("ready"), forever())), "x"))
	f.saying(t, job, "ready")
	body, err := json.Marshal(protocol.CancelRequest{DelegationID: job.DelegationID})
	if err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	m, err := f.nc.Request(f.bus.Namespace().CancelSubject(job.Spawner.SessionID, job.DelegationID), body, soon)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(asked); took < grace {
		t.Errorf("answered after %s, want at least the grace of %s", took, grace)
	}
	if got, want := string(m.Data), `{"status":"terminated"}`; got != want {
		t.Errorf("answer = %s, want %s", got, want)
	}
	if rec := f.record(t, job).Record; rec.Status != protocol.StatusTerminated || rec.Outcome == nil {
		t.Errorf("when it is answered the record says %s, want the outcome", rec.Status)
	}
}

// TestACancelWithAWrongBodyIsIgnored sends what anybody could send.
func TestACancelWithAWrongBodyIsIgnored(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	job := f.dispatch(t, f.job(f.push(t, "waits", guest(t, say("ready"), nap(400), say("rested"))), "x"))
	f.saying(t, job, "ready")
	for _, body := range []string{"", "{}", "null", `{"delegation_id":"dlg_00"}`, `{"Delegation_ID":"` + string(job.DelegationID) + `"}`} {
		if err := f.nc.Publish(f.bus.Namespace().CancelSubject(job.Spawner.SessionID, job.DelegationID), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if rec := f.settled(t, job); rec.Status != protocol.StatusOK {
		t.Errorf("status = %s %+v, want ok", rec.Status, rec.Ending)
	}
}

// TestCancelOfAQueuedJob ends it where it waits: whoever takes it completes it
// from the record, and nothing starts.
func TestCancelOfAQueuedJob(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	job := f.dispatch(t, f.job(f.push(t, "never", guest(t, say("ran"))), "x"))
	result, err := f.cancel(t, job)
	if err != nil || result.Record.Status != protocol.StatusTerminated {
		t.Fatalf("Cancel = %+v, %v; want terminated", result, err)
	}
	f.hire(t, nil)
	rec := f.settled(t, job)
	e := ended{rec, f.frames(t, job)}
	e.check(t, f, job, canceled(neverStarted))
	if rec.Attempt != 0 || rec.SessionID != "" || len(e.frames) != 1 {
		t.Errorf("attempt %d, session %q, %d frames; want none begun and the terminal frame alone", rec.Attempt, rec.SessionID, len(e.frames))
	}
}

// TestCancelAfterTheEndChangesNothing is an error that says how it ended.
func TestCancelAfterTheEndChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	job := f.job(f.push(t, "done", guest(t, say("done"))), "x")
	f.run(t, job)
	before := f.record(t, job)
	if _, err := f.cancel(t, job); !errors.Is(err, broker.ErrFinal) {
		t.Errorf("Cancel = %v, want %v", err, broker.ErrFinal)
	}
	if after := f.record(t, job); after.Revision != before.Revision {
		t.Errorf("the record's revision = %d, want %d as before", after.Revision, before.Revision)
	}
}

// TestCancelBeforeTheGuestStarts meets a worker that is not ready to start it.
func TestCancelBeforeTheGuestStarts(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]func(*fleet, *testing.T) *modules{
		"the module is on its way": (*fleet).slowModules,
		"the module does not come": (*fleet).lostModules,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			modules := without(f, t)
			f.hireAt(t, modules.url, nil)
			t.Cleanup(modules.release)
			job := f.dispatch(t, f.job(f.push(t, "slow", guest(t, say("ran"))), "x"))
			<-modules.asked
			result, err := f.cancel(t, job)
			if err != nil || result.GuestMayRun {
				t.Fatalf("Cancel = %+v, %v", result, err)
			}
			f.settled(t, job)
			e := ended{f.record(t, job).Record, f.frames(t, job)}
			e.check(t, f, job, canceled(neverStarted))
			if len(e.frames) != 1 {
				t.Errorf("%d frames, want the terminal one alone", len(e.frames))
			}
		})
	}
}

// TestCancelOfATaskThatIsHandedBack meets the pause of a worker whose disk lets
// it start nothing.
func TestCancelOfATaskThatIsHandedBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	if err := errors.Join(os.RemoveAll(m.cfg.WorkRoot), os.WriteFile(m.cfg.WorkRoot, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	job := f.dispatch(t, f.job(f.push(t, "nowhere", guest(t, say("ran"))), "x"))
	m.log.wait(t, "attempt not started: the task is handed back")
	if result, err := f.cancel(t, job); err != nil || result.GuestMayRun {
		t.Fatalf("Cancel = %+v, %v", result, err)
	}
	rec := f.settled(t, job)
	if o := rec.Outcome; o == nil || !o.ParentEnded() || rec.Ending.Message != neverStarted {
		t.Errorf("record = %+v, want the parent's end before the start", rec)
	}
}

// modules is a way to the bus on which modules do not arrive.
type modules struct {
	url     string
	asked   chan struct{} // closed when the first was asked for
	release func()        // must be called before the worker's connection is closed
}

// slowModules arrive only when they are released, lostModules never.
func (f *fleet) slowModules(t *testing.T) *modules {
	t.Helper()
	released := make(chan struct{})
	m := f.modules(t, func() bool { <-released; return false })
	m.release = sync.OnceFunc(func() { close(released) })
	return m
}

func (f *fleet) lostModules(t *testing.T) *modules {
	t.Helper()
	return f.modules(t, func() bool { return true })
}

func (f *fleet) modules(t *testing.T, drop func() bool) *modules {
	t.Helper()
	proxy := testenv.Proxy(t, f.server.URL())
	m := &modules{url: proxy.URL(), asked: make(chan struct{}), release: func() {}}
	first := sync.OnceFunc(func() { close(m.asked) })
	chunk := "$O." + f.bus.Namespace().CapsuleBucket() + ".C."
	proxy.DropAnswers(func(_ string, payload []byte) bool {
		if !strings.Contains(string(payload[:min(len(payload), 512)]), chunk) {
			return false
		}
		first()
		return drop()
	})
	return m
}
