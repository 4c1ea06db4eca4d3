package broker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// quick is a bus whose jobs come back after a second of silence.
func quick(t *testing.T) (*broker.Bus, *testenv.Server) {
	t.Helper()
	s := testenv.NATS(t)
	b := connected(t, s.URL())
	if err := b.Init(t.Context(), broker.InitConfig{AckWait: time.Second}); err != nil {
		t.Fatal(err)
	}
	return b, s
}

func TestADeliveryTellsItsJob(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	job := newJob(fromOrigin(protocol.OriginPeer))
	d0, err := b.Dispatch(t.Context(), job, broker.DispatchOptions{AllowUnserved: true, Traceparent: "00-1-2-01"})
	if err != nil {
		t.Fatal(err)
	}
	w := take(t, b, broker.TakerConfig{Slots: 1})
	d := w.next(t)
	defer done(t, d)
	if p, err := d.Place(); err != nil || p != (protocol.JobPlace{Pool: "default", Lane: protocol.LanePeer, Task: job.TaskID}) {
		t.Errorf("Place() = %+v, %v", p, err)
	}
	if got := (protocol.DeliveryMark{Sequence: 1, Count: 1}); d.Mark() != got {
		t.Errorf("Mark() = %+v, want %+v", d.Mark(), got)
	}
	if revision, ok := d.LedgerRevision(); !ok || revision != d0.Revision {
		t.Errorf("LedgerRevision() = %d, %t; want %d", revision, ok, d0.Revision)
	}
	if d.Traceparent() != "00-1-2-01" {
		t.Errorf("Traceparent() = %q", d.Traceparent())
	}
	if got, err := protocol.ParseJob(d.Body()); err != nil || got.DelegationID != job.DelegationID {
		t.Errorf("Body() is %+v, %v", got, err)
	}
}

func TestADeliveryIsSettledOnce(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	w := take(t, b, broker.TakerConfig{Slots: 10})
	ctx := t.Context()
	settle := map[string]func(*broker.Delivery) error{
		"Ack":        func(d *broker.Delivery) error { return d.Ack(ctx) },
		"Nak":        func(d *broker.Delivery) error { return d.Nak(ctx) },
		"Drop":       func(d *broker.Delivery) error { d.Drop(); return nil },
		"DeadLetter": func(d *broker.Delivery) error { return d.DeadLetter(ctx, protocol.DeadUnreadable, "no") },
	}
	for first, f := range settle {
		t.Run(first, func(t *testing.T) {
			dispatched(t, b, newJob())
			d := w.next(t)
			if err := f(d); err != nil {
				t.Fatalf("%s() = %v", first, err)
			}
			if first == "Nak" { // it is there again
				again := w.next(t)
				done(t, again)
			}
			for second, g := range settle {
				if second != "Drop" {
					wantError(t, first+", then "+second, g(d), broker.ErrSettled)
				}
			}
			wantError(t, first+", then Extend", d.Extend(ctx), broker.ErrSettled)
			d.Release()
			d.Release()
			if n := w.taker.Busy(); n != 0 {
				t.Errorf("Busy() = %d, want 0", n)
			}
		})
	}
}

func TestASilentWorkerLosesItsJob(t *testing.T) {
	t.Parallel()
	b, _ := quick(t)
	w := take(t, b, broker.TakerConfig{Slots: 2})
	dispatched(t, b, newJob())
	first := w.next(t)
	second := w.next(t)
	if !second.Mark().After(first.Mark()) {
		t.Errorf("marks are %+v, then %+v: the second is no later one", first.Mark(), second.Mark())
	}
	// JetStream confirms whatever the loser says: the claim is the fence.
	if err := first.Extend(t.Context()); err != nil {
		t.Errorf("Extend() of the loser = %v", err)
	}
	first.Drop()
	first.Release()
	done(t, second)
}

