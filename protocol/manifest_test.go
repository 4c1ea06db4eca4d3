package protocol_test

import (
	"errors"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"starling/protocol"
)

const whole = `
name: summarizer
version: 1.2.0+b.1
description: Sums up
output: events
capabilities:
  filesystem: {scope: data/in, read_only: [lib, a/b]}
  env: {allow: [HOME, A_1]}
  network: {allow: ["https://api.example.com", "10.0.0.7:8080"]}
  limits: {memory_bytes: 1, table_elements: 2, instances: 3, deadline_seconds: 4, workdir_bytes: 5}
inference: {max_turns: 6, max_session_tokens: 7}
`

func TestParseManifest(t *testing.T) {
	t.Parallel()
	got, warnings, err := protocol.ParseManifest([]byte(whole))
	want := protocol.Manifest{
		Name: "summarizer", Version: "1.2.0+b.1", Description: "Sums up", Output: protocol.OutputEvents,
		Capabilities: protocol.Capabilities{
			Filesystem: protocol.Filesystem{Scope: "data/in", ReadOnly: []string{"lib", "a/b"}},
			Env:        protocol.EnvGrant{Allow: []string{"HOME", "A_1"}},
			Network:    protocol.Network{Allow: []string{"https://api.example.com", "10.0.0.7:8080"}},
			Limits:     protocol.Limits{MemoryBytes: 1, TableElements: 2, Instances: 3, DeadlineSeconds: 4, WorkdirBytes: 5},
		},
		Inference: protocol.Inference{MaxTurns: 6, MaxSessionTokens: 7},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || len(warnings) > 0 {
		t.Errorf("ParseManifest = %v, %v (-want +got):\n%s", warnings, err, diff)
	}
}

// TestManifestDefaults has the defaults of docs/protocol.md, section 5.
func TestManifestDefaults(t *testing.T) {
	t.Parallel()
	want := protocol.Manifest{
		Name: "a", Version: "1", Output: protocol.OutputText,
		Capabilities: protocol.Capabilities{Limits: protocol.Limits{
			MemoryBytes: 536870912, TableElements: 100000, Instances: 1000, DeadlineSeconds: 600, WorkdirBytes: 1 << 30,
		}},
		Inference: protocol.Inference{MaxTurns: 10},
	}
	for _, text := range []string{
		"name: a\nversion: '1'",
		"name: a\nversion: '1'\ncapabilities:\ninference:",
		"name: a\nversion: '1'\ncapabilities: {limits: {}}\ninference: {max_session_tokens: null}",
	} {
		got, _, err := protocol.ParseManifest([]byte(text))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("ParseManifest(%q) = %v (-want +got):\n%s", text, err, diff)
		}
	}
	if got := protocol.DefaultManifest("a", "1"); !reflect.DeepEqual(got, want) {
		t.Errorf("DefaultManifest = %+v, want %+v", got, want)
	}
}

func TestManifestWarnings(t *testing.T) {
	t.Parallel()
	_, got, err := protocol.ParseManifest([]byte(`
name: a
version: "1"
Name: b
capabilities:
  limits: {memory: 1}
  tools: {deep: {er: 1}}
inference: {model: m}
`))
	want := []string{
		`unknown key "Name"`, `unknown key "capabilities.limits.memory"`, `unknown key "capabilities.tools"`,
		`unknown key "inference.model"`,
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("warnings = %q, %v, want %q", got, err, want)
	}
}

