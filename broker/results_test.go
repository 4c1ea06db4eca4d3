package broker_test

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func TestAResultIsStoredOncePerAttempt(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	storeResults(t, b)
}

func TestAResultIsStoredOncePerAttemptAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, _ := onCluster(t)
	storeResults(t, b)
}

func storeResults(t *testing.T, b *broker.Bus) {
	for _, size := range []int{0, 1, 300 << 10} {
		content, delegation, session := module(9, size), protocol.NewDelegationID(), protocol.NewSessionID()
		want := protocol.ResultObject{
			Bucket: "starling-results", Name: fmt.Sprintf("%s/%s.txt", delegation, session),
			Digest: string(protocol.DigestOf(content)), Size: int64(size),
		}
		for range 2 { // a repeat is fine
			got, err := b.PutResult(t.Context(), delegation, session, content)
			if err != nil {
				t.Fatalf("PutResult(%d bytes) = %v", size, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("PutResult() (-want +got):\n%s", diff)
			}
		}
		var got bytes.Buffer
		if err := b.FetchResult(t.Context(), want, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
			t.Errorf("FetchResult(%d bytes) = %d bytes, %v", size, got.Len(), err)
		}
		_, err := b.PutResult(t.Context(), delegation, session, []byte("other"))
		wantError(t, "other content", err, broker.ErrResultExists, want.Name)
	}
}

func TestTwoWritersOfOneResultAgree(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	for range 10 {
		delegation, session := protocol.NewDelegationID(), protocol.NewSessionID()
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() { _, errs[i] = b.PutResult(t.Context(), delegation, session, []byte("same")) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Errorf("PutResult() = %v", err)
			}
		}
	}
}

func TestFetchResultErrors(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	result, err := b.PutResult(t.Context(), "dlg_1", "ses_1", []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*protocol.ResultObject)
		class  error
	}{
		"missing":        {func(r *protocol.ResultObject) { r.Name = "dlg_1/ses_2.txt" }, broker.ErrResultMissing},
		"another bucket": {func(r *protocol.ResultObject) { r.Bucket = "starling-capsules" }, broker.ErrResultMissing},
		"another digest": {func(r *protocol.ResultObject) { r.Digest = string(protocol.DigestOf([]byte("two"))) }, broker.ErrDigestMismatch},
		"another size":   {func(r *protocol.ResultObject) { r.Size = 4 }, broker.ErrDigestMismatch},
		"no digest":      {func(r *protocol.ResultObject) { r.Digest = "x" }, protocol.ErrName},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := result
			test.change(&r)
			wantError(t, "FetchResult()", b.FetchResult(t.Context(), r, io.Discard), test.class)
		})
	}
	_, err = b.PutResult(t.Context(), "x", "a.b", nil)
	wantError(t, "bad ids", err, protocol.ErrName, "delegation_id", "session_id")
}

func TestTheRightsOfAWorkerAndOfAParentSuffice(t *testing.T) {
	t.Parallel()
	ns := protocol.DefaultNamespace
	worker, parent := testenv.WorkerUser(ns, "wrk_1", "default"), testenv.ParentUser(ns, "ses_p")
	s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), worker, parent))
	operator := connected(t, s.URL(), as(testenv.OperatorUser()))
	if err := operator.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	code := module(3, 1<<20)
	entry, err := operator.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), code)
	if err != nil {
		t.Fatal(err)
	}
	w := connected(t, s.URL(), as(worker), func(c *broker.Config) { c.SeparateFrames = true })
	p := connected(t, s.URL(), as(parent))

	// A worker.
	info := func() protocol.WorkerInfo { return protocol.WorkerInfo{WorkerID: "wrk_1", Pool: "default"} }
	stats := func() protocol.WorkerStats { return protocol.WorkerStats{WorkerInfo: info()} }
	heartbeat, err := w.Announce(t.Context(), info)
	if err != nil {
		t.Fatalf("Announce() = %v", err)
	}
	service, err := w.Serve(t.Context(), broker.ServiceConfig{WorkerID: "wrk_1", Pool: "default", Stats: stats})
	if err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	if _, err := w.PinnedCapsule(t.Context(), protocol.CapsuleRef{Name: "a", Version: "1", Digest: entry.Digest}); err != nil {
		t.Errorf("PinnedCapsule() = %v", err)
	}
	if err := w.FetchCapsule(t.Context(), entry.Digest, io.Discard); err != nil {
		t.Errorf("FetchCapsule() = %v", err)
	}
	result, err := w.PutResult(t.Context(), "dlg_1", "ses_1", code)
	if err != nil {
		t.Fatalf("PutResult() = %v", err)
	}
	if _, err := w.WorkerStats(t.Context(), "wrk_1"); err != nil {
		t.Errorf("WorkerStats() of its own id = %v", err)
	}
	_, err = w.WorkerStats(t.Context(), "wrk_2")
	wantError(t, "WorkerStats() of another by a worker", err, broker.ErrDenied)
	wantError(t, "Init() by a worker", w.Init(t.Context(), broker.InitConfig{}), broker.ErrDenied)
	_, err = w.PushCapsule(t.Context(), protocol.DefaultManifest("a", "2"), code)
	wantError(t, "PushCapsule() by a worker", err, broker.ErrDenied)
	_, err = w.Serve(t.Context(), broker.ServiceConfig{WorkerID: "wrk_1", Pool: "gpu", Stats: stats})
	wantError(t, "Serve() of another pool", err, broker.ErrDenied, "starling.pools.gpu")

	// A parent.
	if served, err := p.PoolServed(t.Context(), "default"); !served || err != nil {
		t.Errorf("PoolServed() = %t, %v", served, err)
	}
	if _, err := p.ResolveCapsule(t.Context(), "a", "1"); err != nil {
		t.Errorf("ResolveCapsule() = %v", err)
	}
	if err := p.FetchResult(t.Context(), result, io.Discard); err != nil {
		t.Errorf("FetchResult() = %v", err)
	}
	wantError(t, "DrainWorker() by a parent", drainError(t, p, "wrk_1"), broker.ErrDenied)

	if err := service.Close(t.Context()); err != nil {
		t.Errorf("Service.Close() = %v", err)
	}
	if err := heartbeat.Close(t.Context()); err != nil {
		t.Errorf("Heartbeat.Close() = %v", err)
	}
}
