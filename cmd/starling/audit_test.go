package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// auditor counts what ledger, frames, doors, mirror and queue hold of delegations
// that have ended, and names every number that is not as docs/guarantees.md
// promises. What faults excuse is said before: lost, hurt and closed.
type auditor struct {
	bus    *broker.Bus
	url    string
	mirror *mirrored                      // nil: not asked
	door   *testenv.RecordingDoor         // where the parents listen; nil: book says
	book   func() []bookedPost            // what the doors were told; nil: door took all it got
	faults map[protocol.WorkerID][]misery // of workers that may lose a task, or tell a parent twice
	pauses map[protocol.WorkerID][]misery // of workers that may tell a parent twice for that alone
	killed map[protocol.WorkerID]time.Time
	// redeliveries are when the bus may deliver a job of a live worker again.
	redeliveries []misery
	closed       string // why the door may not have heard; "": it has
	// unheard is why the door of a job that no post reached did not hear; nil: nothing excuses it.
	unheard func(protocol.Job, protocol.Record) string
	// fits is what is wrong with the outcome of a job and with what its last attempt said; nil: not asked.
	fits func(protocol.Job, protocol.Record, *attemptFrames) string
	// lapsed says of which delegations a worker noticed that it could not renew them, or
	// that another has them; nil: nobody knows.
	lapsed func() map[protocol.DelegationID]bool
	known  map[protocol.DelegationID]bool // what it said
	spent  map[protocol.TaskID]bool       // a dead letter is due: no attempt was left
	counts map[string]int
	told   []string // details of what is wrong, a line each
	blamed []protocol.DelegationID
}

// misery is what was done to a worker.
type misery struct {
	why      string
	from, to time.Time // zero: any time
}

// The audit's words.
const (
	missing      = "missing outcomes"
	doubled      = "delegations with more than one outcome"
	unfit        = "outcomes that the job cannot have"
	holes        = "attempts with holes"
	lackFlying   = "lost attempts that lack a frame that was in flight"
	scattered    = "frames more than 256 places behind"
	behind       = "frames stored behind their place"
	storedTwice  = "frames stored twice"
	terminals    = "tasks with other than one terminal frame"
	otherEnd     = "terminal frames that are not the record's"
	afterEnd     = "frames of a lost worker behind the end"
	early        = "frames that their own worker's end came before"
	unclaimed    = "attempts that the record does not know"
	ranTwice     = "attempts that two guests ran"
	unreasoned   = "attempts whose worker was not lost"
	otherID      = "posts with another id"
	otherStory   = "posts with another story"
	endedTold    = "parents told of what they ended"
	untold       = "untold without a reason"
	twiceNoCause = "told twice without a reason"
	letters      = "dead letters without a reason"
	noLetter     = "spent attempts without a dead letter"
	badResult    = "large results that cannot be read"
	leftOver     = "jobs left in the stream"
)

// wrong are the counts that must be 0. That a frame is stored twice or behind its
// place, that one of a lost worker comes behind the end or not at all, is allowed by docs/protocol.md, section
// 7, and is printed only: observers put it right.
var wrong = []string{
	missing, doubled, unfit, holes, scattered, terminals, otherEnd, early, unclaimed, ranTwice, unreasoned, otherID, otherStory, endedTold,
	untold, twiceNoCause, letters, noLetter, badResult, leftOver,
}

// lost says that a worker may have lost tasks.
func (a *auditor) lost(worker, why string) { a.hurt(worker, why, time.Time{}, time.Time{}) }

// hurt says that a worker may have lost the tasks that it had at some time between
// from and to.
func (a *auditor) hurt(worker, why string, from, to time.Time) {
	if a.faults == nil {
		a.faults = make(map[protocol.WorkerID][]misery)
	}
	id := protocol.WorkerID(worker)
	a.faults[id] = append(a.faults[id], misery{why, from, to})
}

// paused says that a worker stood still between from and to, for less than the ack
// wait: it lost no task, and may not have heard a door that answered.
func (a *auditor) paused(worker string, from, to time.Time) {
	if a.pauses == nil {
		a.pauses = make(map[protocol.WorkerID][]misery)
	}
	id := protocol.WorkerID(worker)
	a.pauses[id] = append(a.pauses[id], misery{"it stood still longer than it waits for an answer", from, to})
}

// died says that a worker was killed.
func (a *auditor) died(worker string, at time.Time) {
	if a.killed == nil {
		a.killed = make(map[protocol.WorkerID]time.Time)
	}
	a.killed[protocol.WorkerID(worker)] = at
}

// deliversAgain says that the bus may have delivered jobs of live workers again
// between from and to.
func (a *auditor) deliversAgain(why string, from, to time.Time) {
	a.redeliveries = append(a.redeliveries, misery{why, from, to})
}

// check audits, prints the table and fails the test on what is wrong.
func (a *auditor) check(t *testing.T, dispatched []protocol.Job) {
	t.Helper()
	// A cluster that was hurt a moment ago may not answer yet.
	testenv.Eventually(t, 2*time.Minute, func() error { return a.audit(t.Context(), dispatched) })
	t.Logf("\n%s", a.table())
	for _, bad := range wrong {
		if a.counts[bad] != 0 {
			t.Errorf("%s: %d, want 0", bad, a.counts[bad])
		}
	}
	for _, line := range a.told[:min(20, len(a.told))] {
		t.Log(line)
	}
}

