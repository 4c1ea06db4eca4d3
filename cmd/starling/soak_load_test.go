//go:build soak

package main

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

const (
	soakPool    = "side"
	soakLarge   = 300_000 // bytes, more than a frame's 256 KiB
	soakMaxTry  = 8       // attempts of most jobs
	soakSenders = 64      // dispatches under way at most
)

// soakKind is a job of the mix.
type soakKind struct {
	name          string
	weight        int
	capsule, task string
	status        protocol.Status
	says          string // part of the detail, or of the ending's message
	text          int    // bytes of text of an attempt that finished; 0: not asked
	artifacts     int
	large         bool
	env           map[string]string
	deadline      time.Duration // at most; drawn
	cancel        time.Duration // after at most so long; drawn
}

var soakKinds = []soakKind{
	{name: "echo", weight: 20, capsule: "agent-text", task: "echo hello there", status: protocol.StatusOK, text: 16},
	{name: "turns", weight: 14, capsule: "agent", task: "turns 3", status: protocol.StatusOK, artifacts: 3},
	{name: "many tool calls", weight: 4, capsule: "agent-long", task: "turns 80", status: protocol.StatusOK, artifacts: 80},
	{name: "long text", weight: 5, capsule: "agent", task: "chatty 2000 40", status: protocol.StatusOK, text: 80_000},
	{name: "long stdout", weight: 4, capsule: "agent-text", task: "lines 5000", status: protocol.StatusOK, text: 23_890},
	{name: "large result", weight: 3, capsule: "agent", task: fmt.Sprint("repeat ", soakLarge), status: protocol.StatusOK, large: true},
	{name: "nap", weight: 8, capsule: "agent-text", task: "nap 700", status: protocol.StatusOK, text: 6},
	{name: "long nap", weight: 3, capsule: "agent-text", task: "nap 5000", status: protocol.StatusOK, text: 6},
	{name: "files", weight: 4, capsule: "agent-text", task: "files of mine", status: protocol.StatusOK},
	{name: "no-op", weight: 8, capsule: "noop", task: "nothing", status: protocol.StatusOK},
	{name: "turn failed", weight: 3, capsule: "agent", task: "failed quota spent", status: protocol.StatusError, says: "spent"},
	{name: "exit status", weight: 3, capsule: "agent-text", task: "fail 3", status: protocol.StatusError, says: "exit status 3: giving up"},
	{name: "panic", weight: 2, capsule: "agent-text", task: "panic", status: protocol.StatusError, says: "exit status 2"},
	{name: "trap", weight: 3, capsule: "trap", task: "fall", status: protocol.StatusCrashed, says: "the capsule ended without recording a completion"},
	{name: "stack", weight: 1, capsule: "recursion", task: "deep", status: protocol.StatusCrashed, says: "the capsule ended without recording a completion"},
	{name: "over memory", weight: 2, capsule: "memhog", task: "more", status: protocol.StatusError, says: "capabilities.limits.memory_bytes"},
	{name: "over deadline", weight: 2, capsule: "sleep1h", task: "sleep", status: protocol.StatusError, says: "exceeded its 1s deadline"},
	{name: "over turns", weight: 2, capsule: "agent", task: "turns 12", status: protocol.StatusError, says: "max_turns exceeded"},
	{name: "refused", weight: 1, capsule: "agent", task: "end well", env: map[string]string{"SOAK": "1"}, status: protocol.StatusCrashed, says: "the capsule did not start"},
	{name: "canceled", weight: 3, capsule: "agent-text", task: "nap 2500", cancel: 3 * time.Second, status: protocol.StatusOK},
	{name: "canceled sleeper", weight: 2, capsule: "agent", task: "sleeper", cancel: 3 * time.Second, deadline: 20 * time.Second, status: protocol.StatusTerminated},
	{name: "past its deadline", weight: 3, capsule: "agent-text", task: "nap 3000", deadline: 4 * time.Second, status: protocol.StatusOK},
}

