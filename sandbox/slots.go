package sandbox

import (
	"context"
	"log/slog"
	"time"

	"starling/protocol"
)

const (
	// idleAfter is how long a process may have nothing to do before it is asked
	// whether it answers: it may have been stopped meanwhile.
	idleAfter = time.Second
	// pongTimeout is how long its answer may take, on a busy machine.
	pongTimeout = 2 * time.Second
)

// take gives a free place in a process that answers, or one in a new process.
// With alone no other guest is in that process while it is taken.
func (s *Supervisor) take(ctx context.Context, digest protocol.Digest, alone bool) (*slot, error) {
	for {
		place, err := s.takeAny(digest, alone)
		if err != nil || time.Since(place.idleSince) < s.idleAfter {
			return place, err
		}
		if err = place.ping(); err == nil {
			return place, nil
		}
		p := place.process
		s.cfg.Logger.Warn("idle sandbox process does not answer: it is killed", slog.Int("pid", p.pid()), slog.Any("error", err))
		p.kill(place)
		<-p.dead
		s.give(place)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// takeAny is take that does not ask whether the process answers. Where several share a
// process, a capsule that is suspect gets one to itself.
func (s *Supervisor) takeAny(digest protocol.Digest, alone bool) (*slot, error) {
	if found := s.takeFree(digest, alone); found != nil {
		return found, nil
	}
	if s.cfg.Density > 1 {
		s.startingShared.Lock()
		defer s.startingShared.Unlock()
		if found := s.takeFree(digest, alone); found != nil {
			return found, nil
		}
	}
	for {
		p, err := s.start()
		if err != nil {
			return nil, err
		}
		s.put(p)
		if found := s.takeFree(digest, alone); found != nil {
			return found, nil
		}
		// Others were faster, or the process is gone already.
	}
}

func (s *Supervisor) takeFree(digest protocol.Digest, alone bool) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	alone = alone || s.suspects[digest]
	current := s.current.Load()
	for i := len(s.free) - 1; i >= 0; i-- {
		found := s.free[i]
		if found.process.ground == current && found.process.take(alone) {
			s.free = append(s.free[:i], s.free[i+1:]...)
			return found
		}
	}
	return nil
}

// put makes the places of a new process free.
func (s *Supervisor) put(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, place := range p.slots {
		place.idleSince = time.Now()
	}
	s.free = append(s.free, p.slots...)
	if p.ground != s.current.Load() { // replaced while it started
		p.retire()
	}
}

// give takes a place back when its guest is gone.
func (s *Supervisor) give(used *slot) {
	used.idleSince = time.Now()
	used.process.give()
	s.mu.Lock()
	defer s.mu.Unlock()
	if used.process.spent || used.process.ground != s.current.Load() {
		used.process.retire()
	}
	if used.process.isDead() {
		_ = used.close()
		return
	}
	s.free = append(s.free, used)
}

// maxSuspects bounds what is remembered of guests that shared a process when it
// died of an unknown one.
const maxSuspects = 1024

func (s *Supervisor) suspect(digest protocol.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.suspects) >= maxSuspects {
		clear(s.suspects)
	}
	s.suspects[digest] = true
}
