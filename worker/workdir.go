package worker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"starling/protocol"
	"starling/sandbox"
)

const (
	taskFile  = "task.md"
	traceFile = "trace.jsonl"

	// maxResultBytes bounds what is read of a capsule's result file. A larger
	// one stays in the work directory alone.
	maxResultBytes = 64 << 20
)

// workdir is the directory of one attempt:
//
//	<work root>/<session id>/work        the guest's root; the outcome's workdir
//	<work root>/<session id>/trace.jsonl out of the guest's reach
//
// Everything the host reads or writes in work goes through an os.Root: a guest
// may plant links.
type workdir struct {
	base string // <work root>/<session id>
	path string // …/work, absolute
	root *os.Root
	lock *os.File // base, locked: other workers may have the same work root
}

// workdirPath is the path of an attempt's work directory before it is made.
func (w *Worker) workdirPath(session protocol.SessionID) string {
	return filepath.Join(w.cfg.WorkRoot, string(session), "work")
}

// makeWorkdir makes the directories, mode 0700, and the task's file where the
// guest will see it.
func (w *Worker) makeWorkdir(session protocol.SessionID) (*workdir, error) {
	d := &workdir{path: w.workdirPath(session)}
	d.base = filepath.Dir(d.path)
	if err := os.MkdirAll(w.cfg.WorkRoot, 0o700); err != nil { // somebody may have removed it
		return nil, fmt.Errorf("work root: %w", err)
	}
	for _, dir := range []string{d.base, d.path} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("work directory: %w", err)
		}
	}
	var err error
	if d.lock, err = os.Open(d.base); err != nil {
		return nil, fmt.Errorf("work directory: %w", err)
	}
	_ = flock(d.lock, syscall.LOCK_SH) // some file systems have no locks
	if d.root, err = os.OpenRoot(d.path); err != nil {
		return nil, errors.Join(fmt.Errorf("work directory: %w", err), d.lock.Close())
	}
	return d, nil
}

func (d *workdir) close() error { return errors.Join(d.root.Close(), d.lock.Close()) }

// flock locks a directory without waiting. The lock ends with f, and with the process.
func flock(f *os.File, how int) error { return syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB) }

// prepare makes the scope and puts the task into it.
func (d *workdir) prepare(scope, task string) error {
	if scope != "" {
		if err := d.root.MkdirAll(scope, 0o700); err != nil {
			return fmt.Errorf("work directory: scope: %w", err)
		}
	}
	if err := d.root.WriteFile(path.Join(scope, taskFile), []byte(task), 0o600); err != nil {
		return fmt.Errorf("work directory: %w", err)
	}
	return nil
}

// measure is how many bytes of a quota the directory leaves, or how it is over it, or
// too deep. gone are the bytes that its guest holds and that are in it no more.
func (d *workdir) measure(quota, gone int64) (left int64, over *quotaError) {
	used, err := sandbox.TreeBytes(d.root, quota)
	if err == nil && used <= quota-gone {
		return quota - gone - used, nil
	}
	return 0, &quotaError{used + min(gone, math.MaxInt64-used), quota, err}
}

// answer is the content of out/result.txt under the guest's root, or nil when
// the capsule wrote none.
func (d *workdir) answer(scope string) (*string, error) {
	name := path.Join(scope, protocol.DefaultResultPath)
	if !d.regular(name) {
		return nil, nil
	}
	f, err := d.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("result file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	content, err := io.ReadAll(io.LimitReader(f, maxResultBytes+1))
	if err != nil {
		return nil, fmt.Errorf("result file: %w", err)
	}
	if len(content) > maxResultBytes {
		return nil, fmt.Errorf("result file: it is over %d bytes", maxResultBytes)
	}
	text := string(content)
	return &text, nil
}

// result finds the result file that a child's outcome names, and writes
// out/result.txt when the capsule left none.
func (d *workdir) result(session protocol.SessionID, task protocol.TaskID, content string) (string, error) {
	for _, name := range protocol.ResultPaths(session, task) {
		if d.regular(name) {
			return name, nil
		}
	}
	if err := d.writeNew(protocol.DefaultResultPath, content); err != nil {
		return "", fmt.Errorf("write the result file: %w", err)
	}
	return protocol.DefaultResultPath, nil
}

// writeNew writes a file in the place of whatever else the guest left there: a
// link is replaced, not written through, and what has the name of its directory
// and is none is put aside.
func (d *workdir) writeNew(name, content string) error {
	if err := d.makeDir(path.Dir(name)); err != nil {
		return err
	}
	const create = os.O_WRONLY | os.O_CREATE | os.O_EXCL // never through a link
	f, err := d.root.OpenFile(name, create, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err = sandbox.RemoveTree(d.root, name); err == nil {
			f, err = d.root.OpenFile(name, create, 0o600)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// makeDir makes a directory of the work directory. A file there, or a link that
// leads to no directory inside, keeps its content under another name.
func (d *workdir) makeDir(name string) error {
	err := d.root.Mkdir(name, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if info, err := d.root.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := d.root.Rename(name, "."+name+"."+protocol.NewTempName()+".old"); err != nil {
		return err
	}
	return d.root.Mkdir(name, 0o700)
}

// regular reports whether name is a regular file, and no link to one.
func (d *workdir) regular(name string) bool {
	info, err := d.root.Lstat(name)
	return err == nil && info.Mode().IsRegular()
}

// prune removes what attempts left more than Retention ago.
func (w *Worker) prune(now time.Time) error {
	entries, err := os.ReadDir(w.cfg.WorkRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("work root: %w", err)
	}
	root, err := os.OpenRoot(w.cfg.WorkRoot)
	if err != nil {
		return fmt.Errorf("work root: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || protocol.ValidateName("session", entry.Name()) != nil {
			continue
		}
		if w.running.has(protocol.SessionID(entry.Name())) || now.Sub(info.ModTime()) < w.cfg.Retention || inUse(root, entry.Name()) {
			continue
		}
		problems = append(problems, sandbox.RemoveTree(root, entry.Name()))
	}
	return errors.Join(append(problems, root.Close())...)
}

// inUse reports whether an attempt of any worker on this host holds its directory.
func inUse(root *os.Root, name string) bool {
	f, err := root.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // only looked at
	return errors.Is(flock(f, syscall.LOCK_EX), syscall.EWOULDBLOCK)
}
