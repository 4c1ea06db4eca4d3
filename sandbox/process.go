package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"
)

// process is one sandbox process as its supervisor sees it.
type process struct {
	command *exec.Cmd
	slots   []*slot
	stderr  *processStderr
	dead    chan struct{} // closed when it is gone and its stderr was read
	how     string        // after dead: the signal or the exit status
	dirs    workDirs      // of the guests in it
	ground  *ground       // what it may reach

	mu      sync.Mutex
	active  int   // guests in it
	alone   bool  // the guest in it shares it with nobody
	atDeath int   // active when it was gone
	gone    bool  // dead is about to be closed
	retired bool  // it is ended because it is of no more use
	spent   bool  // it ran a component; written by who has it alone
	culprit *slot // whose guest made us kill it
}

// slot is a place for one guest in a process.
type slot struct {
	process *process
	pipe    *pipe
	control *pipe // what stops a guest; nil in a process that compiles
	// Used by whoever took the slot.
	runs      int64
	idleSince time.Time
}

func (s *slot) close() error {
	var problems []error
	for _, p := range []*pipe{s.pipe, s.control} {
		if p == nil {
			continue
		}
		problems = append(problems, p.conn.Close())
	}
	return errors.Join(problems...)
}

// ping asks whether the process still answers, and waits for pongTimeout at most.
// Only whoever took the slot calls it, before its guest starts.
func (s *slot) ping() error {
	if err := s.pipe.conn.SetDeadline(time.Now().Add(pongTimeout)); err != nil {
		return err
	}
	if err := s.pipe.send(msgPing, nil); err != nil {
		return err
	}
	kind, _, err := s.pipe.receive()
	if err != nil {
		return err
	}
	if kind != msgPong {
		return fmt.Errorf("%w: a %q for a ping", errBadMessage, kind)
	}
	return s.pipe.conn.SetDeadline(time.Time{})
}

func (p *process) pid() int { return p.command.Process.Pid }

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// take counts a guest in, unless the process is gone or has to be shared with
// one that runs alone.
func (p *process) take(alone bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.retired || p.alone || (alone && p.active > 0) {
		return false
	}
	p.active++
	p.alone = alone
	return true
}

func (p *process) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.alone = false
}

// kill ends the process because of one guest in it; nil: because of none.
func (p *process) kill(culprit *slot) {
	p.mu.Lock()
	if p.culprit == nil && !p.gone {
		p.culprit = culprit
	}
	p.mu.Unlock()
	_ = p.command.Process.Kill() // it may be gone already
}

// retire ends a process that is of no more use, unless a guest is in it.
func (p *process) retire() {
	p.mu.Lock()
	idle := p.active == 0
	p.retired = p.retired || idle
	p.mu.Unlock()
	if idle {
		_ = p.command.Process.Kill() // it may be gone already
	}
}

// end ends a process without guests and waits until it is gone.
func (p *process) end() {
	_ = p.closeSlots() // which tells it
	_ = p.command.Process.Kill()
	<-p.dead
}

func (p *process) closeSlots() error {
	var problems []error
	for _, s := range p.slots {
		problems = append(problems, s.close())
	}
	return errors.Join(problems...)
}

// blame says whose fault the death of the process is, for the guest in s. Call it
// after dead.
func (p *process) blame(s *slot) Blame {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.culprit == s:
		return BlameGuest
	case p.culprit != nil:
		return BlameOther
	case p.atDeath <= 1:
		return BlameGuest
	default:
		return BlameUnclear
	}
}

// wait reads what the process says on stderr until it is gone.
func (p *process) wait(stderr io.Reader) {
	_, _ = io.Copy(p.stderr, stderr) // until the process is gone, whatever happens
	err := p.command.Wait()
	p.how = p.command.ProcessState.String()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.how = err.Error()
	}
	p.mu.Lock()
	p.gone, p.atDeath = true, p.active
	p.mu.Unlock()
	close(p.dead)
}
