package wasm

// The instructions that are looked for.
const (
	opBlock      = 0x02
	opIf         = 0x04
	opEnd        = 0x0b
	opBrTable    = 0x0e
	opCall       = 0x10
	opCallTable  = 0x11 // call_indirect
	opMemoryGrow = 0x40
	opPrefixFC   = 0xfc
	opPrefixFD   = 0xfd
	subTableGrow = 15
)

// instruction is one of a function's, as far as somebody looks at it.
type instruction struct {
	op    byte
	sub   uint32 // of an opcode that is a prefix
	index uint32 // of the function of call, the type of call_indirect, the memory of memory.grow, the table of table.grow
	// targets are how many br_table has beside its default.
	targets uint32
	// typed is a block whose type is the one of index, and not written out.
	typed bool
}

// instruction skips one instruction and says which. One of a proposal that the engine
// does not run sets bad.
//
// Source: WebAssembly 2.0, section 5.4, and the relaxed SIMD proposal.
func (r *reader) instruction() instruction {
	in := instruction{op: r.byte()}
	switch op := in.op; {
	case op <= 0x01, op == 0x05, op == 0x0b, op == 0x0f, op == 0x1a, op == 0x1b, op == 0xd1,
		op >= 0x45 && op <= 0xc4:
	case op >= opBlock && op <= opIf:
		in.index, in.typed = r.blockType()
	case op == 0xd0: // ref.null
		r.skipSigned(5)
	case op == opCall:
		in.index = r.u32()
	case op == 0x0c, op == 0x0d, op >= 0x20 && op <= 0x26, op == 0xd2:
		r.u32()
	case op == opBrTable:
		in.targets = r.u32()
		for n := uint64(in.targets) + 1; n > 0 && !r.bad; n-- {
			r.u32()
		}
	case op == opCallTable:
		in.index = r.u32()
		r.u32()
	case op == 0x1c: // select with types
		r.valueTypes(r.u32())
	case op >= 0x28 && op <= 0x3e:
		r.memarg()
	case op == 0x3f, op == opMemoryGrow:
		in.index = r.u32()
	case op == 0x41:
		r.skipSigned(5)
	case op == 0x42:
		r.skipSigned(10)
	case op == 0x43:
		r.bytes(4)
	case op == 0x44:
		r.bytes(8)
	case op == opPrefixFC:
		in.sub, in.index = r.instructionFC()
	case op == opPrefixFD:
		r.instructionFD()
	default:
		r.bad = true
	}
	return in
}

func (r *reader) instructionFC() (sub, index uint32) {
	sub = r.u32()
	switch {
	case sub <= 7: // saturating conversions
	case sub == 8: // memory.init
		r.u32()
		r.u32()
	case sub == 9, sub == 13: // data.drop, elem.drop
		r.u32()
	case sub == 10: // memory.copy
		r.u32()
		r.u32()
	case sub == 11: // memory.fill
		r.u32()
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
	// Values is how many values the compiler makes of one function, at most. Those
	// that it makes for locals where ways of the code join are not counted.
	Values uint64
	// Unreadable says that a function could not be read to its end, so that the others
	// are less than there may be.
	Unreadable bool
}

// valuesPerByte is more than the compiler makes of any instruction but those that
// [Module.function] looks at: 3 of the one byte of i32.eqz, some 30 of call_indirect.
const valuesPerByte = 10

// Code measures all functions. It reads no further in one than to an instruction of a
// proposal that the engine does not run, and no further function then.
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
			r.bad = r.bad || c.Unreadable
		}
		most.Unreadable = most.Unreadable || r.bad || len(r.rest) > 0
	}
	return most
}

// function measures one.
func (m *Module) function(body []byte) Code {
	c := Code{Values: valuesPerByte * uint64(len(body))}
	r := reader{rest: body}
	r.locals()
	depth := 1 // of blocks: the last end is that of the function
	for len(r.rest) > 0 && depth > 0 && !r.bad {
		in := r.instruction()
		switch {
		case in.op == opEnd:
			depth--
		case in.op >= opBlock && in.op <= opIf:
			depth++
		}
		switch {
		case r.bad:
		case in.op == opBrTable:
			c.BranchTargets = max(c.BranchTargets, in.targets)
		case in.typed:
			t := m.typeAt(in.index)
			c.Values += uint64(2*t.params + t.results) // twice, for what else has them too
		case in.op == opCall && uint64(in.index) < uint64(len(m.funcTypes)):
			c.Values += uint64(m.typeAt(m.funcTypes[in.index]).results)
		case in.op == opCallTable:
			c.Values += uint64(m.typeAt(in.index).results)
		}
	}
	c.Unreadable = r.bad || depth > 0 || len(r.rest) > 0
	return c
}

// typeAt is the type of a function; an empty one when there is none.
func (m *Module) typeAt(index uint32) signature {
	if uint64(index) >= uint64(len(m.types)) {
		return signature{}
	}
	return m.types[index]
}

// blockType reads the type of a block, which is the one of index unless it is written
// out.
func (r *reader) blockType() (index uint32, typed bool) {
	switch {
	case len(r.rest) == 0 || r.rest[0]&0xc0 != 0x40: // not negative
		return r.u32(), true
	case r.rest[0] == 0x40: // none
		r.byte()
	default:
		r.valueTypes(1)
	}
	return 0, false
}

// The value types, and what begins one of a reference that is written out: funcref and
// externref can be, also where the engine runs no other.
//
// Source: WebAssembly 3.0, section 5.3.
const (
	typeI32       = 0x7f
	typeV128      = 0x7b
	typeFuncRef   = 0x70
	typeExternRef = 0x6f
	typeRef       = 0x64
	typeRefNull   = 0x63
)

// valueTypes skips so many value types and gives their bytes.
func (r *reader) valueTypes(n uint32) []byte {
	all := r.rest
	for ; n > 0 && !r.bad; n-- {
		switch t := r.byte(); {
		case t >= typeV128 && t <= typeI32, t == typeFuncRef, t == typeExternRef:
		case t == typeRef, t == typeRefNull:
			r.skipSigned(5)
		default:
			r.bad = true
		}
	}
	return all[:len(all)-len(r.rest)]
}

// locals skips what a function declares before its instructions.
func (r *reader) locals() {
	for n := r.u32(); n > 0 && !r.bad; n-- {
		r.u32()
		r.valueTypes(1)
	}
}
