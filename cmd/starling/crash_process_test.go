//go:build crashpoints

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

const (
	// crashAckWait is how soon a lost worker's job comes back, and how long a
	// worker that lives may be held up by a busy machine.
	crashAckWait = 6 * time.Second
	// crashSoon bounds what must happen.
	crashSoon = 90 * time.Second
	// heldAt names the step at which a process waits for its test.
	heldAt = "GO_TEST_HELD_AT"
)

var _ = holdAtStep()

// holdAtStep makes this process, when it is started as a worker that shall be
// held, say on file 4 that it came to its step, and go on when file 3 says so.
func holdAtStep() bool {
	step := os.Getenv(heldAt)
	if step == "" {
		return false
	}
	var once sync.Once
	worker.Crashpoint = func(at string) {
		if at == step {
			once.Do(func() {
				fmt.Fprintln(os.NewFile(4, "held"), at)
				_, _ = os.NewFile(3, "go on").Read(make([]byte, 1))
			})
		}
	}
	return true
}

// heldWorker is a worker process that stops at a step of its first job's life.
type heldWorker struct {
	*workerProcess
	id    protocol.WorkerID
	root  string // work root
	step  string
	held  *os.File
	goOn  *os.File
	freed sync.Once
}

// site is a bus on which workers are lost, one job in a pool at a time.
type site struct {
	url     string
	bus     *broker.Bus
	nc      *nats.Conn
	js      jetstream.JetStream
	door    *testenv.RecordingDoor
	capsule protocol.CapsuleEntry
	history *history
	acks    *ackLog
	pools   chan string
	dir     string
	log     *os.File
}

// newSite makes a bus at url with as many pools as jobs may run at a time.
func newSite(t *testing.T, url string, replicas, pools int) *site {
	t.Helper()
	s := &site{url: url, door: testenv.Door(t), pools: make(chan string, pools), dir: t.TempDir()}
	var err error
	if s.bus, err = broker.Connect(t.Context(), broker.Config{URL: url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.bus.Close() })
	var names []string
	for n := range pools {
		names = append(names, fmt.Sprint("pool", n))
		s.pools <- names[n]
	}
	if err = s.bus.Init(t.Context(), broker.InitConfig{AckWait: crashAckWait, Pools: names, Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile(testenv.GoCapsule(t, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	manifest := protocol.DefaultManifest("agent", "1.0.0")
	manifest.Output = protocol.OutputEvents
	pushed, err := s.bus.PushCapsule(t.Context(), manifest, module)
	if err != nil {
		t.Fatal(err)
	}
	s.capsule = pushed.CapsuleEntry
	if s.nc, err = nats.Connect(url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.nc.Close)
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	s.history, s.acks = listenHistory(t, s.nc), listenAcks(t, s.nc)
	if s.log, err = os.Create(filepath.Join(s.dir, "workers.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(s.log.Name()); err == nil && t.Failed() {
			t.Logf("the workers said:\n%s", text)
		}
		_ = s.log.Close()
	})
	return s
}

// pool lends a pool to a test.
func (s *site) pool(t *testing.T) string {
	t.Helper()
	pool := <-s.pools
	t.Cleanup(func() { s.pools <- pool })
	return pool
}

// dispatch queues a job; nobody may serve its pool yet.
func (s *site) dispatch(t *testing.T, pool, task string, door bool, attempts int) protocol.Job {
	t.Helper()
	job := newJob(s.capsule, task, nil, nil)
	job.Pool, job.MaxAttempts = pool, attempts
	if door {
		job.Spawner.URL, job.Spawner.Trust = s.door.URL(), protocol.Trusted
	}
	if _, err := s.bus.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true}); err != nil {
		t.Fatal(err)
	}
	return job
}

// hire starts a worker process with one slot that is held at a step; "" is none.
func (s *site) hire(t *testing.T, url, pool, step string, args ...string) *heldWorker {
	t.Helper()
	h := &heldWorker{id: protocol.NewWorkerID(), step: step}
	h.root = filepath.Join(s.dir, string(h.id))
	command := workerCommand(t, exec.Command, url, h.root, s.log, append([]string{
		"--pool", pool, "--slots", "1", "--worker-id", string(h.id), "--log-level", "debug",
	}, args...)...)
	if step == "" {
		h.workerProcess = startProcess(t, command)
		return h
	}
	var theirs [2]*os.File
	var err error
	if theirs[0], h.goOn, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	if h.held, theirs[1], err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	command.Env = append(command.Env, heldAt+"="+step)
	command.ExtraFiles = theirs[:]
	h.workerProcess = startProcess(t, command)
	for _, f := range theirs {
		_ = f.Close() // the process has its own
	}
	t.Cleanup(func() { _ = h.held.Close(); h.free() })
	return h
}

// await blocks until the worker came to its step.
func (h *heldWorker) await(t *testing.T) {
	t.Helper()
	if err := h.held.SetReadDeadline(time.Now().Add(crashSoon)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(h.held).ReadString('\n'); err != nil {
		t.Fatalf("the worker did not come to the step %q: %q, %v", h.step, line, err)
	}
}

// free lets the worker go on.
func (h *heldWorker) free() { h.freed.Do(func() { _ = h.goOn.Close() }) }

// leave ends a worker that holds nothing any more, and waits for its end.
func (h *heldWorker) leave(t *testing.T, s *site) {
	t.Helper()
	testenv.Eventually(t, crashSoon, func() error {
		info, err := s.bus.WorkerStats(t.Context(), h.id)
		if err == nil && info.Busy != 0 {
			err = errors.New("its guest runs")
		}
		return err
	})
	h.signal(t, syscall.SIGTERM)
	testenv.Eventually(t, crashSoon, func() error {
		// Again and again: the second one says not to wait for open pulls.
		_ = h.command.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-h.done:
			h.done <- err
			return nil
		default:
			return errors.New("the worker has not left")
		}
	})
}

// attempts counts the work directories that the worker made.
func (h *heldWorker) attempts(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(h.root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(entries)
}

// settled waits until a job has left the stream, and gives its record.
func (s *site) settled(t *testing.T, job protocol.Job) protocol.Record {
	t.Helper()
	stream := s.stream(t, "STARLING_JOBS")
	testenv.Eventually(t, crashSoon, func() error {
		_, err := stream.GetLastMsgForSubject(t.Context(), s.bus.Namespace().JobSubject(job.Pool, job.Lane(), job.TaskID))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return nil
		case err == nil:
			err = errors.New("the job is still in the stream")
		}
		return err
	})
	return s.history.final(t, job)
}

func (s *site) stream(t *testing.T, name string) jetstream.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), crashSoon)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}
