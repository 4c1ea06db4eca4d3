package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

const (
	digestOfAbc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

	// fullJob is the example of docs/protocol.md, section 3.
	fullJob = `{"delegation_id":"dlg_1","task_id":"tsk_1",` +
		`"capsule":{"name":"summarizer","version":"1.2.0","digest":"` + digestOfAbc + `"},` +
		`"message":{"messageId":"msg_1","contextId":"ctx_1","parts":[{"text":"do it"}],"role":"ROLE_USER"},` +
		`"spawner":{"session_id":"ses_1","context_id":"ctx_0","delegation_id":"dlg_1","url":"http://10.0.0.7:7777","trust":"trusted"},` +
		`"origin":"user","pool":"gpu","max_attempts":5,"deadline":"2026-11-29T12:00:00.000Z","env":{"NAME":"value"}}`

	// leastJob leaves out what may be left out.
	leastJob = `{"delegation_id":"dlg_1","task_id":"tsk_1","capsule":{"name":"summarizer","version":"1.2.0"},` +
		`"message":{"messageId":"msg_1","contextId":"ctx_1","role":"user","parts":[{"kind":"text","text":"do it"}]},` +
		`"spawner":{"session_id":"ses_1","context_id":"ctx_0","delegation_id":"dlg_1"},"origin":"event"}`
)

func wantJob() protocol.Job {
	return protocol.Job{
		DelegationID: "dlg_1", TaskID: "tsk_1",
		Capsule: protocol.CapsuleRef{Name: "summarizer", Version: "1.2.0", Digest: digestOfAbc},
		Message: &a2a.Message{ID: "msg_1", ContextID: "ctx_1", Role: a2a.MessageRoleUser, Parts: a2a.ContentParts{a2a.NewTextPart("do it")}},
		Spawner: protocol.Spawner{SessionID: "ses_1", ContextID: "ctx_0", DelegationID: "dlg_1", URL: "http://10.0.0.7:7777", Trust: "trusted"},
		Origin:  "user", Pool: "gpu", MaxAttempts: 5, Deadline: protocol.NewTime(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)),
		Env: map[string]string{"NAME": "value"},
	}
}

var byText = cmp.Comparer(func(a, b protocol.Time) bool { return a.String() == b.String() })

func TestJobRoundTrip(t *testing.T) {
	t.Parallel()
	got, err := protocol.ParseJob([]byte(fullJob))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantJob(), got, byText); diff != "" {
		t.Errorf("ParseJob(fullJob) (-want +got):\n%s", diff)
	}
	body, err := got.Encode()
	if err != nil || string(body) != fullJob {
		t.Errorf("Encode() = %s, %v, want %s", body, err, fullJob)
	}
	if got.ContextID() != "ctx_1" || got.Lane() != protocol.LaneUser || got.Trust() != protocol.Trusted {
		t.Errorf("context, lane, trust = %s, %s, %s, want ctx_1, user, trusted", got.ContextID(), got.Lane(), got.Trust())
	}
}

