//go:build hosts

package main

import (
	"fmt"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// hostFleet is three hosts, each with a server of one cluster and two workers, a
// fourth with the parents' door, and the test, which dispatches, on a fifth.
type hostFleet struct {
	*processFleet
	hosts    []*testenv.Host
	doorHost *testenv.Host
	cluster  *testenv.ProcessCluster
}

// hostAckWait is short, so that a lost worker is noticed soon, and longer than most
// elections: workers whose renewals meet none lose their tasks too, and say so.
const hostAckWait = 10 * time.Second

func newHostFleet(t *testing.T) *hostFleet {
	t.Helper()
	network := testenv.Hosts(t, 4)
	f := &hostFleet{hosts: network.Hosts[:3], doorHost: network.Hosts[3]}
	var configs []testenv.ServerConfig
	for i, h := range f.hosts {
		configs = append(configs, testenv.ServerConfig{
			Name: fmt.Sprint("host", i), Addr: h.Addr + ":4222", Cluster: h.Addr + ":6222", Monitor: h.Addr + ":8222", Command: h.Command,
		})
	}
	f.cluster = testenv.ClusterOf(t, configs)
	f.processFleet = newProcessFleet(t, f.cluster.URL(), broker.InitConfig{Replicas: 3, AckWait: hostAckWait},
		testenv.DoorOn(t, f.doorHost.Listen()))
	for i, h := range f.hosts {
		for n := range 2 {
			// The server of its own host first, the others when that is away.
			url := f.cluster.Servers[i].URL()
			for _, s := range f.cluster.Servers {
				if s != f.cluster.Servers[i] {
					url += "," + s.URL()
				}
			}
			f.hireOn(t, h.Command, url, hostWorker(i, n), "--slots", "4", "--completion-timeout", "2s", "--completion-backoff", "200ms")
		}
	}
	f.await(t, 6)
	return f
}

func hostWorker(host, n int) string { return fmt.Sprintf("wrk_h%d%c", host, 'a'+n) }

// TestHosts breaks the network between hosts in every way that is met, under
// load, and audits what is left.
func TestHosts(t *testing.T) {
	f := newHostFleet(t)
	mixed := func(i int) protocol.Job { return mixedJob(i, f.door.URL()) }
	for _, s := range []struct {
		name  string
		fault func(t *testing.T, audit *auditor, l *load)
	}{
		{"a host is cut off", f.aHostIsCutOff},
		{"packets to a host are lost", func(t *testing.T, audit *auditor, l *load) { f.oneWay(t, audit, l, 100, 0) }},
		{"packets from a host are lost", func(t *testing.T, audit *auditor, l *load) { f.oneWay(t, audit, l, 0, 100) }},
		{"every host loses a tenth", f.everyHostLoses},
		{"the door cannot be reached", f.theDoorIsCutOff},
	} {
		t.Run(s.name, func(t *testing.T) {
			audit := f.auditor()
			l := f.startLoad(t, mixed)
			l.grows(20)
			s.fault(t, audit, l)
			l.grows(20)
			jobs := l.end()
			f.emptied(t, 2*time.Minute, jobs)
			f.cluster.Ready()
			audit.check(t, jobs)
			f.await(t, 6)
		})
	}
}

// aHostIsCutOff cuts a host off while a job of its workers runs, for longer than
// the ack wait: another worker takes the job, and the host's stops its guest.
func (f *hostFleet) aHostIsCutOff(t *testing.T, audit *auditor, l *load) {
	long := fleetJob("agent-text", "nap 40000", f.door.URL())
	if err := f.dispatch(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	l.add(long)
	runner, host := f.runner(t, long)
	for n := range 2 {
		audit.lost(hostWorker(host, n), "its host was cut off")
	}
	f.hosts[host].CutOff()
	testenv.Eventually(t, time.Minute, func() error {
		e, err := f.bus.ReadRecord(t.Context(), long.Spawner.SessionID, long.DelegationID, 0)
		if err == nil && e.Record.Attempt < 2 {
			err = fmt.Errorf("nobody took the job of %s", runner)
		}
		return err
	})
	lostBefore := f.lostClaims(t)
	l.grows(20)
	t.Logf("%s was cut off; it lost %d packets", runner, f.hosts[host].Lost())
	f.hosts[host].Heal()
	testenv.EventuallyTrue(t, time.Minute, "the worker that was cut off gives its job up", func() bool { return f.lostClaims(t) > lostBefore })
}

// runner waits until a job runs and says by whom, and on which host.
func (f *hostFleet) runner(t *testing.T, job protocol.Job) (worker protocol.WorkerID, host int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
		if err == nil && e.Record.Status != protocol.StatusWorking {
			err = fmt.Errorf("the job is %s", e.Record.Status)
		}
		worker = e.Record.WorkerID
		return err
	})
	if _, err := fmt.Sscanf(string(worker), "wrk_h%d", &host); err != nil {
		t.Fatal(err)
	}
	return worker, host
}

// oneWay is a partition in one direction, for longer than the ack wait.
func (f *hostFleet) oneWay(t *testing.T, audit *auditor, l *load, incoming, outgoing int) {
	const host = 1
	for n := range 2 {
		audit.lost(hostWorker(host, n), "its host lost packets of one direction")
	}
	f.hosts[host].Lose(incoming, outgoing)
	// The others go on, and what the host's workers held is taken over.
	held := l.count()
	testenv.Eventually(t, 90*time.Second, func() error {
		for _, job := range l.first(held) {
			e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
			if err == nil && !e.Record.Status.Final() {
				err = fmt.Errorf("%s is %s at %s", job.DelegationID, e.Record.Status, e.Record.WorkerID)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	l.grows(20)
	t.Logf("the host lost %d packets", f.hosts[host].Lost())
	f.hosts[host].Heal()
}

// everyHostLoses loses a tenth of all packets that the hosts get: slow, and right.
func (f *hostFleet) everyHostLoses(t *testing.T, audit *auditor, l *load) {
	for host := range f.hosts {
		for n := range 2 {
			audit.lost(hostWorker(host, n), "a tenth of the packets was lost")
		}
		f.hosts[host].Lose(10, 0)
	}
	l.grows(60)
	lost := 0
	for _, h := range f.hosts {
		lost += h.Lost()
		h.Heal()
	}
	if lost == 0 {
		t.Error("no packet was lost")
	}
	t.Logf("%d packets were lost", lost)
}

// theDoorIsCutOff lets no parent be told for a while: the outcomes stand, with the
// reason, and nothing waits for the door.
func (f *hostFleet) theDoorIsCutOff(t *testing.T, audit *auditor, l *load) {
	audit.closed = "the door was cut off"
	f.doorHost.CutOff()
	job := fleetJob("noop", "nothing", f.door.URL())
	if err := f.dispatch(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	l.add(job)
	testenv.Eventually(t, time.Minute, func() error {
		e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
		if err == nil && (!e.Record.Status.Final() || e.Record.Outcome.DeliveryError == "") {
			err = fmt.Errorf("the record is %s", e.Record.Status)
		}
		return err
	})
	l.grows(20)
	f.doorHost.Heal()
	got := starling(t, "", "ps", "--undelivered", "--url", f.url)
	contains(t, "ps --undelivered", got.out, string(job.DelegationID), "failed")
}
