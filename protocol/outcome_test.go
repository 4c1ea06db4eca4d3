package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

func fullOutcome() protocol.Outcome {
	return protocol.Outcome{
		DelegationID: "dlg_1", CapsuleName: "c", CapsuleVersion: "1", SessionID: "ses_1", Status: protocol.StatusCrashed,
		ResultPath: "out/result.txt", Workdir: "/w", DurationMS: 7, Detail: "a < b", ReportedBy: protocol.ReportedByLauncher,
		Delivered: true, DeliveryError: "no", WorkerID: "wrk_1",
		ResultObject: &protocol.ResultObject{Bucket: "b", Name: "n", Digest: "d", Size: 1},
	}
}

// TestOutcomeKeys: docs/protocol.md, section 8: the keys in their order, the
// optional ones left out and never null.
func TestOutcomeKeys(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		outcome protocol.Outcome
		want    string
	}{
		"every key": {fullOutcome(), `{
  "delegation_id": "dlg_1",
  "capsule_name": "c",
  "capsule_version": "1",
  "session_id": "ses_1",
  "status": "crashed",
  "result_path": "out/result.txt",
  "workdir": "/w",
  "duration_ms": 7,
  "detail": "a < b",
  "reported_by": "launcher",
  "delivered": true,
  "delivery_error": "no",
  "worker_id": "wrk_1",
  "result_object": {
    "bucket": "b",
    "name": "n",
    "digest": "d",
    "size": 1
  }
}
`},
		"no attempt began": {protocol.Outcome{
			DelegationID: "dlg_1", CapsuleName: "c", CapsuleVersion: "1",
			Status: protocol.StatusTerminated, ReportedBy: protocol.ReportedByLauncher,
		}, `{
  "delegation_id": "dlg_1",
  "capsule_name": "c",
  "capsule_version": "1",
  "session_id": "",
  "status": "terminated",
  "workdir": "",
  "duration_ms": 0,
  "reported_by": "launcher",
  "delivered": false
}
`},
	} {
		got, err := tt.outcome.File()
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: File() = %s, %v, want %s", name, got, err, tt.want)
		}
		back, err := protocol.ParseOutcome(got)
		if diff := cmp.Diff(tt.outcome, back); err != nil || diff != "" {
			t.Errorf("%s: ParseOutcome(File()) = %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestOutcomeTextWithoutAResult(t *testing.T) {
	t.Parallel()
	o := fullOutcome()
	o.ResultPath, o.Detail = "", "one\ntwo"
	want := "Delegated capsule finished.\ndelegation_id: dlg_1\ncapsule: c@1\nsession_id: ses_1\nstatus: crashed\nduration_ms: 7\nworkdir: /w\n" +
		"result: none (the child wrote no result file)\ndetail: one\ntwo\n\nThe child's own output is in that file and is not reproduced here."
	if got := o.Text(); got != want {
		t.Errorf("Text() = %q, want %q", got, want)
	}
}

func TestParseOutcomeRefusals(t *testing.T) {
	t.Parallel()
	for body, says := range map[string]string{
		``: "JSON", `null`: "delegation_id", `[]`: "array", `{}`: "delegation_id",
		`{"delegation_id":"dlg_1"}`:                                "status",
		`{"delegation_id":"dlg_1","status":"working"}`:             "status",
		`{"delegation_id":"dlg_1","Status":"ok"}`:                  "status",
		`{"delegation_id":"tsk_1","status":"ok"}`:                  "delegation_id",
		`{"delegation_id":"dlg_1","status":"ok","delivered":1}`:    "delivered",
		`{"delegation_id":"dlg_1","status":"ok","duration_ms":""}`: "duration_ms",
	} {
		if o, err := protocol.ParseOutcome([]byte(body)); !errors.Is(err, protocol.ErrOutcome) || !strings.Contains(err.Error(), says) {
			t.Errorf("ParseOutcome(%s) = %+v, %v, want an ErrOutcome that says %s", body, o, err, says)
		}
	}
}

func TestParentEnded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status protocol.Status
		detail string
		want   bool
	}{
		{protocol.StatusTerminated, protocol.ParentEndedDetail, true},
		{protocol.StatusTerminated, protocol.DeadlineDetail(3), false},
		{protocol.StatusTerminated, protocol.DeadlineBeforeStartDetail, false},
		{protocol.StatusCrashed, protocol.ParentEndedDetail, false},
	} {
		o := protocol.Outcome{Status: tt.status, Detail: tt.detail}
		if got := o.ParentEnded(); got != tt.want {
			t.Errorf("%s, %q: ParentEnded() = %v, want %v", tt.status, tt.detail, got, tt.want)
		}
	}
}

