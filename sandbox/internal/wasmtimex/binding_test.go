package wasmtimex_test

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"starling/sandbox/internal/wasmtimex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCheck holds for the binding that go.mod names, and Version is its.
func TestCheck(t *testing.T) {
	t.Parallel()
	if err := wasmtimex.Check(); err != nil {
		t.Errorf("Check = %v", err)
	}
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(wasmtimex.Version, "/")
	if !strings.Contains(string(mod), "wasmtime-go/v39 "+version) {
		t.Errorf("go.mod does not name %s", version)
	}
}
