package testenv

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// CompileBomb builds a small command that takes a compiler very long: a function
// of nested blocks, each ended by a branch table to all that enclose it, with
// locals that live through all of them. The time grows with the square of blocks:
// 200 blocks and 50 locals take part of a second, 800 and 400 half a minute for
// 600 KB.
func CompileBomb(tb testing.TB, blocks, locals int) string {
	tb.Helper()
	var body []byte
	op := func(b ...byte) { body = append(body, b...) }
	num := func(n int) { body = binary.AppendUvarint(body, uint64(n)) }
	num(1) // one group of locals, i32
	num(locals)
	op(0x7f)
	for range blocks {
		op(0x02, 0x40) // block
	}
	for open := blocks; open > 0; open-- {
		op(0x20, 0) // local.get 0
		op(0x0e)    // br_table
		num(open - 1)
		for i := range open {
			num(i)
		}
		op(0x0b) // end
		for i := range min(locals, 8) {
			op(0x20) // local.get
			num(i)
			op(0x41, 1, 0x6a, 0x21) // i32.const 1, i32.add, local.set
			num(i * 7 % locals)
		}
	}
	op(0x0b) // end
	return command(tb, body)
}

// command writes a module whose _start has that body.
func command(tb testing.TB, body []byte) string {
	tb.Helper()
	module := []byte("\x00asm\x01\x00\x00\x00")
	section := func(id byte, content []byte) {
		module = append(binary.AppendUvarint(append(module, id), uint64(len(content))), content...)
	}
	section(1, []byte{1, 0x60, 0, 0})                     // a type without parameters and results
	section(3, []byte{1, 0})                              // a function of it
	section(7, append([]byte{1, 6}, "_start\x00\x00"...)) // exported
	section(10, append(binary.AppendUvarint([]byte{1}, uint64(len(body))), body...))
	path := filepath.Join(tb.TempDir(), "bomb.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
