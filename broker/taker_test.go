package broker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func TestTakesUserBeforePeerBeforeBackgroundAndFirstInFirstOut(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	var want []protocol.TaskID
	lanes := []protocol.Origin{protocol.OriginUser, protocol.OriginPeer, protocol.OriginEvent}
	perLane := make([][]protocol.TaskID, len(lanes))
	for range 5 {
		for i := range lanes { // lowest first, so that time and rank disagree
			i = len(lanes) - 1 - i
			job := newJob(fromOrigin(lanes[i]))
			dispatched(t, b, job)
			perLane[i] = append(perLane[i], job.TaskID)
		}
	}
	for _, tasks := range perLane {
		want = append(want, tasks...)
	}
	// A lane's consumer hears of a job a moment after its publisher does.
	for i, lane := range protocol.Lanes() {
		testenv.Eventually(t, within, func() error {
			consumer, err := js.Consumer(t.Context(), jobsStream, protocol.LaneConsumer(protocol.DefaultPool, lane))
			if err == nil && consumer.CachedInfo().NumPending != uint64(len(perLane[i])) {
				err = fmt.Errorf("lane %s knows of %d jobs", lane, consumer.CachedInfo().NumPending)
			}
			return err
		})
	}
	w := take(t, b, broker.TakerConfig{Slots: 1})
	for i, task := range want {
		d := w.next(t)
		if got := taskOf(t, d); got != task {
			t.Fatalf("delivery %d is %s, want %s", i, got, task)
		}
		done(t, d)
	}
}

func TestAHigherLanePassesABacklogOfALowerOne(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1, PullExpires: 2 * within})
	js := testenv.JetStream(t, s.URL())
	nc := js.Conn()
	users, err := js.Consumer(t.Context(), jobsStream, "default-user")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, within, func() error {
		info, err := users.Info(t.Context())
		if err == nil && info.NumWaiting == 0 {
			err = errors.New("no pull waits for a user's job")
		}
		return err
	})
	givenBack, err := nc.SubscribeSync("$JS.ACK.STARLING_JOBS.default-user.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		dispatched(t, b, newJob(fromOrigin(protocol.OriginEvent)))
	}
	done(t, w.next(t))
	busy := w.next(t)
	job := newJob()
	dispatched(t, b, job)
	// It meets an open pull of a full worker and is given back at once.
	m, err := givenBack.NextMsg(within)
	if err != nil || string(m.Data) != "-NAK" {
		t.Fatalf("the full worker said %+v, %v, want a nak", m, err)
	}
	done(t, busy)
	// The server reads the nak beside the next pulls, so that some of the backlog
	// may pass: a few of its 48.
	const few = 10
	for range few {
		d := w.next(t)
		task := taskOf(t, d)
		done(t, d)
		if task == job.TaskID {
			return
		}
	}
	t.Fatal("the user's job waited behind the backlog")
}

func TestNoJobWaitsInABusyWorkerWhileAnotherHasAFreeSlot(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	full := take(t, b, broker.TakerConfig{Slots: 1})
	dispatched(t, b, newJob())
	held := full.next(t)
	free := take(t, b, broker.TakerConfig{Slots: 20})
	for range 10 {
		dispatched(t, b, newJob())
	}
	for range 10 {
		done(t, free.next(t))
	}
	full.none(t, 0)
	if full.taker.Busy() != 1 || free.taker.Busy() != 0 {
		t.Errorf("Busy() = %d and %d, want 1 and 0", full.taker.Busy(), free.taker.Busy())
	}
	done(t, held)
}

