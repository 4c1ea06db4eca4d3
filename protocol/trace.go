package protocol

import "regexp"

// TraceparentEnv is the environment variable in which a capsule finds the trace
// that it belongs to, as a command finds its caller's.
const TraceparentEnv = "TRACEPARENT"

// traceparent is how one begins; later versions may append to it.
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]+)?$`)

// maxTraceparent is the first version's 55 bytes, and 65 of a later one's.
const maxTraceparent = 55 + 65

// ValidTraceparent reports whether s has the form of a trace that can be passed
// on. A job may carry anything in its place: what looks otherwise is no trace.
//
// Source: W3C Trace Context, traceparent header.
func ValidTraceparent(s string) bool {
	return len(s) <= maxTraceparent && traceparent.MatchString(s)
}
