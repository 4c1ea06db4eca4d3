// Package protocol is the wire of Starling: ids, subjects, jobs, the delegation
// ledger's records, spawner handles, driver events, frames, outcomes and
// manifests, each with its parser, its checks and its encoding. It is the
// ground that every other package stands on and knows no transport: it imports
// the standard library, UUIDs, YAML (a manifest is a YAML file) and the official
// A2A types.
//
// Everything here follows docs/protocol.md; comments name its sections. All
// functions are safe for concurrent use and none blocks.
package protocol
