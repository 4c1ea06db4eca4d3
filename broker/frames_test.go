package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

const tasksStream = "STARLING_TASKS"

func newPlace() protocol.Place {
	return protocol.Place{
		TaskID: protocol.NewTaskID(), ContextID: protocol.NewContextID(), SessionID: protocol.NewSessionID(), Attempt: 1,
	}
}

func text(s string) protocol.Frame {
	return protocol.Frame{Kind: protocol.FrameText, Text: s, Append: true}
}

func progress(n int) protocol.Frame {
	return protocol.Frame{Kind: protocol.FrameToolCallProgress, ToolCallID: "call", InputBytes: int64(n)}
}

func send(t testing.TB, s *broker.FrameSender, frames ...protocol.Frame) {
	t.Helper()
	for _, f := range frames {
		if err := s.Send(t.Context(), f); err != nil {
			t.Fatalf("Send() = %v", err)
		}
	}
}

func flush(t testing.TB, s *broker.FrameSender) {
	t.Helper()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatalf("Flush() = %v", err)
	}
}

// framesOf are the frames of a task as the stream holds them.
func framesOf(t testing.TB, js jetstream.JetStream, task protocol.TaskID) []protocol.ReceivedFrame {
	t.Helper()
	var frames []protocol.ReceivedFrame
	for _, m := range storedOn(t, js, tasksStream, "starling.tasks."+string(task)) {
		f, err := protocol.ParseFrame(m.Header.Get, m.Data)
		if err != nil {
			t.Fatalf("ParseFrame() = %v", err)
		}
		frames = append(frames, f)
	}
	return frames
}

// TestFramesAreHeldBackWhileTheTaskIsNotOurs: what was taken goes out when the
// worker is sure again, and nothing before.
func TestFramesAreHeldBackWhileTheTaskIsNotOurs(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	place := newPlace()
	sender := b.NewFrameSender(place)
	defer sender.Close()
	var mine atomic.Bool
	asked := make(chan struct{}, 1)
	sender.SendWhile(func() bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return mine.Load()
	})
	send(t, sender, progress(1), text("one"), progress(2))
	for range 3 { // the sends, and the sender's own looks
		<-asked
	}
	if held := framesOf(t, js, place.TaskID); len(held) != 0 {
		t.Errorf("%d frames went out of a task that is another's", len(held))
	}
	mine.Store(true)
	flush(t, sender)
	if sent := framesOf(t, js, place.TaskID); len(sent) != 3 || sent[0].Seq != 1 {
		t.Errorf("frames %+v, want all three", sent)
	}
}

func TestFramesAreNumberedFromOneAndFlushWaitsForThemAll(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	place := newPlace()
	place.Attempt = 3
	sender := b.NewFrameSender(place)
	defer sender.Close()
	flush(t, sender) // nothing
	if sender.NextSeq() != 1 || sender.LastSequence() != 0 {
		t.Errorf("NextSeq() = %d, LastSequence() = %d; want 1, 0", sender.NextSeq(), sender.LastSequence())
	}
	for i := range 1000 {
		send(t, sender, progress(i))
	}
	flush(t, sender)
	frames := framesOf(t, js, place.TaskID)
	if len(frames) != 1000 {
		t.Fatalf("%d frames stored, want 1000", len(frames))
	}
	for i, f := range frames {
		if f.Seq != i+1 || f.Attempt != 3 || f.SessionID != place.SessionID || f.InputBytes != int64(i) {
			t.Fatalf("frame %d is %+v", i, f)
		}
	}
	if last := streamState(t, js, tasksStream).LastSeq; sender.NextSeq() != 1001 || sender.LastSequence() != last {
		t.Errorf("NextSeq() = %d, LastSequence() = %d; want 1001, %d", sender.NextSeq(), sender.LastSequence(), last)
	}
}

func TestNeighbouringFragmentsAreJoined(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	first := text("a")
	first.Append = false
	final := text("z")
	final.Final = true
	thought := protocol.Frame{Kind: protocol.FrameThinking, Text: "hm"}
	for name, tt := range map[string]struct {
		in   []protocol.Frame
		want []string
	}{
		"texts":                       {[]protocol.Frame{first, text("b"), text("c")}, []string{"text abc"}},
		"thoughts":                    {[]protocol.Frame{thought, thought}, []string{"thinking hmhm"}},
		"a text and a thought":        {[]protocol.Frame{text("a"), thought, text("b")}, []string{"text a", "thinking hm", "text b"}},
		"the last of a segment":       {[]protocol.Frame{text("a"), final}, []string{"text a", "text z final"}},
		"the first of the next one":   {[]protocol.Frame{text("a"), first, text("b")}, []string{"text a", "text ab"}},
		"a frame between":             {[]protocol.Frame{text("a"), progress(1), text("b")}, []string{"text a", "tool-call-progress ", "text b"}},
		"never lost, never reordered": {[]protocol.Frame{progress(1), text("a"), text("b"), final, thought}, []string{"tool-call-progress ", "text ab", "text z final", "thinking hm"}},
	} {
		place := newPlace()
		sender := b.NewFrameSender(place)
		send(t, sender, tt.in...)
		flush(t, sender)
		sender.Close()
		var got []string
		for _, f := range framesOf(t, js, place.TaskID) {
			line := string(f.Kind) + " " + f.Text
			if f.Final {
				line += " final"
			}
			got = append(got, line)
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: stored %q, want %q", name, got, tt.want)
		}
	}
}

