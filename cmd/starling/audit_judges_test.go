package main

import (
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"starling/protocol"
	"starling/testenv"
)

// TestTheAuditJudges gives the audit what a fleet would have to do wrong, and what
// faults excuse.
func TestTheAuditJudges(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	job := newJob(protocol.CapsuleEntry{Manifest: protocol.Manifest{Name: "hello", Version: "1.0.0"}}, "x", nil, nil)
	job.MaxAttempts, job.Spawner.URL, job.Spawner.Trust = 2, "http://127.0.0.1:1/door", protocol.Trusted
	ended := func(status protocol.Status, change func(*protocol.Record)) protocol.Record {
		rec := protocol.Record{
			DelegationID: job.DelegationID, TaskID: job.TaskID, Status: status, Attempt: 1, WorkerID: "w1",
			StartedAt: protocol.NewTime(at), EndedAt: protocol.NewTime(at.Add(time.Second)),
			Outcome: &protocol.Outcome{DelegationID: job.DelegationID, Status: status, WorkerID: "w1", Delivered: true},
			Ending:  &protocol.Ending{State: a2a.TaskStateCompleted, Message: "session ended"},
		}
		if change != nil {
			change(&rec)
		}
		return rec
	}
	ok := ended(protocol.StatusOK, nil)
	refused := ended(protocol.StatusOK, func(r *protocol.Record) { r.Outcome.Delivered, r.Outcome.DeliveryError = false, "refused" })
	canceled := ended(protocol.StatusTerminated, func(r *protocol.Record) {
		r.Outcome.Delivered, r.Outcome.Detail = false, protocol.ParentEndedDetail
	})
	lost := ended(protocol.StatusCrashed, func(r *protocol.Record) { r.Outcome.Detail = protocol.LostDetail("w0", 1) })
	post := func(rec protocol.Record, after time.Duration, taken, answered bool) bookedPost {
		return bookedPost{Post: testenv.Post{
			At: at.Add(after), MessageID: protocol.CompletionMessageID(job.DelegationID), Text: rec.Outcome.Text(), DelegationID: job.DelegationID,
		}, mood: "says 500", taken: taken, answered: answered}
	}
	told := func(rec protocol.Record, posts ...bookedPost) func(*auditor) {
		return func(a *auditor) { a.posts(job, rec, posts) }
	}
	framed := func(change func(*taskFrames)) func(*auditor) {
		return func(a *auditor) {
			attempt := &attemptFrames{seqs: map[int]int{1: 1, 2: 1}, sessions: map[string]bool{"ses_a": true}, highest: 2}
			f := &taskFrames{terminal: 1, attempts: map[int]*attemptFrames{1: attempt}}
			f.end.State, f.end.Text, f.end.Attempt, f.end.Seq = a2a.TaskStateCompleted, "session ended", 1, 3
			change(f)
			a.frames(job, ok, f)
		}
	}
	again := func(first string, change func(*attemptFrames)) func(*auditor) {
		return func(a *auditor) {
			lost := &attemptFrames{seqs: map[int]int{1: 1, 2: 1, 300: 1}, sessions: map[string]bool{"ses_a": true}, highest: 300}
			for seq := 3; seq < 300; seq++ {
				lost.seqs[seq] = 1
			}
			change(lost)
			next := &attemptFrames{seqs: map[int]int{1: 1}, sessions: map[string]bool{"ses_b": true}, first: first, began: at, highest: 1}
			f := &taskFrames{terminal: 1, attempts: map[int]*attemptFrames{1: lost, 2: next}}
			f.end.State, f.end.Text, f.end.Attempt, f.end.Seq = a2a.TaskStateCompleted, "session ended", 2, 2
			a.frames(job, ended(protocol.StatusOK, func(r *protocol.Record) { r.Attempt = 2 }), f)
		}
	}
	lostW0 := "attempt 2: worker w0 was lost"
	stalled := func(from, to time.Duration, do func(*auditor)) func(*auditor) {
		return func(a *auditor) {
			a.hurt("w1", "it was stalled", at.Add(from), at.Add(to))
			a.hurt("w0", "it was stalled", at.Add(from), at.Add(to))
			do(a)
		}
	}
	killed := func(after, lost time.Duration, do func(*auditor)) func(*auditor) {
		return func(a *auditor) {
			a.deliversAgain("a server was lost", at.Add(lost), at.Add(lost+time.Second))
			a.died("w0", at.Add(after))
			do(a)
		}
	}
	for name, c := range map[string]struct {
		do   func(*auditor)
		want string // one count that is wrong; "": none
	}{
		"told once":                            {told(ok, post(ok, 0, true, true)), ""},
		"the ledger says told, no door":        {told(ok, post(ok, 0, false, false)), untold},
		"not told, no error":                   {told(ended(protocol.StatusOK, func(r *protocol.Record) { r.Outcome.Delivered = false })), untold},
		"refused at every try":                 {told(refused, post(refused, 0, false, false)), ""},
		"no post, and nothing excuses it":      {told(refused), untold},
		"taken and answered, not noted":        {told(refused, post(refused, 0, true, true)), untold},
		"taken, the answer lost":               {told(refused, post(refused, 0, true, false)), ""},
		"told twice":                           {told(ok, post(ok, 0, true, true), post(ok, time.Second, true, true)), twiceNoCause},
		"told twice, an answer lost":           {told(ok, post(ok, 0, true, false), post(ok, time.Second, true, true)), ""},
		"told twice in a stall":                {stalled(0, time.Minute, told(ok, post(ok, 0, true, true), post(ok, time.Second, true, true))), ""},
		"told twice after a stall":             {stalled(-time.Hour, -time.Minute, told(ok, post(ok, 0, true, true), post(ok, time.Second, true, true))), twiceNoCause},
		"told of what it ended":                {told(canceled, post(canceled, 0, true, true)), endedTold},
		"not told of what it ended":            {told(canceled), ""},
		"all frames":                           {framed(func(*taskFrames) {}), ""},
		"no end":                               {framed(func(f *taskFrames) { f.terminal = 0 }), terminals},
		"two ends":                             {framed(func(f *taskFrames) { f.terminal = 2 }), terminals},
		"an end that is not the record's":      {framed(func(f *taskFrames) { f.end.Text = "other" }), otherEnd},
		"the last frame is gone":               {framed(func(f *taskFrames) { f.end.Seq = 4 }), holes},
		"a frame behind its own end":           {framed(func(f *taskFrames) { f.after, f.late = 1, 1 }), early},
		"a lost worker's frame behind the end": {framed(func(f *taskFrames) { f.after = 1 }), ""},
		"another wrote the end":                {framed(func(f *taskFrames) { f.end.Seq = 0 }), ""},
		"a hole":                               {framed(func(f *taskFrames) { delete(f.attempts[1].seqs, 1) }), holes},
		"a hole that another wrote the end of": {framed(func(f *taskFrames) { f.end.Seq = 0; delete(f.attempts[1].seqs, 1) }), ""},
		"a lost worker's attempt":              {stalled(-time.Second, time.Second, again(lostW0, func(*attemptFrames) {})), ""},
		"a lost worker's attempt, in health":   {again(lostW0, func(*attemptFrames) {}), unreasoned},
		"lost with a server, then killed":      {killed(time.Second, -time.Second, again(lostW0, func(*attemptFrames) {})), ""},
		"lost with a server, killed later":     {killed(time.Minute, -time.Second, again(lostW0, func(*attemptFrames) {})), unreasoned},
		"lost long after a server, killed":     {killed(time.Second, -time.Minute, again(lostW0, func(*attemptFrames) {})), unreasoned},
		"lost before a server, killed":         {killed(time.Second, time.Second, again(lostW0, func(*attemptFrames) {})), unreasoned},
		"a lost worker's hole":                 {stalled(-time.Second, time.Second, again(lostW0, func(f *attemptFrames) { delete(f.seqs, 45) })), ""},
		"a lost worker's hole, too far back":   {stalled(-time.Second, time.Second, again(lostW0, func(f *attemptFrames) { delete(f.seqs, 44) })), holes},
		"a hole in what was given back":        {again("attempt 2: worker w0 gave the task back", func(f *attemptFrames) { delete(f.seqs, 299) }), holes},
		"a frame far from its place":           {framed(func(f *taskFrames) { f.attempts[1].furthest = 257 }), scattered},
		"a frame behind its place, twice":      {framed(func(f *taskFrames) { f.attempts[1].furthest, f.attempts[1].seqs[1] = 256, 2 }), ""},
		"an attempt that nobody claimed":       {framed(func(f *taskFrames) { f.attempts[2] = f.attempts[1] }), unclaimed},
		"an outcome that it cannot have": {func(a *auditor) {
			a.fits = func(protocol.Job, protocol.Record, *attemptFrames) string { return "no" }
			framed(func(*taskFrames) {})(a)
		}, unfit},
		"given up with an attempt left": {stalled(0, 0, func(a *auditor) { a.record(job, lost) }), unfit},
		"given up for no reason":        {func(a *auditor) { lost := lost; lost.Attempt = 2; a.record(job, lost) }, unreasoned},
		"given up after a stall":        {stalled(0, 0, func(a *auditor) { lost := lost; lost.Attempt = 2; a.record(job, lost) }), ""},
		"given up long before a stall":  {stalled(time.Hour, 2*time.Hour, func(a *auditor) { lost := lost; lost.Attempt = 2; a.record(job, lost) }), unreasoned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &auditor{counts: map[string]int{}, spent: map[protocol.TaskID]bool{}}
			c.do(a)
			for _, bad := range wrong {
				if want := map[bool]int{true: 1}[bad == c.want]; a.counts[bad] != want {
					t.Errorf("%s: %d, want %d: %q", bad, a.counts[bad], want, a.told)
				}
			}
		})
	}
}
