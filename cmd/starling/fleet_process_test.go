//go:build fleet || crashpoints

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// workerProcess is a worker in a process of its own.
type workerProcess struct {
	command *exec.Cmd
	done    chan error
}

func startWorkerProcess(t *testing.T, url, dir string, log *os.File, args ...string) *workerProcess {
	t.Helper()
	return startProcess(t, workerCommand(t, url, dir, log, args...))
}

func workerCommand(t *testing.T, url, dir string, log *os.File, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self, append([]string{
		"worker", "--url", url, "--work-root", dir, "--cache-dir", testenv.CompiledCache(t), "--log-level", "warn",
	}, args...)...)
	command.Env = append(os.Environ(), asProgram+"=1")
	command.Stderr = log
	return command
}

func startProcess(t *testing.T, command *exec.Cmd) *workerProcess {
	t.Helper()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	w := &workerProcess{command: command, done: make(chan error, 1)}
	go func() { w.done <- command.Wait() }()
	t.Cleanup(w.kill)
	return w
}

// kill ends the process with SIGKILL and waits until it is gone. Idempotent.
func (w *workerProcess) kill() {
	_ = w.command.Process.Kill() // it may have ended
	w.done <- <-w.done
}

func (w *workerProcess) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := w.command.Process.Signal(s); err != nil {
		t.Errorf("signal %s: %v", s, err)
	}
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

// TestFleetLosesNothing runs 500 jobs on four worker processes, of which two
// are killed and one is drained at random moments, and audits what is left.
func TestFleetLosesNothing(t *testing.T) {
	const jobs = 500
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("FLEET_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("FLEET_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	server, door := testenv.NATS(t), testenv.Door(t)
	bus, err := broker.Connect(t.Context(), broker.Config{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close() })
	if err := bus.Init(t.Context(), broker.InitConfig{AckWait: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	pushMixed(t, server.URL())
	mirror := listenMirror(t, server.URL())

	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "workers.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the workers said:\n%s", text)
		}
		_ = log.Close()
	})
	var workers []*workerProcess
	for i := range 4 {
		workers = append(workers, startWorkerProcess(t, server.URL(), filepath.Join(dir, fmt.Sprint("w", i)), log,
			"--slots", "8", "--drain-timeout", "2s"))
	}
	testenv.EventuallyTrue(t, 60*time.Second, "four workers", func() bool {
		live, err := bus.Workers(t.Context())
		return err == nil && len(live) == 4
	})

	dispatched := dispatchMixed(t, bus, jobs, door.URL())
	order := random.Perm(4)
	for i, fault := range []struct {
		what   string
		signal syscall.Signal
	}{{"killed", syscall.SIGKILL}, {"drained", syscall.SIGTERM}, {"killed", syscall.SIGKILL}} {
		after := jobs*(i+1)/5 + random.IntN(jobs/10)
		mirror.waitFinal(t, after)
		workers[order[i]].signal(t, fault.signal)
		t.Logf("worker %d %s after %d outcomes", order[i], fault.what, after)
	}
	mirror.waitFinal(t, jobs)
	testenv.Eventually(t, 60*time.Second, func() error {
		if left := jobsLeft(t, server.URL()); left != 0 {
			return fmt.Errorf("%d jobs left in the stream", left)
		}
		return nil
	})
	audit(t, bus, server.URL(), door, mirror, dispatched)
}

func pushMixed(t *testing.T, url string) {
	t.Helper()
	module := testenv.GoCapsule(t, "agent")
	for _, dir := range []string{
		hello(t),
		capsuleDir(t, module, "name: agent\nversion: 1.0.0\noutput: events\n"),
		capsuleDir(t, module, "name: agent-text\nversion: 1.0.0\noutput: text\n"),
		capsuleDir(t, testenv.WAT(t, "noop"), "name: noop\nversion: 1.0.0\n"),
		capsuleDir(t, testenv.WAT(t, "trap"), "name: trap\nversion: 1.0.0\n"),
	} {
		if got := starling(t, "", "capsule", "push", dir, "--url", url); got.status != exitOK {
			t.Fatalf("push: %s", got.err)
		}
	}
}

