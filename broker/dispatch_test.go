package broker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

const jobsStream, ledgerStream = "STARLING_JOBS", "KV_starling-delegations"

func TestDispatchCreatesTheRecordAndQueuesTheJob(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	job := newJob(fromOrigin(protocol.OriginPeer))
	d, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true, Traceparent: "00-abc-def-01"})
	if err != nil {
		t.Fatalf("Dispatch() = %v", err)
	}
	if d.Existing {
		t.Error("Existing = true for a first dispatch")
	}
	e, err := b.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, d.Revision)
	if err != nil {
		t.Fatalf("ReadRecord() = %v", err)
	}
	want := job.NewRecord(d.Record.SubmittedAt.Std())
	if diff := cmp.Diff(want, e.Record, cmp.AllowUnexported(protocol.Time{})); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if e.Record.Status != protocol.StatusSubmitted || e.Record.Spawner.HasAddress() {
		t.Errorf("record is %s with address %t, want submitted without the door's address", e.Record.Status, e.Record.Spawner.HasAddress())
	}
	msgs := storedOn(t, js, jobsStream, "starling.jobs.default.peer."+string(job.TaskID))
	if len(msgs) != 1 {
		t.Fatalf("%d jobs on the subject, want 1", len(msgs))
	}
	got, err := protocol.ParseJob(msgs[0].Data)
	if err != nil {
		t.Fatalf("ParseJob() = %v", err)
	}
	if diff := cmp.Diff(job, got, cmp.AllowUnexported(protocol.Time{})); diff != "" {
		t.Errorf("job (-want +got):\n%s", diff)
	}
	for name, value := range map[string]string{
		"Starling-Ledger-Revision": fmt.Sprint(d.Revision), "Nats-Expected-Last-Subject-Sequence": "0",
		"traceparent": "00-abc-def-01", "Nats-Msg-Id": "",
	} {
		if got := msgs[0].Header.Get(name); got != value {
			t.Errorf("header %s = %q, want %q", name, got, value)
		}
	}
}

func TestDispatchTwiceIsOneDelegation(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	job := newJob()
	first := dispatched(t, b, job)
	for protocol.NewTime(time.Now()) == first.Record.SubmittedAt { // Existing tells dispatches apart by the millisecond
		runtime.Gosched()
	}
	for name, again := range map[string]protocol.Job{
		"the same job": job,
		"another task, context and capsule": func() protocol.Job {
			other := newJob(fromOrigin(protocol.OriginEvent))
			other.DelegationID, other.Spawner = job.DelegationID, job.Spawner
			return other
		}(),
	} {
		d := dispatched(t, b, again)
		if !d.Existing || d.Revision != first.Revision || d.Record.TaskID != job.TaskID {
			t.Errorf("%s: existing %t, revision %d, task %s; want true, %d, %s", name, d.Existing, d.Revision, d.Record.TaskID, first.Revision, job.TaskID)
		}
	}
	if n := streamState(t, js, jobsStream).Msgs; n != 1 {
		t.Errorf("%d jobs queued, want 1", n)
	}
}