// pushSoak pushes what pushMixed does not.
func pushSoak(t *testing.T, url string) {
	t.Helper()
	push(t, url, testenv.GoCapsule(t, "agent"), "name: agent-long\nversion: 1.0.0\noutput: events\ninference: {max_turns: 100}\n")
	push(t, url, testenv.WAT(t, "recursion"), "name: recursion\nversion: 1.0.0\n")
	push(t, url, testenv.WAT(t, "memhog"), "name: memhog\nversion: 1.0.0\ncapabilities: {limits: {memory_bytes: 16777216}}\n")
	push(t, url, testenv.WAT(t, "sleep1h"), "name: sleep1h\nversion: 1.0.0\ncapabilities: {limits: {deadline_seconds: 1}}\n")
}

// soakJob is a job and what was done with it.
type soakJob struct {
	job      protocol.Job
	kind     soakKind
	cancelIn time.Duration // 0: not canceled
	answer   string        // of the cancel: "", "ended" or "final"
	final    protocol.Status
}

// soakLoad dispatches at a steady rate, whatever happens.
type soakLoad struct {
	s     *soak
	stop  context.CancelFunc
	group sync.WaitGroup
	slots chan struct{}

	mu     sync.Mutex
	jobs   []*soakJob
	byID   map[protocol.DelegationID]*soakJob
	queued int // that the bus took
	held   int // that came late, because all dispatches waited for the bus
}

func newSoakLoad(s *soak) *soakLoad {
	return &soakLoad{s: s, slots: make(chan struct{}, soakSenders), byID: make(map[protocol.DelegationID]*soakJob)}
}

func (l *soakLoad) start(seed uint64, rate float64) {
	ctx, stop := context.WithCancel(l.s.t.Context())
	l.stop = stop
	l.s.t.Cleanup(l.end)
	l.group.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		for i := uint64(0); ctx.Err() == nil; i++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			select {
			case l.slots <- struct{}{}:
			default:
				l.mu.Lock()
				l.held++
				l.mu.Unlock()
				select {
				case l.slots <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
			j := l.make(rand.New(rand.NewPCG(seed, 1000+i)))
			l.group.Go(func() { l.hand(j) })
		}
	})
}

// end stops the load and waits for what is under way.
func (l *soakLoad) end() {
	l.stop()
	l.group.Wait()
}

