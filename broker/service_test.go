package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func serve(t *testing.T, b *broker.Bus, id protocol.WorkerID, drain func(context.Context) error) *broker.Service {
	t.Helper()
	s, err := b.Serve(t.Context(), broker.ServiceConfig{
		WorkerID: id, Pool: "default", Version: "1.2.3", Drain: drain,
		Stats: func() protocol.WorkerStats {
			return protocol.WorkerStats{WorkerInfo: protocol.WorkerInfo{WorkerID: id, Pool: "default", Slots: 7}}
		},
	})
	if err != nil {
		t.Fatalf("Serve() = %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return s
}

func served(t *testing.T, b *broker.Bus) bool {
	t.Helper()
	ok, err := b.PoolServed(t.Context(), "default")
	if err != nil {
		t.Fatalf("PoolServed() = %v", err)
	}
	return ok
}

func TestAPoolIsServedWhileAWorkerTakesFromIt(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t) // the ledger is not needed
	worker, parent := connected(t, s.URL()), connected(t, s.URL())
	if served(t, parent) {
		t.Error("a pool without a worker is served")
	}
	one := serve(t, worker, "wrk_1", nil)
	two := serve(t, worker, "wrk_2", nil)
	if !served(t, parent) {
		t.Error("a pool with workers is not served")
	}
	for range 2 {
		if err := one.LeavePool(t.Context()); err != nil {
			t.Errorf("LeavePool() = %v", err)
		}
	}
	if !served(t, parent) {
		t.Error("a pool with one worker left is not served")
	}
	if info, err := parent.WorkerStats(t.Context(), "wrk_1"); err != nil || info.Slots != 7 {
		t.Errorf("a worker that left its pool says %+v, %v", info, err)
	}
	if err := two.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if served(t, parent) { // at once: the server knew when Close returned
		t.Error("a pool whose workers left is served")
	}
}

func TestAPoolLeftOnAClusterIsSeenByAllServers(t *testing.T) {
	t.Parallel()
	c := testenv.Cluster(t)
	worker, parent := connected(t, c.Servers[0].URL()), connected(t, c.Servers[1].URL())
	s := serve(t, worker, "wrk_1", nil)
	testenv.EventuallyTrue(t, 5*time.Second, "served", func() bool { return served(t, parent) })
	if err := s.LeavePool(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.EventuallyTrue(t, 5*time.Second, "left", func() bool { return !served(t, parent) })
}

func TestAStalledWorkerDoesNotHideTheOthersOfItsPool(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	p := testenv.Proxy(t, s.URL())
	serve(t, connected(t, p.URL()), "wrk_1", nil)
	serve(t, connected(t, s.URL()), "wrk_2", nil)
	parent := connected(t, s.URL())
	p.Stall(testenv.Both)
	defer p.Resume()
	for range 3 {
		if !served(t, parent) {
			t.Error("a pool with a stalled worker and another is not served")
		}
	}
}

func TestDrainReachesTheWorkerAndItsRefusalTheAsker(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	worker, operator := connected(t, s.URL()), connected(t, s.URL())
	asked := make(chan context.Context, 1)
	service := serve(t, worker, "wrk_1", func(ctx context.Context) error { asked <- ctx; return nil })
	serve(t, worker, "wrk_2", func(context.Context) error { return errors.New("no, thanks") })
	if _, err := operator.DrainWorker(t.Context(), "wrk_1"); err != nil {
		t.Fatalf("DrainWorker() = %v", err)
	}
	ctx := <-asked
	if ctx.Err() != nil {
		t.Errorf("the drain's context ended: %v", ctx.Err())
	}
	wantError(t, "DrainWorker()", drainError(t, operator, "wrk_2"), broker.ErrWorker, "no, thanks", "wrk_2")
	wantError(t, "DrainWorker()", drainError(t, operator, "wrk_3"), broker.ErrUnknownWorker, "wrk_3", "starling workers")
	_, err := operator.WorkerStats(t.Context(), "wrk_3")
	wantError(t, "WorkerStats()", err, broker.ErrUnknownWorker)
	if err := service.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if ctx.Err() == nil {
		t.Error("the drain's context lives on after Close")
	}
	wantError(t, "DrainWorker() after Close", drainError(t, operator, "wrk_1"), broker.ErrUnknownWorker)
}

func TestWorkersAreDiscoverableAsMicroServices(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	serve(t, connected(t, s.URL()), "wrk_1", nil)
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for service, subjects := range map[string]string{
		"starling-worker": "starling.workers.wrk_1.drain starling.workers.wrk_1.stats", "starling-pool": "starling.pools.default",
	} {
		m, err := nc.Request("$SRV.INFO."+service, nil, 5*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", service, err)
		}
		var info struct {
			Version   string            `json:"version"`
			Metadata  map[string]string `json:"metadata"`
			Endpoints []struct {
				Subject string `json:"subject"`
			} `json:"endpoints"`
		}
		if err := json.Unmarshal(m.Data, &info); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range info.Endpoints {
			got = append(got, e.Subject)
		}
		if strings.Join(got, " ") != subjects || info.Version != "1.2.3" || info.Metadata["worker_id"] != "wrk_1" || info.Metadata["pool"] != "default" {
			t.Errorf("%s says %+v", service, info)
		}
	}
}

func TestServiceCloseAfterTheBus(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b := connected(t, s.URL())
	service := serve(t, b, "wrk_1", nil)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := service.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

func drainError(t *testing.T, b *broker.Bus, id protocol.WorkerID) error {
	t.Helper()
	_, err := b.DrainWorker(t.Context(), id)
	return err
}
