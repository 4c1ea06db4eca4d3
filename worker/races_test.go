package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/worker"
)

// raceGuest is what a guest of the races does: it prints its start first of all.
type raceGuest struct {
	name  string
	steps []step
	life  time.Duration // about, from its dispatch to its last word
}

var raceGuests = []raceGuest{
	{"quick", []step{stamp(), say("done")}, 30 * time.Millisecond},
	{"naps", []step{stamp(), nap(20), say("done")}, 50 * time.Millisecond},
	{"obeys", []step{stamp(), untilCanceled(), say(" "), stamp()}, 100 * time.Millisecond},
	{"fails", []step{stamp(), nap(5), exit(3)}, 40 * time.Millisecond},
	{"traps", []step{stamp(), nap(5), trap()}, 40 * time.Millisecond},
	{"stubborn", []step{stamp(), forever()}, 100 * time.Millisecond},
}

// moment is when a race's cancel comes.
type moment int

const (
	never       moment = iota
	anywhere           // some time after the dispatch began
	atRecord           // the record is there
	atClaim            // it is working
	atFrame            // the guest spoke
	atOutcome          // the record is final
	atTerminal         // the terminal status is there
	lastMoments        // how many there are
)

func (m moment) String() string {
	return [...]string{"never", "anywhere", "at the record", "at the claim", "at a frame", "at the outcome", "at the end"}[m]
}

// race is one run, drawn from a seed.
type race struct {
	guest    raceGuest
	cancel   moment
	after    time.Duration // of the moment
	deadline time.Duration // from the dispatch; 0: none
}

func (r race) String() string {
	return fmt.Sprintf("%s, canceled %s after %s, deadline %s", r.guest.name, r.cancel, r.after, r.deadline)
}

// draw spreads cancel and deadline over the life of a job. Guests that never end
// get one of the two.
func draw(random *rand.Rand) race {
	r := race{guest: raceGuests[random.IntN(len(raceGuests))], cancel: moment(random.IntN(int(lastMoments)))}
	spread := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
	switch r.cancel {
	case anywhere:
		r.after = spread(2 * r.guest.life)
	default:
		r.after = spread(5 * time.Millisecond)
	}
	endless := r.guest.name == "obeys" || r.guest.name == "stubborn"
	if random.IntN(3) == 0 || endless && (r.cancel < atRecord || r.cancel > atFrame) {
		r.deadline = time.Millisecond + spread(3*r.guest.life)
	}
	return r
}

// TestCancelAndDeadlineRaces runs random races of cancel, deadline and a job's
// own life, and holds what everybody is told against each other. RACES says how
// many, RACES_SEED which.
func TestCancelAndDeadlineRaces(t *testing.T) {
	t.Parallel()
	number := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	seed, count := number("RACES_SEED", uint64(time.Now().UnixNano())), number("RACES", 50)
	t.Logf("RACES_SEED=%d RACES=%d", seed, count)
	f := newFleet(t)
	f.patient(t)
	moments := f.moments(t)
	capsules := make(map[string]protocol.CapsuleRef)
	for _, g := range raceGuests {
		capsules[g.name] = f.push(t, g.name, guest(t, g.steps...))
	}
	for range 2 {
		f.hire(t, func(c *worker.Config) { c.CancelGrace = 50 * time.Millisecond })
	}
	random := rand.New(rand.NewPCG(seed, 0))
	places := make(chan struct{}, 16)
	var mu sync.Mutex
	tally := make(map[string]int) // what became of them; guarded by mu
	var runs sync.WaitGroup
	for n := range count {
		r := draw(random)
		places <- struct{}{}
		runs.Go(func() {
			defer func() { <-places }()
			what, problems := f.race(t, moments, r, capsules[r.guest.name])
			for _, p := range problems {
				t.Errorf("race %d (%s): %s", n, r, p)
			}
			mu.Lock()
			defer mu.Unlock()
			tally[what]++
		})
	}
	runs.Wait()
	for what, times := range tally {
		t.Logf("%4d %s", times, what)
	}
}

// race runs one and gives what became of it and what is wrong.
func (f *fleet) race(t *testing.T, moments *moments, r race, capsule protocol.CapsuleRef) (what string, problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	ctx, stop := context.WithTimeout(t.Context(), 2*soon)
	defer stop()
	job := f.job(capsule, "x")
	if r.deadline > 0 {
		job.Deadline = protocol.NewTime(time.Now().Add(r.deadline))
	}
	story := moments.watch(job)
	var canceled canceledRace
	var canceling sync.WaitGroup
	if r.cancel != never {
		canceling.Go(func() { canceled = f.cancelAt(ctx, story, r, job) })
	}
	if _, err := f.bus.Dispatch(ctx, job, broker.DispatchOptions{AllowUnserved: true}); err != nil {
		bad("Dispatch: %v", err)
		return "not dispatched", problems
	}
	if err := f.left(ctx, job); err != nil {
		bad("it does not end; its record is %s: %v", story.last().Status, err)
		return "endless", problems
	}
	close(story.settled)
	canceling.Wait()
	entry, err := f.bus.ReadRecord(ctx, job.Spawner.SessionID, job.DelegationID, 0)
	if err != nil || !entry.Record.Status.Final() {
		bad("its record is %+v, %v", entry.Record, err)
		return "endless", problems
	}
	rec := entry.Record
	story.check(rec, bad)
	stamps := f.checkRaceFrames(ctx, job, rec, bad)
	canceled.check(rec, stamps, bad)
	f.checkRaceTold(job, rec, bad)
	checkRaceOutcome(r, rec, bad)
	what = string(rec.Status)
	if rec.Status == protocol.StatusTerminated {
		what += ", " + rec.Ending.Message
		what = regexp.MustCompile(`\d+s`).ReplaceAllString(what, "<n>s")
	}
	return what, problems
}