// audit fills counts. It is an error when the bus cannot be asked.
func (a *auditor) audit(ctx context.Context, dispatched []protocol.Job) error {
	a.counts, a.told, a.blamed = map[string]int{"dispatched": len(dispatched)}, nil, nil
	a.spent = make(map[protocol.TaskID]bool)
	if a.lapsed != nil {
		a.known = a.lapsed()
	}
	frames, err := allFrames(ctx, a.url)
	if err != nil {
		return err
	}
	posts := a.booked()
	jobs := make(map[protocol.TaskID]protocol.Job)
	for _, job := range dispatched {
		jobs[job.TaskID] = job
		entry, err := a.bus.ReadRecord(ctx, job.Spawner.SessionID, job.DelegationID, 0)
		if err != nil || !entry.Record.Status.Final() {
			a.bad(missing, job, "%v %v", entry.Record.Status, err)
			continue
		}
		a.record(job, entry.Record)
		a.frames(job, entry.Record, frames[job.TaskID])
		a.posts(job, entry.Record, posts[job.DelegationID])
		if err := a.result(ctx, job, entry.Record); err != nil {
			return err
		}
	}
	if err := a.letters(ctx, jobs); err != nil {
		return err
	}
	left, err := jobsIn(ctx, a.url)
	a.counts[leftOver] = int(left)
	return err
}

func (a *auditor) bad(what string, job protocol.Job, format string, args ...any) {
	a.counts[what]++
	a.told = append(a.told, fmt.Sprintf("%s: %s of %s, %s: ", what, job.DelegationID, job.Capsule, job.TaskID)+fmt.Sprintf(format, args...))
	a.blamed = append(a.blamed, job.DelegationID)
}

func (a *auditor) record(job protocol.Job, rec protocol.Record) {
	a.counts["outcome "+string(rec.Status)]++
	a.counts["attempts"] += rec.Attempt
	if rec.Attempt > 1 {
		a.counts["with more than one attempt"]++
	}
	if a.mirror != nil && a.mirror.stories(job.DelegationID) > 1 {
		a.bad(doubled, job, "the mirror told several")
	}
	if m := spentAttempts.FindStringSubmatch(rec.Outcome.Detail); m != nil && rec.Status == protocol.StatusCrashed {
		a.spent[job.TaskID] = true
		if rec.AttemptsLeft(job.MaxAttempts) {
			a.bad(unfit, job, "%s, with attempts left", rec.Outcome.Detail)
		}
		if a.why(job, protocol.WorkerID(m[1]), rec.StartedAt.Std(), rec.EndedAt.Std()) == "" {
			a.bad(unreasoned, job, "%s", rec.Outcome.Detail)
		}
	}
}

// result reads a result that is in the object store.
func (a *auditor) result(ctx context.Context, job protocol.Job, rec protocol.Record) error {
	if rec.Outcome.ResultObject == nil {
		return nil
	}
	a.counts["large results"]++
	err := a.bus.FetchResult(ctx, *rec.Outcome.ResultObject, io.Discard)
	if errors.Is(err, broker.ErrUnavailable) {
		return err
	}
	if err != nil {
		a.bad(badResult, job, "%v", err)
	}
	return nil
}

// letters judges the dead letters of the jobs.
func (a *auditor) letters(ctx context.Context, jobs map[protocol.TaskID]protocol.Job) error {
	found := make(map[protocol.TaskID]bool)
	for letter, err := range a.bus.DeadLetters(ctx, "") {
		if err != nil {
			return err
		}
		job, ours := jobs[letter.TaskID]
		switch {
		case !ours:
		case letter.Reason == protocol.DeadAttemptsSpent && a.spent[letter.TaskID]:
			found[letter.TaskID] = true
			a.counts["dead letters of spent attempts"]++
		default:
			a.bad(letters, job, "%s %s", letter.Reason, letter.Detail)
		}
	}
	for task := range a.spent {
		if !found[task] {
			a.bad(noLetter, jobs[task], "none")
		}
	}
	return nil
}

// why is what excuses a worker that lost a delegation which it had between from and
// to.
func (a *auditor) why(job protocol.Job, worker protocol.WorkerID, from, to time.Time) string {
	for _, m := range a.faults[worker] {
		if m.from.IsZero() || !m.from.After(to) && !m.to.Before(from) {
			return m.why
		}
	}
	if a.known[job.DelegationID] {
		return "it could not be renewed in time"
	}
	// Acks are not fenced, so a worker learns that its job was delivered again when it
	// writes the record, unless it is killed before.
	if killed, ok := a.killed[worker]; ok && !killed.Before(to) && killed.Sub(to) < unaware {
		for _, m := range a.redeliveries {
			if !m.from.After(to) && !m.to.Before(latest(from, to.Add(-unaware))) {
				return m.why + ", and it was killed before it knew"
			}
		}
	}
	return ""
}

// unaware is how long a worker may not know that it lost a job: as long as guests run.
const unaware = 20 * time.Second

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// table is all counts, what must be 0 among them.
func (a *auditor) table() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	names := slices.Clone(wrong)
	for name := range a.counts {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(table, "%s\t%d\n", name, a.counts[name])
	}
	_ = table.Flush()
	return out.String()
}
