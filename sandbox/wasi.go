package sandbox

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"starling/sandbox/internal/wasmtimex"
)

// The errnos of WASI preview 1 that host functions answer with.
const (
	errnoSuccess = 0
	errnoFault   = 21
	errnoInval   = 28
)

// pieceBytes is how much of one guest buffer is handled between two looks at
// the deadline, and so the most that one text-delta holds.
const pieceBytes = 64 << 10

// stream is what a guest's file descriptor is to the host.
type stream int

const (
	streamNone stream = iota // the engine's
	streamStdout
	streamStderr
)

// stdio has the descriptors of the streams that are the host's. A guest may close
// them, and may move them or others in their place.
type stdio struct{ stdout, stderr int64 }

const closedFD = -1

func newStdio() stdio { return stdio{stdout: 1, stderr: 2} }

func (s *stdio) at(fd uint32) stream {
	switch int64(fd) {
	case s.stdout:
		return streamStdout
	case s.stderr:
		return streamStderr
	}
	return streamNone
}

func (s *stdio) close(fd uint32) { s.put(fd, closedFD) }

// move puts what stands at from in the place of to, which is closed.
func (s *stdio) move(from, to uint32) {
	if from != to {
		s.close(to)
		s.put(from, int64(to))
	}
}

// put moves what stands at fd.
func (s *stdio) put(fd uint32, to int64) {
	switch s.at(fd) {
	case streamStdout:
		s.stdout = to
	case streamStderr:
		s.stderr = to
	}
}

// fdWrite is fd_write: stdout and stderr are handled here, the rest forwarded.
func (r *run) fdWrite(c *wasmtimex.Call) bool {
	to := r.stdio.at(c.U32(0))
	if to == streamNone {
		return r.writeFile(c, "fd_write", c.U32(3))
	}
	written, ok := c.Bytes(c.U32(3), 4)
	vectors, ok2 := buffers(c, c.U32(1), c.U32(2))
	if !ok || !ok2 {
		c.Return(errnoFault)
		return true
	}
	total := uint64(0)
	for ; len(vectors) > 0; vectors = vectors[vectorBytes:] {
		data, ok := c.Bytes(binary.LittleEndian.Uint32(vectors), binary.LittleEndian.Uint32(vectors[4:]))
		if !ok {
			c.Return(errnoFault)
			return true
		}
		if total += uint64(len(data)); total > 1<<32-1 {
			c.Return(errnoInval)
			return true
		}
		for len(data) > 0 {
			piece := data[:min(len(data), pieceBytes)]
			data = data[len(piece):]
			if !r.write(to, piece) || (len(data) > 0 && !r.alive()) {
				return false
			}
		}
		if len(vectors) > vectorBytes && !r.alive() { // there is another
			return false
		}
	}
	binary.LittleEndian.PutUint32(written, uint32(total))
	c.Return(errnoSuccess)
	return true
}

// vectorBytes is the size of a pair of pointer and length.
//
// Source: WASI snapshot preview 1, "ciovec".
const vectorBytes = 8

// buffers is the memory of n vectors.
func buffers(c *wasmtimex.Call, pointer, n uint32) ([]byte, bool) {
	if uint64(n)*vectorBytes > 1<<32-1 {
		return nil, false
	}
	return c.Bytes(pointer, n*vectorBytes)
}

func (r *run) write(to stream, piece []byte) bool {
	if to == streamStderr {
		r.stderr.write(piece)
		return true
	}
	return r.output.write(piece) || r.halt(stopCalls, nil)
}

// fdClose keeps stdio right and forwards.
func (r *run) fdClose(c *wasmtimex.Call) bool {
	fd := c.U32(0)
	errno, ok := c.Forward("fd_close")
	if ok && errno == errnoSuccess {
		r.stdio.close(fd)
	}
	return ok
}

