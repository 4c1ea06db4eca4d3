package protocol_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

// fullRecord is the example of docs/protocol.md, section 6.
const fullRecord = `{"delegation_id":"dlg_1","task_id":"tsk_1","context_id":"ctx_1",` +
	`"capsule":{"name":"summarizer","version":"1.2.0","digest":"` + digestOfAbc + `"},` +
	`"pool":"default","lane":"user","origin":"user","trust":"trusted","spawner":{"session_id":"ses_0","context_id":"ctx_0"},` +
	`"status":"ok","attempt":1,"returned":0,"worker_id":"wrk_1","session_id":"ses_1","workdir":"/w",` +
	`"delivery":{"sequence":12,"count":1},"submitted_at":"2026-11-29T12:00:00.000Z","started_at":"2026-11-29T12:00:00.100Z",` +
	`"ended_at":"2026-11-29T12:00:01.120Z",` +
	`"outcome":{"delegation_id":"dlg_1","capsule_name":"summarizer","capsule_version":"1.2.0","session_id":"ses_1","status":"ok",` +
	`"result_path":"out/result.txt","workdir":"/w","duration_ms":1020,"reported_by":"child","delivered":false,"worker_id":"wrk_1"},` +
	`"ending":{"state":"TASK_STATE_COMPLETED","message":"session ended"}}`

func at(ms int) protocol.Time {
	return protocol.NewTime(time.Date(2026, 11, 29, 12, 0, 0, ms*1e6, time.UTC))
}