func TestDispatchAgainRepairsACrashBetweenRecordAndJob(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	job := newJob()
	e, err := b.CreateRecord(t.Context(), job.NewRecord(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	again := newJob(fromOrigin(protocol.OriginEvent)) // minted anew by a parent that forgot
	again.DelegationID, again.Spawner = job.DelegationID, job.Spawner
	if d := dispatched(t, b, again); !d.Existing {
		t.Error("Existing = false")
	}
	msgs := storedOn(t, js, jobsStream, "starling.jobs.default.user."+string(job.TaskID))
	if len(msgs) != 1 {
		t.Fatalf("%d jobs under the record's task and lane, want 1", len(msgs))
	}
	got, err := protocol.ParseJob(msgs[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	if member := e.Record.Disagrees(got); member != "" {
		t.Errorf("the job's %s is not the record's", member)
	}
	if text := protocol.MessageText(got.Message); text != protocol.MessageText(again.Message) {
		t.Errorf("text = %q", text)
	}
}

func TestDispatchOfAnEndedDelegationQueuesNothing(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	job := newJob()
	if _, err := b.CreateRecord(t.Context(), canceledRecord(job)); err != nil {
		t.Fatal(err)
	}
	for _, allow := range []bool{true, false} { // also when nobody serves the pool any more
		d, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: allow})
		if err != nil || !d.Existing || d.Record.Status != protocol.StatusTerminated {
			t.Errorf("Dispatch() = %+v, %v; want the ended record", d, err)
		}
	}
	if n := streamState(t, js, jobsStream).Msgs; n != 0 {
		t.Errorf("%d jobs queued, want none", n)
	}
}

func TestDispatchRefusesAtOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b := connected(t, s.URL())
	if err := b.Init(t.Context(), broker.InitConfig{MaxJobs: 1}); err != nil {
		t.Fatal(err)
	}
	dispatched(t, b, newJob()) // the queue is full
	js := testenv.JetStream(t, s.URL())
	tests := map[string]struct {
		job  protocol.Job
		opts broker.DispatchOptions
		want error
		text string
	}{
		"a full queue":  {newJob(), broker.DispatchOptions{AllowUnserved: true}, broker.ErrQueueFull, "STARLING_JOBS"},
		"nobody serves": {newJob(), broker.DispatchOptions{}, broker.ErrPoolUnserved, "starling worker --pool default"},
		"an undeclared pool that nobody serves": {
			newJob(func(j *protocol.Job) { j.Pool = "gpu" }),
			broker.DispatchOptions{},
			broker.ErrPoolUndeclared, "starling init --pools gpu",
		},
		"an undeclared pool": {
			newJob(func(j *protocol.Job) { j.Pool = "gpu" }),
			broker.DispatchOptions{AllowUnserved: true},
			broker.ErrPoolUndeclared, "starling init --pools gpu",
		},
		"an unknown capsule": {
			newJob(func(j *protocol.Job) { j.Capsule.Digest = "" }),
			broker.DispatchOptions{AllowUnserved: true},
			broker.ErrUnknownCapsule, "echo",
		},
		"a job over 256 KiB": {
			newJob(func(j *protocol.Job) { j.Env = map[string]string{"A": strings.Repeat("x", protocol.MaxJobBytes)} }),
			broker.DispatchOptions{AllowUnserved: true},
			protocol.ErrJobTooLarge, "by reference",
		},
		"a bad job": {
			newJob(func(j *protocol.Job) { j.MaxAttempts = 0 }),
			broker.DispatchOptions{AllowUnserved: true},
			protocol.ErrJob, "max_attempts",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := b.Dispatch(t.Context(), tt.job, tt.opts)
			wantError(t, "Dispatch()", err, tt.want, tt.text, string(tt.job.DelegationID))
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error tells the door's address: %v", err)
			}
			_, err = b.ReadRecord(t.Context(), tt.job.Spawner.SessionID, tt.job.DelegationID, 0)
			wantError(t, "ReadRecord()", err, broker.ErrNoRecord)
		})
	}
	if n := streamState(t, js, jobsStream).Msgs; n != 1 {
		t.Errorf("%d jobs queued, want the first only", n)
	}
}

func TestDispatchIntoAFullQueueOfAJobThatIsThere(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b := connected(t, s.URL())
	if err := b.Init(t.Context(), broker.InitConfig{MaxJobs: 1}); err != nil {
		t.Fatal(err)
	}
	job := newJob()
	first := dispatched(t, b, job)
	// Two dispatches of one millisecond write the same record: nothing tells them apart.
	testenv.EventuallyTrue(t, time.Second, "the next millisecond", func() bool {
		return protocol.NewTime(time.Now()) != first.Record.SubmittedAt
	})
	if d := dispatched(t, b, job); !d.Existing {
		t.Error("Existing = false")
	}
}

func TestARefusedDispatchCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b := connected(t, s.URL())
	if err := b.Init(t.Context(), broker.InitConfig{MaxJobs: 1}); err != nil {
		t.Fatal(err)
	}
	w := take(t, b, broker.TakerConfig{Slots: 1})
	dispatched(t, b, newJob())
	first := w.next(t)
	job := newJob()
	_, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true})
	wantError(t, "Dispatch()", err, broker.ErrQueueFull)
	done(t, first)
	d := dispatched(t, b, job) // over the marker of the withdrawn record
	if d.Existing || d.Record.Status != protocol.StatusSubmitted {
		t.Errorf("Dispatch() = %+v, want a new record", d)
	}
	second := w.next(t)
	if revision, ok := second.LedgerRevision(); !ok || revision != d.Revision {
		t.Errorf("LedgerRevision() = %d, %t; want %d", revision, ok, d.Revision)
	}
	done(t, second)
}

