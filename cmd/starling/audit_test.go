package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

// auditor counts what ledger, frames, doors, mirror and queue hold of delegations
// that have ended, and names every number that is not as docs/guarantees.md
// promises. What faults excuse is said before: lost and doorFault.
type auditor struct {
	bus    *broker.Bus
	url    string
	mirror *mirrored                    // nil: not asked
	door   *testenv.RecordingDoor       // where the parents listen
	faults map[protocol.WorkerID]string // workers that may lose a task, or tell a parent twice, and why
	closed string                       // why the door may not have heard; "": it has
	// lapsed says of which delegations a worker noticed that it could not renew them, or
	// that another has them; nil: nobody knows.
	lapsed func() map[protocol.DelegationID]bool
	known  map[protocol.DelegationID]bool // what it said
	counts map[string]int
	told   []string // details of what is wrong, a line each
}

// The audit's words.
const (
	missing      = "missing outcomes"
	doubled      = "delegations with more than one outcome"
	holes        = "attempts with holes"
	storedTwice  = "frames stored twice"
	terminals    = "tasks with other than one terminal frame"
	ranTwice     = "attempts that two guests ran"
	unreasoned   = "attempts whose worker was not lost"
	otherID      = "posts with another id"
	otherStory   = "posts with another story"
	untold       = "untold without a reason"
	twiceNoCause = "told twice without a reason"
	letters      = "dead letters"
	leftOver     = "jobs left in the stream"
)

// wrong are the counts that must be 0. That a frame is stored twice is allowed by
// docs/protocol.md, section 7, Order, and is printed only: observers drop it.
var wrong = []string{
	missing, doubled, holes, terminals, ranTwice, unreasoned, otherID, otherStory, untold, twiceNoCause, letters, leftOver,
}

// lost says that a worker may have lost tasks.
func (a *auditor) lost(worker, why string) {
	if a.faults == nil {
		a.faults = make(map[protocol.WorkerID]string)
	}
	a.faults[protocol.WorkerID(worker)] = why
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
	a.counts, a.told = map[string]int{"dispatched": len(dispatched)}, nil
	if a.lapsed != nil {
		a.known = a.lapsed()
	}
	frames, err := allFrames(ctx, a.url)
	if err != nil {
		return err
	}
	posts := make(map[protocol.DelegationID][]testenv.Post)
	for _, post := range a.door.Posts() {
		posts[post.DelegationID] = append(posts[post.DelegationID], post)
	}
	tasks := make(map[protocol.TaskID]bool)
	for _, job := range dispatched {
		tasks[job.TaskID] = true
		entry, err := a.bus.ReadRecord(ctx, job.Spawner.SessionID, job.DelegationID, 0)
		if err != nil || !entry.Record.Status.Final() {
			a.bad(missing, job, "%v %v", entry.Record.Status, err)
			continue
		}
		a.counts["outcome "+string(entry.Record.Status)]++
		a.counts["attempts"] += entry.Record.Attempt
		if entry.Record.Attempt > 1 {
			a.counts["with more than one attempt"]++
		}
		if a.mirror != nil && a.mirror.stories(job.DelegationID) > 1 {
			a.bad(doubled, job, "the mirror told several")
		}
		a.frames(job, frames[job.TaskID])
		a.posts(job, entry.Record, posts[job.DelegationID])
	}
	for letter, err := range a.bus.DeadLetters(ctx, "") {
		if err != nil {
			return err
		}
		if tasks[letter.TaskID] {
			a.counts[letters]++
			a.told = append(a.told, fmt.Sprintf("dead letter of %s: %s %s", letter.TaskID, letter.Reason, letter.Detail))
		}
	}
	left, err := jobsIn(ctx, a.url)
	a.counts[leftOver] = int(left)
	return err
}

func (a *auditor) bad(what string, job protocol.Job, format string, args ...any) {
	a.counts[what]++
	a.told = append(a.told, fmt.Sprintf("%s: %s of %s, %s: ", what, job.DelegationID, job.Capsule, job.TaskID)+fmt.Sprintf(format, args...))
}

// lostWorker is what the first frame of an attempt says when the one before it was
// lost.
var lostWorker = regexp.MustCompile(`^attempt \d+: worker (\S+) was lost$`)