// make draws a job.
func (l *soakLoad) make(random *rand.Rand) *soakJob {
	total := 0
	for _, k := range soakKinds {
		total += k.weight
	}
	draw, kind := random.IntN(total), soakKinds[0]
	for _, k := range soakKinds {
		if draw -= k.weight; draw < 0 {
			kind = k
			break
		}
	}
	job := fleetJob(kind.capsule, kind.task, "")
	job.MaxAttempts, job.Env = soakMaxTry, kind.env
	if random.IntN(12) == 0 {
		job.MaxAttempts = 1
	}
	if random.IntN(4) == 0 {
		job.Pool = soakPool
	}
	job.Origin = []protocol.Origin{protocol.OriginUser, protocol.OriginPeer, protocol.OriginEvent, protocol.OriginSchedule}[random.IntN(4)]
	if p := random.IntN(len(l.s.parents) + 1); p < len(l.s.parents) { // the others have nobody to tell
		parent := l.s.parents[p]
		job.Spawner.SessionID, job.Spawner.URL, job.Spawner.Trust = parent.session, parent.url(), protocol.Trusted
	}
	if kind.deadline > 0 {
		job.Deadline = protocol.NewTime(time.Now().Add(time.Second + time.Duration(random.Int64N(int64(kind.deadline)))))
	}
	j := &soakJob{job: job, kind: kind}
	if kind.cancel > 0 {
		j.cancelIn = 1 + time.Duration(random.Int64N(int64(kind.cancel)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jobs = append(l.jobs, j)
	l.byID[job.DelegationID] = j
	return j
}

// hand dispatches a job, and cancels it when its time has come.
func (l *soakLoad) hand(j *soakJob) {
	ctx := context.WithoutCancel(l.s.t.Context())
	err := l.s.fleet.dispatch(ctx, j.job)
	<-l.slots
	if err != nil {
		l.s.t.Errorf("dispatch of %s: %v", j.job.DelegationID, err)
		return
	}
	l.mu.Lock()
	l.queued++
	l.mu.Unlock()
	if j.cancelIn == 0 {
		return
	}
	l.s.fleet.mirror.waitOutcome(ctx, j.job.DelegationID, j.cancelIn)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		result, err := l.s.fleet.bus.Cancel(ctx, j.job.Spawner.SessionID, j.job.DelegationID, broker.CancelOptions{})
		l.mu.Lock()
		switch {
		case err == nil:
			j.answer = "ended"
		case errors.Is(err, broker.ErrFinal):
			j.answer, j.final = "final", result.Record.Status
		}
		l.mu.Unlock()
		if err == nil || errors.Is(err, broker.ErrFinal) {
			return
		}
		if !errors.Is(err, broker.ErrUnavailable) || ctx.Err() != nil {
			l.s.t.Errorf("cancel of %s: %v", j.job.DelegationID, err)
			return
		}
	}
}

func (l *soakLoad) all() []protocol.Job {
	l.mu.Lock()
	defer l.mu.Unlock()
	var jobs []protocol.Job
	for _, j := range l.jobs {
		jobs = append(jobs, j.job)
	}
	return jobs
}

// dispatched is how many jobs the bus took so far.
func (l *soakLoad) dispatched() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queued
}

// fits is what is wrong with an outcome: each kind has its own, and what ends a job
// from outside must have been done to it.
func (l *soakLoad) fits(job protocol.Job, rec protocol.Record, last *attemptFrames) string {
	l.mu.Lock()
	j := l.byID[job.DelegationID]
	l.mu.Unlock()
	o := rec.Outcome
	if j.answer == "ended" && !o.ParentEnded() || j.answer == "final" && j.final != rec.Status {
		return fmt.Sprintf("the cancel was answered %s %s, the outcome is %s %s", j.answer, j.final, rec.Status, o.Detail)
	}
	switch {
	case o.ParentEnded():
		return mustBe(j.cancelIn > 0, "nobody ended it")
	case rec.Status == protocol.StatusTerminated:
		late := rec.EndedAt.Std().Before(job.Deadline.Std())
		return mustBe(!job.Deadline.IsZero() && !late, "its deadline %s had not passed at %s", job.Deadline, rec.EndedAt)
	case spentAttempts.MatchString(o.Detail):
		return "" // judged already
	case rec.Status == protocol.StatusCrashed && strings.Contains(o.Detail, "killed"):
		l.s.audit.counts["crashed: the sandbox process was killed"]++
		return mustBe(l.s.audit.counts["crashed: the sandbox process was killed"] <= l.s.sandboxKills,
			"%d sandbox processes were killed: %s", l.s.sandboxKills, o.Detail)
	case rec.Status != j.kind.status:
		return fmt.Sprintf("%s is %s %q, ending %q", j.kind.name, rec.Status, o.Detail, rec.Ending.Message)
	case !strings.Contains(o.Detail, j.kind.says) && !strings.Contains(rec.Ending.Message, j.kind.says):
		return fmt.Sprintf("%s says %q and %q, want %q", j.kind.name, o.Detail, rec.Ending.Message, j.kind.says)
	case rec.Status != protocol.StatusOK:
		return ""
	}
	object := o.ResultObject != nil
	switch {
	case last == nil:
		return "no frame of the last attempt"
	case j.kind.text != 0 && last.text != j.kind.text:
		return fmt.Sprintf("%s: %d bytes of text, want %d", j.kind.name, last.text, j.kind.text)
	case last.artifacts != j.kind.artifacts:
		return fmt.Sprintf("%s: %d artifacts, want %d", j.kind.name, last.artifacts, j.kind.artifacts)
	case object != j.kind.large || object && o.ResultObject.Size != soakLarge:
		return fmt.Sprintf("%s: result object %+v", j.kind.name, o.ResultObject)
	}
	return ""
}

func mustBe(yes bool, format string, args ...any) string {
	if yes {
		return ""
	}
	return fmt.Sprintf(format, args...)
}
