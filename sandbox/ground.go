package sandbox

import (
	"fmt"
	"os"
)

// ground is what sandbox processes may reach, as it is on disk now. A process is
// bound to the directories that were there when it started, not to their names: when
// somebody removed them, or put others in their place, it can open nothing more.
type ground struct {
	artifacts      *artifacts
	work, compiled os.FileInfo
}

// ground finds the directories, makes those that are gone, and replaces the
// processes that are bound to others. What was compiled is compiled again when it
// is gone. It costs two looks at the disk. An error is this host's fault.
func (s *Supervisor) ground() (*ground, error) {
	s.grounding.Lock()
	defer s.grounding.Unlock()
	last := s.current.Load()
	if last.same(s.cfg.WorkRoot) {
		return last, nil
	}
	if err := os.MkdirAll(s.cfg.WorkRoot, 0o700); err != nil {
		return nil, fmt.Errorf("sandbox: work root: %w", err)
	}
	found, err := openArtifacts(s.cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	found.components = s.cfg.Components
	g := &ground{artifacts: found}
	if g.work, err = os.Stat(s.cfg.WorkRoot); err != nil {
		return nil, fmt.Errorf("sandbox: work root: %w", err)
	}
	if g.compiled, err = os.Stat(found.dir); err != nil {
		return nil, fmt.Errorf("sandbox cache: %w", err)
	}
	s.current.Store(g)
	if last != nil {
		s.cfg.Logger.Warn("the work root or the cache was removed while in use: made anew, and sandbox processes replaced")
		s.memory.forgetAll()
		s.replace(g)
	}
	return g, nil
}

// same reports whether the directories are those on disk; nil's never are.
func (g *ground) same(workRoot string) bool {
	if g == nil {
		return false
	}
	work, err := os.Stat(workRoot)
	if err != nil || !os.SameFile(work, g.work) {
		return false
	}
	compiled, err := os.Stat(g.artifacts.dir)
	return err == nil && os.SameFile(compiled, g.compiled)
}

// replace ends the processes that stand on another ground: at once where no guest
// runs, else when the guest is gone.
func (s *Supervisor) replace(g *ground) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.processes {
		if p.ground != g {
			p.retire()
		}
	}
}