func TestJobDefaults(t *testing.T) {
	t.Parallel()
	for _, body := range []string{leastJob, strings.TrimSuffix(leastJob, "}") + `,"pool":null,"max_attempts":null,"deadline":null,"env":null,"more":[1]}`} {
		got, err := protocol.ParseJob([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		want := wantJob()
		want.Capsule.Digest, want.Spawner.URL, want.Spawner.Trust, want.Env = "", "", "", nil
		want.Origin, want.Pool, want.MaxAttempts, want.Deadline = "event", "default", 3, protocol.Time{}
		if diff := cmp.Diff(want, got, byText); diff != "" {
			t.Errorf("ParseJob(%s) (-want +got):\n%s", body, diff)
		}
	}
}

// TestAnEarlyDeadlineIsOne: only one that is left out is none.
func TestAnEarlyDeadlineIsOne(t *testing.T) {
	t.Parallel()
	for _, early := range []string{"0001-01-01T00:00:00Z", "0001-01-01T00:00:00.0004Z", "0001-01-01T01:00:00+01:00", "0000-06-01T00:00:00Z"} {
		job, err := protocol.ParseJob([]byte(strings.TrimSuffix(leastJob, "}") + `,"deadline":"` + early + `"}`))
		if err != nil || job.Deadline.IsZero() || job.Deadline.Std().Year() > 1 {
			t.Fatalf("ParseJob with deadline %s has deadline %s (none: %t), %v, want one long past", early, job.Deadline, job.Deadline.IsZero(), err)
		}
		body, err := job.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := protocol.ParseJob(body); err != nil || again.Deadline != job.Deadline {
			t.Errorf("read again its deadline is %s, %v, want %s", again.Deadline, err, job.Deadline)
		}
	}
}

// TestJobMembersAreExact has each member in another case beside, or in place
// of, the right one.
func TestJobMembersAreExact(t *testing.T) {
	t.Parallel()
	for _, noise := range []string{
		`"Task_ID":"tsk_2"`, `"DELEGATION_ID":"dlg_2"`, `"Capsule":{"name":"x"}`, `"Message":{}`, `"Spawner":{}`, `"Origin":"system"`,
		`"Pool":"x"`, `"Max_Attempts":9`, `"Deadline":"2000-01-01T00:00:00Z"`, `"Env":{"A":"b"}`,
	} {
		body := strings.TrimSuffix(fullJob, "}") + "," + noise + "}"
		got, err := protocol.ParseJob([]byte(body))
		if diff := cmp.Diff(wantJob(), got, byText); err != nil || diff != "" {
			t.Errorf("%s is not ignored: %v (-want +got):\n%s", noise, err, diff)
		}
	}
	for _, name := range []string{"delegation_id", "task_id", "capsule", "message", "spawner", "origin", "name", "version", "messageId", "contextId", "session_id"} {
		body := strings.ReplaceAll(fullJob, `"`+name+`":`, `"`+strings.ToUpper(name)+`":`)
		if body == fullJob {
			t.Fatalf("%s is no member of the example", name)
		}
		if _, err := protocol.ParseJob([]byte(body)); !errors.Is(err, protocol.ErrJob) {
			t.Errorf("ParseJob with %s = %v, want ErrJob: the member is missing", strings.ToUpper(name), err)
		}
	}
}

func TestJobRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct{ rule, old, new, says string }{
		{"no delegation id", `"delegation_id":"dlg_1","task_id"`, `"task_id"`, "delegation_id"},
		{"a delegation id of another form", `"dlg_1"`, `"dlg_X"`, "delegation_id"},
		{"a task id that is a number", `"task_id":"tsk_1"`, `"task_id":1`, "task_id"},
		{"a task id with a dot", `"tsk_1"`, `"tsk.1"`, "task_id"},
		{"a task id of 65", `"tsk_1"`, `"` + strings.Repeat("x", 65) + `"`, "task_id"},
		{"a capsule that is a string", `{"name":"summarizer","version":"1.2.0","digest":"` + digestOfAbc + `"}`, `"summarizer@1.2.0"`, "capsule"},
		{"a capsule's name", `"summarizer"`, `"a.b"`, "capsule.name"},
		{"a capsule's version", `"1.2.0"`, `"1/2"`, "capsule.version"},
		{"a digest", digestOfAbc, "sha256:abc", "digest"},
		{"no message", `"message"`, `"massage"`, "message"},
		{"no text", `"do it"`, `""`, "message.parts"},
		{"a message without an id", `"msg_1"`, `""`, "message.messageId"},
		{"a message's context that is no name", `"ctx_1"`, `"a b"`, "message.contextId"},
		{"an agent's message", `"ROLE_USER"`, `"ROLE_AGENT"`, "message.role"},
		{"no spawner", `"spawner"`, `"parent"`, "spawner"},
		{"another delegation's handle", `"ctx_0","delegation_id":"dlg_1"`, `"ctx_0","delegation_id":"dlg_2"`, "spawner.delegation_id"},
		{"a handle without its trust", `,"trust":"trusted"`, ``, reasonURLAlone},
		{"a handle's session that is no name", `"ses_1"`, `"*"`, "spawner.session_id"},
		{"no origin", `"origin":"user",`, ``, "origin"},
		{"an unknown origin", `"user"`, `"cron"`, "origin"},
		{"a pool that is no name", `"gpu"`, `"g.u"`, "pool"},
		{"no attempts", `"max_attempts":5`, `"max_attempts":0`, "max_attempts"},
		{"attempts below zero", `"max_attempts":5`, `"max_attempts":-1`, "max_attempts"},
		{"attempts that are a fraction", `"max_attempts":5`, `"max_attempts":1.5`, "max_attempts"},
		{"attempts that are text", `"max_attempts":5`, `"max_attempts":"5"`, "max_attempts"},
		{"a deadline that is no time", `"2026-11-29T12:00:00.000Z"`, `"tomorrow"`, "deadline"},
		{"env that is a list", `{"NAME":"value"}`, `["NAME=value"]`, "env"},
		{"an env name with =", `"NAME"`, `"A=B"`, "env"},
		{"an env name that is empty", `"NAME"`, `""`, "env"},
		{"an env value with a NUL", `"value"`, `"a\u0000b"`, "env.NAME"},
		{"half a body", `"env":{"NAME":"value"}}`, ``, "JSON"},
	}
	for _, tt := range tests {
		body := strings.ReplaceAll(fullJob, tt.old, tt.new)
		if body == fullJob {
			t.Fatalf("%s: %s is not in the example", tt.rule, tt.old)
		}
		_, err := protocol.ParseJob([]byte(body))
		if !errors.Is(err, protocol.ErrJob) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: ParseJob(%s) = %v, want an ErrJob that says %s", tt.rule, body, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "10.0.0.7") {
			t.Errorf("%s: the error tells the door: %v", tt.rule, err)
		}
	}
	for _, body := range []string{``, `null`, `[]`, `"job"`, fullJob + fullJob} {
		if _, err := protocol.ParseJob([]byte(body)); !errors.Is(err, protocol.ErrJob) {
			t.Errorf("ParseJob(%.20s) = %v, want ErrJob", body, err)
		}
	}
}