func TestEachJobIsTakenOnceByManyTakers(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	const workers, slots, jobs = 4, 3, 300
	var mu sync.Mutex
	taken := map[protocol.TaskID][]protocol.DeliveryMark{}
	finished := make(chan struct{})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for range workers {
		taker, err := b.NewTaker(t.Context(), broker.TakerConfig{Slots: slots, PullExpires: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var busy sync.WaitGroup
		wg.Go(func() {
			err := taker.Run(ctx, func(d *broker.Delivery) {
				if n := taker.Busy(); n > slots {
					t.Errorf("Busy() = %d, want at most %d", n, slots)
				}
				busy.Go(func() {
					defer d.Release()
					p, err := d.Place()
					if err != nil {
						t.Error(err)
					}
					if err := d.Ack(context.Background()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					taken[p.Task] = append(taken[p.Task], d.Mark())
					if len(taken) == jobs && len(taken[p.Task]) == 1 {
						close(finished)
					}
				})
			})
			if err != nil {
				t.Error(err)
			}
			busy.Wait()
		})
	}
	for i := range jobs {
		dispatched(t, b, newJob(fromOrigin([]protocol.Origin{protocol.OriginUser, protocol.OriginPeer, protocol.OriginSystem}[i%3])))
	}
	select {
	case <-finished:
	case <-time.After(within):
		t.Errorf("not all of %d jobs taken within %s", jobs, within)
	}
	cancel()
	wg.Wait()
	if len(taken) != jobs {
		t.Errorf("%d of %d jobs taken", len(taken), jobs)
	}
	// A job whose publish was answered late is published again, which its ack may
	// have made room for: that is another message, and the claim's to settle.
	for task, marks := range taken {
		sequences := map[uint64]bool{}
		for _, m := range marks {
			sequences[m.Sequence] = true
		}
		if len(sequences) != len(marks) {
			t.Errorf("task %s: one message was taken twice: %+v", task, marks)
		}
	}
}

func TestRunGivesBackWhatOpenPullsStillBring(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1, PullExpires: 2 * time.Second})
	dispatched(t, b, newJob())
	done(t, w.next(t))
	job := newJob()
	stopped := make(chan error, 1)
	start := time.Now()
	go func() { stopped <- w.stop() }()
	testenv.EventuallyTrue(t, within, "a drain", func() bool {
		// The worker's open pulls still get jobs: they come back at once.
		select {
		case err := <-stopped:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
			return true
		default:
			if job.TaskID != "" && time.Since(start) > 100*time.Millisecond {
				dispatched(t, b, job)
				job.TaskID = ""
			}
			return false
		}
	})
	if job.TaskID != "" { // its pulls were about to end anyway: there was nothing to give back
		dispatched(t, b, job)
	}
	w.none(t, 0)
	second := take(t, b, broker.TakerConfig{Slots: 1})
	d := second.next(t)
	if d.Mark().Count > 3 {
		t.Errorf("delivery %d of the job, want the second or so", d.Mark().Count)
	}
	done(t, d)
}

func TestTakerStopsIdleAndBusyAndRunsOnce(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	t.Run("before it started", func(t *testing.T) {
		taker, err := b.NewTaker(t.Context(), broker.TakerConfig{Slots: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := taker.Run(ctx, nil); err != nil {
			t.Errorf("Run() = %v", err)
		}
		wantError(t, "Run() again", taker.Run(ctx, nil), broker.ErrConfig)
	})
	t.Run("busy", func(t *testing.T) {
		w := take(t, b, broker.TakerConfig{Slots: 1})
		dispatched(t, b, newJob())
		d := w.next(t)
		if err := w.stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
		if w.taker.Busy() != 1 {
			t.Errorf("Busy() = %d, want 1", w.taker.Busy())
		}
		done(t, d) // settling after Run is fine
		d.Release()
		if w.taker.Busy() != 0 {
			t.Errorf("Busy() = %d, want 0", w.taker.Busy())
		}
	})
}

// TestTakerWithFullSlotsStopsAtOnce tells it to stop just when a job has filled
// its last slot: nothing is open that could still bring one, and no slot comes
// free.
func TestTakerWithFullSlotsStopsAtOnce(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	dispatched(t, b, newJob())
	for range 300 {
		taker, err := b.NewTaker(t.Context(), broker.TakerConfig{Slots: 1, PullExpires: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		taken, ended := make(chan *broker.Delivery, 1), make(chan error, 1)
		go func() { ended <- taker.Run(ctx, func(d *broker.Delivery) { taken <- d }) }()
		d := <-taken
		stop()
		select {
		case err = <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("Run() does not return with its slots full")
		}
		d.Release()
		if err = errors.Join(err, d.Nak(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRunEndsWithTheBus(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b, err := broker.Connect(t.Context(), broker.Config{URL: s.URL(), ContextDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	taker, err := b.NewTaker(t.Context(), broker.TakerConfig{Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- taker.Run(context.Background(), func(*broker.Delivery) {}) }()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		wantError(t, "Run()", err, broker.ErrClosed)
	case <-time.After(within):
		t.Fatal("Run goes on without its bus")
	}
}

func TestNewTakerRefuses(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	other := connected(t, s.URL(), func(c *broker.Config) { c.Namespace = "other" })
	for name, tt := range map[string]struct {
		bus  *broker.Bus
		cfg  broker.TakerConfig
		want error
		text string
	}{
		"no slot":             {b, broker.TakerConfig{}, broker.ErrConfig, "slot"},
		"pulls under 100 ms":  {b, broker.TakerConfig{Slots: 1, PullExpires: 100*time.Millisecond - 1}, broker.ErrConfig, "100ms"},
		"an undeclared pool":  {b, broker.TakerConfig{Slots: 1, Pool: "gpu"}, broker.ErrPoolUndeclared, "starling init --pools gpu"},
		"a bad pool":          {b, broker.TakerConfig{Slots: 1, Pool: "a.b"}, protocol.ErrName, "pool"},
		"a namespace without": {other, broker.TakerConfig{Slots: 1}, broker.ErrNotInitialized, "`starling init --namespace other`"},
	} {
		_, err := tt.bus.NewTaker(t.Context(), tt.cfg)
		wantError(t, name, err, tt.want, tt.text)
	}
	taker, err := b.NewTaker(t.Context(), broker.TakerConfig{Slots: 1, PullExpires: time.Second})
	if err != nil || taker.AckWait() != 30*time.Second {
		t.Errorf("NewTaker() = %v, AckWait %s; want 30s", err, taker.AckWait())
	}
}

// TestAbandonedTakerReturnsAtOnce has pulls open for an hour.
func TestAbandonedTakerReturnsAtOnce(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	taker, err := b.NewTaker(t.Context(), broker.TakerConfig{Slots: 1, PullExpires: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- taker.Run(ctx, func(*broker.Delivery) { t.Error("a job was taken") }) }()
	stop()
	taker.Abandon()
	taker.Abandon()
	select {
	case err := <-ran:
		if err != nil {
			t.Errorf("Run() = %v", err)
		}
	case <-time.After(within):
		t.Fatal("Run() waits for its pulls")
	}
}

func TestTakerGoesOnAfterItsServerRestarted(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b := connected(t, s.URL())
	if err := b.Init(t.Context(), broker.InitConfig{AckWait: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	w := take(t, b, broker.TakerConfig{Slots: 2, PullExpires: 20 * time.Second})
	dispatched(t, b, newJob())
	held := w.next(t) // held over the restart
	s.Restart()
	testenv.EventuallyTrue(t, within, "a connection", b.Connected)
	start := time.Now()
	dispatched(t, b, newJob())
	d := w.next(t)
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("a job was taken %s after the restart, as if the pulls of before had to end", took)
	}
	done(t, d)
	done(t, held)
}

func TestTakerGoesOnAfterItsConnectionWasCut(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	// What is delivered into the cut connection comes again after the ack wait.
	if err := direct.Init(t.Context(), broker.InitConfig{AckWait: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	w := take(t, connected(t, p.URL()), broker.TakerConfig{Slots: 4, PullExpires: 10 * time.Second})
	for i := range 5 {
		job := newJob()
		dispatched(t, direct, job)
		d := w.next(t)
		if taskOf(t, d) != job.TaskID {
			t.Fatalf("round %d: another job", i)
		}
		done(t, d)
		p.Cut()
	}
}

func TestTakerOnThreeReplicas(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	w := take(t, b, broker.TakerConfig{Slots: 8})
	acked := make(chan protocol.TaskID, 1000)
	serve := func(n int) {
		t.Helper()
		want := map[protocol.TaskID]bool{}
		for range n {
			job := newJob()
			dispatched(t, b, job)
			want[job.TaskID] = true
		}
		for len(want) > 0 { // a job may come again when the leader forgot the ack
			d := w.next(t)
			delete(want, taskOf(t, d))
			go func() {
				if err := d.Ack(context.Background()); err != nil {
					t.Error(err)
				}
				d.Release()
				acked <- ""
			}()
			<-acked
		}
	}
	serve(30)
	leader := c.LeaderOf(jobsStream, "")
	leader.Stop()
	serve(30)
	leader.Start()
	c.Ready()
	serve(10)
}

func ExampleTaker() {
	var b *broker.Bus // of Connect
	ctx := context.Background()
	taker, err := b.NewTaker(ctx, broker.TakerConfig{Pool: "default", Slots: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = taker.Run(ctx, func(d *broker.Delivery) {
		go func() { // do must not block
			defer d.Release()
			// … claim, run, report, and then:
			if err := d.Ack(ctx); err != nil {
				fmt.Println(err)
			}
		}()
	})
	fmt.Println(err)
}
