package sandbox

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"starling/protocol"
	"starling/sandbox/internal/wasm"
)

// artifacts is the disk cache of compiled modules. An artifact is native code,
// and a flipped bit in it loads without an error, so each carries a MAC under a
// key of this host. Files are written aside and renamed: processes may share
// the directory. The zero directory caches nothing.
//
// A file is what the engine serialised, then the module's needs, then the MAC
// over the file's name and all before it. The engine reads the front alone.
//
// The key lies outside the directory: a process that may read compiled modules
// cannot read it.
type artifacts struct {
	dir string
	key []byte
	// components says that components are looked for too. They are files of a kind of
	// their own: who does not look for them finds none, also in a cache that has some.
	components bool
}

// code is a compiled module on disk that was verified.
type code struct {
	Path  string
	Sum   string // SHA-256 of the file, in hex
	needs needs
}

const (
	keyFile      = "host.key"
	trailerBytes = 16 + sha256.Size
	artifactTag  = "starling artifact v1\x00"
)

// openArtifacts makes the directories and the key when they are not there.
func openArtifacts(dir string) (*artifacts, error) {
	if dir == "" {
		return &artifacts{}, nil
	}
	a := &artifacts{dir: filepath.Join(dir, "compiled")}
	keys := filepath.Join(dir, "key")
	// Directories of our own, so that their modes are ours to demand.
	for _, dir := range []string{a.dir, keys} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("sandbox cache: %w", err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			return nil, fmt.Errorf("sandbox cache: %w", err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("sandbox cache: %s has mode %#o and holds native code or its key: chmod 700 it",
				dir, info.Mode().Perm())
		}
	}
	path := filepath.Join(keys, keyFile)
	var err error
	if a.key, err = os.ReadFile(path); errors.Is(err, os.ErrNotExist) {
		fresh := make([]byte, sha256.Size)
		_, _ = rand.Read(fresh) // never fails
		// Link, unlike rename, lets the first of two processes win.
		if err = a.write(path, fresh, os.Link); err == nil || errors.Is(err, os.ErrExist) {
			a.key, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox cache: host key: %w", err)
	}
	if len(a.key) != sha256.Size {
		return nil, fmt.Errorf("sandbox cache: %s has %d bytes, not %d: delete it, and what was compiled is compiled again",
			path, len(a.key), sha256.Size)
	}
	return a, nil
}

// path is named by everything that the code depends on, and by its kind.
func (a *artifacts) path(digest protocol.Digest, component bool) string {
	settings, kind := settings, ".cwasm"
	if component {
		settings, kind = componentSettings, ".component.cwasm"
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s/%s\x00%+v\x00%+v", settings, wasm.Version, runtime.GOOS, runtime.GOARCH, cpu.X86, cpu.ARM64)
	return filepath.Join(a.dir, digest.Hex()+"-"+hex.EncodeToString(h.Sum(nil)[:8])+kind)
}

func (a *artifacts) mac(path string, content []byte) []byte {
	h := hmac.New(sha256.New, a.key)
	h.Write([]byte(artifactTag + filepath.Base(path) + "\x00"))
	h.Write(content)
	return h.Sum(nil)
}

// verify finds a compiled module and checks that this host wrote it;
// [os.ErrNotExist] when there is none, any other error when there is one that
// must not be used. Nobody but this user can put another file in its place
// afterwards.
func (a *artifacts) verify(digest protocol.Digest) (code, error) {
	if a.dir == "" {
		return code{}, os.ErrNotExist
	}
	found, err := a.verifyKind(digest, false)
	if a.components && errors.Is(err, os.ErrNotExist) {
		return a.verifyKind(digest, true)
	}
	return found, err
}

func (a *artifacts) verifyKind(digest protocol.Digest, component bool) (code, error) {
	path := a.path(digest, component)
	content, err := os.ReadFile(path)
	if err != nil {
		return code{}, fmt.Errorf("read artifact: %w", err)
	}
	body := content[:max(0, len(content)-sha256.Size)]
	if len(content) < trailerBytes || !hmac.Equal(content[len(body):], a.mac(path, body)) {
		return code{}, fmt.Errorf("artifact %s is not what this host wrote", path)
	}
	numbers := body[len(body)-16:]
	sum := sha256.Sum256(content)
	return code{path, hex.EncodeToString(sum[:]), needs{
		binary.LittleEndian.Uint64(numbers), binary.LittleEndian.Uint64(numbers[8:]), component,
	}}, nil
}

// errStale says that a compiled module is not the one that was verified.
var errStale = errors.New("the compiled module was changed or removed")

// check compares the file with its sum, for a process that does not have the key.
func (c code) check() error {
	content, err := os.ReadFile(c.Path)
	if err != nil {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != c.Sum {
		return fmt.Errorf("%w: %s", errStale, c.Path)
	}
	return nil
}

func (c code) open(engine *wasmtime.Engine) (*wasmtime.Module, error) {
	module, err := wasmtime.NewModuleDeserializeFile(engine, c.Path)
	if err != nil {
		return nil, fmt.Errorf("artifact %s: %s", c.Path, engineText(err.Error()))
	}
	return module, nil
}

// store keeps what the engine serialised.
func (a *artifacts) store(content []byte, digest protocol.Digest, n needs) error {
	if a.dir == "" {
		return nil
	}
	path := a.path(digest, n.Component)
	content = binary.LittleEndian.AppendUint64(content, n.MemoryBytes)
	content = binary.LittleEndian.AppendUint64(content, n.TableElements)
	content = append(content, a.mac(path, content)...)
	return a.write(path, content, os.Rename)
}

// lock waits until no other process of this host compiles the digest, so that it
// is compiled once. There are 256 locks, whose files stay. The lock saves work and
// guards nothing, for files are put in place in one step: after patience the caller
// goes on without it, as a process that stands still would hold it for ever.
func (a *artifacts) lock(ctx context.Context, digest protocol.Digest, patience time.Duration) (unlock func(), err error) {
	if a.dir == "" {
		return func() {}, nil
	}
	path := filepath.Join(a.dir, "compile-"+digest.Hex()[:2]+".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) { // somebody removed the directory
		if err = os.MkdirAll(a.dir, 0o700); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock a compilation: %w", err)
	}
	ticker, enough := time.NewTicker(20*time.Millisecond), time.NewTimer(patience)
	defer ticker.Stop()
	defer enough.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // which unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock a compilation: %w", err), f.Close())
		}
		select {
		case <-ticker.C:
		case <-enough.C:
			return func() {}, f.Close()
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// write puts a file of mode 0600 in place in one step.
func (a *artifacts) write(path string, content []byte, place func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = place(f.Name(), path)
	}
	_ = os.Remove(f.Name()) // it is gone after a rename
	return err
}
