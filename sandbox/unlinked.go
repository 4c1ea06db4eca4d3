package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// workDirs are the work directories of the guests in one process. With them, what
// the process holds open that has no name any more finds its guest: a file that was
// removed, or written over, takes room until its descriptor is closed, and no walk
// of a directory meets it. It is safe for concurrent use.
type workDirs struct {
	mu    sync.Mutex
	count map[string]int // of the guests that run, by their work directory
}

// add notes a guest's work directory until leave is called.
func (w *workDirs) add(dir string) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == nil {
		w.count = map[string]int{}
	}
	w.count[dir]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.count[dir]--; w.count[dir] <= 0 {
			delete(w.count, dir)
		}
	}
}

// charge adds to total, by work directory, what a process holds for its guests. A
// file whose path is too long for the kernel to tell is charged to all of them.
func (w *workDirs) charge(pid int, total map[string]int64) error {
	w.mu.Lock()
	dirs := make(map[string]string, len(w.count)) // as the kernel tells them
	for dir := range w.count {
		resolved, err := filepath.EvalSymlinks(dir)
		if err != nil {
			resolved = dir
		}
		dirs[resolved+string(filepath.Separator)] = dir
	}
	w.mu.Unlock()
	if len(dirs) == 0 {
		return nil
	}
	held, err := unlinkedFiles(pid)
	for _, file := range held {
		for prefix, dir := range dirs {
			if file.path == "" || strings.HasPrefix(file.path, prefix) {
				total[dir] = sum(total[dir], blocks(file.bytes))
			}
		}
	}
	return err
}

// unlinkedFile is an open file that has no name any more.
type unlinkedFile struct {
	path  string // its last one; "" when the kernel cannot tell
	bytes int64
}

// UnlinkedBytes adds up, by work directory, the files of running guests that have
// no name any more and are still open, each as [TreeBytes] counts it. A directory
// without such files is not in the map; on another system than Linux none is. An
// error says what could not be looked at; the rest counts.
func (e *Engine) UnlinkedBytes() (map[string]int64, error) {
	total := map[string]int64{}
	return total, e.dirs.charge(os.Getpid(), total)
}

// UnlinkedBytes is [Engine.UnlinkedBytes] of the guests in sandbox processes.
func (s *Supervisor) UnlinkedBytes() (map[string]int64, error) {
	s.mu.Lock()
	processes := make([]*process, 0, len(s.processes))
	for p := range s.processes {
		processes = append(processes, p)
	}
	s.mu.Unlock()
	total := map[string]int64{}
	var problem error
	for _, p := range processes {
		// One that is gone by now holds nothing.
		if err := p.dirs.charge(p.pid(), total); err != nil && !p.isDead() {
			problem = err
		}
	}
	return total, problem
}
