package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version of this source.
const release = "0.1.0"

// engineModule is the module that holds the engine.
const engineModule = "github.com/bytecodealliance/wasmtime-go/"

// build says which build of the program this is. What the build did not note is empty.
type build struct {
	Version  string `json:"version"`            // the release, and the commit
	Module   string `json:"module,omitempty"`   // the version of the module, as the go command names it
	Revision string `json:"revision,omitempty"` // the commit
	Modified bool   `json:"modified"`           // the source differed from the commit
	Wasmtime string `json:"wasmtime,omitempty"` // the engine's version
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// thisBuild is the running program's.
func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(info)
}

// buildOf reads what the go command noted in the program.
func buildOf(info *debug.BuildInfo) build {
	b := build{Version: release, Module: info.Main.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	if len(b.Revision) >= 12 {
		b.Version += "+" + b.Revision[:12]
	}
	for _, dep := range info.Deps {
		if strings.HasPrefix(dep.Path, engineModule) {
			b.Wasmtime = dep.Version
		}
	}
	return b
}

// version is the release, and the commit where the build knows it.
func version() string { return thisBuild().Version }

// print writes a line for the program and one for each thing that is known of it.
func (b build) print(out io.Writer) error {
	lines := fmt.Sprintf("starling %s %s %s/%s\n", b.Version, b.Go, b.OS, b.Arch)
	if b.Module != "" {
		lines += "module " + b.Module + "\n"
	}
	if b.Revision != "" {
		lines += "revision " + b.Revision
		if b.Modified {
			lines += ", modified"
		}
		lines += "\n"
	}
	if b.Wasmtime != "" {
		lines += "wasmtime " + b.Wasmtime + "\n"
	}
	_, err := io.WriteString(out, lines)
	return err
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version, the commit it was built from, and the engine's version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.printJSON(thisBuild())
			}
			return thisBuild().print(a.out)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}
