package broker

import (
	"context"
	"fmt"
	"io"
	"math"

	"starling/protocol"
)

// WatchOptions change what a [Watch] tells.
type WatchOptions struct {
	// Live leaves out what was written before the watch began.
	Live bool
}

// Hole says that frames of an attempt are missing, From and To included: they
// were lost with their worker, or have expired.
type Hole struct {
	Attempt, From, To int
}

// WatchEvent is what an observer is told; exactly one member is set.
type WatchEvent struct {
	Frame *protocol.ReceivedFrame
	Hole  *Hole
}

// Watch tells an observer what happens in a task: its frames in the order in
// which they were numbered, each once, those of lower attempts dropped once a
// higher one has begun, and the holes that stay. One goroutine uses it. Whoever
// opened it closes it.
//
// Source: docs/protocol.md, section 7, Order.
type Watch struct {
	follower *follower
	order    frameOrder
	events   []WatchEvent // not told yet
	ended    bool         // the terminal status is among them
}

// WatchTask watches a task, from its first frame unless opts says otherwise. The
// task may not exist yet, or never: the bus cannot tell. Errors:
// [protocol.ErrName], [ErrDenied], [ErrNotInitialized], [ErrClosed],
// [ErrUnavailable] when ctx is done first.
func (b *Bus) WatchTask(ctx context.Context, task protocol.TaskID, opts WatchOptions) (*Watch, error) {
	if err := protocol.ValidateName("task_id", string(task)); err != nil {
		return nil, err
	}
	f, err := b.follow(ctx, b.ns.TasksStream(), b.ns.TaskSubject(task), opts.Live)
	if err != nil {
		return nil, fmt.Errorf("watch task %s: %w", task, err)
	}
	return &Watch{follower: f, order: frameOrder{live: opts.Live}}, nil
}

// Next waits for the next event. After the terminal status it gives [io.EOF].
// It outlives disconnects, elections and restarts of servers. When ctx is done
// it gives its cause as [ErrUnavailable], and can be called again. Others:
// [ErrDenied], [ErrClosed].
func (w *Watch) Next(ctx context.Context) (WatchEvent, error) {
	for len(w.events) == 0 {
		if w.ended {
			return WatchEvent{}, io.EOF
		}
		m, err := w.follower.next(ctx)
		if err != nil {
			return WatchEvent{}, err
		}
		f, err := protocol.ParseFrame(m.Header.Get, m.Data)
		if err != nil { // it leaves a hole where it stood
			w.follower.bus.log.Debug("message is no frame", "subject", m.Subject, "error", err)
			continue
		}
		w.events = w.order.add(f)
		w.ended = f.Terminal()
	}
	event := w.events[0]
	w.events = w.events[1:]
	return event, nil
}

// Close ends the watch; it waits at most 2 s for the bus. Call it once, when no
// Next runs.
func (w *Watch) Close() { w.follower.close() }

// FramesStored reports whether the bus still has any frame of a task, by the
// word of the stream's leader. It needs an observer's rights. Blocks until the bus
// answers or ctx is done.
func (b *Bus) FramesStored(ctx context.Context, task protocol.TaskID) (bool, error) {
	if err := protocol.ValidateName("task_id", string(task)); err != nil {
		return false, err
	}
	held, err := b.led(ctx, b.ns.TasksStream(), b.ns.TaskSubject(task))
	return held > 0, err
}

// frameOrder restores the order of a task's frames.
type frameOrder struct {
	live    bool
	attempt int
	next    int                            // the number that is told next
	held    map[int]protocol.ReceivedFrame // came before their turn
	highest int                            // of held
}

// add takes a frame as it was stored and gives what can be told now.
func (o *frameOrder) add(f protocol.ReceivedFrame) []WatchEvent {
	if f.Terminal() {
		return append(o.finish(f.Attempt, f.Seq), WatchEvent{Frame: &f})
	}
	var events []WatchEvent
	switch {
	case f.Seq < 1, f.Seq == math.MaxInt, f.Attempt < o.attempt:
		return nil
	case f.Attempt > o.attempt:
		events = o.flush()
		if o.live && o.attempt == 0 {
			o.next = f.Seq // what was before is not asked for
		} else {
			o.next = 1
		}
		o.attempt = f.Attempt
	}
	if f.Seq < o.next {
		return events // again
	}
	if o.held == nil {
		o.held = map[int]protocol.ReceivedFrame{}
	}
	o.held[f.Seq] = f
	o.highest = max(o.highest, f.Seq)
	events = o.inTurn(events)
	// A number is sent only when all that are maxInFlight lower are stored, so
	// what is missing there stays missing.
	for gone := o.highest - maxInFlight; o.next <= gone; {
		events = o.skip(events, gone)
		events = o.inTurn(events)
	}
	return events
}

// inTurn tells the frames whose turn it is.
func (o *frameOrder) inTurn(events []WatchEvent) []WatchEvent {
	for {
		f, ok := o.held[o.next]
		if !ok {
			return events
		}
		delete(o.held, o.next)
		events = append(events, WatchEvent{Frame: &f})
		o.next++
	}
}

// skip tells a hole up to the next frame that is there, and at most up to last.
func (o *frameOrder) skip(events []WatchEvent, last int) []WatchEvent {
	from := o.next
	next := last + 1 // not step by step: a stranger's frame may have any number
	for seq := range o.held {
		if seq >= from {
			next = min(next, seq)
		}
	}
	if next <= from {
		return events
	}
	o.next = next
	return append(events, WatchEvent{Hole: &Hole{Attempt: o.attempt, From: from, To: o.next - 1}})
}

// flush tells all that is held, with its holes.
func (o *frameOrder) flush() []WatchEvent {
	var events []WatchEvent
	for len(o.held) > 0 {
		events = o.inTurn(o.skip(events, o.highest))
	}
	o.highest = 0
	return events
}

// finish tells what is left before a terminal status: all frames of its attempt
// were stored before it. Another than the attempt's worker does not know how
// many there were, and gives 0.
func (o *frameOrder) finish(attempt, seq int) []WatchEvent {
	events := o.flush()
	if seq < 1 || attempt < o.attempt {
		return events
	}
	if attempt > o.attempt {
		if o.live && o.attempt == 0 {
			return events
		}
		o.attempt, o.next = attempt, 1
	}
	return o.skip(events, seq-1)
}
