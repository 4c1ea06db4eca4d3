// Package guesthttp makes HTTP requests from a capsule: [Transport] is an
// [net/http.RoundTripper], so that a Go client of a model, or of anything else
// that lets its http.Client be set, works unchanged.
//
//	config.HTTPClient = guesthttp.NewClient()
//
// The host makes the requests, to the hosts that capabilities.network.allow of
// the manifest lists; others fail with [ErrNotGranted]. Responses stream: a piece
// of a body can be read as soon as the host has it. Up to 16 requests are under
// way at a time, and more wait for one of them to end.
//
// A guest has one thread, and waiting for the host stops all of its goroutines.
// So one goroutine waits for all requests, and only while no other can run. It
// keeps the deadlines of these requests; other timers of a guest that only waits
// may be late, by as long as it has waited and at most 128 ms.
//
// It is not in package guest because net/http makes a module about 6 MB larger.
// Built with the tag starling_portable, or for the host, requests are made by
// net/http itself, without grants.
//
// Source: docs/protocol.md, section 5, HTTP.
package guesthttp
