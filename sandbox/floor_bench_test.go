package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// floor is the least that the binding needs for a run, with the engine's
// settings: a store with WASI and a limiter, an instance, one call.
type floor struct {
	engine *wasmtime.Engine
	linker *wasmtime.Linker
	module *wasmtime.Module
}

func newFloor(b *testing.B, engine *wasmtime.Engine, module string) *floor {
	b.Helper()
	f := &floor{engine: engine, linker: wasmtime.NewLinker(engine)}
	if err := f.linker.DefineWasi(); err != nil {
		b.Fatal(err)
	}
	// Compiled without the pool, and loaded from a file, as the product does.
	plain := sandbox.NewPlainFloorEngine()
	defer plain.Close()
	compiled, err := wasmtime.NewModuleFromFile(plain, module)
	if err != nil {
		b.Fatal(err)
	}
	content, err := compiled.Serialize()
	if err != nil {
		b.Fatal(err)
	}
	path := b.TempDir() + "/module.cwasm"
	if err := os.WriteFile(path, content, 0o600); err != nil {
		b.Fatal(err)
	}
	if f.module, err = wasmtime.NewModuleDeserializeFile(engine, path); err != nil {
		b.Fatal(err)
	}
	return f
}

func (f *floor) run(b *testing.B) {
	store := wasmtime.NewStore(f.engine)
	defer store.Close()
	wasi := wasmtime.NewWasiConfig()
	wasi.SetArgv([]string{"capsule"})
	store.SetWasi(wasi)
	store.Limiter(512<<20, 100_000, 1000, -1, 1)
	store.SetEpochDeadline(1 << 40)
	instance, err := f.linker.Instantiate(store, f.module)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := instance.GetFunc(store, "_start").Call(store); err != nil {
		var exit *wasmtime.Error
		if !errors.As(err, &exit) {
			b.Fatal(err)
		}
		if status, ok := exit.ExitStatus(); !ok || status != 0 {
			b.Fatal(err)
		}
	}
}

// BenchmarkBesideFloor runs the same guest by hand, in an engine and in a sandbox
// process that is warm, one after the other in each round, so that what else runs
// on the machine meets all of them. It gives medians over the rounds, the columns of
// docs/rationale.md. One of its operations is a round.
func BenchmarkBesideFloor(b *testing.B) {
	for _, guest := range []struct {
		name, module string
	}{
		{"noop", testenv.WAT(b, "noop")},
		{"C-like", testenv.WAT(b, "sieve")},
		{"Go", testenv.GoCapsule(b, "echo")},
	} {
		b.Run(guest.name, func(b *testing.B) {
			s := spec(b, guest.module)
			least := newFloor(b, sandbox.NewFloorEngine(1), guest.module)
			engine, processes := newEngine(b), newSupervisor(b)
			product := func(r runner) func() {
				return func() {
					if end := r.Run(context.Background(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
						b.Fatalf("Run = %+v, want exited", end)
					}
				}
			}
			sides := []struct {
				name string
				run  func()
				took []time.Duration
			}{
				{name: "floor", run: func() { least.run(b) }},
				{name: "engine", run: product(engine)},
				{name: "process", run: product(processes)},
			}
			for i := range sides {
				sides[i].run() // warm
			}
			for round := 0; b.Loop(); round++ {
				for i := range sides {
					side := &sides[(round+i)%len(sides)]
					began := time.Now()
					side.run()
					side.took = append(side.took, time.Since(began))
				}
			}
			// Of each round by itself: the machine is faster in some than in others.
			median := func(of func(round int) float64) float64 {
				all := make([]float64, len(sides[0].took))
				for round := range all {
					all[round] = of(round)
				}
				slices.Sort(all)
				return all[len(all)/2]
			}
			took := func(side, round int) float64 { return float64(sides[side].took[round].Nanoseconds()) / 1000 }
			for i := range sides {
				b.ReportMetric(median(func(round int) float64 { return took(i, round) }), sides[i].name+"-µs")
			}
			b.ReportMetric(median(func(round int) float64 { return took(1, round) / took(0, round) }), "engine/floor")
			b.ReportMetric(median(func(round int) float64 { return took(2, round) / took(0, round) }), "process/floor")
			b.ReportMetric(median(func(round int) float64 { return took(2, round) - took(1, round) }), "added-µs")
		})
	}
}

// BenchmarkParallel is whole runs in one engine on all processors: run it with
// -cpu 1,2 to see that more of them never make it slower. The floor,
// without a pool, runs beside it.
func BenchmarkParallel(b *testing.B) {
	for _, name := range []string{"noop", "sieve"} {
		module := testenv.WAT(b, name)
		b.Run(name, func(b *testing.B) {
			engine, s := newEngine(b), spec(b, module)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if end := engine.Run(context.Background(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
						b.Errorf("Run = %+v, want exited", end)
					}
				}
			})
		})
		b.Run(name+" without a pool", func(b *testing.B) {
			least := newFloor(b, sandbox.NewPlainFloorEngine(), module)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					least.run(b)
				}
			})
		})
	}
}

// BenchmarkFirstRun is the first run of a module whose compiled form is on this
// host, in an engine that is made for it.
func BenchmarkFirstRun(b *testing.B) {
	for name, module := range map[string]string{"noop": testenv.WAT(b, "noop"), "Go": testenv.GoCapsule(b, "echo")} {
		b.Run(name, func(b *testing.B) {
			s := spec(b, module)
			cfg := sandbox.Config{CacheDir: testenv.CompiledCache(b)}
			for b.Loop() {
				e, err := sandbox.New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				if end := e.Run(context.Background(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited {
					b.Fatalf("Run = %+v, want exited", end)
				}
				if err := e.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkResident is a Go guest beside how much of its memory is kept.
func BenchmarkResident(b *testing.B) {
	s := spec(b, testenv.GoCapsule(b, "echo"))
	for _, kept := range []int64{-1, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20} {
		b.Run(fmt.Sprint(kept), func(b *testing.B) {
			benchmarkSpec(b, newEngineWith(b, sandbox.Config{CacheDir: testenv.CompiledCache(b), ResidentBytes: kept}), s)
		})
	}
}
