package worker_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"

	"starling/protocol"
	"starling/testenv"
)

// publish queues a body by hand.
func (f *fleet) publish(t *testing.T, subject string, body []byte, headers map[string]string) {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = body
	for name, value := range headers {
		m.Header.Set(name, value)
	}
	if _, err := f.js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// TestDeadLetters are the jobs that cannot run: their body and headers are kept,
// and nothing else happens.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	capsule := f.push(t, "dead", guest(t, say("ran")))
	other := f.push(t, "other", guest(t, say("other")))
	body := func(t *testing.T, job protocol.Job) []byte {
		body, err := job.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	// A mismatch: what the record says, and what the job on its subject says.
	for name, c := range map[string]struct {
		record, job func(*protocol.Job)
		detail      string
	}{
		"context of the record": {job: func(j *protocol.Job) { j.Message = protocol.NewUserMessage(protocol.NewContextID(), "x") }, detail: "context_id"},
		"capsule of the record": {job: func(j *protocol.Job) { j.Capsule = other }, detail: "capsule"},
		"version of the record": {job: func(j *protocol.Job) { j.Capsule.Version = "2.0.0" }, detail: "capsule"},
		"digest of the record":  {job: func(j *protocol.Job) { j.Capsule.Digest = other.Digest }, detail: "capsule"},
		"task of the record":    {record: func(j *protocol.Job) { j.TaskID = protocol.NewTaskID() }, detail: "task_id"},
		"pool of the record":    {record: func(j *protocol.Job) { j.Pool = "gpu" }, detail: "pool"},
		"lane of the record":    {record: func(j *protocol.Job) { j.Origin = protocol.OriginSchedule }, detail: "lane"},
		"task of the subject":   {job: func(j *protocol.Job) { j.TaskID = protocol.NewTaskID() }, detail: "task_id"},
		"pool of the subject":   {job: func(j *protocol.Job) { j.Pool = "gpu" }, detail: "pool"},
		"lane of the subject":   {job: func(j *protocol.Job) { j.Origin = protocol.OriginSchedule }, detail: "lane"},
	} {
		t.Run("mismatch/"+name, func(t *testing.T) {
			t.Parallel()
			job := f.job(capsule, "x")
			recorded := job
			if c.record != nil {
				c.record(&recorded)
			}
			entry, err := f.bus.CreateRecord(t.Context(), recorded.NewRecord(time.Now()))
			if err != nil {
				t.Fatal(err)
			}
			subject := f.subject(job)
			sent := job
			if c.job != nil {
				c.job(&sent)
			}
			f.publish(t, subject, body(t, sent), map[string]string{
				"Starling-Ledger-Revision": strconv.FormatUint(entry.Revision, 10), "X-Mine": "kept",
			})
			letter := f.letter(t, protocol.DefaultPool, job.TaskID)
			checkLetter(t, letter.Header, letter.Data, body(t, sent), "mismatch", c.detail)
			if after := f.record(t, job); after.Revision != entry.Revision {
				t.Errorf("the record's revision = %d, want %d: it changes nothing", after.Revision, entry.Revision)
			}
			f.checkUntold(t, job, sent)
		})
	}
	t.Run("unreadable", func(t *testing.T) {
		t.Parallel()
		for name, body := range map[string]string{"no JSON": "{", "nothing": "", "no ids": `{"origin":"user"}`} {
			job := f.job(capsule, "x")
			f.publish(t, f.subject(job), []byte(body), map[string]string{"X-Mine": "kept"})
			letter := f.letter(t, protocol.DefaultPool, job.TaskID)
			t.Log(name)
			checkLetter(t, letter.Header, letter.Data, []byte(body), "unreadable", "")
			f.checkUntold(t, job, job)
		}
	})
	// A record that cannot be read changes by no redelivery. It stays as it is.
	t.Run("unreadable record", func(t *testing.T) {
		t.Parallel()
		for _, content := range []string{"{", `{"delegation_id":"dlg_0"}`, "record of another"} {
			job := f.job(capsule, "x")
			bucket := f.bus.Namespace().LedgerBucket()
			if content == "record of another" {
				other, err := f.job(capsule, "y").NewRecord(time.Now()).Encode()
				if err != nil {
					t.Fatal(err)
				}
				content = string(other)
			}
			f.publish(t, "$KV."+bucket+"."+protocol.LedgerKey(job.Spawner.SessionID, job.DelegationID), []byte(content), nil)
			f.publish(t, f.subject(job), body(t, job), map[string]string{"Starling-Ledger-Revision": "1", "X-Mine": "kept"})
			letter := f.letter(t, protocol.DefaultPool, job.TaskID)
			checkLetter(t, letter.Header, letter.Data, body(t, job), "unreadable", "record in the ledger")
			f.checkUntold(t, job)
		}
	})
	t.Run("no-record", func(t *testing.T) {
		t.Parallel()
		job := f.job(capsule, "x")
		f.publish(t, f.subject(job), body(t, job), map[string]string{"Starling-Ledger-Revision": "1", "X-Mine": "kept"})
		letter := f.letter(t, protocol.DefaultPool, job.TaskID)
		checkLetter(t, letter.Header, letter.Data, body(t, job), "no-record", string(job.DelegationID))
		f.checkUntold(t, job, job)
	})
}

func checkLetter(t *testing.T, header nats.Header, got, want []byte, reason, detail string) {
	t.Helper()
	if string(got) != string(want) {
		t.Errorf("dead letter holds %q, want the job %q", got, want)
	}
	if header.Get("Starling-Reason") != reason || !strings.Contains(header.Get("Starling-Detail"), detail) || header.Get("Starling-Detail") == "" {
		t.Errorf("dead letter says %q, %q; want %q, naming %q", header.Get("Starling-Reason"), header.Get("Starling-Detail"), reason, detail)
	}
	if header.Get("X-Mine") != "kept" {
		t.Errorf("dead letter's headers = %v, want the job's among them", header)
	}
}

// checkUntold makes sure that a job left the stream and that nothing was said
// about it.
func (f *fleet) checkUntold(t *testing.T, jobs ...protocol.Job) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		if queued, err := f.queued(t.Context(), jobs[0]); err != nil || queued {
			return errors.Join(err, errors.New("the job is still queued"))
		}
		return nil
	})
	for _, job := range jobs {
		if frames := f.stored(t, f.bus.Namespace().TasksStream(), f.bus.Namespace().TaskSubject(job.TaskID)); len(frames) != 0 {
			t.Errorf("task %s has %d frames, want none", job.TaskID, len(frames))
		}
		if posts := f.door.PostsOf(job.DelegationID); len(posts) != 0 {
			t.Errorf("%d posts, want none", len(posts))
		}
	}
}

