package sandbox

import "github.com/bytecodealliance/wasmtime-go/v39"

// NewFloorEngine is the engine's settings without the rest of the product, for
// benchmarks beside a floor.
func NewFloorEngine(guests int) *wasmtime.Engine {
	pool := poolFor(Config{Guests: guests}.withDefaults())
	return newWasmEngine(&pool)
}

// NewPlainFloorEngine is the same without a pool.
func NewPlainFloorEngine() *wasmtime.Engine { return newWasmEngine(nil) }
