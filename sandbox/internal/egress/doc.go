// Package egress makes the HTTP requests of guests: it holds them to what their
// run is granted, fills in secrets and takes them out of answers, and bounds
// time and bytes. It runs in the worker, never in a sandbox process.
//
// [Client.Do] is one request. It runs on the caller's goroutine and starts none
// that outlive the client, which is one run's: [Client.Close] drops its
// connections.
//
// Source: docs/protocol.md, section 5, HTTP.
package egress
