package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// TerminalOptions say where a terminal status stands.
type TerminalOptions struct {
	// Seq is [FrameSender.NextSeq] of the attempt's worker, and 0 when another
	// writes it.
	Seq int
	// LastSequence is [FrameSender.LastSequence] of the attempt's worker, which
	// saves a read; 0: it is read.
	LastSequence uint64
	// Traceparent is the trace that the status belongs to; "" for none.
	Traceparent string
}

// WriteTerminal writes the one terminal status of a task, made from its final
// record. When one stands already it does nothing, so it can be repeated. It
// blocks until the status is stored or ctx is done ([ErrUnavailable]: write it
// again). Errors beside it: [protocol.ErrFrame] (the record is not final),
// [ErrDenied], [ErrClosed].
//
// Source: docs/protocol.md, section 7, One terminal status per task.
func (b *Bus) WriteTerminal(ctx context.Context, rec protocol.Record, opts TerminalOptions) error {
	if !rec.Status.Final() || rec.Ending == nil {
		return fmt.Errorf("%w: task %s is %s: only a final record ends it", protocol.ErrFrame, rec.TaskID, rec.Status)
	}
	m, err := b.terminalMessage(rec, opts)
	if err != nil {
		return err
	}
	if err := b.writeTerminal(ctx, m, opts.LastSequence); err != nil {
		return fmt.Errorf("end task %s: %w", rec.TaskID, err)
	}
	return nil
}

func (b *Bus) terminalMessage(rec protocol.Record, opts TerminalOptions) (*nats.Msg, error) {
	frame := protocol.Frame{Kind: protocol.FrameStatus, State: rec.Ending.State, Text: rec.Ending.Message}
	if !frame.Terminal() {
		return nil, fmt.Errorf("%w: task %s: ending state %q ends nothing", protocol.ErrFrame, rec.TaskID, rec.Ending.State)
	}
	encoded, err := frame.Encode(protocol.Place{
		TaskID: rec.TaskID, ContextID: rec.ContextID, SessionID: rec.SessionID,
		Attempt: rec.Attempt, Seq: opts.Seq, Time: rec.EndedAt.Std(), Traceparent: opts.Traceparent,
	})
	if err != nil {
		return nil, err
	}
	return frameMessage(b.ns.TaskSubject(rec.TaskID), encoded), nil
}

// writeTerminal publishes with both conditions: the fixed id stops a second
// status while its first is in flight, the sequence stops one behind a first
// that the duplicate window has forgotten. With the sequence alone a lost
// worker's late frame would hide the first.
func (b *Bus) writeTerminal(ctx context.Context, m *nats.Msg, last uint64) error {
	known := last > 0
	for {
		if !known {
			s, err := b.read(ctx, b.ns.TasksStream(), m.Subject)
			switch {
			case err != nil && !passes(err):
				return err
			case err == nil && isTerminal(s):
				return nil
			case err == nil:
				last, known = s.seq, true
			}
		}
		var err error
		if known {
			m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(last, 10)}
			if _, err = b.publish(ctx, m); err == nil {
				return nil // also as a duplicate: then it stands already
			}
			if !passes(err) && !errors.Is(err, errWrongSequence) && !errors.Is(err, errStreamFull) {
				return err
			}
			known = false
		}
		if err := retry(ctx, err); err != nil {
			return err
		}
	}
}

// isTerminal reports whether a stored message is a terminal status. One that
// cannot be read is none.
func isTerminal(s stored) bool {
	if s.seq == 0 || s.header.Get(protocol.HeaderFrame) != string(protocol.FrameStatus) {
		return false
	}
	f, err := protocol.ParseFrame(s.header.Get, s.data)
	return err == nil && f.Terminal()
}

// frameMessage is a frame as the client publishes it.
func frameMessage(subject string, f protocol.EncodedFrame) *nats.Msg {
	header := make(nats.Header, len(f.Header)+1)
	values := make([]string, 0, len(f.Header)) // one allocation for all
	for name, value := range f.Header {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	return &nats.Msg{Subject: subject, Header: header, Data: f.Body}
}
