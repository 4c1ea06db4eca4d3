package sandbox_test

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
	"starling/sandbox"
)

// pathCalls is a module that reads from stdin which call it is to make, and with
// which two paths below its directory. What it can open it copies to stdout. It exits
// with the call's errno.
const pathCalls = `(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_remove_directory" (func $rmdir (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_rename" (func $rename (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_link" (func $link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_filestat_set_times" (func $times (param i32 i32 i32 i32 i64 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\00\01\00\00\00\10\00\00") ;; what is read comes to 256
  (data (i32.const 16) "\00\80\00\00\00\10\00\00") ;; and a file to 0x8000
  (data (i32.const 32) "secret")
  (func $copy (param $fd i32)
    (if (i32.eqz (call $read (local.get $fd) (i32.const 16) (i32.const 1) (i32.const 20))) (then
      (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24))))))
  (func $opened (param $how i32) (param $flags i32) (param $p i32) (param $n i32) (result i32) (local $errno i32)
    (local.set $errno (call $open (i32.const 3) (local.get $how) (local.get $p) (local.get $n) (local.get $flags)
      (i64.const 0x400_2042) (i64.const 0x400_2042) (i32.const 0) (i32.const 64)))
    (if (i32.eqz (local.get $errno)) (then
      (call $copy (i32.load (i32.const 64)))
      (i32.store (i32.const 20) (i32.const 0x1000))
      (if (i32.eqz (call $open (i32.load (i32.const 64)) (i32.const 0) (i32.const 32) (i32.const 6) (i32.const 0)
            (i64.const 2) (i64.const 2) (i32.const 0) (i32.const 64)))
        (then (call $copy (i32.load (i32.const 64)))))))
    (local.get $errno))
  (func (export "_start") (local $c i32) (local $p i32) (local $n i32) (local $q i32) (local $m i32)
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (local.set $c (i32.load8_u (i32.const 256)))
    (local.set $n (i32.load8_u (i32.const 257)))
    (local.set $m (i32.load8_u (i32.const 258)))
    (local.set $p (i32.const 259))
    (local.set $q (i32.add (local.get $p) (local.get $n)))
    (block $9 (block $8 (block $7 (block $6 (block $5 (block $4 (block $3 (block $2 (block $1 (block $0
      (br_table $0 $1 $2 $3 $4 $5 $6 $7 $8 $9 (local.get $c)))
      (call $exit (call $opened (i32.const 0) (i32.const 0) (local.get $p) (local.get $n))))
      (call $exit (call $opened (i32.const 1) (i32.const 0) (local.get $p) (local.get $n))))
      (call $exit (call $opened (i32.const 1) (i32.const 9) (local.get $p) (local.get $n))))
      (call $exit (call $mkdir (i32.const 3) (local.get $p) (local.get $n))))
      (call $exit (call $rmdir (i32.const 3) (local.get $p) (local.get $n))))
      (call $exit (call $unlink (i32.const 3) (local.get $p) (local.get $n))))
      (call $exit (call $rename (i32.const 3) (local.get $p) (local.get $n) (i32.const 3) (local.get $q) (local.get $m))))
      (call $exit (call $link (i32.const 3) (i32.const 0) (local.get $p) (local.get $n) (i32.const 3) (local.get $q) (local.get $m))))
      (call $exit (call $symlink (local.get $p) (local.get $n) (i32.const 3) (local.get $q) (local.get $m))))
    (call $exit (call $times (i32.const 3) (i32.const 1) (local.get $p) (local.get $n) (i64.const 1) (i64.const 1) (i32.const 5)))))`

// The calls of pathCalls.
const (
	callOpen = iota
	callOpenFollowing
	callTruncate // creates what is not there
	callMkdir
	callRmdir
	callUnlink
	callRename
	callLink
	callSymlink
	callTimes
	pathCallCount
)

// pathCall is the stdin of pathCalls.
func pathCall(call int, p, q string) []byte {
	return append([]byte{byte(call), byte(len(p)), byte(len(q))}, p+q...)
}

