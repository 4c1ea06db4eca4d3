package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"starling/protocol"
	"starling/sandbox"
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
			eachRunner(t, root, func(t *testing.T, r runner) {
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
				if want := []int64{3, 7}; !slices.Equal(seen, want) || size() != blocks {
					t.Errorf("asked at %d blocks of %d, want at %d of %d", seen, size(), want, blocks)
				}

				s = withDirectory(t, root, s)
				file = filepath.Join(s.WorkDir, "a")
				s.Limits.WorkdirBytes = block
				full := errors.New("full")
				ctx, stop := context.WithCancelCause(t.Context())
				s.Room = func(context.Context) int64 { stop(full); return 0 }
				if end := r.Run(ctx, s, func(protocol.Event) {}); end.Kind != sandbox.Interrupted || !errors.Is(end.Err, full) {
					t.Errorf("Run = %+v, want interrupted", end)
				}
				s.Room = func(context.Context) int64 { return 0 }
				s.Limits.DeadlineSeconds = 1
				if end := r.Run(t.Context(), s, func(protocol.Event) {}); end.Kind != sandbox.LimitHit || end.Limit != sandbox.LimitDeadline {
					t.Errorf("Run = %+v, want the deadline", end)
				}
				if size() != 2 {
					t.Errorf("%d blocks were written, want 2", size())
				}
			})
		})
	}
}

// eachRunner runs a test in an engine and in sandbox processes whose work root it is.
func eachRunner(t *testing.T, root string, test func(*testing.T, runner)) {
	t.Helper()
	t.Run("engine", func(t *testing.T) {
		t.Parallel()
		test(t, newEngine(t))
	})
	t.Run("process", func(t *testing.T) {
		t.Parallel()
		test(t, newSupervisor(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root }))
	})
}
