package wasm

// The instructions that are looked for.
const (
	opBlock      = 0x02
	opIf         = 0x04
	opBrTable    = 0x0e
	opCall       = 0x10
	opCallTable  = 0x11 // call_indirect
	opMemoryGrow = 0x40
	opPrefixFC   = 0xfc
	opPrefixFD   = 0xfd
	subTableGrow = 15
)

// instruction skips one instruction and says which: its opcode, for table.grow the
// table, for br_table the number of targets, for call the function, for
// call_indirect the type, and for a block whose type is not written out the type, with
// sub 1. An instruction of a proposal that the engine does not
// run sets bad.
//
// Source: WebAssembly 2.0, section 5.4, and the relaxed SIMD proposal.
func (r *reader) instruction() (op byte, sub, index uint32) {
	op = r.byte()
	switch {
	case op <= 0x01, op == 0x05, op == 0x0b, op == 0x0f, op == 0x1a, op == 0x1b, op == 0xd1,
		op >= 0x45 && op <= 0xc4:
	case op >= opBlock && op <= opIf:
		sub, index = r.blockType()
	case op == 0xd0: // ref.null
		r.skipSigned(5)
	case op == opCall:
		index = r.u32()
	case op == 0x0c, op == 0x0d, op >= 0x20 && op <= 0x26, op == 0xd2:
		r.u32()
	case op == opBrTable:
		index = r.u32()
		for n := uint64(index) + 1; n > 0 && !r.bad; n-- {
			r.u32()
		}
	case op == opCallTable:
		index = r.u32()
		r.u32()
	case op == 0x1c: // select with types
		r.bytes(r.u32())
	case op >= 0x28 && op <= 0x3e:
		r.memarg()
	case op == 0x3f, op == opMemoryGrow:
		index = uint32(r.byte())
	case op == 0x41:
		r.skipSigned(5)
	case op == 0x42:
		r.skipSigned(10)
	case op == 0x43:
		r.bytes(4)
	case op == 0x44:
		r.bytes(8)
	case op == opPrefixFC:
		sub, index = r.instructionFC()
	case op == opPrefixFD:
		r.instructionFD()
	default:
		r.bad = true
	}
	return op, sub, index
}

func (r *reader) instructionFC() (sub, index uint32) {
	sub = r.u32()
	switch {
	case sub <= 7: // saturating conversions
	case sub == 8: // memory.init
		r.u32()
		r.byte()
	case sub == 9, sub == 13: // data.drop, elem.drop
		r.u32()
	case sub == 10: // memory.copy
		r.bytes(2)
	case sub == 11: // memory.fill
		r.byte()
	case sub == 12, sub == 14: // table.init, table.copy
		r.u32()
		r.u32()
	case sub >= subTableGrow && sub <= 17: // table.grow, table.size, table.fill
		index = r.u32()
	default:
		r.bad = true
	}
	return sub, index
}

func (r *reader) instructionFD() {
	switch sub := r.u32(); {
	case sub <= 0x0b, sub == 0x5c, sub == 0x5d: // loads and stores
		r.memarg()
	case sub == 0x0c, sub == 0x0d: // v128.const, i8x16.shuffle
		r.bytes(16)
	case sub >= 0x15 && sub <= 0x22: // lanes
		r.byte()
	case sub >= 0x54 && sub <= 0x5b: // loads and stores of one lane
		r.memarg()
		r.byte()
	case sub > 0x113:
		r.bad = true
	}
}

func (r *reader) memarg() {
	if r.u32() >= 1<<6 { // a memory's index follows: multi-memory
		r.bad = true
	}
	r.u64(10)
}

// Code is what of a module's functions the engine's compiler has bounds for.
type Code struct {
	// BranchTargets is how many targets the largest br_table has.
	BranchTargets uint32
	// Values is how many values the compiler makes of one function, at most; that it
	// makes one for a local where ways of the code join is not in it.
	Values uint64
}

// valuesPerByte is more than the compiler makes of any instruction but those that
// [Module.values] looks at: 3 of the one byte of i32.eqz, some 30 of call_indirect.
const valuesPerByte = 10

// Code measures all functions. It reads no further in one than to an instruction of a
// proposal that the engine does not run.
func (m *Module) Code() Code {
	var most Code
	for _, s := range m.sections {
		if s.id != sectionCode {
			continue
		}
		r := reader{rest: s.body}
		for n := r.u32(); n > 0 && !r.bad; n-- {
			c := m.function(r.bytes(r.u32()))
			most.BranchTargets = max(most.BranchTargets, c.BranchTargets)
			most.Values = max(most.Values, c.Values)
		}
	}
	return most
}

func (m *Module) function(body []byte) Code {
	c := Code{Values: valuesPerByte * uint64(len(body))}
	r := reader{rest: body}
	r.locals()
	for len(r.rest) > 0 && !r.bad {
		op, sub, index := r.instruction()
		switch {
		case r.bad:
		case op == opBrTable:
			c.BranchTargets = max(c.BranchTargets, index)
		case op >= opBlock && op <= opIf && sub == 1:
			t := m.typeAt(index)
			c.Values += uint64(2*t.params + t.results) // twice, for what else has them too
		case op == opCall && uint64(index) < uint64(len(m.funcTypes)):
			c.Values += uint64(m.typeAt(m.funcTypes[index]).results)
		case op == opCallTable:
			c.Values += uint64(m.typeAt(index).results)
		}
	}
	return c
}

// typeAt is the type of a function; an empty one when there is none.
func (m *Module) typeAt(index uint32) signature {
	if uint64(index) >= uint64(len(m.types)) {
		return signature{}
	}
	return m.types[index]
}

// blockType reads the type of a block: known is 1 when it is that of index.
func (r *reader) blockType() (known, index uint32) {
	if len(r.rest) > 0 && r.rest[0]&0xc0 == 0x40 { // negative: a value's type, or none
		r.byte()
		return 0, 0
	}
	return 1, r.u32()
}

// locals skips what a function declares before its instructions.
func (r *reader) locals() {
	for n := r.u32(); n > 0 && !r.bad; n-- {
		r.u32()
		r.skipSigned(5)
	}
}
