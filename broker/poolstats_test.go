package broker_test

import (
	"fmt"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func TestPoolStatsAreAnAutoscalersSignal(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	readPoolStats(t, b)
}

func TestPoolStatsAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, _ := onCluster(t)
	readPoolStats(t, b)
}

func readPoolStats(t *testing.T, b *broker.Bus) {
	if err := b.Init(t.Context(), broker.InitConfig{Pools: []string{"gpu"}}); err != nil {
		t.Fatal(err)
	}
	for _, origin := range []protocol.Origin{protocol.OriginUser, protocol.OriginUser, protocol.OriginSchedule} {
		dispatched(t, b, newJob(func(j *protocol.Job) { j.Origin = origin }))
	}
	for _, w := range []protocol.WorkerInfo{
		{WorkerID: "wrk_1", Pool: "default", Slots: 4, Busy: 1},
		{WorkerID: "wrk_2", Pool: "default", Slots: 4, Busy: 2, Draining: true},
	} {
		h, err := b.Announce(t.Context(), func() protocol.WorkerInfo { return w })
		if err != nil {
			t.Fatal(err)
		}
		defer left(t, h)
	}
	is := func(want string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error { // a replica may be behind
			workers, err := b.Workers(t.Context())
			if err != nil {
				return err
			}
			pools, err := b.PoolStats(t.Context(), workers)
			if err != nil {
				return err
			}
			got := ""
			for _, p := range pools {
				got += fmt.Sprintf("%s: %d pending (user %d, bg %d), %d in progress, waits %t, workers %d+%d, slots %d, busy %d\n", p.Pool, p.Pending,
					p.Lanes[protocol.LaneUser].Pending, p.Lanes[protocol.LaneBackground].Pending, p.InProgress, p.OldestMS > 0, p.Workers, p.Draining, p.Slots, p.Busy)
			}
			if got != want {
				return fmt.Errorf("PoolStats() =\n%swant\n%s", got, want)
			}
			return nil
		})
	}
	const gpu = "gpu: 0 pending (user 0, bg 0), 0 in progress, waits false, workers 0+0, slots 0, busy 0\n"
	is("default: 3 pending (user 2, bg 1), 0 in progress, waits true, workers 1+1, slots 4, busy 1\n" + gpu)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	d := w.next(t)
	is("default: 2 pending (user 1, bg 1), 1 in progress, waits true, workers 1+1, slots 4, busy 1\n" + gpu)
	if err := d.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	is("default: 2 pending (user 1, bg 1), 0 in progress, waits true, workers 1+1, slots 4, busy 1\n" + gpu)
}
