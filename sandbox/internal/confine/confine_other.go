//go:build !linux

package confine

// Apply confines nothing: this is Linux's alone.
func Apply(Rules) (Report, error) { return Report{}, nil }

// Support reports that this system enforces nothing.
func Support() Report { return Report{} }
