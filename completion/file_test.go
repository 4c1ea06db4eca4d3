package completion_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/completion"
	"starling/protocol"
)

// workdir is a work directory and its root.
func workdir(t *testing.T) (string, *os.Root) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return dir, root
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]string, len(entries))
	for i, e := range entries {
		all[i] = e.Name()
	}
	return strings.Join(all, " ")
}

func TestWriteGoldenBytes(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../protocol/testdata/completion.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Outcomes []struct {
			Name    string
			Outcome json.RawMessage
			File    string
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil || len(golden.Outcomes) == 0 {
		t.Fatalf("the golden file has %d outcomes, %v", len(golden.Outcomes), err)
	}
	dir, root := workdir(t)
	path := filepath.Join(dir, "completion.json")
	for _, c := range golden.Outcomes { // one over the other
		o, err := protocol.ParseOutcome(c.Outcome)
		if err != nil {
			t.Fatal(err)
		}
		if err := completion.Write(root, o); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != c.File {
			t.Errorf("%s: the file has %s, %v, want %s", c.Name, got, err, c.File)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: the mode is %v, %v, want 0600", c.Name, info.Mode(), err)
		}
		if got := names(t, dir); got != "completion.json" {
			t.Errorf("%s: the directory has %s, want completion.json alone", c.Name, got)
		}
	}
}

// TestWriteMakesTheFileAnew: a file that a guest put there, open to all, does
// not lend its mode, and another link to it keeps what it had.
func TestWriteMakesTheFileAnew(t *testing.T) {
	t.Parallel()
	dir, root := workdir(t)
	path, other := filepath.Join(dir, "completion.json"), filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o600), os.Chmod(path, 0o666), os.Link(path, other)); err != nil {
		t.Fatal(err)
	}
	if err := completion.Write(root, outcome("dlg_1")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the mode is %v, %v, want 0600", info.Mode(), err)
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != "old" {
		t.Errorf("the other link has %q, %v, want what it had", got, err)
	}
}

func TestWriteFollowsNoLink(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"absolute", "relative", "dangling"} {
		outside := t.TempDir()
		victim := filepath.Join(outside, "victim")
		if err := os.WriteFile(victim, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		dir, root := workdir(t)
		link := map[string]string{"absolute": victim, "dangling": filepath.Join(outside, "new")}[target]
		if target == "relative" {
			rel, err := filepath.Rel(dir, victim)
			if err != nil {
				t.Fatal(err)
			}
			link = rel
		}
		path := filepath.Join(dir, "completion.json")
		if err := os.Symlink(link, path); err != nil {
			t.Fatal(err)
		}
		if err := completion.Write(root, outcome("dlg_1")); err != nil {
			t.Errorf("%s: Write = %v, want the link replaced", target, err)
		}
		if got, err := os.ReadFile(victim); err != nil || string(got) != "old" || names(t, outside) != "victim" {
			t.Errorf("%s: outside is %s with %q, %v, want it untouched", target, names(t, outside), got, err)
		}
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: completion.json is %v, %v, want a regular file", target, info.Mode(), err)
		}
	}
}

// TestWriteReplacesADirectory: a guest that put one there, with a link in it,
// does not keep its outcome from being written. It is moved, whole: what a guest
// leaves may be wider and deeper than can be removed here.
func TestWriteReplacesADirectory(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	dir, root := workdir(t)
	planted := filepath.Join(dir, "completion.json")
	if err := errors.Join(os.WriteFile(victim, nil, 0o600), os.Mkdir(planted, 0o700), os.Symlink(outside, filepath.Join(planted, "x"))); err != nil {
		t.Fatal(err)
	}
	if err := completion.Write(root, outcome("dlg_1")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(planted); err != nil || !info.Mode().IsRegular() {
		t.Errorf("completion.json is %v, %v, want a regular file", info.Mode(), err)
	}
	if got := strings.Fields(names(t, dir)); len(got) != 2 || got[1] != "completion.json" || !strings.HasSuffix(got[0], ".old") {
		t.Errorf("the directory has %s, want completion.json, what was there, and no temporary file", got)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("behind the link: %v, want it untouched", err)
	}
}

func TestWriteIntoADirectoryThatIsGone(t *testing.T) {
	t.Parallel()
	dir, root := workdir(t)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := completion.Write(root, outcome("dlg_1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Write = %v, want ErrNotExist", err)
	}
}

// TestReaderSeesAllOfOneOutcome: of the old one or of the new one.
func TestReaderSeesAllOfOneOutcome(t *testing.T) {
	t.Parallel()
	dir, root := workdir(t)
	short, long := outcome("dlg_1"), outcome("dlg_1")
	long.Status, long.Detail = protocol.StatusCrashed, strings.Repeat("x", 1800)
	wantShort, err := short.File()
	if err != nil {
		t.Fatal(err)
	}
	wantLong, err := long.File()
	if err != nil {
		t.Fatal(err)
	}
	if err := completion.Write(root, short); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 500 {
			o := short
			if i%2 == 0 {
				o = long
			}
			if err := completion.Write(root, o); err != nil {
				t.Errorf("Write = %v", err)
				return
			}
		}
	}()
	for reads := 0; ; reads++ {
		got, err := os.ReadFile(filepath.Join(dir, "completion.json"))
		if err != nil || string(got) != string(wantShort) && string(got) != string(wantLong) {
			t.Errorf("a reader sees %d bytes, %v, want one of the two outcomes", len(got), err)
			<-done
			return
		}
		select {
		case <-done:
			if reads == 0 {
				t.Error("the reader never ran")
			}
			return
		default:
		}
	}
}
