package worker_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// atDoor is a job whose parent listens at a door of its own.
func (f *fleet) atDoor(capsule protocol.CapsuleRef, door *testenv.RecordingDoor) protocol.Job {
	return f.job(capsule, "x", func(j *protocol.Job) { j.Spawner.URL = door.URL() })
}

// busy is how many of a worker's slots hold a job, as it says itself.
func (f *fleet) busy(t *testing.T, m *member) int {
	t.Helper()
	stats, err := f.bus.WorkerStats(t.Context(), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	return stats.Busy
}

// TestTwoHundredDoorsThatHang hold up nobody else: the slots are free, and the
// parent of the next job is told while each of them hangs.
func TestTwoHundredDoorsThatHang(t *testing.T) {
	t.Parallel()
	const doors = 200
	f := newFleet(t)
	f.patient(t)
	f.doorTimeout = time.Hour
	m := f.hire(t, func(c *worker.Config) { c.Slots = 4 })
	capsule := f.push(t, "quick", guest(t, say("answer")))
	release := make(chan struct{})
	var hanging []*testenv.RecordingDoor
	var jobs []protocol.Job
	for range doors {
		door := testenv.Door(t, testenv.Hang(release))
		hanging = append(hanging, door)
		jobs = append(jobs, f.dispatch(t, f.atDoor(capsule, door)))
	}
	for _, door := range hanging {
		door.WaitFor(t, 1, soon)
	}
	testenv.Eventually(t, soon, func() error {
		if busy := f.busy(t, m); busy != 0 {
			return fmt.Errorf("%d slots are busy, want none: no guest runs", busy)
		}
		return nil
	})

	healthy := testenv.Door(t)
	rec, _ := f.run(t, f.atDoor(capsule, healthy))
	if rec.Status != protocol.StatusOK || !rec.Outcome.Delivered || len(healthy.Posts()) != 1 {
		t.Errorf("the healthy door's job = %+v, %d posts; want ok, delivered by one", rec.Outcome, len(healthy.Posts()))
	}
	for i, job := range jobs {
		if o := f.record(t, job).Record.Outcome; o == nil || o.Delivered || o.DeliveryError != "" || len(hanging[i].Posts()) != 1 {
			t.Fatalf("outcome %d = %+v after %d posts, want one whose first post hangs", i, o, len(hanging[i].Posts()))
		}
	}
	close(release)
	for i, job := range jobs {
		if rec := f.settled(t, job); !rec.Outcome.Delivered || rec.Attempt != 1 || len(hanging[i].Posts()) != 1 {
			t.Fatalf("job %d = %+v after %d posts, want it delivered by the one", i, rec, len(hanging[i].Posts()))
		}
	}
}

// TestMoreDoorsThatHangThanReports: the bound. Ended tasks past it keep their
// slots, and the worker takes nothing more, until doors answer.
func TestMoreDoorsThatHangThanReports(t *testing.T) {
	t.Parallel()
	const slots, reports = 2, 3
	f := newFleet(t)
	f.patient(t)
	f.doorTimeout = time.Hour
	m := f.hire(t, func(c *worker.Config) { c.Slots, c.Reports = slots, reports })
	capsule := f.push(t, "quick", guest(t, say("answer")))
	release := make(chan struct{})
	defer close(release)
	first := make(chan struct{})
	answers := append(slices.Repeat([]testenv.Answer{testenv.Hang(first)}, reports), testenv.Hang(release))
	door := testenv.Door(t, answers...)
	var hanging []protocol.Job
	for range reports + slots {
		hanging = append(hanging, f.dispatch(t, f.atDoor(capsule, door)))
	}
	door.WaitFor(t, reports, soon)
	for _, job := range hanging {
		f.saying(t, job, "answer") // its guest has run
	}
	healthy := testenv.Door(t)
	last := f.dispatch(t, f.atDoor(capsule, healthy))
	if busy := f.busy(t, m); busy != slots {
		t.Errorf("%d slots are busy, want %d: nobody has a place to report", busy, slots)
	}
	if rec := f.record(t, last).Record; rec.Status != protocol.StatusSubmitted {
		t.Errorf("the next job is %s, want it queued", rec.Status)
	}
	if n := len(door.Posts()); n != reports {
		t.Errorf("%d posts at a time, want %d", n, reports)
	}
	close(first)
	if rec := f.settled(t, last); !rec.Outcome.Delivered {
		t.Errorf("the healthy door's job = %+v, want it delivered", rec.Outcome)
	}
}

// TestNobodyTellsAParentForAnother: the bus delivers a job again while its worker
// lives, as when the consumer's leader was lost, and between two tries another says
// in the record that it tells the parent.
func TestNobodyTellsAParentForAnother(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	door := testenv.Door(t)
	f.hire(t, nil)
	job := f.atDoor(f.push(t, "quick", guest(t, say("answer"))), door)
	door.Answer(func(w http.ResponseWriter, r *http.Request, post testenv.Post) {
		entry := f.record(t, job)
		theirs := entry.Record
		theirs.Delivery.Count++
		if _, err := f.bus.WriteRecord(t.Context(), theirs, entry.Revision); err != nil {
			t.Error(err)
		}
		testenv.Raw(http.StatusTooManyRequests, "")(w, r, post)
	}, testenv.Accept())
	rec, _ := f.run(t, job) // in the end its next delivery tells
	if posts := door.Posts(); len(posts) != 2 || !rec.Outcome.Delivered {
		t.Errorf("%d posts, %+v; want one that was refused and one of the next delivery", len(posts), rec.Outcome)
	}
}

// TestAParentIsNotToldWhileAnotherTells: the bus delivers the job to a second worker
// while the first one's post is under way, as when it lost a server.
func TestAParentIsNotToldWhileAnotherTells(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	acks := make(chan string, 64) // where deliveries are answered; the first renewal names it
	spy, err := f.nc.Subscribe("$JS.ACK.>", func(m *nats.Msg) {
		select {
		case acks <- m.Subject:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = spy.Unsubscribe() })
	door := testenv.Door(t)
	var members []*member
	second := make(chan struct{})
	job := f.atDoor(f.push(t, "quick", guest(t, say("answer"))), door)
	door.Answer(func(w http.ResponseWriter, r *http.Request, post testenv.Post) {
		if err := f.nc.Publish(<-acks, []byte("-NAK")); err != nil {
			t.Error(err)
		}
		for left := false; !left; {
			var changed []<-chan struct{}
			for _, m := range members {
				_, found, next := m.log.find("the worker that wrote the outcome may be telling the parent: it is left to")
				left, changed = left || found, append(changed, next)
			}
			if left {
				break
			}
			select {
			case <-changed[0]:
			case <-changed[1]:
			case <-second:
				return // it told: the count of posts says so
			case <-r.Context().Done():
				t.Error("no second worker looked at the outcome")
				return
			}
		}
		testenv.Accept()(w, r, post)
	}, func(w http.ResponseWriter, r *http.Request, post testenv.Post) {
		close(second)
		testenv.Accept()(w, r, post)
	})
	members = []*member{f.hire(t, nil), f.hire(t, nil)}
	rec, _ := f.run(t, job)
	if posts := door.Posts(); len(posts) != 1 || !rec.Outcome.Delivered {
		t.Errorf("%d posts, %+v; want it delivered by one", len(posts), rec.Outcome)
	}
}

// TestAPostThatFailedIsLoggedWithTheJobsIDs, as every line of a job is.
func TestAPostThatFailedIsLoggedWithTheJobsIDs(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.hire(t, nil)
	door := testenv.Door(t, testenv.Raw(http.StatusServiceUnavailable, "later"), testenv.Accept())
	rec, _ := f.run(t, f.atDoor(f.push(t, "quick", guest(t, say("answer"))), door))
	line := m.log.wait(t, "door did not take the completion, trying again")
	for key, want := range map[string]string{
		"worker_id": string(m.ID()), "delegation_id": string(rec.DelegationID), "task_id": string(rec.TaskID),
		"session_id": string(rec.SessionID), "attempt": "1",
	} {
		if line.attrs[key] != want {
			t.Errorf("%s = %q, want %q", key, line.attrs[key], want)
		}
	}
	if !rec.Outcome.Delivered {
		t.Errorf("outcome = %+v, want delivered at the second try", rec.Outcome)
	}
}
