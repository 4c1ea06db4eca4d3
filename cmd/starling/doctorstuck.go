package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"starling/broker"
	"starling/protocol"
)

// stuck are delegations that nothing will end.
type stuck struct {
	vanished    []protocol.Record // submitted, without a job
	orphaned    []protocol.Record // working, without a job and a worker
	overdue     []protocol.Record // submitted, with a job whose deadline passed
	undelivered []protocol.Record
	unreadable  int
}

// ledger looks for delegations that nothing brings forward.
func (x *examination) ledger(ctx context.Context) {
	s, err := x.stuck(ctx)
	if err != nil {
		x.failed("delegations", err)
		return
	}
	for _, kind := range []struct {
		records []protocol.Record
		status  verdict
		what    string
		fix     string
	}{
		{
			s.vanished, problem, "submitted without a job, which somebody removed",
			"dispatch the same again (" + x.bus.Command("dispatch --session S --delegation D") + "), or end it with " + x.bus.Command("cancel"),
		},
		{s.orphaned, problem, "working without a worker and without a job", x.bus.Command("cancel") + " ends it"},
		{
			s.overdue, warning, "queued past the deadline: nobody took the job in time",
			"a worker of the pool ends them without running them, as it does when it takes them; " + x.bus.Command("cancel") + " ends one now",
		},
		{s.undelivered, warning, "ended, and the parent was not told", x.bus.Command("ps --undelivered") + " says why, " + x.bus.Command("redeliver") + " tells it"},
	} {
		if len(kind.records) > 0 {
			x.say("delegations", kind.status, kind.fix, "%d %s: %s", len(kind.records), kind.what, named(kind.records))
		}
	}
	if s.unreadable > 0 {
		x.say("delegations", warning, "their jobs become dead letters; look with `nats kv get "+x.bus.Namespace().LedgerBucket()+"`",
			"%d records cannot be read by this version", s.unreadable)
	}
	if len(s.vanished)+len(s.orphaned)+len(s.overdue)+len(s.undelivered)+s.unreadable == 0 {
		x.say("delegations", fine, "", "none is stuck, every parent that asked was told")
	}
}

func named(records []protocol.Record) string {
	var keys []string
	for i, rec := range records {
		if i == maxNamed {
			keys = append(keys, "…")
			break
		}
		keys = append(keys, rec.Key())
	}
	return joined(keys)
}

// stuck reads the ledger.
func (x *examination) stuck(ctx context.Context) (stuck, error) {
	var s stuck
	var open []protocol.Record
	looked := 0
	for rec, err := range x.bus.Delegations(ctx) {
		switch {
		case errors.Is(err, protocol.ErrRecord):
			s.unreadable++
		case err != nil:
			return s, err
		case rec.Status.Final():
			if told(rec, nil) == "failed" {
				s.undelivered = append(s.undelivered, rec)
			}
		default:
			if rec.Status == protocol.StatusSubmitted && looked < maxDeadlines {
				looked++
				late, err := x.overdue(ctx, rec)
				if err != nil {
					return s, err
				}
				if late {
					s.overdue = append(s.overdue, rec)
				}
			}
			if time.Since(rec.SubmittedAt.Std()) > lostAfter {
				open = append(open, rec)
			}
		}
	}
	if len(open) == 0 {
		return s, nil
	}
	err := x.jobless(ctx, open, &s)
	return s, err
}

// overdue reports whether the deadline of a queued job has passed.
func (x *examination) overdue(ctx context.Context, rec protocol.Record) (bool, error) {
	deadline, err := x.bus.JobDeadline(ctx, rec)
	return err == nil && !deadline.IsZero() && time.Now().After(deadline.Std().Add(overdueAfter)), err
}

// jobless adds the records of open to s whose job is gone and that no worker has.
func (x *examination) jobless(ctx context.Context, open []protocol.Record, s *stuck) error {
	queued, err := x.bus.QueuedJobs(ctx)
	if err != nil {
		return err
	}
	live := map[protocol.WorkerID]bool{}
	for _, w := range x.workers {
		live[w.WorkerID] = true
	}
	for _, rec := range open {
		if queued[rec.TaskID] || rec.Status == protocol.StatusWorking && live[rec.WorkerID] {
			continue
		}
		// It may have ended since its record was read.
		now, err := x.bus.ReadRecord(ctx, rec.Spawner.SessionID, rec.DelegationID, 0)
		if errors.Is(err, broker.ErrNoRecord) || err == nil && now.Record.Status != rec.Status {
			continue
		}
		if err != nil {
			return err
		}
		if there, err := x.bus.JobQueued(ctx, rec); err != nil {
			return err
		} else if there {
			continue
		}
		if rec.Status == protocol.StatusWorking {
			// A server that restarted may have forgotten who works.
			if _, err := x.bus.WorkerStats(ctx, rec.WorkerID); err == nil || errors.Is(err, broker.ErrUnavailable) {
				continue
			}
		}
		if rec.Status == protocol.StatusSubmitted {
			s.vanished = append(s.vanished, rec)
		} else {
			s.orphaned = append(s.orphaned, rec)
		}
	}
	return nil
}

func (x *examination) deadLetters(ctx context.Context) {
	reasons := map[protocol.DeadLetterReason]int{}
	n := 0
	for letter, err := range x.bus.DeadLetters(ctx, "") {
		if err != nil {
			x.failed("dead letters", err)
			return
		}
		n++
		reasons[letter.Reason]++
	}
	if n == 0 {
		x.say("dead letters", fine, "", "none")
		return
	}
	text := ""
	for _, reason := range []protocol.DeadLetterReason{
		protocol.DeadUnreadable, protocol.DeadMismatch, protocol.DeadNoRecord, protocol.DeadAttemptsSpent,
	} {
		if reasons[reason] > 0 {
			text += fmt.Sprintf(", %d %s", reasons[reason], reason)
		}
	}
	x.say("dead letters", warning, x.bus.Command("dlq ls")+" lists them; show, retry or drop each", "%d%s", n, text)
}
