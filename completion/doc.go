// Package completion carries the end of a delegation to its parent. Three nouns:
//
//   - [Write] records an outcome as completion.json in the work directory.
//   - A [Bridge] posts it to the parent's door by JSON-RPC, in the A2A dialect
//     that the door speaks.
//   - A [Door] is the other end: the http.Handler that a parent in Go mounts.
//
// The ledger is the truth, the file is the record on the worker's host, the post
// is the notification. The door's address comes out of a job and its answer from
// a stranger, so both are hostile: the dialled address is checked, no redirect
// and no proxy is followed, time and bytes are bounded, and no error or log
// carries the address's secrets.
//
// No goroutine of this package outlives the call that started it.
//
// Source: docs/protocol.md, sections 8 and 9.
package completion