// canceledRace is how a race's cancel went.
type canceledRace struct {
	done     bool
	answered time.Time
	result   broker.CancelResult
	err      error
}

// cancelAt cancels at the race's moment. Before the record is there nothing can
// be canceled.
func (f *fleet) cancelAt(ctx context.Context, story *story, r race, job protocol.Job) canceledRace {
	select {
	case <-story.at(r.cancel):
	case <-story.settled: // the moment never came
	case <-ctx.Done():
		return canceledRace{}
	}
	timer := time.NewTimer(r.after)
	defer timer.Stop()
	<-timer.C
	c := canceledRace{done: true}
	c.result, c.err = f.bus.Cancel(ctx, job.Spawner.SessionID, job.DelegationID, broker.CancelOptions{})
	c.answered = time.Now()
	return c
}

// check holds the canceller's answer against the record.
func (c canceledRace) check(rec protocol.Record, stamps []time.Time, bad func(string, ...any)) {
	switch {
	case !c.done || errors.Is(c.err, broker.ErrNoRecord):
		if rec.Outcome.ParentEnded() {
			bad("the parent ended it, says the record, and did not (%v)", c.err)
		}
		return
	case c.err == nil:
		if !rec.Outcome.ParentEnded() || c.result.Record.Status != rec.Status || *c.result.Record.Outcome != *rec.Outcome {
			bad("canceled as %+v; its outcome is %+v", c.result.Record.Outcome, rec.Outcome)
		}
		if c.result.GuestMayRun {
			bad("the canceller says that the guest may run, and its worker lives")
		}
		for _, at := range stamps {
			if at.After(c.answered) {
				bad("the guest ran %s after the cancel was answered", at.Sub(c.answered))
			}
		}
	case errors.Is(c.err, broker.ErrFinal):
		if rec.Outcome.ParentEnded() {
			bad("Cancel = %v; the parent ended it, says the record", c.err)
		}
		if !c.result.Record.Status.Final() || c.result.Record.Status != rec.Status {
			bad("Cancel = %v with a record that is %s; it is %s", c.err, c.result.Record.Status, rec.Status)
		}
	default:
		bad("Cancel = %v", c.err)
	}
}

// checkRaceTold: a parent that ended it is not told, any other is, once.
func (f *fleet) checkRaceTold(job protocol.Job, rec protocol.Record, bad func(string, ...any)) {
	want := 1
	if rec.Outcome.ParentEnded() {
		want = 0
	}
	posts := f.door.PostsOf(job.DelegationID)
	if len(posts) != want || rec.Outcome.Delivered != (want == 1) {
		bad("%d posts, delivered %t, want %d, of %+v", len(posts), rec.Outcome.Delivered, want, rec.Outcome)
	}
	for _, p := range posts {
		if p.Text != rec.Outcome.Text() {
			bad("told\n%s\nwant\n%s", p.Text, rec.Outcome.Text())
		}
	}
}

var deadlineDetail = regexp.MustCompile(`^(the capsule was still running after \d+s and was ended at the delegation deadline|` + deadlineBeforeStart + `)$`)

// checkRaceOutcome: rows of the tables of sections 7 and 8 and no others.
func checkRaceOutcome(r race, rec protocol.Record, bad func(string, ...any)) {
	o, e := rec.Outcome, rec.Ending
	own := map[string]protocol.Status{
		"quick": protocol.StatusOK, "naps": protocol.StatusOK, "fails": protocol.StatusError, "traps": protocol.StatusCrashed,
	}[r.guest.name]
	switch {
	case o.ParentEnded():
		if e.State != "TASK_STATE_CANCELED" || e.Message != wasCanceled && e.Message != wasKilled && e.Message != neverStarted {
			bad("the parent ended it, and it ended as %+v", e)
		}
		if e.Message == neverStarted && rec.Outcome.ReportedBy != protocol.ReportedByLauncher || r.cancel == never {
			bad("the parent ended it, reported by %s", o.ReportedBy)
		}
	case o.Status == protocol.StatusTerminated:
		if e.State != "TASK_STATE_FAILED" || e.Message != o.Detail || !deadlineDetail.MatchString(o.Detail) || r.deadline == 0 {
			bad("it ended as %+v with %+v", e, o)
		}
	case o.Status != own:
		bad("it ended as %s, the guest ends as %q", o.Status, own)
	}
}

