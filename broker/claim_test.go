package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// asWorker fills in what a worker knows.
func asWorker(rec protocol.Record) protocol.Record {
	rec.WorkerID, rec.SessionID = protocol.NewWorkerID(), protocol.NewSessionID()
	rec.Workdir, rec.StartedAt = "/srv/"+string(rec.SessionID), protocol.NewTime(time.Now())
	return rec
}

// claimed is a job that a taker has claimed.
func claimed(t *testing.T, b *broker.Bus, w taking, job protocol.Job) (*broker.Delivery, broker.Claim) {
	t.Helper()
	dispatched(t, b, job)
	d := w.next(t)
	c, err := b.Claim(t.Context(), d, job, asWorker)
	if err != nil {
		t.Fatalf("Claim() = %v", err)
	}
	return d, c
}

func TestClaimOfASubmittedJob(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job := newJob()
	d, c := claimed(t, b, w, job)
	defer done(t, d)
	rec := c.Record
	if c.Kind != broker.Claimed || rec.Status != protocol.StatusWorking || rec.Attempt != 1 || rec.Delivery != d.Mark() {
		t.Errorf("Claim() = %s, record %+v", c.Kind, rec)
	}
	if c.Prior.Status != protocol.StatusSubmitted {
		t.Errorf("Prior.Status = %s", c.Prior.Status)
	}
	mine, err := b.StillMine(t.Context(), c.Entry)
	if err != nil || !mine {
		t.Errorf("StillMine() = %t, %v", mine, err)
	}
}

func TestOnlyALaterDeliveryTakesOver(t *testing.T) {
	t.Parallel()
	b, _ := quick(t)
	w := take(t, b, broker.TakerConfig{Slots: 5})
	job := newJob()
	first, c1 := claimed(t, b, w, job)
	second := w.next(t) // the first was silent for an ack wait
	c2, err := b.Claim(t.Context(), second, job, asWorker)
	if err != nil || c2.Kind != broker.TakenOver || c2.Record.Attempt != 2 || c2.Prior.WorkerID != c1.Record.WorkerID {
		t.Fatalf("Claim() of the later delivery = %s, %+v, %v", c2.Kind, c2.Record, err)
	}
	if mine, err := b.StillMine(t.Context(), c1.Entry); err != nil || mine {
		t.Errorf("StillMine() of the loser = %t, %v", mine, err)
	}
	if mine, err := b.StillMine(t.Context(), c2.Entry); err != nil || !mine {
		t.Errorf("StillMine() of the winner = %t, %v", mine, err)
	}
	_, err = b.WriteRecord(t.Context(), canceledRecord(job), c1.Revision)
	wantError(t, "the loser's outcome", err, broker.ErrLost)
	for name, d := range map[string]*broker.Delivery{"earlier": first, "same": second} {
		c, err := b.Claim(t.Context(), d, job, asWorker)
		if err != nil || c.Kind != broker.Earlier || c.Revision != c2.Revision {
			t.Errorf("Claim() of the %s delivery = %s at %d, %v; want earlier at %d", name, c.Kind, c.Revision, err, c2.Revision)
		}
	}
	first.Drop()
	done(t, second)
}

func TestClaimWithoutAnAttemptLeftIsSpent(t *testing.T) {
	t.Parallel()
	b, _ := quick(t)
	w := take(t, b, broker.TakerConfig{Slots: 5})
	job := newJob(func(j *protocol.Job) { j.MaxAttempts = 1 })
	_, c1 := claimed(t, b, w, job)
	second := w.next(t)
	c2, err := b.Claim(t.Context(), second, job, asWorker)
	if err != nil || c2.Kind != broker.Spent || c2.Revision != c1.Revision || c2.Record.WorkerID != c1.Record.WorkerID {
		t.Errorf("Claim() = %s, %+v, %v; want the lost worker's record", c2.Kind, c2.Entry, err)
	}
	// An attempt that a drain handed back does not count.
	back := c1.Record
	back.Status, back.Returned = protocol.StatusSubmitted, 1
	if _, err := b.WriteRecord(t.Context(), back, c1.Revision); err != nil {
		t.Fatal(err)
	}
	c3, err := b.Claim(t.Context(), second, job, asWorker)
	if err != nil || c3.Kind != broker.Claimed || c3.Record.Attempt != 2 || c3.Prior.Returned != 1 {
		t.Errorf("Claim() = %s, %+v, %v", c3.Kind, c3.Record, err)
	}
	done(t, second)
}

