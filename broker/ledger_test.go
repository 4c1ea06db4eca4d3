package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// working is the record after a claim by a session.
func working(rec protocol.Record, session protocol.SessionID) protocol.Record {
	rec.Status, rec.SessionID, rec.WorkerID = protocol.StatusWorking, session, protocol.NewWorkerID()
	rec.Attempt++
	return rec
}

func TestWriteRecordIsFencedByTheRevision(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	job := newJob()
	created, err := b.CreateRecord(t.Context(), job.NewRecord(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	first, err := b.WriteRecord(t.Context(), working(created.Record, protocol.NewSessionID()), created.Revision)
	if err != nil || first.Revision <= created.Revision {
		t.Fatalf("WriteRecord() = %+v, %v", first, err)
	}
	_, err = b.WriteRecord(t.Context(), working(created.Record, protocol.NewSessionID()), created.Revision)
	var lost *broker.LostError
	if !errors.As(err, &lost) || !errors.Is(err, broker.ErrLost) {
		t.Fatalf("WriteRecord() at an old revision = %v, want a LostError", err)
	}
	if lost.Current.Revision != first.Revision || lost.Current.Record.SessionID != first.Record.SessionID {
		t.Errorf("Current = %+v, want %+v", lost.Current, first)
	}
	// The same write again is the writer's own, whatever happened to the answer.
	again, err := b.WriteRecord(t.Context(), first.Record, created.Revision)
	if err != nil || again.Revision != first.Revision {
		t.Errorf("WriteRecord() again = %+v, %v; want revision %d", again, err, first.Revision)
	}
	_, err = b.CreateRecord(t.Context(), job.NewRecord(time.Now()))
	if !errors.As(err, &lost) || lost.Current.Revision != first.Revision {
		t.Errorf("CreateRecord() over a working one = %v", err)
	}
}

func TestACrashReportedForASessionIsNotItsOwnOutcome(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	rec := canceledRecord(newJob())
	start := rec
	start.Status, start.Outcome, start.Ending = protocol.StatusWorking, nil, nil
	e, err := b.CreateRecord(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.WriteRecord(t.Context(), rec, e.Revision); err != nil {
		t.Fatal(err)
	}
	mine := rec
	outcome := *rec.Outcome
	outcome.DurationMS = 7
	mine.Outcome = &outcome
	_, err = b.WriteRecord(t.Context(), mine, e.Revision)
	wantError(t, "WriteRecord()", err, broker.ErrLost)
}

func TestReadRecord(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	job := newJob()
	e, err := b.CreateRecord(t.Context(), job.NewRecord(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a revision that comes later is waited for", func(t *testing.T) {
		t.Parallel()
		read := make(chan error, 1)
		go func() {
			got, err := b.ReadRecord(context.Background(), job.Spawner.SessionID, job.DelegationID, e.Revision+1)
			if err == nil && got.Record.Status != protocol.StatusWorking {
				err = fmt.Errorf("status %s", got.Record.Status)
			}
			read <- err
		}()
		if _, err := b.WriteRecord(t.Context(), working(e.Record, protocol.NewSessionID()), e.Revision); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err != nil {
			t.Error(err)
		}
	})
	t.Run("none is read again for 2 s", func(t *testing.T) {
		t.Parallel()
		other := newJob()
		for atLeast, least := range map[uint64]time.Duration{0: 0, 5: 2 * time.Second} {
			start := time.Now()
			_, err := b.ReadRecord(t.Context(), other.Spawner.SessionID, other.DelegationID, atLeast)
			wantError(t, "ReadRecord()", err, broker.ErrNoRecord, string(other.DelegationID))
			if took := time.Since(start); took < least || took > least+3*time.Second {
				t.Errorf("at least %d: it took %s, want about %s", atLeast, took, least)
			}
		}
	})
	t.Run("bad ids", func(t *testing.T) {
		t.Parallel()
		_, err := b.ReadRecord(t.Context(), "a.b", job.DelegationID, 0)
		wantError(t, "ReadRecord()", err, protocol.ErrName, "session_id")
		_, err = b.ReadRecord(t.Context(), job.Spawner.SessionID, ">", 0)
		wantError(t, "ReadRecord()", err, protocol.ErrName, "delegation_id")
	})
}

func TestARecordThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	for name, body := range map[string]string{"no JSON": "{", "another's": `{"delegation_id":"dlg_0","task_id":"t","spawner":{"session_id":"s"},"status":"submitted"}`} {
		job := newJob()
		key := protocol.LedgerKey(job.Spawner.SessionID, job.DelegationID)
		if _, err := js.Publish(t.Context(), "$KV.starling-delegations."+key, []byte(body)); err != nil {
			t.Fatal(err)
		}
		_, err := b.ReadRecord(t.Context(), job.Spawner.SessionID, job.DelegationID, 0)
		wantError(t, name, err, protocol.ErrRecord)
	}
}

func TestARecordOverTheLedgersBoundIsRefused(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	rec := newJob().NewRecord(time.Now())
	rec.Workdir = "/" + strings.Repeat("x", 64<<10)
	_, err := b.CreateRecord(t.Context(), rec)
	wantError(t, "CreateRecord()", err, protocol.ErrRecord)
	rec.Workdir = "/" + strings.Repeat("x", 60<<10)
	if _, err := b.CreateRecord(t.Context(), rec); err != nil {
		t.Errorf("CreateRecord() below the bound = %v", err)
	}
}

func TestWriteRecordEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL())
	p.Down()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	rec := newJob().NewRecord(time.Now())
	_, err := b.CreateRecord(ctx, rec)
	wantError(t, "CreateRecord()", err, broker.ErrUnavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("CreateRecord() = %v, want the context's cause in it", err)
	}
	p.Resume()
	if _, err := b.CreateRecord(t.Context(), rec); err != nil {
		t.Errorf("CreateRecord() again = %v", err)
	}
}