func TestDispatchSurvivesLostAnswers(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	js := testenv.JetStream(t, s.URL())
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL())
	var n atomic.Int64
	p.DropAnswers(func(subject string, payload []byte) bool { // every third answer to a write
		return pubAcks(subject, payload) && n.Add(1)%3 == 1
	})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			job := newJob()
			d, err := b.Dispatch(context.Background(), job, broker.DispatchOptions{AllowUnserved: true})
			if err != nil || d.Record.TaskID != job.TaskID {
				t.Errorf("Dispatch() = %+v, %v", d, err)
			}
		})
	}
	wg.Wait()
	if jobs, records := streamState(t, js, jobsStream).Msgs, streamState(t, js, ledgerStream).Msgs; jobs != 10 || records != 10 {
		t.Errorf("%d jobs, %d records; want 10 of each", jobs, records)
	}
	if p.Dropped() == 0 {
		t.Error("no answer was dropped")
	}
}

func TestDispatchWithoutAnyAnswerIsUnclearAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL())
	for name, drop := range map[string]func(string, []byte) bool{
		"to the record": pubAcks,
		"to the job":    func(_ string, payload []byte) bool { return strings.Contains(string(payload), jobsStream) },
	} {
		job := newJob()
		p.DropAnswers(drop)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := b.Dispatch(ctx, job, broker.DispatchOptions{AllowUnserved: true})
		cancel()
		wantError(t, name, err, broker.ErrUnclear, "dispatch the same delegation again")
		p.DropAnswers(nil)
		if d := dispatched(t, b, job); d.Record.TaskID != job.TaskID {
			t.Errorf("%s: Dispatch() again = %+v", name, d)
		}
	}
}

func TestDispatchAsksWhetherThePoolIsServed(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	nc := testenv.JetStream(t, s.URL()).Conn()
	sub, err := nc.QueueSubscribe("starling.pools.default", "q", func(m *nats.Msg) { _ = m.Respond([]byte("{}")) })
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	job := newJob()
	if _, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{}); err != nil {
		t.Fatalf("Dispatch() = %v", err)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	// What is in the fleet's hands stays there.
	if d, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{}); err != nil || !d.Existing {
		t.Errorf("Dispatch() again = %+v, %v", d, err)
	}
}

func TestDispatchNeedsAParentsRightsOnly(t *testing.T) {
	t.Parallel()
	ns, session := protocol.DefaultNamespace, protocol.NewSessionID()
	parent := testenv.ParentUser(ns, session)
	s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), parent))
	operator := connected(t, s.URL(), as(testenv.OperatorUser()))
	if err := operator.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	b := connected(t, s.URL(), as(parent))
	mine := func(j *protocol.Job) { j.Spawner.SessionID = session }
	job := newJob(mine)
	dispatched(t, b, job)

	w, err := b.WatchDelegation(t.Context(), session, job.DelegationID)
	if err != nil {
		t.Fatalf("WatchDelegation() = %v", err)
	}
	defer w.Close()
	if e, err := w.Next(t.Context()); err != nil || e.Record.Status != protocol.StatusSubmitted {
		t.Fatalf("Next() = %+v, %v", e, err)
	}
	start := time.Now()
	if c, err := b.Cancel(t.Context(), session, job.DelegationID, broker.CancelOptions{}); err != nil || c.Record.Status != protocol.StatusTerminated {
		t.Fatalf("Cancel() = %+v, %v", c, err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("Cancel() took %s: it waited for a right it has not", took)
	}
	if e, err := w.Next(t.Context()); err != nil || e.Record.Status != protocol.StatusTerminated {
		t.Fatalf("Next() = %+v, %v", e, err)
	}

	_, err = b.Dispatch(t.Context(), newJob(), broker.DispatchOptions{AllowUnserved: true}) // another's session
	wantError(t, "Dispatch() for another session", err, broker.ErrDenied)
	if errors.Is(err, broker.ErrUnclear) {
		t.Errorf("a refusal is not unclear: %v", err)
	}
}

