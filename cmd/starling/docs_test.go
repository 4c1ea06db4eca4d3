package main

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// update rewrites the parts of docs/ that are made from the code.
var update = flag.Bool("update", false, "rewrite generated parts of the docs")

func readDoc(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestConfigurationPageListsEveryVariable compares the table in the docs with
// the settings that the help shows.
func TestConfigurationPageListsEveryVariable(t *testing.T) {
	t.Parallel()
	var want strings.Builder
	want.WriteString("| variable | flag | default | meaning |\n| --- | --- | --- | --- |\n")
	for _, group := range groups() {
		for _, s := range settingsOf(group) {
			cell := func(s string) string {
				if s == "" {
					return "—"
				}
				return "`" + s + "`"
			}
			flag := ""
			if s.flag != "" {
				flag = "--" + s.flag
			}
			want.WriteString("| `" + s.variable + "` | " + cell(flag) + " | " + cell(s.fallback) + " | " + s.usage + " |\n")
		}
	}
	page := readDoc(t, "docs/configuration.md")
	const begin, end = "<!-- variables -->\n", "\n## Exit statuses"
	before, rest, ok := strings.Cut(page, begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("docs/configuration.md has no <!-- variables --> before its exit statuses")
	}
	if strings.TrimSpace(have) == strings.TrimSpace(want.String()) {
		return
	}
	if *update {
		page = before + begin + "\n" + want.String() + end + after
		if err := os.WriteFile("../../docs/configuration.md", []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("docs/configuration.md differs from the settings; go test ./cmd/starling -run %s -update rewrites it.\nwant:\n%s", t.Name(), want.String())
}

// TestWorkerHelpListsEveryVariable holds the help to the same settings.
func TestWorkerHelpListsEveryVariable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if status := run(t.Context(), []string{"worker", "--help"}, streams{in: strings.NewReader(""), out: &out, err: &out}); status != 0 {
		t.Fatalf("worker --help = %d, want 0", status)
	}
	for _, group := range []any{&busSettings{}, &poolSettings{}, &workerSettings{}, &completionSettings{}, &logSettings{}} {
		for _, s := range settingsOf(group) {
			if !strings.Contains(out.String(), s.variable) {
				t.Errorf("worker --help does not name %s", s.variable)
			}
		}
	}
}

// TestParentsPageShowsTheParent holds docs/parents.md to the code that
// TestParentByHand runs.
func TestParentsPageShowsTheParent(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("parent_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(source), "func parent(")
	code = "func parent(" + strings.TrimRight(code, "\n")
	if !strings.Contains(readDoc(t, "docs/parents.md"), "```go parent\n"+code+"\n```") {
		t.Error("docs/parents.md does not show parent_test.go's parent")
	}
}

// TestTheTestsThatThePagesNameExist: a promise names the test that shows it.
func TestTheTestsThatThePagesNameExist(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		tests.Write(source)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"docs/guarantees.md", "CONTRIBUTING.md"} {
		names := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(readDoc(t, page), -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", page)
		}
		for _, name := range names {
			if !strings.Contains(tests.String(), "\nfunc "+name[1]+"(") {
				t.Errorf("%s names %s, and there is no such test", page, name[1])
			}
		}
	}
}