// TestAJobPublishedByHand has no record and no revision: its worker makes the
// record, and pins the digest.
func TestAJobPublishedByHand(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hire(t, nil)
	capsule := f.push(t, "by-hand", guest(t, echo()))
	for name, c := range map[string]struct {
		ref  protocol.CapsuleRef
		want protocol.Status
	}{
		"with a digest":       {capsule, protocol.StatusOK},
		"without a digest":    {protocol.CapsuleRef{Name: "by-hand", Version: "1.0.0"}, protocol.StatusOK},
		"of an unknown thing": {protocol.CapsuleRef{Name: "nobody", Version: "1.0.0"}, protocol.StatusCrashed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := f.job(c.ref, "by hand")
			body, err := json.Marshal(map[string]any{
				"delegation_id": job.DelegationID, "task_id": job.TaskID, "capsule": job.Capsule, "spawner": job.Spawner, "origin": "user",
				"message": map[string]any{
					"message_id": job.Message.ID, "context_id": job.ContextID(), "role": "user",
					"parts": []any{map[string]any{"kind": "text", "text": "by"}, map[string]any{"kind": "text", "text": "hand"}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			f.publish(t, f.subject(job), body, nil)
			e := ended{f.settled(t, job), f.frames(t, job)}
			e.checkTold(t, f, job)
			if e.rec.Status != c.want || e.rec.Attempt != 1 || e.rec.Lane != protocol.LaneUser || e.rec.Trust != protocol.Trusted {
				t.Errorf("record = %+v, want %s, attempt 1, lane user, trusted", e.rec, c.want)
			}
			if c.want != protocol.StatusOK {
				if e.rec.Ending.State != a2a.TaskStateRejected {
					t.Errorf("ending = %+v, want rejected", e.rec.Ending)
				}
				return
			}
			if e.rec.Capsule.Digest != capsule.Digest || e.response().Text != "by\nhand" {
				t.Errorf("digest %s, response %q; want %s, the parts joined by a newline", e.rec.Capsule.Digest, e.response().Text, capsule.Digest)
			}
		})
	}
}
