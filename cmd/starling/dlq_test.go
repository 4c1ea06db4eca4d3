package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/protocol"
	"starling/testenv"
)

// bury queues a job that can only become a dead letter: its record is not there.
func bury(t *testing.T, o operator, job protocol.Job, body []byte) {
	t.Helper()
	nc, err := nats.Connect(o.url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if body == nil {
		if body, err = job.Encode(); err != nil {
			t.Fatal(err)
		}
	}
	m := nats.NewMsg(protocol.DefaultNamespace.JobSubject(job.Pool, job.Lane(), job.TaskID))
	m.Data = body
	for name, value := range map[string]string{
		"Starling-Ledger-Revision": "1", "X-Mine": "kept\u202e", "Authorization": "s3cret", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	} {
		m.Header.Set(name, value)
	}
	if _, err := nc.RequestMsg(m, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() error {
		if out := o.must("dlq", "ls"); !strings.Contains(out, string(job.TaskID)) {
			return fmt.Errorf("no dead letter of %s in\n%s", job.TaskID, out)
		}
		return nil
	})
}

// buried is the delegation of a job to hello for bury.
func buried(t *testing.T, door string) protocol.Job {
	t.Helper()
	job := newJob(protocol.CapsuleEntry{Manifest: protocol.Manifest{Name: "hello", Version: "1.0.0"}}, "the dead", map[string]string{"API": "s3cret"}, nil)
	job.Pool, job.Origin, job.MaxAttempts = protocol.DefaultPool, protocol.OriginUser, 1
	job.Spawner.ContextID, job.Spawner.DelegationID = job.ContextID(), job.DelegationID
	if door != "" {
		job.Spawner.URL, job.Spawner.Trust = door, protocol.Trusted
	}
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	return job
}

func TestDeadLettersAreListedShownRetriedAndDropped(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	manifest := "name: hello\nversion: 1.0.0\noutput: events\ncapabilities: {env: {allow: [API]}}\n"
	o.must("capsule", "push", capsuleDir(t, testenv.GoCapsule(t, "hello"), manifest))
	door := testenv.Door(t, testenv.Accept())
	job := buried(t, door.URL()+"/s3cret-path")
	bury(t, o, job, nil)
	task := string(job.TaskID)

	contains(t, "dlq ls", o.must("dlq", "ls", "--pool", "default"), task, "no-record", "hello@1.0.0", "ledger has no record")
	if got := o.must("dlq", "ls", "--pool", "gpu"); strings.Contains(got, task) {
		t.Errorf("dlq ls of another pool = %s", got)
	}
	if l := decoded[letter](t, o.must("dlq", "ls", "--json")); l.TaskID != job.TaskID || l.DelegationID != job.DelegationID || l.Reason != "no-record" {
		t.Errorf("dlq ls --json = %+v", l)
	}
	for _, shown := range []string{o.must("dlq", "show", task), o.must("dlq", "show", task, "--json")} {
		contains(t, "dlq show", shown, "no-record", "the dead", "X-Mine", "kept", "API", "[redacted]", "0af7651916cd43dd8448eb211c80319c", string(job.Spawner.SessionID))
		if strings.Contains(shown, "s3cret") || strings.ContainsFunc(shown, steers) {
			t.Errorf("dlq show tells a secret, or steers:\n%q", shown)
		}
	}
	body, err := job.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := o.must("dlq", "show", task, "--body"); got != string(body) {
		t.Errorf("dlq show --body = %q, want the job %q", got, body)
	}

	key := strings.TrimSpace(o.must("dlq", "retry", task))
	session, delegation, _ := strings.Cut(key, ".")
	if session != string(job.Spawner.SessionID) || delegation == string(job.DelegationID) || protocol.ValidateDelegationID("x", protocol.DelegationID(delegation)) != nil {
		t.Fatalf("dlq retry printed %q, want a new delegation of %s", key, job.Spawner.SessionID)
	}
	if got := o.do("watch", key); got.status != exitOK || !strings.Contains(got.out, "Hello, THE DEAD!") {
		t.Errorf("the retry = %d, %s%s", got.status, got.out, got.err)
	}
	testenv.EventuallyTrue(t, 20*time.Second, "the parent is told of the retry", func() bool {
		return len(door.PostsOf(protocol.DelegationID(delegation))) == 1
	})
	if post := door.PostsOf(protocol.DelegationID(delegation))[0]; post.Header.Get("traceparent") == "" || post.ContextID != job.ContextID() {
		t.Errorf("post = %+v, want the job's trace and context", post)
	}
	if got := o.must("dlq", "ls"); strings.Contains(got, task) {
		t.Errorf("a retried letter stays:\n%s", got)
	}
	for _, command := range []string{"show", "retry", "drop"} {
		if got := o.do("dlq", command, task); got.status != exitNotFound || !strings.Contains(got.err, "starling dlq ls") {
			t.Errorf("dlq %s of what is gone = %d, %s", command, got.status, got.err)
		}
	}
}

// TestARetryThatWasCutShortIsRepeatedAsTheSameDelegation: the letter stayed.
func TestARetryThatWasCutShortIsRepeatedAsTheSameDelegation(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	job := buried(t, "")
	job.Env = nil
	bury(t, o, job, nil)
	letters, err := f.bus.DeadLettersOf(t.Context(), job.TaskID)
	if err != nil {
		t.Fatal(err)
	}
	first, err := letters[0].Retry()
	if err != nil {
		t.Fatal(err)
	}
	if first.DelegationID == job.DelegationID || first.TaskID == job.TaskID || first.Message.ID == job.Message.ID || first.ContextID() != job.ContextID() {
		t.Errorf("Retry() = %+v, want new ids in the same context", first)
	}
	if rec := decoded[protocol.Record](t, o.must("dlq", "retry", string(job.TaskID), "--json")); rec.DelegationID != first.DelegationID || rec.TaskID != first.TaskID {
		t.Errorf("the retry is %s, want %s, whoever makes it", rec.Key(), first.DelegationID)
	}
}

func TestALetterThatCannotBeRetriedStays(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	o.must("capsule", "push", hello(t))
	unreadable := buried(t, "")
	bury(t, o, unreadable, []byte(`{"spawner":{"URL":"http://s3cret"},"Env":{"A":"s3cret"},"env":"s3cret"}`))
	task := string(unreadable.TaskID)
	if got := o.must("dlq", "show", task); strings.Contains(got, "s3cret") {
		t.Errorf("dlq show tells a secret:\n%s", got)
	}
	got := o.do("dlq", "retry", task)
	if got.status != exitUsage {
		t.Errorf("dlq retry of what cannot be read = %d, want %d", got.status, exitUsage)
	}
	contains(t, "stderr", got.err, task, "cannot be retried", "dlq show")

	late := buried(t, "")
	late.Env, late.Deadline = nil, protocol.NewTime(time.Now().Add(-time.Hour))
	bury(t, o, late, nil)
	got = o.do("dlq", "retry", string(late.TaskID))
	if got.status != exitUsage || !strings.Contains(got.err, "--deadline") {
		t.Errorf("dlq retry past the deadline = %d, %s", got.status, got.err)
	}
	if got := o.do("dlq", "retry", string(late.TaskID), "--deadline", "10m"); got.status != exitOK {
		t.Errorf("dlq retry --deadline = %d, %s", got.status, got.err)
	}
	gone := buried(t, "")
	gone.Env, gone.Capsule.Name = nil, "nobody"
	bury(t, o, gone, nil)
	if got := o.do("dlq", "retry", string(gone.TaskID)); got.status != exitNotFound || !strings.Contains(got.err, "stays") {
		t.Errorf("dlq retry of an unknown capsule = %d, %s", got.status, got.err)
	}
	listed := o.must("dlq", "ls")
	contains(t, "dlq ls", listed, task, string(gone.TaskID))
	contains(t, "dlq drop", o.do("dlq", "drop", task).err, task)
	if got := o.must("dlq", "ls"); strings.Contains(got, task) {
		t.Errorf("a dropped letter stays:\n%s", got)
	}
}

// TestRedeliverKnowsTheDoorOfADeadLetter: the job of a task whose attempts are
// spent is kept, with the address in it.
func TestRedeliverKnowsTheDoorOfADeadLetter(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	o := operator{t, f.server.ClientURL()}
	door := testenv.Door(t, testenv.Accept())
	job := buried(t, door.URL()+"/s3cret-path")
	bury(t, o, job, nil)
	rec := job.NewRecord(time.Now())
	rec.Status, rec.EndedAt = protocol.StatusCrashed, protocol.NewTime(time.Now())
	rec.Outcome = &protocol.Outcome{
		DelegationID: job.DelegationID, CapsuleName: "hello", CapsuleVersion: "1.0.0", Status: protocol.StatusCrashed,
		Detail: protocol.LostDetail("wrk_1", 1), ReportedBy: protocol.ReportedByLauncher, DeliveryError: "failed to connect",
	}
	rec.Ending = &protocol.Ending{State: "TASK_STATE_FAILED", Message: rec.Outcome.Detail}
	if _, err := f.bus.CreateRecord(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	got := o.do("redeliver", rec.Key())
	if got.status != exitOK || strings.Contains(got.out+got.err, "s3cret") {
		t.Fatalf("redeliver = %d, %s", got.status, got.err)
	}
	posts := door.PostsOf(job.DelegationID)
	if len(posts) != 1 || posts[0].Text != rec.Outcome.Text() || posts[0].MessageID != protocol.CompletionMessageID(job.DelegationID) {
		t.Errorf("posts = %+v, want the completion", posts)
	}
}
