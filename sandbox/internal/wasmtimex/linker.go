package wasmtimex

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/bytecodealliance/wasmtime-go/v39"
)

// Func is a host function that guests may import. Params and Results are one
// letter for each value, "i" for i32 and "I" for i64, at most 16.
type Func struct {
	Module, Name    string
	Params, Results string
	// Number is what [Host.Call] is given.
	Number int
}

// The forwarder calls the engine's own WASI functions on behalf of a host
// function that shadows them. Its functions are the ones of forwarder_ready.
const forwarder = `(module
  (import "wasi" "fd_close" (func $close (param i32) (result i32)))
  (import "wasi" "fd_pwrite" (func $pwrite (param i32 i32 i32 i64 i32) (result i32)))
  (import "wasi" "fd_readdir" (func $readdir (param i32 i32 i32 i64 i32) (result i32)))
  (import "wasi" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
  (import "wasi" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "guest" "memory" (memory 0))
  (export "memory" (memory 0))
  (func (export "fd_close") (param i32) (result i32)
    (call $close (local.get 0)))
  (func (export "fd_pwrite") (param i32 i32 i32 i64 i32) (result i32)
    (call $pwrite (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4)))
  (func (export "fd_readdir") (param i32 i32 i32 i64 i32) (result i32)
    (call $readdir (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4)))
  (func (export "fd_renumber") (param i32 i32) (result i32)
    (call $renumber (local.get 0) (local.get 1)))
  (func (export "fd_write") (param i32 i32 i32 i32) (result i32)
    (call $write (local.get 0) (local.get 1) (local.get 2) (local.get 3))))`

// Linker holds what guests may import: WASI preview 1, and host functions over
// it. It is safe for concurrent use once made. [Linker.Close] frees it, after
// every guest and every [Pre] made from it.
type Linker struct {
	engine    *wasmtime.Engine
	ptr       *C.wasmtime_linker_t
	wasi      *C.wasmtime_linker_t
	forwarder *wasmtime.Module
}

// NewLinker defines WASI and then funcs, which shadow WASI's of the same name.
func NewLinker(engine *wasmtime.Engine, funcs []Func) (*Linker, error) {
	binary, err := wasmtime.Wat2Wasm(forwarder)
	if err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}
	module, err := wasmtime.NewModule(engine, binary)
	if err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}
	l := &Linker{engine: engine, forwarder: module}
	ptr := (*C.wasm_engine_t)(pointer(engine))
	err = errors.Join(text(C.linker_new(ptr, &l.ptr)), text(C.linker_new(ptr, &l.wasi)))
	for _, f := range funcs {
		err = errors.Join(err, l.define(f))
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Linker) define(f Func) error {
	params, results := C.CString(f.Params), C.CString(f.Results)
	defer C.free(unsafe.Pointer(params))
	defer C.free(unsafe.Pointer(results))
	return text(C.linker_define(l.ptr, chars(f.Module), C.size_t(len(f.Module)), chars(f.Name), C.size_t(len(f.Name)),
		params, results, C.uintptr_t(f.Number)))
}

// Close frees the linker.
func (l *Linker) Close() {
	for _, p := range []**C.wasmtime_linker_t{&l.ptr, &l.wasi} {
		if *p != nil {
			C.linker_free(*p)
			*p = nil
		}
	}
	l.forwarder.Close()
}

// Pre is a module whose imports are resolved. It is safe for concurrent use.
// [Pre.Close] frees it, when no guest is being made from it any more.
type Pre struct {
	linker *Linker
	ptr    *C.wasmtime_instance_pre_t
}

// Pre resolves a module's imports. Its error is the engine's sentence about an
// import that is missing or has another type.
func (l *Linker) Pre(module *wasmtime.Module) (*Pre, error) {
	p := &Pre{linker: l}
	err := text(C.linker_pre(l.ptr, (*C.wasmtime_module_t)(pointer(module)), &p.ptr))
	runtime.KeepAlive(module)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Close frees p.
func (p *Pre) Close() {
	if p.ptr != nil {
		C.pre_free(p.ptr)
		p.ptr = nil
	}
}

// text takes ownership of an error's text.
func text(c *C.char) error {
	if c == nil {
		return nil
	}
	defer C.free(unsafe.Pointer(c))
	return errors.New(C.GoString(c))
}

// chars is a string's bytes, for a call that is given their number too.
func chars(s string) *C.char { return (*C.char)(unsafe.Pointer(unsafe.StringData(s))) }
