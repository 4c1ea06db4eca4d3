package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFilesWithoutANameFindTheirGuest, also below a link, and when their path is
// longer than the kernel can tell.
func TestFilesWithoutANameFindTheirGuest(t *testing.T) {
	real, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	at, err := os.OpenRoot(real)
	if err != nil {
		t.Fatal(err)
	}
	var dirs workDirs
	leave := dirs.add(link)
	hold := func(root *os.Root, size int) {
		t.Helper()
		f, err := root.Create("file")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if _, err := f.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if err := root.Remove("file"); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want int64) {
		t.Helper()
		total := map[string]int64{}
		if err := dirs.charge(os.Getpid(), total); err != nil || total[link] != want {
			t.Errorf("charge gives %v, %v, want %d for %s", total, err, want, link)
		}
	}
	named, err := at.Create("named")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = named.Close() })
	check(0)
	hold(at, 5000)
	check(8192)
	name := strings.Repeat("d", 255)
	for range 20 {
		if err := at.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := at.OpenRoot(name)
		if err != nil {
			t.Fatal(err)
		}
		_ = at.Close() // only read
		at = below
	}
	hold(at, 1)
	_ = at.Close() // only read
	check(8192 + 4096)
	leave()
	check(0)
}
