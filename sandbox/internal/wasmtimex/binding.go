package wasmtimex

// #include "shim.h"
import "C"

import (
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/bytecodealliance/wasmtime-go/v39"
)

// Version is the engine's version, which is part of a compiled module's key.
const Version = "wasmtime-go/v39.0.1"

// Check reports whether the binding's objects are what this package takes them
// for: a _ptr field that is a pointer, and handles of the sizes of shim.h.
func Check() error {
	for _, object := range []any{wasmtime.Config{}, wasmtime.Engine{}, wasmtime.Module{}} {
		t := reflect.TypeOf(object)
		field, ok := t.FieldByName("_ptr")
		if !ok || field.Type.Kind() != reflect.Pointer {
			return fmt.Errorf("%s has no pointer field _ptr: build with %s", t, Version)
		}
	}
	for _, handle := range []struct {
		binding any
		size    uintptr
	}{
		{wasmtime.Func{}, C.sizeof_wasmtime_func_t},
		{wasmtime.Memory{}, C.sizeof_wasmtime_memory_t},
		{wasmtime.Instance{}, C.sizeof_wasmtime_instance_t},
		{wasmtime.Global{}, C.sizeof_wasmtime_global_t},
	} {
		if t := reflect.TypeOf(handle.binding); t.Size() != handle.size {
			return fmt.Errorf("%s has %d bytes, not %d: build with %s", t, t.Size(), handle.size, Version)
		}
	}
	return nil
}

// pointer is the C object behind one of the binding's. The caller keeps the
// object alive for as long as the pointer is in use.
func pointer(object any) unsafe.Pointer {
	return reflect.ValueOf(object).Elem().FieldByName("_ptr").UnsafePointer()
}

// Harden turns off the proposals that the binding has no setter for.
func Harden(config *wasmtime.Config) {
	C.config_harden((*C.wasm_config_t)(pointer(config)))
	runtime.KeepAlive(config)
}