func TestExtendKeepsAJob(t *testing.T) {
	t.Parallel()
	b, _ := quick(t)
	w := take(t, b, broker.TakerConfig{Slots: 2})
	dispatched(t, b, newJob())
	d := w.next(t)
	for range 10 {
		if err := d.Extend(t.Context()); err != nil {
			t.Fatalf("Extend() = %v", err)
		}
		w.none(t, w.taker.AckWait()/4)
	}
	done(t, d)
}

func TestExtendSaysWhenTheBusIsAway(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	w := take(t, connected(t, p.URL()), broker.TakerConfig{Slots: 1})
	dispatched(t, direct, newJob())
	d := w.next(t)
	p.Stall(testenv.Both)
	start := time.Now()
	wantError(t, "Extend()", d.Extend(t.Context()), broker.ErrUnavailable)
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("Extend() took %s, want about 2s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantError(t, "Ack()", d.Ack(ctx), broker.ErrUnavailable)
	p.Resume()
	done(t, d) // an Ack that was not confirmed may be repeated
}

func TestAckSurvivesLostConfirmations(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	w := take(t, connected(t, p.URL()), broker.TakerConfig{Slots: 1})
	dispatched(t, direct, newJob())
	d := w.next(t)
	lost := false
	p.DropAnswers(func(_ string, payload []byte) bool { // the confirmation of an ack is empty
		if len(payload) == 0 && !lost {
			lost = true
			return true
		}
		return false
	})
	done(t, d)
	if n := streamState(t, testenv.JetStream(t, s.URL()), jobsStream).Msgs; n != 0 {
		t.Errorf("%d jobs stay, want none", n)
	}
	if p.Dropped() != 1 {
		t.Errorf("%d confirmations lost, want 1", p.Dropped())
	}
}

func TestNakGivesTheJobBackAtOnce(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t) // ack wait 30 s
	w := take(t, b, broker.TakerConfig{Slots: 1})
	dispatched(t, b, newJob())
	first := w.next(t)
	if err := first.Nak(t.Context()); err != nil {
		t.Fatalf("Nak() = %v", err)
	}
	first.Release()
	second := w.next(t)
	if want := (protocol.DeliveryMark{Sequence: first.Mark().Sequence, Count: first.Mark().Count + 1}); second.Mark() != want {
		t.Errorf("Mark() = %+v, want %+v", second.Mark(), want)
	}
	done(t, second)
}

func TestADeadLetterHoldsTheJobAndTheReason(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	w := take(t, b, broker.TakerConfig{Slots: 1})
	for name, task := range map[string]string{"a task of the usual form": "tsk_1", "one that is no name": "tsk$é" + strings.Repeat("x", 80)} {
		m := nats.NewMsg("starling.jobs.default.bg." + task)
		m.Data = []byte("{ no job")
		m.Header.Set("Nats-Expected-Last-Subject-Sequence", "0")
		m.Header.Set("Nats-Expected-Stream", jobsStream)
		m.Header.Set("traceparent", "00-1-2-01")
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		d := w.next(t)
		if err := d.DeadLetter(t.Context(), protocol.DeadUnreadable, "bad job:\nit is not JSON"); err != nil {
			t.Fatalf("%s: DeadLetter() = %v", name, err)
		}
		d.Release()
		letters := storedOn(t, js, "STARLING_DLQ", "starling.dlq.default."+task)
		if len(letters) != 1 {
			t.Fatalf("%s: %d letters, want 1", name, len(letters))
		}
		if got := string(letters[0].Data); got != "{ no job" {
			t.Errorf("%s: body = %q", name, got)
		}
		for header, want := range map[string]string{
			"Starling-Reason": "unreadable", "Starling-Detail": "bad job: it is not JSON", "traceparent": "00-1-2-01",
			"Nats-Expected-Stream": "",
		} {
			if got := letters[0].Header.Get(header); got != want {
				t.Errorf("%s: header %s = %q, want %q", name, header, got, want)
			}
		}
	}
	if n := streamState(t, js, jobsStream).Msgs; n != 0 {
		t.Errorf("%d jobs stay, want none", n)
	}
}
