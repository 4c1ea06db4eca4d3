// Package wasm reads as much of a WebAssembly binary as is needed to refuse it
// before it is compiled, and adds to it what tells a limit that was hit.
package wasm

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// The reasons why bytes are no module that can be read.
var (
	ErrNotWasm   = errors.New("not WebAssembly")
	ErrComponent = errors.New("a WebAssembly component")
	ErrMalformed = errors.New("malformed WebAssembly")
)

// Kind is what an import or an export is.
type Kind byte

// The kinds of imports and exports.
const (
	KindFunc   Kind = 0
	KindTable  Kind = 1
	KindMemory Kind = 2
	KindGlobal Kind = 3
)

// String is the word of the text format.
func (k Kind) String() string {
	switch k {
	case KindFunc:
		return "func"
	case KindTable:
		return "table"
	case KindMemory:
		return "memory"
	case KindGlobal:
		return "global"
	default:
		return "item"
	}
}

// Import is one import.
type Import struct {
	Module, Name string
	Kind         Kind
}

// Size is the declared size of a memory in pages or of a table in elements.
type Size struct {
	Min uint64
	Max uint64 // meaningful when Bounded
	// Bounded says that the module itself sets a maximum.
	Bounded bool
}

// Module is what was read of a core module.
type Module struct {
	Imports  []Import
	Memories []Size
	Tables   []Size

	sections   []section
	types      []signature
	funcTypes  []uint32 // of all functions, imported ones first
	tableRefs  [][]byte // element types of the module's own tables
	globals    uint32   // number of all globals, imported ones included
	exports    map[string]export
	importedBy [4]uint32 // number of imports by kind
}

type section struct {
	id   byte
	body []byte
}

type signature struct{ params, results int }

type export struct {
	kind  Kind
	index uint32
}

// The ids of sections.
const (
	sectionCustom   = 0
	sectionType     = 1
	sectionImport   = 2
	sectionFunction = 3
	sectionTable    = 4
	sectionMemory   = 5
	sectionGlobal   = 6
	sectionExport   = 7
	sectionStart    = 8
	sectionCode     = 10
)

// PageBytes is the size of a page of linear memory.
const PageBytes = 65536

// Parse reads a binary's outline. It does not validate: that is the engine's.
// It keeps no more memory than a small multiple of the binary's size.
//
// # Errors
//
// [ErrNotWasm], [ErrComponent], [ErrMalformed].
func Parse(binary []byte) (*Module, error) {
	switch {
	case len(binary) < 8 || string(binary[:4]) != "\x00asm":
		return nil, ErrNotWasm
	case string(binary[4:8]) == "\x0d\x00\x01\x00":
		return nil, ErrComponent
	case string(binary[4:8]) != "\x01\x00\x00\x00":
		return nil, fmt.Errorf("%w: version %x is not 1", ErrMalformed, binary[4:8])
	}
	m := &Module{exports: map[string]export{}}
	r := reader{rest: binary[8:]}
	for len(r.rest) > 0 && !r.bad {
		id := r.byte()
		m.sections = append(m.sections, section{id, r.bytes(r.u32())})
	}
	if r.bad {
		return nil, fmt.Errorf("%w: it ends inside a section", ErrMalformed)
	}
	for _, s := range m.sections {
		r := reader{rest: s.body}
		m.read(s.id, &r)
		if r.bad {
			return nil, fmt.Errorf("%w: section %d cannot be read", ErrMalformed, s.id)
		}
	}
	return m, nil
}

func (m *Module) read(id byte, r *reader) {
	var item func(*reader)
	switch id {
	case sectionType:
		item = m.readType
	case sectionImport:
		item = m.readImport
	case sectionFunction:
		item = func(r *reader) { m.funcTypes = append(m.funcTypes, r.u32()) }
	case sectionTable:
		item = func(r *reader) {
			m.tableRefs = append(m.tableRefs, r.valueTypes(1))
			m.Tables = append(m.Tables, r.size())
		}
	case sectionMemory:
		item = func(r *reader) { m.Memories = append(m.Memories, r.size()) }
	case sectionGlobal:
		// The items need the instruction reader and are not looked at.
		m.globals += r.u32()
		return
	case sectionExport:
		item = func(r *reader) {
			name := r.name()
			m.exports[name] = export{Kind(r.byte()), r.u32()}
		}
	default:
		return
	}
	for n := r.u32(); n > 0 && !r.bad; n-- {
		item(r)
	}
}

func (m *Module) readType(r *reader) {
	if r.byte() != 0x60 {
		r.bad = true
		return
	}
	params := r.u32()
	r.valueTypes(params)
	results := r.u32()
	r.valueTypes(results)
	m.types = append(m.types, signature{int(params), int(results)})
}

func (m *Module) readImport(r *reader) {
	i := Import{Module: r.name(), Name: r.name(), Kind: Kind(r.byte())}
	switch i.Kind {
	case KindFunc:
		m.funcTypes = append(m.funcTypes, r.u32())
	case KindTable:
		r.valueTypes(1)
		r.size()
	case KindMemory:
		r.size()
	case KindGlobal:
		r.valueTypes(1)
		r.byte()
		m.globals++
	default:
		r.bad = true
		return
	}
	m.importedBy[i.Kind]++
	m.Imports = append(m.Imports, i)
}

// Command reports whether the module is a WASI command: it exports a function
// _start that takes and returns nothing.
func (m *Module) Command() bool {
	e, ok := m.exports["_start"]
	if !ok || e.kind != KindFunc || uint64(e.index) >= uint64(len(m.funcTypes)) {
		return false
	}
	t := m.funcTypes[e.index]
	return uint64(t) < uint64(len(m.types)) && m.types[t] == signature{}
}

// reader reads from the front of rest. What it returns after bad is zero.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) byte() byte {
	b := r.bytes(1)
	if r.bad {
		return 0
	}
	return b[0]
}

func (r *reader) bytes(n uint32) []byte {
	if r.bad || uint64(n) > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// u32 reads an unsigned LEB128 of at most 32 bits.
func (r *reader) u32() uint32 {
	v := r.u64(5)
	if v > 1<<32-1 {
		r.bad = true
		return 0
	}
	return uint32(v)
}

// u64 reads an unsigned LEB128 of at most size bytes.
func (r *reader) u64(size int) uint64 {
	var v uint64
	for i := 0; i < size; i++ {
		b := r.byte()
		if i == 9 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return v
		}
	}
	r.bad = true
	return 0
}

// skipSigned skips a signed LEB128 of at most size bytes.
func (r *reader) skipSigned(size int) {
	for range size {
		if r.byte() < 0x80 {
			return
		}
	}
	r.bad = true
}

func (r *reader) name() string {
	b := r.bytes(r.u32())
	if !utf8.Valid(b) {
		r.bad = true
		return ""
	}
	return string(b)
}

func (r *reader) size() Size {
	flags := r.byte()
	s := Size{Min: r.u64(10), Bounded: flags&1 != 0}
	if s.Bounded {
		s.Max = r.u64(10)
	}
	return s
}
