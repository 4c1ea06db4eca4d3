package sandbox_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// BenchmarkRun is a whole run, in an engine and in a sandbox process that is warm.
// [BenchmarkBesideFloor] compares.
func BenchmarkRun(b *testing.B) {
	module := testenv.WAT(b, "noop")
	b.Run("noop", func(b *testing.B) { benchmarkSpec(b, newEngine(b), spec(b, module)) })
	b.Run("noop with a directory", func(b *testing.B) {
		s := spec(b, module)
		s.WorkDir = b.TempDir()
		benchmarkSpec(b, newEngine(b), s)
	})
	b.Run("hello in Go", func(b *testing.B) {
		s := spec(b, testenv.GoCapsule(b, "hello"))
		s.Stdin = []byte("Ada")
		benchmarkSpec(b, newEngine(b), s)
	})
	// In a sandbox process that is warm: what the process adds is the difference to
	// the same run above.
	b.Run("process/noop", func(b *testing.B) { benchmarkSpec(b, newSupervisor(b), spec(b, module)) })
	b.Run("process/noop with a directory", func(b *testing.B) {
		s := spec(b, module)
		root := b.TempDir()
		s.WorkDir = filepath.Join(root, "work")
		if err := os.Mkdir(s.WorkDir, 0o700); err != nil {
			b.Fatal(err)
		}
		benchmarkSpec(b, newSupervisor(b, func(c *sandbox.ProcessConfig) { c.WorkRoot = root }), s)
	})
	b.Run("process/hello in Go", func(b *testing.B) {
		s := spec(b, testenv.GoCapsule(b, "hello"))
		s.Stdin = []byte("Ada")
		benchmarkSpec(b, newSupervisor(b), s)
	})
}

// BenchmarkColdStart is a run in a process that is started for it and ended
// after it, with the module compiled before.
func BenchmarkColdStart(b *testing.B) {
	s := spec(b, testenv.WAT(b, "noop"))
	cfg := sandbox.ProcessConfig{Config: sandbox.Config{CacheDir: testenv.CompiledCache(b)}, WorkRoot: b.TempDir()}
	for b.Loop() {
		supervisor, err := sandbox.NewSupervisor(cfg)
		if err != nil {
			b.Fatal(err)
		}
		if end := supervisor.Run(context.Background(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			b.Fatalf("Run = %+v, want exited", end)
		}
		if err := supervisor.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// runner is an engine or a supervisor.
type runner interface {
	Run(context.Context, sandbox.Spec, func(protocol.Event)) sandbox.Ending
}

func benchmarkSpec(b *testing.B, e runner, s sandbox.Spec) {
	for b.Loop() {
		if end := e.Run(context.Background(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			b.Fatalf("Run = %+v, want exited", end)
		}
	}
}

// BenchmarkHostCall is what a host function costs a guest that calls it again and
// again.
func BenchmarkHostCall(b *testing.B) {
	const each = 100_000
	s := spec(b, wat(b, `(module
	  (import "starling:capsule/control@0.1.0" "canceled" (func $canceled (result i32)))
	  (memory (export "memory") 1)
	  (func (export "_start") (local $n i32)
	    (local.set $n (i32.const 100000))
	    (loop $l
	      (drop (call $canceled))
	      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
	      (br_if $l (local.get $n)))))`))
	benchmarkSpec(b, newEngine(b), s)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each, "ns/call")
}

// BenchmarkSignals is what one import signal costs a guest that gives 100,000.
func BenchmarkSignals(b *testing.B) {
	const each = 100_000
	module := wat(b, `(module
	  (import "murmur:stream/events@0.1.0" "emit-chunk" (func $chunk (param i32 i32)))
	  (memory (export "memory") 1)
	  (func (export "_start") (local $n i32)
	    (local.set $n (i32.const 100000))
	    (loop $l
	      (call $chunk (i32.const 0) (i32.const 8))
	      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
	      (br_if $l (local.get $n)))))`)
	for name, e := range map[string]runner{"inprocess": newEngine(b), "process": newSupervisor(b)} {
		b.Run(name, func(b *testing.B) {
			benchmarkSpec(b, e, spec(b, module))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each, "ns/signal")
		})
	}
}

// BenchmarkLines is what one line of stdout costs in mode events.
func BenchmarkLines(b *testing.B) {
	const each = 1000
	module := wat(b, `(module
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (memory (export "memory") 1)
	  (data (i32.const 0) "\10\00\00\00\29\00\00\00")
	  (data (i32.const 16) "{\22event\22:\22text-delta\22,\22text\22:\22fragment\22}\n")
	  (func (export "_start") (local $n i32)
	    (local.set $n (i32.const 1000))
	    (loop $l
	      (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
	      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
	      (br_if $l (local.get $n)))))`)
	for name, e := range map[string]runner{"inprocess": newEngine(b), "process": newSupervisor(b)} {
		b.Run(name, func(b *testing.B) {
			s := spec(b, module)
			s.Output = protocol.OutputEvents
			benchmarkSpec(b, e, s)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each, "ns/line")
		})
	}
}

// BenchmarkOthersBesideGuestsThatCall is a round trip over a socket while guests
// call the host without a pause, twice as many as there are processors. A
// worker's renewals live beside such guests.
func BenchmarkOthersBesideGuestsThatCall(b *testing.B) {
	e, module := newEngine(b), testenv.WAT(b, "hostspin")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var others sync.WaitGroup
	others.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	})
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	canceled := make(chan struct{})
	for range 2 * runtime.GOMAXPROCS(0) {
		others.Go(func() {
			s := spec(b, module)
			s.Canceled = canceled
			e.Run(b.Context(), s, func(protocol.Event) {})
		})
	}
	buf := make([]byte, 1)
	for b.Loop() {
		if _, err := conn.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			b.Fatal(err)
		}
	}
	close(canceled)
	_, _ = conn.Close(), listener.Close()
	others.Wait()
}
