package main

import (
	"runtime/debug"
	"strings"
	"testing"
)

// TestVersionSaysWhichBuildItIs, of the release as it is built, both ways and for
// machines; --version prints what version does.
func TestVersionSaysWhichBuildItIs(t *testing.T) {
	t.Parallel()
	_, engine, ok := strings.Cut(readDoc(t, "go.mod"), engineModule)
	if !ok {
		t.Fatal("go.mod has no engine")
	}
	engine = strings.Fields(engine)[1]
	asCommand, asFlag := starling(t, "", "version"), starling(t, "", "--version")
	if asCommand.status != exitOK || asFlag != asCommand {
		t.Errorf("starling version = %+v, --version = %+v, want one and 0", asCommand, asFlag)
	}
	contains(t, "version", asCommand.out, "starling "+release, "\nwasmtime "+engine+"\n")
	got := decoded[build](t, starling(t, "", "version", "--json").out)
	if got.Version != version() || got.Wasmtime != engine || got.OS == "" || got.Arch == "" || got.Go == "" {
		t.Errorf("version --json = %+v", got)
	}
}

// TestVersionOfABuildOfACommit: tests are built without one.
func TestVersionOfABuildOfACommit(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v0.1.1-0.20261130120000-0123456789ab+dirty"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}},
	}
	var out strings.Builder
	if err := buildOf(info).print(&out); err != nil {
		t.Fatal(err)
	}
	contains(t, "version", out.String(), "starling "+release+"+0123456789ab ", "\nmodule "+info.Main.Version+"\n", "\nrevision 0123456789abcdef, modified\n")
}
