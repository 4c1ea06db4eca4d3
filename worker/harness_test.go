package worker_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/completion"
	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
	"starling/worker"
)

// inProcess runs the guests of all tests in this process.
var inProcess = flag.Bool("inprocess", false, "run guests in the test's process instead of sandbox processes")

// TestMain makes the test binary its own sandbox process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "sandbox" {
		os.Exit(sandbox.ProcessMain())
	}
	testenv.Main(m)
}

const (
	// ackWait is short, so that lost workers are noticed soon, and long enough for
	// a worker on a busy machine to renew within it.
	ackWait = 4 * time.Second
	// soon bounds what must happen, on a machine that is busy.
	soon = 40 * time.Second
)

// fleet is a bus with its topology, a door, and the workers that a test hires.
type fleet struct {
	server *testenv.Server
	bus    *broker.Bus // of an operator
	nc     *nats.Conn  // the same rights, without our code
	js     jetstream.JetStream
	door   *testenv.RecordingDoor

	doorTimeout time.Duration // of workers that are hired; 0: the default
}

func newFleet(t *testing.T, answers ...testenv.Answer) *fleet {
	t.Helper()
	server := testenv.NATS(t)
	return newFleetOn(t, server, server.URL(), answers...)
}

// newFleetOn is newFleet on a server that is there, as an operator at url.
func newFleetOn(t *testing.T, server *testenv.Server, url string, answers ...testenv.Answer) *fleet {
	t.Helper()
	f := &fleet{server: server, door: testenv.Door(t, answers...)}
	f.bus = f.connect(t, url)
	if err := f.bus.Init(t.Context(), broker.InitConfig{AckWait: ackWait, Pools: []string{protocol.DefaultPool, "gpu"}}); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	f.nc = nc
	if f.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return f
}

// patient has no worker count as lost, however busy the machine is. Call it before
// any is hired.
func (f *fleet) patient(t *testing.T) {
	t.Helper()
	if err := f.bus.Init(t.Context(), broker.InitConfig{AckWait: soon}); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) connect(t *testing.T, url string) *broker.Bus {
	t.Helper()
	bus, err := broker.Connect(t.Context(), broker.Config{URL: url, SeparateFrames: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bus.Close(); err != nil {
			t.Errorf("close the bus: %v", err)
		}
	})
	return bus
}

// member is a worker of the fleet in this process.
type member struct {
	*worker.Worker
	log  *logs
	cfg  worker.Config
	done chan struct{} // closed when Run has returned
	err  error         // of Run, after done

	sandbox   worker.Sandbox
	processes *sandbox.Supervisor // nil with -inprocess
	density   int                 // guests in a process
}

// hire starts a worker and returns once it takes jobs.
func (f *fleet) hire(t *testing.T, change func(*worker.Config)) *member {
	t.Helper()
	return f.hireAt(t, f.server.URL(), change)
}

func (f *fleet) hireAt(t *testing.T, url string, change func(*worker.Config)) *member {
	t.Helper()
	m := f.newMember(t, url, change)
	m.start(t)
	return m
}

