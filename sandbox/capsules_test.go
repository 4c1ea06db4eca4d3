package sandbox_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bytecodealliance/wasmtime-go/v39"
)

var update = flag.Bool("update", false, "compile testenv/testdata/capsules/*.wat again")

// TestCapsulesAreCompiled keeps the two forms of the small test modules equal.
func TestCapsulesAreCompiled(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("../testenv/testdata/capsules/*.wat")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		want, err := wasmtime.Wat2Wasm(string(text))
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		path := strings.TrimSuffix(source, ".wat") + ".wasm"
		if *update {
			if err := os.WriteFile(path, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := os.ReadFile(path); !bytes.Equal(got, want) {
			t.Errorf("%s is not what its source compiles to: run go test ./sandbox -run TestCapsulesAreCompiled -update", path)
		}
	}
}