func wantRecord() protocol.Record {
	return protocol.Record{
		DelegationID: "dlg_1", TaskID: "tsk_1", ContextID: "ctx_1",
		Capsule: protocol.CapsuleRef{Name: "summarizer", Version: "1.2.0", Digest: digestOfAbc},
		Pool:    "default", Lane: "user", Origin: "user", Trust: "trusted",
		Spawner: protocol.Spawner{SessionID: "ses_0", ContextID: "ctx_0"},
		Status:  protocol.StatusOK, Attempt: 1, WorkerID: "wrk_1", SessionID: "ses_1", Workdir: "/w",
		Delivery: protocol.DeliveryMark{Sequence: 12, Count: 1}, SubmittedAt: at(0), StartedAt: at(100), EndedAt: at(1120),
		Outcome: &protocol.Outcome{
			DelegationID: "dlg_1", CapsuleName: "summarizer", CapsuleVersion: "1.2.0", SessionID: "ses_1", Status: protocol.StatusOK,
			ResultPath: "out/result.txt", Workdir: "/w", DurationMS: 1020, ReportedBy: protocol.ReportedByChild, WorkerID: "wrk_1",
		},
		Ending: &protocol.Ending{State: a2a.TaskStateCompleted, Message: "session ended"},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	got, err := protocol.ParseRecord([]byte(fullRecord))
	if diff := cmp.Diff(wantRecord(), got, byText); err != nil || diff != "" {
		t.Fatalf("ParseRecord(fullRecord) = %v (-want +got):\n%s", err, diff)
	}
	body, err := got.Encode()
	if err != nil || string(body) != fullRecord {
		t.Errorf("Encode() = %s, %v, want %s", body, err, fullRecord)
	}
	if got.Key() != "ses_0.dlg_1" {
		t.Errorf("Key() = %s, want ses_0.dlg_1", got.Key())
	}
}

// TestNewRecord: the dispatcher's record has nothing of an attempt yet, and
// nothing of the door ever.
func TestNewRecord(t *testing.T) {
	t.Parallel()
	job, err := protocol.ParseJob([]byte(fullJob))
	if err != nil {
		t.Fatal(err)
	}
	body, err := job.NewRecord(at(7).Std()).Encode()
	want := `{"delegation_id":"dlg_1","task_id":"tsk_1","context_id":"ctx_1",` +
		`"capsule":{"name":"summarizer","version":"1.2.0","digest":"` + digestOfAbc + `"},` +
		`"pool":"gpu","lane":"user","origin":"user","trust":"trusted","spawner":{"session_id":"ses_1","context_id":"ctx_0"},` +
		`"status":"submitted","attempt":0,"returned":0,"submitted_at":"2026-11-29T12:00:00.007Z"}`
	if err != nil || string(body) != want {
		t.Errorf("NewRecord().Encode() = %s, %v, want %s", body, err, want)
	}
}

func TestRecordNeverTellsTheDoor(t *testing.T) {
	t.Parallel()
	r := wantRecord()
	r.Spawner.DelegationID, r.Spawner.URL, r.Spawner.Trust = "dlg_1", "http://user:s3cret@door/t0ken", "trusted"
	body, err := r.Encode()
	if err != nil || string(body) != fullRecord {
		t.Errorf("Encode() = %s, %v, want lineage only", body, err)
	}
}

func TestRecordStatuses(t *testing.T) {
	t.Parallel()
	open := strings.Split(fullRecord, `,"outcome"`)[0] + "}"
	for status, final := range map[protocol.Status]bool{
		"submitted": false, "working": false, "ok": true, "error": true, "crashed": true, "terminated": true,
	} {
		if status.Final() != final {
			t.Errorf("Status(%q).Final() = %v, want %v", status, status.Final(), final)
		}
		body := strings.Replace(open, `"status":"ok"`, `"status":"`+string(status)+`"`, 1)
		if _, err := protocol.ParseRecord([]byte(body)); (err == nil) != !final || err != nil && !errors.Is(err, protocol.ErrRecord) {
			t.Errorf("ParseRecord of %s without an outcome = %v, want it refused: %v", status, err, final)
		}
	}
}

func TestRecordRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct{ rule, old, new, says string }{
		{"an unknown status", `"trust":"trusted","spawner":{"session_id":"ses_0","context_id":"ctx_0"},"status":"ok"`, `"spawner":{"session_id":"ses_0"},"status":"done"`, "status"},
		{"no delegation id", `"delegation_id":"dlg_1","task_id"`, `"task_id"`, "delegation_id"},
		{"no task id", `"tsk_1"`, `""`, "task_id"},
		{"a parent that is no name", `"ses_0"`, `">"`, "spawner.session_id"},
		{"final without an ending", `"ending"`, `"Ending"`, "ending"},
		{"final with a null outcome", `"outcome":{`, `"outcome":null,"x":{`, "outcome"},
		{"a pool that is no name", `"pool":"`, `"pool":"a b","x":"`, "pool"},
		{"a worker that is no name", `"worker_id":"`, `"worker_id":"a b","x":"`, "worker_id"},
		{"a session that is no name", `"session_id":"ses_1","workdir"`, `"session_id":"ses 1","workdir"`, "session_id"},
		{"an unknown lane", `"lane":"user"`, `"lane":"fast"`, "lane"},
		{"a capsule that is no name", `"capsule":{"name":"`, `"capsule":{"name":" `, "capsule.name"},
		{"attempts below zero", `"attempt":1`, `"attempt":-5`, "attempt is -5"},
		{"more attempts than can be counted", `"attempt":1`, `"attempt":9007199254740992`, "attempt is 9007199254740992"},
		{"more returned than begun", `"returned":0`, `"returned":2`, "2 returned"},
		{"an attempt that is text", `"attempt":1`, `"attempt":"1"`, "attempt"},
		{"a delivery below zero", `"sequence":12`, `"sequence":-1`, "delivery"},
		{"a time that is none", `"2026-11-29T12:00:00.100Z"`, `"noon"`, "started_at"},
		{"half", `"ending":{"state":"TASK_STATE_COMPLETED","message":"session ended"}}`, ``, "JSON"},
	}
	for _, tt := range tests {
		body := strings.Replace(fullRecord, tt.old, tt.new, 1)
		if body == fullRecord {
			t.Fatalf("%s: %s is not in the example", tt.rule, tt.old)
		}
		if _, err := protocol.ParseRecord([]byte(body)); !errors.Is(err, protocol.ErrRecord) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: ParseRecord = %v, want an ErrRecord that says %s", tt.rule, err, tt.says)
		}
	}
}

