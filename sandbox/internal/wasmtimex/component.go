package wasmtimex

// #include <stdlib.h>
// #include "component.h"
import "C"

import (
	"errors"
	"runtime"
	"runtime/cgo"
	"unsafe"

	"github.com/bytecodealliance/wasmtime-go/v39"
)

// ComponentHost is what a component calls back, as [Host] is for a module.
type ComponentHost interface {
	// CallComponent is a call of the function with this number. It reports whether
	// the guest goes on; false stops it.
	CallComponent(number int, c *ComponentCall) bool
	// Tick is asked at each epoch whether the guest goes on; false stops it.
	Tick() bool
}

// ComponentCall is one call of a host function by a component, valid until it
// returns. A function that asks for an argument which the component did not
// pass, or passed as something else, is not heard: the guest is trapped.
type ComponentCall struct {
	// Answer is the result of a function that has one, a bool.
	Answer bool

	args []C.value
	odd  bool
}

// Text is argument i, a string.
func (c *ComponentCall) Text(i int) (string, bool) {
	if !c.has(i, C.VALUE_STRING) {
		return "", false
	}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(c.args[i].text)), c.args[i].len)), true
}

// Number is argument i: an integer of 8 or 64 bits, a bool, or a result, which is
// 1 for ok.
func (c *ComponentCall) Number(i int) (uint64, bool) {
	if !c.has(i, C.VALUE_NUMBER) {
		return 0, false
	}
	return uint64(c.args[i].number), true
}

func (c *ComponentCall) has(i int, kind C.int) bool {
	if i < len(c.args) && c.args[i].kind == kind {
		return true
	}
	c.odd = true
	return false
}

// Interface is one that the host gives to components. Its functions have the
// numbers that [ComponentHost.CallComponent] is given.
type Interface struct {
	Name  string
	Funcs map[string]int
}

// Components is an engine for components with what they import: WASI 0.2, and
// interfaces of the host over it. It has one guest at a time. [Components.Close]
// frees it, after its guest and its components.
type Components struct {
	engine *wasmtime.Engine
	linker *C.wasmtime_component_linker_t
	budget *C.budget
}

// NewComponents makes an engine of config, which it takes. An interface replaces
// WASI's of the same name.
func NewComponents(config *wasmtime.Config, interfaces []Interface) (*Components, error) {
	c := &Components{budget: (*C.budget)(C.calloc(1, C.sizeof_budget))}
	C.config_components((*C.wasm_config_t)(pointer(config)), c.budget)
	c.engine = wasmtime.NewEngineWithConfig(config)
	err := text(C.component_linker_new(c.enginePointer(), &c.linker))
	for _, i := range interfaces {
		err = errors.Join(err, c.define(i))
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Components) enginePointer() *C.wasm_engine_t { return (*C.wasm_engine_t)(pointer(c.engine)) }

func (c *Components) define(i Interface) error {
	var at *C.wasmtime_component_linker_instance_t
	if err := text(C.component_linker_begin(c.linker, chars(i.Name), C.size_t(len(i.Name)), &at)); err != nil {
		return err
	}
	defer C.component_linker_end(at)
	var err error
	for name, number := range i.Funcs {
		err = errors.Join(err, text(C.component_linker_add(at, chars(name), C.size_t(len(name)), C.uintptr_t(number))))
	}
	return err
}

// Compile gives the native code of a component, as [Components.Load] reads it.
func (c *Components) Compile(binary []byte) ([]byte, error) {
	var out C.wasm_byte_vec_t
	err := text(C.component_compile(c.enginePointer(), (*C.uint8_t)(unsafe.SliceData(binary)), C.size_t(len(binary)), &out))
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	defer C.component_bytes_free(&out)
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(out.data)), out.size)...), nil
}

// Tick moves the epoch on. It may be called on any goroutine.
func (c *Components) Tick() { c.engine.IncrementEpoch() }

// Close frees the engine.
func (c *Components) Close() {
	if c.linker != nil {
		C.component_linker_free(c.linker)
	}
	c.engine.Close()
	C.free(unsafe.Pointer(c.budget))
	c.linker, c.budget = nil, nil
}

// Component is native code of a component. [Component.Close] frees it.
type Component struct{ ptr *C.wasmtime_component_t }

