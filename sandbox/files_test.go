package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	// The directory has a parent of its own: read-only directories go there.
	dir := filepath.Join(t.TempDir(), "work")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// agent is a run of the Go test capsule.
func agent(t *testing.T, dir, task string) sandbox.Spec {
	t.Helper()
	s := spec(t, testenv.GoCapsule(t, "agent"))
	s.WorkDir, s.Stdin = dir, []byte(task)
	return s
}

func content(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func TestWorkDir(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{"task.md": "the task"})
	got, _ := run(t, newEngine(t), agent(t, dir, "files"))
	if got.Kind != sandbox.Exited || got.Status != 0 || content(t, dir, "out/result.txt") != "result of: the task" {
		t.Errorf("Run = %+v, result %q", got, content(t, dir, "out/result.txt"))
	}
}

func TestScope(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	dir := tree(t, map[string]string{"secret": "s", "data/in/a": "a"})
	s := agent(t, dir, "ls")
	s.Filesystem.Scope = "data/in"
	if got, _ := run(t, e, s); got.Stdout != "/\n/a\n" {
		t.Errorf("ls in the scope = %q %s, want / and /a", got.Stdout, got.Message)
	}
	s = agent(t, dir, "read ../../secret")
	s.Filesystem.Scope = "data/in"
	if got, _ := run(t, e, s); got.Status == 0 || strings.Contains(got.Stdout, "s\n") {
		t.Errorf("read above the scope = %+v, want a failure", got)
	}
}

func TestNoWorkDir(t *testing.T) {
	t.Parallel()
	got, _ := run(t, newEngine(t), agent(t, "", "read task.md"))
	if got.Kind != sandbox.Exited || got.Status != 1 {
		t.Errorf("Run = %+v, want exit 1", got)
	}
}

func TestFilesRefused(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	dir := tree(t, map[string]string{"file": "", "dir/file": ""})
	if err := os.Symlink("dir", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		fs   protocol.Filesystem
		want string
	}{
		{"scope that is not there", protocol.Filesystem{Scope: "nothing"}, "there is no such directory"},
		{"scope that is a file", protocol.Filesystem{Scope: "file"}, "it is no directory"},
		{"scope through a link", protocol.Filesystem{Scope: "link"}, "reached through a link"},
		{"scope above", protocol.Filesystem{Scope: "../x"}, "no path below"},
		{"absolute scope", protocol.Filesystem{Scope: "/etc"}, "no path below"},
		{"read-only file", protocol.Filesystem{ReadOnly: []string{"file"}}, "it is no directory"},
		{"read-only through a link", protocol.Filesystem{ReadOnly: []string{"dir", "link"}}, "reached through a link"},
		{"read-only above", protocol.Filesystem{ReadOnly: []string{"dir", "../x"}}, "no path below"},
	}
	for _, tt := range tests {
		s := spec(t, testenv.WAT(t, "noop"))
		s.WorkDir, s.Filesystem = dir, tt.fs
		if got, _ := run(t, e, s); got.Kind != sandbox.Refused || !strings.Contains(got.Message, tt.want) {
			t.Errorf("%s: Run = %s %q, want refused with %q", tt.name, got.Kind, got.Message, tt.want)
		}
		if _, err := os.Stat(filepath.Join(dir, "dir", "file")); err != nil {
			t.Errorf("%s: not put back: %v", tt.name, err)
		}
	}
	s := spec(t, testenv.WAT(t, "noop"))
	s.Filesystem.ReadOnly = []string{"dir"}
	if got, _ := run(t, e, s); got.Kind != sandbox.Refused {
		t.Errorf("read_only without a work directory: Run = %+v, want refused", got)
	}
}

// TestReadOnlyThatIsNotThere is made, and refuses writes.
func TestReadOnlyThatIsNotThere(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{"file": ""})
	s := agent(t, dir, "write /new/deep/x text")
	s.Filesystem.ReadOnly = []string{"new/deep"}
	got, _ := run(t, newEngine(t), s)
	if got.Stdout != "open /new/deep/x: Operation not permitted\n" {
		t.Errorf("write = %q %s, want it refused", got.Stdout, got.Message)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "new/deep")); err != nil || len(entries) != 0 {
		t.Errorf("new/deep holds %v, %v, want nothing", entries, err)
	}
}

// TestReadOnly: reads work, and nothing that a guest does changes what is in
// there.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	readOnly := []string{"lib/data", "lib/data/deep", "ref"}
	tests := []struct{ name, task, stdout string }{
		{"reading", "read lib/data/a", "A"},
		{"reading deeper", "read /lib/data/deep/b", "B"},
		{"listing", "ls", "/\n/lib\n/lib/data\n/lib/data/a\n/lib/data/deep\n/lib/data/deep/b\n/lib/own\n/ref\n/ref/c\n"},
		{"writing beside it", "write lib/own new", "<nil>\n"},
		{"overwriting", "write lib/data/a new", "open lib/data/a: Operation not permitted\n"},
		{"creating", "write ref/new new", "open ref/new: Operation not permitted\n"},
		{"writing deeper", "write lib/data/deep/b new", "open lib/data/deep/b: Operation not permitted\n"},
		{"linking out of it", "hostile link", ""},
		{"through the root", "hostile root", ""},
		{"renaming a parent", "hostile rename", ""},
		{"replacing a parent by a link", "hostile symlink", ""},
		{"changing times", "hostile times", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := tree(t, map[string]string{"lib/data/a": "A", "lib/data/deep/b": "B", "lib/own": "O", "ref/c": "C", "out/x": ""})
			if err := os.RemoveAll(filepath.Join(dir, "out")); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(filepath.Join(dir, "ref/c"))
			if err != nil {
				t.Fatal(err)
			}
			s := agent(t, dir, tt.task)
			s.Filesystem.ReadOnly = readOnly
			got, _ := run(t, e, s)
			if got.Kind != sandbox.Exited || (tt.stdout != "" && got.Stdout != tt.stdout) {
				t.Errorf("Run(%s) = %s %q %v, want %q", tt.task, got.Kind, got.Stdout, got.StderrTail, tt.stdout)
			}
			t.Logf("%s: %s", tt.task, got.Stdout)
			for name, want := range map[string]string{"lib/data/a": "A", "lib/data/deep/b": "B", "ref/c": "C"} {
				if got := content(t, dir, name); got != want {
					t.Errorf("%s = %q after %s, want %q", name, got, tt.task, want)
				}
			}
			if entries, err := os.ReadDir(filepath.Join(dir, "ref")); err != nil || len(entries) != 1 {
				t.Errorf("ref holds %v, %v, want c alone", entries, err)
			}
			if after, err := os.Stat(filepath.Join(dir, "ref/c")); err != nil || !after.ModTime().Equal(before.ModTime()) {
				t.Errorf("ref/c was modified: %v", err)
			}
			if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
				t.Errorf("beside the work directory: %v, %v, want nothing", entries, err)
			}
		})
	}
}
