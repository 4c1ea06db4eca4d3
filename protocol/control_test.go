package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

func TestWorkerInfo(t *testing.T) {
	t.Parallel()
	want := protocol.WorkerInfo{
		WorkerID: "wrk_1", Pool: "default", Host: "h", PID: 7, Version: "1", Slots: 4, Busy: 2, Draining: true,
		JobsDone: 9, StartedAt: at(0), SeenAt: at(10),
	}
	body, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := protocol.ParseWorkerInfo(body)
	if diff := cmp.Diff(want, got, byText); err != nil || diff != "" {
		t.Errorf("ParseWorkerInfo(%s) = %v (-want +got):\n%s", body, err, diff)
	}
	for _, bad := range []string{``, `null`, `[]`, `{}`, `{"worker_id":"a.b"}`, `{"Worker_ID":"wrk_1"}`, `{"worker_id":"wrk_1","slots":"4"}`, `{"worker_id":"wrk_1","slots":-1}`, `{"worker_id":"wrk_1","busy":9223372036854775807}`, `{"worker_id":"wrk_1","jobs_done":-1}`} {
		if got, err := protocol.ParseWorkerInfo([]byte(bad)); !errors.Is(err, protocol.ErrControl) {
			t.Errorf("ParseWorkerInfo(%s) = %+v, %v, want ErrControl", bad, got, err)
		}
	}
}

// TestCancelNamesItsDelegation: docs/protocol.md, section 10: anything but
// {"delegation_id":"…"} with the delegation that runs is ignored.
func TestCancelNamesItsDelegation(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(protocol.CancelRequest{DelegationID: "dlg_1"})
	if err != nil || string(body) != `{"delegation_id":"dlg_1"}` {
		t.Errorf("Marshal = %s, %v", body, err)
	}
	if got, err := protocol.ParseCancelRequest(body, "dlg_1"); err != nil || got.DelegationID != "dlg_1" {
		t.Errorf("ParseCancelRequest(%s) = %v, %v", body, got, err)
	}
	for _, bad := range []string{``, `null`, `"dlg_1"`, `{}`, `{"delegation_id":"dlg_2"}`, `{"Delegation_ID":"dlg_1"}`, `{"delegation_id":null}`, `{"delegation_id":["dlg_1"]}`} {
		if got, err := protocol.ParseCancelRequest([]byte(bad), "dlg_1"); !errors.Is(err, protocol.ErrControl) {
			t.Errorf("ParseCancelRequest(%s) = %v, %v, want ErrControl", bad, got, err)
		}
	}
}

func TestCancelAnswer(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(protocol.CancelAnswer{Status: protocol.StatusTerminated})
	if err != nil || string(body) != `{"status":"terminated"}` {
		t.Errorf("Marshal = %s, %v", body, err)
	}
	if got, err := protocol.ParseCancelAnswer(body); err != nil || got.Status != protocol.StatusTerminated {
		t.Errorf("ParseCancelAnswer(%s) = %v, %v", body, got, err)
	}
	for _, bad := range []string{``, `[]`, `{"status":1}`} {
		if got, err := protocol.ParseCancelAnswer([]byte(bad)); !errors.Is(err, protocol.ErrControl) {
			t.Errorf("ParseCancelAnswer(%s) = %v, %v, want ErrControl", bad, got, err)
		}
	}
}

func TestCapsuleEntry(t *testing.T) {
	t.Parallel()
	want := protocol.CapsuleEntry{Digest: digestOfAbc, Size: 3, Manifest: protocol.DefaultManifest("c", "1"), PushedAt: at(1)}
	body, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := protocol.ParseCapsuleEntry(body)
	if diff := cmp.Diff(want, got, byText); err != nil || diff != "" {
		t.Errorf("ParseCapsuleEntry(%s) = %v (-want +got):\n%s", body, err, diff)
	}
	least := `{"digest":"` + digestOfAbc + `","manifest":{"name":"c","version":"1"}}`
	got, err = protocol.ParseCapsuleEntry([]byte(least))
	if diff := cmp.Diff(protocol.DefaultManifest("c", "1"), got.Manifest); err != nil || diff != "" {
		t.Errorf("ParseCapsuleEntry(%s) = %v: not the defaults (-want +got):\n%s", least, err, diff)
	}
	noise := strings.Replace(least, `{"name"`, `{"capabilities":{"limits":{"Memory_Bytes":1}},"Version":"9","name"`, 1)
	got, err = protocol.ParseCapsuleEntry([]byte(noise))
	if diff := cmp.Diff(protocol.DefaultManifest("c", "1"), got.Manifest); err != nil || diff != "" {
		t.Errorf("ParseCapsuleEntry(%s) = %v: members of another case count (-want +got):\n%s", noise, err, diff)
	}
	for _, bad := range []string{
		``, `null`, `[]`, `{}`, strings.Replace(least, "sha256:", "", 1), strings.Replace(least, `"c"`, `"."`, 1),
		strings.Replace(least, `"digest"`, `"Digest"`, 1), strings.Replace(least, `"1"`, `1`, 1),
	} {
		got, err := protocol.ParseCapsuleEntry([]byte(bad))
		if err == nil || !strings.Contains(fmt.Sprint(err), "capsule index") {
			t.Errorf("ParseCapsuleEntry(%s) = %+v, %v, want an error that says capsule index", bad, got, err)
		}
	}
}
