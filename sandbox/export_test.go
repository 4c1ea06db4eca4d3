package sandbox

import (
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/sandbox/internal/egress"
)

// NewFloorEngine is the engine's settings without the rest of the product, for
// benchmarks beside a floor.
func NewFloorEngine(guests int) *wasmtime.Engine {
	pool := poolFor(Config{}.withDefaults(), guests)
	return newWasmEngine(&pool)
}

// NewPlainFloorEngine is the same without a pool.
func NewPlainFloorEngine() *wasmtime.Engine { return newWasmEngine(nil) }

// InPools sets the number of pools.
func (c *Config) InPools(n int) { c.pools = n }

// AskAfter has processes asked whether they answer once they were idle for d.
func (s *Supervisor) AskAfter(d time.Duration) { s.idleAfter = d }

// BusyHost sets how many times its limit a compilation may take on a busy host.
func (s *Supervisor) BusyHost(times int) { s.busyHost = times }

// Bound sets the limits of answers and who looks names up.
func (c *HTTPConfig) Bound(limits egress.Limits, resolver egress.Resolver) {
	c.limits, c.resolver = limits, resolver
}
