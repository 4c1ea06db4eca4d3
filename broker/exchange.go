package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// tryAgain is the pause before a try that was refused for now.
	//
	// Source: docs/protocol.md, section 6, Writing.
	tryAgain = 20 * time.Millisecond
	// fullWait is that of a full ledger, which has room when records expire or an
	// operator makes some.
	fullWait = time.Second
	// leaderless is the pause after nobody answered: an election takes longer
	// than a write in flight.
	leaderless = 100 * time.Millisecond
)

// What a stream says to one message. They stay in the package.
var (
	errWrongSequence = errors.New("another message was there first")
	errOvertaken     = fmt.Errorf("%w, or is in flight", errWrongSequence)
	errInFlight      = errors.New("the same message is in flight")
	errStreamFull    = errors.New("the stream is full")
	errAtLimit       = fmt.Errorf("%w, by its own limit", errStreamFull)
	errAtCount       = fmt.Errorf("%w of messages", errAtLimit)
	errTooLarge      = errors.New("the message is larger than the stream takes")
)

// sequenceError is an errWrongSequence that says what stands there: the sequence
// of the last message on the subject, 0 for none.
type sequenceError struct{ last uint64 }

func (e *sequenceError) Error() string {
	return fmt.Sprintf("%v: the last one has sequence %d (%d)", errWrongSequence, e.last, codeWrongLastSequence)
}

func (e *sequenceError) Unwrap() error { return errWrongSequence }

const (
	statusNoResponders = "503"
	headerStatus       = "Status"
	headerKVOperation  = "KV-Operation"
)

// pubAck is a stream's answer to a publish.
type pubAck struct {
	Sequence  uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
	Stream    string              `json:"stream"`
	Error     *jetstream.APIError `json:"error"`
}

// parsePubAck reads a stream's answer.
func parsePubAck(m *nats.Msg) (pubAck, error) {
	if len(m.Data) == 0 && m.Header.Get(headerStatus) == statusNoResponders {
		return pubAck{}, errNoResponders
	}
	var ack pubAck
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return pubAck{}, fmt.Errorf("%w: its answer is not JSON: %v", ErrRefused, err)
	}
	if ack.Error != nil {
		return pubAck{}, storeFailure(ack.Error)
	}
	if ack.Stream == "" {
		return pubAck{}, fmt.Errorf("%w: what answered is no stream", ErrRefused)
	}
	return ack, nil
}

// storeFailure is the class of a refused publish. On one server a sequence that
// does not match is 10071; on replicated streams it is 10164 while a write to
// the same subject is in flight.
//
// Source: nats-server/server/errors.json, and measured on 2.15.
func storeFailure(api *jetstream.APIError) error {
	class := error(nil)
	switch api.ErrorCode {
	case codeWrongLastSequence:
		var last uint64
		if _, err := fmt.Sscanf(api.Description, "wrong last sequence: %d", &last); err == nil {
			return &sequenceError{last}
		}
		class = errWrongSequence
	case codeWrongLastConstant:
		class = errOvertaken
	case codeInFlight:
		class = errInFlight
	case codeStoreFailed:
		class = errStreamFull
		switch { // the code is that of a broken disk too
		case strings.HasPrefix(api.Description, "maximum messages "):
			class = errAtCount
		case strings.HasPrefix(api.Description, "maximum "):
			class = errAtLimit
		}
	case codeTooLarge:
		class = errTooLarge
	default:
		if api.Code >= 500 { // no resources, or no leader, for now
			class = ErrUnavailable
		} else {
			return apiFailure(api)
		}
	}
	return fmt.Errorf("%w: %s (%d)", class, api.Description, api.ErrorCode)
}

// ask is request with the shorter wait of one try.
func (b *Bus) ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	try, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := b.request(try, b.nc, m)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrDenied) && !errors.Is(err, ErrClosed) {
		return nil, overdue(ctx, err)
	}
	return answer, err
}

// publish stores one message, once. Beside the errors of request it gives those
// of [storeFailure].
func (b *Bus) publish(ctx context.Context, m *nats.Msg) (pubAck, error) {
	answer, err := b.ask(ctx, m)
	if err != nil {
		return pubAck{}, err
	}
	return parsePubAck(answer)
}

// read is the last message on a subject, from any replica: on a replicated
// stream it may be some 100 ms old. seq 0 means that there is none.
func (b *Bus) read(ctx context.Context, stream, subject string) (stored, error) {
	try, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	m, err := b.last(try, b.nc, stream, subject)
	switch {
	case errors.Is(err, errNotStored):
		return stored{}, nil
	case err != nil && ctx.Err() != nil && !errors.Is(err, ErrDenied) && !errors.Is(err, ErrClosed):
		return stored{}, overdue(ctx, err)
	}
	return m, err
}

// passes reports whether an error of publish or read may pass by itself.
func passes(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, errNoResponders) || errors.Is(err, errInFlight)
}

// retry waits before the next try after err, which may be nil. Once ctx is done
// it gives ErrUnavailable with the cause of ctx and the text of err.
func retry(ctx context.Context, err error) error {
	d := tryAgain
	switch {
	case errors.Is(err, errNoResponders), errors.Is(err, ErrUnavailable):
		d = leaderless
	case errors.Is(err, ErrLedgerFull):
		d = fullWait
	}
	if pause(ctx, d) != nil {
		return overdue(ctx, err)
	}
	return nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// overdue is the end of a caller's context, with what was last heard as text.
func overdue(ctx context.Context, last error) error {
	if last == nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w (last: %v)", ErrUnavailable, context.Cause(ctx), last)
}

// expecting is a message with the condition that the last one on its subject
// has this sequence; 0 is none.
func expecting(subject string, sequence uint64, body []byte) *nats.Msg {
	return &nats.Msg{Subject: subject, Data: body, Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(sequence, 10)},
	}}
}