func TestAFragmentAloneGoesOutByItself(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	place := newPlace()
	sender := b.NewFrameSender(place)
	defer sender.Close()
	send(t, sender, text("alone"))
	testenv.EventuallyTrue(t, within, "the fragment", func() bool { return len(framesOf(t, js, place.TaskID)) == 1 })
	send(t, sender, text("again"))
	testenv.EventuallyTrue(t, within, "the next", func() bool { return len(framesOf(t, js, place.TaskID)) == 2 })
}

func TestFlushDoesNotWaitForNeighbours(t *testing.T) {
	t.Parallel()
	b, _ := initialized(t)
	best := time.Hour
	for range 20 { // the machine is shared: one quick try shows it
		sender := b.NewFrameSender(newPlace())
		start := time.Now()
		send(t, sender, text("a"))
		flush(t, sender)
		best = min(best, time.Since(start))
		sender.Close()
	}
	if best >= 20*time.Millisecond {
		t.Errorf("a fragment and a flush take %s, want less than the 20ms of joining", best)
	}
}

func TestALongFragmentIsSplit(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	place := newPlace()
	sender := b.NewFrameSender(place)
	defer sender.Close()
	long := text(strings.Repeat("ä<", 400_000))
	long.Append, long.Final = false, true
	send(t, sender, long)
	flush(t, sender)
	var whole strings.Builder
	frames := framesOf(t, js, place.TaskID)
	for i, f := range frames {
		whole.WriteString(f.Text)
		if f.Append != (i > 0) || f.Final != (i == len(frames)-1) {
			t.Errorf("piece %d: append %t, final %t", i, f.Append, f.Final)
		}
	}
	if whole.String() != long.Text || len(frames) < 2 {
		t.Errorf("%d pieces of %d bytes, want all %d", len(frames), whole.Len(), len(long.Text))
	}
	for _, m := range storedOn(t, js, tasksStream, "starling.tasks."+string(place.TaskID)) {
		if len(m.Data) > protocol.MaxFrameBytes {
			t.Errorf("a frame has %d bytes", len(m.Data))
		}
	}
}

func TestAFullBufferHoldsTheGuestBack(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL())
	place := newPlace()
	sender := b.NewFrameSender(place)
	defer sender.Close()
	p.Stall(testenv.ToClient) // frames pass, acks do not
	sent := 0
	for ; sent < 10_000; sent++ {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := sender.Send(ctx, progress(sent))
		cancel()
		if err != nil {
			wantError(t, "Send()", err, broker.ErrUnavailable)
			break
		}
	}
	if want := 256 + 256; sent != want {
		t.Errorf("%d frames were taken without an ack, want %d in flight and buffered", sent, want)
	}
	p.Resume()
	flush(t, sender)
	frames := framesOf(t, testenv.JetStream(t, s.URL()), place.TaskID)
	for i := range sent {
		if i >= len(frames) || frames[i].InputBytes != int64(i) {
			t.Fatalf("frame %d of %d is not where it belongs (%d stored)", i, sent, len(frames))
		}
	}
}

// hearAll reads a task until its end and fails unless the frames are 0…n-1 in
// order, each once.
func hearAll(t *testing.T, w *broker.Watch, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*within)
	defer cancel()
	heard := 0
	for {
		e, err := w.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			if heard != n {
				t.Errorf("%d frames heard, want %d", heard, n)
			}
			return
		case err != nil:
			t.Errorf("Next() after %d frames = %v", heard, err)
			return
		case e.Hole != nil:
			t.Errorf("hole %+v", *e.Hole)
			return
		case e.Frame.Terminal():
		case e.Frame.InputBytes != int64(heard) || e.Frame.Seq != heard+1:
			t.Errorf("frame %d is number %d with %d", heard, e.Frame.Seq, e.Frame.InputBytes)
			return
		default:
			heard++
		}
	}
}

