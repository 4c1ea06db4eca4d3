package wasm_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/sandbox/internal/wasm"
	"starling/testenv"
)

// everything has one instruction of each form between two that are rewritten.
const everything = `(module
  (type $t (func (param i32) (result i32)))
  (import "a" "f" (func $import (param i32) (result i32)))
  (memory 1 3)
  (table $funcs 2 20 funcref)
  (table $refs 1 externref)
  (global $g (mut i32) (i32.const 0))
  (elem (table $funcs) (i32.const 0) func $import $id)
  (elem $passive func $id)
  (data $d "abc")
  (func $id (type $t) local.get 0)
  (func $init)
  (start $init)
  (func (export "grow") (param $n i32) (result i32) (memory.grow (local.get $n)))
  (func (export "growFuncs") (param $n i32) (result i32) (table.grow $funcs (ref.null func) (local.get $n)))
  (func (export "growRefs") (param $n i32) (result i32) (table.grow $refs (ref.null extern) (local.get $n)))
  (func (export "all") (param $n i32) (result i32) (local $v v128) (local $d f64) (local $f f32)
    (drop (memory.grow (i32.const 0)))
    (block (block (block (br_table 0 1 2 0 (local.get $n)))))
    (if (local.get $n) (then (nop)) (else (br 0)))
    (loop (br_if 0 (i32.const 0)))
    (drop (call $import (i32.const 1)))
    (drop (call_indirect $funcs (type $t) (i32.const 1) (i32.const 1)))
    (drop (select (i32.const 1) (i32.const 2) (i32.const 3)))
    (drop (select (result i64) (i64.const -1) (i64.const 0x7fffffffffffffff) (i32.const 3)))
    (global.set $g (i32.add (global.get $g) (i32.const -2147483648)))
    (i64.store offset=8 align=4 (i32.const 0) (i64.load32_u offset=60000 (i32.const 64)))
    (local.set $f (f32.const 1.5))
    (local.set $d (f64.promote_f32 (local.get $f)))
    (drop (i32.trunc_sat_f64_s (local.get $d)))
    (drop (i64.extend32_s (i64.const 1)))
    (memory.init $d (i32.const 0) (i32.const 0) (i32.const 3))
    (data.drop $d)
    (memory.copy (i32.const 0) (i32.const 8) (i32.const 8))
    (memory.fill (i32.const 0) (i32.const 0) (i32.const 8))
    (table.init $funcs $passive (i32.const 0) (i32.const 0) (i32.const 1))
    (elem.drop $passive)
    (table.copy $funcs $funcs (i32.const 0) (i32.const 1) (i32.const 1))
    (table.fill $funcs (i32.const 0) (ref.func $id) (i32.const 1))
    (table.set $funcs (i32.const 0) (table.get $funcs (i32.const 0)))
    (drop (ref.is_null (ref.null extern)))
    (drop (table.size $refs))
    (local.set $v (v128.const i32x4 1 2 3 4))
    (local.set $v (i8x16.shuffle 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 (local.get $v) (local.get $v)))
    (local.set $v (i32x4.add (v128.load (i32.const 0)) (v128.load8_splat (i32.const 0))))
    (local.set $v (v128.load16_lane offset=2 3 (i32.const 0) (local.get $v)))
    (local.set $v (v128.load32_zero (i32.const 0)))
    (local.set $v (i32x4.replace_lane 2 (local.get $v) (i32x4.extract_lane 1 (local.get $v))))
    (local.set $v (i32x4.relaxed_trunc_f32x4_s (local.get $v)))
    (local.set $v (i32x4.relaxed_dot_i8x16_i7x16_add_s (local.get $v) (local.get $v) (local.get $v)))
    (drop (memory.size))
    (memory.grow (i32.const 0))))`

func instrument(tb testing.TB, binary []byte) []byte {
	tb.Helper()
	m, err := wasm.Parse(binary)
	if err != nil {
		tb.Fatal(err)
	}
	rewritten, err := m.Instrument()
	if err != nil || rewritten == nil {
		tb.Fatalf("Instrument = %x, %v, want a module", rewritten, err)
	}
	return rewritten
}

// instance runs everything, or what became of it.
type instance struct {
	store *wasmtime.Store
	it    *wasmtime.Instance
}

