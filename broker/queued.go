package broker

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// QueuedJobs are the tasks whose jobs are in the stream: they wait, run, or are
// being reported. It needs an operator's rights and holds all their ids.
func (b *Bus) QueuedJobs(ctx context.Context) (map[protocol.TaskID]bool, error) {
	queued := map[protocol.TaskID]bool{}
	err := b.settled(ctx, func(ctx context.Context) error {
		name := b.ns.JobsStream()
		subject := "$JS.API.STREAM.INFO." + name
		ctx, done := b.guard(ctx, subject)
		defer done()
		stream, err := b.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return b.noStream(name)
		}
		if err != nil {
			return b.failure(ctx, subject, err)
		}
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(string(b.ns)+".jobs.>"))
		if err != nil {
			return b.failure(ctx, subject, err)
		}
		clear(queued)
		for subject := range info.State.Subjects {
			if place, err := b.ns.ParseJobSubject(subject); err == nil {
				queued[place.Task] = true
			}
		}
		return nil
	})
	return queued, err
}

// JobDeadline reads the deadline of a record's job from the stream. It is zero when
// the job has none, is not in the stream, or cannot be parsed.
func (b *Bus) JobDeadline(ctx context.Context, rec protocol.Record) (protocol.Time, error) {
	m, err := b.read(ctx, b.ns.JobsStream(), b.ns.JobSubject(rec.Pool, rec.Lane, rec.TaskID))
	if err != nil || m.seq == 0 {
		return protocol.Time{}, err
	}
	job, err := protocol.ParseJob(m.data)
	if err != nil {
		return protocol.Time{}, nil // a worker that takes it makes it a dead letter
	}
	return job.Deadline, nil
}

// JobQueued reports whether the job of a record is in the stream.
func (b *Bus) JobQueued(ctx context.Context, rec protocol.Record) (bool, error) {
	m, err := b.read(ctx, b.ns.JobsStream(), b.ns.JobSubject(rec.Pool, rec.Lane, rec.TaskID))
	return m.seq > 0, err
}
