package sandbox

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/protocol"
	"starling/sandbox/internal/wasmtimex"
)

// machine is one engine of the binding's with what guests import. Modules are
// loaded into each machine by itself; all take the same compiled form.
type machine struct {
	wasm   *wasmtime.Engine
	linker *wasmtimex.Linker
}

func newMachine(wasm *wasmtime.Engine) (*machine, error) {
	linker, err := wasmtimex.NewLinker(wasm, imports())
	if err != nil {
		wasm.Close()
		return nil, fmt.Errorf("sandbox: define imports: %w", err)
	}
	return &machine{wasm, linker}, nil
}

func (m *machine) close() {
	m.linker.Close()
	m.wasm.Close()
}

// pool is a machine that has memory ready for so many guests, which makes the start
// of one about twice as fast.
type pool struct {
	*machine
	number int // its place among the pools
	guests int64
	taken  atomic.Int64
}

// take takes a place for a guest; leave gives it back.
func (p *pool) take() bool {
	for n := p.taken.Load(); n < p.guests; n = p.taken.Load() {
		if p.taken.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (p *pool) leave() { p.taken.Add(-1) }

// machines are those of an engine. There are several pools, since guests in one hold
// each other up: it hands the memory that one processor has in its caches to another,
// and all count what they share. What the pools have no place for (more guests, a
// module with more tables or larger ones, a larger limit) runs in the plain machine,
// which maps memory for each guest and is made when it is first needed.
type machines struct {
	pools []*pool

	mu    sync.Mutex
	plain atomic.Pointer[machine] // set under mu; nil: not made yet

	components atomic.Pointer[wasmtimex.Components] // nil but in a run of a component
}

// The bounds of a guest in a pool beside its memory. A module from a usual
// compiler has one table of some thousand elements.
const (
	poolTables        = 4
	poolTableElements = 100_000 // the default limit: see protocol.DefaultLimits
	poolTableResident = 64 << 10
)

// poolFor is a pool of an engine.
func poolFor(cfg Config, guests int) wasmtimex.Pool {
	return wasmtimex.Pool{
		Guests: guests, MemoryBytes: 4 << 30, MemoryResidentBytes: max(cfg.ResidentBytes, 0),
		Tables: poolTables, TableElements: poolTableElements, TableResidentBytes: poolTableResident,
	}
}

// maxPools bounds them: each loads every module by itself.
const maxPools = 8

// open makes a pool for each processor, at most maxPools, and spreads the guests over
// them.
func (m *machines) open(cfg Config) error {
	n := min(cmp.Or(cfg.pools, runtime.GOMAXPROCS(0)), cfg.Guests, maxPools)
	for i := range n {
		guests := cfg.Guests / n
		if i < cfg.Guests%n {
			guests++
		}
		settings := poolFor(cfg, guests)
		machine, err := newMachine(newWasmEngine(&settings))
		if err != nil {
			m.close()
			return err
		}
		m.pools = append(m.pools, &pool{machine: machine, number: i, guests: int64(guests)})
	}
	return nil
}

// unpooled is the plain machine.
func (m *machines) unpooled() (*machine, error) {
	if plain := m.plain.Load(); plain != nil {
		return plain, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if plain := m.plain.Load(); plain != nil {
		return plain, nil
	}
	plain, err := newMachine(newWasmEngine(nil))
	if err == nil {
		m.plain.Store(plain)
	}
	return plain, err
}

// tick moves the epoch of all on.
func (m *machines) tick() {
	for _, p := range m.pools {
		p.wasm.IncrementEpoch()
	}
	if components := m.components.Load(); components != nil {
		components.Tick()
	}
	if plain := m.plain.Load(); plain != nil {
		plain.wasm.IncrementEpoch()
	}
}

func (m *machines) close() {
	for _, p := range m.pools {
		p.close()
	}
	if plain := m.plain.Load(); plain != nil {
		plain.close()
	}
}

// take takes a place for a guest with these limits in the pool with the fewest guests,
// which the caller leaves; nil: no pool has room.
func (m *machines) take(l protocol.Limits) *pool {
	if l.TableElements > poolTableElements {
		return nil
	}
	for {
		var free *pool
		least := int64(math.MaxInt64)
		for _, p := range m.pools {
			if taken := p.taken.Load(); taken < min(least, p.guests) {
				free, least = p, taken
			}
		}
		if free == nil || free.take() {
			return free
		}
	}
}

// form is a module in one machine.
type form struct {
	machine *machine
	module  *wasmtime.Module
	pre     *wasmtimex.Pre
}

// load makes a form of a module that read reads. Its error is a refusal when the
// module cannot be linked.
func (m *machine) load(path string, read func(*wasmtime.Engine) (*wasmtime.Module, error)) (*form, error) {
	module, err := read(m.wasm)
	if err != nil {
		return nil, err
	}
	return m.link(path, module)
}

// link takes ownership of module.
func (m *machine) link(path string, module *wasmtime.Module) (*form, error) {
	pre, err := m.linker.Pre(module)
	if err != nil {
		module.Close()
		return nil, unlinkable(path, err)
	}
	return &form{m, module, pre}, nil
}

func unlinkable(path string, err error) error {
	return refusef("module %s cannot be linked: %s: build it for WASI preview 1 (wasm32-wasip1)", path, engineText(err.Error()))
}

func (f *form) free() {
	if f != nil {
		f.pre.Close()
		f.module.Close()
	}
}
