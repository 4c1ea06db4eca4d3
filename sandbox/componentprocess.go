package sandbox

import (
	"fmt"

	"starling/sandbox/internal/wasmtimex"
)

// spend makes the slot's process fit for one component, and for nothing after it. What
// the engine does on behalf of a component takes memory of the host without a
// bound of its own (bytes of random, handles, copies of strings), so the process
// is bounded instead: to what it has, the component's own memory, and some.
// Whoever calls it has the process alone.
func (s *slot) spend(memoryBytes int64) error {
	p := s.process
	p.spent = true
	// It answers when it has put back the memory of the guest before, which must not
	// count as what it has.
	if err := s.ping(); err != nil {
		p.kill(s)
		<-p.dead
		return fmt.Errorf("sandbox process: prepare for a component: %w", err)
	}
	if err := limitData(p.pid(), uint64(memoryBytes)+hostMemory); err != nil {
		return fmt.Errorf("sandbox process: bound the memory of a component: %w", err)
	}
	return nil
}

// hostMemory is what the host's side of a component may take: its native code,
// its output, and what its calls hold.
const hostMemory = 256 << 20

// componentSpace is the address space that a component's memories take, 4 GiB
// and two guards each.
func (s *Supervisor) componentSpace() int {
	if !s.cfg.Components {
		return 0
	}
	return wasmtimex.MaxComponentMemories * (4<<30 + 64<<20)
}
