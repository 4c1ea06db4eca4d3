package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"starling/protocol"
)

const secretValue = "sk-0123456789abcdef"

// TestSecretsAreRefused has every way in which a store is wrong. No error holds what
// the file says.
func TestSecretsAreRefused(t *testing.T) {
	t.Parallel()
	entry := func(rest string) string { return "MODEL:\n  value: " + secretValue + "\n" + rest }
	for name, test := range map[string]struct {
		text, want string
		mode       os.FileMode
	}{
		"readable by the group":  {text: entry("  hosts: [https://a.example]\n"), mode: 0o640, want: "has the mode 0640"},
		"writable by others":     {text: entry("  hosts: [https://a.example]\n"), mode: 0o602, want: "has the mode 0602"},
		"no YAML":                {text: "MODEL: [" + secretValue, want: "it is no YAML at line 1"},
		"an anchor nobody has":   {text: "MODEL: *" + secretValue, want: "it is no YAML"},
		"a list":                 {text: "- " + secretValue, want: "line 1: want names of secrets"},
		"a value alone":          {text: "MODEL: " + secretValue, want: "MODEL, line 1: want value and hosts"},
		"a value for a name":     {text: secretValue + ": {}", want: "line 1: a secret's name has letters"},
		"no hosts":               {text: entry(""), want: "MODEL, line 1: it has no hosts"},
		"a host without scheme":  {text: entry("  hosts: [a.example]\n"), want: "its host a.example has no scheme: write https://a.example"},
		"a host that is none":    {text: entry("  hosts: ['https://" + secretValue + "!']\n"), want: "MODEL, line 3: hosts: one is no network rule"},
		"hosts that are no list": {text: entry("  hosts: " + secretValue + "\n"), want: "MODEL, line 3: hosts: want a list of texts"},
		"an unknown key":         {text: entry("  hosts: [https://a.example]\n  " + secretValue + ": x\n"), want: "MODEL, line 4: there is a key that is none of these (it may be a value, so it is not shown): a secret has value, hosts and headers"},
		"a key misspelt":         {text: entry("  host: [https://a.example]\n"), want: "MODEL, line 3: there is no key host: a secret has value, hosts and headers"},
		"a short password":       {text: "MODEL: {a1b2c3: x}\n", want: "MODEL, line 1: there is a key that is none of these"},
		"all on one line":        {text: "MODEL: {value: 'x', hosts: a}\n", want: ": MODEL, line 1: hosts: want a list of texts"},
		"two documents":          {text: entry("  hosts: [https://a.example]\n") + "---\nB: {}\n", want: "more than one document"},
		"hosts twice":            {text: entry("  hosts: [https://a.example]\n  hosts: [https://b.example]\n"), want: "MODEL, line 4: hosts: the key is there twice"},
		"a value in base64":      {text: "A:\n  value: !!binary c2VjcmV0c2VjcmV0\n  hosts: [https://a.example]\n", want: "A, line 2: value: want a text"},
		"a header that is none":  {text: entry("  hosts: [https://a.example]\n  headers: ['x y']\n"), want: "is no header's name"},
		"a short value":          {text: "MODEL:\n  value: short\n  hosts: [https://a.example]\n", want: "its value has 5 bytes: it is 8 to 8192"},
		"a line feed":            {text: "MODEL:\n  value: \"" + secretValue + "\\nx\"\n  hosts: [https://a.example]\n", want: "cannot stand in a header"},
		"white space":            {text: "MODEL:\n  value: \"" + secretValue + " \"\n  hosts: [https://a.example]\n", want: "white space around it"},
		"twice":                  {text: entry("  hosts: [https://a.example]\n") + entry("  hosts: [https://b.example]\n"), want: "MODEL, line 4: it is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mode := test.mode
			if mode == 0 {
				mode = 0o600
			}
			_, err := ReadSecrets(secretsFile(t, test.text, mode))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("ReadSecrets = %v, want %q in it", err, test.want)
			}
			if n := strings.Count(err.Error(), "line "); n > 1 {
				t.Errorf("the error names %d lines: %v", n, err)
			}
			if strings.Contains(err.Error(), secretValue) {
				t.Errorf("the error holds the value: %v", err)
			}
		})
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		fifo: "is no regular file", t.TempDir(): "is no regular file", filepath.Join(t.TempDir(), "none"): "no such file",
	} {
		if _, err := ReadSecrets(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadSecrets(%s) = %v, want %q in it", path, err, want)
		}
	}
	if os.Geteuid() == 0 {
		path := secretsFile(t, "", 0o600)
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSecrets(path); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("ReadSecrets = %v, want its owner in it", err)
		}
	}
}

func TestSecretsAreGrantedByName(t *testing.T) {
	t.Parallel()
	store, err := ReadSecrets(secretsFile(t, `# of this pool
MODEL:
  value: `+secretValue+`
  hosts: [https://api.example.com, "http://127.0.0.1:8080"]
  headers: [Authorization]
OTHER: {value: another-value, hosts: [https://b.example]}
`, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	got, unknown := store.granted(protocol.Secrets{Allow: []string{"MODEL", "NONE", "MODEL"}})
	if len(got) != 1 || got[0].Value != secretValue || len(got[0].Hosts) != 2 || got[0].Headers[0] != "authorization" {
		t.Errorf("granted = %v, want the secret MODEL", got)
	}
	if fmt.Sprint(unknown) != "[NONE]" {
		t.Errorf("unknown = %q, want NONE", unknown)
	}
	cfg := Config{Secrets: store}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, got) + fmt.Sprintf(verb, cfg) + fmt.Sprintf(verb, store); strings.Contains(text, secretValue) {
			t.Errorf("%s prints the value: %s", verb, text)
		}
	}
}

func secretsFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}
