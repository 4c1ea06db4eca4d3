package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"starling/protocol"
	"starling/sandbox/internal/confine"
)

// Prepare is [Engine.Prepare]; the module is compiled in a child of its own that
// has a time and a memory limit. What it is refused for is remembered for a
// while. A compilation goes on when ctx ends.
func (s *Supervisor) Prepare(ctx context.Context, module string, digest protocol.Digest) error {
	_, err := s.compiled(ctx, module, digest)
	return err
}

// compiled finds the compiled form of a module, or makes it.
func (s *Supervisor) compiled(ctx context.Context, module string, digest protocol.Digest) (code, error) {
	if found, err, ok := s.memory.recall(digest, time.Now()); ok {
		return found, renamed(err, module)
	}
	if err := digest.Validate(); err != nil {
		return code{}, refusef("%s", err)
	}
	flight := s.flights.DoChan(string(digest), func() (any, error) { return s.make(module, digest) })
	select {
	case r := <-flight:
		if r.Err != nil {
			return code{}, r.Err
		}
		return r.Val.(code), nil
	case <-ctx.Done():
		return code{}, context.Cause(ctx)
	case <-s.ctx.Done():
		return code{}, ErrClosed
	}
}

// make verifies or compiles a module, once per host.
func (s *Supervisor) make(module string, digest protocol.Digest) (code, error) {
	if !s.enter() {
		return code{}, ErrClosed
	}
	defer s.work.Done()
	log := s.cfg.Logger.With(slog.String("digest", string(digest)))
	g, err := s.ground()
	if err != nil {
		return code{}, err
	}
	cache := g.artifacts
	if found, err := cache.verify(digest); err == nil {
		s.memory.keep(digest, found)
		return found, nil
	}
	defer s.cfg.Compiling(digest)()
	// The lock first: a process that stands still with it in hand holds up what
	// has the same lock, and no place of others.
	unlock, err := cache.lock(s.ctx, digest, s.longestCompile())
	if err != nil {
		return code{}, err
	}
	defer unlock()
	select {
	case s.compiling <- struct{}{}:
	case <-s.ctx.Done():
		return code{}, ErrClosed
	}
	defer func() { <-s.compiling }()
	found, err := cache.verify(digest)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.Warn("compiled module not usable, compiling again", slog.Any("error", err))
		}
		begin := time.Now()
		if err = s.compile(cache, module, digest); err == nil {
			log.Debug("module compiled", slog.Int64("duration_ms", time.Since(begin).Milliseconds()))
			found, err = cache.verify(digest)
		}
	}
	var costly *costlyError
	switch {
	case err == nil:
		s.memory.keep(digest, found)
	case errors.As(err, &costly):
		s.memory.refuse(digest, costly, time.Now())
	}
	return found, err
}

// costlyError refuses a module whose compilation ran into a limit.
type costlyError struct{ module, why string }

func (e *costlyError) Error() string {
	return fmt.Sprintf("module %s cannot be compiled: %s", e.module, e.why)
}
func (e *costlyError) Is(target error) bool { return target == ErrRefused }

// renamed names a remembered refusal after the module that is asked for now.
func renamed(err error, module string) error {
	var costly *costlyError
	if errors.As(err, &costly) {
		return &costlyError{module, costly.why}
	}
	return err
}

// compile compiles in a child, which is given the module and the place of the
// result as open files and can open none.
func (s *Supervisor) compile(cache *artifacts, module string, digest protocol.Digest) error {
	in, err := os.Open(module)
	if err != nil {
		return fmt.Errorf("read module: %w", err)
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.CreateTemp(cache.dir, ".compile-*")
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }() // what counts was copied
	seconds := uint64(s.cfg.CompileTimeout/time.Second) * uint64(runtime.NumCPU()+1)
	p, err := s.launch(hello{
		Version: pipeVersion,
		Compile: &helloCompile{Name: module, Digest: digest, MaxModuleBytes: s.cfg.MaxModuleBytes, Components: s.cfg.Components},
		Rules: confine.Rules{
			OpenFiles: 64, AddressSpaceBytes: uint64(s.cfg.CompileMemoryBytes), CPUSeconds: seconds, Nice: 10,
		},
	}, []*os.File{in, out})
	if err != nil {
		return err
	}
	defer func() { _ = p.closeSlots() }() // it has nothing more to say
	answer, err := s.awaitCompiled(p, module)
	if err != nil {
		return err
	}
	switch {
	case answer.Damaged:
		return damaged{refusal(answer.Refused)}
	case answer.Refused != "":
		return refusal(answer.Refused)
	case answer.Error != "":
		return fmt.Errorf("compile: %s", answer.Error)
	}
	content, err := os.ReadFile(out.Name())
	if err == nil {
		err = cache.store(content, digest, answer.Needs)
	}
	if err != nil {
		return fmt.Errorf("keep the compiled module: %w", err)
	}
	return nil
}

// busyHost times the time limit is how long a compilation may take that is given too
// little of the processors: that is not the module's fault. The processor time of a
// compiler is that of all its threads.
const busyHost = 10

func (s *Supervisor) longestCompile() time.Duration {
	return time.Duration(s.busyHost) * s.cfg.CompileTimeout
}

