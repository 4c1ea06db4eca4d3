package broker_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"starling/broker"
	"starling/protocol"
	"starling/testenv"
)

func benchBus(b *testing.B) *broker.Bus {
	b.Helper()
	s := testenv.NATS(b)
	bus, err := broker.Connect(b.Context(), broker.Config{URL: s.URL(), ContextDir: b.TempDir(), SeparateFrames: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = bus.Close() })
	if err := bus.Init(b.Context(), broker.InitConfig{}); err != nil {
		b.Fatal(err)
	}
	return bus
}

// BenchmarkDispatchTake is the whole way of a job but for its capsule: dispatch
// by 8 parents, take with 8 slots, ack.
func BenchmarkDispatchTake(b *testing.B) {
	bus := benchBus(b)
	taker, err := bus.NewTaker(b.Context(), broker.TakerConfig{Slots: 8, PullExpires: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, acked := make(chan error, 1), make(chan error, 1024)
	go func() {
		ended <- taker.Run(ctx, func(d *broker.Delivery) {
			go func() {
				acked <- d.Ack(ctx)
				d.Release()
			}()
		})
	}()
	work := make(chan struct{})
	for range 8 {
		go func() {
			for range work {
				if _, err := bus.Dispatch(ctx, newJob(), broker.DispatchOptions{AllowUnserved: true}); err != nil {
					b.Error(err)
				}
			}
		}()
	}
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		for range b.N {
			work <- struct{}{}
		}
		close(work)
	}()
	for range b.N {
		if err := <-acked; err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkTake takes and acks a backlog.
func BenchmarkTake(b *testing.B) {
	for _, origin := range []protocol.Origin{protocol.OriginUser, protocol.OriginEvent} {
		b.Run(string(origin.Lane()), func(b *testing.B) {
			bus := benchBus(b)
			for range b.N {
				if _, err := bus.Dispatch(b.Context(), newJob(fromOrigin(origin)), broker.DispatchOptions{AllowUnserved: true}); err != nil {
					b.Fatal(err)
				}
			}
			taker, err := bus.NewTaker(b.Context(), broker.TakerConfig{Slots: 8, PullExpires: time.Second})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended, acked := make(chan error, 1), make(chan error, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				ended <- taker.Run(ctx, func(d *broker.Delivery) {
					go func() {
						acked <- d.Ack(ctx)
						d.Release()
					}()
				})
			}()
			for range b.N {
				if err := <-acked; err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			cancel()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkFrames streams whole frames, and fragments that are joined.
func BenchmarkFrames(b *testing.B) {
	text := strings.Repeat("x", 40)
	for name, frame := range map[string]func(i int) protocol.Frame{
		"whole": func(i int) protocol.Frame {
			return protocol.Frame{Kind: protocol.FrameToolCallProgress, ToolCallID: strconv.Itoa(i), InputBytes: int64(i)}
		},
		"fragments": func(i int) protocol.Frame {
			return protocol.Frame{Kind: protocol.FrameText, Text: text, Append: i > 0}
		},
	} {
		b.Run(name, func(b *testing.B) {
			bus := benchBus(b)
			s := bus.NewFrameSender(protocol.Place{TaskID: protocol.NewTaskID(), ContextID: protocol.NewContextID(), SessionID: protocol.NewSessionID(), Attempt: 1})
			defer s.Close()
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if err := s.Send(b.Context(), frame(i)); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
		})
	}
}

// BenchmarkShortTask is what a job that says nothing sends: three frames and the
// terminal status.
func BenchmarkShortTask(b *testing.B) {
	bus := benchBus(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			rec := canceledRecord(newJob())
			s := bus.NewFrameSender(protocol.Place{TaskID: rec.TaskID, ContextID: rec.ContextID, SessionID: rec.SessionID, Attempt: 1})
			for range 3 {
				if err := s.Send(b.Context(), protocol.Frame{Kind: protocol.FrameThinking, Text: "hm"}); err != nil {
					b.Error(err)
				}
			}
			if err := s.Flush(b.Context()); err != nil {
				b.Error(err)
			}
			err := bus.WriteTerminal(b.Context(), rec, broker.TerminalOptions{Seq: s.NextSeq(), LastSequence: s.LastSequence()})
			if err != nil {
				b.Error(err)
			}
			s.Close()
		}
	})
}
