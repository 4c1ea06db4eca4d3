package broker_test

import (
	"context"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// terminals are the terminal statuses among a task's frames.
func terminals(frames []protocol.ReceivedFrame) []protocol.ReceivedFrame {
	var found []protocol.ReceivedFrame
	for _, f := range frames {
		if f.Terminal() {
			found = append(found, f)
		}
	}
	return found
}

func TestTheTerminalStatusIsMadeFromTheRecord(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	for name, opts := range map[string]broker.TerminalOptions{"by the attempt's worker": {Seq: 1}, "by another": {}} {
		rec := canceledRecord(newJob())
		if err := b.WriteTerminal(t.Context(), rec, opts); err != nil {
			t.Fatalf("WriteTerminal() = %v", err)
		}
		frames := framesOf(t, js, rec.TaskID)
		if len(frames) != 1 {
			t.Fatalf("%s: %d frames, want 1", name, len(frames))
		}
		f := frames[0]
		if f.State != a2a.TaskStateCanceled || f.Text != rec.Ending.Message || f.Seq != opts.Seq || f.Attempt != 1 ||
			f.SessionID != rec.SessionID || !f.Time.Equal(rec.EndedAt.Std()) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestATaskHasOneTerminalStatus(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	rec := canceledRecord(newJob())
	sender := b.NewFrameSender(protocol.Place{TaskID: rec.TaskID, ContextID: rec.ContextID, SessionID: rec.SessionID, Attempt: 1})
	defer sender.Close()
	send(t, sender, progress(0), progress(1))
	flush(t, sender)
	var wg sync.WaitGroup
	for i := range 8 { // as workers that complete from the record do
		wg.Go(func() {
			opts := broker.TerminalOptions{}
			if i == 0 {
				opts = broker.TerminalOptions{Seq: sender.NextSeq(), LastSequence: sender.LastSequence()}
			}
			if err := b.WriteTerminal(context.Background(), rec, opts); err != nil {
				t.Errorf("WriteTerminal() = %v", err)
			}
		})
	}
	wg.Wait()
	if n := len(terminals(framesOf(t, js, rec.TaskID))); n != 1 {
		t.Errorf("%d terminal statuses, want 1", n)
	}
}

func TestALostWorkersLateFrameHidesNoTerminalStatus(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	rec := canceledRecord(newJob())
	late := b.NewFrameSender(protocol.Place{TaskID: rec.TaskID, ContextID: rec.ContextID, SessionID: rec.SessionID, Attempt: 1})
	defer late.Close()
	send(t, late, progress(0))
	flush(t, late)
	if err := b.WriteTerminal(t.Context(), rec, broker.TerminalOptions{}); err != nil {
		t.Fatal(err)
	}
	send(t, late, progress(1)) // its worker has not noticed yet
	flush(t, late)
	if err := b.WriteTerminal(t.Context(), rec, broker.TerminalOptions{}); err != nil {
		t.Fatal(err)
	}
	frames := framesOf(t, js, rec.TaskID)
	if n := len(terminals(frames)); n != 1 || len(frames) != 3 {
		t.Errorf("%d terminal statuses in %d frames, want 1 in 3", n, len(frames))
	}
}

func TestAStaleSequenceIsReadAgain(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	rec := canceledRecord(newJob())
	sender := b.NewFrameSender(protocol.Place{TaskID: rec.TaskID, ContextID: rec.ContextID, SessionID: rec.SessionID, Attempt: 1})
	defer sender.Close()
	send(t, sender, progress(0))
	flush(t, sender)
	stale := sender.LastSequence()
	send(t, sender, progress(1))
	flush(t, sender)
	if err := b.WriteTerminal(t.Context(), rec, broker.TerminalOptions{Seq: 3, LastSequence: stale}); err != nil {
		t.Fatal(err)
	}
	if n := len(terminals(framesOf(t, testenv.JetStream(t, s.URL()), rec.TaskID))); n != 1 {
		t.Errorf("%d terminal statuses, want 1", n)
	}
}

func TestOnlyAFinalRecordEndsATask(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	rec := canceledRecord(newJob())
	rec.Status = protocol.StatusWorking
	wantError(t, "WriteTerminal() of a working record", b.WriteTerminal(t.Context(), rec, broker.TerminalOptions{}), protocol.ErrFrame)
	rec = canceledRecord(newJob())
	rec.Ending = &protocol.Ending{State: a2a.TaskStateWorking}
	wantError(t, "WriteTerminal() of a working state", b.WriteTerminal(t.Context(), rec, broker.TerminalOptions{}), protocol.ErrFrame)
}

func TestOneTerminalStatusWithLostAnswersAndThreeReplicas(t *testing.T) {
	t.Parallel()
	direct, c := onCluster(t)
	p := testenv.Proxy(t, c.Servers[0].URL())
	lossy(p, 0.3)
	buses := []*broker.Bus{direct, connected(t, c.Servers[1].URL()), connected(t, p.URL())}
	js := testenv.JetStream(t, c.URL())
	for range 10 {
		rec := canceledRecord(newJob())
		var wg sync.WaitGroup
		for _, b := range buses {
			wg.Go(func() {
				if err := b.WriteTerminal(context.Background(), rec, broker.TerminalOptions{}); err != nil {
					t.Errorf("WriteTerminal() = %v", err)
				}
			})
		}
		wg.Wait()
		if n := len(terminals(framesOf(t, js, rec.TaskID))); n != 1 {
			t.Errorf("%d terminal statuses, want 1", n)
		}
	}
}
