package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// lostWorker is what the first frame of an attempt says when the one before it was
// lost, spentAttempts what an outcome says when none was left.
var (
	lostWorker    = regexp.MustCompile(`^attempt \d+: worker (\S+) was lost$`)
	spentAttempts = regexp.MustCompile(`^worker (\S+) was lost while running attempt \d+$`)
)

func (a *auditor) frames(job protocol.Job, rec protocol.Record, f *taskFrames) {
	if f == nil {
		a.bad(terminals, job, "no frame at all")
		return
	}
	if f.terminal != 1 {
		a.bad(terminals, job, "%d", f.terminal)
	}
	a.counts[afterEnd] += f.after
	if f.late > 0 {
		a.bad(early, job, "%d", f.late)
	}
	last := f.attempts[rec.Attempt]
	if f.terminal > 0 && (f.end.State != rec.Ending.State || f.end.Text != rec.Ending.Message || f.end.Attempt != rec.Attempt) {
		a.bad(otherEnd, job, "%s %q of attempt %d, the record says %s %q of %d",
			f.end.State, f.end.Text, f.end.Attempt, rec.Ending.State, rec.Ending.Message, rec.Attempt)
	}
	if f.terminal == 1 && f.end.Seq != 0 && last != nil && f.end.Seq != last.highest+1 {
		a.bad(holes, job, "the end is number %d after %d frames of attempt %d", f.end.Seq, last.highest, rec.Attempt)
	}
	for number, attempt := range f.attempts {
		a.attempt(job, f, number, attempt)
		if number > rec.Attempt {
			a.bad(unclaimed, job, "attempt %d, the record knows %d", number, rec.Attempt)
		}
	}
	if a.fits != nil {
		if wrong := a.fits(job, rec, last); wrong != "" {
			a.bad(unfit, job, "%s", wrong)
		}
	}
}

func (a *auditor) attempt(job protocol.Job, f *taskFrames, number int, attempt *attemptFrames) {
	if len(attempt.sessions) != 1 {
		a.bad(ranTwice, job, "attempt %d has %d sessions", number, len(attempt.sessions))
	}
	for seq := 1; seq <= len(attempt.seqs); seq++ {
		if attempt.seqs[seq] > 0 {
			continue
		}
		// A lost worker sends nothing again, so what it had in flight may lack some.
		if f.lost(number) && attempt.highest-seq < 256 {
			a.counts[lackFlying]++
		} else {
			a.bad(holes, job, "attempt %d lacks %d of %d", number, seq, attempt.highest)
		}
		break
	}
	if attempt.furthest > 256 {
		a.bad(scattered, job, "attempt %d: %d places", number, attempt.furthest)
	}
	a.counts[behind] += attempt.behind
	for _, times := range attempt.seqs {
		a.counts["frames"] += times
		a.counts[storedTwice] += times - 1
	}
	if m := lostWorker.FindStringSubmatch(attempt.first); m != nil {
		var from time.Time
		if before := f.attempts[number-1]; before != nil {
			from = before.began
		}
		if a.why(job, protocol.WorkerID(m[1]), from, attempt.began) == "" {
			a.bad(unreasoned, job, "%s", attempt.first)
		}
	}
}

// taskFrames is what the stream of frames holds of one task.
type taskFrames struct {
	terminal int
	end      protocol.ReceivedFrame // the terminal status
	after    int                    // frames stored behind it
	late     int                    // those of them that the writer of the end itself numbered below it
	attempts map[int]*attemptFrames
}

// lost reports whether the worker of an attempt was lost: the next attempt says so,
// or another than that worker wrote the end.
func (f *taskFrames) lost(attempt int) bool {
	if next := f.attempts[attempt+1]; next != nil {
		return lostWorker.MatchString(next.first)
	}
	return f.terminal > 0 && f.end.Attempt == attempt && f.end.Seq == 0
}

type attemptFrames struct {
	seqs      map[int]int // times stored
	sessions  map[string]bool
	first     string    // what frame 1 says
	began     time.Time // when it was stored
	highest   int       // number so far
	behind    int       // frames that were stored after one with a higher number
	furthest  int       // places that one of these is behind
	text      int       // bytes of text
	artifacts int
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	err := withStream(ctx, url, "STARLING_TASKS", func(stream jetstream.Stream) error {
		consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
		if err != nil {
			return err
		}
		for left := int(stream.CachedInfo().State.Msgs); left > 0; {
			batch, err := consumer.Fetch(min(left, 500), jetstream.FetchContext(ctx))
			if err != nil {
				return err
			}
			for msg := range batch.Messages() {
				left--
				task := protocol.TaskID(strings.TrimPrefix(msg.Subject(), "starling.tasks."))
				if all[task] == nil {
					all[task] = &taskFrames{attempts: make(map[int]*attemptFrames)}
				}
				if err := all[task].add(msg); err != nil {
					return fmt.Errorf("frame of %s: %w", task, err)
				}
			}
			err = batch.Error()
			if errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil {
				continue // in a cluster the consumer is answered for before all servers know where it is
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

func (f *taskFrames) add(msg jetstream.Msg) error {
	header := msg.Headers()
	frame, err := protocol.ParseFrame(header.Get, msg.Data())
	if err != nil {
		return err
	}
	if strings.HasSuffix(header.Get("Nats-Msg-Id"), ".end") {
		f.terminal++
		f.end = frame
		return nil
	}
	attempt := f.attempts[frame.Attempt]
	if attempt == nil {
		attempt = &attemptFrames{seqs: make(map[int]int), sessions: make(map[string]bool)}
		f.attempts[frame.Attempt] = attempt
	}
	attempt.sessions[string(frame.SessionID)] = true
	attempt.seqs[frame.Seq]++
	if f.terminal > 0 {
		f.after++
	}
	if attempt.seqs[frame.Seq] > 1 {
		return nil
	}
	if f.terminal > 0 && frame.Attempt == f.end.Attempt && f.end.Seq != 0 {
		f.late++
	}
	if late := attempt.highest - frame.Seq; late > 0 {
		attempt.behind++
		attempt.furthest = max(attempt.furthest, late)
	}
	attempt.highest = max(attempt.highest, frame.Seq)
	switch frame.Kind {
	case protocol.FrameText:
		attempt.text += len(frame.Text)
	case protocol.FrameArtifact:
		attempt.artifacts++
	}
	if frame.Seq == 1 {
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		attempt.first, attempt.began = frame.Text, meta.Timestamp
	}
	return nil
}
