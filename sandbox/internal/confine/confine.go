// Package confine takes rights away from the process that calls it, for good:
// limits, capabilities, Landlock and seccomp, as far as the kernel has them. It
// knows nothing of wasm.
package confine

// Rules are what a process keeps.
type Rules struct {
	// ReadDirs and WriteDirs are all of the file system that it may still open,
	// with what lies below. They must exist. Open descriptors stay open.
	ReadDirs, WriteDirs []string
	// OpenFiles bounds its descriptors; 0 leaves the limit as it is.
	OpenFiles uint64
	// AddressSpaceBytes bounds what it may map beyond what is mapped now; 0 leaves
	// the limit as it is.
	AddressSpaceBytes uint64
	// CPUSeconds bounds its processor time; 0 leaves the limit as it is.
	CPUSeconds uint64
	// Nice lowers its priority, as the command nice does.
	Nice int
}

// Report is what a kernel enforces, or can.
type Report struct {
	NoNewPrivs bool `json:"no_new_privs"`
	Seccomp    bool `json:"seccomp"`
	// Landlock is the version of its interface; 0: the kernel has none, or does
	// not enforce it. Links and renames across directories, which programs need,
	// can be allowed from 2 on only, so 1 counts as none.
	Landlock int `json:"landlock"`
}

// Missing names what is not enforced, and what that means, a sentence each.
func (r Report) Missing() []string {
	var missing []string
	if !r.NoNewPrivs {
		missing = append(missing, "no_new_privs is not set: a set-user-id program could give rights back")
	}
	if !r.Seccomp {
		missing = append(missing, "the kernel has no seccomp filters: system calls are not restricted")
	}
	if r.Landlock == 0 {
		missing = append(missing, "the kernel does not enforce Landlock (it is in Linux 5.19 and later, in the list lsm= of the boot parameters): "+
			"files are guarded by the engine and by file modes only")
	}
	return missing
}
