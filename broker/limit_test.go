package broker_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// TestAFullLedger refuses a dispatch at once, for certain and in words; what is
// delegated already is written when there is room again.
func TestAFullLedger(t *testing.T) {
	t.Parallel()
	_, s := initialized(t)
	fullLedger(t, s.URL())
}

func TestAFullLedgerAtThreeReplicas(t *testing.T) {
	t.Parallel()
	_, c := onCluster(t)
	fullLedger(t, c.URL())
}

func fullLedger(t *testing.T, url string) {
	logged := &said{}
	b := connected(t, url, func(c *broker.Config) { c.Logger = slog.New(slog.NewTextHandler(logged, nil)) })
	if err := b.Init(t.Context(), broker.InitConfig{MaxLedgerBytes: 80_000}); err != nil {
		t.Fatal(err)
	}
	before := dispatched(t, b, newJob())
	js := testenv.JetStream(t, url)
	ledger, err := js.Stream(t.Context(), "KV_starling-delegations")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{60_000, 1000, 10} { // to the brim
		for err = nil; err == nil; {
			_, err = js.Publish(t.Context(), "$KV.starling-delegations.ses_x."+string(protocol.NewDelegationID()), make([]byte, size))
		}
		if !strings.Contains(err.Error(), "maximum bytes exceeded") {
			t.Fatal(err)
		}
	}

	refused := newJob()
	began := time.Now()
	_, err = b.Dispatch(t.Context(), refused, broker.DispatchOptions{AllowUnserved: true})
	wantError(t, "Dispatch()", err, broker.ErrLedgerFull, "KV_starling-delegations", "maximum bytes exceeded", "`starling init --max-ledger-bytes N` raises its limit")
	if took := time.Since(began); errors.Is(err, broker.ErrUnclear) || took > 5*time.Second {
		t.Errorf("Dispatch() = %v after %s, want a refusal at once", err, took)
	}
	if info, err := js.Stream(t.Context(), "STARLING_JOBS"); err != nil || info.CachedInfo().State.Msgs != 1 {
		t.Errorf("the refused job is queued, or %v", err)
	}
	if again, err := b.Dispatch(t.Context(), asJob(before), broker.DispatchOptions{AllowUnserved: true}); err != nil || !again.Existing {
		t.Errorf("Dispatch() of a delegation that is there = %+v, %v", again, err)
	}

	working := before.Record
	working.Status, working.Attempt, working.Workdir = protocol.StatusWorking, 1, "/"+strings.Repeat("x", 1000)
	working.WorkerID, working.SessionID = "wrk_1", protocol.NewSessionID()
	written := make(chan error, 1)
	go func() {
		_, err := b.WriteRecord(t.Context(), working, before.Revision)
		written <- err
	}()
	const says = "the ledger is full: the record is written again until there is room"
	testenv.EventuallyTrue(t, 20*time.Second, "the writer says so", func() bool { return strings.Contains(logged.String(), says) })
	if err := ledger.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.starling-delegations.ses_x.*")); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Errorf("WriteRecord() with room again = %v", err)
	}
	if n := strings.Count(logged.String(), says); n != 1 || !strings.Contains(logged.String(), string(working.DelegationID)) {
		t.Errorf("it is said %d times:\n%s", n, logged.String())
	}
	dispatched(t, b, refused)
}

// asJob is the job of a delegation as its parent dispatches it again.
func asJob(d broker.Dispatched) protocol.Job {
	return newJob(func(j *protocol.Job) {
		j.DelegationID, j.TaskID, j.Capsule = d.Record.DelegationID, d.Record.TaskID, d.Record.Capsule
		j.Spawner.SessionID, j.Spawner.DelegationID = d.Record.Spawner.SessionID, d.Record.DelegationID
		j.Message.ContextID = string(d.Record.ContextID)
	})
}

// TestAFullStoreOfResults says which limit it is.
func TestAFullStoreOfResults(t *testing.T) {
	t.Parallel()
	b := connected(t, testenv.NATS(t).URL())
	if err := b.Init(t.Context(), broker.InitConfig{MaxResultBytes: 9 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.PutResult(t.Context(), "dlg_1", "ses_1", make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	_, err := b.PutResult(t.Context(), "dlg_2", "ses_1", make([]byte, 8<<20))
	wantError(t, "PutResult()", err, broker.ErrRefused, "OBJ_starling-results", "`starling init --max-result-bytes N` raises its limit")
}
