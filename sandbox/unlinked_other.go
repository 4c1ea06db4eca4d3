//go:build !linux

package sandbox

// unlinkedFiles needs /proc.
func unlinkedFiles(int) ([]unlinkedFile, error) { return nil, nil }
