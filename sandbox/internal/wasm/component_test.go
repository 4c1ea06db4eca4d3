package wasm_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bytecodealliance/wasmtime-go/v39"
	"github.com/google/go-cmp/cmp"

	"starling/sandbox/internal/wasm"
)

func component(tb testing.TB, text string) []byte {
	tb.Helper()
	binary, err := wasmtime.Wat2Wasm(text)
	if err != nil {
		tb.Fatalf("wat: %v", err)
	}
	return binary
}

func TestParseComponent(t *testing.T) {
	t.Parallel()
	c, err := wasm.ParseComponent(component(t, `(component
	  (import "a:b/c@0.1.0" (instance))
	  (import "module" (core module (import "x" "y" (func))))
	  (import "func" (func))
	  (import "type" (type (sub resource)))
	  (type $t u8)
	  (import "equal" (type (eq $t)))
	  (import "component" (component))
	  (core module $m (memory 3) (table 7 funcref) (func (export "f")))
	  (component (import "inner" (func)) (core module (memory 5)) (component (core module)))
	  (core instance $i (instantiate $m))
	  (func $f (canon lift (core func $i "f")))
	  (export "f" (func $f))
	  (export "m" (core module $m))
	  (instance $e (export "run" (func $f)))
	  (export "w:x/y@1.2.3" (instance $e))
	  (export "z" (instance $e) (instance (export "run" (func)))))`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a:b/c@0.1.0", "module", "func", "type", "equal", "component"}, c.Imports); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"w:x/y@1.2.3", "z"}, c.Exports); diff != "" {
		t.Errorf("exports (-want +got):\n%s", diff)
	}
	var memories []uint64
	for _, m := range c.Modules {
		for _, size := range m.Memories {
			memories = append(memories, size.Min)
		}
	}
	if len(c.Modules) != 3 || !cmp.Equal(memories, []uint64{3, 5}) || c.Modules[0].Tables[0].Min != 7 {
		t.Errorf("%d modules with memories %v, want 3 with 3 and 5 pages", len(c.Modules), memories)
	}
}

func TestParseComponentRefuses(t *testing.T) {
	t.Parallel()
	const header = "\x00asm\x0d\x00\x01\x00"
	for name, c := range map[string]struct {
		binary string
		err    error
		says   string
	}{
		"a module":                      {"\x00asm\x01\x00\x00\x00", wasm.ErrNotWasm, ""},
		"nothing":                       {"", wasm.ErrNotWasm, ""},
		"cut off in a section":          {header + "\x0a\x05\x01", wasm.ErrMalformed, "ends inside a section"},
		"a module that is none":         {header + "\x01\x01x", wasm.ErrMalformed, "core module 0: not WebAssembly"},
		"a component that is none":      {header + "\x04\x01x", wasm.ErrMalformed, "another header"},
		"an import without its type":    {header + "\x0a\x04\x01\x00\x01a", wasm.ErrMalformed, "section 10 cannot be read"},
		"an import of an unknown kind":  {header + "\x0a\x05\x01\x00\x01a\x09", wasm.ErrMalformed, "section 10 cannot be read"},
		"a name of an unknown form":     {header + "\x0a\x06\x01\x07\x01a\x05\x00", wasm.ErrMalformed, "section 10 cannot be read"},
		"an export that is cut off":     {header + "\x0b\x04\x01\x00\x01a", wasm.ErrMalformed, "section 11 cannot be read"},
		"a billion imports in no bytes": {header + "\x0a\x05\xff\xff\xff\xff\x0f", wasm.ErrMalformed, "section 10 cannot be read"},
	} {
		if _, err := wasm.ParseComponent([]byte(c.binary)); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: ParseComponent = %v, want %v with %q", name, err, c.err, c.says)
		}
	}
}

// FuzzParseComponent: it neither panics nor keeps much.
func FuzzParseComponent(f *testing.F) {
	seeds, err := filepath.Glob("../../../testenv/testdata/capsules/*.wasm")
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, seed := range seeds {
		binary, err := os.ReadFile(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(binary)
	}
	f.Fuzz(func(t *testing.T, binary []byte) {
		c, err := wasm.ParseComponent(binary)
		if (err == nil) == (c == nil) {
			t.Fatalf("ParseComponent = %v, %v", c, err)
		}
		if err == nil && len(c.Imports)+len(c.Exports)+len(c.Modules) > len(binary) {
			t.Errorf("%d imports, %d exports, %d modules of %d bytes", len(c.Imports), len(c.Exports), len(c.Modules), len(binary))
		}
	})
}
