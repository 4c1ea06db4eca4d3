package worker_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// TestOrderAtTheEndOfAnAttempt looks at everything from inside the door, which
// is asked in the middle of it, and at the bus as one observer hears it.
//
// Source: docs/protocol.md, section 6.
func TestOrderAtTheEndOfAnAttempt(t *testing.T) {
	t.Parallel()
	var f *fleet
	var job protocol.Job
	var problems []string // of the door: read after the post was answered
	f = newFleet(t, func(w http.ResponseWriter, r *http.Request, p testenv.Post) {
		problems = f.atTheDoor(r, job)
		testenv.Accept()(w, r, p)
	})
	f.hire(t, nil)
	job = f.job(f.push(t, "order", guest(t, say("answer"))), "x")
	said := f.listen(t, job)
	f.dispatch(t, job)
	rec := f.settled(t, job)
	for _, p := range problems {
		t.Errorf("when the door is asked %s", p)
	}
	if posts := f.door.Posts(); len(posts) != 1 {
		t.Errorf("%d posts, want 1", len(posts))
	}
	want := []string{
		"record submitted", "record working", "frame status-update inference turn 1", "frame text answer", "frame text ",
		"frame response answer", "record ok delivered false", "frame status-update session ended", "record ok delivered true", "ack +ACK",
	}
	testenv.Eventually(t, soon, func() error {
		if got := said(); !slices.Equal(got, want) {
			return fmt.Errorf("the bus said\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
	ended{rec, f.frames(t, job)}.checkTold(t, f, job)
}

// atTheDoor is what is wrong at the time of the post.
func (f *fleet) atTheDoor(r *http.Request, job protocol.Job) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	e, err := f.bus.ReadRecord(r.Context(), job.Spawner.SessionID, job.DelegationID, 0)
	if err != nil || e.Record.Status != protocol.StatusOK || e.Record.Outcome.Delivered {
		bad("the record is %+v, %v; want the outcome, not delivered", e.Record, err)
		return problems
	}
	file, err := os.ReadFile(filepath.Join(e.Record.Workdir, protocol.CompletionFile))
	if want, _ := e.Record.Outcome.File(); err != nil || string(file) != string(want) {
		bad("completion.json is %s, %v; want %s", file, err, want)
	}
	watch, err := f.bus.WatchTask(r.Context(), job.TaskID, broker.WatchOptions{})
	if err != nil {
		bad("the task cannot be watched: %v", err)
		return problems
	}
	defer watch.Close()
	for {
		e, err := watch.Next(r.Context())
		if err != nil {
			bad("the terminal frame is not there: %v", err)
			break
		}
		if e.Frame != nil && e.Frame.Terminal() {
			break
		}
	}
	if queued, err := f.queued(r.Context(), job); err != nil || !queued {
		bad("the job is queued: %t, %v; want true", queued, err)
	}
	return problems
}

// listen writes down what one observer hears of a job, in order.
func (f *fleet) listen(t *testing.T, job protocol.Job) func() []string {
	t.Helper()
	var mu sync.Mutex
	var said []string
	write := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, fmt.Sprintf(format, args...))
	}
	// One subscription: the client keeps no order between two.
	_, err := f.nc.Subscribe(">", func(m *nats.Msg) {
		switch ns := f.bus.Namespace(); {
		case strings.HasPrefix(m.Reply, "$JS.ACK."): // what the bus delivers to the door's watch
		case m.Subject == ns.DelegationSubject(job.Spawner.SessionID, job.DelegationID):
			rec, err := protocol.ParseRecord(m.Data)
			if err != nil {
				write("record %v", err)
			} else if rec.Outcome == nil {
				write("record %s", rec.Status)
			} else {
				write("record %s delivered %t", rec.Status, rec.Outcome.Delivered)
			}
		case m.Subject == ns.TaskSubject(job.TaskID):
			frame, err := protocol.ParseFrame(m.Header.Get, m.Data)
			if err != nil {
				write("frame %v", err)
			}
			write("frame %s %s", frame.Kind, frame.Text)
		case strings.HasPrefix(m.Subject, "$JS.ACK.") && string(m.Data) != "+WPI":
			write("ack %s", m.Data)
		}
	})
	if err == nil {
		err = f.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(said)
	}
}

// TestADoorThatRefuses does not fail the session: the last error is recorded.
func TestADoorThatRefuses(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testenv.Refuse(-32000, "not now"), testenv.Refuse(-32000, "never"))
	f.hire(t, nil)
	job := f.job(f.push(t, "refused", guest(t, say("answer"))), "x")
	e := f.end(t, job)
	if o := e.rec.Outcome; o.Status != protocol.StatusOK || o.Delivered || o.DeliveryError != "never" {
		t.Errorf("outcome = %+v, want ok, not delivered, %q", o, "never")
	}
	posts := f.door.Posts()
	if len(posts) != 2 || posts[0].MessageID != posts[1].MessageID || posts[0].Text != posts[1].Text {
		t.Errorf("posts = %+v, want two with one id and one text", posts)
	}
	var file map[string]any
	if err := json.Unmarshal([]byte(e.file(t, protocol.CompletionFile)), &file); err != nil || file["delivery_error"] != "never" || file["delivered"] != false {
		t.Errorf("completion.json = %v, %v; want the delivery error", file, err)
	}
}

// TestAParentWithoutADoor is not told, and that is no error.
func TestAParentWithoutADoor(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	job := f.job(f.push(t, "lineage", guest(t, say("answer"))), "x", func(j *protocol.Job) { j.Spawner = j.Spawner.Lineage() })
	e := f.end(t, job)
	if o := e.rec.Outcome; o.Status != protocol.StatusOK || o.Delivered || o.DeliveryError != "" || len(f.door.Posts()) != 0 {
		t.Errorf("outcome = %+v, %d posts; want ok, nobody told", o, len(f.door.Posts()))
	}
}

// TestASlowDoorHoldsUpNoOtherJob has one slot, which is free when the guest is
// gone.
func TestASlowDoorHoldsUpNoOtherJob(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	f := newFleet(t, testenv.Hang(release), testenv.Accept())
	m := f.hire(t, func(c *worker.Config) { c.Slots = 1 })
	capsule := f.push(t, "quick", guest(t, say("answer")))
	slow := f.dispatch(t, f.job(capsule, "x"))
	f.door.WaitFor(t, 1, soon)
	next := f.job(capsule, "y")
	if rec, _ := f.run(t, next); rec.Status != protocol.StatusOK || rec.WorkerID != m.ID() {
		t.Errorf("the next job = %+v, want ok by %s", rec, m.ID())
	}
	if rec := f.record(t, slow).Record; rec.Status != protocol.StatusOK || rec.Outcome.Delivered {
		t.Errorf("the slow door's job = %+v, want an outcome that is not delivered yet", rec)
	}
}