// Load reads a file of what [Components.Compile] gave, with anything after it.
func (c *Components) Load(path string) (*Component, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	component := &Component{}
	if err := text(C.component_load(c.enginePointer(), name, &component.ptr)); err != nil {
		return nil, err
	}
	return component, nil
}

// Close frees the component.
func (c *Component) Close() {
	C.component_free(c.ptr)
	c.ptr = nil
}

// The bounds of one component beside [Limits], whose MemoryBytes are those of all
// its memories together. An engine that is no pool maps 4 GiB for each.
const (
	MaxComponentMemories = 4
	maxComponentTables   = 100
)

// ComponentGuest is one store with one component. [ComponentGuest.Close] frees
// it, after every call into it has returned.
type ComponentGuest struct {
	host       ComponentHost
	components *Components
	handle     cgo.Handle
	ptr        *C.component_guest
}

// NewGuest makes an empty store.
func (c *Components) NewGuest(host ComponentHost, limits Limits) (*ComponentGuest, error) {
	g := &ComponentGuest{host: host, components: c}
	*c.budget = C.budget{limit: C.size_t(limits.MemoryBytes)}
	g.handle = cgo.NewHandle(g)
	g.ptr = C.component_guest_new(c.enginePointer(), C.uintptr_t(g.handle), C.int64_t(limits.TableElements),
		C.int64_t(limits.Instances), maxComponentTables, MaxComponentMemories)
	if g.ptr == nil {
		g.handle.Delete()
		return nil, errors.New("out of memory")
	}
	return g, nil
}

// Instantiate makes the instance. The error is a grant that cannot be given;
// what the engine says is in the result, which has failed and is no trap when
// the component does not fit what it imports.
func (g *ComponentGuest) Instantiate(component *Component, wasi WASI) (Result, error) {
	config, err := wasi.config()
	if err != nil {
		return Result{}, err
	}
	var out C.result
	C.component_instantiate(g.ptr, g.components.linker, config, component.ptr, &out)
	return take(&out), nil
}

// Run calls the function run of an exported interface, whose type has a result
// or none. The status is 0, or 1 when the result is err. It reports false when
// there is no such function.
func (g *ComponentGuest) Run(name string, hasResult bool) (_ Result, status int, ok bool) {
	var out C.result
	var exit C.int
	ok = bool(C.component_run(g.ptr, chars(name), C.size_t(len(name)), C.bool(hasResult), &out, &exit))
	return take(&out), int(exit), ok
}

// MemoryWanted is how much memory, in bytes and with what it had, the guest last
// asked for in vain; 0: it got what it asked for.
func (g *ComponentGuest) MemoryWanted() uint64 { return uint64(g.components.budget.wanted) }

// Close frees the store.
func (g *ComponentGuest) Close() {
	C.component_guest_delete(g.ptr)
	g.handle.Delete()
	g.ptr = nil
}

// output sends what the guest writes to files, which are opened here.
func (w WASI) output(config *C.wasi_config_t) error {
	if w.Stdout == "" {
		return nil
	}
	out, err := C.CString(w.Stdout), C.CString(w.Stderr)
	defer C.free(unsafe.Pointer(out))
	defer C.free(unsafe.Pointer(err))
	if !C.wasi_output(config, out, err) {
		return errors.New("cannot open the guest's standard output")
	}
	return nil
}

// What a host function of a component came to.
const (
	callWentOn  = 0
	callStopped = 1
	callOdd     = 2
)

//export goComponentHost
func goComponentHost(handle, number C.uintptr_t, args *C.value, n C.size_t, answer *C.bool) C.int {
	g := cgo.Handle(handle).Value().(*ComponentGuest)
	c := &ComponentCall{args: unsafe.Slice(args, n)}
	ok := g.host.CallComponent(int(number), c)
	*answer = C.bool(c.Answer)
	switch {
	case !ok:
		return callStopped
	case c.odd:
		return callOdd
	}
	return callWentOn
}

//export goComponentTick
func goComponentTick(handle C.uintptr_t) C.int {
	if cgo.Handle(handle).Value().(*ComponentGuest).host.Tick() {
		return 0
	}
	return 1
}