// fdRenumber keeps stdio right and forwards.
func (r *run) fdRenumber(c *wasmtimex.Call) bool {
	from, to := c.U32(0), c.U32(1)
	errno, ok := c.Forward("fd_renumber")
	if ok && errno == errnoSuccess {
		r.stdio.move(from, to)
	}
	return ok
}

// The layout of one entry of a listing, which its name follows.
//
// Source: WASI snapshot preview 1, "dirent".
const (
	direntBytes   = 24
	direntNameLen = 16 // where the length of the name stands
	direntPadding = 21 // from here to the name
)

// fdReaddir forwards, and clears what lies between the parts of an entry: the engine
// leaves there what was on its stack. The number of bytes may not be written over the
// lengths of names, by which the entries are found.
//
// Source: RUSTSEC-2026-0323.
func (r *run) fdReaddir(c *wasmtimex.Call) bool {
	at, size, usedAt := uint64(c.U32(1)), uint64(c.U32(2)), uint64(c.U32(4))
	list, ok := c.Bytes(uint32(at), uint32(size))
	used, ok2 := c.Bytes(uint32(usedAt), 4)
	switch {
	case !ok, !ok2:
		c.Return(errnoFault)
		return true
	case usedAt%4 != 0, usedAt < at+size && at < usedAt+4:
		c.Return(errnoInval)
		return true
	}
	errno, ok := c.Forward("fd_readdir")
	if !ok || errno != errnoSuccess {
		return ok
	}
	clearPadding(list[:min(binary.LittleEndian.Uint32(used), uint32(len(list)))])
	return true
}

// clearPadding clears what lies between the parts of each entry of a listing, whose
// last may be cut off anywhere.
func clearPadding(list []byte) {
	for len(list) > direntPadding {
		clear(list[direntPadding:min(len(list), direntBytes)])
		next := direntBytes + uint64(binary.LittleEndian.Uint32(list[direntNameLen:]))
		list = list[min(next, uint64(len(list))):]
	}
}

// procExit keeps the status, which the engine loses from 126 on.
func (r *run) procExit(c *wasmtimex.Call) bool {
	r.status = int(c.U32(0))
	return r.halt(stopExit, nil)
}

// randomGet looks at the bounds first: the engine makes the bytes, up to 4 GiB
// in 39 s, before it finds that there is no room for them.
func (r *run) randomGet(c *wasmtimex.Call) bool {
	buffer, ok := c.Bytes(c.U32(0), c.U32(1))
	if !ok {
		c.Return(errnoFault)
		return true
	}
	for len(buffer) > 0 {
		piece := buffer[:min(len(buffer), 1<<20)]
		_, _ = rand.Read(piece) // never fails
		if buffer = buffer[len(piece):]; len(buffer) > 0 && !r.alive() {
			return false
		}
	}
	c.Return(errnoSuccess)
	return true
}

// The clocks of WASI preview 1 that there are.
const (
	clockRealtime  = 0
	clockMonotonic = 1
)

// clockTimeGet is ours because poll_oneoff is: absolute times on the monotonic
// clock are times of one clock. The engine's other clocks do not exist either.
func (r *run) clockTimeGet(c *wasmtimex.Call) bool {
	now, known := r.now(c.U32(0))
	out, ok := c.Bytes(c.U32(2), 8)
	switch {
	case !known:
		c.Return(errnoInval)
	case !ok:
		c.Return(errnoFault)
	default:
		binary.LittleEndian.PutUint64(out, now)
		c.Return(errnoSuccess)
	}
	return true
}

// now is the time on a guest's clock in nanoseconds. The monotonic one begins
// with the run, at 1: some guests take 0 for "no clock".
func (r *run) now(clock uint32) (uint64, bool) {
	switch clock {
	case clockRealtime:
		return uint64(time.Now().UnixNano()), true
	case clockMonotonic:
		return uint64(time.Since(r.begun)) + 1, true
	default:
		return 0, false
	}
}

// schedYield has nobody to yield to: a guest has one thread.
func (r *run) schedYield(c *wasmtimex.Call) bool {
	c.Return(errnoSuccess)
	return true
}