// TestRecordHolds: section 6, Writing: the same task, status, session,
// delivery and outcome are the writer's own write.
func TestRecordHolds(t *testing.T) {
	t.Parallel()
	working := wantRecord()
	working.Status, working.Outcome, working.Ending = protocol.StatusWorking, nil, nil
	if !working.Holds(working) || !wantRecord().Holds(wantRecord()) {
		t.Error("a record does not hold itself")
	}
	if working.Holds(wantRecord()) || wantRecord().Holds(working) {
		t.Error("a record with an outcome is held by one without")
	}
	for member, tt := range map[string]struct {
		change func(*protocol.Record)
		want   bool
	}{
		"task_id":                        {func(r *protocol.Record) { r.TaskID = "tsk_2" }, false},
		"status":                         {func(r *protocol.Record) { r.Status = protocol.StatusError }, false},
		"session_id":                     {func(r *protocol.Record) { r.SessionID = "ses_2" }, false},
		"outcome.status":                 {func(r *protocol.Record) { r.Outcome.Status = protocol.StatusCrashed }, false},
		"outcome.detail":                 {func(r *protocol.Record) { r.Outcome.Detail = "x" }, false},
		"outcome.delivered":              {func(r *protocol.Record) { r.Outcome.Delivered = true }, false},
		"outcome.worker_id":              {func(r *protocol.Record) { r.Outcome.WorkerID = "wrk_2" }, false},
		"outcome.result_object":          {func(r *protocol.Record) { r.Outcome.ResultObject = &protocol.ResultObject{Name: "x"} }, false},
		"delivery":                       {func(r *protocol.Record) { r.Delivery.Count++ }, false},
		"what the rule does not compare": {func(r *protocol.Record) { r.Attempt, r.EndedAt = 2, at(9) }, true},
	} {
		written := wantRecord()
		tt.change(&written)
		if got := wantRecord().Holds(written); got != tt.want {
			t.Errorf("Holds with another %s = %v, want %v", member, got, tt.want)
		}
	}
	one, two := wantRecord(), wantRecord()
	one.Outcome.ResultObject, two.Outcome.ResultObject = &protocol.ResultObject{Name: "x"}, &protocol.ResultObject{Name: "x"}
	if !one.Holds(two) {
		t.Error("Holds compares the address of result_object, not what it says")
	}
}

// TestRecordAttemptsSpent: section 10, Dead letters, read from the record alone.
func TestRecordAttemptsSpent(t *testing.T) {
	t.Parallel()
	spent := wantRecord()
	spent.Status, spent.WorkerID, spent.Attempt = protocol.StatusCrashed, "wrk_1", 3
	spent.Outcome.Status, spent.Outcome.ReportedBy = protocol.StatusCrashed, protocol.ReportedByLauncher
	spent.Outcome.Detail = "worker wrk_1 was lost while running attempt 3"
	if !spent.AttemptsSpent() {
		t.Errorf("AttemptsSpent() of %+v = false", spent.Outcome)
	}
	for name, change := range map[string]func(*protocol.Record, *protocol.Outcome){
		"no outcome":     func(r *protocol.Record, _ *protocol.Outcome) { r.Outcome = nil },
		"another status": func(r *protocol.Record, _ *protocol.Outcome) { r.Status = protocol.StatusError },
		"another worker": func(_ *protocol.Record, o *protocol.Outcome) {
			o.Detail = "worker wrk_2 was lost while running attempt 3"
		},
		"another attempt": func(_ *protocol.Record, o *protocol.Outcome) {
			o.Detail = "worker wrk_1 was lost while running attempt 2"
		},
		"the child": func(_ *protocol.Record, o *protocol.Outcome) { o.ReportedBy = protocol.ReportedByChild },
		"a trap":    func(_ *protocol.Record, o *protocol.Outcome) { o.Detail = protocol.CrashDetail("unreachable", nil) },
	} {
		r, o := spent, *spent.Outcome
		r.Outcome = &o
		if change(&r, &o); r.AttemptsSpent() {
			t.Errorf("%s: AttemptsSpent() = true", name)
		}
	}
}

