//go:build wasip1 && !starling_portable

package guest

import (
	"runtime"
	"unsafe"
)

//go:wasmimport starling:capsule/events@0.1.0 emit
func hostEmit(pointer unsafe.Pointer, size uint32)

//go:wasmimport starling:capsule/control@0.1.0 canceled
func hostCanceled() int32

// send gives way to other goroutines, which a loop that emits events would keep from
// running.
func send(o object) {
	hostEmit(unsafe.Pointer(&o[0]), uint32(len(o)))
	runtime.Gosched()
}

// Canceled reports whether the task was canceled. The capsule then has a grace,
// 10 s by default, to save what it has and exit; after that it is interrupted. A
// sleep that is under way when the cancel comes is cut short once.
func Canceled() bool { return hostCanceled() != 0 }
