package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"starling/sandbox/internal/wasmtimex"
)

// files is what a guest was granted of the host's file system.
//
// A directory of read_only is moved out of the guest's tree while the guest
// runs and granted by itself, read-only, under its own name; afterwards it is
// moved back. In its place the tree has an empty directory that is thrown away.
// So no path through "/" leads to it, whatever the guest links or renames.
//
// The engine has no other way that holds: rights belong to a whole grant, and a
// grant of a directory inside another can be walked around.
type files struct {
	preopens []wasmtimex.Preopen
	base     string // the guest's "/"
	aside    string // where the read-only directories are
	moved    []string
}

// grantFiles prepares the grants of a run. restore undoes it.
func grantFiles(spec *Spec) (*files, error) {
	f := &files{}
	if spec.WorkDir == "" {
		if spec.Filesystem.Scope != "" || len(spec.Filesystem.ReadOnly) > 0 {
			return nil, refusef("capabilities.filesystem is set and there is no work directory to grant")
		}
		return f, nil
	}
	f.base = spec.WorkDir
	if scope := spec.Filesystem.Scope; scope != "" {
		if err := plainDir(spec.WorkDir, scope, false); err != nil {
			return nil, refusef("capabilities.filesystem.scope %q cannot be granted: %s", scope, err)
		}
		f.base = filepath.Join(spec.WorkDir, filepath.FromSlash(scope))
	}
	f.preopens = append(f.preopens, wasmtimex.Preopen{Host: f.base, Guest: "/", Writable: true})
	for _, sub := range topmost(spec.Filesystem.ReadOnly) {
		if err := f.setAside(spec.WorkDir, sub); err != nil {
			return nil, errors.Join(refusef("capabilities.filesystem.read_only %q cannot be granted: %s", sub, err), f.restore())
		}
	}
	return f, nil
}

// topmost is the paths that lie in none of the others.
func topmost(paths []string) []string {
	clean := make([]string, len(paths))
	for i, p := range paths {
		clean[i] = filepath.Clean(filepath.FromSlash(p))
	}
	slices.Sort(clean)
	var top []string
	for _, p := range clean {
		inside := false
		for _, t := range top {
			inside = inside || p == t || strings.HasPrefix(p, t+string(filepath.Separator))
		}
		if !inside {
			top = append(top, p)
		}
	}
	return top
}

// plainDir reports why path below dir is no directory that is reached without
// following a link. With create it makes what is missing.
func plainDir(dir, path string, create bool) error {
	path = filepath.Clean(filepath.FromSlash(path))
	if !filepath.IsLocal(path) || path == "." {
		return errors.New("it is no path below the work directory")
	}
	at := dir
	for _, part := range strings.Split(path, string(filepath.Separator)) {
		at = filepath.Join(at, part)
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if !create {
				return errors.New("there is no such directory")
			}
			if err := os.Mkdir(at, 0o700); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return errors.New("it is no directory, or is reached through a link")
		}
	}
	return nil
}

func (f *files) setAside(workDir, sub string) error {
	// One that is not there is made, so that the guest cannot make it.
	if err := plainDir(f.base, sub, true); err != nil {
		return err
	}
	if f.aside == "" {
		// Beside the work directory, which is most likely the same file system.
		aside, err := os.MkdirTemp(filepath.Dir(filepath.Clean(workDir)), ".starling-read-only-*")
		if err != nil {
			return err
		}
		f.aside = aside
	}
	inside, outside := filepath.Join(f.base, sub), f.outside(len(f.moved))
	if err := os.Rename(inside, outside); err != nil {
		return err
	}
	f.moved = append(f.moved, sub)
	if err := os.Mkdir(inside, 0o700); err != nil {
		return err
	}
	f.preopens = append(f.preopens, wasmtimex.Preopen{Host: outside, Guest: "/" + filepath.ToSlash(sub)})
	return nil
}

func (f *files) outside(i int) string { return filepath.Join(f.aside, fmt.Sprint(i)) }

// putAllBack is restore, of which the log is told when it fails.
func (f *files) putAllBack(log *slog.Logger) {
	if problem := f.restore(); problem != nil {
		log.Error("read-only directories not put back", slog.Any("error", problem))
	}
}

// restore moves the read-only directories back, over whatever the guest has put
// there. The guest is gone, so nothing changes between a look and a step.
func (f *files) restore() error {
	if f.aside == "" {
		return nil
	}
	var problems []error
	for i, sub := range f.moved {
		if err := f.putBack(sub, f.outside(i)); err != nil {
			problems = append(problems, fmt.Errorf("%s stays in %s: %w", sub, f.outside(i), err))
		}
	}
	f.moved = nil
	if len(problems) == 0 {
		problems = append(problems, os.Remove(f.aside))
	}
	return errors.Join(problems...)
}

func (f *files) putBack(sub, outside string) error {
	at := f.base
	for _, part := range strings.Split(filepath.Dir(sub), string(filepath.Separator)) {
		at = filepath.Join(at, part)
		if info, err := os.Lstat(at); err == nil && info.IsDir() {
			continue
		}
		if err := removeTree(at); err != nil {
			return err
		}
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
	}
	at = filepath.Join(f.base, sub)
	if err := removeTree(at); err != nil {
		return err
	}
	return os.Rename(outside, at)
}

// removeTree is RemoveTree by path.
func removeTree(path string) error {
	parent, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(RemoveTree(parent, filepath.Base(path)), parent.Close())
}