func instantiate(tb testing.TB, binary []byte, memory, elements int64) instance {
	tb.Helper()
	engine := wasmtime.NewEngine()
	module, err := wasmtime.NewModule(engine, binary)
	if err != nil {
		tb.Fatal(err)
	}
	store := wasmtime.NewStore(engine)
	store.Limiter(memory, elements, -1, -1, -1)
	f := wasmtime.WrapFunc(store, func(n int32) int32 { return n })
	it, err := wasmtime.NewInstance(store, module, []wasmtime.AsExtern{f})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { store.Close(); module.Close(); engine.Close() })
	return instance{store, it}
}

func (i instance) call(name string, n int32) (int32, error) {
	v, err := i.it.GetFunc(i.store, name).Call(i.store, n)
	if err != nil {
		return 0, err
	}
	return v.(int32), nil
}

func (i instance) global(name string) int64 {
	if e := i.it.GetExport(i.store, name); e != nil {
		return e.Global().Get(i.store).I64()
	}
	return -1
}

// TestInstrument: growth within every limit is what it was, growth past the
// module's own maximum fails as it did, growth past the store's is told.
func TestInstrument(t *testing.T) {
	t.Parallel()
	binary := instrument(t, compile(t, everything))
	i := instantiate(t, binary, 2<<16, 10)
	steps := []struct {
		call  string
		n     int32
		want  int32
		traps bool
	}{
		{"all", 1, 1, false},
		{"grow", 0, 1, false},
		{"grow", 1, 1, false},
		{"grow", 5, -1, false}, // own maximum of 3
		{"growFuncs", 8, 2, false},
		{"growFuncs", 11, -1, false}, // own maximum of 20
		{"growRefs", 9, 1, false},
		{"grow", 1, 0, true},
		{"growFuncs", 1, 0, true},
		{"growRefs", -1, 0, true},
	}
	for _, s := range steps {
		got, err := i.call(s.call, s.n)
		if got != s.want || (err != nil) != s.traps {
			t.Errorf("%s(%d) = %d, %v, want %d, trap %v", s.call, s.n, got, err, s.want, s.traps)
		}
	}
	if got := i.global(wasm.ExportMemoryWanted); got != 3<<16 {
		t.Errorf("memory wanted = %d, want %d", got, 3<<16)
	}
	if got := i.global(wasm.ExportTableWanted); got != 10+1<<32-1 {
		t.Errorf("elements wanted = %d, want %d", got, 10+int64(1)<<32-1)
	}
	if i.it.GetFunc(i.store, wasm.ExportStart) == nil {
		t.Error("the start function is not exported")
	}
}

// TestInstrumentLeavesAlone what needs nothing, and refuses what cannot be read.
func TestInstrumentLeavesAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		binary []byte
		says   string // "": it stays as it is
	}{
		"nothing to do":   {compile(t, `(module (memory 1) (func (export "_start")))`), ""},
		"no code":         {compile(t, `(module (memory 1))`), ""},
		"imported memory": {compile(t, `(module (import "a" "m" (memory 1)) (func (drop (memory.grow (i32.const 1)))))`), "imports a memory"},
		"unknown opcode": {
			[]byte("\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x08\x01\x00\x0a\x05\x01\x03\x00\x06\x0b"),
			"a function cannot be read",
		},
		"sections repeated": {append(compile(t, `(module (memory 1))`), compile(t, `(module (memory 1))`)[8:]...), "a section is"},
	} {
		m, err := wasm.Parse(test.binary)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rewritten, err := m.Instrument()
		if test.says == "" && err != nil || test.says != "" && (!errors.Is(err, wasm.ErrMalformed) || !strings.Contains(err.Error(), test.says)) || rewritten != nil {
			t.Errorf("%s: Instrument = %x, %v, want %q", name, rewritten, err, test.says)
		}
	}
}

// TestInstrumentGo: a whole Go program stays valid and is rewritten.
func TestInstrumentGo(t *testing.T) {
	t.Parallel()
	binary, err := os.ReadFile(testenv.GoCapsule(t, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	engine := wasmtime.NewEngine()
	defer engine.Close()
	if err := wasmtime.ModuleValidate(engine, instrument(t, binary)); err != nil {
		t.Errorf("ModuleValidate = %v", err)
	}
}

func BenchmarkInstrument(b *testing.B) {
	binary, err := os.ReadFile(testenv.GoCapsule(b, "agent"))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(binary)))
	for b.Loop() {
		instrument(b, binary)
	}
}