func dispatchMixed(t *testing.T, bus *broker.Bus, jobs int, door string) []protocol.Job {
	t.Helper()
	all := make([]protocol.Job, jobs)
	var group sync.WaitGroup
	for lane := range 8 {
		group.Go(func() {
			for i := lane; i < jobs; i += 8 {
				mixed := mixedTasks[i%len(mixedTasks)]
				version := "1.0.0"
				job := newJob(protocol.CapsuleEntry{Manifest: protocol.Manifest{Name: mixed.capsule, Version: version}}, mixed.task, nil, nil)
				job.Origin = []protocol.Origin{protocol.OriginUser, protocol.OriginPeer, protocol.OriginEvent}[i%3]
				job.MaxAttempts = 5
				job.Spawner.URL, job.Spawner.Trust = door, protocol.Trusted
				all[i] = job
				if _, err := bus.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true}); err != nil {
					t.Errorf("dispatch %d: %v", i, err)
				}
			}
		})
	}
	group.Wait()
	return all
}

// mirrored is what the bus's mirror said, by delegation.
type mirrored struct {
	mu       sync.Mutex
	outcomes map[protocol.DelegationID]map[string]bool // distinct outcomes, deliveries aside
	changed  chan struct{}
}

func listenMirror(t *testing.T, url string) *mirrored {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	m := &mirrored{outcomes: make(map[protocol.DelegationID]map[string]bool), changed: make(chan struct{})}
	sub, err := nc.Subscribe("starling.delegations.>", func(msg *nats.Msg) {
		rec, err := protocol.ParseRecord(msg.Data)
		if err != nil || !rec.Status.Final() {
			return
		}
		story := *rec.Outcome
		story.Delivered, story.DeliveryError = false, ""
		text, _ := json.Marshal(story)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.outcomes[rec.DelegationID] == nil {
			m.outcomes[rec.DelegationID] = make(map[string]bool)
		}
		m.outcomes[rec.DelegationID][string(text)] = true
		close(m.changed)
		m.changed = make(chan struct{})
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe(); nc.Close() })
	return m
}

// waitFinal blocks until n delegations have an outcome.
func (m *mirrored) waitFinal(t *testing.T, n int) {
	t.Helper()
	timer := time.NewTimer(4 * time.Minute)
	defer timer.Stop()
	for {
		m.mu.Lock()
		have, changed := len(m.outcomes), m.changed
		m.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("%d delegations have an outcome, want %d", have, n)
		}
	}
}

func streamOf(t *testing.T, url, name string) (jetstream.Stream, func()) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return stream, nc.Close
}

func jobsLeft(t *testing.T, url string) uint64 {
	t.Helper()
	stream, done := streamOf(t, url, "STARLING_JOBS")
	defer done()
	return stream.CachedInfo().State.Msgs
}

// taskFrames is what the stream of frames holds of one task.
type taskFrames struct {
	terminal int
	seqs     map[int]map[int]int // attempt → seq → times stored
}

func allFrames(t *testing.T, url string) map[protocol.TaskID]*taskFrames {
	t.Helper()
	stream, done := streamOf(t, url, "STARLING_TASKS")
	defer done()
	consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[protocol.TaskID]*taskFrames)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for left := stream.CachedInfo().State.Msgs; left > 0; left-- {
		msg, err := consumer.Next(jetstream.FetchContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		task := protocol.TaskID(strings.TrimPrefix(msg.Subject(), "starling.tasks."))
		f := all[task]
		if f == nil {
			f = &taskFrames{seqs: make(map[int]map[int]int)}
			all[task] = f
		}
		if strings.HasSuffix(msg.Headers().Get("Nats-Msg-Id"), ".end") {
			f.terminal++
			continue
		}
		attempt, _ := strconv.Atoi(msg.Headers().Get(protocol.HeaderAttempt))
		seq, _ := strconv.Atoi(msg.Headers().Get(protocol.HeaderSeq))
		if f.seqs[attempt] == nil {
			f.seqs[attempt] = make(map[int]int)
		}
		f.seqs[attempt][seq]++
	}
	return all
}

