package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// TestAGuestAsksHowMuchItMayWrite when it has written what it might, by fd_write and by
// fd_pwrite, and waits for the answer; one that may write no more waits for its end.
func TestAGuestAsksHowMuchItMayWrite(t *testing.T) {
	t.Parallel()
	const block, blocks = 64 << 10, 10
	for function, call := range map[string]string{
		"fd_write": `(import "wasi_snapshot_preview1" "fd_write" (func $f (param i32 i32 i32 i32) (result i32)))
		  (func $put (result i32) (call $f (i32.load (i32.const 0)) (i32.const 8) (i32.const 1) (i32.const 4)))`,
		"fd_pwrite": `(import "wasi_snapshot_preview1" "fd_pwrite" (func $f (param i32 i32 i32 i64 i32) (result i32)))
		  (func $put (result i32)
		    (call $f (i32.load (i32.const 0)) (i32.const 8) (i32.const 1) (i64.mul (i64.const 65536) (i64.extend_i32_u (global.get $i))) (i32.const 4)))`,
	} {
		module := wat(t, `(module
		  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
		  `+call+`
		  (memory (export "memory") 4) (global $i (mut i32) (i32.const 0))
		  (data (i32.const 24) "a") (data (i32.const 8) "\00\00\01\00\00\00\01\00")
		  (func (export "_start")
		    (if (call $open (i32.const 3) (i32.const 0) (i32.const 24) (i32.const 1) (i32.const 1) (i64.const 70) (i64.const 0) (i32.const 0) (i32.const 0))
		      (then unreachable))
		    (loop $l
		      (if (call $put) (then unreachable))
		      (global.set $i (i32.add (global.get $i) (i32.const 1)))
		      (br_if $l (i32.lt_u (global.get $i) (i32.const 10))))))`)
		t.Run(function, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			eachRunner(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root }, func(t *testing.T, r runner) {
				s := withDirectory(t, root, spec(t, module))
				s.Limits.WorkdirBytes = 2*block + 1
				file := filepath.Join(s.WorkDir, "a")
				var seen []int64
				size := func() int64 {
					info, err := os.Stat(file)
					if err != nil {
						t.Error(err)
						return 0
					}
					return info.Size() / block
				}
				s.Room = func(context.Context) int64 {
					seen = append(seen, size())
					return 3 * block
				}
				if end := r.Run(t.Context(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
					t.Fatalf("Run = %+v, want exited", end)
				}
				// A write counts with 17 blocks of 4 KiB.
				if want := []int64{2, 5, 8}; !slices.Equal(seen, want) || size() != blocks {
					t.Errorf("asked at %d blocks of %d, want at %d of %d", seen, size(), want, blocks)
				}

				// How much is written of a run that may write no more.
				stopped := func(ctx context.Context, room func()) (sandbox.Ending, int64) {
					s := withDirectory(t, root, s)
					file = filepath.Join(s.WorkDir, "a")
					s.Limits.WorkdirBytes, s.Limits.DeadlineSeconds = block, 1
					s.Room = func(context.Context) int64 { room(); return 0 }
					return r.Run(ctx, s, func(protocol.Event) {}), size()
				}
				full := errors.New("full")
				ctx, stop := context.WithCancelCause(t.Context())
				if end, n := stopped(ctx, func() { stop(full) }); end.Kind != sandbox.Interrupted || !errors.Is(end.Err, full) || n != 1 {
					t.Errorf("Run = %+v after %d blocks, want interrupted after 1", end, n)
				}
				if end, n := stopped(t.Context(), func() {}); end.Limit != sandbox.LimitDeadline || n != 1 {
					t.Errorf("Run = %+v after %d blocks, want the deadline after 1", end, n)
				}
			})
		})
	}
}

// TestAByteInEachBlockCountsAsBlocks: the disk has no smaller pieces.
func TestAByteInEachBlockCountsAsBlocks(t *testing.T) {
	t.Parallel()
	s := withDirectory(t, t.TempDir(), spec(t, wat(t, `(module
	  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_pwrite" (func $put (param i32 i32 i32 i64 i32) (result i32)))
	  (memory (export "memory") 1) (data (i32.const 24) "a") (data (i32.const 8) "\18\00\00\00\01\00\00\00")
	  (func (export "_start") (local $at i64)
	    (if (call $open (i32.const 3) (i32.const 0) (i32.const 24) (i32.const 1) (i32.const 1) (i64.const 70) (i64.const 0) (i32.const 0) (i32.const 0))
	      (then unreachable))
	    (loop $l
	      (if (call $put (i32.load (i32.const 0)) (i32.const 8) (i32.const 1) (local.get $at) (i32.const 4)) (then unreachable))
	      (br_if $l (i64.lt_u (local.tee $at (i64.add (local.get $at) (i64.const 4096))) (i64.const 409600))))))`)))
	s.Limits.WorkdirBytes = 200 << 10
	ctx, stop := context.WithCancelCause(t.Context())
	s.Room = func(context.Context) int64 { stop(errors.New("full")); return 0 }
	end := newEngine(t).Run(ctx, s, func(protocol.Event) {})
	info, err := os.Stat(filepath.Join(s.WorkDir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if end.Kind != sandbox.Interrupted || info.Size() > s.Limits.WorkdirBytes {
		t.Errorf("Run = %s after %d bytes with holes, want it interrupted before %d", end.Kind, info.Size(), s.Limits.WorkdirBytes)
	}
}

// TestAProcessThatGoesOnAskingIsKilled soon after its guest's deadline, though each look
// takes long.
func TestAProcessThatGoesOnAskingIsKilled(t *testing.T) {
	t.Parallel()
	const killAfter = 500 * time.Millisecond
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) {
		c.Command, c.KillAfter = hostileProcess(t, "questions for room without an end", "", ""), killAfter
	})
	run := spec(t, testenv.WAT(t, "noop"))
	run.Limits.DeadlineSeconds = 1
	ctx, tooLate := context.WithTimeout(t.Context(), soon)
	defer tooLate()
	run.Room = func(context.Context) int64 {
		if ctx.Err() == nil {
			<-time.After(60 * time.Millisecond) // a look at many files
		}
		return 1
	}
	if end := s.Run(t.Context(), run, func(protocol.Event) {}); end.Kind == sandbox.Exited || ctx.Err() != nil {
		t.Errorf("Run = %+v, %v, want the process's end soon after the deadline", end, ctx.Err())
	}
}
