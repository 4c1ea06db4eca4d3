//go:build soak

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// What `make soak` may be given.
type soakParams struct {
	duration time.Duration // of load and faults
	seed     uint64
	rate     float64 // jobs a second
	servers  int     // 1 or 3
}

// Short enough that every worker is lost to a stall now and then, and longer than
// most elections of a leader.
const soakAckWait = 6 * time.Second

// soakLog names a file that keeps what workers say, in more words, of a soak that fails.
const soakLog = "SOAK_LOG"

// soakRetention of work directories.
const soakRetention = 40 * time.Second

func readSoakParams(t *testing.T) soakParams {
	t.Helper()
	p := soakParams{duration: 90 * time.Second, seed: uint64(time.Now().UnixNano()), rate: 15, servers: 3}
	for name, set := range map[string]func(string) (err error){
		"DURATION": func(s string) (err error) { p.duration, err = time.ParseDuration(s); return err },
		"SEED":     func(s string) (err error) { p.seed, err = strconv.ParseUint(s, 10, 64); return err },
		"RATE":     func(s string) (err error) { p.rate, err = strconv.ParseFloat(s, 64); return err },
		"SERVERS":  func(s string) (err error) { p.servers, err = strconv.Atoi(s); return err },
	} {
		if given := os.Getenv("SOAK_" + name); given != "" {
			if err := set(given); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if p.duration < time.Minute || p.rate <= 0 || p.rate > 200 || p.servers != 1 && p.servers != 3 {
		t.Fatalf("%+v: DURATION is at least 1m, RATE up to 200 jobs a second, SERVERS 1 or 3", p)
	}
	return p
}

// soak is a fleet under a steady load, and what goes wrong meanwhile.
type soak struct {
	t       *testing.T
	params  soakParams
	fleet   *processFleet
	cluster *testenv.ProcessCluster
	seats   []*seat
	parents []*soakParent
	load    *soakLoad
	samples *samples
	agenda  agenda
	began   time.Time
	audit   *auditor
	count   map[string]int // faults by kind
	// sandboxKills is how many sandbox processes were killed: as many guests at most
	// crashed by it.
	sandboxKills int
	serverDown   *testenv.ServerProcess
	serverFaults []string // when, and which
	ends         []string // of workers: when, which and how
}

// TestSoak lets a fleet work under faults, lets it recover, and audits everything.
func TestSoak(t *testing.T) {
	p := readSoakParams(t)
	t.Logf("DURATION=%s SEED=%d RATE=%g SERVERS=%d", p.duration, p.seed, p.rate, p.servers)
	s := newSoak(t, p)
	s.samples.idle()
	s.began = time.Now()
	s.plan(rand.New(rand.NewPCG(p.seed, 1)))
	s.load.start(p.seed, p.rate)
	s.run()
	s.healed()
	jobs := s.load.all()
	s.drained(jobs)
	s.files(jobs) // while there are some: they go after soakRetention
	s.samples.settle()
	t.Logf("faults:\n%s", countTable(s.count))
	t.Logf("what workers logged:\n%s", countTable(messagesIn(s.fleet.said(t))))
	s.audit.check(t, jobs)
	s.undelivered()
	s.explain()
	s.samples.check(len(jobs))
}

func newSoak(t *testing.T, p soakParams) *soak {
	t.Helper()
	s := &soak{t: t, params: p, count: make(map[string]int)}
	if p.servers == 1 {
		s.cluster = testenv.OneServerProcess(t)
	} else {
		s.cluster = testenv.ClusterOfProcesses(t)
	}
	s.fleet = newProcessFleet(t, s.cluster.URL(), s.topology(), nil)
	pushSoak(t, s.fleet.url)
	s.audit = s.fleet.auditor()
	for i := range 6 {
		s.parents = append(s.parents, newSoakParent(t, i))
	}
	s.audit.book, s.audit.unheard = s.book, s.unheard
	for i, pool := range []string{protocol.DefaultPool, protocol.DefaultPool, protocol.DefaultPool, soakPool, soakPool} {
		st := &seat{soak: s, name: fmt.Sprintf("%s%d", pool[:1], i), pool: pool, steady: i == 0 || i == 3, dir: filepath.Join(s.fleet.dir, fmt.Sprint("seat", i))}
		for _, server := range s.cluster.Servers {
			st.proxies = append(st.proxies, testenv.Proxy(t, server.URL()))
		}
		s.seats = append(s.seats, st)
		st.start()
	}
	s.fleet.await(t, len(s.seats))
	s.load = newSoakLoad(s)
	s.audit.fits = s.load.fits
	s.samples = newSamples(s)
	return s
}

func (s *soak) topology() broker.InitConfig {
	return broker.InitConfig{
		Pools: []string{protocol.DefaultPool, soakPool}, Replicas: s.params.servers, AckWait: soakAckWait,
	}
}

// drained waits until the fleet has nothing left to do, or does nothing more: the
// audit says what is left.
func (s *soak) drained(jobs []protocol.Job) {
	s.t.Helper()
	began, pending := time.Now(), jobs
	settled := false
	testenv.EventuallyTrue(s.t, 6*time.Minute, "the backlog", func() bool {
		left, err := jobsIn(s.t.Context(), s.fleet.url)
		for len(pending) > 0 {
			e, err := s.fleet.bus.ReadRecord(s.t.Context(), pending[0].Spawner.SessionID, pending[0].DelegationID, 0)
			if err != nil || !e.Record.Status.Final() {
				break
			}
			pending = pending[1:]
		}
		settled = err == nil && left == 0 && len(pending) == 0
		return settled || time.Since(began) > 5*time.Minute
	})
	if !settled {
		s.t.Errorf("%d jobs without an outcome %s after the last fault ended", len(pending), time.Since(began).Round(time.Second))
	}
	s.t.Logf("the backlog was gone %s after the last fault ended", time.Since(began).Round(time.Second))
}

// files compares what is left of completion.json with the ledger: no file tells an
// outcome that lost.
func (s *soak) files(jobs []protocol.Job) {
	s.t.Helper()
	byID := make(map[protocol.DelegationID]protocol.Job)
	for _, job := range jobs {
		byID[job.DelegationID] = job
	}
	names, err := filepath.Glob(filepath.Join(s.fleet.dir, "seat*", "*", "work", protocol.CompletionFile))
	if err != nil {
		s.t.Fatal(err)
	}
	read := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // too old, and removed meanwhile
		}
		read++
		told, err := protocol.ParseOutcome(text)
		if err != nil {
			s.t.Errorf("%s: %v", name, err)
			continue
		}
		job := byID[told.DelegationID]
		e, err := s.fleet.bus.ReadRecord(s.t.Context(), job.Spawner.SessionID, told.DelegationID, 0)
		if err != nil || !e.Record.Status.Final() {
			s.t.Errorf("%s tells %s, the ledger %s %v", name, told.Status, e.Record.Status, err)
			continue
		}
		// The delivery is known to whoever posted, which may be another worker.
		told.Delivered, told.DeliveryError = e.Record.Outcome.Delivered, e.Record.Outcome.DeliveryError
		if difference := cmp.Diff(*e.Record.Outcome, told); difference != "" {
			s.t.Errorf("%s tells otherwise than the ledger (-ledger +file):\n%s", name, difference)
		}
	}
	s.t.Logf("%d files of outcomes agree with the ledger, or are named above", read)
}