func TestJobHandleStringsAreBounded(t *testing.T) {
	t.Parallel()
	for member, old := range map[string]string{"context_id": `"ctx_0"`, "url": `"http://10.0.0.7:7777"`} {
		for size, want := range map[int]bool{protocol.MaxHandleBytes: true, protocol.MaxHandleBytes + 1: false} {
			body := strings.Replace(fullJob, old, `"`+strings.Repeat("h", size)+`"`, 1)
			_, err := protocol.ParseJob([]byte(body))
			if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "spawner."+member) {
				t.Errorf("ParseJob with %d bytes of spawner.%s = %v, want it taken: %v", size, member, err, want)
			}
		}
	}
	if protocol.MaxHandleBytes != 2048 {
		t.Errorf("MaxHandleBytes = %d, want 2048", protocol.MaxHandleBytes)
	}
}

func TestJobBodyBound(t *testing.T) {
	t.Parallel()
	const bound = 256 << 10
	job := wantJob()
	fits := bound - len(fullJob) + len("do it")
	for size, want := range map[int]bool{fits: true, fits + 1: false} {
		text := strings.Repeat("x", size)
		body := strings.Replace(fullJob, "do it", text, 1)
		if _, err := protocol.ParseJob([]byte(body)); (err == nil) != want || err != nil && (!errors.Is(err, protocol.ErrJob) || !errors.Is(err, protocol.ErrJobTooLarge)) {
			t.Errorf("ParseJob of %d bytes = %v, want it taken: %v, else ErrJob and ErrJobTooLarge", len(body), err, want)
		}
		job.Message.Parts = a2a.ContentParts{a2a.NewTextPart(text)}
		got, err := job.Encode()
		if (err == nil) != want || err != nil && !errors.Is(err, protocol.ErrJobTooLarge) || err == nil && len(got) != bound {
			t.Errorf("Encode of %d bytes = %d bytes, %v, want it taken: %v, else ErrJobTooLarge", len(body), len(got), err, want)
		}
	}
}

// TestJobEncodeRefusesWhatNoWorkerReads has jobs that only Go code can build.
func TestJobEncodeRefusesWhatNoWorkerReads(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*protocol.Job){
		"message.parts":            func(j *protocol.Job) { j.Message = nil },
		"message.role":             func(j *protocol.Job) { j.Message.Role = a2a.MessageRoleAgent },
		reasonURLAlone:             func(j *protocol.Job) { j.Spawner.Trust = "" },
		reasonTrustAlone:           func(j *protocol.Job) { j.Spawner.URL = "" },
		"is not a trust class":     func(j *protocol.Job) { j.Spawner.Trust = "maybe" },
		"carries no 'context_id'":  func(j *protocol.Job) { j.Spawner.ContextID = "" },
		"env.NAME":                 func(j *protocol.Job) { j.Env = map[string]string{"NAME": "\xff"} },
		"delegation_id":            func(j *protocol.Job) { j.DelegationID = "" },
		"max_attempts is 0":        func(j *protocol.Job) { j.MaxAttempts = 0 },
		"pool is \"\"":             func(j *protocol.Job) { j.Pool = "" },
		"spawner.session_id is \"": func(j *protocol.Job) { j.Spawner.SessionID = "" },
	} {
		job := wantJob()
		change(&job)
		if body, err := job.Encode(); !errors.Is(err, protocol.ErrJob) || !strings.Contains(err.Error(), says) {
			t.Errorf("Encode() = %s, %v, want an ErrJob that says %s", body, err, says)
		}
	}
}