// moments follows all jobs of a fleet as they pass on the bus.
type moments struct {
	mu      sync.Mutex
	stories map[string]*story // by delegation and by task
}

// story is one job's.
type story struct {
	mu      sync.Mutex
	reached map[moment]chan struct{}
	records []protocol.Record
	settled chan struct{} // its job has left the stream
}

func (s *story) at(m moment) <-chan struct{} { return s.reached[m] }

func (s *story) last() (rec protocol.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.records); n > 0 {
		rec = s.records[n-1]
	}
	return rec
}

// left waits until the job has left the stream.
func (f *fleet) left(ctx context.Context, job protocol.Job) error {
	stream, err := f.js.Stream(ctx, f.bus.Namespace().JobsStream())
	for err == nil {
		if _, err = stream.GetLastMsgForSubject(ctx, f.subject(job)); errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
	}
	return err
}

// moments listens to the bus.
func (f *fleet) moments(t *testing.T) *moments {
	t.Helper()
	m := &moments{stories: make(map[string]*story)}
	ns := f.bus.Namespace()
	_, err := f.nc.Subscribe(string(ns)+".delegations.>", func(msg *nats.Msg) {
		rec, err := protocol.ParseRecord(msg.Data)
		if s := m.of(msg.Subject); s != nil && err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.records = append(s.records, rec)
			switch s.reach(atRecord); {
			case rec.Status.Final():
				s.reach(atOutcome)
			case rec.Status == protocol.StatusWorking:
				s.reach(atClaim)
			}
		}
	})
	if err == nil {
		_, err = f.nc.Subscribe(string(ns)+".tasks.*", func(msg *nats.Msg) {
			s := m.of(msg.Subject)
			frame, err := protocol.ParseFrame(msg.Header.Get, msg.Data)
			if s == nil || err != nil {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if frame.Terminal() {
				s.reach(atTerminal)
			} else {
				s.reach(atFrame)
			}
		})
	}
	if err == nil {
		err = f.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// reach closes the channel of a moment, once.
func (s *story) reach(m moment) {
	select {
	case <-s.reached[m]:
	default:
		close(s.reached[m])
	}
}

// check: one outcome on the mirror, and nothing after it but its delivery.
func (s *story) check(rec protocol.Record, bad func(string, ...any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	final := false
	for _, r := range s.records {
		if !r.Status.Final() && final {
			bad("it is %s after its outcome", r.Status)
		}
		if r.Status.Final() {
			one, other := *r.Outcome, *rec.Outcome
			one.Delivered, other.Delivered = false, false
			if final = true; one != other {
				bad("two outcomes: %+v and %+v", one, other)
			}
		}
	}
}

// checkRaceFrames: one terminal status that ends all, and the record's; at most one
// attempt. It gives the times that the guest told, its start first.
func (f *fleet) checkRaceFrames(ctx context.Context, job protocol.Job, rec protocol.Record, bad func(string, ...any)) (stamps []time.Time) {
	stream, err := f.js.Stream(ctx, f.bus.Namespace().TasksStream())
	if err != nil {
		bad("frames: %v", err)
		return nil
	}
	text, ended := "", 0
	for next := uint64(1); ; {
		m, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(f.bus.Namespace().TaskSubject(job.TaskID)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			bad("frames: %v", err)
			break
		}
		next = m.Sequence + 1
		f, err := protocol.ParseFrame(m.Header.Get, m.Data)
		if err != nil {
			bad("frame: %v", err)
		}
		if ended > 0 {
			bad("a frame after its end: %+v", f)
		}
		if f.Terminal() {
			if ended++; f.State != rec.Ending.State || f.Text != rec.Ending.Message {
				bad("terminal status %s %q, the record says %+v", f.State, f.Text, *rec.Ending)
			}
		}
		if f.Kind == protocol.FrameText {
			text += f.Text
		}
	}
	if ended != 1 {
		bad("%d terminal statuses", ended)
	}
	for _, digits := range regexp.MustCompile(`[a-p]{16}`).FindAllString(text, -1) {
		stamps = append(stamps, time.Unix(0, unstamp(digits)))
	}
	if rec.Attempt > 1 {
		bad("%d attempts, and nobody was lost", rec.Attempt)
	}
	if rec.Ending.Message == neverStarted && stamps != nil {
		bad("it never started, says its end, and the guest spoke at %s", stamps[0])
	}
	return stamps
}

func unstamp(digits string) (n int64) {
	for _, c := range digits {
		n = n<<4 | int64(c-'a')
	}
	return n
}

func (m *moments) watch(job protocol.Job) *story {
	s := &story{settled: make(chan struct{}), reached: make(map[moment]chan struct{})}
	for at := anywhere; at < lastMoments; at++ {
		s.reached[at] = make(chan struct{})
	}
	close(s.reached[anywhere])
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stories[string(job.DelegationID)], m.stories[string(job.TaskID)] = s, s
	return s
}

func (m *moments) of(key string) *story {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stories[key[strings.LastIndexByte(key, '.')+1:]]
}
