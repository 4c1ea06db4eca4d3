package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// benchSides starts the floor and the product on one server of its own process.
func benchSides(b *testing.B, f *benchFlags) map[string]side {
	b.Helper()
	b.Setenv(asProgram, "1") // the server is this binary
	var all closers
	b.Cleanup(func() {
		if err := all.close(); err != nil {
			b.Error(err)
		}
	})
	ctx := context.WithoutCancel(b.Context())
	dir := b.TempDir()
	server, err := startBenchServer(ctx, filepath.Join(dir, "server"))
	if err != nil {
		b.Fatal(err)
	}
	all.add(server.close)
	a := &app{streams: streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}, log: logSettings{LogLevel: "warn", LogFormat: "text"}}
	sides, err := a.startSides(ctx, &all, f, server.url, dir, "")
	if err != nil {
		b.Fatal(err)
	}
	return sides
}

// BenchmarkJobs is a closed loop of no-op jobs, 64 in flight at 32 slots, beside
// the floor: compare the two.
func BenchmarkJobs(b *testing.B) {
	sides := benchSides(b, &benchFlags{Slots: 32})
	for _, name := range sideNames {
		b.Run(name, func(b *testing.B) {
			if _, err := loop(b.Context(), sides[name], b.N, 64); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

// BenchmarkLatency is one job at a time, from dispatch to its terminal frame.
func BenchmarkLatency(b *testing.B) {
	sides := benchSides(b, &benchFlags{Slots: 32})
	for _, name := range sideNames {
		b.Run(name, func(b *testing.B) {
			if _, err := loop(b.Context(), sides[name], b.N, 1); err != nil {
				b.Fatal(err)
			}
		})
	}
}