// snapshot is all that can be seen of a tree.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	seen := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		seen[path] = info.Mode().String() + info.ModTime().String()
		if d.Type().IsRegular() {
			seen[path] += content(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// own makes a guest's directory anew, with a file, a directory and links in it.
func own(t *testing.T, dir string, links map[string]string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "mydir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLinksWithSlashesLeadNowhere: no call of WASI follows a link out of the granted
// directory, however it is spelt. Landlock would let it: the neighbour lies in the
// work root.
//
// Source: GHSA-vqjp-4c8c-hfgg, GHSA-m9f7-9w4p-gv38.
func TestLinksWithSlashesLeadNowhere(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	neighbour := filepath.Join(root, "neighbour")
	for _, dir := range []string{"full/inner", "empty"} {
		if err := os.MkdirAll(filepath.Join(neighbour, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"secret", "full/secret"} {
		if err := os.WriteFile(filepath.Join(neighbour, file), []byte("the neighbour's"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := snapshot(t, neighbour)
	processes := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.WorkRoot = root })
	module := spec(t, wat(t, pathCalls))
	links := map[string]string{
		"l": "../neighbour", "s": "../neighbour/", "d": "../neighbour/.", "f": "../neighbour/secret", "g": "../neighbour/secret/",
		"n": "../neighbour/new", "m": "../neighbour/new/", "a": neighbour, "b": neighbour + "/",
	}
	var paths []string
	for link := range links {
		for _, end := range []string{"", "/", "//", "/.", "/./", "/secret", "/secret/", "//secret", "/new", "/new/", "/empty", "/empty/", "/full/", "/full/secret"} {
			paths = append(paths, link+end)
		}
	}
	for name, c := range map[string]struct {
		call int
		p, q string
		says string
	}{
		"open": {callOpen, "mine", "", "mine"}, "open following": {callOpenFollowing, "link", "", "mine"},
		"truncate": {callTruncate, "new", "", ""}, "mkdir": {callMkdir, "new", "", ""}, "rmdir": {callRmdir, "mydir", "", ""},
		"unlink": {callUnlink, "mine", "", ""}, "rename": {callRename, "mine", "new", ""}, "link": {callLink, "mine", "new", ""},
		"symlink": {callSymlink, "mine", "new", ""}, "times": {callTimes, "mine", "", ""},
	} {
		s := withDirectory(t, root, module)
		own(t, s.WorkDir, map[string]string{"link": "mine"})
		s.Stdin = pathCall(c.call, c.p, c.q)
		if end := processes.Run(t.Context(), s, func(protocol.Event) {}); end.Status != 0 || end.Stdout != c.says {
			t.Errorf("%s of its own: %s %d %q, want 0 and %q", name, end.Kind, end.Status, end.Stdout, c.says)
		}
	}
	for call := range pathCallCount {
		work := withDirectory(t, root, module)
		try := func(p, q string) {
			own(t, work.WorkDir, links)
			s := work
			s.Stdin = pathCall(call, p, q)
			end := processes.Run(t.Context(), s, func(protocol.Event) {})
			if end.Kind != sandbox.Exited || strings.Contains(end.Stdout, "neighbour") {
				t.Errorf("call %d of %q, %q: %s %q %s, want it to exit and to read nothing", call, p, q, end.Kind, end.Stdout, end.Message)
			}
			if diff := cmp.Diff(before, snapshot(t, neighbour)); diff != "" {
				t.Errorf("call %d of %q, %q, which exited with %d, changed the neighbour:\n%s", call, p, q, end.Status, diff)
			}
			if info, err := os.Lstat(filepath.Join(work.WorkDir, "got")); err == nil && info.Mode().IsRegular() {
				if text := content(t, work.WorkDir, "got"); text != "mine" {
					t.Errorf("call %d of %q, %q got %q", call, p, q, text)
				}
			}
		}
		for _, path := range paths {
			switch call {
			case callRename, callLink, callSymlink:
				for _, q := range []string{"got", "got/"} {
					try(path, q)
				}
				for _, p := range []string{"mine", "mydir", "mydir/"} {
					try(p, path)
				}
			default:
				try(path, "")
			}
		}
	}
}

// TestLoadsAtTheEndOfMemory: the engine may read past the eight bytes that it is
// asked for, into the guard behind a memory. That traps, and is no death.
//
// Source: RUSTSEC-2026-0006, RUSTSEC-2026-0087.
func TestLoadsAtTheEndOfMemory(t *testing.T) {
	t.Parallel()
	both(t, 0, func(t *testing.T, r runner) {
		for name, body := range map[string]string{
			"copysign":         `(f64.store (i32.const 0) (f64.copysign (f64.load (local.get $p)) (f64.load (i32.const 8))))`,
			"copysign's other": `(f64.store (i32.const 0) (f64.copysign (f64.load (i32.const 8)) (f64.load (local.get $p))))`,
			"splat":            `(v128.store (i32.const 0) (f64x2.splat (f64.load (local.get $p))))`,
		} {
			for _, tables := range []int64{0, 200_000} { // in the pool and out of it
				s := spec(t, wat(t, `(module (memory (export "memory") 1) (func (export "_start") (local $p i32)
				  (local.set $p (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 8))) `+body+`))`))
				if tables > 0 {
					s.Limits.TableElements = tables
				}
				end := r.Run(t.Context(), s, func(protocol.Event) {})
				if end.Kind != sandbox.Exited && (end.Kind != sandbox.Trapped || !strings.Contains(end.Message, "out of bounds memory access")) {
					t.Errorf("%s: Run = %+v, want it to exit or to trap", name, end)
				}
			}
		}
	})
}

// TestListingsHaveNothingBetween: of an entry that the engine writes, three bytes are
// whatever was on its stack.
//
// Source: RUSTSEC-2026-0323; WASI snapshot preview 1, "dirent".
func TestListingsHaveNothingBetween(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("n", 1+i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The whole listing, and every beginning of it: it ends in the middle of an entry.
	s := spec(t, wat(t, `(module
	  (import "wasi_snapshot_preview1" "fd_readdir" (func $list (param i32 i32 i32 i64 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
	  (memory (export "memory") 1)
	  (func $check (param $size i32) (local $at i32) (local $end i32)
	    (memory.fill (i32.const 1024) (i32.const 0xff) (i32.const 8192))
	    (if (call $list (i32.const 3) (i32.const 1024) (local.get $size) (i64.const 0) (i32.const 64)) (then (call $exit (i32.const 1))))
	    (if (i32.gt_u (i32.load (i32.const 64)) (local.get $size)) (then (call $exit (i32.const 2))))
	    (local.set $at (i32.const 1024))
	    (local.set $end (i32.add (i32.const 1024) (i32.load (i32.const 64))))
	    (loop $l
	      (if (i32.le_u (i32.add (local.get $at) (i32.const 24)) (local.get $end)) (then
	        (if (i32.shr_u (i32.load (i32.add (local.get $at) (i32.const 20))) (i32.const 8)) (then (call $exit (i32.const 3))))
	        (local.set $at (i32.add (i32.add (local.get $at) (i32.const 24)) (i32.load (i32.add (local.get $at) (i32.const 16)))))
	        (br $l)))
	      (if (i32.eq (i32.add (local.get $at) (i32.const 23)) (local.get $end)) (then
	        (if (i32.load16_u (i32.add (local.get $at) (i32.const 21))) (then (call $exit (i32.const 4))))))
	      (if (i32.load8_u (local.get $end)) (then) (else (call $exit (i32.const 5)))))) ;; nothing past it is touched
	  (func (export "_start") (local $size i32)
	    (loop $l
	      (call $check (local.get $size))
	      (br_if $l (i32.lt_u (local.tee $size (i32.add (local.get $size) (i32.const 1))) (i32.const 150))))
	    (call $check (i32.const 8000))
	    (if (call $list (i32.const 9) (i32.const 1024) (i32.const 100) (i64.const 0) (i32.const 64)) (then) (else (call $exit (i32.const 6))))
	    (if (call $list (i32.const 3) (i32.const 65500) (i32.const 100) (i64.const 0) (i32.const 64)) (then) (else (call $exit (i32.const 7))))
    ;; The number of bytes over the length of a name, at both ends, and where no number can be.
    (call $inval (i32.const 1040)) (call $inval (i32.const 1024)) (call $inval (i32.const 1148)) (call $inval (i32.const 65))
    (if (call $list (i32.const 3) (i32.const 1024) (i32.const 128) (i64.const 0) (i32.const 1152)) (then (call $exit (i32.const 9))))
    (if (call $list (i32.const 3) (i32.const 1024) (i32.const 128) (i64.const 0) (i32.const 1020)) (then (call $exit (i32.const 10)))))
  (func $inval (param $used i32)
    (if (i32.ne (call $list (i32.const 3) (i32.const 1024) (i32.const 128) (i64.const 0) (local.get $used)) (i32.const 28))
      (then (call $exit (i32.const 8))))))`))
	s.WorkDir = dir
	if got, _ := run(t, newEngine(t), s); got.Kind != sandbox.Exited || got.Status != 0 {
		t.Errorf("Run = %+v, want exit 0", got)
	}
}

// manyValues is a module that hands 1,000 values on from one block into the next.
func manyValues(blocks int) []byte {
	number := func(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }
	part := func(id byte, body ...[]byte) []byte {
		all := slices.Concat(body...)
		return slices.Concat([]byte{id}, number(len(all)), all)
	}
	const loop, end, constant, drop = 0x03, 0x0b, 0x41, 0x1a
	function := slices.Concat([]byte{0}, bytes.Repeat([]byte{constant, 1}, 1000), bytes.Repeat([]byte{loop, 1}, blocks),
		bytes.Repeat([]byte{drop}, 1000), bytes.Repeat([]byte{end}, blocks+1))
	return slices.Concat([]byte("\x00asm\x01\x00\x00\x00"),
		part(1, []byte{2, 0x60, 0, 0, 0x60}, number(1000), bytes.Repeat([]byte{0x7f}, 1000), []byte{0}),
		part(3, []byte{1, 0}), part(5, []byte{1, 0, 1}),
		part(7, []byte("\x02\x06_start\x00\x00\x06memory\x02\x00")),
		part(10, []byte{1}, number(len(function)), function))
}

// TestFunctionsOfManyValues are refused before the engine counts wrong, and a larger
// function than compilers make is not.
//
// Source: GHSA-897f-g5gm-fmxm.
func TestFunctionsOfManyValues(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	got, _ := run(t, e, spec(t, file(t, manyValues(17_500))))
	if got.Kind != sandbox.Refused || !strings.Contains(got.Message, "may come to 35555020 values when compiled") {
		t.Errorf("Run = %+v, want refused", got)
	}
	if got, _ := run(t, e, spec(t, file(t, manyValues(100)))); got.Kind != sandbox.Exited {
		t.Errorf("Run of a smaller one = %+v, want exited", got)
	}
	if err := sandbox.Check("large", large(1_500_000)); err != nil {
		t.Errorf("Check of a function of 1,500,000 bytes = %v", err)
	}
	if err := sandbox.Check("large", large(1_600_000)); err == nil {
		t.Error("Check of a function of 1,600,000 bytes = nil, want it refused")
	}
}

// large is a module with a function of n instructions that do nothing.
func large(n int) []byte {
	m := slices.Clone(manyValues(0))
	at := bytes.LastIndex(m, []byte("memory\x02\x00")) + len("memory\x02\x00")
	body := slices.Concat([]byte{0}, bytes.Repeat([]byte{1}, n), []byte{0x0b})
	size := binary.AppendUvarint([]byte{1}, uint64(len(body)))
	m = binary.AppendUvarint(append(m[:at], 10), uint64(len(size)+len(body)))
	return slices.Concat(m, size, body)
}
