//go:build cluster

package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// clusterFleet is a cluster of three servers and two workers, all processes.
func clusterFleet(t *testing.T, ackWait time.Duration) (*processFleet, *testenv.ProcessCluster) {
	t.Helper()
	c := testenv.ClusterOfProcesses(t)
	f := newProcessFleet(t, c.URL(), broker.InitConfig{Replicas: 3, AckWait: ackWait}, testenv.Door(t))
	return f, c
}

// TestClusterRollingRestart restarts each server in turn by lame duck, as an
// upgrade does, under load: no job is lost and none is begun twice.
func TestClusterRollingRestart(t *testing.T) {
	f, c := clusterFleet(t, 0)
	for i := range 2 {
		f.hire(t, fmt.Sprint("w", i))
	}
	f.await(t, 2)
	l := f.startLoad(t, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	for _, s := range c.Servers {
		l.grows(30)
		s.LameDuck()
		l.grows(30)
		s.Start()
		c.Ready()
	}
	jobs := l.end()
	f.emptied(t, 2*time.Minute, jobs)
	f.auditor().check(t, jobs) // no worker was lost: no attempt has a reason
}

// TestClusterLosesALeader kills the server that leads the jobs stream, and the one
// that leads the consumer of a lane, in turn, under load, and measures for how long
// no job starts.
func TestClusterLosesALeader(t *testing.T) {
	f, c := clusterFleet(t, 0)
	for i := range 2 {
		f.hire(t, fmt.Sprint("w", i))
	}
	f.await(t, 2)
	var gaps []string
	for round := range 4 {
		consumer := ""
		if round%2 == 1 {
			consumer = protocol.LaneConsumer(protocol.DefaultPool, protocol.LaneUser)
		}
		l := f.startLoad(t, func(int) protocol.Job { return fleetJob("noop", "nothing", f.door.URL()) })
		l.grows(100)
		leader := c.LeaderOf("STARLING_JOBS", consumer)
		killed := time.Now()
		leader.Kill()
		l.grows(100)
		jobs := l.end()
		f.emptied(t, 2*time.Minute, jobs)
		leader.Start()
		c.Ready()
		f.auditor().check(t, jobs)
		gap := f.gap(t, jobs, killed)
		gaps = append(gaps, fmt.Sprintf("%s %d ms", map[bool]string{true: "stream", false: "consumer"}[consumer == ""], gap.Milliseconds()))
	}
	t.Logf("no job started for: %s", strings.Join(gaps, ", "))
}

// gap is the longest time without a start of a job, of those that end after from.
func (f *processFleet) gap(t *testing.T, jobs []protocol.Job, from time.Time) time.Duration {
	t.Helper()
	var starts []time.Time
	for _, job := range jobs {
		e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
		if err != nil {
			t.Fatal(err)
		}
		starts = append(starts, e.Record.StartedAt.Std())
	}
	slices.SortFunc(starts, time.Time.Compare)
	var longest time.Duration
	for i := 1; i < len(starts); i++ {
		if starts[i].After(from) {
			longest = max(longest, starts[i].Sub(starts[i-1]))
		}
	}
	return longest
}

// TestClusterAWorkerIsAwayAMinute cuts a worker off for a minute while its guests
// run: others take its tasks, it gives them up, and works again when it is back.
func TestClusterAWorkerIsAwayAMinute(t *testing.T) {
	f, c := clusterFleet(t, 6*time.Second)
	proxy := testenv.Proxy(t, c.Servers[0].URL())
	away := f.hireAt(t, proxy.URL(), "away", "--slots", "2")
	f.await(t, 1)
	long := f.dispatchAll(t, 2, func(int) protocol.Job { return fleetJob("agent-text", "nap 15000", f.door.URL()) })
	testenv.Eventually(t, time.Minute, func() error { return f.allWork(t, long, "away") })
	f.hire(t, "here", "--slots", "2")
	f.await(t, 2)
	audit := f.auditor()
	audit.lost("away", "it was cut off")
	l := f.startLoad(t, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	proxy.Down()
	cut := time.Now()
	testenv.EventuallyTrue(t, 2*time.Minute, "a minute without the bus, and more than sixty tries to reconnect on both connections", func() bool {
		return time.Since(cut) > time.Minute && proxy.Refused() > 2*60
	})
	t.Logf("the worker tried %d times", proxy.Refused())
	jobs := append(l.end(), long...)
	f.emptied(t, 2*time.Minute, jobs)
	audit.check(t, jobs)

	proxy.Resume()
	testenv.EventuallyTrue(t, time.Minute, "the worker gives up what others took", func() bool { return f.lostClaims(t) == 2 })
	f.await(t, 2)
	// It takes again, and nothing of what it had comes twice.
	testenv.Eventually(t, time.Minute, func() error {
		more := f.dispatchAll(t, 4, func(int) protocol.Job { return fleetJob("noop", "nothing", f.door.URL()) })
		f.emptied(t, time.Minute, more)
		jobs = append(jobs, more...)
		for _, job := range more {
			if e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0); err == nil && e.Record.WorkerID == "away" {
				return nil
			}
		}
		return fmt.Errorf("the worker that was away takes nothing")
	})
	audit.check(t, jobs)
	away.signal(t, syscall.SIGTERM)
	if err := away.ended(t); err != nil {
		t.Errorf("the worker that was away ends with %v after a drain", err)
	}
}

// allWork reports what is missing until all jobs run on a worker.
func (f *processFleet) allWork(t *testing.T, jobs []protocol.Job, worker protocol.WorkerID) error {
	for _, job := range jobs {
		e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
		if err == nil && (e.Record.Status != protocol.StatusWorking || e.Record.WorkerID != worker) {
			err = fmt.Errorf("a job is %s", e.Record.Status)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestClusterIsAway kills all three servers under load, for more tries to
// reconnect than the client makes by default, and shorter than the ack wait, so
// that no task is lost to another: every worker goes on where it was.
func TestClusterIsAway(t *testing.T) {
	f, c := clusterFleet(t, 2*time.Minute)
	for i := range 2 {
		f.hire(t, fmt.Sprint("w", i))
	}
	f.await(t, 2)
	jobs := f.dispatchAll(t, 60, func(i int) protocol.Job { return mixedJob(i, f.door.URL()) })
	jobs = append(jobs, f.dispatchAll(t, 6, func(int) protocol.Job { return fleetJob("agent-text", "nap 20000", f.door.URL()) })...)
	f.mirror.waitFinal(t, 20)
	for _, s := range c.Servers {
		s.Kill()
	}
	late := f.hire(t, "late") // without the bus a worker says so and ends: its service manager starts it again
	if status := exitCode(late.ended(t)); status != exitNoBus {
		t.Errorf("a worker without a bus ends with status %d, want %d", status, exitNoBus)
	}
	contains(t, "what it says", f.said(t), "no NATS server", "start one there, or set the right URL")
	down := time.Now()
	testenv.EventuallyTrue(t, 2*time.Minute, "40 s without a server", func() bool { return time.Since(down) > 40*time.Second })

	c.Servers[0].Start() // one of three leads nothing
	testenv.EventuallyTrue(t, time.Minute, "a server", func() bool {
		return !strings.Contains(starling(t, "", "ps", "--url", c.Servers[0].URL()).err, "no NATS server")
	})
	early := f.hire(t, "early")
	if status := exitCode(early.ended(t)); status != exitNoBus {
		t.Errorf("a worker at a cluster without a leader ends with status %d, want %d", status, exitNoBus)
	}
	for _, s := range c.Servers {
		s.Start()
	}
	c.Ready()
	f.hire(t, "later")
	f.await(t, 3)
	f.emptied(t, 3*time.Minute, jobs)
	f.auditor().check(t, jobs)
}
