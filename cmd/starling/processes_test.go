//go:build fleet || crashpoints || cluster || hosts || limits || soak

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// processFleet is a fleet whose workers are processes.
type processFleet struct {
	url    string
	bus    *broker.Bus
	door   *testenv.RecordingDoor
	mirror *mirrored
	dir    string
	log    *os.File // of all workers
}

// newProcessFleet makes the topology on servers that are there and pushes the
// capsules of mixedTasks.
func newProcessFleet(t *testing.T, url string, init broker.InitConfig, door *testenv.RecordingDoor) *processFleet {
	t.Helper()
	f := &processFleet{url: url, door: door, dir: t.TempDir()}
	var err error
	if f.bus, err = broker.Connect(t.Context(), broker.Config{URL: url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.bus.Close() })
	if err := f.bus.Init(t.Context(), init); err != nil {
		t.Fatal(err)
	}
	pushMixed(t, url)
	f.mirror = listenMirror(t, url)
	if f.log, err = os.Create(filepath.Join(f.dir, "workers.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			said := f.said(t)
			t.Logf("the workers said, at last:\n%s", said[max(0, len(said)-1<<20):])
		}
		_ = f.log.Close()
	})
	return f
}

// said is what all workers logged.
func (f *processFleet) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(f.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hire starts a worker on this host.
func (f *processFleet) hire(t *testing.T, id string, args ...string) *workerProcess {
	t.Helper()
	return f.hireAt(t, f.url, id, args...)
}

// hireAt starts a worker on this host that reaches the bus at url.
func (f *processFleet) hireAt(t *testing.T, url, id string, args ...string) *workerProcess {
	t.Helper()
	return f.hireOn(t, exec.Command, url, id, args...)
}

// hireOn starts a worker where command runs.
func (f *processFleet) hireOn(t *testing.T, command func(string, ...string) *exec.Cmd, url, id string, args ...string) *workerProcess {
	t.Helper()
	return startWorkerProcess(t, command, url, filepath.Join(f.dir, id), f.log, append([]string{"--worker-id", id}, args...)...)
}

// await waits until so many workers live.
func (f *processFleet) await(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, 90*time.Second, func() error {
		live, err := f.bus.Workers(t.Context())
		if err == nil && len(live) != n {
			err = fmt.Errorf("%d workers live, want %d", len(live), n)
		}
		return err
	})
}

// auditor judges this fleet.
func (f *processFleet) auditor() *auditor {
	return &auditor{bus: f.bus, url: f.url, mirror: f.mirror, door: f.door, lapsed: f.lapsed}
}

// lapsed are the delegations of which a worker logged that its renewals lapsed or
// that its claim is lost.
func (f *processFleet) lapsed() map[protocol.DelegationID]bool {
	text, err := os.ReadFile(f.log.Name())
	if err != nil {
		return nil // the audit then excuses nothing
	}
	return delegationsIn(string(text), "renewals lapsed", "claim lost")
}

// delegationsIn are those about which a log has a message that begins so.
func delegationsIn(log string, beginnings ...string) map[protocol.DelegationID]bool {
	all := make(map[protocol.DelegationID]bool)
	for line := range strings.Lines(log) {
		var said struct {
			Msg        string                `json:"msg"`
			Delegation protocol.DelegationID `json:"delegation_id"`
		}
		if json.Unmarshal([]byte(line), &said) != nil {
			continue
		}
		for _, beginning := range beginnings {
			if strings.HasPrefix(said.Msg, beginning) {
				all[said.Delegation] = true
			}
		}
	}
	return all
}

