package sandbox

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/protocol"
	"starling/sandbox/internal/wasmtimex"
)

// machine is one engine of the binding's with what guests import. Modules are
// loaded into each machine by itself; both take the same compiled form.
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

// machines are the two of an engine. The pool has memory ready for so many
// guests, which makes the start of one several times as fast. What it has no
// place for (more guests, a module with more tables or larger ones, a larger
// limit) runs in the plain machine, which maps memory for each guest and is made
// when it is first needed.
type machines struct {
	pool   *machine
	places atomic.Int64 // of the pool that are free

	mu    sync.Mutex
	plain atomic.Pointer[machine] // set under mu; nil: not made yet

	components atomic.Pointer[wasmtimex.Components] // nil but in a run of a component
}

// The bounds of a guest in the pool beside its memory. A module from a usual
// compiler has one table of some thousand elements.
const (
	poolTables        = 4
	poolTableElements = 100_000 // the default limit: see protocol.DefaultLimits
	poolTableResident = 64 << 10
)

// poolFor is the pool of an engine.
func poolFor(cfg Config) wasmtimex.Pool {
	return wasmtimex.Pool{
		Guests: cfg.Guests, MemoryBytes: 4 << 30, MemoryResidentBytes: max(cfg.ResidentBytes, 0),
		Tables: poolTables, TableElements: poolTableElements, TableResidentBytes: poolTableResident,
	}
}

func (m *machines) open(cfg Config) error {
	settings := poolFor(cfg)
	pool, err := newMachine(newWasmEngine(&settings))
	if err != nil {
		return err
	}
	m.pool = pool
	m.places.Store(int64(cfg.Guests))
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
	m.pool.wasm.IncrementEpoch()
	if components := m.components.Load(); components != nil {
		components.Tick()
	}
	if plain := m.plain.Load(); plain != nil {
		plain.wasm.IncrementEpoch()
	}
}

func (m *machines) close() {
	m.pool.close()
	if plain := m.plain.Load(); plain != nil {
		plain.close()
	}
}

// take takes a place in the pool for a guest with these limits; leave gives it
// back.
func (m *machines) take(l protocol.Limits) bool {
	if l.TableElements > poolTableElements {
		return false
	}
	if m.places.Add(-1) < 0 {
		m.places.Add(1)
		return false
	}
	return true
}

func (m *machines) leave() { m.places.Add(1) }

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
