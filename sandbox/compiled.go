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
	// read reads the module into an engine, as often as that is needed. check, which is
	// called before later reads, is an error when what it reads is not what was verified
	// any more; nil: that cannot be.
	read  func(*wasmtime.Engine) (*wasmtime.Module, error)
	check func() error

	pooled  []*form // by the number of the pool, set by load; nil: it does not fit one
	loading sync.Mutex
	plain   *form // guarded by loading; nil: not loaded

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

// load loads the module into every pool or, when it does not fit one, into the plain
// machine, so that no guest waits for that. Nobody else has the module yet. Once it
// succeeded it does nothing.
func (c *compiled) load(m *machines) error {
	if c.pooled != nil || c.plain != nil {
		return nil
	}
	var pooled []*form
	for _, p := range m.pools {
		f, err := p.load(c.path, c.read)
		if err != nil {
			for _, f := range pooled {
				f.free()
			}
			if !errors.Is(err, ErrRefused) {
				err = c.loadPlain(m) // which tells an unreadable one from one that does not fit
			}
			return err
		}
		pooled = append(pooled, f)
	}
	c.pooled = pooled
	return nil
}

// unpooled is the module in the plain machine.
func (c *compiled) unpooled(m *machines) (*form, error) {
	c.loading.Lock()
	defer c.loading.Unlock()
	if c.plain != nil {
		return c.plain, nil
	}
	if c.check != nil {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	err := c.loadPlain(m)
	return c.plain, err
}

// loadPlain sets plain. c.loading is held, or nobody else has the module.
func (c *compiled) loadPlain(m *machines) error {
	machine, err := m.unpooled()
	if err == nil {
		c.plain, err = machine.load(c.path, c.read)
	}
	return err
}

func (c *compiled) free() {
	for _, f := range c.pooled {
		f.free()
	}
	c.plain.free()
}

// seat is a place for a guest of a module.
type seat struct {
	module *compiled
	form   *form // of the module, in the machine where the place is
	pool   *pool // nil: it is in the plain machine
}

// seat takes one in a pool where it can.
func (c *compiled) seat(m *machines, l protocol.Limits) (seat, error) {
	if c.pooled != nil {
		if p := m.take(l); p != nil {
			return seat{c, c.pooled[p.number], p}, nil
		}
	}
	f, err := c.unpooled(m)
	return seat{c, f, nil}, err
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
		return nil, uncompilable(path, engineText(err.Error()))
	}
	return module, nil
}

func uncompilable(path, why string) error {
	return refusef("module %s cannot be compiled: %s: build it for WASI preview 1 without threads, exceptions,"+
		" tail calls, GC and 64-bit memory", path, why)
}
