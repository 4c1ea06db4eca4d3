package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// both runs a test in an engine and in sandbox processes, with room for one guest
// in each pool.
func both(t *testing.T, resident int64, test func(t *testing.T, r runner)) {
	t.Helper()
	eachRunner(t, func(c *sandbox.ProcessConfig) { c.Guests, c.ResidentBytes = 1, resident }, test)
}

// TestWhatDoesNotFitThePoolRunsAllTheSame: larger tables, more of them, more
// globals, a larger limit; and what hits a limit is told the same.
func TestWhatDoesNotFitThePoolRunsAllTheSame(t *testing.T) {
	t.Parallel()
	var globals strings.Builder
	for range 70_000 {
		globals.WriteString("(global (mut i64) (i64.const 1))\n")
	}
	both(t, 0, func(t *testing.T, r runner) {
		for name, c := range map[string]struct {
			module string
			tables int64 // limit of elements
			memory int64
			want   string // message of the limit; empty: it exits
		}{
			"five tables": {wat(t, `(module (memory (export "memory") 1)
			  (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)
			  (func (export "_start")))`), 100_000, 1 << 20, ""},
			"a large table": {testenv.WAT(t, "bigtable"), 200_000, 1 << 20, ""},
			"a large table that is not granted": {
				testenv.WAT(t, "bigtable"), 199_999, 1 << 20,
				"table growth to 200000 elements exceeds capabilities.limits.table_elements (199999)",
			},
			"a table that grows beyond": {
				testenv.WAT(t, "tablehog"), 250_000, 1 << 20,
				"table growth to 250100 elements exceeds capabilities.limits.table_elements (250000)",
			},
			"a table that grows to the edge": {
				testenv.WAT(t, "tablehog"), 100_000, 1 << 20,
				"table growth to 100100 elements exceeds capabilities.limits.table_elements (100000)",
			},
			"much memory": {
				testenv.WAT(t, "memhog"), 100_000, 1 << 30,
				fmt.Sprintf("linear memory growth to %d bytes exceeds capabilities.limits.memory_bytes (%d)", 1<<30+1<<16, 1<<30),
			},
			"many globals": {wat(t, `(module (memory (export "memory") 1) `+globals.String()+`
			  (func (export "_start")))`), 100_000, 1 << 20, ""},
		} {
			s := spec(t, c.module)
			s.Limits.TableElements, s.Limits.MemoryBytes = c.tables, c.memory
			end := r.Run(t.Context(), s, func(protocol.Event) {})
			switch {
			case c.want == "" && end.Kind != sandbox.Exited:
				t.Errorf("%s: Run = %+v, want exited", name, end)
			case c.want != "" && (end.Kind != sandbox.LimitHit || !strings.HasSuffix(end.Message, c.want)):
				t.Errorf("%s: Run = %+v, want %q", name, end, c.want)
			}
		}
	})
}

// TestMoreGuestsThanThePoolsHave run, and can be stopped.
func TestMoreGuestsThanThePoolsHave(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, r runner) {
		s := talker(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		started := make(chan struct{}, 4)
		for range cap(started) {
			all.Go(func() {
				end := r.Run(ctx, s, func(protocol.Event) { started <- struct{}{} })
				if end.Kind != sandbox.Interrupted {
					t.Errorf("Run = %+v, want interrupted", end)
					cancel()
				}
			})
		}
		for range cap(started) { // all at a time
			select {
			case <-started:
			case <-ctx.Done():
			}
		}
		cancel()
		all.Wait()
	}
	both(t, 0, test)
	t.Run("engine with several pools", func(t *testing.T) {
		t.Parallel()
		cfg := sandbox.Config{CacheDir: testenv.CompiledCache(t), Guests: 3}
		cfg.InPools(2)
		test(t, newEngineWith(t, cfg))
	})
}

