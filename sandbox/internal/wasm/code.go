package wasm

// The instructions that are looked for.
const (
	opBrTable    = 0x0e
	opCall       = 0x10
	opMemoryGrow = 0x40
	opPrefixFC   = 0xfc
	opPrefixFD   = 0xfd
	subTableGrow = 15
)

// instruction skips one instruction and says which: its opcode, for table.grow the
// table, and for br_table the number of targets. An instruction of a proposal that the engine does not
// run sets bad.
//
// Source: WebAssembly 2.0, section 5.4, and the relaxed SIMD proposal.
func (r *reader) instruction() (op byte, sub, index uint32) {
	op = r.byte()
	switch {
	case op <= 0x01, op == 0x05, op == 0x0b, op == 0x0f, op == 0x1a, op == 0x1b, op == 0xd1,
		op >= 0x45 && op <= 0xc4:
	case op >= 0x02 && op <= 0x04, op == 0xd0: // a block's type, ref.null
		r.skipSigned(5)
	case op == 0x0c, op == 0x0d, op == opCall, op >= 0x20 && op <= 0x26, op == 0xd2:
		r.u32()
	case op == opBrTable:
		index = r.u32()
		for n := uint64(index) + 1; n > 0 && !r.bad; n-- {
			r.u32()
		}
	case op == 0x11: // call_indirect
		r.u32()
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

// BranchTargets is how many targets the largest br_table has. It reads no further
// than to an instruction of a proposal that the engine does not run.
func (m *Module) BranchTargets() uint32 {
	most := uint32(0)
	for _, s := range m.sections {
		if s.id != sectionCode {
			continue
		}
		r := reader{rest: s.body}
		for n := r.u32(); n > 0 && !r.bad; n-- {
			body := reader{rest: r.bytes(r.u32())}
			body.locals()
			for len(body.rest) > 0 && !body.bad {
				if op, _, targets := body.instruction(); op == opBrTable && !body.bad {
					most = max(most, targets)
				}
			}
		}
	}
	return most
}

// locals skips what a function declares before its instructions.
func (r *reader) locals() {
	for n := r.u32(); n > 0 && !r.bad; n-- {
		r.u32()
		r.skipSigned(5)
	}
}
