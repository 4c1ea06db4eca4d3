package testenv

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// The small modules are committed in both forms: compiling the text needs the
// engine, a 50 MB library that most tests do not need to link. A test of package
// sandbox keeps the two forms equal.
//
//go:embed testdata/capsules/*.wasm
var capsules embed.FS

// WAT returns the path of the module compiled from testdata/capsules/<name>.wat.
// Each file says in its first line what it does.
func WAT(tb testing.TB, name string) string {
	tb.Helper()
	binary, err := capsules.ReadFile("testdata/capsules/" + name + ".wasm")
	if err != nil {
		tb.Fatalf("capsule %s: %v", name, err)
	}
	path := filepath.Join(tb.TempDir(), name+".wasm")
	if err := os.WriteFile(path, binary, 0o600); err != nil {
		tb.Fatalf("capsule %s: %v", name, err)
	}
	return path
}

// builds are the Go capsules that this process has asked for, by name.
var builds sync.Map // string to func() (string, error)

// GoCapsule builds a Go capsule for WASI preview 1 and returns the path of its
// wasm file. name is a directory of testenv/testdata/capsules or of
// sandbox/guest/examples; one with a go.mod is a module of its own, whose
// dependencies come from the module proxy. A build takes seconds, so what was
// built before from the same sources is used again, by later runs and by other
// processes too.
func GoCapsule(tb testing.TB, name string) string {
	tb.Helper()
	build, _ := builds.LoadOrStore(name, sync.OnceValues(func() (string, error) { return buildGoCapsule(name) }))
	path, err := build.(func() (string, error))()
	if err != nil {
		tb.Fatalf("capsule %s: %v", name, err)
	}
	return path
}

// CompiledCache is a directory for compiled modules that is kept between runs:
// compiling a Go capsule takes seconds.
func CompiledCache(tb testing.TB) string {
	tb.Helper()
	dir, err := cacheDir("sandbox")
	if err != nil {
		tb.Fatalf("cache of compiled modules: %v", err)
	}
	return dir
}

func cacheDir(name string) (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(user, "starling-test", name)
	return dir, os.MkdirAll(dir, 0o700)
}

func buildGoCapsule(name string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "testenv", "testdata", "capsules", name)
	if _, err := os.Stat(source); err != nil {
		source = filepath.Join(root, "sandbox", "guest", "examples", name)
	}
	key, err := sourceKey(source, filepath.Join(root, "sandbox", "guest"))
	if err != nil {
		return "", err
	}
	dir, err := cacheDir("capsules")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name+"-"+key+".wasm")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	// Two processes may both build; the rename makes either's file whole.
	fresh, err := os.MkdirTemp(dir, ".build-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	out := filepath.Join(fresh, "out.wasm")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	build.Dir = source
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return path, os.Rename(out, path)
}

// sourceKey names the sources of a capsule and of the SDK, and the compiler.
func sourceKey(dirs ...string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version())
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			module := entry.Name() == "go.mod" || entry.Name() == "go.sum"
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" && !module {
				return err
			}
			content, err := os.ReadFile(path)
			fmt.Fprintf(h, "%s %d\n", filepath.Base(path), len(content))
			h.Write(content)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// moduleRoot is the directory of go.mod: tests run in their package's directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", fmt.Errorf("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}
