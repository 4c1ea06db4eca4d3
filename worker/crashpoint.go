//go:build !crashpoints

package worker

// crashpoint is a step of a job's life at which a test may end or stall this
// process. It is nothing outside binaries built with the tag crashpoints.
func crashpoint(string) {}
