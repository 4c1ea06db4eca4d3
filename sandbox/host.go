package sandbox

import (
	"starling/sandbox/internal/wasmtimex"
)

// hostFunction is what a guest may call of ours. call reports whether the guest
// goes on. It runs on the guest's goroutine, so it may wait, and what waits
// looks at run.alive.
type hostFunction struct {
	module, name    string
	params, results string // one letter a value: i is i32, I is i64
	call            func(*run, *wasmtimex.Call) bool
}

// hostFunctions are the functions of WASI that the engine's own would not bound
// or would not tell us enough about, and the interfaces of docs/capsules.md.
//
// Tools with the newer name mangling import "cm32p2|murmur:stream/events@0.1",
// so both names are defined.
var hostFunctions = [...]hostFunction{
	{preview1, "fd_write", "iiii", "i", (*run).fdWrite},
	{preview1, "fd_pwrite", "iiiIi", "i", (*run).fdPwrite},
	{preview1, "fd_close", "i", "i", (*run).fdClose},
	{preview1, "fd_renumber", "ii", "i", (*run).fdRenumber},
	{preview1, "fd_readdir", "iiiIi", "i", (*run).fdReaddir},
	{preview1, "proc_exit", "i", "", (*run).procExit},
	{preview1, "random_get", "ii", "i", (*run).randomGet},
	{preview1, "poll_oneoff", "iiii", "i", (*run).pollOneoff},
	{preview1, "clock_time_get", "iIi", "i", (*run).clockTimeGet},
	{preview1, "sched_yield", "", "i", (*run).schedYield},

	{"murmur:stream/events@0.1.0", "emit-chunk", "ii", "", (*run).emitChunk},
	{"murmur:stream/events@0.1.0", "emit-thinking-chunk", "ii", "", (*run).emitThinkingChunk},
	{"murmur:stream/events@0.1.0", "tool-call-started", "iiii", "", (*run).toolCallStarted},
	{"murmur:stream/events@0.1.0", "tool-call-input-bytes", "iiI", "", (*run).toolCallInputBytes},
	{"cm32p2|murmur:stream/events@0.1", "emit-chunk", "ii", "", (*run).emitChunk},
	{"cm32p2|murmur:stream/events@0.1", "emit-thinking-chunk", "ii", "", (*run).emitThinkingChunk},
	{"cm32p2|murmur:stream/events@0.1", "tool-call-started", "iiii", "", (*run).toolCallStarted},
	{"cm32p2|murmur:stream/events@0.1", "tool-call-input-bytes", "iiI", "", (*run).toolCallInputBytes},

	{"starling:capsule/events@0.1.0", "emit", "ii", "", (*run).emitEvent},
	{"starling:capsule/http@0.1.0", "send", "iiii", "i", (*run).httpSend},
	{"starling:capsule/http@0.1.0", "wait", "iiI", "i", (*run).httpWait},
	{"starling:capsule/http@0.1.0", "head", "iii", "i", (*run).httpHead},
	{"starling:capsule/http@0.1.0", "read", "iii", "i", (*run).httpRead},
	{"starling:capsule/http@0.1.0", "error", "iii", "i", (*run).httpError},
	{"starling:capsule/http@0.1.0", "close", "i", "i", (*run).httpClose},
	{"starling:capsule/control@0.1.0", "canceled", "", "i", (*run).canceled},
}

// imports is hostFunctions as the linker wants them.
func imports() []wasmtimex.Func {
	funcs := make([]wasmtimex.Func, len(hostFunctions))
	for i, f := range hostFunctions {
		funcs[i] = wasmtimex.Func{Module: f.module, Name: f.name, Params: f.params, Results: f.results, Number: i}
	}
	return funcs
}
