package wasm_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"starling/sandbox/internal/wasm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func compile(tb testing.TB, text string) []byte {
	tb.Helper()
	binary, err := wasmtime.Wat2Wasm(text)
	if err != nil {
		tb.Fatalf("wat: %v", err)
	}
	return binary
}

func TestParse(t *testing.T) {
	t.Parallel()
	m, err := wasm.Parse(compile(t, `(module
	  (import "a" "f" (func (param i32 i64) (result f32)))
	  (import "a" "t" (table 1 2 funcref))
	  (import "b" "m" (memory 3))
	  (import "b" "g" (global (mut i64)))
	  (table 5 10 externref)
	  (memory 7 9)
	  (func (export "_start")))`))
	if err != nil {
		t.Fatal(err)
	}
	imports := []wasm.Import{
		{Module: "a", Name: "f", Kind: wasm.KindFunc},
		{Module: "a", Name: "t", Kind: wasm.KindTable},
		{Module: "b", Name: "m", Kind: wasm.KindMemory},
		{Module: "b", Name: "g", Kind: wasm.KindGlobal},
	}
	if diff := cmp.Diff(imports, m.Imports); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]wasm.Size{{Min: 7, Max: 9, Bounded: true}}, m.Memories); diff != "" {
		t.Errorf("memories (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]wasm.Size{{Min: 5, Max: 10, Bounded: true}}, m.Tables); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	if !m.Command() {
		t.Error("Command = false, want true")
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	head := "\x00asm\x01\x00\x00\x00"
	tests := []struct {
		name, binary string
		want         error
	}{
		{"nothing", "", wasm.ErrNotWasm},
		{"half a header", head[:7], wasm.ErrNotWasm},
		{"text", "(module)", wasm.ErrNotWasm},
		{"component", "\x00asm\x0d\x00\x01\x00", wasm.ErrComponent},
		{"version", "\x00asm\x02\x00\x00\x00", wasm.ErrMalformed},
		{"section without a size", head + "\x01", wasm.ErrMalformed},
		{"section past the end", head + "\x01\x05\x00", wasm.ErrMalformed},
		{"size without an end", head + "\x01\xff\xff\xff\xff\xff\xff", wasm.ErrMalformed},
		{"size of more than 32 bits", head + "\x01\xff\xff\xff\xff\x7f", wasm.ErrMalformed},
		{"more imports than bytes", head + "\x02\x05\xff\xff\xff\xff\x0f", wasm.ErrMalformed},
		{"import of no kind", head + "\x02\x05\x01\x00\x00\x09\x00", wasm.ErrMalformed},
		{"name that is no UTF-8", head + "\x02\x06\x01\x01\xff\x00\x00\x00", wasm.ErrMalformed},
		{"type that is no function", head + "\x01\x02\x01\x5f", wasm.ErrMalformed},
		{"empty module", head, nil},
		{"empty section", head + "\x01\x01\x00", nil},
	}
	for _, tt := range tests {
		if _, err := wasm.Parse([]byte(tt.binary)); !errors.Is(err, tt.want) {
			t.Errorf("%s: Parse = %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`(module (func (export "_start")))`:                               true,
		`(module (import "a" "f" (func $f)) (export "_start" (func $f)))`: true,
		`(module)`: false,
		`(module (func (export "_start") (param i32)))`:                                     false,
		`(module (func (export "_start") (result i32) i32.const 0))`:                        false,
		`(module (memory (export "_start") 1))`:                                             false,
		`(module (type (func (param i32))) (func (export "run")) (func (export "_start")))`: true,
	} {
		m, err := wasm.Parse(compile(t, text))
		if err != nil || m.Command() != want {
			t.Errorf("Command(%s) = %v, %v, want %v", text, m.Command(), err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, binary := range seeds(f) {
		f.Add(binary)
	}
	engine := wasmtime.NewEngine()
	f.Cleanup(engine.Close)
	f.Fuzz(func(t *testing.T, binary []byte) {
		m, err := wasm.Parse(binary)
		if err != nil {
			return
		}
		m.Command()
		m.Code()
		rewritten, err := m.Instrument()
		if err == nil && rewritten != nil && wasmtime.ModuleValidate(engine, binary) == nil {
			if err := wasmtime.ModuleValidate(engine, rewritten); err != nil {
				t.Errorf("a valid module became invalid: %v\nbefore %x\nafter  %x", err, binary, rewritten)
			}
		}
	})
}

// seeds are modules with everything that the reader looks at.
func seeds(tb testing.TB) [][]byte {
	tb.Helper()
	paths, err := filepath.Glob("../../../testenv/testdata/capsules/*.wasm")
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no modules: %v", err)
	}
	var all [][]byte
	for _, path := range paths {
		binary, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, binary)
	}
	return append(all, compile(tb, everything))
}

// TestCode: what is not ten values a byte is seen in the last digit.
func TestCode(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]wasm.Code{
		`nop`:                              {},
		`(br_table 0 0 0 0 (i32.const 0))`: {BranchTargets: 3},
		`(call $f (i32.const 1) (i32.const 2)) drop drop drop`:                              {Values: 3},
		`(call_indirect (type $t) (i32.const 1) (i32.const 2) (i32.const 0)) (unreachable)`: {Values: 3},
		`i32.const 1 i32.const 2 block (type $t) unreachable end drop drop drop`:            {Values: 7},
		`block (result i32) i32.const 1 end drop`:                                           {},
	} {
		m, err := wasm.Parse(compile(t, `(module (type $t (func (param i32 i32) (result i32 i32 i32))) (table 1 funcref)
		  (func $f (type $t) unreachable) (func `+body+`))`))
		if err != nil {
			t.Fatal(err)
		}
		got := m.Code()
		if got.Values %= 10; got != want {
			t.Errorf("Code of %s = %+v, want %+v", body, got, want)
		}
	}
}

// TestReferencesThatAreWrittenOut: funcref is 70, and 63 70 as well. Read in another
// way than the engine's, either hides what comes after it.
func TestReferencesThatAreWrittenOut(t *testing.T) {
	t.Parallel()
	engine := wasmtime.NewEngine()
	t.Cleanup(engine.Close)
	const (
		hidden  = "\x02\x40\x41\x00\x0e\x03\x00\x00\x00\x00\x0b" // a br_table of 3 targets in a block
		grows   = "\x41\x01\x40\x80\x00\x1a"                     // memory.grow, and 0 in two bytes
		null    = "\xd0\x70"                                     // ref.null func
		selects = null + null + "\x41\x00\x1c\x01\x63\x70\x1a"   // select of a funcref
		block   = "\x02\x63\x70" + null + "\x0b\x1a"             // block with a funcref
		table   = "\x04\x05\x01\x63\x70\x00\x01"                 // a section with one table of 1
		grown   = null + "\x41\x01\xfc\x0f\x00\x1a"              // table.grow
	)
	for name, test := range map[string]struct {
		types, table, locals, code string
		rewritten                  bool
	}{
		"plain":                 {code: hidden},
		"locals":                {locals: "\x03\x01\x63\x70\x01\x63\x70\x06\x7f", code: hidden},
		"types":                 {types: "\x60\x02\x63\x70\x7f\x01\x63\x70", code: hidden},
		"a select":              {code: selects + hidden},
		"a block":               {code: block + hidden},
		"a table":               {table: table, code: grown + hidden, rewritten: true},
		"all":                   {types: "\x60\x00\x02\x63\x6f\x63\x70", table: table, locals: "\x01\x02\x63\x6f", code: selects + grown + block + hidden, rewritten: true},
		"an index that is long": {code: grows + hidden, rewritten: true},
	} {
		types, n := "\x60\x00\x00", "\x01"
		if test.types != "" {
			types, n = types+test.types, "\x02"
		}
		locals := test.locals
		if locals == "" {
			locals = "\x00"
		}
		part := func(id, body string) string { return id + string(rune(len(body))) + body }
		body := locals + test.code + "\x0b"
		binary := []byte("\x00asm\x01\x00\x00\x00" + part("\x01", n+types) + part("\x03", "\x01\x00") + test.table +
			part("\x05", "\x01\x00\x01") + part("\x0a", "\x01"+string(rune(len(body)))+body))
		if err := wasmtime.ModuleValidate(engine, binary); err != nil {
			t.Errorf("%s: the engine does not take it: %v", name, err)
			continue
		}
		m, err := wasm.Parse(binary)
		if err != nil {
			t.Errorf("%s: Parse = %v", name, err)
			continue
		}
		if got := m.Code(); got.Unreadable || got.BranchTargets != 3 {
			t.Errorf("%s: Code = %+v, want a br_table of 3 targets", name, got)
		}
		rewritten, err := m.Instrument()
		if err != nil || (rewritten != nil) != test.rewritten {
			t.Errorf("%s: Instrument = %x, %v", name, rewritten, err)
		}
		if rewritten != nil {
			if err := wasmtime.ModuleValidate(engine, rewritten); err != nil {
				t.Errorf("%s: rewritten it is invalid: %v", name, err)
			}
		}
	}
}

// TestCodeThatCannotBeRead is told, also when what could be read is harmless.
func TestCodeThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"an unknown instruction": "\x00\x06\x40\x0b\x0b", // try
		"an unknown type":        "\x01\x01\x6e\x0b",     // anyref
		"an end before the end":  "\x00\x0b\x01\x0b",
		"no end":                 "\x00\x01\x01",
		"a block without an end": "\x00\x02\x40\x0b",
	} {
		binary := "\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x0a" + string(rune(len(body)+2)) + "\x01" + string(rune(len(body))) + body
		m, err := wasm.Parse([]byte(binary))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := m.Code(); !got.Unreadable {
			t.Errorf("%s: Code = %+v, want unreadable", name, got)
		}
	}
}
