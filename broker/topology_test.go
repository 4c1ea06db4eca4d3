package broker_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func streamConfig(t *testing.T, js jetstream.JetStream, name string) jetstream.StreamConfig {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatalf("stream %s: %v", name, err)
	}
	return s.CachedInfo().Config
}

// shape is a stream's settings as section 2 lists them.
func shape(c jetstream.StreamConfig) string {
	text := fmt.Sprintf("%v retention=%s storage=%s age=%s perSubject=%d discard=%s newPerSubject=%t msgSize=%d direct=%t consumers=%d r=%d",
		c.Subjects, c.Retention, c.Storage, c.MaxAge, c.MaxMsgsPerSubject, c.Discard, c.DiscardNewPerSubject, c.MaxMsgSize, c.AllowDirect, c.MaxConsumers, c.Replicas)
	if c.RePublish != nil {
		text += fmt.Sprintf(" republish=%s to %s", c.RePublish.Source, c.RePublish.Destination)
	}
	return text
}

func wantTopology(replicas int) map[string]string {
	r := fmt.Sprintf(" r=%d", replicas)
	return map[string]string{
		"STARLING_JOBS":             "[starling.jobs.default.*.*] retention=WorkQueue storage=File age=0s perSubject=1 discard=DiscardNew newPerSubject=true msgSize=278528 direct=true consumers=10000" + r,
		"STARLING_TASKS":            "[starling.tasks.*] retention=Limits storage=File age=72h0m0s perSubject=-1 discard=DiscardOld newPerSubject=false msgSize=-1 direct=true consumers=100000" + r,
		"STARLING_DLQ":              "[starling.dlq.*.*] retention=Limits storage=File age=720h0m0s perSubject=-1 discard=DiscardOld newPerSubject=false msgSize=-1 direct=true consumers=10000" + r,
		"KV_starling-delegations":   "[$KV.starling-delegations.>] retention=Limits storage=File age=168h0m0s perSubject=1 discard=DiscardNew newPerSubject=false msgSize=65536 direct=true consumers=10000" + r + " republish=$KV.starling-delegations.> to starling.delegations.>",
		"KV_starling-capsule-index": "[$KV.starling-capsule-index.>] retention=Limits storage=File age=0s perSubject=1 discard=DiscardNew newPerSubject=false msgSize=-1 direct=true consumers=10000" + r,
		"OBJ_starling-capsules":     "[$O.starling-capsules.C.> $O.starling-capsules.M.>] retention=Limits storage=File age=0s perSubject=-1 discard=DiscardNew newPerSubject=false msgSize=-1 direct=true consumers=10000" + r,
		"OBJ_starling-results":      "[$O.starling-results.C.> $O.starling-results.M.>] retention=Limits storage=File age=168h0m0s perSubject=-1 discard=DiscardNew newPerSubject=false msgSize=-1 direct=true consumers=10000" + r,
		"KV_starling-workers":       "[$KV.starling-workers.>] retention=Limits storage=Memory age=30s perSubject=1 discard=DiscardNew newPerSubject=false msgSize=-1 direct=true consumers=10000" + r,
	}
}

func wantInit(t *testing.T, url string, replicas int) {
	t.Helper()
	js := testenv.JetStream(t, url)
	got := map[string]string{}
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		got[name] = shape(streamConfig(t, js, name))
	}
	if diff := cmp.Diff(wantTopology(replicas), got); diff != "" {
		t.Errorf("Init() (-want +got):\n%s", diff)
	}
	if d := streamConfig(t, js, "STARLING_TASKS").Duplicates; d != 30*time.Second {
		t.Errorf("the duplicate window of frames is %s, want 30s", d)
	}
	for _, lane := range protocol.Lanes() {
		c, err := js.Consumer(t.Context(), "STARLING_JOBS", "default-"+string(lane))
		if err != nil {
			t.Fatal(err)
		}
		i := c.CachedInfo().Config
		got := fmt.Sprint(i.Durable, i.FilterSubject, i.AckPolicy, i.AckWait, i.MaxDeliver, len(i.BackOff), i.MaxAckPending >= 100_000, i.MaxWaiting >= 50_000)
		want := fmt.Sprint("default-"+string(lane), "starling.jobs.default."+string(lane)+".*", jetstream.AckExplicitPolicy, 30*time.Second, -1, 0, true, true)
		if got != want {
			t.Errorf("consumer of %s = %s, want %s", lane, got, want)
		}
	}
}

