package wasmtimex_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

// TestAdvisoriesAreOfThisEngine: docs/security.md answers the advisories of the
// engine that is used, and those that code and tests name are among them.
func TestAdvisoriesAreOfThisEngine(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	_, version, _ := strings.Cut(wasmtimex.Version, "/")
	for _, named := range regexp.MustCompile(`v\d+\.\d+\.\d+`).FindAllString(doc, -1) {
		if named != version {
			t.Errorf("docs/security.md is about %s, and the engine is %s: read the advisories again", named, version)
		}
	}
	if want := "applies to " + version; !strings.Contains(doc, want) {
		t.Errorf("docs/security.md does not say %q", want)
	}
	id := regexp.MustCompile(`RUSTSEC-\d{4}-\d{4}|GHSA(-[0-9a-z]{4}){3}`)
	err = filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		code, err := os.ReadFile(path)
		for _, named := range id.FindAllString(string(code), -1) {
			if short := ", -" + named[len(named)-4:]; !strings.Contains(doc, named) && !strings.Contains(doc, short) {
				t.Errorf("%s names %s, and docs/security.md does not", path, named)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
