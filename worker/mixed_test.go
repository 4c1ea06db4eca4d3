package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// mirror keeps the distinct outcomes that the bus told of each delegation, its
// delivery aside.
type mirror struct {
	mu       sync.Mutex
	outcomes map[protocol.DelegationID]map[string]bool
}

func (f *fleet) mirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{outcomes: map[protocol.DelegationID]map[string]bool{}}
	_, err := f.nc.Subscribe(string(f.bus.Namespace())+".delegations.>", func(msg *nats.Msg) {
		rec, err := protocol.ParseRecord(msg.Data)
		if err != nil || rec.Outcome == nil {
			return
		}
		told := *rec.Outcome
		told.Delivered, told.DeliveryError = false, ""
		line, err := json.Marshal(told)
		if err != nil {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.outcomes[rec.DelegationID] == nil {
			m.outcomes[rec.DelegationID] = map[string]bool{}
		}
		m.outcomes[rec.DelegationID][string(line)] = true
	})
	if err == nil {
		err = f.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mirror) count(id protocol.DelegationID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.outcomes[id])
}

// TestMixedJobsOnTwoWorkers runs 200 jobs of all sorts and audits all that was
// told of each.
func TestMixedJobsOnTwoWorkers(t *testing.T) {
	t.Parallel()
	const jobs = 200
	f := newFleet(t)
	f.patient(t)
	mirror := f.mirror(t)
	module := guest(t, echo())
	plain, script := f.push(t, "plain", module), f.push(t, "script", module, events)
	many := ""
	for n := range 12 {
		id := strconv.Itoa(n)
		many += `{"event":"text-delta","text":"turn ` + id + `"}` + "\n" + `{"event":"tool-call","id":"` + id + `","name":"t","input":{}}` + "\n" +
			`{"event":"tool-result","id":"` + id + `","output":"o","is_error":false}` + "\n"
	}
	kinds := []struct {
		capsule protocol.CapsuleRef
		task    string
		want    protocol.Status
	}{
		{plain, "echoed", protocol.StatusOK},
		{script, `{"event":"turn-end","result":"r"}`, protocol.StatusOK},
		{script, `{"event":"turn-failed","kind":"quota","message":"m"}`, protocol.StatusError},
		{script, many, protocol.StatusError}, // more turns than it may
		{f.push(t, "patient", module, events, func(m *protocol.Manifest) { m.Inference.MaxTurns = 100 }), many, protocol.StatusOK},
		{f.push(t, "falls", guest(t, echo(), trap())), "x", protocol.StatusCrashed},
		{f.push(t, "fails", guest(t, cry("no\n"), exit(2))), "x", protocol.StatusError},
		{f.push(t, "naps", guest(t, nap(30), say("rested"))), "x", protocol.StatusOK},
		{protocol.CapsuleRef{Name: "nobody", Version: "1.0.0", Digest: plain.Digest}, "x", protocol.StatusCrashed},
	}
	workers := []*member{f.hire(t, nil), f.hire(t, func(c *worker.Config) { c.Slots = 2 })}
	all := make([]protocol.Job, jobs)
	for i := range all {
		kind := kinds[i%len(kinds)]
		all[i] = f.dispatch(t, f.job(kind.capsule, kind.task, func(j *protocol.Job) {
			j.Origin = []protocol.Origin{protocol.OriginUser, protocol.OriginPeer, protocol.OriginEvent}[i%3]
		}))
	}
	ran := map[protocol.WorkerID]int{}
	for i, job := range all {
		rec := f.settled(t, job)
		ran[rec.WorkerID]++
		if want := kinds[i%len(kinds)].want; rec.Status != want || rec.Attempt != 1 || !rec.Outcome.Delivered {
			t.Errorf("job %d = %s in attempt %d, delivered %t, %q; want %s in attempt 1, delivered", i, rec.Status, rec.Attempt, rec.Outcome.Delivered, rec.Ending.Message, want)
		}
		if posts := f.door.PostsOf(job.DelegationID); len(posts) != 1 || posts[0].Text != rec.Outcome.Text() {
			t.Errorf("job %d: %d posts, want one that says %q", i, len(posts), rec.Outcome.Text())
		}
		testenv.Eventually(t, soon, func() error {
			if n := mirror.count(job.DelegationID); n != 1 {
				return fmt.Errorf("the mirror told %d outcomes of job %d, want 1", n, i)
			}
			return nil
		})
	}
	for _, w := range workers {
		if ran[w.ID()] == 0 {
			t.Errorf("worker %s ran nothing of %v", w.ID(), ran)
		}
	}
	f.auditFrames(t, all)
	f.auditStreams(t)
}

// auditFrames reads the stream once: the numbers of each task are 1 to n without
// a hole or a repetition, and its one terminal frame is the last.
func (f *fleet) auditFrames(t *testing.T, jobs []protocol.Job) {
	t.Helper()
	type task struct{ frames, terminal int }
	tasks := map[protocol.TaskID]*task{}
	for _, m := range f.stored(t, f.bus.Namespace().TasksStream(), string(f.bus.Namespace())+".tasks.>") {
		frame, err := protocol.ParseFrame(m.Header.Get, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		s := tasks[frame.TaskID]
		if s == nil {
			s = &task{}
			tasks[frame.TaskID] = s
		}
		s.frames++
		if frame.Seq != s.frames || s.terminal > 0 {
			t.Errorf("task %s: frame %d is number %d, behind %d terminal ones", frame.TaskID, s.frames, frame.Seq, s.terminal)
		}
		if frame.Terminal() {
			s.terminal++
		}
	}
	for i, job := range jobs {
		if s := tasks[job.TaskID]; s == nil || s.terminal != 1 {
			t.Errorf("job %d: %+v, want one terminal frame", i, s)
		}
	}
}

// auditStreams makes sure that nothing is left, and nothing was given up.
func (f *fleet) auditStreams(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, name := range []string{f.bus.Namespace().JobsStream(), f.bus.Namespace().DeadLetterStream()} {
		stream, err := f.js.Stream(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if n := stream.CachedInfo().State.Msgs; n != 0 {
			t.Errorf("%s holds %d messages, want none", name, n)
		}
	}
	for rec, err := range f.bus.Delegations(ctx) {
		if err != nil || !rec.Status.Final() {
			t.Errorf("the ledger holds %+v, %v; want only what has ended", rec, err)
		}
	}
}
