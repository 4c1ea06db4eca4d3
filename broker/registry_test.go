package broker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func workers(t *testing.T, b *broker.Bus) string {
	t.Helper()
	list, err := b.Workers(t.Context())
	if err != nil {
		t.Fatalf("Workers() = %v", err)
	}
	text := ""
	for _, w := range list {
		text += fmt.Sprintf("%s/%s/%d ", w.Pool, w.WorkerID, w.Busy)
	}
	return text
}

func TestWorkersAreListedFromTheirFirstHeartbeatToTheirClose(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	watchWorkers(t, b)
}

func TestWorkersAreListedAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, _ := onCluster(t)
	watchWorkers(t, b)
}

func watchWorkers(t *testing.T, b *broker.Bus) {
	is := func(want string) {
		t.Helper()
		testenv.Eventually(t, 10*time.Second, func() error { // a replica may be behind
			if got := workers(t, b); got != want {
				return fmt.Errorf("Workers() = %q, want %q", got, want)
			}
			return nil
		})
	}
	is("")
	var busy atomic.Int64
	var beats []*broker.Heartbeat
	for _, id := range []protocol.WorkerID{"wrk_2", "wrk_1"} {
		h, err := b.Announce(t.Context(), func() protocol.WorkerInfo {
			return protocol.WorkerInfo{WorkerID: id, Pool: "default", Busy: int(busy.Load())}
		})
		if err != nil {
			t.Fatalf("Announce() = %v", err)
		}
		beats = append(beats, h)
	}
	is("default/wrk_1/0 default/wrk_2/0 ")
	busy.Store(3)
	if err := beats[0].Beat(t.Context()); err != nil {
		t.Errorf("Beat() = %v", err)
	}
	is("default/wrk_1/0 default/wrk_2/3 ")
	for range 2 {
		if err := beats[0].Close(t.Context()); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
	is("default/wrk_1/0 ")
	if err := beats[1].Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	is("")
}

func TestAHeartbeatRenewsTheEntryByItself(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	ctx, cancel := context.WithCancel(t.Context())
	h, err := b.AnnounceEvery(ctx, 20*time.Millisecond, func() protocol.WorkerInfo { return protocol.WorkerInfo{WorkerID: "wrk_1"} })
	if err != nil {
		t.Fatal(err)
	}
	cancel() // the first write is over: the heartbeat goes on
	seen := func() time.Time {
		list, err := b.Workers(t.Context())
		if err != nil || len(list) != 1 {
			return time.Time{}
		}
		return list[0].SeenAt.Std()
	}
	first := seen()
	testenv.EventuallyTrue(t, 5*time.Second, "renewed", func() bool { return seen().After(first) })
	s.Restart()
	// A server that stands alone forgets streams in memory: Init brings it back.
	testenv.Eventually(t, 15*time.Second, func() error { return b.Init(t.Context(), broker.InitConfig{}) })
	first = time.Now()
	testenv.EventuallyTrue(t, 15*time.Second, "announced again", func() bool { return seen().After(first) })
	if err := h.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

func TestAHeartbeatClosesAlthoughTheBusIsAway(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	h, err := b.Announce(t.Context(), func() protocol.WorkerInfo { return protocol.WorkerInfo{WorkerID: "wrk_1"} })
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.Beat(ctx); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("Beat() without a bus = %v", err)
	}
	if err := h.Close(ctx); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("Close() without a bus = %v", err)
	}
}

func TestAWorkerWithoutAProperIDIsRefused(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	_, err := b.Announce(t.Context(), func() protocol.WorkerInfo { return protocol.WorkerInfo{WorkerID: "a.b"} })
	wantError(t, "Announce()", err, protocol.ErrName, "worker_id")
	_, err = b.Serve(t.Context(), broker.ServiceConfig{WorkerID: "a.b", Pool: "*"})
	wantError(t, "Serve()", err, protocol.ErrName, "worker_id", "pool")
	_, err = b.WorkerStats(t.Context(), "*")
	wantError(t, "WorkerStats()", err, protocol.ErrName, "worker_id")
	_, err = b.PoolServed(t.Context(), "*")
	wantError(t, "PoolServed()", err, protocol.ErrName, "pool")
}
