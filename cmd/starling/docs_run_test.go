package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bytecodealliance/wasmtime-go/v39"

	"starling/protocol"
	"starling/worker"
)

// blocks are the fenced blocks of a page whose info string is info.
func blocks(t *testing.T, page, info string) []string {
	t.Helper()
	pattern := regexp.MustCompile("(?ms)^```" + regexp.QuoteMeta(info) + "\n(.*?)^```$")
	var found []string
	for _, match := range pattern.FindAllStringSubmatch(readDoc(t, page), -1) {
		found = append(found, match[1])
	}
	if len(found) == 0 {
		t.Fatalf("%s has no block ```%s", page, info)
	}
	return found
}

// shell runs a block at the root of the repository, with this program as
// `starling` and the given environment. It fails the test when the block fails.
func shell(t *testing.T, block string, env ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	wrapper := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", asProgram, self)
	if err := os.WriteFile(filepath.Join(bin, "starling"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "sh", "-euc", block)
	command.Dir = "../.."
	command.Env = append(append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")), env...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\nprinted:\n%s", err, block, out)
	}
	return string(out)
}

func TestReadmeFirstCommand(t *testing.T) {
	t.Parallel()
	block := blocks(t, "README.md", "sh run")[0]
	const program = "go run ./cmd/starling "
	if !strings.HasPrefix(block, program) {
		t.Fatalf("the README's first command is %q, want it to begin with %q", block, program)
	}
	dir := t.TempDir()
	out := shell(t, "starling "+strings.TrimPrefix(block, program), "STARLING_WORK_ROOT="+filepath.Join(dir, "work"), "STARLING_CACHE_DIR="+dir)
	for line := range strings.Lines(blocks(t, "README.md", "text")[0]) {
		if strings.Contains(line, " after ") { // the time differs
			continue
		}
		contains(t, "the output", out, strings.TrimSuffix(line, "\n"))
	}
}

func TestReadmeCommandsOnADevFleet(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	out := shell(t, blocks(t, "README.md", "sh dev")[0], "STARLING_URL="+f.server.ClientURL())
	contains(t, "the output", out, "hello@1.0.0 sha256:", "Hello, THE FLEET!", "DELEGATION", string(f.staff.worker.ID()))
}

// pageCapsule builds the Go capsule of a page and gives a directory with it and its
// manifest, in which change is made.
func pageCapsule(t *testing.T, source, manifest string, change *strings.Replacer) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	for path, text := range map[string]string{
		file: blocks(t, "docs/capsules.md", source)[0],
		filepath.Join(dir, protocol.ManifestFile): change.Replace(blocks(t, "docs/capsules.md", manifest)[0]),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "capsule.wasm"), file)
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCapsulesPageGoCapsule(t *testing.T) {
	t.Parallel()
	dir := pageCapsule(t, "go capsule", "yaml manifest", strings.NewReplacer())
	got := starling(t, "a text", runArgs(t, "run", dir)...)
	if got.status != exitOK {
		t.Fatalf("status = %d\n%s", got.status, got.err)
	}
	contains(t, "stdout", got.out, "Let me measure that. ", "measured: a text")
	contains(t, "stderr", got.err, "[tool] measure started", "it has some length")
}

func TestCapsulesPageHTTPCapsule(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		task, err := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.Path != "/answers" || r.Header.Get("Authorization") != "Bearer sk-0123456789abcdef" || err != nil {
			t.Errorf("the server got %s %s with %q, %v", r.Method, r.URL, r.Header, err)
		}
		fmt.Fprintf(w, "You ask: %s\nI answer.\n", task)
	}))
	t.Cleanup(server.Close)
	secrets := secretsFile(t, fmt.Sprintf("ANSWERS_KEY: {value: sk-0123456789abcdef, hosts: [%q]}\n", server.URL))
	dir := pageCapsule(t, "go http", "yaml http", strings.NewReplacer("https://api.example.com", server.URL))
	got := starling(t, "why?", runArgs(t, "run", dir, "--env", "ANSWERS_URL="+server.URL+"/answers",
		"--ceiling-network", server.URL, "--secrets", secrets, "--compile-timeout", "10m")...)
	if got.status != exitOK || got.out != "You ask: why?\nI answer.\n" {
		t.Errorf("run = %d, %q\n%s", got.status, got.out, got.err)
	}
}

func TestCapsulesPageManifestsHaveNoWarnings(t *testing.T) {
	t.Parallel()
	for _, text := range append(blocks(t, "docs/capsules.md", "yaml manifest"), blocks(t, "docs/capsules.md", "yaml http")...) {
		m, warnings, err := protocol.ParseManifest([]byte(text))
		if err != nil || len(warnings) > 0 {
			t.Errorf("ParseManifest = %v, %v\n%s", warnings, err, text)
		}
		if m.Capabilities.Limits != protocol.DefaultLimits() || m.Inference.MaxTurns != 10 {
			t.Errorf("the page's limits are %+v, want the defaults", m.Capabilities.Limits)
		}
	}
}

func TestCapsulesPageWATCapsule(t *testing.T) {
	t.Parallel()
	module, err := wasmtime.Wat2Wasm(blocks(t, "docs/capsules.md", "wat")[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "wat.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := starling(t, "x", runArgs(t, "run", path)...); got.status != exitOK || got.out != "hello\n" {
		t.Errorf("run = %d, %q, want 0, hello\n%s", got.status, got.out, got.err)
	}
}

func TestConfigurationPageSecretsCanBeRead(t *testing.T) {
	t.Parallel()
	store, err := worker.ReadSecrets(secretsFile(t, blocks(t, "docs/configuration.md", "yaml secrets")[0]))
	if err != nil || store.String() != "2 secrets" {
		t.Errorf("ReadSecrets = %s, %v, want the two of the page", store, err)
	}
}
