//go:build wasip1 && !starling_portable

package guesthttp

import (
	"sync"
	"unsafe"
)

//go:wasmimport starling:capsule/http@0.1.0 send
func hostSend(head unsafe.Pointer, headSize uint32, body unsafe.Pointer, bodySize uint32) int32

//go:wasmimport starling:capsule/http@0.1.0 wait
func hostWait(handles unsafe.Pointer, count uint32, timeoutMS int64) int32

//go:wasmimport starling:capsule/http@0.1.0 head
func hostHead(handle uint32, out unsafe.Pointer, size uint32) int32

//go:wasmimport starling:capsule/http@0.1.0 read
func hostRead(handle uint32, out unsafe.Pointer, size uint32) int32

//go:wasmimport starling:capsule/http@0.1.0 error
func hostError(handle uint32, out unsafe.Pointer, size uint32) int32

//go:wasmimport starling:capsule/http@0.1.0 close
func hostClose(handle uint32) int32

// sending keeps a failed send and the sentence of it together: goroutines may
// change at any call.
var sending sync.Mutex

// send begins a request and gives its handle.
func send(head string, body []byte) (uint32, error) {
	sending.Lock()
	defer sending.Unlock()
	n := hostSend(unsafe.Pointer(unsafe.StringData(head)), uint32(len(head)), unsafe.Pointer(unsafe.SliceData(body)), uint32(len(body)))
	if n < 0 {
		return 0, failure(0, n)
	}
	return uint32(n), nil
}

// failure is the error that a negative result means. Handle 0 is the last send.
func failure(handle uint32, result int32) error {
	e := &Error{Code: Code(-result)}
	buffer := make([]byte, 2048)
	n := hostError(handle, unsafe.Pointer(&buffer[0]), uint32(len(buffer)))
	e.Sentence = string(buffer[:max(0, min(int(n), len(buffer)))])
	if e.Sentence == "" {
		e.Sentence = e.Code.Error()
	}
	return e
}