func TestJobJoinsAllProblems(t *testing.T) {
	t.Parallel()
	_, err := protocol.ParseJob([]byte(`{"message":{"role":"user","parts":[{"text":"a"}]},"spawner":{"session_id":".","context_id":"c","delegation_id":"d"},"max_attempts":0,"pool":"."}`))
	for _, member := range []string{"delegation_id", "task_id", "capsule.name", "capsule.version", "spawner.session_id", "origin", "pool", "message.contextId", "max_attempts"} {
		if err == nil || !strings.Contains(err.Error(), member) {
			t.Errorf("ParseJob = %v, want it to name %s too", err, member)
		}
	}
}

func TestCapsuleRef(t *testing.T) {
	t.Parallel()
	got, err := protocol.ParseCapsuleRef("a@1.0+b")
	if want := (protocol.CapsuleRef{Name: "a", Version: "1.0+b"}); err != nil || got != want || got.String() != "a@1.0+b" {
		t.Errorf("ParseCapsuleRef(a@1.0+b) = %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "a", "a@", "@1", "a@1@2", "a.b@1", "a b@1"} {
		if got, err := protocol.ParseCapsuleRef(bad); !errors.Is(err, protocol.ErrName) || !strings.Contains(fmt.Sprint(err), "capsule") {
			t.Errorf("ParseCapsuleRef(%q) = %v, %v, want an ErrName that says capsule", bad, got, err)
		}
	}
}

// FuzzParseJob: what was read fits subjects and keys, and is written so that the
// same job is read again.
func FuzzParseJob(f *testing.F) {
	for _, seed := range []string{
		fullJob, leastJob, `null`, `{}`,
		strings.Replace(fullJob, `"env":{`, `"capabilities":{"env":{"allow":[]},"filesystem":null,"network":{"allow":["a"]},"limits":{"instances":1}},"env":{`, 1),
		strings.Replace(fullJob, "2026-11-29T12:00:00.000Z", "9999-12-31T23:59:59.9-23:00", 1),
		strings.Replace(fullJob, `{"text":"do it"}`, `{"text":"<\u2028>"},{"data":{"n":1e300,"m":null}},{"url":"u","filename":"f"}`, 1),
	} {
		f.Add([]byte(seed))
	}
	const ns = protocol.DefaultNamespace
	f.Fuzz(func(t *testing.T, body []byte) {
		job, err := protocol.ParseJob(body)
		if err != nil {
			if !errors.Is(err, protocol.ErrJob) {
				t.Fatalf("ParseJob(%q) = %v, want ErrJob", body, err)
			}
			return
		}
		place, err := ns.ParseJobSubject(ns.JobSubject(job.Pool, job.Lane(), job.TaskID))
		if err != nil || place.Task != job.TaskID {
			t.Errorf("ParseJob(%q): the job fits no subject: %v", body, err)
		}
		written, err := job.Encode()
		if errors.Is(err, protocol.ErrJobTooLarge) {
			return // escapes can make it longer
		}
		if err != nil {
			t.Fatalf("Encode() of %q = %v", body, err)
		}
		again, err := protocol.ParseJob(written)
		if err != nil {
			t.Fatalf("ParseJob(%s) = %v", written, err)
		}
		rewritten, err := again.Encode()
		if err != nil || string(rewritten) != string(written) {
			t.Errorf("written %s, read and written %s, %v", written, rewritten, err)
		}
		record, err := job.NewRecord(time.Unix(0, 0)).Encode()
		if err != nil {
			t.Fatal(err)
		}
		if r, err := protocol.ParseRecord(record); err != nil || r.Disagrees(job) != "" {
			t.Errorf("the job's own record %s is read %v and disagrees in %q", record, err, r.Disagrees(job))
		}
		if !json.Valid(written) {
			t.Errorf("written %q is no JSON", written)
		}
	})
}