// race lets two writers with lost answers write over one record, many times:
// exactly one must win, and both must agree on which.
func race(t *testing.T, buses [2]*broker.Bus, rounds int) {
	t.Helper()
	for round := range rounds {
		e, err := buses[0].CreateRecord(t.Context(), newJob().NewRecord(time.Now()))
		if err != nil {
			t.Fatal(err)
		}
		var won [2]protocol.SessionID
		var wg sync.WaitGroup
		for i, b := range buses {
			wg.Go(func() {
				session := protocol.NewSessionID()
				_, err := b.WriteRecord(context.Background(), working(e.Record, session), e.Revision)
				switch {
				case err == nil:
					won[i] = session
				case !errors.Is(err, broker.ErrLost):
					t.Errorf("round %d: WriteRecord() = %v", round, err)
				}
			})
		}
		wg.Wait()
		if (won[0] == "") == (won[1] == "") {
			t.Fatalf("round %d: winners %q", round, won)
		}
		now, err := buses[0].ReadRecord(t.Context(), e.Record.Spawner.SessionID, e.Record.DelegationID, e.Revision+1)
		if err != nil {
			t.Fatal(err)
		}
		if winner := won[0] + won[1]; now.Record.SessionID != winner {
			t.Fatalf("round %d: the record is %s's, the winner was told to be %s", round, now.Record.SessionID, winner)
		}
	}
}

// lossy loses a share of all answers to writes, of one half at most.
func lossy(p *testenv.FaultProxy, share float64) {
	p.DropAnswers(func(subject string, payload []byte) bool {
		return pubAcks(subject, payload) && rand.Float64() < share
	})
}

// TestAStaleReplicaMakesNoExpiredRecord writes over a record that another has changed,
// through a replica that never had it: the leader's refusal says that it is there, so
// the write is undecided until it can be read, and then lost.
func TestAStaleReplicaMakesNoExpiredRecord(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	job := newJob()
	first, err := b.CreateRecord(t.Context(), job.NewRecord(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := b.WriteRecord(t.Context(), canceledRecord(job), first.Revision)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testenv.Proxy(t, s.URL())
	behind := connected(t, proxy.URL())
	proxy.HideStored("$KV.starling-delegations." + job.NewRecord(time.Now()).Key())
	working := first.Record
	working.Status, working.Attempt, working.SessionID = protocol.StatusWorking, 1, protocol.NewSessionID()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // longer than a record may be missing
	defer cancel()
	_, err = behind.WriteRecord(ctx, working, first.Revision)
	wantError(t, "WriteRecord() over a stale read", err, broker.ErrUnavailable)
	proxy.HideStored("")
	var lost *broker.LostError
	if _, err = behind.WriteRecord(t.Context(), working, first.Revision); !errors.As(err, &lost) || lost.Current.Revision != theirs.Revision {
		t.Errorf("WriteRecord() when the replica is back = %v, want it lost to revision %d", err, theirs.Revision)
	}
}

func TestTwoRacersHaveOneWinner(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	race(t, [2]*broker.Bus{b, connected(t, s.URL())}, 200)
}

func TestTwoRacersWithLostAnswersHaveOneWinner(t *testing.T) {
	t.Parallel()
	_, s := initialized(t)
	p := testenv.Proxy(t, s.URL())
	buses := [2]*broker.Bus{connected(t, p.URL()), connected(t, p.URL())}
	lossy(p, 0.3)
	race(t, buses, 5) // every lost answer is 2 s
}

func TestTwoRacersOnThreeReplicasHaveOneWinner(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	race(t, [2]*broker.Bus{b, connected(t, c.Servers[1].URL())}, 50)
}