func TestDispatchOnThreeReplicas(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	js := testenv.JetStream(t, c.URL())
	jobs := make([]protocol.Job, 20)
	for i := range jobs {
		jobs[i] = newJob()
	}
	var wg sync.WaitGroup
	for range 4 { // four parents dispatch the same twenty
		wg.Go(func() {
			for _, job := range jobs {
				d, err := b.Dispatch(context.Background(), job, broker.DispatchOptions{AllowUnserved: true})
				if err != nil || d.Record.TaskID != job.TaskID {
					t.Errorf("Dispatch() = %+v, %v", d, err)
				}
			}
		})
	}
	wg.Wait()
	if n := streamState(t, js, jobsStream).Msgs; n != 20 {
		t.Errorf("%d jobs queued, want 20", n)
	}
	c.LeaderOf(jobsStream, "").Stop()
	d, err := b.Dispatch(t.Context(), newJob(), broker.DispatchOptions{AllowUnserved: true})
	if err != nil {
		t.Errorf("Dispatch() while the stream elects = %+v, %v", d, err)
	}
}

// TestDispatchBeforeInitSaysSo, with a parent's rights too.
func TestDispatchBeforeInitSaysSo(t *testing.T) {
	t.Parallel()
	job := newJob()
	s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), testenv.ParentUser(protocol.DefaultNamespace, job.Spawner.SessionID)))
	for _, user := range []testenv.User{testenv.OperatorUser(), testenv.ParentUser(protocol.DefaultNamespace, job.Spawner.SessionID)} {
		b := connected(t, s.URL(), as(user))
		for _, opts := range []broker.DispatchOptions{{}, {AllowUnserved: true}} {
			_, err := b.Dispatch(t.Context(), job, opts)
			wantError(t, "Dispatch()", err, broker.ErrNotInitialized, "starling init")
		}
	}
}

// TestAParentLearnsThatAPoolIsNotDeclared with no right to look at the jobs
// stream: what asks for it stores nothing.
func TestAParentLearnsThatAPoolIsNotDeclared(t *testing.T) {
	t.Parallel()
	job := newJob()
	parent := testenv.ParentUser(protocol.DefaultNamespace, job.Spawner.SessionID)
	s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), parent))
	operator := connected(t, s.URL(), as(testenv.OperatorUser()))
	if err := operator.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	b := connected(t, s.URL(), as(parent))
	_, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{})
	wantError(t, "Dispatch() to a declared pool", err, broker.ErrPoolUnserved)
	job.Pool = "gpu"
	_, err = b.Dispatch(t.Context(), job, broker.DispatchOptions{})
	wantError(t, "Dispatch() to another", err, broker.ErrPoolUndeclared, "gpu", "starling init --pools gpu")
	if stats, err := operator.PoolStats(t.Context(), nil); err != nil || len(stats) != 1 || stats[0].Pending != 0 {
		t.Errorf("PoolStats() = %+v, %v; want nothing queued", stats, err)
	}
}

func TestAnUndeclaredPoolAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, _ := onCluster(t)
	_, err := b.Dispatch(t.Context(), newJob(func(j *protocol.Job) { j.Pool = "gpu" }), broker.DispatchOptions{})
	wantError(t, "Dispatch()", err, broker.ErrPoolUndeclared, "starling init --pools gpu")
	_, err = b.Dispatch(t.Context(), newJob(), broker.DispatchOptions{})
	wantError(t, "Dispatch()", err, broker.ErrPoolUnserved)
}

// TestALeaderlessQueueIsNoUndeclaredPool takes the only copy of the jobs stream away
// for longer than an election: a pool that is declared is not said to be missing, the
// record of what was begun stays, and dispatching the same again mends it.
func TestALeaderlessQueueIsNoUndeclaredPoolAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	js := testenv.JetStream(t, c.URL())
	stream, err := js.Stream(t.Context(), "STARLING_JOBS")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.Replicas = 1
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() error {
		info, err := stream.Info(t.Context())
		if err == nil && (info.Cluster.Leader == "" || len(info.Cluster.Replicas) > 0) {
			err = fmt.Errorf("the stream is still on %d more servers", len(info.Cluster.Replicas))
		}
		return err
	})
	leader := c.LeaderOf(cfg.Name, "")
	leader.Stop()

	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	job := newJob()
	_, err = b.Dispatch(ctx, job, broker.DispatchOptions{AllowUnserved: true})
	wantError(t, "Dispatch() without a leader", err, broker.ErrUnclear, "dispatch the same delegation again")
	leader.Start()
	c.Ready()
	testenv.Eventually(t, 30*time.Second, func() error {
		_, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true})
		return err
	})
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs != 1 {
		t.Errorf("after all the stream holds %+v, %v, want the job", info, err)
	}
}