func TestInitCreatesSection2(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	wantInit(t, s.URL(), 1)
	if pools, err := b.PoolNames(t.Context()); err != nil || !slices.Equal(pools, []string{"default"}) {
		t.Errorf("PoolNames() = %v, %v", pools, err)
	}
	// The client's own calls take the buckets for what they are.
	js := testenv.JetStream(t, s.URL())
	for _, bucket := range []string{"starling-delegations", "starling-capsule-index", "starling-workers"} {
		if _, err := js.KeyValue(t.Context(), bucket); err != nil {
			t.Errorf("KeyValue(%s) = %v", bucket, err)
		}
	}
	for _, bucket := range []string{"starling-capsules", "starling-results"} {
		if _, err := js.ObjectStore(t.Context(), bucket); err != nil {
			t.Errorf("ObjectStore(%s) = %v", bucket, err)
		}
	}
}

func TestInitCreatesSection2AtThreeReplicas(t *testing.T) {
	t.Parallel()
	c := testenv.ClusterOfProcesses(t)
	b := connected(t, c.URL())
	for range 2 {
		if err := b.Init(t.Context(), broker.InitConfig{Replicas: 3}); err != nil {
			t.Fatalf("Init() = %v", err)
		}
	}
	wantInit(t, c.URL(), 3)
	c.LeaderOf("STARLING_JOBS", "").Stop()
	if err := b.Init(t.Context(), broker.InitConfig{Pools: []string{"gpu"}}); err != nil {
		t.Fatalf("Init() of a pool without one of three servers = %v", err)
	}
	if pools, err := b.PoolNames(t.Context()); err != nil || !slices.Equal(pools, []string{"default", "gpu"}) {
		t.Errorf("PoolNames() = %v, %v", pools, err)
	}
}

