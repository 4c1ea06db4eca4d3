package wasm

import (
	"fmt"
	"slices"
)

// The exports that [Module.Instrument] adds.
const (
	// ExportMemoryWanted is a global: the bytes of a memory.grow that was refused.
	ExportMemoryWanted = "starling:limit/memory"
	// ExportTableWanted is a global: the elements of a table.grow that was refused.
	ExportTableWanted = "starling:limit/table"
	// ExportStart is the module's start function, to be called before anything else.
	ExportStart = "starling:start"
)

// Version names what Instrument does, for it is part of a compiled module's key.
const Version = "instrument/2"

// Instrument makes a module whose growth past a limit can be told from any other
// trap, and how much it asked for. See docs/rationale.md, "Why is a module
// rewritten before it is compiled?".
//
// Each memory.grow and table.grow becomes a call of a function that is added at
// the end, so that no index changes. The function grows; when that is refused
// although the module's own maximum allows it, it stores the size that was asked
// for in an exported global and traps. A start function is exported instead of
// being run with the instantiation, before which no global can be read.
//
// It returns nil, for a module that stays as it is, when there is nothing to do.
//
// # Errors
//
// [ErrMalformed] for a module that cannot be read, or that imports a memory or a table.
func (m *Module) Instrument() ([]byte, error) {
	w := instrumenter{module: m, grows: map[uint32]uint32{}}
	switch {
	case !w.ordered():
		return nil, fmt.Errorf("%w: a section is unknown, there twice or not in its place", ErrMalformed)
	case m.importedBy[KindMemory] > 0 || m.importedBy[KindTable] > 0:
		return nil, fmt.Errorf("%w: it imports a memory or a table", ErrMalformed)
	}
	w.rewriteCode()
	switch {
	case w.bad:
		return nil, fmt.Errorf("%w: a function cannot be read", ErrMalformed)
	case len(w.helpers) == 0 && w.part(sectionStart) == nil:
		return nil, nil
	}
	return w.binary(), nil
}

// order is the order of sections in a binary; customs may stand anywhere.
var order = []byte{
	sectionType, sectionImport, sectionFunction, sectionTable, sectionMemory, 13, sectionGlobal,
	sectionExport, sectionStart, 9, 12, sectionCode, 11,
}

type instrumenter struct {
	module *Module
	bad    bool

	bodies      []byte // the code section's items
	bodyCount   uint32
	helpers     [][]byte // bodies of the added functions
	helperTypes [][]byte // and their types
	globals     []string // names of the added globals
	memoryGrow  uint32   // index of the memory's helper, 0 for none yet
	grows       map[uint32]uint32
}

// ordered reports whether each section is there at most once, in order.
func (w *instrumenter) ordered() bool {
	last := -1
	for _, s := range w.module.sections {
		if s.id == sectionCustom {
			continue
		}
		at := slices.Index(order, s.id)
		if at <= last {
			return false
		}
		last = at
	}
	return true
}

func (w *instrumenter) part(id byte) []byte {
	for _, s := range w.module.sections {
		if s.id == id {
			return s.body
		}
	}
	return nil
}

func (w *instrumenter) rewriteCode() {
	r := reader{rest: w.part(sectionCode)}
	if r.rest == nil {
		return
	}
	w.bodyCount = r.u32()
	w.bodies = make([]byte, 0, len(r.rest)+len(r.rest)/64)
	for n := w.bodyCount; n > 0 && !r.bad; n-- {
		body := w.rewriteBody(r.bytes(r.u32()))
		w.bodies = appendU64(w.bodies, uint64(len(body)))
		w.bodies = append(w.bodies, body...)
	}
	w.bad = w.bad || r.bad || len(r.rest) > 0
}

// rewriteBody returns body itself when it never grows anything.
func (w *instrumenter) rewriteBody(body []byte) []byte {
	r := reader{rest: body}
	r.locals()
	var out []byte
	copied := 0
	for len(r.rest) > 0 && !r.bad {
		at := len(body) - len(r.rest)
		in := r.instruction()
		var helper uint32
		switch {
		case in.op == opMemoryGrow && in.index == 0 && len(w.module.Memories) == 1:
			helper = w.memoryHelper()
		case in.op == opPrefixFC && in.sub == subTableGrow && uint64(in.index) < uint64(len(w.module.Tables)):
			helper = w.tableHelper(in.index)
		default:
			continue
		}
		out = append(out, body[copied:at]...)
		out = appendU64(append(out, opCall), uint64(helper))
		copied = len(body) - len(r.rest)
	}
	w.bad = w.bad || r.bad
	if copied == 0 {
		return body
	}
	return append(out, body[copied:]...)
}

func (w *instrumenter) memoryHelper() uint32 {
	if w.memoryGrow == 0 {
		global := w.global(ExportMemoryWanted)
		body := []byte{2, 1, 0x7f, 1, 0x7e} // locals: i32, i64
		body = append(body, 0x20, 0, 0x40, 0)
		body = refused(body, 1, 2, 0, []byte{0x3f, 0}, w.module.Memories[0])
		body = append(body, 0x20, 2, 0x42, 16, 0x86) // pages to bytes
		w.memoryGrow = w.helper([]byte{0x60, 1, 0x7f, 1, 0x7f}, finish(body, global))
	}
	return w.memoryGrow
}

func (w *instrumenter) tableHelper(table uint32) uint32 {
	helper, ok := w.grows[table]
	if !ok {
		global := w.global(ExportTableWanted)
		body := []byte{2, 1, 0x7f, 1, 0x7e}
		body = appendU64(append(body, 0x20, 0, 0x20, 1, opPrefixFC, subTableGrow), uint64(table))
		size := appendU64([]byte{opPrefixFC, 16}, uint64(table))
		body = refused(body, 2, 3, 1, size, w.module.Tables[table])
		body = append(body, 0x20, 3)
		signature := append([]byte{0x60, 2}, w.module.tableRefs[table]...)
		helper = w.helper(append(signature, 0x7f, 1, 0x7f), finish(body, global))
		w.grows[table] = helper
	}
	return helper
}

// refused goes on after a grow: it returns the result unless that is -1, adds
// delta to the size, and enters a block when the module's own maximum allows
// the sum. result, sum and delta are locals.
func refused(body []byte, result, sum, delta byte, size []byte, own Size) []byte {
	body = append(body, 0x22, result, 0x41, 0x7f, 0x47, 0x04, 0x40, 0x20, result, 0x0f, 0x0b)
	body = append(body, size...)
	body = append(body, 0xad, 0x20, delta, 0xad, 0x7c, 0x22, sum, 0x42)
	most := int64(-1)
	if own.Bounded {
		most = int64(min(own.Max, 1<<32))
	}
	return append(appendS64(body, most), 0x58, 0x04, 0x40)
}

// finish stores the value on the stack in the global and traps; outside the
// block it returns -1.
func finish(body []byte, global uint32) []byte {
	body = appendU64(append(body, 0x24), uint64(global))
	return append(body, 0x00, 0x0b, 0x41, 0x7f, 0x0b)
}

func (w *instrumenter) global(name string) uint32 {
	at := slices.Index(w.globals, name)
	if at < 0 {
		at = len(w.globals)
		w.globals = append(w.globals, name)
	}
	return w.module.globals + uint32(at)
}

func (w *instrumenter) helper(signature, body []byte) uint32 {
	w.helperTypes = append(w.helperTypes, signature)
	w.helpers = append(w.helpers, body)
	return uint32(len(w.module.funcTypes) + len(w.helpers) - 1)
}
