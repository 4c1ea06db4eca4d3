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
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"golang.org/x/sync/singleflight"

	"starling/protocol"
	"starling/sandbox/internal/wasm"
	"starling/sandbox/internal/wasmtimex"
)

// compiled is a module that is ready to run.
type compiled struct {
	digest protocol.Digest
	module *wasmtime.Module
	pre    *wasmtimex.Pre
	needs  needs

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

// acquire returns the module, which the caller releases.
func (m *modules) acquire(ctx context.Context, path string, digest protocol.Digest) (*compiled, error) {
	if err := digest.Validate(); err != nil {
		return nil, refusef("%s", err)
	}
	for {
		if c := m.lookup(digest); c != nil {
			return c, nil
		}
		// What is made may be dropped again before this caller gets at it.
		flight := m.flights.DoChan(string(digest), func() (any, error) { return nil, m.load(path, digest) })
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
func (m *modules) load(path string, digest protocol.Digest) error {
	if !m.engine.enter() {
		return ErrClosed
	}
	defer m.engine.work.Done()
	if c := m.lookup(digest); c != nil { // made since the caller looked
		m.release(c)
		return nil
	}
	c, err := m.make(path, digest)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.kept = m.recent.PushFront(c)
	m.byDigest[digest] = c
	for m.recent.Len() > m.engine.cfg.MaxModules {
		m.drop(m.recent.Back().Value.(*compiled))
	}
	return nil
}

func (m *modules) make(path string, digest protocol.Digest) (*compiled, error) {
	log := m.engine.cfg.Logger.With(slog.String("digest", string(digest)))
	c := &compiled{digest: digest}
	var err error
	c.module, c.needs, err = m.artifacts.load(m.engine.wasm, digest)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("compiled module not usable, compiling again", slog.Any("error", err))
		}
		if err := m.compile(c, path, log); err != nil {
			return nil, err
		}
	}
	if c.pre, err = m.engine.linker.Pre(c.module); err != nil {
		c.module.Close()
		return nil, refusef("module %s cannot be linked: %s: build it for WASI preview 1 (wasm32-wasip1)", path, engineText(err.Error()))
	}
	return c, nil
}

func (m *modules) compile(c *compiled, path string, log *slog.Logger) error {
	m.compiling <- struct{}{}
	defer func() { <-m.compiling }()
	binary, err := readModule(path, m.engine.cfg.MaxModuleBytes)
	if err != nil {
		return err
	}
	if got := protocol.DigestOf(binary); got != c.digest {
		return damaged{refusal(fmt.Sprintf("module %s has the digest %s, not %s: push the capsule again", path, got, c.digest))}
	}
	outline, err := check(path, binary)
	if err != nil {
		return err
	}
	for _, memory := range outline.Memories {
		c.needs.MemoryBytes = max(c.needs.MemoryBytes, min(memory.Min, 1<<32)*wasm.PageBytes)
	}
	for _, table := range outline.Tables {
		c.needs.TableElements = max(c.needs.TableElements, table.Min)
	}
	if rewritten, ok := outline.Instrument(); ok {
		binary = rewritten
	}
	begin := time.Now()
	if c.module, err = wasmtime.NewModule(m.engine.wasm, binary); err != nil {
		return refusef("module %s cannot be compiled: %s: build it for WASI preview 1 without threads, exceptions,"+
			" tail calls, GC and 64-bit memory", path, engineText(err.Error()))
	}
	log.Debug("module compiled", slog.Int64("duration_ms", time.Since(begin).Milliseconds()), slog.Int("bytes", len(binary)))
	if err := m.artifacts.store(c.module, c.digest, c.needs); err != nil {
		log.Warn("compiled module not cached", slog.Any("error", err))
	}
	return nil
}

// readModule reads a whole file, which is one of a capsule and so not trusted
// to be small.
func readModule(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	defer f.Close()
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
	c.pre.Close()
	c.module.Close()
}

// close frees all modules; nothing uses them any more.
func (m *modules) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.recent.Len() > 0 {
		m.drop(m.recent.Back().Value.(*compiled))
	}
}
