package protocol_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

// TestSubjectsAndNames has the table of docs/protocol.md, section 2.
func TestSubjectsAndNames(t *testing.T) {
	t.Parallel()
	const ns protocol.Namespace = "fleet-1"
	tests := []struct{ role, got, want string }{
		{"jobs stream", ns.JobsStream(), "FLEET-1_JOBS"},
		{"tasks stream", ns.TasksStream(), "FLEET-1_TASKS"},
		{"dead letter stream", ns.DeadLetterStream(), "FLEET-1_DLQ"},
		{"ledger bucket", ns.LedgerBucket(), "fleet-1-delegations"},
		{"capsule bucket", ns.CapsuleBucket(), "fleet-1-capsules"},
		{"capsule index bucket", ns.CapsuleIndexBucket(), "fleet-1-capsule-index"},
		{"result bucket", ns.ResultBucket(), "fleet-1-results"},
		{"worker bucket", ns.WorkerBucket(), "fleet-1-workers"},
		{"job", ns.JobSubject("gpu", protocol.LaneBackground, "tsk_1"), "fleet-1.jobs.gpu.bg.tsk_1"},
		{"jobs of a pool", ns.PoolJobs("gpu"), "fleet-1.jobs.gpu.*.*"},
		{"jobs of a lane", ns.LaneJobs("gpu", protocol.LanePeer), "fleet-1.jobs.gpu.peer.*"},
		{"consumer of a lane", protocol.LaneConsumer("gpu", protocol.LaneUser), "gpu-user"},
		{"task", ns.TaskSubject("tsk_1"), "fleet-1.tasks.tsk_1"},
		{"mirror of the ledger", ns.DelegationSubject("ses_1", "dlg_1"), "fleet-1.delegations.ses_1.dlg_1"},
		{"ledger key", protocol.LedgerKey("ses_1", "dlg_1"), "ses_1.dlg_1"},
		{"capsule key", protocol.CapsuleKey("summarizer", "1.2.0"), "summarizer.1_2E2_2E0"},
		{"result object", protocol.ResultObjectName("dlg_1", "ses_2"), "dlg_1/ses_2.txt"},
		{"worker verb", ns.WorkerSubject("wrk_1", "drain"), "fleet-1.workers.wrk_1.drain"},
		{"pool", ns.PoolSubject("gpu"), "fleet-1.pools.gpu"},
		{"cancel", ns.CancelSubject("ses_1", "dlg_1"), "fleet-1.cancel.ses_1.dlg_1"},
		{"dead letter", ns.DeadLetterSubject("gpu", "tsk_1"), "fleet-1.dlq.gpu.tsk_1"},
		{"default namespace", string(protocol.DefaultNamespace), "starling"},
		{"default pool", protocol.DefaultPool, "default"},
		{"lanes in the order they are taken", fmt.Sprint(protocol.Lanes()), "[user peer bg]"},
		{"revision header", protocol.HeaderLedgerRevision, "Starling-Ledger-Revision"},
		{"reason header", protocol.HeaderReason, "Starling-Reason"},
		{"detail header", protocol.HeaderDetail, "Starling-Detail"},
		{"trace header", protocol.HeaderTraceparent, "traceparent"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s = %q, want %q", tt.role, tt.got, tt.want)
		}
	}
}

func TestNamespace(t *testing.T) {
	t.Parallel()
	for ns, want := range map[protocol.Namespace]bool{
		"starling": true, "a": true, "a_b-9": true, protocol.Namespace(strings.Repeat("x", 32)): true,
		protocol.Namespace(strings.Repeat("x", 33)): false,
		"": false, "A": false, "a.b": false, "a b": false, "*": false, ">": false, "é": false, "a\n": false,
	} {
		err := ns.Validate()
		if (err == nil) != want {
			t.Errorf("Namespace(%q).Validate() = %v, want it taken: %v", ns, err, want)
		}
		if err != nil && (!errors.Is(err, protocol.ErrName) || !strings.Contains(err.Error(), "namespace")) {
			t.Errorf("Namespace(%q).Validate() = %v, want an ErrName that says namespace", ns, err)
		}
	}
}

