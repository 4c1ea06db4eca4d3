// Package wasmtimex reaches what the static library inside wasmtime-go has and
// its Go binding lacks: an epoch callback (the kill switch of one guest), stdin
// from bytes, pre-linked instances, host functions without the binding's global
// locks, the exceptions setting, and components (component.go).
//
// Its C prototypes are declared by hand in shim.h and belong to v39.0.1 alone;
// [Check] refuses a binding whose objects look different. Pointers are taken
// from the binding's objects by reflection of their _ptr field.
//
// One thread runs a [Guest] at a time. What it calls back arrives on that
// thread, through the [Host] it was made with.
package wasmtimex
