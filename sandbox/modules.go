package sandbox

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"golang.org/x/sync/singleflight"

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

	loading       sync.Mutex
	pooled, plain *form // guarded by loading; nil: not loaded
	unpoolable    bool  // guarded by loading

	// Under modules.mu:
	users int
	kept  *list.Element // nil once it was dropped from the cache
}

// needs is what a module has from its first instruction on.
type needs struct {
	MemoryBytes   uint64
	TableElements uint64
}

// modules keeps the compiled modules that were used last. What is dropped while
// a guest runs is freed when that guest is gone.
type modules struct {
	engine    *Engine
	artifacts *artifacts
	flights   singleflight.Group
	// compiling bounds the compilations at one time: each takes all cores and,
	// for a hostile module, more than a gigabyte.
	compiling chan struct{}

	mu       sync.Mutex
	byDigest map[protocol.Digest]*compiled
	recent   *list.List // of *compiled, the last used in front
}

func newModules(e *Engine, artifacts *artifacts) *modules {
	return &modules{
		engine: e, artifacts: artifacts, compiling: make(chan struct{}, 1),
		byDigest: map[protocol.Digest]*compiled{}, recent: list.New(),
	}
}

// source is where a module comes from.
type source struct {
	path   string
	digest protocol.Digest
	code   *code // what was compiled and verified elsewhere; nil: by this engine
}

// acquire returns the module, which the caller releases.
func (m *modules) acquire(ctx context.Context, src source) (*compiled, error) {
	for {
		if c := m.lookup(src.digest); c != nil {
			return c, nil
		}
		if err := src.digest.Validate(); err != nil {
			return nil, refusef("%s", err)
		}
		// What is made may be dropped again before this caller gets at it.
		flight := m.flights.DoChan(string(src.digest), func() (any, error) { return nil, m.load(src) })
		select {
		case r := <-flight:
			if r.Err != nil {
				return nil, r.Err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-m.engine.closing:
			return nil, ErrClosed
		}
	}
}

func (m *modules) lookup(digest protocol.Digest) *compiled {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.byDigest[digest]
	if c == nil {
		return nil
	}
	c.users++
	m.recent.MoveToFront(c.kept)
	return c
}

func (m *modules) release(c *compiled) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.users--
	if c.kept == nil && c.users == 0 {
		c.free()
	}
}

// load makes a module from the disk cache or the file and keeps it.
func (m *modules) load(src source) error {
	if !m.engine.enter() {
		return ErrClosed
	}
	defer m.engine.work.Done()
	if c := m.lookup(src.digest); c != nil { // made since the caller looked
		m.release(c)
		return nil
	}
	c, err := m.make(src)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.kept = m.recent.PushFront(c)
	m.byDigest[src.digest] = c
	for m.recent.Len() > m.engine.cfg.MaxModules {
		m.drop(m.recent.Back().Value.(*compiled))
	}
	return nil
}

