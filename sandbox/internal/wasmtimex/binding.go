package wasmtimex

// #include "shim.h"
import "C"

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"unsafe"

	"github.com/bytecodealliance/wasmtime-go/v39"
)

// Version is the engine's version, which is part of a compiled module's key.
const Version = "wasmtime-go/v39.0.1"

// object is one of the binding's types that this package looks into: its field,
// a pointer to this C type, or one held by value. size is that of shim.h; 0: it is
// never looked into.
type object struct {
	binding any
	field   string
	points  string
	size    uintptr
}

var objects = [...]object{
	{wasmtime.Config{}, "_ptr", "wasm_config_t", 0},
	{wasmtime.Engine{}, "_ptr", "wasm_engine_t", 0},
	{wasmtime.Module{}, "_ptr", "wasmtime_module", 0},
	{wasmtime.Extern{}, "_ptr", "wasmtime_extern", C.sizeof_wasmtime_extern_t},
	{wasmtime.Func{}, "val", "", C.sizeof_wasmtime_func_t},
	{wasmtime.Memory{}, "val", "", C.sizeof_wasmtime_memory_t},
	{wasmtime.Instance{}, "val", "", C.sizeof_wasmtime_instance_t},
	{wasmtime.Global{}, "val", "", C.sizeof_wasmtime_global_t},
}

// Check reports whether the binding's objects are what this package takes them
// for: fields of the names, the C types and the sizes of shim.h.
func Check() error {
	for _, o := range objects {
		if err := o.check(); err != nil {
			return fmt.Errorf("the engine's binding is not the one this program was written for: %w: build with %s", err, Version)
		}
	}
	return nil
}

func (o object) check() error {
	t := reflect.TypeOf(o.binding)
	field, ok := t.FieldByName(o.field)
	if !ok {
		return fmt.Errorf("%s has no field %s", t, o.field)
	}
	of := field.Type
	if o.points != "" {
		if of.Kind() != reflect.Pointer || !strings.HasSuffix(of.Elem().Name(), o.points) {
			return fmt.Errorf("%s.%s is a %s, not a pointer to %s", t, o.field, of, o.points)
		}
		of = of.Elem()
	}
	if o.size != 0 && of.Size() != o.size {
		return fmt.Errorf("%s.%s has %d bytes, not %d", t, o.field, of.Size(), o.size)
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

// Pool is memory that an engine has ready for guests.
type Pool struct {
	// Guests is how many there may be at a time.
	Guests int
	// MemoryBytes is the most that one may have, and reserved for each;
	// MemoryResidentBytes of what it used stay in place, cleared, for the next.
	MemoryBytes, MemoryResidentBytes int64
	// Tables is how many tables a module may have, TableElements how large each may
	// be; TableResidentBytes of one stay in place.
	Tables                            int
	TableElements, TableResidentBytes int64
}

// UsePool makes an engine take its guests' memory from a pool. A module that needs
// more than the pool gives cannot be loaded into it.
func UsePool(config *wasmtime.Config, p Pool) {
	C.config_pool((*C.wasm_config_t)(pointer(config)), &C.pool{
		guests: C.uint32_t(p.Guests), memory: C.size_t(p.MemoryBytes), memory_resident: C.size_t(p.MemoryResidentBytes),
		tables: C.uint32_t(p.Tables), elements: C.size_t(p.TableElements), table_resident: C.size_t(p.TableResidentBytes),
	})
	runtime.KeepAlive(config)
}
