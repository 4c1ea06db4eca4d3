package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// request sends m and waits for one answer, at most 5 s. A refusal by the
// server's permissions ends it at once. The error is translated; nobody
// listening is [errNoResponders].
func (b *Bus) request(ctx context.Context, nc *nats.Conn, m *nats.Msg) (*nats.Msg, error) {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	guarded, done := b.guard(bounded, m.Subject)
	defer done()
	answer, err := nc.RequestMsgWithContext(guarded, m)
	if err != nil {
		return nil, b.failure(guarded, m.Subject, err)
	}
	return answer, nil
}

// repeated runs what may be repeated until the bus answers, for at most
// answerTries times: an answer that was lost would else cost the whole of it.
func repeated(ctx context.Context, do func(context.Context) error) error {
	var err error
	for range answerTries {
		bounded, cancel := context.WithTimeout(ctx, answerTimeout)
		err = do(bounded)
		cancel()
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// store publishes m into the stream and waits for its ack, at most 5 s a try; a
// missing leader is waited out a little. Another message in its place is
// [errWrongSequence]; the other errors are those of the package.
func (b *Bus) store(ctx context.Context, nc *nats.Conn, stream string, m *nats.Msg) (uint64, error) {
	var (
		ack pubAck
		err error
	)
	for range answerTries {
		var answer *nats.Msg
		if answer, err = b.request(ctx, nc, m); err == nil {
			ack, err = parsePubAck(answer)
		}
		if !errors.Is(err, errNoResponders) && !errors.Is(err, errInFlight) {
			break
		}
		if pause(ctx, leaderless) != nil {
			break
		}
	}
	switch {
	case errors.Is(err, errNoResponders):
		return 0, b.absent(ctx, stream)
	case errors.Is(err, errInFlight):
		return 0, fmt.Errorf("%w: %v", ErrUnavailable, err)
	case errors.Is(err, errAtLimit):
		return 0, fmt.Errorf("%w: %s", ErrRefused, b.full(stream, err))
	case errors.Is(err, errStreamFull), errors.Is(err, errTooLarge):
		return 0, fmt.Errorf("%w: stream %s: %v", ErrRefused, stream, err)
	}
	return ack.Sequence, err
}

// absent says why nobody answers for a stream: there is no JetStream, no such
// stream, or no leader now.
func (b *Bus) absent(ctx context.Context, stream string) error {
	subject := "$JS.API.STREAM.INFO." + stream
	guarded, done := b.guard(ctx, subject)
	defer done()
	// Again and again: a server that has just started drops what it is asked.
	err := repeated(guarded, func(ctx context.Context) error {
		_, err := b.js.Stream(ctx, stream)
		if errors.Is(err, context.DeadlineExceeded) {
			return b.failure(ctx, subject, err)
		}
		return err
	})
	switch {
	case err == nil:
		return fmt.Errorf("%w: stream %s has no leader now", ErrUnavailable, stream)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return b.noStream(stream)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return fmt.Errorf("%w: nobody answers on %s: start the server with -js", ErrNoJetStream, subject)
	case errors.Is(err, ErrUnavailable):
		return err
	}
	return b.failure(guarded, subject, err)
}
