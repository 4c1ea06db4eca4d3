package worker_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"starling/protocol"
	"starling/worker"
)

// neighbour is a guest that runs for a while beside another.
func neighbour(t *testing.T) []byte { return guest(t, say("ready"), nap(2000), say("done")) }

// untouched checks that a job ended well in its first attempt and cost no other.
func (f *fleet) untouched(t *testing.T, job protocol.Job) {
	t.Helper()
	rec := f.settled(t, job)
	if rec.Status != protocol.StatusOK || rec.Attempt != 1 || rec.Returned != 0 || !rec.Outcome.Delivered {
		t.Errorf("a neighbour: %s after attempt %d with %d returned, %+v; want ok after its first", rec.Status, rec.Attempt, rec.Returned, rec.Outcome)
	}
	for _, frame := range f.frames(t, job) {
		if frame.Attempt != 1 {
			t.Errorf("a neighbour's frame is of attempt %d: %+v", frame.Attempt, frame)
		}
	}
	f.toldOnce(t, job, rec)
}

// toldOnce checks that a parent heard of a job once, what its record says.
func (f *fleet) toldOnce(t *testing.T, job protocol.Job, rec protocol.Record) {
	t.Helper()
	if posts := f.door.PostsOf(job.DelegationID); len(posts) != 1 || posts[0].Text != rec.Outcome.Text() {
		t.Errorf("%d posts of %s: %+v; want one that says %q", len(posts), job.Capsule, posts, rec.Outcome.Text())
	}
}

// TestPoisonInAProcessOfItsOwn: the capsule whose process dies is crashed at
// once and not tried again; its neighbours on the worker notice nothing.
//
// Source: docs/protocol.md, sections 8 and 10.
func TestPoisonInAProcessOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.patient(t)
	registry := prometheus.NewRegistry()
	m := f.hire(t, func(c *worker.Config) { c.Slots, c.Metrics = 4, registry })
	m.pids(t)
	poison := f.dispatch(t, f.job(f.push(t, "poison", guest(t, say("ready"), forever())), "x"))
	f.saying(t, poison, "ready")
	pids := m.pids(t)
	var neighbours []protocol.Job
	for i := range 3 {
		neighbours = append(neighbours, f.dispatch(t, f.job(f.push(t, fmt.Sprint("neighbour", i), neighbour(t)), "x")))
	}
	for _, job := range neighbours {
		f.saying(t, job, "ready")
	}
	kill(t, pids, syscall.SIGKILL)

	rec := f.settled(t, poison)
	const detail = "the capsule ended without recording a completion (signal: killed)"
	if o := rec.Outcome; rec.Status != protocol.StatusCrashed || o.Detail != detail || o.ReportedBy != protocol.ReportedByLauncher || rec.Attempt != 1 {
		t.Errorf("poison: %+v after attempt %d, want crashed, %q, after one", o, rec.Attempt, detail)
	}
	f.toldOnce(t, poison, rec)
	if letters := f.stored(t, f.bus.Namespace().DeadLetterStream(), f.bus.Namespace().DeadLetterSubject(poison.Pool, poison.TaskID)); len(letters) != 0 {
		t.Errorf("%d dead letters, want none: it has its outcome by its own attempt", len(letters))
	}
	line := m.log.wait(t, "the guest's process died: the job crashed")
	for key, want := range map[string]string{
		"delegation_id": string(poison.DelegationID), "task_id": string(poison.TaskID), "attempt": "1", "how": "signal: killed", "worker_id": string(m.ID()),
	} {
		if line.attrs[key] != want {
			t.Errorf("the log's line has %s %q, want %q: %v", key, line.attrs[key], want, line.attrs)
		}
	}
	for _, job := range neighbours {
		f.untouched(t, job)
	}
	eventuallyCounts(t, registry, map[string]float64{`starling_sandbox_process_deaths_total`: 1})
}

// TestPoisonInASharedProcess: of two guests in a process that dies nobody knows
// whose fault it was: both are handed back, charged, and run alone. The one that
// dies again is to blame; the other ends well; a third one, in another process,
// notices nothing.
func TestPoisonInASharedProcess(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.patient(t)
	m := f.newMember(t, f.server.URL(), func(c *worker.Config) { c.Slots = 3 }, 2)
	m.start(t)
	poison := f.dispatch(t, f.job(f.push(t, "poison", guest(t, say("ready"), forever())), "x"))
	f.saying(t, poison, "ready")
	shared := m.pids(t)
	innocent := f.dispatch(t, f.job(f.agent(t), "again")) // ends in its second attempt
	f.saying(t, innocent, "waiting")
	far := f.dispatch(t, f.job(f.push(t, "neighbour", neighbour(t)), "x"))
	f.saying(t, far, "ready")
	apart := slices.DeleteFunc(m.pids(t), func(pid int) bool { return slices.Contains(shared, pid) })
	if len(apart) != 1 {
		t.Fatalf("processes beside %v: %v, want one for the third guest", shared, apart)
	}
	kill(t, shared, syscall.SIGKILL)
	f.sayingIn(t, poison, 2, "ready")
	rec := f.settled(t, innocent)
	if rec.Status != protocol.StatusOK || rec.Attempt != 2 || rec.Returned != 0 || !rec.Outcome.Delivered {
		t.Errorf("the innocent: %s after attempt %d with %d returned, %+v; want ok after its second", rec.Status, rec.Attempt, rec.Returned, rec.Outcome)
	}
	f.toldOnce(t, innocent, rec)
	f.gaveBack(t, innocent, m)
	f.untouched(t, far)
	for _, pid := range m.pids(t) { // of which one has the poison in it, and the others nobody
		kill(t, []int{pid}, syscall.SIGKILL)
	}
	rec = f.settled(t, poison)
	const detail = "the capsule ended without recording a completion (signal: killed)"
	if o := rec.Outcome; rec.Status != protocol.StatusCrashed || o.Detail != detail || rec.Attempt != 2 || rec.Returned != 0 {
		t.Errorf("poison: %+v after attempt %d, want crashed, %q, after its second", o, rec.Attempt, detail)
	}
	f.toldOnce(t, poison, rec)
	f.gaveBack(t, poison, m)
}

// gaveBack checks how a task's second attempt begins.
func (f *fleet) gaveBack(t *testing.T, job protocol.Job, m *member) {
	t.Helper()
	want := "attempt 2: worker " + string(m.ID()) + " gave the task back"
	for _, frame := range f.frames(t, job) {
		if frame.Attempt == 2 {
			if frame.Text != want || frame.Seq != 1 {
				t.Errorf("the second attempt begins with %+v, want %q", frame, want)
			}
			return
		}
	}
	t.Errorf("%s had no second attempt", job.Capsule)
}
