package sandbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"starling/sandbox"
)

// nested makes so many directories, each in the one before, and a file in the last.
func nested(t *testing.T, root *os.Root, levels int) {
	t.Helper()
	at := root
	for range levels {
		if err := at.Mkdir("d", 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := at.OpenRoot("d")
		if err != nil {
			t.Fatal(err)
		}
		if at != root {
			_ = at.Close() // only read
		}
		at = below
	}
	if err := at.WriteFile("deepest", make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = at.Close() // only read
}

func opened(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() }) // only read
	return root
}

// TestTreeBytesOfEndlessFiles: a sparse file may be as long as a number can say.
func TestTreeBytesOfEndlessFiles(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "starling-tree-*") // such lengths are refused elsewhere
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, name := range []string{"a", "b", "d/c"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, math.MaxInt64); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("no file system here takes such a length, and CI's has to: %s", err)
			}
			t.Skipf("no file system here takes such a length: %s", err)
		}
	}
	for _, limit := range []int64{1 << 20, math.MaxInt64 - 1, math.MaxInt64} {
		if got, err := sandbox.TreeBytes(opened(t, dir), limit); err != nil || got != math.MaxInt64 {
			t.Errorf("TreeBytes(limit %d) = %d, %v, want %d", limit, got, err, int64(math.MaxInt64))
		}
	}
}

func TestTreeBytes(t *testing.T) {
	t.Parallel()
	const block, all = 4096, 1 << 40
	for name, c := range map[string]struct {
		make        func(*testing.T, *os.Root)
		limit, want int64
		err         error
	}{
		"nothing":     {func(*testing.T, *os.Root) {}, all, 0, nil},
		"empty files": {func(t *testing.T, r *os.Root) { write(t, r, "a", 0); write(t, r, "b", 0) }, all, 2 * block, nil},
		"whole blocks": {func(t *testing.T, r *os.Root) {
			write(t, r, "a", block)
			write(t, r, "b", block+1)
		}, all, 3 * block, nil},
		"a sparse file has its length": {func(t *testing.T, r *os.Root) {
			f, err := r.Create("sparse")
			if err == nil {
				err = errors.Join(f.Truncate(10<<30), f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}, all, 10 << 30, nil},
		"a link is not followed": {func(t *testing.T, r *os.Root) {
			if err := r.Symlink("/etc", "link"); err != nil {
				t.Fatal(err)
			}
		}, all, block, nil},
		"as deep as may be": {func(t *testing.T, r *os.Root) { nested(t, r, sandbox.MaxDepth) }, all, (sandbox.MaxDepth + 2) * block, nil},
		"one deeper":        {func(t *testing.T, r *os.Root) { nested(t, r, sandbox.MaxDepth+1) }, all, 0, sandbox.ErrTooDeep},
		"far too deep":      {func(t *testing.T, r *os.Root) { nested(t, r, 1000) }, all, 0, sandbox.ErrTooDeep},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			root := opened(t, dir)
			if err := root.Mkdir("tree", 0o700); err != nil {
				t.Fatal(err)
			}
			tree := opened(t, filepath.Join(dir, "tree"))
			c.make(t, tree)
			if got, err := sandbox.TreeBytes(tree, c.limit); got != c.want || !errors.Is(err, c.err) {
				t.Errorf("TreeBytes() = %d, %v, want %d, %v", got, err, c.want, c.err)
			}
			if err := sandbox.RemoveTree(root, "tree"); err != nil {
				t.Errorf("RemoveTree() = %v", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

func TestTreeBytesStopsPastItsLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := opened(t, dir)
	for i := range 100 {
		write(t, root, fmt.Sprint(i), 1)
	}
	if got, err := sandbox.TreeBytes(root, 10*4096); err != nil || got != 11*4096 {
		t.Errorf("TreeBytes() = %d, %v, want one block past the limit", got, err)
	}
}

func write(t *testing.T, root *os.Root, name string, size int) {
	t.Helper()
	if err := root.WriteFile(name, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRemoveTree removes what a guest may leave, and nothing beside it.
func TestRemoveTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := opened(t, dir)
	outside := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(outside, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tree/a/b/c/d/e", "tree/a/x/y", "tree/b", "beside"} {
		if err := root.MkdirAll(name, 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			write(t, root, name+"/"+fmt.Sprint("file", i), 10)
		}
	}
	for link, target := range map[string]string{"tree/link": filepath.Dir(outside), "tree/a/b/link": "../../..", "tree/a/file": outside} {
		if err := root.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := sandbox.RemoveTree(root, "tree"); err != nil {
		t.Fatal(err)
	}
	if _, err := root.Lstat("tree"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tree is there: %v", err)
	}
	for _, name := range []string{outside, filepath.Join(dir, "beside", "file2")} {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("gone with it: %v", err)
		}
	}
	if err := sandbox.RemoveTree(root, "tree"); err != nil {
		t.Errorf("RemoveTree() of nothing = %v", err)
	}
	write(t, root, "file", 1)
	if err := sandbox.RemoveTree(root, "file"); err != nil {
		t.Errorf("RemoveTree() of a file = %v", err)
	}
}

// BenchmarkTreeBytes is one look at a guest's directory, which every run that exits
// well has once.
func BenchmarkTreeBytes(b *testing.B) {
	for _, files := range []int{0, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d-files", files), func(b *testing.B) {
			dir := b.TempDir()
			for i := range files {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
					b.Fatal(err)
				}
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = root.Close() }() // only read
			for b.Loop() {
				if _, err := sandbox.TreeBytes(root, math.MaxInt64); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