func TestRecordAttemptsLeft(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		attempt, returned, most int
		want                    bool
	}{
		{0, 0, 1, true}, {1, 0, 1, false}, {1, 1, 1, true}, {2, 0, 3, true}, {3, 0, 3, false}, {4, 1, 3, false}, {4, 2, 3, true},
	} {
		r := protocol.Record{Attempt: tt.attempt, Returned: tt.returned}
		if got := r.AttemptsLeft(tt.most); got != tt.want {
			t.Errorf("%d begun, %d returned: AttemptsLeft(%d) = %v, want %v", tt.attempt, tt.returned, tt.most, got, tt.want)
		}
	}
}

func TestDeliveryAfter(t *testing.T) {
	t.Parallel()
	mark := func(sequence, count uint64) protocol.DeliveryMark {
		return protocol.DeliveryMark{Sequence: sequence, Count: count}
	}
	for _, tt := range []struct {
		a, b protocol.DeliveryMark
		want bool
	}{
		{mark(1, 2), mark(1, 1), true},
		{mark(1, 1), mark(1, 1), false},
		{mark(1, 1), mark(1, 2), false},
		{mark(2, 1), mark(1, 9), true},
		{mark(1, 9), mark(2, 1), false},
	} {
		if got := tt.a.After(tt.b); got != tt.want {
			t.Errorf("%v.After(%v) = %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestRecordDisagrees(t *testing.T) {
	t.Parallel()
	job := wantJob()
	record := job.NewRecord(at(0).Std())
	if got := record.Disagrees(job); got != "" {
		t.Fatalf("Disagrees = %q with its own job, want nothing", got)
	}
	for _, tt := range []struct {
		rule, want string
		change     func(*protocol.Job)
	}{
		{"another task", "task_id", func(j *protocol.Job) { j.TaskID = "tsk_2" }},
		{"another context", "context_id", func(j *protocol.Job) { j.Message.ContextID = "ctx_2" }},
		{"another capsule", "capsule", func(j *protocol.Job) { j.Capsule.Name = "x" }},
		{"another version", "capsule", func(j *protocol.Job) { j.Capsule.Version = "2" }},
		{"another digest", "capsule", func(j *protocol.Job) { j.Capsule.Digest = protocol.DigestOf(nil) }},
		{"a job that pins no digest", "", func(j *protocol.Job) { j.Capsule.Digest = "" }},
		{"another pool", "pool", func(j *protocol.Job) { j.Pool = "x" }},
		{"another lane", "lane", func(j *protocol.Job) { j.Origin = "peer" }},
	} {
		job := wantJob()
		tt.change(&job)
		if got := record.Disagrees(job); got != tt.want {
			t.Errorf("%s: Disagrees = %q, want %q", tt.rule, got, tt.want)
		}
	}
}

// FuzzParseRecord: what was read is written so that the same record is read
// again, without a door.
func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(fullRecord))
	f.Add([]byte(strings.Replace(fullRecord, `"context_id":"ctx_0"}`, `"context_id":"","url":"http://s3cret","trust":"trusted"}`, 1)))
	f.Add([]byte(strings.Replace(fullRecord, `"delivered":false`, `"delivered":true,"result_object":{"size":1},"detail":"\ud800<"`, 1)))
	f.Add([]byte(`{"delegation_id":"dlg_1","task_id":"t","spawner":{"session_id":"s"},"status":"submitted"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := protocol.ParseRecord(data)
		if err != nil {
			if !errors.Is(err, protocol.ErrRecord) {
				t.Fatalf("ParseRecord(%q) = %v, want ErrRecord", data, err)
			}
			return
		}
		written, err := r.Encode()
		if err != nil {
			t.Fatalf("Encode() = %v", err)
		}
		again, err := protocol.ParseRecord(written)
		if err != nil {
			t.Fatalf("ParseRecord(%s) = %v", written, err)
		}
		if again.Spawner.HasAddress() {
			t.Errorf("written %s tells the door", written)
		}
		r.Spawner = again.Spawner // but for the door
		if diff := cmp.Diff(r, again, byText); diff != "" || !again.Holds(r) || again.Key() != r.Key() {
			t.Errorf("read, written and read again (-first +second):\n%s", diff)
		}
	})
}
