package worker_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/protocol"
	"starling/testenv"
	"starling/worker"
)

// TestCapsulesCallWhatTheyAreGranted has a server that echoes what it is sent, and a
// secret which it alone may be sent. Nobody else hears it.
func TestCapsulesCallWhatTheyAreGranted(t *testing.T) {
	t.Parallel()
	const value, auth = "sk-0123456789abcdef", "Authorization: Bearer ${secret:MODEL}\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s", r.Header.Get("Authorization"))
		if got := r.Header.Get("Authorization"); got != "Bearer "+value && r.URL.Path == "/secret" {
			t.Errorf("the server got %q, want the secret", got)
		}
	}))
	t.Cleanup(server.Close)
	f := newFleet(t)
	m := f.hire(t, func(c *worker.Config) {
		c.Ceiling.Network = []string{server.URL, "api.example.com"}
		c.Secrets = secrets(t, "MODEL: {value: "+value+", hosts: ["+server.URL+"]}\n"+
			"ELSEWHERE: {value: "+value+"-2, hosts: ['https://api.example.com']}\n"+
			"HEADER: {value: "+value+"-3, hosts: ["+server.URL+"], headers: [X-Key]}\n")
	})
	module, err := os.ReadFile(testenv.WAT(t, "fetch"))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		network, secrets []string
		job              string // capabilities
		head             string
		want             string // in the result, or the detail of a task that is refused
		status           protocol.Status
	}{
		"granted":    {network: []string{server.URL}, secrets: []string{"MODEL"}, head: "/secret\n" + auth, want: "hello, Bearer [secret]", status: protocol.StatusOK},
		"no secrets": {network: []string{server.URL}, head: "/\n" + auth, want: `the secret "MODEL" is not granted in the header Authorization`, status: protocol.StatusOK},
		"narrowed":   {network: []string{server.URL}, secrets: []string{"MODEL"}, job: `{"secrets":{"allow":[]}}`, head: "/\n" + auth, want: `the secret "MODEL" is not granted in the header Authorization`, status: protocol.StatusOK},
		"unknown": {
			network: []string{server.URL}, secrets: []string{"SEARCH"}, head: "/\nX: ${secret:SEARCH}\n",
			want: `the secret "SEARCH" is not granted in the header X`, status: protocol.StatusOK,
		},
		"another host": { // twice, and one warning
			network: []string{server.URL}, secrets: []string{"ELSEWHERE"}, head: "/\nX: ${secret:ELSEWHERE}${secret:ELSEWHERE}\n",
			want: `the secret "ELSEWHERE" is not granted in the header X`, status: protocol.StatusOK,
		},
		"another header": {
			network: []string{server.URL}, secrets: []string{"HEADER"}, head: "/\nAuthorization: ${secret:HEADER}\n",
			want: `the secret "HEADER" is not granted in the header Authorization`, status: protocol.StatusOK,
		},
		"no network": {secrets: []string{"MODEL"}, head: "/\n" + auth, want: server.URL + " is not granted: capabilities.network.allow is empty", status: protocol.StatusOK},
		"narrowed network": {
			network: []string{server.URL}, job: `{"network":{"allow":[]}}`, head: "/\n",
			want: "is not granted: capabilities.network.allow is empty", status: protocol.StatusOK,
		},
		"beyond the ceiling": {
			network: []string{"db.example.com"}, head: "/\n", status: protocol.StatusCrashed,
			want: "capabilities.network.allow asks for db.example.com and the operator's ceiling (STARLING_CEILING_NETWORK) is " + server.URL + ", api.example.com",
		},
	} {
		t.Run(name, func(t *testing.T) {
			capsule := f.push(t, strings.ReplaceAll(name, " ", "-"), module, func(m *protocol.Manifest) {
				m.Capabilities.Network.Allow, m.Capabilities.Secrets.Allow = test.network, test.secrets
			})
			rec, _ := f.run(t, f.job(capsule, "GET "+server.URL+test.head, func(j *protocol.Job) {
				if test.job != "" {
					if j.Capabilities, err = protocol.ParseJobCapabilities([]byte(test.job)); err != nil {
						t.Fatal(err)
					}
				}
			}))
			said := fmt.Sprintf("%+v %+v", rec.Outcome, rec.Ending)
			for _, frame := range f.stored(t, f.bus.Namespace().TasksStream(), f.bus.Namespace().TaskSubject(rec.TaskID)) {
				said += string(frame.Data)
			}
			if rec.Status != test.status || !strings.Contains(unquoted(said), test.want) {
				t.Errorf("the task ended %s and %.2000s, want %s and %q", rec.Status, said, test.status, test.want)
			}
			if strings.Contains(said, value) {
				t.Error("the frames or the record hold the secret")
			}
		})
	}
	if line := m.log.wait(t, "the capsule asks for secrets that this worker does not have: they go into the file of STARLING_SECRETS, or --secrets"); line.attrs["secrets"] != "[SEARCH]" {
		t.Errorf("logged %v, want the name SEARCH", line.attrs)
	}
	misdirected := map[string]string{}
	for _, line := range m.log.all() {
		if line.message == "a secret was asked for where it is not bound to: the request was refused" {
			misdirected[line.attrs["secret"]] += fmt.Sprintf("%s in %s, not %s %s of %s\n", line.attrs["origin"], line.attrs["header"],
				line.attrs["bound_hosts"], line.attrs["bound_headers"], line.attrs["capsule"])
		}
	}
	if want := map[string]string{
		"ELSEWHERE": server.URL + " in X, not [https://api.example.com:443] [] of another-host@1.0.0\n",
		"HEADER":    server.URL + " in Authorization, not [" + server.URL + "] [x-key] of another-header@1.0.0\n",
	}; !maps.Equal(misdirected, want) {
		t.Errorf("logged %q, want %q", misdirected, want)
	}
	for _, line := range m.log.all() {
		if strings.Contains(fmt.Sprint(line), value) {
			t.Errorf("the log holds the secret: %v", line)
		}
	}
	files := 0
	err = filepath.WalkDir(m.cfg.WorkRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(value)) {
			t.Errorf("%s holds the secret", path)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files of the tasks were read: %v", files, err)
	}
}

// unquoted is the text of JSON as the guest wrote it, near enough.
func unquoted(text string) string { return strings.ReplaceAll(text, `\"`, `"`) }

// secrets is a store of that text.
func secrets(t *testing.T, text string) worker.Secrets {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := worker.ReadSecrets(path)
	if err != nil {
		t.Fatal(err)
	}
	return store
}