func TestInitAddsPoolsWithoutDisturbingOthers(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	if _, err := js.Publish(t.Context(), "starling.jobs.default.user.tsk_1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(t.Context(), "STARLING_JOBS", "default-user")
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Init(t.Context(), broker.InitConfig{Pools: []string{"gpu", "a-b"}}); err != nil {
			t.Fatalf("Init() = %v", err)
		}
	}
	if pools, err := b.PoolNames(t.Context()); err != nil || !slices.Equal(pools, []string{"a-b", "default", "gpu"}) {
		t.Errorf("PoolNames() = %v, %v", pools, err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Errorf("acking a job across Init = %v", err)
	}
	if c, err := js.Consumer(t.Context(), "STARLING_JOBS", "a-b-peer"); err != nil || c.CachedInfo().Config.FilterSubject != "starling.jobs.a-b.peer.*" {
		t.Errorf("consumer a-b-peer: %v", err)
	}
}

func TestInitChangesWhatAnOperatorAsksFor(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	cfg := broker.InitConfig{
		AckWait: time.Second, MaxJobs: 5, MaxJobBytes: 1 << 20, MaxFrameBytes: 2 << 20, MaxLedgerBytes: 3 << 20, MaxResultBytes: 16 << 20,
		FrameAge: 10 * time.Second, LedgerAge: time.Hour, ResultAge: 2 * time.Hour, DeadLetterAge: 3 * time.Hour, MaxObservers: 7,
	}
	for _, c := range []broker.InitConfig{cfg, {}} { // leaving it out keeps it
		if err := b.Init(t.Context(), c); err != nil {
			t.Fatalf("Init() = %v", err)
		}
		got := map[string]string{}
		for _, name := range []string{"STARLING_JOBS", "STARLING_TASKS", "KV_starling-delegations", "OBJ_starling-results", "STARLING_DLQ"} {
			c := streamConfig(t, js, name)
			got[name] = fmt.Sprint(c.MaxMsgs, c.MaxBytes, c.MaxAge, c.MaxConsumers)
		}
		want := map[string]string{
			"STARLING_JOBS": "5 1048576 0s 10000", "STARLING_TASKS": "-1 2097152 10s 7", "KV_starling-delegations": "-1 3145728 1h0m0s 10000",
			"OBJ_starling-results": "-1 16777216 2h0m0s 10000", "STARLING_DLQ": "-1 -1 3h0m0s 10000",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after Init (-want +got):\n%s", diff)
		}
		consumer, err := js.Consumer(t.Context(), "STARLING_JOBS", "default-bg")
		if err != nil || consumer.CachedInfo().Config.AckWait != time.Second {
			t.Errorf("ack wait is not changed: %v", err)
		}
	}
	if err := b.Init(t.Context(), broker.InitConfig{MaxFrameBytes: broker.NoLimit, MaxLedgerBytes: broker.NoLimit, MaxResultBytes: broker.NoLimit}); err != nil {
		t.Fatalf("Init() without limits = %v", err)
	}
	for _, name := range []string{"STARLING_TASKS", "KV_starling-delegations", "OBJ_starling-results"} {
		if c := streamConfig(t, js, name); c.MaxBytes != -1 {
			t.Errorf("%s has at most %d bytes, want no limit", name, c.MaxBytes)
		}
	}
}

// TestALimitHasRoomForTheLargest: what is refused is one byte less than what works.
func TestALimitHasRoomForTheLargest(t *testing.T) {
	t.Parallel()
	least := broker.InitConfig{MaxJobBytes: 279_552, MaxFrameBytes: 525_312, MaxLedgerBytes: 66_560, MaxResultBytes: 8_454_144}
	less := broker.InitConfig{
		MaxJobBytes: least.MaxJobBytes - 1, MaxFrameBytes: least.MaxFrameBytes - 1, MaxLedgerBytes: least.MaxLedgerBytes - 1, MaxResultBytes: least.MaxResultBytes - 1,
	}
	wantError(t, "Validate()", less.Validate(), broker.ErrConfig, "MaxJobBytes is 279551: it is at least 279552, the room of one largest job",
		"MaxFrameBytes", "one largest frame", "MaxLedgerBytes", "one largest record", "MaxResultBytes", "one result")
	wantError(t, "a queue without a limit", broker.InitConfig{MaxJobBytes: broker.NoLimit}.Validate(), broker.ErrConfig, "MaxJobBytes is -1")

	s := testenv.NATS(t)
	b := connected(t, s.URL())
	if err := b.Init(t.Context(), least); err != nil {
		t.Fatal(err)
	}
	js := testenv.JetStream(t, s.URL())
	longest := protocol.TaskID(strings.Repeat("x", 64))
	for subject, size := range map[string]int{
		"starling.jobs.default.user." + string(longest): 272 << 10, "starling.tasks." + string(longest): protocol.MaxFrameBytes,
		"$KV.starling-delegations." + string(longest) + "." + string(longest): 64 << 10,
	} {
		if _, err := js.Publish(t.Context(), subject, make([]byte, size)); err != nil {
			t.Errorf("the largest on %s = %v", subject, err)
		}
	}
	if info, err := js.Stream(t.Context(), "STARLING_TASKS"); err != nil || info.CachedInfo().State.Msgs != 1 {
		t.Errorf("the frame did not stay: %v", err) // a stream of frames drops its oldest
	}
	if _, err := b.PutResult(t.Context(), "dlg_1", "ses_1", make([]byte, protocol.MaxOutputBytes)); err != nil {
		t.Errorf("PutResult() = %v", err)
	}
}

// TestInitDropsNothing: a limit below what a stream holds is refused.
func TestInitDropsNothing(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	for range 3 {
		dispatched(t, b, newJob(func(j *protocol.Job) { j.Env = map[string]string{"A": strings.Repeat("x", 100<<10)} }))
	}
	for range 3 {
		for subject, size := range map[string]int{
			"starling.tasks." + string(protocol.NewTaskID()): 200 << 10, "$KV.starling-delegations.ses_x." + string(protocol.NewDelegationID()): 30 << 10,
		} {
			if _, err := js.Publish(t.Context(), subject, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := streamConfig(t, js, "STARLING_TASKS")
	for name, c := range map[string]struct {
		cfg  broker.InitConfig
		says []string
	}{
		"jobs":          {broker.InitConfig{MaxJobs: 2}, []string{"STARLING_JOBS", "holds 3 messages", "--max-jobs 2"}},
		"bytes of jobs": {broker.InitConfig{MaxJobBytes: 280_000}, []string{"STARLING_JOBS", "bytes", "--max-job-bytes 280000"}},
		"frames":        {broker.InitConfig{MaxFrameBytes: 530_000}, []string{"STARLING_TASKS", "bytes", "--max-frame-bytes 530000"}},
		"ledger":        {broker.InitConfig{MaxFrameBytes: 1 << 20, MaxLedgerBytes: 70_000}, []string{"KV_starling-delegations", "--max-ledger-bytes 70000"}},
	} {
		wantError(t, name, b.Init(t.Context(), c.cfg), broker.ErrConfig, c.says...)
	}
	if diff := cmp.Diff(before, streamConfig(t, js, "STARLING_TASKS")); diff != "" {
		t.Errorf("a refused Init changed a stream (-before +after):\n%s", diff)
	}
	if err := b.Init(t.Context(), broker.InitConfig{MaxJobs: 3}); err != nil {
		t.Errorf("Init() with a limit that what is there just meets = %v", err)
	}
}

func TestInitRefusesWhatDiffersAndChangesNothing(t *testing.T) {
	t.Parallel()
	for setting, stream := range map[string]jetstream.StreamConfig{
		"retention":            {Name: "STARLING_JOBS", Subjects: []string{"starling.jobs.default.*.*"}},
		"subjects":             {Name: "STARLING_TASKS", Subjects: []string{"starling.tasks.>"}, AllowDirect: true},
		"storage":              {Name: "STARLING_TASKS", Subjects: []string{"starling.tasks.*"}, AllowDirect: true, Storage: jetstream.MemoryStorage},
		"direct gets":          {Name: "STARLING_DLQ", Subjects: []string{"starling.dlq.*.*"}},
		"republish":            {Name: "KV_starling-delegations", Subjects: []string{"$KV.starling-delegations.>"}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowDirect: true, AllowRollup: true, MaxMsgSize: 64 << 10},
		"messages per subject": {Name: "KV_starling-capsule-index", Subjects: []string{"$KV.starling-capsule-index.>"}, MaxMsgsPerSubject: 5, Discard: jetstream.DiscardNew, AllowDirect: true, AllowRollup: true},
		"max age":              {Name: "KV_starling-workers", Subjects: []string{"$KV.starling-workers.>"}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowDirect: true, AllowRollup: true, Storage: jetstream.MemoryStorage, MaxAge: time.Hour},
		"subjects that are no pool": {
			Name: "STARLING_JOBS", Subjects: []string{"starling.jobs.default.*.*", "other"}, Retention: jetstream.WorkQueuePolicy,
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgSize: 272 << 10, AllowDirect: true,
		},
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			s := testenv.NATS(t)
			js := testenv.JetStream(t, s.URL())
			if _, err := js.CreateStream(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			err := connected(t, s.URL()).Init(t.Context(), broker.InitConfig{})
			wantError(t, "Init()", err, broker.ErrTopology, stream.Name, setting)
			var where *broker.TopologyError
			if !errors.As(err, &where) || where.Stream != stream.Name || where.Setting != setting {
				t.Errorf("Init() = %#v", where)
			}
			names := js.StreamNames(t.Context())
			for name := range names.Name() {
				if name != stream.Name {
					t.Errorf("Init() made %s", name)
				}
			}
		})
	}
}

func TestInitRefusesAConsumerThatDiffers(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	if err := js.DeleteConsumer(t.Context(), "STARLING_JOBS", "default-bg"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "STARLING_JOBS", jetstream.ConsumerConfig{
		Durable: "default-bg", FilterSubject: "starling.jobs.default.bg.*", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3,
	}); err != nil {
		t.Fatal(err)
	}
	wantError(t, "Init()", b.Init(t.Context(), broker.InitConfig{}), broker.ErrTopology, "default-bg", "max deliver")
}

func TestInitConfigValidateJoinsAllProblems(t *testing.T) {
	t.Parallel()
	err := broker.InitConfig{Pools: []string{"a.b"}, Replicas: 2, AckWait: time.Millisecond, MaxJobs: -1, LedgerAge: -1}.Validate()
	wantError(t, "Validate()", err, broker.ErrConfig, "Pools", "Replicas", "AckWait", "MaxJobs", "LedgerAge")
}

func TestAnUninitializedNamespaceSaysSo(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	b := connected(t, s.URL(), func(c *broker.Config) { c.Namespace = "other" })
	for what, call := range map[string]func() error{
		"PoolNames":      func() error { _, err := b.PoolNames(t.Context()); return err },
		"Workers":        func() error { _, err := b.Workers(t.Context()); return err },
		"ResolveCapsule": func() error { _, err := b.ResolveCapsule(t.Context(), "a", "1"); return err },
		"PushCapsule": func() error {
			_, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("a", "1"), []byte("x"))
			return err
		},
		"PutResult": func() error { _, err := b.PutResult(t.Context(), "dlg_1", "ses_1", nil); return err },
		"Beat": func() error {
			// A heartbeat begins all the same: a server may forget its bucket.
			h, err := b.Announce(t.Context(), func() protocol.WorkerInfo { return protocol.WorkerInfo{WorkerID: "w"} })
			if err != nil {
				return err
			}
			return errors.Join(h.Beat(t.Context()), h.Close(t.Context()))
		},
		"Delegations": func() error {
			for _, err := range b.Delegations(t.Context()) {
				return err
			}
			return nil
		},
	} {
		wantError(t, what, call(), broker.ErrNotInitialized, "`starling init --namespace other`")
	}
}

func TestAStoreThatIsTooSmallIsTold(t *testing.T) {
	t.Parallel()
	b := connected(t, testenv.NATS(t, testenv.WithMaxStore(1<<20)).URL())
	wantError(t, "Init()", b.Init(t.Context(), broker.InitConfig{}), broker.ErrRefused,
		"STARLING_JOBS", "1073741824 bytes", "insufficient storage", "max_file_store", "--max-job-bytes")
	wantError(t, "Init()", b.Init(t.Context(), broker.InitConfig{MaxJobBytes: 300 << 10, MaxFrameBytes: 1 << 30}), broker.ErrRefused,
		"STARLING_TASKS", "1073741824 bytes", "--max-frame-bytes")
}

func TestAStoreThatIsTooSmallIsToldAtThreeReplicas(t *testing.T) {
	t.Parallel()
	b := connected(t, testenv.Cluster(t, testenv.WithMaxStore(1<<20)).URL())
	wantError(t, "Init()", b.Init(t.Context(), broker.InitConfig{Replicas: 3}), broker.ErrRefused,
		"STARLING_JOBS", "3 replicas", "1073741824 bytes", "insufficient storage", "max_file_store", "--max-job-bytes")
}

func TestReplicasThatTheServersCannotHoldAreTold(t *testing.T) {
	t.Parallel()
	alone := connected(t, testenv.NATS(t).URL())
	wantError(t, "Init()", alone.Init(t.Context(), broker.InitConfig{Replicas: 3}), broker.ErrRefused, "in no cluster", "--replicas")
	logged := &said{}
	three := connected(t, testenv.Cluster(t).URL(), func(c *broker.Config) { c.Logger = slog.New(slog.NewTextHandler(logged, nil)) })
	done := make(chan error, 1)
	go func() { done <- three.Init(t.Context(), broker.InitConfig{Replicas: 5}) }()
	const says = "5 replicas need as many servers"
	testenv.EventuallyTrue(t, 20*time.Second, "it is said while it is waited for", func() bool { return strings.Contains(logged.String(), says) })
	select {
	case err := <-done:
		t.Errorf("Init() = %v at once", err)
		done <- err
	default:
	}
	wantError(t, "Init()", <-done, broker.ErrUnavailable, "STARLING_JOBS", says, "--replicas")
	if n := strings.Count(logged.String(), says); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, logged.String())
	}
}