func TestParseJobSubject(t *testing.T) {
	t.Parallel()
	const ns protocol.Namespace = "starling"
	for _, lane := range protocol.Lanes() {
		want := protocol.JobPlace{Pool: "gpu-1", Lane: lane, Task: "tsk_1"}
		got, err := ns.ParseJobSubject(ns.JobSubject(want.Pool, want.Lane, want.Task))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("ParseJobSubject(JobSubject) = %v (-want +got):\n%s", err, diff)
		}
	}
	for rule, subject := range map[string]string{
		"nothing":             "",
		"four tokens":         "starling.jobs.gpu.user",
		"six tokens":          "starling.jobs.gpu.user.tsk_1.x",
		"another namespace":   "murmur.jobs.gpu.user.tsk_1",
		"another case":        "Starling.jobs.gpu.user.tsk_1",
		"another role":        "starling.tasks.gpu.user.tsk_1",
		"an unknown lane":     "starling.jobs.gpu.schedule.tsk_1",
		"a wildcard lane":     "starling.jobs.gpu.*.tsk_1",
		"an empty pool":       "starling.jobs..user.tsk_1",
		"a wildcard pool":     "starling.jobs.*.user.tsk_1",
		"an empty task":       "starling.jobs.gpu.user.",
		"a wildcard task":     "starling.jobs.gpu.user.>",
		"a task that is long": "starling.jobs.gpu.user." + strings.Repeat("x", 65),
	} {
		if got, err := ns.ParseJobSubject(subject); !errors.Is(err, protocol.ErrName) || got != (protocol.JobPlace{}) {
			t.Errorf("%s: ParseJobSubject(%q) = %v, %v, want ErrName", rule, subject, got, err)
		}
	}
}

func TestCapsuleKeyEscapes(t *testing.T) {
	t.Parallel()
	key := regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)
	seen := map[string]string{}
	for version, want := range map[string]string{
		"1": "c_x.1", "1.2.0": "c_x.1_2E2_2E0", "1.0+b": "c_x.1_2E0_2Bb", "1_0": "c_x.1_5F0", "_2E": "c_x._5F2E",
		".": "c_x._2E", "+": "c_x._2B", "_": "c_x._5F", "1-rc.1": "c_x.1-rc_2E1", "_5F": "c_x._5F5F",
	} {
		got := protocol.CapsuleKey("c_x", version)
		if got != want {
			t.Errorf("CapsuleKey(c_x, %q) = %q, want %q", version, got, want)
		}
		if !key.MatchString(got) {
			t.Errorf("CapsuleKey(c_x, %q) = %q, want one dot, between name and version", version, got)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("CapsuleKey is %q for %q and for %q", got, version, other)
		}
		seen[got] = version
	}
}

// FuzzParseJobSubject: what is taken is what JobSubject builds, and no part of
// it could reach another subject.
func FuzzParseJobSubject(f *testing.F) {
	for _, seed := range []string{"starling.jobs.default.user.tsk_1", "starling.jobs..bg.*", "starling.jobs.a.peer.b\n", "a.jobs.b.user.c"} {
		f.Add("starling", seed)
	}
	token := regexp.MustCompile(`\A[A-Za-z0-9_-]{1,64}\z`)
	f.Fuzz(func(t *testing.T, namespace, subject string) {
		ns := protocol.Namespace(namespace)
		place, err := ns.ParseJobSubject(subject)
		if err != nil {
			if !errors.Is(err, protocol.ErrName) {
				t.Fatalf("ParseJobSubject(%q) = %v, want ErrName", subject, err)
			}
			return
		}
		if got := ns.JobSubject(place.Pool, place.Lane, place.Task); got != subject {
			t.Errorf("JobSubject(ParseJobSubject(%q)) = %q", subject, got)
		}
		if !token.MatchString(place.Pool) || !token.MatchString(string(place.Task)) || place.Lane.Validate() != nil {
			t.Errorf("ParseJobSubject(%q) = %+v: a part fits no subject", subject, place)
		}
	})
}