// TestManifestErrors changes one thing of a good manifest at a time.
func TestManifestErrors(t *testing.T) {
	t.Parallel()
	tests := []struct{ key, value, want string }{
		{"name", "", "name"},
		{"name", "a.b", "name"},
		{"name", strings.Repeat("a", 65), "name"},
		{"version", "", "version"},
		{"version", "1/2", "version"},
		{"output", "xml", "output"},
		{"output", "''", "output"},
		{"capabilities", "{limits: {memory_bytes: 0}}", "memory_bytes is 0: it is 1 to 4294967296"},
		{"capabilities", "{limits: {memory_bytes: 4294967297}}", "memory_bytes"},
		{"capabilities", "{limits: {table_elements: 0}}", "table_elements"},
		{"capabilities", "{limits: {table_elements: 4294967296}}", "table_elements"},
		{"capabilities", "{limits: {instances: -1}}", "instances"},
		{"capabilities", "{limits: {deadline_seconds: 0}}", "deadline_seconds"},
		{"capabilities", "{limits: {deadline_seconds: 31622401}}", "deadline_seconds"},
		{"capabilities", "{limits: {workdir_bytes: 0}}", "workdir_bytes"},
		{"capabilities", "{limits: {deadline_seconds: soon}}", `capabilities.limits.deadline_seconds is the text "soon": it is a whole number`},
		{"capabilities", "{limits: {deadline_seconds: 1.5}}", `capabilities.limits.deadline_seconds is the number "1.5": it is a whole number`},
		{"capabilities", "{limits: {deadline_seconds: '5'}}", `capabilities.limits.deadline_seconds is the text "5": it is a whole number`},
		{"capabilities", "{limits: {deadline_seconds: [5]}}", "capabilities.limits.deadline_seconds is a list: it is a whole number"},
		{"capabilities", "{limits: {memory_bytes: 99999999999999999999}}", "capabilities.limits.memory_bytes is the number"},
		{"capabilities", "[]", "capabilities is a list: it is a mapping of keys to values"},
		{"capabilities", "{env: {allow: A}}", `capabilities.env.allow is the text "A": it is a list of texts`},
		{"capabilities", "{env: {allow: [A, {B: 1}]}}", "capabilities.env.allow[1] is a mapping: it is a text"},
		{"capabilities", "{env: true}", `capabilities.env is the word "true": it is a mapping of keys to values`},
		{"name", "[a]", "name is a list: it is a text"},
		{"capabilities", "{filesystem: {scope: /}}", "scope"},
		{"capabilities", "{filesystem: {scope: ..}}", "scope"},
		{"capabilities", "{filesystem: {scope: a/../..}}", "scope"},
		{"capabilities", "{filesystem: {scope: .}}", "scope"},
		{"capabilities", `{filesystem: {scope: 'a\b'}}`, "scope"},
		{"capabilities", "{filesystem: {read_only: [a, /b]}}", "read_only[1]"},
		{"capabilities", "{filesystem: {read_only: ['']}}", "read_only[0]"},
		{"capabilities", "{env: {allow: ['1A']}}", "env.allow[0]"},
		{"capabilities", "{env: {allow: [A, 'B=C']}}", "env.allow[1]"},
		{"capabilities", "{network: {allow: ['*.example.com']}}", "network.allow[0]"},
		{"inference", "{max_turns: 0}", "inference.max_turns is 0"},
		{"inference", "{max_session_tokens: 0}", "inference.max_session_tokens is 0: leave it out"},
		{"inference", "{max_session_tokens: -1}", "inference.max_session_tokens is -1"},
	}
	for _, tt := range tests {
		lines := map[string]string{"name": "a", "version": "'1'"}
		lines[tt.key] = tt.value
		var text strings.Builder
		for key, value := range lines {
			text.WriteString(key + ": " + value + "\n")
		}
		_, _, err := protocol.ParseManifest([]byte(text.String()))
		if !errors.Is(err, protocol.ErrManifest) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ParseManifest(%s: %s) = %v, want ErrManifest with %q", tt.key, tt.value, err, tt.want)
		}
	}
	for _, text := range []string{"- a", "a: [", "name: a\nname: b"} {
		if _, _, err := protocol.ParseManifest([]byte(text)); !errors.Is(err, protocol.ErrManifest) {
			t.Errorf("ParseManifest(%q) = %v, want ErrManifest", text, err)
		}
	}
	_, _, err := protocol.ParseManifest([]byte("output: xml\ninference: {max_turns: 0}"))
	for _, want := range []string{"name", "version", "output", "max_turns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseManifest = %v, want all problems, %s too", err, want)
		}
	}
}