// TestDetails has the sentences of the table of docs/protocol.md, section 8.
func TestDetails(t *testing.T) {
	t.Parallel()
	lines := make([]string, 25)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %d", i)
	}
	tests := []struct{ situation, got, want string }{
		{"trapped, silent", protocol.CrashDetail("unreachable", nil), "the capsule ended without recording a completion (unreachable)"},
		{
			"trapped, with stderr", protocol.CrashDetail("signal: killed", []string{"a", "b"}),
			"the capsule ended without recording a completion (signal: killed); its last stderr lines were:\na\nb",
		},
		{
			"trapped, with more stderr than 20 lines", protocol.CrashDetail("x", lines),
			"the capsule ended without recording a completion (x); its last stderr lines were:\n" + strings.Join(lines[5:], "\n"),
		},
		{"refused before it started", protocol.RefusedDetail("no such capsule"), "the capsule did not start: no such capsule"},
		{"worker lost", protocol.LostDetail("wrk_1", 3), "worker wrk_1 was lost while running attempt 3"},
		{"deadline passed", protocol.DeadlineDetail(90), "the capsule was still running after 90s and was ended at the delegation deadline"},
		{"deadline passed, none ran", protocol.DeadlineBeforeStartDetail, "the delegation deadline passed before the capsule was started"},
		{"the parent ended it", protocol.ParentEndedDetail, "the parent ended this delegation"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: the detail is %q, want %q", tt.situation, tt.got, tt.want)
		}
	}
	for situation, got := range map[string]string{
		"trapped": protocol.CrashDetail("x", []string{strings.Repeat("é", 5000)}), "refused": protocol.RefusedDetail(strings.Repeat("é", 5000)),
	} {
		if len(got) > 2000+len(" […]") || !strings.HasSuffix(got, " […]") || !utf8.ValidString(got) {
			t.Errorf("%s: the detail has %d bytes, want it cut at 2000 and marked", situation, len(got))
		}
	}
}

// TestMessages has the status messages of docs/protocol.md, section 7, Endings.
func TestMessages(t *testing.T) {
	t.Parallel()
	tests := []struct{ attempt, got, want string }{
		{"finished", protocol.MessageSessionEnded, "session ended"},
		{"canceled, stopped", protocol.MessageCanceled, "task canceled"},
		{"canceled, killed", protocol.MessageCanceledKilled, "task canceled; the harness was killed and its session may not resume cleanly"},
		{"canceled before start", protocol.MessageCanceledBeforeStart, "task canceled before it started"},
		{
			"spend ceiling", protocol.SpendMessage(100, 120),
			"spend ceiling reached: inference.max_session_tokens is 100 and this session has used 120; the operator set this limit; retrying will not get past it.",
		},
		{
			"run deadline", protocol.RunDeadlineMessage(2),
			"capsule execution exceeded its 2s deadline and was interrupted; raise capabilities.limits.deadline_seconds in murmur.yaml if the capsule legitimately needs longer",
		},
		{"turns", protocol.MaxTurnsMessage(10), "max_turns exceeded: the task used all 10 inference turns"},
		{"exit status, silent", protocol.ExitMessage(2, ""), "exit status 2"},
		{"exit status", protocol.ExitMessage(2, "boom"), "exit status 2: boom"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: the message is %q, want %q", tt.attempt, tt.got, tt.want)
		}
	}
}

func TestResultPaths(t *testing.T) {
	t.Parallel()
	want := []string{
		".murmur/ses_1/out/result_tsk_1.txt", ".murmur/ses_1/out/result.txt", "out/result_tsk_1.txt", "out/result.txt",
	}
	if got := protocol.ResultPaths("ses_1", "tsk_1"); !slices.Equal(got, want) {
		t.Errorf("ResultPaths = %q, want %q", got, want)
	}
}

func TestBoundTakesBytesThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	if got := protocol.Bound("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("Bound = %q, want U+FFFD", got)
	}
	for _, in := range []string{strings.Repeat("a\xff", 1000), strings.Repeat("\x80", 2001), strings.Repeat("x", 1999) + "\xf0\x9f\x98"} {
		if got := protocol.Bound(in); !utf8.ValidString(got) || len(got) > 2000+len(" […]") {
			t.Errorf("Bound(%.10q…) has %d bytes, valid: %v", in, len(got), utf8.ValidString(got))
		}
	}
}

// FuzzParseOutcome: what was read is written as a file that is read again as the
// same outcome, with no key that is null.
func FuzzParseOutcome(f *testing.F) {
	full, err := fullOutcome().File()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(`{"delegation_id":"dlg_1","status":"ok","result_object":null,"workdir":"\ud800<>&\u2028"}`))
	f.Add([]byte(`{"delegation_id":"dlg_1","status":"ok","result_object":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := protocol.ParseOutcome(data)
		if err != nil {
			if !errors.Is(err, protocol.ErrOutcome) {
				t.Fatalf("ParseOutcome(%q) = %v, want ErrOutcome", data, err)
			}
			return
		}
		file, err := o.File()
		if err != nil || !json.Valid(file) || !bytes.HasSuffix(file, []byte("\n}\n")) || bytes.Contains(file, []byte("\": null")) {
			t.Fatalf("File() = %s, %v", file, err)
		}
		again, err := protocol.ParseOutcome(file)
		if diff := cmp.Diff(o, again); err != nil || diff != "" {
			t.Errorf("read, written and read again: %v (-first +second):\n%s", err, diff)
		}
		if text := o.Text(); !strings.HasPrefix(text, "Delegated capsule finished.\n") || strings.HasSuffix(text, "\n") {
			t.Errorf("Text() = %q", text)
		}
	})
}