// TestAGuestFindsNothingOfTheOneBefore: it would trap on a byte of memory, below and
// above what is kept, on a table entry, on a global or on data that was changed.
func TestAGuestFindsNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	module := wat(t, `(module
	  (memory (export "memory") 64)
	  (table 4000 funcref)
	  (global $g (mut i32) (i32.const 7))
	  (data (i32.const 100000) "kept")
	  (elem declare func $f)
	  (func $f)
	  (func $check (param $at i32) (param $want i32)
	    (if (i32.ne (i32.load (local.get $at)) (local.get $want)) (then unreachable))
	    (i32.store (local.get $at) (i32.const -1)))
	  (func (export "_start") (local $i i32)
	    (if (i32.ne (global.get $g) (i32.const 7)) (then unreachable))
	    (global.set $g (i32.const 8))
	    (call $check (i32.const 100000) (i32.const 0x7470656b))
	    (loop $l
	      (if (i32.ne (local.get $i) (i32.const 98304))
	        (then (call $check (local.get $i) (i32.const 0))))
	      (local.set $i (i32.add (local.get $i) (i32.const 4096)))
	      (br_if $l (i32.lt_u (local.get $i) (i32.const 4194304))))
	    (call $check (i32.const 4194300) (i32.const 0))
	    (if (i32.ne (i32.const 64) (memory.grow (i32.const 64))) (then unreachable))
	    (call $check (i32.const 4194304) (i32.const 0))
	    (call $check (i32.const 8388604) (i32.const 0))
	    (local.set $i (i32.const 0))
	    (loop $t
	      (if (i32.eqz (ref.is_null (table.get 0 (local.get $i)))) (then unreachable))
	      (table.set 0 (local.get $i) (ref.func $f))
	      (local.set $i (i32.add (local.get $i) (i32.const 1)))
	      (br_if $t (i32.lt_u (local.get $i) (i32.const 4000))))))`)
	for _, resident := range []int64{-1, 1 << 20, 64 << 20} {
		t.Run(fmt.Sprint(resident), func(t *testing.T) {
			t.Parallel()
			both(t, resident, func(t *testing.T, r runner) {
				for _, s := range []sandbox.Spec{spec(t, module), spec(t, testenv.WAT(t, "sieve")), spec(t, module), spec(t, module)} {
					if end := r.Run(t.Context(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
						t.Errorf("Run = %+v, want exited", end)
					}
				}
			})
		})
	}
}

// TestMemoryBeyondTheResidentIsGivenBack: what a process keeps of its guests is
// bounded, whatever they used.
func TestMemoryBeyondTheResidentIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.ResidentBytes = 16 << 20 })
	hungry := spec(t, wat(t, `(module
	  (memory (export "memory") 4096)
	  (func (export "_start") (memory.fill (i32.const 0) (i32.const 1) (i32.const 268435456))))`))
	small := spec(t, testenv.WAT(t, "noop"))
	rss := func(spec sandbox.Spec) int {
		if end := s.Run(t.Context(), spec, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			t.Fatalf("Run = %+v, want exited", end)
		}
		return residentBytes(t, only(t, s))
	}
	before, after := rss(small), rss(hungry)
	if kept := after - before; kept < 8<<20 || kept > 48<<20 {
		t.Errorf("a guest of 256 MiB left %d MiB in its process, want about 16", kept>>20)
	}
}

// residentBytes is how much memory a process has.
func residentBytes(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}

// TestAFirstRunNeedsNoCompilationWhereTheCompiledFormIs: the module itself is not
// even there to compile.
func TestAFirstRunNeedsNoCompilationWhereTheCompiledFormIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := spec(t, testenv.WAT(t, "sieve"))
	cfg := sandbox.Config{CacheDir: dir}
	if err := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.Config = cfg }).Prepare(t.Context(), s.Module, s.Digest); err != nil {
		t.Fatal(err)
	}
	s.Module = filepath.Join(dir, "gone.wasm")
	for name, r := range map[string]runner{
		"engine":  newEngineWith(t, cfg),
		"process": newSupervisor(t, func(c *sandbox.ProcessConfig) { c.Config = cfg }),
	} {
		if end := r.Run(t.Context(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
			t.Errorf("%s: Run = %+v, want exited", name, end)
		}
	}
}

// TestTheCacheMayBeRemovedWhileGuestsRun: the next of the same module start all the
// same, in another pool, beyond the pools, and with a limit that no pool has.
func TestTheCacheMayBeRemovedWhileGuestsRun(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, r runner, cache string) {
		s := talker(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		for i := range 4 {
			if i == 3 {
				s.Limits.TableElements *= 2
			}
			guest := s
			said := make(chan sandbox.Ending, 2) // first that it runs, or how it ended
			all.Go(func() {
				said <- r.Run(ctx, guest, func(protocol.Event) { said <- sandbox.Ending{} })
			})
			if end := <-said; end.Kind != 0 {
				t.Fatalf("guest %d: Run = %+v, want that it runs", i, end)
			}
			if err := os.RemoveAll(filepath.Join(cache, "compiled")); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("engine", func(t *testing.T) {
		t.Parallel()
		cfg := sandbox.Config{CacheDir: t.TempDir(), Guests: 2}
		cfg.InPools(2)
		test(t, newEngineWith(t, cfg), cfg.CacheDir)
	})
	t.Run("process", func(t *testing.T) {
		t.Parallel()
		cache := t.TempDir()
		test(t, newSupervisor(t, func(c *sandbox.ProcessConfig) { c.CacheDir, c.Density = cache, 4 }), cache)
	})
}
