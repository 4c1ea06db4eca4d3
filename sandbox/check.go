package sandbox

import (
	"errors"

	"starling/sandbox/internal/wasm"
)

const preview1 = "wasi_snapshot_preview1"

// Check tells, without compiling it, whether a module can run at all: that it is
// a WASI preview 1 command and imports nothing that does not exist. The error is
// [ErrRefused] and calls the module by the name given. It does not block.
//
// Source: docs/protocol.md, section 5, Module.
func Check(name string, module []byte) error {
	_, err := check(name, module)
	return err
}

// check refuses what cannot run, each with its reason, before seconds are spent
// on compiling it.
func check(path string, binary []byte) (*wasm.Module, error) {
	outline, err := wasm.Parse(binary)
	switch {
	case errors.Is(err, wasm.ErrNotWasm):
		return nil, refusef("module %s is no WebAssembly: it does not begin with \\0asm: pass a .wasm file", path)
	case errors.Is(err, wasm.ErrComponent):
		return nil, refuseComponent(path)
	case err != nil:
		return nil, unreadable(path, err)
	}
	known := knownImports()
	for _, i := range outline.Imports {
		if i.Kind != wasm.KindFunc {
			return nil, refusef("module %s imports the %s %q of %q, and a capsule can import functions only:"+
				" build it as a WASI command of its own", path, i.Kind, i.Name, i.Module)
		}
		names, ok := known[i.Module]
		if !ok {
			return nil, refusef("module %s imports %q of %q, and there is no such interface:"+
				" a capsule may import %s and the host imports of the capsule guide", path, i.Name, i.Module, preview1)
		}
		if !names[i.Name] {
			return nil, refusef("module %s imports %q of %q, and that interface has no such function:"+
				" build it for WASI preview 1 (wasm32-wasip1)", path, i.Name, i.Module)
		}
	}
	if err := checkCode(path, outline); err != nil {
		return nil, err
	}
	if !outline.Command() {
		return nil, refusef("module %s does not export a function _start without parameters and results:"+
			" build it as a command, not as a library or reactor", path)
	}
	return outline, nil
}

// The bounds of one function, past which the engine may make wrong code. See
// docs/security.md, The engine's age.
const (
	// maxBranchTargets is that of one br_table. From some 2^18 on, code for arm64 jumps
	// to a wrong place; a module runs on all hosts or on none. Compilers make tables
	// of some thousand.
	//
	// Source: GHSA-mghf-wjfp-p5xm.
	maxBranchTargets = 1 << 16
	// maxValues leaves what is not counted a sixteenth of 2^24, which is as far as the
	// compiler can count. Nearly 1.5 MiB of plain code stay below.
	//
	// Source: GHSA-897f-g5gm-fmxm.
	maxValues = 1<<24 - 1<<20
)

// unreadable refuses what the engine might read in another way than the checks do.
func unreadable(path string, err error) error {
	return refusef("module %s cannot be read: %s: build it again", path, err)
}

func checkCode(path string, outline *wasm.Module) error {
	code := outline.Code()
	if code.Unreadable {
		return uncompilable(path, "it has an instruction or a type that capsules cannot use")
	}
	if code.BranchTargets > maxBranchTargets {
		return refusef("module %s has a br_table of %d targets, and may have %d: split the switch that it was made from", path, code.BranchTargets, maxBranchTargets)
	}
	if code.Values > maxValues {
		return refusef("module %s has a function that may come to %d values when compiled, and the engine's compiler is safe up to %d:"+
			" split it, or give its blocks and calls fewer parameters and results", path, code.Values, maxValues)
	}
	return nil
}

// knownImports is what a guest may import, by module.
func knownImports() map[string]map[string]bool {
	known := map[string]map[string]bool{preview1: {}}
	for _, name := range wasiFunctions {
		known[preview1][name] = true
	}
	for _, f := range imports() {
		if known[f.Module] == nil {
			known[f.Module] = map[string]bool{}
		}
		known[f.Module][f.Name] = true
	}
	return known
}

// wasiFunctions are the functions of WASI preview 1 as the engine has them.
var wasiFunctions = []string{
	"args_get", "args_sizes_get", "clock_res_get", "clock_time_get", "environ_get", "environ_sizes_get",
	"fd_advise", "fd_allocate", "fd_close", "fd_datasync", "fd_fdstat_get", "fd_fdstat_set_flags",
	"fd_fdstat_set_rights", "fd_filestat_get", "fd_filestat_set_size", "fd_filestat_set_times", "fd_pread",
	"fd_prestat_dir_name", "fd_prestat_get", "fd_pwrite", "fd_read", "fd_readdir", "fd_renumber", "fd_seek",
	"fd_sync", "fd_tell", "fd_write", "path_create_directory", "path_filestat_get", "path_filestat_set_times",
	"path_link", "path_open", "path_readlink", "path_remove_directory", "path_rename", "path_symlink",
	"path_unlink_file", "poll_oneoff", "proc_exit", "proc_raise", "random_get", "sched_yield", "sock_accept",
	"sock_recv", "sock_send", "sock_shutdown",
}