// undelivered compares what an operator is shown with what the audit counted.
func (s *soak) undelivered() {
	s.t.Helper()
	want := 0
	for name, n := range s.audit.counts {
		if strings.HasPrefix(name, "untold: ") {
			want += n
		}
	}
	listed := starling(s.t, "", "ps", "--undelivered", "--json", "--url", s.fleet.url)
	if got := strings.Count(listed.out, "\n"); listed.status != exitOK || got != want {
		s.t.Errorf("ps --undelivered lists %d, status %d %s; the audit counted %d", got, listed.status, listed.err, want)
	}
}

// explain prints what workers said of the delegations that are wrong.
func (s *soak) explain() {
	if !s.t.Failed() {
		return
	}
	if keep := os.Getenv(soakLog); keep != "" {
		_ = os.WriteFile(keep, []byte(s.fleet.said(s.t)), 0o600)
	}
	s.t.Logf("servers lost:\n%s", strings.Join(s.serverFaults, "\n"))
	s.t.Logf("workers' ends:\n%s", strings.Join(s.ends, "\n"))
	for _, id := range s.audit.blamed[:min(8, len(s.audit.blamed))] {
		s.t.Logf("workers on %s:\n%s", id, linesOf(s.fleet.said(s.t), string(id)))
	}
}
