package sandbox

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/protocol"
	"starling/sandbox/internal/wasm"
)

// compiled is a module that is ready to run.
type compiled struct {
	digest protocol.Digest
	path   string
	needs  needs
	ran    atomic.Bool // to its end, once
	// read reads the module into an engine, as often as that is needed.
	read func(*wasmtime.Engine) (*wasmtime.Module, error)

	// A nil form is one that is not loaded. They are set under loading.
	pooled     []atomic.Pointer[form] // by the number of the pool
	loading    sync.Mutex
	plain      *form // guarded by loading
	unpoolable bool  // guarded by loading

	// Under modules.mu:
	users int
	kept  *list.Element // nil once it was dropped from the cache
}

// needs is what a module has from its first instruction on.
type needs struct {
	MemoryBytes   uint64
	TableElements uint64
	// Component says that it is a component, which only sandbox processes run.
	Component bool
}

// atLeast makes it no less than what a core module has.
func (n *needs) atLeast(m *wasm.Module) {
	for _, memory := range m.Memories {
		n.MemoryBytes = max(n.MemoryBytes, min(memory.Min, 1<<32)*wasm.PageBytes)
	}
	for _, table := range m.Tables {
		n.TableElements = max(n.TableElements, table.Min)
	}
}

// form is the module in a pool or, for nil, in the plain machine; a module that does
// not fit a pool is always the latter.
func (c *compiled) form(m *machines, p *pool) (*form, error) {
	if p != nil {
		if f := c.pooled[p.number].Load(); f != nil {
			return f, nil
		}
	}
	c.loading.Lock()
	defer c.loading.Unlock()
	if p != nil && !c.unpoolable {
		if f := c.pooled[p.number].Load(); f != nil {
			return f, nil
		}
		f, err := p.load(c.path, c.read)
		if err == nil {
			c.pooled[p.number].Store(f)
		}
		if err == nil || errors.Is(err, ErrRefused) {
			return f, err
		}
	}
	if c.plain == nil {
		machine, err := m.unpooled()
		if err != nil {
			return nil, err
		}
		if c.plain, err = machine.load(c.path, c.read); err != nil {
			return nil, err
		}
	}
	if p != nil {
		c.unpoolable = true // and not unreadable: the plain machine took it
	}
	return c.plain, nil
}

func (c *compiled) free() {
	c.loading.Lock()
	defer c.loading.Unlock()
	for i := range c.pooled {
		c.pooled[i].Load().free()
	}
	c.plain.free()
}

// compileWith compiles a module with an engine of its own and gives what the
// engine serialised.
func compileWith(path string, binary []byte) ([]byte, error) {
	engine := newWasmEngine(nil)
	defer engine.Close()
	module, err := compile(engine, path, binary)
	if err != nil {
		return nil, err
	}
	defer module.Close()
	content, err := module.Serialize()
	if err != nil {
		return nil, fmt.Errorf("serialize: %w", err)
	}
	return content, nil
}

// compile turns a module into native code.
func compile(engine *wasmtime.Engine, path string, binary []byte) (*wasmtime.Module, error) {
	module, err := wasmtime.NewModule(engine, binary)
	if err != nil {
		return nil, refusef("module %s cannot be compiled: %s: build it for WASI preview 1 without threads, exceptions,"+
			" tail calls, GC and 64-bit memory", path, engineText(err.Error()))
	}
	return module, nil
}
