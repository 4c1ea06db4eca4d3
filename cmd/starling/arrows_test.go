package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// arrows are the imports that are allowed inside the module, transitively; see
// CONTRIBUTING.md. An arrow that is not here points up or sideways.
var arrows = map[string][]string{
	"starling/protocol":   nil,
	"starling/broker":     {"starling/protocol"},
	"starling/sandbox":    {"starling/protocol", "starling/sandbox/internal"},
	"starling/completion": {"starling/protocol"},
	"starling/worker":     {"starling/protocol", "starling/broker", "starling/sandbox", "starling/completion"},
	"starling/testenv":    {"starling/protocol"},
	"starling/cmd/starling": {
		"starling/protocol", "starling/broker", "starling/sandbox", "starling/completion", "starling/worker",
		"starling/cmd/starling/internal",
	},
	"starling/sandbox/guest":           nil,
	"starling/sandbox/guest/guesthttp": nil,
}

// forbidden are third parties that a package must not know, itself or through
// what it imports.
var forbidden = map[string][]string{
	"starling/protocol":      {"github.com/nats-io", "github.com/bytecodealliance", "net/http"},
	"starling/broker":        {"github.com/bytecodealliance"},
	"starling/sandbox":       {"github.com/nats-io"}, // and see TestArrowsOnlyEgressKnowsHTTP
	"starling/sandbox/guest": {"github.com/", "golang.org/x", "net/http"},
	"starling/completion":    {"github.com/nats-io", "github.com/bytecodealliance"},
}

func TestArrowsPointDownOnly(t *testing.T) {
	t.Parallel()
	for pkg, allowed := range arrows {
		for _, dep := range deps(t, pkg) {
			inside := strings.HasPrefix(dep, "starling/") && dep != pkg
			if inside && !slices.ContainsFunc(allowed, func(a string) bool { return dep == a || strings.HasPrefix(dep, a+"/") }) {
				t.Errorf("%s imports %s, want only %v", pkg, dep, allowed)
			}
			for _, party := range forbidden[pkg] {
				if dep == party || strings.HasPrefix(dep, party) && strings.HasSuffix(party, "/") || strings.HasPrefix(dep, party+"/") {
					t.Errorf("%s imports %s, which it must not know", pkg, dep)
				}
			}
		}
	}
}

// TestArrowsOnlyEgressKnowsHTTP: one package of the sandbox makes the requests of
// guests, and the SDK, which runs inside of them, may look like an HTTP client.
func TestArrowsOnlyEgressKnowsHTTP(t *testing.T) {
	t.Parallel()
	const egress, sdk = "starling/sandbox/internal/egress", "starling/sandbox/guest"
	knows := false
	for _, pkg := range list(t, "starling/sandbox/...") {
		imports := list(t, "-f", `{{join .Imports "\n"}}`, pkg)
		switch {
		case !slices.ContainsFunc(imports, func(i string) bool { return i == "net/http" || strings.Contains(i, "/http/") }):
		case pkg == egress:
			knows = true
		case pkg != sdk && !strings.HasPrefix(pkg, sdk+"/"):
			t.Errorf("%s imports net/http, which only %s is to know", pkg, egress)
		}
	}
	if !knows {
		t.Errorf("%s does not import net/http", egress)
	}
}

func TestArrowsOnlyTestsImportTestenv(t *testing.T) {
	t.Parallel()
	for _, pkg := range list(t, "starling/...") {
		if pkg == "starling/testenv" {
			continue
		}
		if slices.Contains(deps(t, pkg), "starling/testenv") {
			t.Errorf("%s imports starling/testenv outside its tests", pkg)
		}
	}
}

func TestTopLevelIsFixed(t *testing.T) {
	t.Parallel()
	var names []string
	if out, err := exec.Command("git", "-C", "../..", "ls-tree", "--name-only", "HEAD").Output(); err == nil {
		names = strings.Fields(string(out))
	} else { // an archive, which holds nothing else
		entries, err := os.ReadDir("../..")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != ".git" { // of somebody else, or there is no git
				names = append(names, e.Name())
			}
		}
	}
	want := strings.Fields(`.ci .dockerignore .github .gitignore .golangci.yml CHANGELOG.md CONTRIBUTING.md Dockerfile LICENSE
		Makefile README.md broker cmd completion docker-compose.yml docs go.mod go.sum protocol sandbox testenv worker`)
	for _, name := range names {
		if !slices.Contains(want, name) {
			t.Errorf("the top level has %s, which is not one of %v", name, want)
		}
	}
}

func deps(t *testing.T, pkg string) []string {
	t.Helper()
	return list(t, "-deps", pkg)
}

func list(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	return strings.Fields(string(out))
}
