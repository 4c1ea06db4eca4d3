package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// within is how long anything may take that should be quick: two cores are
// shared with others.
const within = 30 * time.Second

// newJob is a job whose capsule is pinned, so that none needs to be pushed.
func newJob(change ...func(*protocol.Job)) protocol.Job {
	context := protocol.NewContextID()
	id := protocol.NewDelegationID()
	j := protocol.Job{
		DelegationID: id, TaskID: protocol.NewTaskID(),
		Capsule: protocol.CapsuleRef{Name: "echo", Version: "1.0.0", Digest: protocol.DigestOf([]byte("echo"))},
		Message: protocol.NewUserMessage(context, "say hello"),
		Spawner: protocol.Spawner{
			SessionID: protocol.NewSessionID(), ContextID: context, DelegationID: id,
			URL: "http://127.0.0.1:7777/secret", Trust: protocol.Trusted,
		},
		Origin: protocol.OriginUser, Pool: protocol.DefaultPool, MaxAttempts: protocol.DefaultMaxAttempts,
	}
	for _, c := range change {
		c(&j)
	}
	return j
}

func fromOrigin(o protocol.Origin) func(*protocol.Job) {
	return func(j *protocol.Job) { j.Origin = o }
}

// dispatched dispatches without asking for a worker.
func dispatched(t testing.TB, b *broker.Bus, job protocol.Job) broker.Dispatched {
	t.Helper()
	d, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true})
	if err != nil {
		t.Fatalf("Dispatch() = %v", err)
	}
	return d
}

// streamState is what a stream holds.
func streamState(t testing.TB, js jetstream.JetStream, name string) jetstream.StreamState {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State
}

// stored reads all messages of a subject, in the order of the stream.
func storedOn(t testing.TB, js jetstream.JetStream, stream, subject string) []*jetstream.RawStreamMsg {
	t.Helper()
	var all []*jetstream.RawStreamMsg
	for seq := uint64(1); ; {
		m, found := nextStored(t, js, stream, subject, seq)
		if !found {
			return all
		}
		all = append(all, m)
		seq = m.Sequence + 1
	}
}

// nextStored asks the stream's leader, not any replica as the client does.
func nextStored(t testing.TB, js jetstream.JetStream, stream, subject string, seq uint64) (*jetstream.RawStreamMsg, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	m, err := js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q}`, seq, subject))
	if err != nil {
		t.Fatalf("reading %s: %v", stream, err)
	}
	var answer struct {
		Error   *jetstream.APIError
		Message struct {
			Subject string
			Seq     uint64
			Hdrs    []byte
			Data    []byte
			Time    time.Time
		}
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
			t.Fatalf("reading %s: %v", stream, answer.Error)
		}
		return nil, false
	}
	got := &jetstream.RawStreamMsg{Subject: answer.Message.Subject, Sequence: answer.Message.Seq, Data: answer.Message.Data, Time: answer.Message.Time}
	if len(answer.Message.Hdrs) > 0 {
		if got.Header, err = nats.DecodeHeadersMsg(answer.Message.Hdrs); err != nil {
			t.Fatal(err)
		}
	}
	return got, true
}

// taking is a taker that runs.
type taking struct {
	taker      *broker.Taker
	deliveries chan *broker.Delivery
	stop       func() error // ends Run and waits for it
}

func take(t testing.TB, b *broker.Bus, cfg broker.TakerConfig) taking {
	t.Helper()
	if cfg.PullExpires == 0 {
		cfg.PullExpires = 200 * time.Millisecond
	}
	taker, err := b.NewTaker(t.Context(), cfg)
	if err != nil {
		t.Fatalf("NewTaker() = %v", err)
	}
	w := taking{taker: taker, deliveries: make(chan *broker.Delivery, 10_000)}
	ctx, cancel := context.WithCancel(context.Background())
	var once sync.Once
	ended := make(chan error, 1)
	go func() { ended <- taker.Run(ctx, func(d *broker.Delivery) { w.deliveries <- d }) }()
	w.stop = func() (err error) {
		once.Do(func() {
			cancel()
			select {
			case err = <-ended:
			case <-time.After(within):
				err = fmt.Errorf("Run did not end within %s", within)
			}
		})
		return err
	}
	t.Cleanup(func() {
		taker.Abandon() // nothing comes any more that must be given back
		if err := w.stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return w
}

// next is the next delivery.
func (w taking) next(t testing.TB) *broker.Delivery {
	t.Helper()
	select {
	case d := <-w.deliveries:
		return d
	case <-time.After(within):
		t.Fatal("no delivery came")
		return nil
	}
}

// none fails when a delivery comes within d.
func (w taking) none(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case d := <-w.deliveries:
		t.Fatalf("a delivery came: %s", d.Body())
	case <-time.After(d):
	}
}

// taskOf is the task of a delivery.
func taskOf(t testing.TB, d *broker.Delivery) protocol.TaskID {
	t.Helper()
	p, err := d.Place()
	if err != nil {
		t.Fatalf("Place() = %v", err)
	}
	return p.Task
}

// done acks and releases.
func done(t testing.TB, d *broker.Delivery) {
	t.Helper()
	if err := d.Ack(t.Context()); err != nil {
		t.Fatalf("Ack() = %v", err)
	}
	d.Release()
}

// pubAcks says yes to the answers of publishes and acks.
func pubAcks(subject string, payload []byte) bool {
	return strings.HasPrefix(subject, "_INBOX") && strings.Contains(string(payload), `"stream":`)
}

// onCluster is a bus on a cluster with everything at three replicas. Its servers
// are processes: the race detector looks at this program alone.
func onCluster(t *testing.T) (*broker.Bus, *testenv.ProcessCluster) {
	t.Helper()
	c := testenv.ClusterOfProcesses(t)
	b := connected(t, c.URL())
	if err := b.Init(t.Context(), broker.InitConfig{Replicas: 3}); err != nil {
		t.Fatalf("Init() = %v", err)
	}
	return b, c
}

// canceledRecord is the final record of a job that was canceled while it ran.
func canceledRecord(job protocol.Job) protocol.Record {
	rec := job.NewRecord(time.Now())
	rec.Status, rec.Attempt, rec.SessionID = protocol.StatusTerminated, 1, protocol.NewSessionID()
	rec.EndedAt = protocol.NewTime(time.Now())
	rec.Outcome = &protocol.Outcome{
		DelegationID: job.DelegationID, CapsuleName: job.Capsule.Name, CapsuleVersion: job.Capsule.Version,
		SessionID: rec.SessionID, Status: protocol.StatusTerminated, ReportedBy: protocol.ReportedByLauncher,
		Detail: protocol.ParentEndedDetail,
	}
	rec.Ending = &protocol.Ending{State: a2a.TaskStateCanceled, Message: protocol.MessageCanceled}
	return rec
}