// newMember makes a worker that does not run yet. density is how many guests
// share a sandbox process.
func (f *fleet) newMember(t *testing.T, url string, change func(*worker.Config), density ...int) *member {
	t.Helper()
	dir := t.TempDir()
	m := &member{log: newLogs(t), done: make(chan struct{})}
	if len(density) > 0 {
		m.density = density[0]
	}
	m.cfg = worker.Config{
		WorkerID: protocol.NewWorkerID(), WorkRoot: filepath.Join(dir, "work"), CacheDir: filepath.Join(dir, "cache"),
		PullExpires: 200 * time.Millisecond, CancelGrace: 300 * time.Millisecond, DrainTimeout: soon,
	}
	if change != nil {
		change(&m.cfg)
	}
	log := slog.New(m.log)
	m.guests(t, log)
	bridge, err := completion.NewBridge(completion.Config{Backoff: 20 * time.Millisecond, Timeout: f.doorTimeout, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bridge.Close)
	bus := f.connect(t, url)
	if m.Worker, err = worker.New(m.cfg, bus, m.sandbox, bridge, log); err != nil {
		t.Fatal(err)
	}
	return m
}

// guests makes the worker's sandbox.
func (m *member) guests(t *testing.T, log *slog.Logger) {
	t.Helper()
	cfg := sandbox.Config{CacheDir: testenv.CompiledCache(t), Logger: log}
	var closer io.Closer
	if *inProcess {
		engine, err := sandbox.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		m.sandbox, closer = engine, engine
	} else {
		var err error
		m.processes, err = sandbox.NewSupervisor(sandbox.ProcessConfig{
			Config: cfg, WorkRoot: m.cfg.WorkRoot, Density: m.density, CompileTimeout: 10 * time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		m.sandbox, closer = m.processes, m.processes
	}
	t.Cleanup(func() {
		if err := closer.Close(); err != nil {
			t.Errorf("close the sandbox: %v", err)
		}
	})
}

func (m *member) start(t *testing.T) {
	t.Helper()
	ready := make(chan struct{})
	ctx := context.WithoutCancel(t.Context())
	go func() {
		defer close(m.done)
		m.err = m.Run(ctx, func() { close(ready) })
	}()
	t.Cleanup(func() {
		m.Stop()
		if m.ended(t); m.err != nil {
			t.Errorf("Run() = %v, want nil after a drain", m.err)
		}
	})
	select {
	case <-ready:
	case <-m.done:
		t.Fatalf("the worker did not start: %v", m.err)
	}
}

// ended waits until Run has returned.
func (m *member) ended(t *testing.T) {
	t.Helper()
	select {
	case <-m.done:
	case <-time.After(2 * soon):
		t.Fatal("Run does not return")
	}
}

// push stores a capsule of that name, version 1.0.0.
func (f *fleet) push(t *testing.T, name string, module []byte, change ...func(*protocol.Manifest)) protocol.CapsuleRef {
	t.Helper()
	m := protocol.DefaultManifest(name, "1.0.0")
	for _, c := range change {
		c(&m)
	}
	entry, err := f.bus.PushCapsule(t.Context(), m, module)
	if err != nil {
		t.Fatalf("PushCapsule(%s): %v", name, err)
	}
	return protocol.CapsuleRef{Name: name, Version: "1.0.0", Digest: entry.Digest}
}

// events makes a capsule's stdout a stream of driver events.
func events(m *protocol.Manifest) { m.Output = protocol.OutputEvents }

// agent is the capsule of many behaviours.
func (f *fleet) agent(t *testing.T, change ...func(*protocol.Manifest)) protocol.CapsuleRef {
	t.Helper()
	module, err := os.ReadFile(testenv.GoCapsule(t, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	return f.push(t, "agent", module, change...)
}

// job is a delegation whose parent listens at the fleet's door.
func (f *fleet) job(capsule protocol.CapsuleRef, task string, change ...func(*protocol.Job)) protocol.Job {
	id, context := protocol.NewDelegationID(), protocol.NewContextID()
	job := protocol.Job{
		DelegationID: id, TaskID: protocol.NewTaskID(), Capsule: capsule,
		Message: protocol.NewUserMessage(context, task),
		Spawner: protocol.Spawner{
			SessionID: protocol.NewSessionID(), ContextID: protocol.NewContextID(), DelegationID: id,
			URL: f.door.URL(), Trust: protocol.Trusted,
		},
		Origin: protocol.OriginUser, Pool: protocol.DefaultPool, MaxAttempts: 3,
	}
	for _, c := range change {
		c(&job)
	}
	return job
}

// dispatch hands a job to the fleet, served or not.
func (f *fleet) dispatch(t *testing.T, job protocol.Job) protocol.Job {
	t.Helper()
	if _, err := f.bus.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true}); err != nil {
		t.Fatalf("Dispatch: %v", err)
	}
	return job
}

func (f *fleet) subject(job protocol.Job) string {
	return f.bus.Namespace().JobSubject(job.Pool, job.Lane(), job.TaskID)
}

// record reads a job's record.
func (f *fleet) record(t *testing.T, job protocol.Job) broker.Entry {
	t.Helper()
	e, err := f.bus.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// queued reports whether the job is in the stream.
func (f *fleet) queued(ctx context.Context, job protocol.Job) (bool, error) {
	stream, err := f.js.Stream(ctx, f.bus.Namespace().JobsStream())
	if err != nil {
		return false, err
	}
	_, err = stream.GetLastMsgForSubject(ctx, f.subject(job))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	return true, err
}

// settled waits until a job has left the stream and gives what the ledger says
// then.
func (f *fleet) settled(t *testing.T, job protocol.Job) protocol.Record {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		queued, err := f.queued(t.Context(), job)
		if err == nil && queued {
			err = errors.New("the job is still in the stream")
		}
		return err
	})
	return f.record(t, job).Record
}

// run dispatches a job and waits until it is settled.
func (f *fleet) run(t *testing.T, job protocol.Job) (protocol.Record, []protocol.ReceivedFrame) {
	t.Helper()
	f.dispatch(t, job)
	rec := f.settled(t, job)
	return rec, f.frames(t, job)
}

// frames are all frames of a task that ends, in order; a hole fails the test.
func (f *fleet) frames(t *testing.T, job protocol.Job) []protocol.ReceivedFrame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	watch, err := f.bus.WatchTask(ctx, job.TaskID, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	var frames []protocol.ReceivedFrame
	for {
		e, err := watch.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return frames
		case err != nil:
			t.Fatalf("frames of %s after %d: %v", job.TaskID, len(frames), err)
		case e.Hole != nil:
			t.Errorf("frames of %s have a hole: %+v", job.TaskID, *e.Hole)
		default:
			frames = append(frames, *e.Frame)
		}
	}
}

// saying waits for a frame of the first attempt with that text, and gives it.
func (f *fleet) saying(t *testing.T, job protocol.Job, text string) protocol.ReceivedFrame {
	t.Helper()
	return f.sayingIn(t, job, 1, text)
}

// sayingIn is saying, in another attempt.
func (f *fleet) sayingIn(t *testing.T, job protocol.Job, attempt int, text string) protocol.ReceivedFrame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	watch, err := f.bus.WatchTask(ctx, job.TaskID, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	for {
		e, err := watch.Next(ctx)
		if err != nil {
			t.Fatalf("no frame of %s says %q: %v", job.TaskID, text, err)
		}
		if e.Frame != nil && e.Frame.Attempt == attempt && e.Frame.Text == text {
			return *e.Frame
		}
	}
}

// stored are all messages of a stream on a subject, as they are stored.
func (f *fleet) stored(t *testing.T, stream, subject string) []*jetstream.RawStreamMsg {
	t.Helper()
	s, err := f.js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	var all []*jetstream.RawStreamMsg
	for next := uint64(1); ; {
		m, err := s.GetMsg(t.Context(), next, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
		next = m.Sequence + 1
	}
}

// letter waits for the dead letter of a task.
func (f *fleet) letter(t *testing.T, pool string, task protocol.TaskID) *jetstream.RawStreamMsg {
	t.Helper()
	var letter *jetstream.RawStreamMsg
	testenv.EventuallyTrue(t, soon, "a dead letter", func() bool {
		all := f.stored(t, f.bus.Namespace().DeadLetterStream(), f.bus.Namespace().DeadLetterSubject(pool, task))
		if len(all) > 0 {
			letter = all[len(all)-1]
		}
		return len(all) > 0
	})
	return letter
}

// lose claims a job as a worker that then vanishes: the bus gives the job to
// another at once, and the record stays as the lost one wrote it.
func (f *fleet) lose(t *testing.T, job protocol.Job, change ...func(*protocol.Record)) protocol.Record {
	t.Helper()
	return f.take(t, job, func(d *broker.Delivery) protocol.Record {
		c, err := f.bus.Claim(t.Context(), d, job, func(rec protocol.Record) protocol.Record {
			rec.WorkerID, rec.SessionID = protocol.NewWorkerID(), protocol.NewSessionID()
			rec.Workdir, rec.StartedAt = "/lost/"+string(rec.SessionID), protocol.NewTime(time.Now())
			for _, c := range change {
				c(&rec)
			}
			return rec
		})
		if err != nil {
			t.Fatal(err)
		}
		return c.Record
	})
}

// take takes the next job of its lane in place of a worker and naks it once do
// has returned.
func (f *fleet) take(t *testing.T, job protocol.Job, do func(*broker.Delivery) protocol.Record) protocol.Record {
	t.Helper()
	taker, err := f.bus.NewTaker(t.Context(), broker.TakerConfig{Pool: job.Pool, Slots: 1, PullExpires: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	taken, done := make(chan *broker.Delivery, 1), make(chan error, 1)
	go func() { done <- taker.Run(ctx, func(d *broker.Delivery) { taken <- d }) }()
	d := <-taken
	stop()
	rec := do(d)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := d.Nak(t.Context()); err != nil {
		t.Fatal(err)
	}
	return rec
}
