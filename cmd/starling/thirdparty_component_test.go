//go:build thirdparty

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// newComponent is what makes a component of a module for WASI preview 1.
const newComponent = `
import { readFile, writeFile } from 'node:fs/promises';
import { componentNew } from '@bytecodealliance/jco-transpile/wasm-tools';
const [module, adapter, out] = process.argv.slice(2);
await writeFile(out, await componentNew(await readFile(module), [['wasi_snapshot_preview1', await readFile(adapter)]]));
`

// asComponent puts a module into a component by the Bytecode Alliance's tool and
// adapter.
func asComponent(t *testing.T, module string) string {
	t.Helper()
	dir := npmFile(t, "@bytecodealliance/jco-transpile@0.15.0", "..")
	script, out := filepath.Join(dir, "new.mjs"), filepath.Join(dir, filepath.Base(module)+".wasm")
	if err := os.WriteFile(script, []byte(newComponent), 0o600); err != nil {
		t.Fatal(err)
	}
	// Not installed: what it depends on has hundreds of megabytes.
	const adapter = "package/lib/wasi_snapshot_preview1.command.wasm"
	pack := exec.Command("sh", "-c", "npm pack --silent @bytecodealliance/jco@1.35.0 && tar -xzf *.tgz "+adapter)
	pack.Dir = dir
	if text, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("npm pack: %v\n%s", err, text)
	}
	if text, err := exec.Command("node", script, module, filepath.Join(dir, adapter), out).CombinedOutput(); err != nil {
		t.Fatalf("component new: %v\n%s", err, text)
	}
	return out
}

// TestThirdPartyComponent: gojq as a component. The adapter knows no other exit
// status than 1.
func TestThirdPartyComponent(t *testing.T) {
	program := asComponent(t, goCommand(t, "github.com/itchyny/gojq/cmd/gojq@v0.12.17"))
	for _, r := range []thirdPartyRun{
		{"formats JSON", `{"a":[1,2]}`, exitOK, "{\n  \"a\": [\n    1,\n    2\n  ]\n}\n", ": ok ("},
		{"exits with a status", `{"a":`, exitTaskFailed, "", "error (exit status 1: "},
	} {
		got := starling(t, r.stdin, runArgs(t, "run", program, "--components", "on", "--compile-timeout", "5m")...)
		if got.status != r.status || got.out != r.out {
			t.Errorf("%s: run = %d, %q, want %d, %q\n%s", r.name, got.status, got.out, r.status, r.out, got.err)
		}
		contains(t, "stderr", got.err, r.says)
	}
}