// audit counts what ledger, frames, doors and queue hold, and fails on every
// number that is not as promised.
func audit(t *testing.T, bus *broker.Bus, url string, door *testenv.RecordingDoor, mirror *mirrored, dispatched []protocol.Job) {
	t.Helper()
	counts := map[string]int{"dispatched": len(dispatched)}
	frames := allFrames(t, url)
	posts := make(map[protocol.DelegationID][]testenv.Post)
	for _, post := range door.Posts() {
		posts[post.DelegationID] = append(posts[post.DelegationID], post)
	}
	for _, job := range dispatched {
		entry, err := bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
		if err != nil || !entry.Record.Status.Final() {
			counts["missing outcomes"]++
			continue
		}
		counts["outcome "+string(entry.Record.Status)]++
		if entry.Record.Attempt > 1 {
			counts["with more than one attempt"]++
		}
		if n := len(mirror.outcomes[job.DelegationID]); n != 1 {
			counts["delegations with other than one outcome on the mirror"]++
		}
		auditFrames(counts, frames[job.TaskID])
		auditPosts(counts, entry.Record, job, posts[job.DelegationID])
	}
	counts["jobs left in the stream"] = int(jobsLeft(t, url))
	printCounts(t, counts)
	for _, bad := range []string{
		"missing outcomes", "delegations with other than one outcome on the mirror", "tasks with other than one terminal frame",
		"attempts with holes", "frames stored twice", "delegations the door did not hear of", "posts with another id",
		"delegations told two stories", "undelivered", "jobs left in the stream",
	} {
		if counts[bad] != 0 {
			t.Errorf("%s: %d, want 0", bad, counts[bad])
		}
	}
}

func auditFrames(counts map[string]int, f *taskFrames) {
	if f == nil || f.terminal != 1 {
		counts["tasks with other than one terminal frame"]++
	}
	if f == nil {
		return
	}
	for _, seqs := range f.seqs {
		for seq := 1; seq <= len(seqs); seq++ {
			if seqs[seq] == 0 {
				counts["attempts with holes"]++
				break
			}
		}
		for _, times := range seqs {
			counts["frames"] += times
			if times > 1 {
				counts["frames stored twice"]++
			}
		}
	}
}

func auditPosts(counts map[string]int, rec protocol.Record, job protocol.Job, posts []testenv.Post) {
	counts["posts"] += len(posts)
	if !rec.Outcome.Delivered {
		counts["undelivered"]++
	}
	if len(posts) == 0 {
		counts["delegations the door did not hear of"]++
		return
	}
	if len(posts) > 1 {
		counts["delegations told more than once"]++
	}
	for _, post := range posts {
		if post.MessageID != protocol.CompletionMessageID(job.DelegationID) {
			counts["posts with another id"]++
		}
		if post.Text != posts[0].Text || post.Text != rec.Outcome.Text() {
			counts["delegations told two stories"]++
		}
	}
}

func printCounts(t *testing.T, counts map[string]int) {
	t.Helper()
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, name := range []string{
		"dispatched", "outcome ok", "outcome error", "outcome crashed", "outcome terminated", "missing outcomes",
		"delegations with other than one outcome on the mirror", "with more than one attempt", "frames", "frames stored twice",
		"attempts with holes", "tasks with other than one terminal frame", "posts", "delegations told more than once",
		"delegations the door did not hear of", "posts with another id", "delegations told two stories", "undelivered",
		"jobs left in the stream",
	} {
		fmt.Fprintf(table, "%s\t%d\n", name, counts[name])
	}
	_ = table.Flush()
	t.Logf("\n%s", out.String())
}