// TestNetworkRule has the forms of network.allow of docs/protocol.md, section 5.
func TestNetworkRule(t *testing.T) {
	t.Parallel()
	tests := []struct {
		entry string
		want  protocol.NetworkRule
	}{
		{"https://a.example", protocol.NetworkRule{Scheme: "https", Host: "a.example", Port: "443"}},
		{"http://a.example", protocol.NetworkRule{Scheme: "http", Host: "a.example", Port: "80"}},
		{"https://a.example:8443", protocol.NetworkRule{Scheme: "https", Host: "a.example", Port: "8443"}},
		{"a.example:8080", protocol.NetworkRule{Host: "a.example", Port: "8080"}},
		{"a.example:080", protocol.NetworkRule{Host: "a.example", Port: "80"}},
		{"a.example", protocol.NetworkRule{Host: "a.example"}},
		{"localhost", protocol.NetworkRule{Host: "localhost"}},
		{"10.0.0.7:80", protocol.NetworkRule{Host: "10.0.0.7", Port: "80"}},
		{"[::1]:80", protocol.NetworkRule{Host: "::1", Port: "80"}},
		{"http://[fe80::1]", protocol.NetworkRule{Scheme: "http", Host: "fe80::1", Port: "80"}},
	}
	for _, tt := range tests {
		if got, err := protocol.ParseNetworkRule(tt.entry); err != nil || got != tt.want {
			t.Errorf("ParseNetworkRule(%q) = %+v, %v, want %+v", tt.entry, got, err, tt.want)
		}
	}
	for _, entry := range []string{
		"", "https://", "ftp://a", "HTTPS://a", "A.example", "*", "*.a", "a*", "a:0", "a:65536", "a:", "a:http", "a/b",
		"http://a/", "a?q", "a#f", "u@a", "http://u:p@a", "a b", "a\n", "a%41", "::1", "[::1", "a.", ".a", "-a", "http://http://a",
	} {
		if got, err := protocol.ParseNetworkRule(entry); err == nil {
			t.Errorf("ParseNetworkRule(%q) = %+v, want an error", entry, got)
		}
	}
}

func TestNetworkRuleAllows(t *testing.T) {
	t.Parallel()
	tests := []struct {
		rule, target string
		want         bool
	}{
		{"https://a.example", "https://a.example/path?q", true},
		{"https://a.example", "https://A.Example:443/", true},
		{"https://a.example", "http://a.example/", false},
		{"https://a.example", "https://a.example:8443/", false},
		{"https://a.example", "https://b.a.example/", false},
		{"https://a.example", "https://a.example.evil/", false},
		{"https://a.example", "https://a.example@evil/", false},
		{"a.example", "http://a.example:9/", true},
		{"a.example", "https://a.example/", true},
		{"a.example", "ftp://a.example/", false},
		{"a.example:443", "https://a.example/", true},
		{"a.example:443", "http://a.example/", false},
		{"[::1]:80", "http://[::1]/", true},
	}
	for _, tt := range tests {
		rule, err := protocol.ParseNetworkRule(tt.rule)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(tt.target)
		if err != nil {
			t.Fatal(err)
		}
		if got := rule.Allows(u); got != tt.want {
			t.Errorf("%q allows %s = %v, want %v", tt.rule, tt.target, got, tt.want)
		}
	}
}

// FuzzParseManifest: what is taken is valid, whatever was written.
func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("name: a\nversion: '1'\n"))
	f.Add([]byte("a: &x [*x]\n1: 2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, _, err := protocol.ParseManifest(data)
		if err != nil {
			if !errors.Is(err, protocol.ErrManifest) {
				t.Errorf("ParseManifest = %v, want ErrManifest", err)
			}
			return
		}
		if err := m.Validate(); err != nil {
			t.Errorf("taken, but Validate = %v", err)
		}
	})
}

func FuzzParseNetworkRule(f *testing.F) {
	for _, seed := range []string{"https://a.example:1", "[::1]:80", "a", "http://a@b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		r, err := protocol.ParseNetworkRule(entry)
		if err != nil {
			return
		}
		if r.Host == "" || strings.ContainsAny(r.Host, "*/@? ") {
			t.Errorf("ParseNetworkRule(%q) took the host %q", entry, r.Host)
		}
	})
}

// TestManifestErrorsNameTheLine, and say nothing of the types of a program.
func TestManifestErrorsNameTheLine(t *testing.T) {
	t.Parallel()
	_, _, err := protocol.ParseManifest([]byte("name: a\nversion: 1.0.0\ncapabilities:\n  limits:\n    memory_bytes: much\ninference:\n  max_turns: [1]\n"))
	want := "manifest: line 5: capabilities.limits.memory_bytes is the text \"much\": it is a whole number\n" +
		"manifest: line 7: inference.max_turns is a list: it is a whole number"
	if err == nil || err.Error() != want {
		t.Errorf("ParseManifest = %v, want %s", err, want)
	}
	for _, text := range []string{"", "- a", "a: [", "name: a\nname: b", "just text"} {
		_, _, err := protocol.ParseManifest([]byte(text))
		if !errors.Is(err, protocol.ErrManifest) {
			t.Fatalf("ParseManifest(%q) = %v, want %v", text, err, protocol.ErrManifest)
		}
		for _, word := range []string{"unmarshal", "!!", "int64", "struct", "protocol."} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("ParseManifest(%q) = %q, which says %q", text, err, word)
			}
		}
	}
}
