package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"starling/sandbox/internal/confine"
)

// startFirst is start, and again when somebody kills the process before it is ready.
func (s *Supervisor) startFirst() (*process, error) {
	for try := 1; ; try++ {
		p, err := s.start()
		var killed *killedError
		if !errors.As(err, &killed) || try == maxTries {
			return p, err
		}
		s.cfg.Logger.Warn("the first sandbox process was killed while it started: another is started", slog.Any("error", killed))
	}
}

// readyTimeout bounds how long a process may take to be ready, on a machine that
// is busy.
const readyTimeout = 30 * time.Second

// start starts a process that runs guests and waits until it is ready.
func (s *Supervisor) start() (*process, error) {
	g, err := s.ground()
	if err != nil {
		return nil, err
	}
	p, err := s.launch(hello{
		Version: pipeVersion,
		Run: &helloRun{
			Density: s.cfg.Density, MaxModules: s.cfg.MaxModules, Tick: s.cfg.Tick, ResidentBytes: s.cfg.ResidentBytes,
			Components: s.cfg.Components,
		},
		Rules: confine.Rules{
			ReadDirs: []string{g.artifacts.dir}, WriteDirs: []string{s.cfg.WorkRoot},
			OpenFiles:         uint64(64 + openFiles*s.cfg.Density),
			AddressSpaceBytes: uint64(4<<30 + s.cfg.Density*addressSpace + s.componentSpace()),
		},
	}, nil)
	if err != nil {
		return nil, err
	}
	p.ground = g
	s.mu.Lock()
	s.processes[p] = true
	s.mu.Unlock()
	s.starter.group.Go(func() {
		<-p.dead
		s.mu.Lock()
		delete(s.processes, p)
		s.free = slices.DeleteFunc(s.free, func(idle *slot) bool {
			if idle.process == p {
				_ = idle.close()
			}
			return idle.process == p
		})
		p.mu.Lock()
		unexpected := !s.closed && !p.retired
		p.mu.Unlock()
		s.mu.Unlock()
		if unexpected {
			s.deaths.Add(1)
			s.cfg.Logger.Warn("sandbox process died", slog.Int("pid", p.pid()), slog.String("how", p.how))
		}
	})
	return p, nil
}

const (
	openFiles = 512 // per guest
	// addressSpace is what one guest may map: the engine reserves 4 GiB and a guard
	// for its memory, whatever it is granted of it, once in its pool and once for a
	// guest that does not fit the pool.
	addressSpace = 12 << 30
)

// launch starts the configured command with pipes and files beyond stdio, says
// hello and waits for the answer.
func (s *Supervisor) launch(h hello, files []*os.File) (*process, error) {
	p := &process{dead: make(chan struct{}), stderr: &processStderr{}}
	p.command = exec.Command(s.cfg.Command[0], s.cfg.Command[1:]...) //nolint:noctx // no call's: process.end ends it
	if s.cfg.Command[0] == selfProgram() {
		p.command.Args[0] = filepath.Base(os.Args[0]) // as ps shows it
	}
	// Nothing of the worker's environment. The allocator may otherwise reserve an
	// arena of address space per thread, and Go a page of text per goroutine.
	p.command.Env = []string{"GOTRACEBACK=none", "GOGC=400", "MALLOC_ARENA_MAX=4", "RAYON_NUM_THREADS=4"}
	p.command.Dir = "/"
	p.command.SysProcAttr = processAttributes()
	theirs, err := p.openSlots(h)
	// Before anything is awaited: as long as one is open here, a process that dies
	// does not close its pipes.
	closeTheirs := func() {
		for _, f := range theirs {
			_ = f.Close() // the process has its own by now
		}
	}
	if err != nil {
		closeTheirs()
		return nil, errors.Join(fmt.Errorf("sandbox process: %w", err), p.closeSlots())
	}
	p.command.ExtraFiles = append(append([]*os.File(nil), theirs...), files...)
	stderr, err := p.command.StderrPipe()
	if err == nil {
		err = s.starter.start(p.command)
	}
	closeTheirs()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox process: start %s: %w", s.cfg.Command[0], err), p.closeSlots())
	}
	s.starter.group.Go(func() { p.wait(stderr) })
	if err := s.greet(p, h); err != nil {
		late := errors.Is(err, os.ErrDeadlineExceeded) // and killed by nobody but us
		_ = p.command.Process.Kill()
		<-p.dead
		text := ""
		if lines := p.stderr.lines(); len(lines) > 0 {
			text = ": " + strings.Join(lines, "; ")
		}
		err = fmt.Errorf("sandbox process: %w (%s%s)", err, p.how, text)
		if !late && p.command.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			err = &killedError{err}
		}
		return nil, errors.Join(err, p.closeSlots())
	}
	return p, nil
}

// killedError says that a process was killed, by others, before it was ready.
type killedError struct{ error }

func (e *killedError) Unwrap() error { return e.error }

// openSlots makes the slots that h tells of, each with its pipes, and gives the
// process's ends, which the caller closes also when it fails.
func (p *process) openSlots(h hello) (theirs []*os.File, err error) {
	places := 1
	if h.Run != nil {
		places = h.Run.Density
	}
	for range places {
		data, files, err := dataPipes()
		if err != nil {
			return theirs, err
		}
		place := &slot{process: p, pipe: newPipe(data)}
		p.slots, theirs = append(p.slots, place), append(theirs, files...)
		if h.Run == nil {
			continue
		}
		control, file, err := pipeToProcess()
		if err != nil {
			return theirs, err
		}
		place.control, theirs = newPipe(control), append(theirs, file)
	}
	return theirs, nil
}

func (s *Supervisor) greet(p *process, h hello) error {
	control := p.slots[0].pipe
	if err := control.conn.SetDeadline(time.Now().Add(readyTimeout)); err != nil {
		return err
	}
	if err := control.sendJSON(msgHello, h); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	var answer ready
	if err := control.receiveJSON(msgReady, &answer); err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	if answer.Version != pipeVersion {
		return fmt.Errorf("it speaks version %d of the sandbox protocol and this program %d: run both from one binary", answer.Version, pipeVersion)
	}
	s.noteConfinement(answer.Confined)
	return control.conn.SetDeadline(time.Time{})
}

// noteConfinement warns, once, of what the kernel does not enforce.
func (s *Supervisor) noteConfinement(r confine.Report) {
	s.mu.Lock()
	first := !s.warned
	s.warned, s.confined = true, r
	s.mu.Unlock()
	if !first {
		return
	}
	for _, missing := range r.Missing() {
		s.cfg.Logger.Warn("sandbox processes are less confined than they could be", slog.String("missing", missing))
	}
}

// starter starts processes from one thread that lives as long as they do: the
// kernel kills a child with the thread that started it, not with the process.
type starter struct {
	requests chan func()
	done     chan struct{}
	group    sync.WaitGroup // of goroutines that outlast a start
}

func newStarter() *starter {
	s := &starter{requests: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for start := range s.requests {
			start()
		}
	}()
	return s
}

func (s *starter) start(command *exec.Cmd) error {
	done := make(chan error, 1)
	s.requests <- func() { done <- command.Start() }
	return <-done
}

// close waits until everything of all processes is gone.
func (s *starter) close() {
	s.group.Wait()
	close(s.requests)
	<-s.done
}