// streamUnder sends n frames while trouble happens, ends the task and reads it
// back, live and late.
func streamUnder(t *testing.T, worker, observer *broker.Bus, n int, trouble func(i int)) {
	t.Helper()
	rec := canceledRecord(newJob())
	live, err := observer.WatchTask(t.Context(), rec.TaskID, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		hearAll(t, live, n)
	}()
	defer func() { <-heard }()
	sender := worker.NewFrameSender(protocol.Place{TaskID: rec.TaskID, ContextID: rec.ContextID, SessionID: rec.SessionID, Attempt: 1})
	defer sender.Close()
	for i := range n {
		trouble(i)
		send(t, sender, progress(i))
	}
	flush(t, sender)
	err = worker.WriteTerminal(t.Context(), rec, broker.TerminalOptions{Seq: sender.NextSeq(), LastSequence: sender.LastSequence()})
	if err != nil {
		t.Fatal(err)
	}
	late, err := observer.WatchTask(t.Context(), rec.TaskID, broker.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	hearAll(t, late, n)
}

func TestNoFrameIsLostWhenConnectionsAreCut(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL(), func(c *broker.Config) { c.SeparateFrames = true })
	streamUnder(t, b, direct, 5000, func(i int) {
		if i%1000 == 999 {
			p.Cut()
		}
	})
}

func TestNoFrameIsLostWhenAcksAre(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	direct := connected(t, s.URL())
	if err := direct.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	p := testenv.Proxy(t, s.URL())
	b := connected(t, p.URL())
	var n atomic.Int64
	p.DropAnswers(func(_ string, payload []byte) bool {
		return strings.Contains(string(payload), tasksStream) && n.Add(1)%500 == 0
	})
	streamUnder(t, b, direct, 1000, func(int) {})
	if p.Dropped() == 0 {
		t.Error("no ack was lost")
	}
}

func TestNoFrameIsLostWhenTheServerRestarts(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	streamUnder(t, b, b, 2000, func(i int) {
		if i == 1000 {
			s.Restart()
		}
	})
}

func TestNoFrameIsLostWhenTheStreamsLeaderStops(t *testing.T) {
	t.Parallel()
	b, c := onCluster(t)
	streamUnder(t, b, b, 3000, func(i int) {
		if i == 1000 {
			leader := c.LeaderOf(tasksStream, "")
			leader.Stop()
			t.Cleanup(leader.Start)
		}
	})
}

func TestACloseSenderPublishesNothingMore(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	place := newPlace()
	sender := b.NewFrameSender(place)
	send(t, sender, progress(0))
	flush(t, sender)
	send(t, sender, text("waits for its neighbours"))
	sender.Close()
	sender.Close()
	wantError(t, "Send()", sender.Send(t.Context(), progress(1)), broker.ErrClosed, string(place.TaskID))
	wantError(t, "Flush()", sender.Flush(t.Context()), broker.ErrClosed)
	other := b.NewFrameSender(newPlace())
	defer other.Close()
	send(t, other, progress(0))
	flush(t, other)
	if n := len(framesOf(t, js, place.TaskID)); n != 1 {
		t.Errorf("%d frames stored, want 1", n)
	}
	b.NewFrameSender(newPlace()).Close() // before it was used
}

func TestASenderWithoutTheRightSaysSo(t *testing.T) {
	t.Parallel()
	parent := testenv.ParentUser(protocol.DefaultNamespace, protocol.NewSessionID())
	s := testenv.NATS(t, testenv.WithUsers(testenv.OperatorUser(), parent))
	operator := connected(t, s.URL(), as(testenv.OperatorUser()))
	if err := operator.Init(t.Context(), broker.InitConfig{}); err != nil {
		t.Fatal(err)
	}
	sender := connected(t, s.URL(), as(parent)).NewFrameSender(newPlace())
	defer sender.Close()
	send(t, sender, progress(0))
	wantError(t, "Flush()", sender.Flush(t.Context()), broker.ErrDenied)
}

func TestManySendersShareOneBus(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	js := testenv.JetStream(t, s.URL())
	places := make([]protocol.Place, 20)
	ended := make(chan error, len(places))
	for i := range places {
		places[i] = newPlace()
		go func() {
			sender := b.NewFrameSender(places[i])
			defer sender.Close()
			for n := range 100 {
				if err := sender.Send(context.Background(), progress(n)); err != nil {
					ended <- err
					return
				}
			}
			ended <- sender.Flush(context.Background())
		}()
	}
	for range places {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for i, place := range places {
		if n := len(framesOf(t, js, place.TaskID)); n != 100 {
			t.Errorf("sender %d stored %d frames, want 100", i, n)
		}
	}
}

func TestFramesCarryTheirHeaders(t *testing.T) {
	t.Parallel()
	b, s := initialized(t)
	place := newPlace()
	sender := b.NewFrameSender(place)
	defer sender.Close()
	send(t, sender, progress(7))
	flush(t, sender)
	m := storedOn(t, testenv.JetStream(t, s.URL()), tasksStream, "starling.tasks."+string(place.TaskID))[0]
	for header, want := range map[string]string{
		"Nats-Msg-Id": string(place.TaskID) + ".1.1", "Starling-Frame": "tool-call-progress", "Starling-Attempt": "1",
		"Starling-Seq": strconv.Itoa(1), "Starling-Session": string(place.SessionID), "A2A-Version": "1.0",
	} {
		if got := m.Header.Get(header); got != want {
			t.Errorf("header %s = %q, want %q", header, got, want)
		}
	}
}
