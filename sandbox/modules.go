package sandbox

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"golang.org/x/sync/singleflight"

	"starling/protocol"
)

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

// seat is a place for a guest of a module, which the caller leaves.
func (m *modules) seat(ctx context.Context, src source, l protocol.Limits) (seat, error) {
	for again := true; ; again = false {
		c, err := m.acquire(ctx, src)
		if err != nil {
			return seat{}, err
		}
		s, err := c.seat(&m.engine.machines, l)
		if err == nil {
			return s, nil
		}
		// The file that it was loaded from may be gone since: it is made anew.
		m.forget(c)
		m.release(c)
		if !again || errors.Is(err, ErrRefused) {
			return seat{}, err
		}
	}
}

func (m *modules) leave(s seat) {
	if s.pool != nil {
		s.pool.leave()
	}
	m.release(s.module)
}

func (m *modules) forget(c *compiled) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.kept != nil {
		m.drop(c)
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
		c.read, c.check = src.code.open, src.code.check
		err = c.check()
	} else {
		err = m.cachedOrCompiled(src, c)
	}
	if err == nil {
		err = c.load(&m.engine.machines)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// cachedOrCompiled sets needs and read of c.
func (m *modules) cachedOrCompiled(src source, c *compiled) error {
	if m.cached(c) == nil {
		return nil
	}
	defer m.engine.cfg.Compiling(src.digest)()
	log := m.engine.cfg.Logger.With(slog.String("digest", string(src.digest)))
	unlock, err := m.lock(src.digest)
	if err != nil {
		return err
	}
	defer unlock()
	select {
	case m.compiling <- struct{}{}:
	case <-m.engine.closing:
		return ErrClosed
	}
	defer func() { <-m.compiling }()
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
	c.needs, c.check = n, nil
	c.read = func(engine *wasmtime.Engine) (*wasmtime.Module, error) {
		return wasmtime.NewModuleDeserialize(engine, content)
	}
	return nil
}

// lockPatience is how long an engine waits for another process that compiles the
// same module.
const lockPatience = time.Minute

// lock is [artifacts.lock] until the engine is closed.
func (m *modules) lock(digest protocol.Digest) (unlock func(), err error) {
	waiting, stop := context.WithCancelCause(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-m.engine.closing:
			stop(ErrClosed)
		case <-waiting.Done():
		}
	})
	unlock, err = m.artifacts.lock(waiting, digest, lockPatience)
	stop(nil)
	watch.Wait()
	return unlock, err
}

// cached finds a module in the disk cache; its errors are those of
// [artifacts.verify] or say that the engine does not take it.
func (m *modules) cached(c *compiled) error {
	found, err := m.artifacts.verify(c.digest)
	if err != nil {
		return err
	}
	c.needs, c.read, c.check = found.needs, found.open, found.check
	if err = c.load(&m.engine.machines); errors.Is(err, ErrRefused) {
		return nil // which the next to load it is told
	}
	return err
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

// close frees all modules; nothing uses them any more.
func (m *modules) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.recent.Len() > 0 {
		m.drop(m.recent.Back().Value.(*compiled))
	}
}
