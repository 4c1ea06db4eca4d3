package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// TestTheAuditSeesWhatIsWrong lets a fleet run a few jobs, of which the audit
// finds nothing to say, and spoils what is stored, a thing at a time.
func TestTheAuditSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	f, door := testFleet(t, nil), testenv.Door(t)
	url := f.server.ClientURL()
	push(t, url, testenv.GoCapsule(t, "hello"), readDoc(t, "sandbox/guest/examples/hello/murmur.yaml"))
	mirror := listenMirror(t, url)
	var jobs []protocol.Job
	for range 6 {
		job := newJob(protocol.CapsuleEntry{Manifest: protocol.Manifest{Name: "hello", Version: "1.0.0"}}, "the fleet", nil, nil)
		job.Spawner.URL, job.Spawner.Trust = door.URL(), protocol.Trusted
		if _, err := f.bus.Dispatch(t.Context(), job, broker.DispatchOptions{}); err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job)
	}
	testenv.Eventually(t, time.Minute, func() error {
		for _, job := range jobs {
			if e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0); err != nil || !e.Record.Status.Final() || !e.Record.Outcome.Delivered {
				return broker.ErrNoRecord
			}
		}
		return nil
	})
	testenv.EventuallyTrue(t, time.Minute, "an empty queue", func() bool { n, err := jobsIn(t.Context(), url); return err == nil && n == 0 })
	audit := &auditor{bus: f.bus, url: url, mirror: mirror, door: door}
	expect := func(what string, want map[string]int) {
		t.Helper()
		if err := audit.audit(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
		for _, bad := range wrong {
			if audit.counts[bad] != want[bad] {
				t.Errorf("%s: %s: %d, want %d", what, bad, audit.counts[bad], want[bad])
			}
		}
	}
	expect("nothing is wrong", nil)

	js := testenv.JetStream(t, url)
	tasks, err := js.Stream(t.Context(), "STARLING_TASKS")
	if err != nil {
		t.Fatal(err)
	}
	frame := func(job protocol.Job, seq uint64) *jetstream.RawStreamMsg {
		t.Helper()
		m, err := tasks.GetMsg(t.Context(), seq, jetstream.WithGetMsgSubject("starling.tasks."+string(job.TaskID)))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	publish := func(subject string, header nats.Header, body []byte) {
		t.Helper()
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: header, Data: body}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{}

	first := frame(jobs[0], 1)
	if err := tasks.DeleteMsg(t.Context(), first.Sequence); err != nil {
		t.Fatal(err)
	}
	want[holes]++
	expect("a frame is gone", want)

	again := frame(jobs[1], 1)
	again.Header.Set("Nats-Msg-Id", "another")
	again.Header.Set(protocol.HeaderSession, string(protocol.NewSessionID()))
	publish(again.Subject, again.Header, again.Data)
	want[ranTwice]++
	expect("a second guest ran an attempt", want)

	lost := frame(jobs[2], 1)
	lost.Header.Set("Nats-Msg-Id", "lost")
	lost.Header.Set(protocol.HeaderAttempt, "2")
	encoded, err := protocol.Frame{Kind: protocol.FrameStatus, State: "TASK_STATE_WORKING", Text: "attempt 2: worker wrk_a was lost"}.Encode(
		protocol.Place{TaskID: jobs[2].TaskID, ContextID: jobs[2].ContextID(), SessionID: "ses_b", Attempt: 2, Seq: 1, Time: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	publish(lost.Subject, lost.Header, encoded.Body)
	want[unreasoned], want[unclaimed] = 1, 1
	expect("a worker was lost and nobody knows why", want)
	audit.lost("wrk_a", "killed")
	want[unreasoned]--
	expect("it was killed", want)

	late := frame(jobs[5], 1)
	if err := tasks.DeleteMsg(t.Context(), late.Sequence); err != nil {
		t.Fatal(err)
	}
	late.Header.Set("Nats-Msg-Id", "late")
	publish(late.Subject, late.Header, late.Data)
	want[early]++
	expect("a frame is behind the end that its worker wrote", want)

	posts := door.Posts()
	post(t, door.URL(), posts[0].Header, strings.Replace(string(posts[0].Body), "status: ok", "status: bad", 1))
	want[otherStory], want[twiceNoCause] = 1, 1
	expect("a parent was told twice, and another story", want)

	publish("starling.jobs.default.user.tsk_left", nil, []byte("{}"))
	testenv.Eventually(t, time.Minute, func() error { // unreadable: it becomes a dead letter of no job of ours
		for letter, err := range f.bus.DeadLetters(t.Context(), "") {
			if err != nil || letter.TaskID == "tsk_left" {
				return err
			}
		}
		return broker.ErrNoDeadLetter
	})
	expect("a dead letter of another", want)

	if err := tasks.Purge(t.Context(), jetstream.WithPurgeSubject("starling.tasks."+string(jobs[3].TaskID))); err != nil {
		t.Fatal(err)
	}
	want[terminals]++
	expect("the frames of a task are gone", want)
	unknown := jobs[4]
	unknown.DelegationID = protocol.NewDelegationID()
	jobs[4] = unknown
	want[missing]++
	expect("a delegation was forgotten", want)
}

// push stores a capsule.
func push(t *testing.T, url, module, manifest string) {
	t.Helper()
	if got := starling(t, "", "capsule", "push", capsuleDir(t, module, manifest), "--url", url); got.status != exitOK {
		t.Fatalf("push: %s", got.err)
	}
}

// post repeats a completion at a door.
func post(t *testing.T, url string, header http.Header, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
}