// make gets a module from what was verified, from the disk cache, or by compiling
// the file here.
func (m *modules) make(src source) (*compiled, error) {
	c := &compiled{digest: src.digest, path: src.path}
	var err error
	if src.code != nil {
		c.read = src.code.load
	} else if err = m.cachedOrCompiled(src, c); err != nil {
		return nil, err
	}
	_, err = c.form(&m.engine.machines, true) // most run there
	if err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

// form is the module in the pool or in the plain machine; a module that does not
// fit the pool is always the latter.
func (c *compiled) form(m *machines, pooled bool) (*form, error) {
	c.loading.Lock()
	defer c.loading.Unlock()
	if pooled && !c.unpoolable {
		if c.pooled != nil {
			return c.pooled, nil
		}
		var err error
		if c.pooled, err = m.pool.load(c.path, c.read); err == nil || errors.Is(err, ErrRefused) {
			return c.pooled, err
		}
		c.unpoolable = true // or it cannot be read at all, which is seen now
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
	return c.plain, nil
}

func unlinkable(path string, err error) error {
	return refusef("module %s cannot be linked: %s: build it for WASI preview 1 (wasm32-wasip1)", path, engineText(err.Error()))
}

// cachedOrCompiled sets needs and read of c.
func (m *modules) cachedOrCompiled(src source, c *compiled) error {
	if m.cached(c) == nil {
		return nil
	}
	log := m.engine.cfg.Logger.With(slog.String("digest", string(src.digest)))
	m.compiling <- struct{}{}
	defer func() { <-m.compiling }()
	unlock, err := m.artifacts.lock(context.Background(), src.digest) // a compilation is not interrupted either
	if err != nil {
		return err
	}
	defer unlock()
	if err = m.cached(c); err == nil { // another process made it meanwhile
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		log.Warn("compiled module not usable, compiling again", slog.Any("error", err))
	}
	begin := time.Now()
	binary, n, err := readModule(src.path, src.digest, m.engine.cfg.MaxModuleBytes)
	if err != nil {
		return err
	}
	content, err := compileWith(src.path, binary)
	if err != nil {
		return err
	}
	log.Debug("module compiled", slog.Int64("duration_ms", time.Since(begin).Milliseconds()), slog.Int("bytes", len(binary)))
	if err := m.artifacts.store(content, src.digest, n); err != nil {
		log.Warn("compiled module not cached", slog.Any("error", err))
	} else if m.cached(c) == nil {
		return nil
	}
	c.needs, c.read = n, func(engine *wasmtime.Engine) (*wasmtime.Module, error) {
		return wasmtime.NewModuleDeserialize(engine, content)
	}
	return nil
}

// cached finds a module in the disk cache; its errors are those of
// [artifacts.verify] or say that the engine does not take it.
func (m *modules) cached(c *compiled) error {
	found, err := m.artifacts.verify(c.digest)
	if err != nil {
		return err
	}
	c.needs, c.read = found.needs, found.open
	_, err = c.form(&m.engine.machines, true)
	if errors.Is(err, ErrRefused) {
		return nil // which the next to ask for the form is told
	}
	if err != nil {
		c.unpoolable = false // as far as we know: it could not be read
	}
	return err
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

// readModule reads a module, checks that it can run, and gives what is to be
// compiled of it, and what it needs.
func readModule(path string, digest protocol.Digest, limit int64) ([]byte, needs, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, needs{}, fmt.Errorf("read module: %w", err)
	}
	defer f.Close()
	return readModuleFrom(f, path, digest, limit)
}

func readModuleFrom(f io.Reader, path string, digest protocol.Digest, limit int64) ([]byte, needs, error) {
	var n needs
	binary, err := readAll(f, path, limit)
	if err != nil {
		return nil, n, err
	}
	if got := protocol.DigestOf(binary); got != digest {
		return nil, n, damaged{refusal(fmt.Sprintf("module %s has the digest %s, not %s: push the capsule again", path, got, digest))}
	}
	outline, err := check(path, binary)
	if err != nil {
		return nil, n, err
	}
	for _, memory := range outline.Memories {
		n.MemoryBytes = max(n.MemoryBytes, min(memory.Min, 1<<32)*wasm.PageBytes)
	}
	for _, table := range outline.Tables {
		n.TableElements = max(n.TableElements, table.Min)
	}
	if rewritten, ok := outline.Instrument(); ok {
		binary = rewritten
	}
	return binary, n, nil
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

// readAll reads a whole file, which is one of a capsule and so not trusted to be
// small.
func readAll(f io.Reader, path string, limit int64) ([]byte, error) {
	binary, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	if int64(len(binary)) > limit {
		return nil, refusef("module %s has more than %d bytes: build it smaller, for example without debug information", path, limit)
	}
	return binary, nil
}

// drop forgets a module. m.mu is held.
func (m *modules) drop(c *compiled) {
	m.recent.Remove(c.kept)
	c.kept = nil
	delete(m.byDigest, c.digest)
	if c.users == 0 {
		c.free()
	}
}

func (c *compiled) free() {
	c.loading.Lock()
	defer c.loading.Unlock()
	c.pooled.free()
	c.plain.free()
}

// close frees all modules; nothing uses them any more.
func (m *modules) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.recent.Len() > 0 {
		m.drop(m.recent.Back().Value.(*compiled))
	}
}
