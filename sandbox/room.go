package sandbox

import (
	"context"
	"encoding/binary"

	"starling/sandbox/internal/wasmtimex"
)

// fdPwrite is fd_pwrite, which has no streams.
func (r *run) fdPwrite(c *wasmtimex.Call) bool { return r.writeFile(c, "fd_pwrite", c.U32(4)) }

// writeFile forwards a write to a file, and counts what was written, which the engine
// puts at a place in the guest's memory. It counts in blocks, as [TreeBytes] and the
// disk do, and one more, as the first may have been begun: a byte in each block of a
// file fills the disk too.
func (r *run) writeFile(c *wasmtimex.Call, function string, written uint32) bool {
	errno, ok := c.Forward(function)
	if !ok || errno != errnoSuccess {
		return ok
	}
	place, ok := c.Bytes(written, 4)
	if !ok {
		return true
	}
	n := int64(binary.LittleEndian.Uint32(place))
	return n == 0 || r.wrote(blocks(n)+entryBytes)
}

// wrote takes so many bytes from the room, and asks for more when it has passed it. It
// reports whether the guest goes on.
func (r *run) wrote(n int64) bool {
	if r.room -= n; r.spec.Room == nil || r.room >= 0 {
		return true
	}
	ctx, cancel := context.WithDeadline(r.ctx, r.deadline)
	defer cancel()
	if r.room = r.spec.Room(ctx); r.room > 0 {
		return r.alive()
	}
	select {
	case <-ctx.Done():
	case <-r.engine.closing:
	}
	return r.alive()
}

// askRoom is [Spec].Room where the worker is asked.
func (r *childRun) askRoom(ctx context.Context) int64 {
	r.must(r.pipe.send(msgRoom, nil))
	select {
	case n := <-r.roomIs:
		return n
	case <-ctx.Done():
		return 0
	}
}

// takeRoom gives askRoom what the worker answers. It runs on the slot's listener.
func (r *childRun) takeRoom(d *decoder) error {
	select {
	case r.roomIs <- d.num():
	default: // nobody asked: the guest is over, or the worker answers twice
	}
	return d.end()
}