// awaitCompiled waits for the child's answer within the time limit; it is gone
// when this returns.
func (s *Supervisor) awaitCompiled(p *process, module string) (answer compileAnswer, err error) {
	pipe := p.slots[0].pipe
	defer context.AfterFunc(s.ctx, func() { p.kill(nil) })()
	over := s.limitTime(p)
	err = pipe.receiveJSON(msgCompiled, &answer)
	late := over()
	if err != nil && late == inTime && s.exhausted(p) {
		late = tooLong
	}
	p.kill(nil)
	<-p.dead
	lines := strings.Join(p.stderr.lines(), "\n")
	switch {
	case err == nil:
		return answer, nil
	case s.ctx.Err() != nil:
		return answer, ErrClosed
	case late == starved:
		return answer, fmt.Errorf("compile: this host gave the compiler of module %s too little processor time: it was not done in %s", module, s.longestCompile())
	case late == tooLong:
		return answer, &costlyError{module, fmt.Sprintf("it takes longer than the compile time limit of %s: make it smaller, or its functions; or raise the worker's STARLING_COMPILE_TIMEOUT (--compile-timeout)", s.cfg.CompileTimeout)}
	case outOfMemory(lines):
		return answer, &costlyError{module, fmt.Sprintf("it takes more than the compile memory limit of %d bytes: make it smaller, or its functions; or raise the worker's STARLING_COMPILE_MEMORY_BYTES (--compile-memory-bytes)", s.cfg.CompileMemoryBytes)}
	case strings.Contains(p.how, "killed"): // by the system, when it was short of memory
		return answer, fmt.Errorf("compile: the compiler of module %s was killed", module)
	}
	return answer, &costlyError{module, fmt.Sprintf("its compiler died (%s): %s", p.how, engineText(lines))}
}

// lateness says whether a compilation was ended for its time.
type lateness int32

const (
	inTime  lateness = iota
	tooLong          // its limit is over, and it had the processor time for it
	starved          // it had not half of that
)

// limitTime kills a child whose time is over. The function it returns ends that, and
// says what it came to.
func (s *Supervisor) limitTime(p *process) func() lateness {
	limit := s.cfg.CompileTimeout
	done, came := make(chan struct{}), make(chan lateness, 1)
	go func() {
		began, timer := time.Now(), time.NewTimer(limit)
		defer timer.Stop()
		enough := limit * 3 / 4 // of an idle host; one that was held up may use all of it
		for {
			select {
			case <-done:
				came <- inTime
				return
			case <-timer.C:
			}
			used, known := processorTime(p.command.Process.Pid)
			switch over := time.Since(began) >= s.longestCompile(); {
			case over && known && used < limit/2:
				p.kill(nil)
				came <- starved
				return
			case over, !known, used >= enough:
				p.kill(nil)
				came <- tooLong
				return
			}
			enough = limit
			timer.Reset(limit / 4)
		}
	}()
	return func() lateness { close(done); return <-came }
}

// exhausted waits for a child that closed its pipe and reports whether its
// processor time was over.
func (s *Supervisor) exhausted(p *process) bool {
	timer := time.NewTimer(s.cfg.KillAfter)
	defer timer.Stop()
	select {
	case <-p.dead:
		return strings.Contains(p.how, "CPU time limit")
	case <-timer.C:
		return false
	}
}

// outOfMemory reports what the allocators of Rust, C and Go say when the address
// space is full.
func outOfMemory(stderr string) bool {
	stderr = strings.ToLower(stderr)
	for _, sign := range []string{"memory allocation of", "out of memory", "cannot allocate memory", "cannot map", "resource temporarily unavailable"} {
		if strings.Contains(stderr, sign) {
			return true
		}
	}
	return false
}

// remembered is what the supervisor knows of modules. It is safe for concurrent
// use.
type remembered struct {
	mu      sync.Mutex
	found   map[protocol.Digest]code
	refused map[protocol.Digest]refusedUntil
}

type refusedUntil struct {
	err  error
	when time.Time
}

const (
	// refusalTTL is how long a module that took too much is not tried again.
	refusalTTL    = 10 * time.Minute
	maxRemembered = 4096
)

func (m *remembered) recall(digest protocol.Digest, now time.Time) (code, error, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found, ok := m.found[digest]; ok {
		return found, nil, true
	}
	if no, ok := m.refused[digest]; ok && now.Before(no.when) {
		return code{}, no.err, true
	}
	return code{}, nil, false
}

func (m *remembered) keep(digest protocol.Digest, found code) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.found == nil || len(m.found) >= maxRemembered {
		m.found = map[protocol.Digest]code{}
	}
	m.found[digest] = found
}

func (m *remembered) refuse(digest protocol.Digest, err error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused == nil || len(m.refused) >= maxRemembered {
		m.refused = map[protocol.Digest]refusedUntil{}
	}
	m.refused[digest] = refusedUntil{err, now.Add(refusalTTL)}
}

// forgetAll forgets what was found; a refusal stays.
func (m *remembered) forgetAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.found)
}

func (m *remembered) forget(digest protocol.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.found, digest)
}
