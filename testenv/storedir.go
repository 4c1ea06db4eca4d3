package testenv

import (
	"os"
	"testing"
)

// StoreDir is a directory for a server's store, removed with the test. Unlike
// t.TempDir it looks again when a server that was stopped still writes a file.
func StoreDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "starling-store-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		Eventually(t, endWithin, func() error { return os.RemoveAll(dir) })
	})
	return dir
}