func (a *auditor) frames(job protocol.Job, f *taskFrames) {
	if f == nil {
		a.bad(terminals, job, "no frame at all")
		return
	}
	if f.terminal != 1 {
		a.bad(terminals, job, "%d", f.terminal)
	}
	for number, attempt := range f.attempts {
		if len(attempt.sessions) != 1 {
			a.bad(ranTwice, job, "attempt %d has %d sessions", number, len(attempt.sessions))
		}
		for seq := 1; seq <= len(attempt.seqs); seq++ {
			if attempt.seqs[seq] == 0 {
				a.bad(holes, job, "attempt %d lacks %d of %d", number, seq, len(attempt.seqs))
				break
			}
		}
		for seq, times := range attempt.seqs {
			a.counts["frames"] += times
			if times > 1 {
				a.bad(storedTwice, job, "attempt %d, frame %d: %d times", number, seq, times)
			}
		}
		if m := lostWorker.FindStringSubmatch(attempt.first); m != nil && a.why(job, protocol.WorkerID(m[1])) == "" {
			a.bad(unreasoned, job, "%s", attempt.first)
		}
	}
}

func (a *auditor) posts(job protocol.Job, rec protocol.Record, posts []testenv.Post) {
	if !job.Spawner.HasAddress() {
		return
	}
	a.counts["posts"] += len(posts)
	switch {
	case rec.Outcome.Delivered && len(posts) > 0:
	case !rec.Outcome.Delivered && rec.Outcome.DeliveryError != "" && a.closed != "":
		a.counts["untold: "+a.closed]++
	default:
		a.bad(untold, job, "delivered %t, %d posts, error %q", rec.Outcome.Delivered, len(posts), rec.Outcome.DeliveryError)
	}
	if len(posts) > 1 {
		why := a.closed
		if why == "" {
			why = a.why(job, rec.Outcome.WorkerID)
		}
		if why == "" {
			a.bad(twiceNoCause, job, "%d posts by %s", len(posts), rec.Outcome.WorkerID)
		} else {
			a.counts["told twice: "+why]++
		}
	}
	for _, post := range posts {
		if post.MessageID != protocol.CompletionMessageID(job.DelegationID) {
			a.bad(otherID, job, "%s", post.MessageID)
		}
		if post.Text != posts[0].Text || post.Text != rec.Outcome.Text() {
			a.bad(otherStory, job, "%q", post.Text)
		}
	}
}

// why is what excuses a worker that lost a delegation.
func (a *auditor) why(job protocol.Job, worker protocol.WorkerID) string {
	if why := a.faults[worker]; why != "" {
		return why
	}
	if a.known[job.DelegationID] {
		return "it could not be renewed in time"
	}
	return ""
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

// taskFrames is what the stream of frames holds of one task.
type taskFrames struct {
	terminal int
	attempts map[int]*attemptFrames
}

type attemptFrames struct {
	seqs     map[int]int // times stored
	sessions map[string]bool
	first    string // what frame 1 says
}

// withStream connects and hands out a stream.
func withStream(ctx context.Context, url, name string, use func(jetstream.Stream) error) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	return use(stream)
}

// jobsIn is how many jobs are in the stream.
func jobsIn(ctx context.Context, url string) (n uint64, err error) {
	err = withStream(ctx, url, "STARLING_JOBS", func(s jetstream.Stream) error { n = s.CachedInfo().State.Msgs; return nil })
	return n, err
}

func allFrames(ctx context.Context, url string) (map[protocol.TaskID]*taskFrames, error) {
	all := make(map[protocol.TaskID]*taskFrames)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	err := withStream(ctx, url, "STARLING_TASKS", func(stream jetstream.Stream) error {
		consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
		if err != nil {
			return err
		}
		for left := stream.CachedInfo().State.Msgs; left > 0; {
			msg, err := consumer.Next(jetstream.FetchContext(ctx))
			if errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil {
				continue // in a cluster the consumer is answered for before all servers know where it is
			}
			if err != nil {
				return err
			}
			left--
			task := protocol.TaskID(strings.TrimPrefix(msg.Subject(), "starling.tasks."))
			if all[task] == nil {
				all[task] = &taskFrames{attempts: make(map[int]*attemptFrames)}
			}
			if err := all[task].add(msg); err != nil {
				return fmt.Errorf("frame of %s: %w", task, err)
			}
		}
		return nil
	})
	return all, err
}

func (f *taskFrames) add(msg jetstream.Msg) error {
	header := msg.Headers()
	if strings.HasSuffix(header.Get("Nats-Msg-Id"), ".end") {
		f.terminal++
		return nil
	}
	number, err := strconv.Atoi(header.Get(protocol.HeaderAttempt))
	if err != nil {
		return err
	}
	seq, err := strconv.Atoi(header.Get(protocol.HeaderSeq))
	if err != nil {
		return err
	}
	attempt := f.attempts[number]
	if attempt == nil {
		attempt = &attemptFrames{seqs: make(map[int]int), sessions: make(map[string]bool)}
		f.attempts[number] = attempt
	}
	attempt.seqs[seq]++
	attempt.sessions[header.Get(protocol.HeaderSession)] = true
	if seq == 1 {
		frame, err := protocol.ParseFrame(header.Get, msg.Data())
		if err != nil {
			return err
		}
		attempt.first = frame.Text
	}
	return nil
}
