package sandbox

import (
	"slices"
	"strings"

	"starling/sandbox/internal/wasm"
)

// IsComponent reports whether a binary is a component rather than a module.
func IsComponent(binary []byte) bool { return wasm.IsComponent(binary) }

// CheckComponent is [Check] for a component: that it exports what is run and
// imports nothing that does not exist.
//
// Source: docs/protocol.md, section 5, Module.
func CheckComponent(name string, component []byte) error {
	_, err := checkComponent(name, component)
	return err
}

// What of a component is run: the first of the two that it exports. The engine
// takes any version of WASI 0.2 for its own.
const (
	wasiRun   = "wasi:cli/run@0.2.6"
	murmurRun = "murmur:capsule/run@0.1.0"
)

// refuseComponent says what to do where components do not run.
func refuseComponent(path string) error {
	return refusef("module %s is a WASI 0.2 component, and components are off: turn them on for the worker with STARLING_COMPONENTS=on"+
		" (--components on), where guests run in sandbox processes, or build it as a core module for WASI preview 1 (wasm32-wasip1)", path)
}

func checkComponent(path string, binary []byte) (*wasm.Component, error) {
	outline, err := wasm.ParseComponent(binary)
	if err != nil {
		return nil, refusef("component %s cannot be read: %s: build it again", path, err)
	}
	for _, name := range outline.Imports {
		if !knownInterface(name) {
			return nil, refusef("component %s imports %q, and there is no such interface: a component may import"+
				" WASI 0.2 (cli, clocks, filesystem, io, random, sockets) and the host interfaces of the capsule guide", path, name)
		}
	}
	for _, m := range outline.Modules {
		if err := checkCode(path, m); err != nil {
			return nil, err
		}
	}
	if !slices.ContainsFunc(outline.Exports, func(name string) bool {
		return name == murmurRun || wasi02(name, "wasi:cli/run")
	}) {
		return nil, refusef("component %s exports neither wasi:cli/run@0.2 nor %s: build it as a command (wasm32-wasip2),"+
			" not as a library", path, murmurRun)
	}
	return outline, nil
}

// componentNeeds is what a component has from its first instruction on: the
// largest of its modules, for which of them run it decides itself.
func componentNeeds(outline *wasm.Component) needs {
	n := needs{Component: true}
	for _, m := range outline.Modules {
		n.atLeast(m)
	}
	return n
}

// knownInterface reports whether the host has an interface.
func knownInterface(name string) bool {
	for _, i := range componentInterfaces() {
		if i.Name == name {
			return true
		}
	}
	return slices.ContainsFunc(wasiInterfaces, func(known string) bool { return wasi02(name, known) })
}

// wasi02 reports whether name is an interface of WASI in some version 0.2.
func wasi02(name, known string) bool {
	patch, ok := strings.CutPrefix(name, known+"@0.2.")
	return ok && patch != "" && strings.Trim(patch, "0123456789") == ""
}

// wasiInterfaces are those of WASI 0.2 as the engine has them. Those of sockets
// are there, since the runtimes of languages import them, and refuse every call.
var wasiInterfaces = []string{
	"wasi:cli/environment", "wasi:cli/exit", "wasi:cli/stderr", "wasi:cli/stdin", "wasi:cli/stdout",
	"wasi:cli/terminal-input", "wasi:cli/terminal-output", "wasi:cli/terminal-stderr", "wasi:cli/terminal-stdin",
	"wasi:cli/terminal-stdout", "wasi:clocks/monotonic-clock", "wasi:clocks/wall-clock", "wasi:filesystem/preopens",
	"wasi:filesystem/types", "wasi:io/error", "wasi:io/poll", "wasi:io/streams", "wasi:random/insecure-seed",
	"wasi:random/insecure", "wasi:random/random", "wasi:sockets/instance-network", "wasi:sockets/ip-name-lookup",
	"wasi:sockets/network", "wasi:sockets/tcp-create-socket", "wasi:sockets/tcp", "wasi:sockets/udp-create-socket",
	"wasi:sockets/udp",
}

// readComponent is [outlined] for a component, which is compiled as it is.
func readComponent(path string, binary []byte) (needs, error) {
	outline, err := checkComponent(path, binary)
	if err != nil {
		return needs{}, err
	}
	return componentNeeds(outline), nil
}

// compileComponent compiles a component and gives what the engine serialised.
func compileComponent(path string, binary []byte) ([]byte, error) {
	components, err := newComponents()
	if err != nil {
		return nil, err
	}
	defer components.Close()
	content, err := components.Compile(binary)
	if err != nil {
		return nil, refusef("component %s cannot be compiled: %s: build it for WASI 0.2 (wasm32-wasip2) without threads,"+
			" exceptions, tail calls, GC, async and 64-bit memory", path, engineText(err.Error()))
	}
	return content, nil
}