// emptied waits until the queue is empty and every job has its outcome.
func (f *processFleet) emptied(t *testing.T, within time.Duration, jobs []protocol.Job) {
	t.Helper()
	testenv.Eventually(t, within, func() error {
		left, err := jobsIn(t.Context(), f.url)
		if err == nil && left != 0 {
			err = fmt.Errorf("%d jobs left in the stream", left)
		}
		return err
	})
	testenv.Eventually(t, within, func() error {
		for _, job := range jobs {
			e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
			if err == nil && !e.Record.Status.Final() {
				err = fmt.Errorf("%s is %s", job.DelegationID, e.Record.Status)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// memory is what the worker has in memory, in bytes.
func (w *workerProcess) memory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", w.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// mixedTasks are what the jobs do, by capsule.
var mixedTasks = []struct{ capsule, task string }{
	{"agent", "turns 3"},
	{"agent", "chatty 300 20"},
	{"agent", "failed quota spent"},
	{"agent", "end well"},
	{"agent-text", "echo hello there"},
	{"agent-text", "nap 300"},
	{"agent-text", "fail 3"},
	{"agent-text", "files of mine"},
	{"agent-text", "lines 2000"},
	{"noop", "nothing"},
	{"trap", "fall"},
	{"hello", "the fleet"},
}

func pushMixed(t *testing.T, url string) {
	t.Helper()
	module := testenv.GoCapsule(t, "agent")
	for name, manifest := range map[string]string{
		"agent": "output: events\n", "agent-text": "output: text\n",
	} {
		push(t, url, module, "name: "+name+"\nversion: 1.0.0\n"+manifest)
	}
	for _, name := range []string{"noop", "trap"} {
		push(t, url, testenv.WAT(t, name), "name: "+name+"\nversion: 1.0.0\n")
	}
	push(t, url, testenv.GoCapsule(t, "hello"), readDoc(t, "sandbox/guest/examples/hello/murmur.yaml"))
}

// mixedJob is the i-th of a mixed load.
func mixedJob(i int, door string) protocol.Job {
	mixed := mixedTasks[i%len(mixedTasks)]
	job := fleetJob(mixed.capsule, mixed.task, door)
	job.Origin = []protocol.Origin{protocol.OriginUser, protocol.OriginPeer, protocol.OriginEvent}[i%3]
	return job
}

// fleetJob is a job whose parent listens at door, if there is one.
func fleetJob(capsule, task, door string) protocol.Job {
	job := newJob(protocol.CapsuleEntry{Manifest: protocol.Manifest{Name: capsule, Version: "1.0.0"}}, task, nil, nil)
	job.MaxAttempts = 5
	if door != "" {
		job.Spawner.URL, job.Spawner.Trust = door, protocol.Trusted
	}
	return job
}

// dispatchAll queues n jobs, eight at a time. What the bus gave no clear answer to
// is dispatched again, as the error says.
func (f *processFleet) dispatchAll(t *testing.T, n int, job func(i int) protocol.Job) []protocol.Job {
	t.Helper()
	all := make([]protocol.Job, n)
	var group sync.WaitGroup
	for lane := range 8 {
		group.Go(func() {
			for i := lane; i < n; i += 8 {
				all[i] = job(i)
				if err := f.dispatch(t.Context(), all[i]); err != nil {
					t.Errorf("dispatch %d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
	return all
}

func (f *processFleet) dispatch(ctx context.Context, job protocol.Job) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := f.bus.Dispatch(try, job, broker.DispatchOptions{AllowUnserved: true})
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, broker.ErrUnclear) && !errors.Is(err, broker.ErrUnavailable) {
			return err
		}
	}
}

// load dispatches mixed jobs, eight at a time, until it is stopped.
type load struct {
	t     *testing.T
	stop  context.CancelFunc
	group sync.WaitGroup

	mu   sync.Mutex
	jobs []protocol.Job
}

// startLoad keeps jobs coming: each of eight dispatchers hands over a job and
// waits until it was acked, so that the queue stays short.
func (f *processFleet) startLoad(t *testing.T, job func(i int) protocol.Job) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{t: t, stop: stop}
	for lane := range 8 {
		l.group.Go(func() {
			for i := lane; ctx.Err() == nil; i += 8 {
				j := job(i)
				l.mu.Lock()
				l.jobs = append(l.jobs, j)
				l.mu.Unlock()
				if err := f.dispatch(context.WithoutCancel(ctx), j); err != nil {
					t.Errorf("dispatch %d: %v", i, err)
					return
				}
				f.mirror.waitOutcome(ctx, j.DelegationID, time.Second)
			}
		})
	}
	t.Cleanup(func() { stop(); l.group.Wait() })
	return l
}

// end stops the load and gives all jobs of it.
func (l *load) end() []protocol.Job {
	l.stop()
	l.group.Wait()
	return l.jobs
}

// add puts a job that was dispatched aside from the load among its jobs.
func (l *load) add(job protocol.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jobs = append(l.jobs, job)
}

// first are the first n jobs.
func (l *load) first(n int) []protocol.Job {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.jobs[:n])
}

// count is how many jobs there are so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.jobs)
}

// grows waits until n more jobs were handed over.
func (l *load) grows(n int) {
	l.t.Helper()
	want := l.count() + n
	testenv.Eventually(l.t, 2*time.Minute, func() error {
		if have := l.count(); have < want {
			return fmt.Errorf("%d jobs of the load, want %d", have, want)
		}
		return nil
	})
}

// lostClaims are of how many delegations a worker said that another has them.
func (f *processFleet) lostClaims(t *testing.T) int {
	t.Helper()
	return len(delegationsIn(f.said(t), "claim lost"))
}
