// Package guest is the SDK of capsule authors in Go. A capsule is an ordinary
// program: it reads its task, says what it does, and exits.
//
//	GOOS=wasip1 GOARCH=wasm go build -ldflags='-s -w' -o capsule.wasm .
//
// What it says goes out while it runs. In output mode "text" printing is
// enough: all of stdout is the answer. In mode "events" a capsule also tells of
// its turns and tool calls with the functions of this package, and ends with
// [TurnEnd] or [TurnFailed].
//
// The functions use the host imports starling:capsule/events@0.1.0 and
// starling:capsule/control@0.1.0, so stdout stays free in both modes. Built with
// the tag starling_portable, or for the host, they write the events as lines to
// stdout instead and [Canceled] is always false: such a module runs under any
// WASI runtime, and needs "output: events" in its murmur.yaml.
//
// The package imports the standard library only, and little of it: a small
// module compiles quickly. It is for one goroutine at a time, as a guest has one
// thread, but [Canceled] and [Context] are for all. HTTP requests are made with package
// guesthttp, which is beside it.
//
// Source: docs/protocol.md, section 5.
package guest
