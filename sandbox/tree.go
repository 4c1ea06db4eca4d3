package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
)

const (
	// MaxDepth is how deep directories may nest in a guest's directory: the rest
	// is not looked at, so a guest that goes deeper is stopped.
	MaxDepth = 128
	// entryBytes is the least that a file or a directory counts with: an empty one
	// takes room as well.
	entryBytes = 4096

	// entriesAtATime bounds the names of a directory that are held in memory.
	entriesAtATime = 1024
)

// ErrTooDeep says that directories nest deeper than [MaxDepth].
var ErrTooDeep = fmt.Errorf("directories nest deeper than %d", MaxDepth)

// TreeBytes adds up the files below a guest's directory and stops soon past
// limit. A file counts with its length, also where it is sparse, in blocks of
// 4096 bytes; an empty file, a directory and anything else with one. What
// vanishes meanwhile counts a block at most. A tree that is too deep is
// [ErrTooDeep], whatever it holds.
//
// A guest makes directories faster than paths of their whole length can be
// followed, so each is opened from the one above it.
func TreeBytes(root *os.Root, limit int64) (int64, error) {
	return treeBytes(root, limit, MaxDepth)
}

func treeBytes(dir *os.Root, limit int64, depth int) (total int64, err error) {
	err = eachEntry(dir, func(entry fs.DirEntry) error {
		used := int64(entryBytes)
		switch {
		case entry.Type().IsRegular():
			if info, err := dir.Lstat(entry.Name()); err == nil {
				used = blocks(info.Size())
			}
		case !entry.IsDir():
		case depth == 0:
			return ErrTooDeep
		default:
			below, err := dir.OpenRoot(entry.Name())
			if err != nil {
				break // it is gone, or a link by now
			}
			more, err := treeBytes(below, limit-total, depth-1)
			_ = below.Close() // only read
			if used = sum(used, more); err != nil {
				return err
			}
		}
		if total = sum(total, used); total > limit {
			return io.EOF
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return total, err
}

// blocks is what a file of so many bytes counts with.
func blocks(size int64) int64 {
	if size > math.MaxInt64-entryBytes {
		return math.MaxInt64
	}
	return max(1, (size+entryBytes-1)/entryBytes) * entryBytes
}

// sum is a + b, or as much as there can be. Neither is negative.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// eachEntry calls fn for what is in a directory, in no order. A directory that
// is gone has nothing in it.
func eachEntry(dir *os.Root, fn func(fs.DirEntry) error) error {
	f, err := dir.Open(".")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // only read
	for {
		entries, err := f.ReadDir(entriesAtATime)
		for _, entry := range entries {
			if err := fn(entry); err != nil {
				return err
			}
		}
		if err != nil {
			return nil // io.EOF, or the directory is gone
		}
	}
}

// RemoveTree removes name, and what is below it, from a directory that a guest
// could write to. Unlike os.RemoveAll it holds no descriptor per level and follows
// no path of more than two names: a guest can nest directories by the ten thousand.
// The guest must be gone. Removing what is not there is no error.
func RemoveTree(root *os.Root, name string) error {
	err := removed(root, name)
	if err == nil {
		return nil
	}
	if info, statErr := root.Lstat(name); statErr != nil || !info.IsDir() {
		return err
	}
	top, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	if err := errors.Join(clearTree(top), top.Close()); err != nil {
		return err
	}
	return root.Remove(name)
}

// clearTree empties a directory: what is in a directory below is lifted to top,
// until there is none.
func clearTree(top *os.Root) error {
	for {
		left := false
		err := eachEntry(top, func(entry fs.DirEntry) error {
			left = true
			err := removed(top, entry.Name())
			if err == nil || !entry.IsDir() {
				return err
			}
			below, err := top.OpenRoot(entry.Name())
			if err != nil {
				return err
			}
			err = eachEntry(below, func(child fs.DirEntry) error {
				err := removed(below, child.Name())
				if err == nil || !child.IsDir() {
					return err
				}
				return top.Rename(entry.Name()+"/"+child.Name(), ".lifted-"+rand.Text())
			})
			return errors.Join(err, below.Close())
		})
		if err != nil || !left {
			return err
		}
	}
}

// removed removes a name that may be gone by now.
func removed(dir *os.Root, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