func TestClaimOfAnEndedDelegationIsFinal(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job := newJob()
	d, c := claimed(t, b, w, job)
	rec := canceledRecord(job)
	rec.SessionID = c.Record.SessionID
	final, err := b.WriteRecord(t.Context(), rec, c.Revision)
	if err != nil {
		t.Fatal(err)
	}
	c, err = b.Claim(t.Context(), d, job, asWorker)
	if err != nil || c.Kind != broker.Final || c.Revision != final.Revision {
		t.Errorf("Claim() = %s, %+v, %v", c.Kind, c.Entry, err)
	}
	done(t, d)
}

// TestClaimOfAnEndedDelegationByAnEarlierDelivery leaves it to the later one, which
// completes it.
func TestClaimOfAnEndedDelegationByAnEarlierDelivery(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job := newJob()
	d, c := claimed(t, b, w, job)
	rec := canceledRecord(job)
	rec.SessionID, rec.Delivery = c.Record.SessionID, d.Mark()
	rec.Delivery.Count++
	if _, err := b.WriteRecord(t.Context(), rec, c.Revision); err != nil {
		t.Fatal(err)
	}
	if c, err := b.Claim(t.Context(), d, job, asWorker); err != nil || c.Kind != broker.Earlier {
		t.Errorf("Claim() = %s, %v; want earlier", c.Kind, err)
	}
	done(t, d)
}

func TestAJobThatDisagreesIsADeadLetterAndChangesNothing(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job := newJob()
	dispatched(t, b, job)
	d := w.next(t)
	defer done(t, d)
	for member, change := range map[string]func(*protocol.Job){
		"task_id":    func(j *protocol.Job) { j.TaskID = protocol.NewTaskID() },
		"pool":       func(j *protocol.Job) { j.Pool = "gpu" },
		"lane":       func(j *protocol.Job) { j.Origin = protocol.OriginSchedule },
		"context_id": func(j *protocol.Job) { j.Message = protocol.NewUserMessage(protocol.NewContextID(), "x") },
		"capsule":    func(j *protocol.Job) { j.Capsule.Digest = protocol.DigestOf([]byte("other")) },
	} {
		other := job
		change(&other)
		_, err := b.Claim(t.Context(), d, other, asWorker)
		var dead *broker.DeadJobError
		if !errors.As(err, &dead) || dead.Reason != protocol.DeadMismatch {
			t.Errorf("%s: Claim() = %v, want a mismatch", member, err)
		}
	}
	e, err := b.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
	if err != nil || e.Record.Status != protocol.StatusSubmitted {
		t.Errorf("record is %+v, %v; want submitted", e.Record, err)
	}
}

func TestAJobWhoseRecordIsGoneIsADeadLetter(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job := newJob()
	dispatched(t, b, job)
	kv, err := testenv.JetStream(t, s.URL()).KeyValue(t.Context(), "starling-delegations")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), protocol.LedgerKey(job.Spawner.SessionID, job.DelegationID)); err != nil {
		t.Fatal(err)
	}
	d := w.next(t)
	defer done(t, d)
	_, err = b.Claim(t.Context(), d, job, asWorker)
	var dead *broker.DeadJobError
	if !errors.As(err, &dead) || dead.Reason != protocol.DeadNoRecord {
		t.Errorf("Claim() = %v, want no-record", err)
	}
}

func TestAJobPublishedByHandGetsItsRecord(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	entry, err := b.PushCapsule(t.Context(), protocol.DefaultManifest("echo", "1.0.0"), []byte("\x00asm\x01\x00\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	index, err := js.KeyValue(t.Context(), "starling-capsule-index")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := index.Put(t.Context(), protocol.CapsuleKey("echo", "2.0.0"), []byte(`{"digest":"none"}`)); err != nil {
		t.Fatal(err)
	}
	w := take(t, b, broker.TakerConfig{Slots: 1})
	for name, tt := range map[string]struct {
		version string
		want    protocol.Digest
	}{
		"pinned from the index":                  {"1.0.0", entry.Digest},
		"of an entry that cannot be read":        {"2.0.0", ""},
		"of an unknown capsule without a digest": {"9.9.9", ""},
	} {
		job := newJob(func(j *protocol.Job) { j.Capsule.Version, j.Capsule.Digest = tt.version, "" })
		body, err := job.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "starling.jobs.default.user." + string(job.TaskID), Data: body}); err != nil {
			t.Fatal(err)
		}
		d := w.next(t)
		if _, ok := d.LedgerRevision(); ok {
			t.Errorf("%s: LedgerRevision() is there", name)
		}
		c, err := b.Claim(t.Context(), d, job, asWorker)
		if err != nil || c.Kind != broker.Claimed || c.Record.Capsule.Digest != tt.want || c.Record.Attempt != 1 {
			t.Errorf("%s: Claim() = %s, %+v, %v; want digest %q", name, c.Kind, c.Record, err, tt.want)
		}
		// The same delegation again finds it.
		if again, err := b.Claim(t.Context(), d, job, asWorker); err != nil || again.Kind != broker.Earlier {
			t.Errorf("%s: Claim() again = %s, %v", name, again.Kind, err)
		}
		done(t, d)
	}
}

