package sandbox

import (
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

	"github.com/bytecodealliance/wasmtime-go/v39"
	"golang.org/x/sys/cpu"

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
type artifacts struct {
	dir string
	key []byte
}

const (
	keyFile      = "host.key"
	trailerBytes = 16 + sha256.Size
	artifactTag  = "starling artifact v1\x00"
)

// openArtifacts makes the directory and its key when they are not there.
func openArtifacts(dir string) (*artifacts, error) {
	if dir == "" {
		return &artifacts{}, nil
	}
	// A directory of our own, so that its mode is ours to demand.
	dir = filepath.Join(dir, "compiled")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("sandbox cache: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("sandbox cache: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("sandbox cache: %s has mode %#o and holds native code: chmod 700 it",
			dir, info.Mode().Perm())
	}
	a := &artifacts{dir: dir}
	path := filepath.Join(dir, keyFile)
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

// path is named by everything that the code depends on.
func (a *artifacts) path(digest protocol.Digest) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s/%s\x00%+v\x00%+v", settings, wasm.Version, runtime.GOOS, runtime.GOARCH, cpu.X86, cpu.ARM64)
	return filepath.Join(a.dir, digest.Hex()+"-"+hex.EncodeToString(h.Sum(nil)[:8])+".cwasm")
}

func (a *artifacts) mac(path string, content []byte) []byte {
	h := hmac.New(sha256.New, a.key)
	h.Write([]byte(artifactTag + filepath.Base(path) + "\x00"))
	h.Write(content)
	return h.Sum(nil)
}

// load returns a compiled module; [os.ErrNotExist] when there is none, any other
// error when there is one that must not be used. Nobody but this user can put
// another file in its place between the check and the engine's own reading.
func (a *artifacts) load(engine *wasmtime.Engine, digest protocol.Digest) (*wasmtime.Module, needs, error) {
	if a.dir == "" {
		return nil, needs{}, os.ErrNotExist
	}
	path := a.path(digest)
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, needs{}, fmt.Errorf("read artifact: %w", err)
	}
	body := content[:max(0, len(content)-sha256.Size)]
	if len(content) < trailerBytes || !hmac.Equal(content[len(body):], a.mac(path, body)) {
		return nil, needs{}, fmt.Errorf("artifact %s is not what this host wrote", path)
	}
	module, err := wasmtime.NewModuleDeserializeFile(engine, path)
	if err != nil {
		return nil, needs{}, fmt.Errorf("artifact %s: %w", path, err)
	}
	numbers := body[len(body)-16:]
	return module, needs{binary.LittleEndian.Uint64(numbers), binary.LittleEndian.Uint64(numbers[8:])}, nil
}

func (a *artifacts) store(module *wasmtime.Module, digest protocol.Digest, n needs) error {
	if a.dir == "" {
		return nil
	}
	content, err := module.Serialize()
	if err != nil {
		return fmt.Errorf("serialize: %w", err)
	}
	path := a.path(digest)
	content = binary.LittleEndian.AppendUint64(content, n.MemoryBytes)
	content = binary.LittleEndian.AppendUint64(content, n.TableElements)
	content = append(content, a.mac(path, content)...)
	return a.write(path, content, os.Rename)
}

// write puts a file of mode 0600 in place in one step.
func (a *artifacts) write(path string, content []byte, place func(from, to string) error) error {
	f, err := os.CreateTemp(a.dir, ".new-*") // mode 0600
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
