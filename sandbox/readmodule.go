package sandbox

import (
	"fmt"
	"io"
	"os"

	"starling/protocol"
)

// readModule reads a module, checks that it can run, and gives what is to be
// compiled of it, and what it needs.
func readModule(path string, digest protocol.Digest, limit int64) ([]byte, needs, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, needs{}, fmt.Errorf("read module: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	return readModuleFrom(f, path, digest, limit)
}

func readModuleFrom(f io.Reader, path string, digest protocol.Digest, limit int64) ([]byte, needs, error) {
	binary, err := readVerified(f, path, digest, limit)
	if err != nil {
		return nil, needs{}, err
	}
	return outlined(path, binary)
}

// readVerified reads a file that has this digest.
func readVerified(f io.Reader, path string, digest protocol.Digest, limit int64) ([]byte, error) {
	binary, err := readAll(f, path, limit)
	if err != nil {
		return nil, err
	}
	if got := protocol.DigestOf(binary); got != digest {
		return nil, damaged{refusal(fmt.Sprintf("module %s has the digest %s, not %s: push the capsule again", path, got, digest))}
	}
	return binary, nil
}

// outlined checks that a module can run and gives what is to be compiled of it.
func outlined(path string, binary []byte) ([]byte, needs, error) {
	var n needs
	outline, err := check(path, binary)
	if err != nil {
		return nil, n, err
	}
	n.atLeast(outline)
	rewritten, err := outline.Instrument()
	switch {
	case err != nil:
		return nil, n, unreadable(path, err)
	case rewritten != nil:
		binary = rewritten
	}
	return binary, n, nil
}

// readAll reads a whole file, which is one of a capsule and so not trusted to be
// small.
func readAll(f io.Reader, path string, limit int64) ([]byte, error) {
	binary, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	if int64(len(binary)) > limit {
		return nil, refusef("module %s has more than %d bytes: build it smaller, for example without debug information", path, limit)
	}
	return binary, nil
}