func TestTheLedgerIsMirrored(t *testing.T) {
	t.Parallel()
	_, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	sub, err := js.Conn().SubscribeSync("starling.delegations.ses_1.*")
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), "starling-delegations")
	if err != nil {
		t.Fatal(err)
	}
	revision, err := kv.Create(t.Context(), "ses_1.dlg_1", []byte("record"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(5 * time.Second)
	if err != nil || string(m.Data) != "record" || m.Header.Get("Nats-Sequence") != fmt.Sprint(revision) {
		t.Errorf("the mirror says %v, %v", m, err)
	}
	if err := kv.Delete(t.Context(), "ses_1.dlg_1"); err != nil {
		t.Fatal(err)
	}
	m, err = sub.NextMsg(5 * time.Second)
	if err != nil || len(m.Data) != 0 || m.Header.Get("KV-Operation") != "DEL" {
		t.Errorf("the mirror of a withdrawn record says %v, %v", m, err)
	}
	if _, err := kv.Put(t.Context(), "ses_1.dlg_2", []byte(strings.Repeat("x", 64<<10))); err != nil {
		t.Errorf("a record of 64 KiB = %v", err)
	}
	if _, err := kv.Put(t.Context(), "ses_1.dlg_2", []byte(strings.Repeat("x", 64<<10+1))); err == nil {
		t.Error("a record of 64 KiB and a byte is stored")
	}
}
