package wasmtimex

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wasm_engine_t stands for a C type as the binding names it.
type wasm_engine_t struct{ _ [3]uint64 } //nolint:revive // the name is what is checked

// TestCheckRefusesAnotherBinding: with a field that is gone, that is something
// else, or whose C type has another size.
func TestCheckRefusesAnotherBinding(t *testing.T) {
	t.Parallel()
	type gone struct{ ptr *wasm_engine_t }
	type other struct{ _ptr uintptr }
	type points struct{ _ptr *uint64 }
	type holds struct{ val [3]uint64 }
	_, _, _, _ = gone{nil}.ptr, other{0}._ptr, points{nil}._ptr, holds{}.val // which only reflection reads
	for name, c := range map[string]struct {
		object object
		want   string
	}{
		"no such field":            {object{gone{}, "_ptr", "wasm_engine_t", 0}, "has no field _ptr"},
		"no pointer":               {object{other{}, "_ptr", "wasm_engine_t", 0}, "is a uintptr, not a pointer to wasm_engine_t"},
		"another pointer":          {object{points{}, "_ptr", "wasm_engine_t", 0}, "is a *uint64, not a pointer to wasm_engine_t"},
		"another size":             {object{holds{}, "val", "", 16}, "has 24 bytes, not 16"},
		"another size of a C type": {object{struct{ _ptr *wasm_engine_t }{}, "_ptr", "wasm_engine_t", 8}, "has 24 bytes, not 8"},
	} {
		if err := c.object.check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: check = %v, want %q", name, err, c.want)
		}
	}
	if err := (object{holds{}, "val", "", 24}).check(); err != nil {
		t.Errorf("check of what is right = %v", err)
	}
}

// layouts prints the sizes and offsets that shim.h and the binding's own headers
// must agree on.
const layouts = `
#include <stddef.h>
#include <stdio.h>
#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define AT(type, member) printf(#type "." #member " %zu\n", offsetof(type, member))
int main(void) {
  SIZE(wasm_byte_vec_t); AT(wasm_byte_vec_t, size); AT(wasm_byte_vec_t, data);
  SIZE(wasm_valtype_vec_t); AT(wasm_valtype_vec_t, size); AT(wasm_valtype_vec_t, data);
  SIZE(wasmtime_func_t); SIZE(wasmtime_instance_t); SIZE(wasmtime_memory_t); SIZE(wasmtime_global_t);
  SIZE(wasmtime_extern_t); AT(wasmtime_extern_t, kind); AT(wasmtime_extern_t, of);
  SIZE(wasmtime_val_t); AT(wasmtime_val_t, kind); AT(wasmtime_val_t, of);
  SIZE(wasmtime_val_raw_t);
  SIZE(wasmtime_component_instance_t); SIZE(wasmtime_component_func_t);
  SIZE(wasmtime_component_val_t); AT(wasmtime_component_val_t, kind); AT(wasmtime_component_val_t, of);
  AT(wasmtime_component_val_t, of.string.data); AT(wasmtime_component_val_t, of.result.is_ok);
  SIZE(wasmtime_linear_memory_t); AT(wasmtime_linear_memory_t, get_memory);
  AT(wasmtime_linear_memory_t, grow_memory); AT(wasmtime_linear_memory_t, finalizer);
  SIZE(wasmtime_memory_creator_t); AT(wasmtime_memory_creator_t, env);
  AT(wasmtime_memory_creator_t, new_memory); AT(wasmtime_memory_creator_t, finalizer);
  printf("values %d %d %d %d %d %d\n", BOOL, U8, S64, U64, STRING, RESULT);
  printf("kinds %d %d %d %d\n", FUNC, GLOBAL, MEMORY, OVERFLOW);
  return 0;
}`

// componentKinds are the kinds of values that a component passes, by the prefix of
// their names.
func componentKinds(prefix string) string {
	kinds := ""
	for _, kind := range []string{"BOOL", "U8", "S64", "U64", "STRING", "RESULT"} {
		kinds += " " + kind + " = " + prefix + kind + ","
	}
	return kinds + " };\n"
}

// TestShimDeclaresWhatTheHeadersDo compiles both and compares.
func TestShimDeclaresWhatTheHeadersDo(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/bytecodealliance/wasmtime-go/v39").Output()
	if err != nil {
		t.Fatalf("where the binding is: %v", err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	print := func(name, head, include string) string {
		dir := t.TempDir()
		source, program := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
		if err := os.WriteFile(source, []byte(head+layouts), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cc", "-std=c11", "-I", include, "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		out, err := exec.Command(program).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return string(out)
	}
	theirs := print("headers", "#include <wasmtime.h>\nenum { FUNC = WASMTIME_EXTERN_FUNC, GLOBAL = WASMTIME_EXTERN_GLOBAL, MEMORY = WASMTIME_EXTERN_MEMORY, OVERFLOW = WASMTIME_TRAP_CODE_STACK_OVERFLOW,"+componentKinds("WASMTIME_COMPONENT_"),
		filepath.Join(strings.TrimSpace(string(out)), "build", "include"))
	ours := print("shim", "#include \"component.h\"\nenum { FUNC = EXTERN_FUNC, GLOBAL = EXTERN_GLOBAL, MEMORY = EXTERN_MEMORY, OVERFLOW = TRAP_STACK_OVERFLOW,"+componentKinds("COMPONENT_"), here)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("shim.h and component.h are not what the headers of %s say:\n%s", Version, diff)
	}
}
