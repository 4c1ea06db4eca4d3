package sandbox

import "syscall"

// selfProgram is this program, even when its file was replaced meanwhile.
func selfProgram() string { return "/proc/self/exe" }

// processAttributes: a group of its own, so that a Ctrl-C at the terminal is the
// worker's to handle, and SIGKILL when the worker dies.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
