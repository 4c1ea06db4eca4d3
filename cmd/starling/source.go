package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"starling/protocol"
	"starling/sandbox"
)

const (
	// maxModuleFileBytes bounds a module that is read from disk.
	maxModuleFileBytes = 256 << 20
	// maxManifestBytes bounds a manifest: the index of capsules takes no larger one.
	maxManifestBytes = 64 << 10
)

// source is a capsule as its author has it.
type source struct {
	manifest protocol.Manifest
	warnings []string
	module   []byte
}

// check refuses a module that cannot run, and a component where components do not.
func (s source) check(path string, components bool) error {
	check := sandbox.Check
	if components && sandbox.IsComponent(s.module) {
		check = sandbox.CheckComponent
	}
	if err := check(path, s.module); err != nil {
		return &usageError{err}
	}
	return nil
}

// bare says what a capsule without a manifest is called.
type bare struct {
	name, version string
	env           []string // names it may be given
}

func (b *bare) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.name, "name", "", "name of a capsule without a manifest; empty: its file's")
	cmd.Flags().StringVar(&b.version, "capsule-version", "", "version of a capsule without a manifest; empty: 0.0.0")
}

// capsuleAt is readSource that warns of what the manifest says in vain.
func (a *app) capsuleAt(ctx context.Context, path string, as bare) (source, error) {
	s, err := a.readSource(ctx, path, as)
	for _, warning := range s.warnings {
		fmt.Fprintf(a.err, "starling: warning: %s: %s\n", protocol.ManifestFile, warning)
	}
	return s, err
}

// readSource reads a capsule: a .wasm file with or without a murmur.yaml beside
// it, or a directory that holds one .wasm file, or the source of a Go command,
// which is built for wasip1 with the go command.
func (a *app) readSource(ctx context.Context, path string, as bare) (source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return source{}, &usageError{fmt.Errorf("capsule %s: %w", path, unwrapPath(err))}
	}
	dir, file := path, ""
	if !info.IsDir() {
		dir, file = filepath.Dir(path), path
	}
	var s source
	if file == "" {
		if s.module, file, err = a.moduleIn(ctx, dir); err != nil {
			return source{}, err
		}
	} else if s.module, err = readModule(file); err != nil {
		return source{}, err
	}
	manifest, err := readManifest(filepath.Join(dir, protocol.ManifestFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.manifest = bareManifest(file, as)
		err = s.manifest.Validate()
	case err != nil:
		return source{}, &usageError{fmt.Errorf("capsule %s: %w", path, err)}
	case as.name != "" || as.version != "":
		return source{}, &usageError{fmt.Errorf("capsule %s has a %s, which says its name and version: --name and --capsule-version are for one without", path, protocol.ManifestFile)}
	default:
		s.manifest, s.warnings, err = protocol.ParseManifest(manifest)
	}
	if err != nil {
		return source{}, &usageError{fmt.Errorf("capsule %s: %w", path, err)}
	}
	return s, nil
}

// bareManifest names a module without a manifest by the command line, else by
// its file.
func bareManifest(file string, as bare) protocol.Manifest {
	if as.name == "" {
		as.name = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
				return r
			}
			return '-'
		}, strings.TrimSuffix(filepath.Base(file), ".wasm"))
	}
	if as.version == "" {
		as.version = "0.0.0"
	}
	m := protocol.DefaultManifest(as.name, as.version)
	m.Capabilities.Env.Allow = as.env
	return m
}

// moduleIn finds, or builds, the one module of a directory.
func (a *app) moduleIn(ctx context.Context, dir string) (module []byte, file string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, "*.wasm"))
	if err != nil {
		return nil, "", &usageError{err}
	}
	switch len(found) {
	case 1:
		module, err = readModule(found[0])
		return module, found[0], err
	case 0:
		if sources, _ := filepath.Glob(filepath.Join(dir, "*.go")); len(sources) > 0 {
			abs, err := filepath.Abs(dir)
			if err != nil {
				return nil, "", err
			}
			defer a.unlessQuick("building %s with the go command", dir)()
			module, err = buildGo(ctx, abs)
			return module, filepath.Base(abs) + ".wasm", err
		}
		return nil, "", &usageError{fmt.Errorf("capsule %s: the directory holds neither a .wasm file nor Go source", dir)}
	default:
		return nil, "", &usageError{fmt.Errorf("capsule %s: the directory holds %d .wasm files: name the one you mean", dir, len(found))}
	}
}

// readManifest reads a murmur.yaml.
func readManifest(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
	if err == nil && len(data) > maxManifestBytes {
		err = fmt.Errorf("%s has more than %d bytes: keep what is no setting out of it", protocol.ManifestFile, maxManifestBytes)
	}
	return data, err
}

// readModule reads a module, which may come through a pipe.
func readModule(file string) ([]byte, error) {
	bad := func(err error) ([]byte, error) {
		return nil, &usageError{fmt.Errorf("capsule %s: %w", file, err)}
	}
	f, err := os.Open(file)
	if err != nil {
		return bad(unwrapPath(err))
	}
	defer func() { _ = f.Close() }() // only read
	beginning := make([]byte, 512)
	n, err := io.ReadFull(f, beginning)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return bad(unwrapPath(err))
	}
	beginning = beginning[:n]
	switch {
	case bytes.HasPrefix(beginning, []byte("\x00asm")):
	case isWasmText(file, beginning):
		return bad(errors.New("it is WebAssembly's text format: compile it first, with wat2wasm (wabt) or `wasm-tools parse -o FILE.wasm`"))
	case filepath.Ext(file) == ".go":
		return bad(errors.New("it is no WebAssembly: it does not begin with \\0asm; name the directory of Go source, and it is built"))
	default:
		return bad(errors.New("it is no WebAssembly: it does not begin with \\0asm"))
	}
	module, err := io.ReadAll(io.MultiReader(bytes.NewReader(beginning), io.LimitReader(f, maxModuleFileBytes)))
	if err != nil {
		return bad(unwrapPath(err))
	}
	if len(module) > maxModuleFileBytes {
		return bad(fmt.Errorf("it has more than %d bytes: build it without debug information", maxModuleFileBytes))
	}
	return module, nil
}

// isWasmText reports whether a file is a module's text.
func isWasmText(file string, beginning []byte) bool {
	return filepath.Ext(file) == ".wat" || bytes.HasPrefix(bytes.TrimSpace(beginning), []byte("(module"))
}

// buildGo builds a Go command as a WASI preview 1 module.
func buildGo(ctx context.Context, dir string) (module []byte, err error) {
	temp, err := os.MkdirTemp("", "starling-build-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	out := filepath.Join(temp, "capsule.wasm")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, &usageError{fmt.Errorf("capsule %s: go build: %w\n%s", dir, err, output)}
	}
	return os.ReadFile(out)
}

// unwrapPath drops the operation and the path that an error of os repeats.
func unwrapPath(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
