package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"starling/testenv"
)

// TestRunMakesRequestsAsGranted has a server that echoes the secret which the run
// sends it, and a store that is refused when others can read it.
func TestRunMakesRequestsAsGranted(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789abcdef"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("X-Api-Key"); got != value {
			t.Errorf("the server got %q, want the secret", got)
		}
		_, _ = io.WriteString(w, "you sent "+r.Header.Get("X-Api-Key"))
	}))
	t.Cleanup(server.Close)
	capsule := capsuleDir(t, testenv.WAT(t, "fetch"),
		"name: fetch\nversion: 1.0.0\ncapabilities:\n  network: {allow: ['"+server.URL+"']}\n  secrets: {allow: [MODEL]}\n")
	store := secretsFile(t, "MODEL:\n  value: "+value+"\n  hosts: ["+server.URL+"]\n")
	args := func(more ...string) []string {
		return runArgs(t, append([]string{"run", capsule, "--task", "GET " + server.URL + "/\nX-Api-Key: ${secret:MODEL}\n"}, more...)...)
	}
	got := starling(t, "", args("--ceiling-network", server.URL, "--secrets", store)...)
	if got.status != exitOK {
		t.Errorf("status = %d, want 0\n%s%s", got.status, got.out, got.err)
	}
	contains(t, "stdout", got.out, "you sent [secret]")
	if strings.Contains(got.out+got.err, value) {
		t.Errorf("the secret is printed:\n%s%s", got.out, got.err)
	}

	got = starling(t, "", args("--secrets", store)...)
	contains(t, "stderr", got.err, "capabilities.network.allow asks for "+server.URL+" and the operator's ceiling (STARLING_CEILING_NETWORK) is every public host")

	got = starling(t, "", args("--ceiling-network", server.URL)...)
	contains(t, "stdout", got.out, `the secret "MODEL" is not granted in the header X-Api-Key`)

	if err := os.Chmod(store, 0o644); err != nil {
		t.Fatal(err)
	}
	got = starling(t, "", args("--secrets", store)...)
	if got.status != exitUsage {
		t.Errorf("status = %d, want %d", got.status, exitUsage)
	}
	contains(t, "stderr", got.err, "STARLING_SECRETS (--secrets): secrets: "+store+" has the mode 0644", "chmod 600 "+store)
}

// TestWhatAServerSaysUnaskedIsPrintedNowhere: a server that answers HEAD with a body
// that holds the secret it was sent. The program is a process of its own, for the
// logger that must not print it is the whole process's.
func TestWhatAServerSaysUnaskedIsPrintedNowhere(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789abcdef"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan bool, 16)
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer func() { _ = conn.Close() }()
				request, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				key := request.Header.Get("X-Api-Key")
				_, err = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(key), key)
				sent <- err == nil && key == value
				_, _ = conn.Read(make([]byte, 1)) // until the client closes it
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); group.Wait() })
	url := "http://" + listener.Addr().String()
	capsule := capsuleDir(t, testenv.WAT(t, "fetch"),
		"name: fetch\nversion: 1.0.0\ncapabilities:\n  network: {allow: ['"+url+"']}\n  secrets: {allow: [MODEL]}\n")
	store := secretsFile(t, "MODEL:\n  value: "+value+"\n  hosts: ["+url+"]\n")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command(self, runArgs(t, "run", capsule, "--ceiling-network", url, "--secrets", store,
		"--task", "HEAD "+url+"/\nX-Api-Key: ${secret:MODEL}\n")...)
	program.Env = append(os.Environ(), asProgram+"=1")
	out, err := program.CombinedOutput()
	if err != nil || !<-sent || strings.Contains(string(out), value) || strings.Contains(string(out), "Unsolicited") {
		t.Errorf("%v, and printed:\n%s", err, out)
	}
}

// secretsFile is a file of secrets that only its owner may read.
func secretsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
