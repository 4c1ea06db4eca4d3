package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"starling/protocol"
	"starling/testenv"
)

func TestDelegationsListsALedgerOfSeveralPages(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	for _, err := range b.Delegations(t.Context()) {
		t.Fatalf("an empty ledger lists %v", err)
	}
	js := testenv.JetStream(t, s.URL())
	const n = 1500
	record := func(i int) protocol.Record {
		return protocol.Record{
			DelegationID: protocol.DelegationID(fmt.Sprintf("dlg_%04x", i)), TaskID: "tsk_1", Status: protocol.StatusSubmitted,
			Capsule: protocol.CapsuleRef{Name: "echo", Version: "1.0.0"}, Pool: protocol.DefaultPool, Lane: protocol.LaneUser,
			Spawner: protocol.Spawner{SessionID: "ses_1"}, SubmittedAt: protocol.NewTime(time.Now()),
		}
	}
	for i := range n {
		body, err := record(i).Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishAsync("$KV.starling-delegations."+record(i).Key(), body); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	kv, err := js.KeyValue(t.Context(), "starling-delegations")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), record(7).Key()); err != nil { // withdrawn
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), record(9).Key(), []byte("{")); err != nil { // unreadable
		t.Fatal(err)
	}
	if body, err := record(11).Encode(); err != nil {
		t.Fatal(err)
	} else if _, err := kv.Put(t.Context(), record(10).Key(), body); err != nil { // another's
		t.Fatal(err)
	}
	good, bad := 0, 0
	for r, err := range b.Delegations(t.Context()) {
		switch {
		case errors.Is(err, protocol.ErrRecord):
			says := []string{"ses_1.dlg_0009: "} // in the order of the writes
			if bad++; bad == 2 {
				says = []string{"ses_1.dlg_000a: ", "stands the record of ses_1.dlg_000b"}
			}
			wantError(t, "the unreadable one", err, protocol.ErrRecord, says...)
		case err != nil:
			t.Fatal(err)
		default:
			good++
			if r.DelegationID == "dlg_0007" {
				t.Error("a withdrawn record is listed")
			}
		}
	}
	if good != n-3 || bad != 2 {
		t.Errorf("Delegations() gave %d records and %d errors, want %d and 2", good, bad, n-3)
	}
	for range b.Delegations(t.Context()) {
		break // a caller may stop
	}
}
