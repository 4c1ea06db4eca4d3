package wasmtimex

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"runtime"
	"runtime/cgo"
	"strings"
	"unsafe"
)

// Host is what a guest calls back. Both methods are called on the goroutine
// that runs the guest; neither may panic.
type Host interface {
	// Call is a call of the function with this number. It reports whether the
	// guest goes on; false stops it.
	Call(number int, c *Call) bool
	// Tick is asked at each epoch whether the guest goes on; false stops it.
	Tick() bool
}

// Call is one call of a host function, valid until it returns.
type Call struct {
	// Memory is the guest's whole memory; nil when it exports none.
	Memory []byte

	guest *Guest
	args  []C.wasmtime_val_raw_t
}

// U32 is argument i, an i32.
func (c *Call) U32(i int) uint32 { return binary.LittleEndian.Uint32(c.args[i][:]) }

// U64 is argument i, an i64.
func (c *Call) U64(i int) uint64 { return binary.LittleEndian.Uint64(c.args[i][:]) }

// Return sets the result, an i32. A function with a result always calls it,
// after it has read its arguments: they share their place.
func (c *Call) Return(v uint32) { binary.LittleEndian.PutUint32(c.args[0][:], v) }

// Bytes is size bytes of the guest's memory at pointer; false when they are not
// all inside it.
func (c *Call) Bytes(pointer, size uint32) ([]byte, bool) {
	end := uint64(pointer) + uint64(size)
	if end > uint64(len(c.Memory)) {
		return nil, false
	}
	return c.Memory[pointer:end:end], true
}

// Forward calls the engine's own WASI function of this name with the arguments
// as they are; its result, an errno, stands in their place and is returned.
// When it reports false the guest was stopped in there and Call must report
// false too. Only fd_close, fd_pwrite, fd_readdir, fd_renumber and fd_write can be
// forwarded.
func (c *Call) Forward(name string) (uint32, bool) {
	ok := C.guest_forward(c.guest.ptr, chars(name), C.size_t(len(name)), &c.args[0], C.size_t(len(c.args)))
	return c.U32(0), bool(ok)
}

// Limits bound one guest.
type Limits struct {
	MemoryBytes, TableElements, Instances int64
}

// Preopen grants a host directory under a guest's name, read-only or in full.
type Preopen struct {
	Host, Guest string
	Writable    bool
}

// WASI is what a guest is given. Its strings are UTF-8 without NUL.
type WASI struct {
	Args     []string
	Env      map[string]string
	Stdin    []byte
	Preopens []Preopen
	// Stdout and Stderr are paths that a component writes to; a module's are the
	// host's functions, and these are empty.
	Stdout, Stderr string
}

// ResultKind says how a call into a guest ended.
type ResultKind int

// The ways a call ends.
const (
	Returned ResultKind = C.RESULT_RETURNED
	Trap     ResultKind = C.RESULT_TRAP
	// Failed is an error of the engine's, or a guest that the host stopped, which
	// has no text.
	Failed ResultKind = C.RESULT_ERROR
)

// Result is how a call into a guest ended. Text may be long: it carries the
// guest's stack.
type Result struct {
	Kind ResultKind
	Text string
}

// Guest is one store with one instance. [Guest.Close] frees it, after every
// call into it has returned.
type Guest struct {
	host   Host
	handle cgo.Handle
	ptr    *C.guest
	call   Call
	out    C.result // where C writes a result; here, so that a call allocates none
}

// NewGuest makes an empty store.
func (l *Linker) NewGuest(host Host, limits Limits) (*Guest, error) {
	g := &Guest{host: host}
	g.call.guest = g
	g.handle = cgo.NewHandle(g)
	g.ptr = C.guest_new((*C.wasm_engine_t)(pointer(l.engine)), C.uintptr_t(g.handle), l.wasi,
		(*C.wasmtime_module_t)(pointer(l.forwarder)), C.int64_t(limits.MemoryBytes), C.int64_t(limits.TableElements),
		C.int64_t(limits.Instances))
	runtime.KeepAlive(l)
	if g.ptr == nil {
		g.handle.Delete()
		return nil, errors.New("out of memory")
	}
	return g, nil
}

// Instantiate makes the instance. The error is a grant that cannot be given;
// what the engine says is in the result.
func (g *Guest) Instantiate(pre *Pre, wasi WASI) (Result, error) {
	config, err := wasi.config()
	if err != nil {
		return Result{}, err
	}
	C.guest_instantiate(g.ptr, config, pre.ptr, &g.out)
	return take(&g.out), nil
}

// Call calls an export that takes and returns nothing; false when there is none.
func (g *Guest) Call(name string) (Result, bool) {
	ok := C.guest_call(g.ptr, chars(name), C.size_t(len(name)), &g.out)
	return take(&g.out), bool(ok)
}

// Global reads an exported i64 global; false when there is none.
func (g *Guest) Global(name string) (uint64, bool) {
	var value C.uint64_t
	ok := C.guest_global(g.ptr, chars(name), C.size_t(len(name)), &value)
	return uint64(value), bool(ok)
}

// Close frees the store.
func (g *Guest) Close() {
	C.guest_delete(g.ptr)
	g.handle.Delete()
	g.ptr = nil
}

func take(out *C.result) Result {
	r := Result{Kind: ResultKind(out.kind)}
	if out.text != nil {
		r.Text = C.GoStringN(out.text, C.int(out.text_len))
		C.free(unsafe.Pointer(out.text))
	}
	*out = C.result{}
	return r
}

func (w WASI) config() (*C.wasi_config_t, error) {
	var args, env strings.Builder
	for _, arg := range w.Args {
		args.WriteString(arg)
		args.WriteByte(0)
	}
	for name, value := range w.Env {
		env.WriteString(name)
		env.WriteByte(0)
		env.WriteString(value)
		env.WriteByte(0)
	}
	config := C.wasi_new(C.size_t(len(w.Args)), chars(args.String()), C.size_t(len(w.Env)), chars(env.String()),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(w.Stdin))), C.size_t(len(w.Stdin)))
	if config == nil {
		return nil, errors.New("the engine does not take the arguments or the environment")
	}
	if err := w.output(config); err != nil {
		C.wasi_free(config)
		return nil, err
	}
	for _, p := range w.Preopens {
		if err := p.grant(config); err != nil {
			C.wasi_free(config)
			return nil, err
		}
	}
	return config, nil
}

func (p Preopen) grant(config *C.wasi_config_t) error {
	host, name := C.CString(p.Host), C.CString(p.Guest)
	defer C.free(unsafe.Pointer(host))
	defer C.free(unsafe.Pointer(name))
	if !C.wasi_preopen(config, host, name, C.bool(p.Writable)) {
		return errors.New("cannot open the directory " + p.Host)
	}
	return nil
}

//export goHost
func goHost(handle, number C.uintptr_t, args *C.wasmtime_val_raw_t, n C.size_t, memory *C.uint8_t, size C.size_t) C.int {
	g := cgo.Handle(handle).Value().(*Guest)
	c := &g.call
	c.args = unsafe.Slice(args, n)
	c.Memory = unsafe.Slice((*byte)(memory), size)
	ok := g.host.Call(int(number), c)
	c.args, c.Memory = nil, nil
	if ok {
		return 0
	}
	return 1
}

//export goTick
func goTick(handle C.uintptr_t) C.int {
	if cgo.Handle(handle).Value().(*Guest).host.Tick() {
		return 0
	}
	return 1
}