func TestManyClaimsOfOneDeliveryHaveOneWinner(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	for range 20 {
		job := newJob()
		dispatched(t, b, job)
		d := w.next(t)
		kinds := make(chan broker.ClaimKind, 8)
		for range cap(kinds) {
			go func() {
				c, err := b.Claim(context.Background(), d, job, asWorker)
				if err != nil {
					t.Error(err)
				}
				kinds <- c.Kind
			}()
		}
		won := 0
		for range cap(kinds) {
			switch kind := <-kinds; kind {
			case broker.Claimed:
				won++
			case broker.Earlier:
			default:
				t.Errorf("a claim is %s", kind)
			}
		}
		if won != 1 {
			t.Errorf("%d claims won, want 1", won)
		}
		done(t, d)
	}
}

func TestTheMirrorTellsEveryWrite(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	nc := testenv.JetStream(t, s.URL()).Conn()
	job := newJob()
	sub, err := nc.SubscribeSync("starling.delegations." + string(job.Spawner.SessionID) + ".*")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	w := take(t, b, broker.TakerConfig{Slots: 1})
	d, c := claimed(t, b, w, job)
	if _, err := b.WriteRecord(t.Context(), canceledRecord(job), c.Revision); err != nil {
		t.Fatal(err)
	}
	for _, want := range []protocol.Status{protocol.StatusSubmitted, protocol.StatusWorking, protocol.StatusTerminated} {
		m, err := sub.NextMsg(within)
		if err != nil {
			t.Fatal(err)
		}
		var rec protocol.Record
		if err := json.Unmarshal(m.Data, &rec); err != nil || rec.Status != want {
			t.Errorf("the mirror tells %s, %v; want %s", rec.Status, err, want)
		}
	}
	done(t, d)
}

// TestAStaleReplicaMakesNoDeadLetter lets a worker read from a replica that was cut
// off before the record was written, as the other side of a partition is: the job is
// not given up, nothing is changed, and the claim works when the replica is back.
func TestAStaleReplicaMakesNoDeadLetter(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	proxy := testenv.Proxy(t, s.URL())
	behind := connected(t, proxy.URL())
	w := take(t, behind, broker.TakerConfig{Slots: 1})
	job := newJob()
	proxy.HideStored("$KV.starling-delegations." + string(job.Spawner.SessionID) + "." + string(job.DelegationID))
	before := dispatched(t, b, job)
	d := w.next(t)
	defer done(t, d)
	_, err := behind.Claim(t.Context(), d, job, asWorker)
	wantError(t, "Claim() over a stale read", err, broker.ErrUnavailable, "behind")
	e, err := b.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
	if err != nil || e.Revision != before.Revision {
		t.Errorf("the record is %+v, %v, want it unchanged at revision %d", e, err, before.Revision)
	}
	proxy.HideStored("")
	if _, err := behind.Claim(t.Context(), d, job, asWorker); err != nil {
		t.Errorf("Claim() when the replica is back = %v", err)
	}
}

// TestARecordOlderThanTheJobStaysAsItIs is a job whose revision the ledger never had,
// as after a restore from a backup: a dead letter, and the record is kept.
func TestARecordOlderThanTheJobStaysAsItIs(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 1})
	job := newJob()
	if _, err := b.CreateRecord(t.Context(), job.NewRecord(time.Now())); err != nil {
		t.Fatal(err)
	}
	body, err := job.Encode()
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("starling.jobs." + job.Pool + "." + string(job.Lane()) + "." + string(job.TaskID))
	m.Data = body
	m.Header.Set(protocol.HeaderLedgerRevision, "1000000")
	if _, err := testenv.JetStream(t, s.URL()).PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	d := w.next(t)
	defer done(t, d)
	_, err = b.Claim(t.Context(), d, job, asWorker)
	var dead *broker.DeadJobError
	if !errors.As(err, &dead) || dead.Reason != protocol.DeadNoRecord {
		t.Errorf("Claim() = %v, want no-record", err)
	}
	if e, err := b.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0); err != nil || e.Record.Status != protocol.StatusSubmitted {
		t.Errorf("the record is %+v, %v, want it as it was", e, err)
	}
}
