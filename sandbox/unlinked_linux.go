package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// unlinkedFiles are the regular files without a name that a process of ours holds
// open, each once. What was found before an error stands.
func unlinkedFiles(pid int) ([]unlinkedFile, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("files without a name: %w", err)
	}
	type inode struct{ device, number uint64 }
	seen := map[inode]bool{}
	var held []unlinkedFile
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		var stat syscall.Stat_t
		if err := syscall.Stat(name, &stat); err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // else it was closed meanwhile
				return held, fmt.Errorf("files without a name: %s: %w", name, err)
			}
			continue
		}
		id := inode{stat.Dev, stat.Ino}
		if stat.Nlink > 0 || stat.Mode&syscall.S_IFMT != syscall.S_IFREG || seen[id] {
			continue
		}
		seen[id] = true
		// It fails, and path is empty, when a guest nested directories until the
		// kernel has no room for the path.
		path, err := os.Readlink(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		held = append(held, unlinkedFile{strings.TrimSuffix(path, " (deleted)"), stat.Size})
	}
	return held, nil
}
