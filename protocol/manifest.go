package protocol

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"path"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ManifestFile is the name of a capsule's manifest in its directory.
const ManifestFile = "murmur.yaml"

// OutputMode says how a capsule's stdout is read.
type OutputMode string

// The output modes. The zero value of a parsed manifest is [OutputText].
const (
	OutputText   OutputMode = "text"   // every piece of stdout is a text-delta
	OutputEvents OutputMode = "events" // every line of stdout is a driver event
)

// Manifest says what a capsule is and what it asks for.
//
// Source: docs/protocol.md, section 5.
type Manifest struct {
	Name         string       `json:"name" yaml:"name"`
	Version      string       `json:"version" yaml:"version"`
	Description  string       `json:"description,omitempty" yaml:"description"`
	Output       OutputMode   `json:"output" yaml:"output"`
	Capabilities Capabilities `json:"capabilities" yaml:"capabilities"`
	Inference    Inference    `json:"inference" yaml:"inference"`
}

// Capabilities are what a capsule asks to be granted, and its limits.
type Capabilities struct {
	Filesystem Filesystem `json:"filesystem" yaml:"filesystem"`
	Env        EnvGrant   `json:"env" yaml:"env"`
	Network    Network    `json:"network" yaml:"network"`
	Secrets    Secrets    `json:"secrets,omitzero" yaml:"secrets"`
	Limits     Limits     `json:"limits" yaml:"limits"`
}

// Filesystem moves the preopen "/" to a subdirectory of the work directory and
// makes some of its subpaths refuse writes.
type Filesystem struct {
	Scope    string   `json:"scope,omitempty" yaml:"scope"`
	ReadOnly []string `json:"read_only,omitempty" yaml:"read_only"`
}

// EnvGrant lists the environment names that a capsule may see.
type EnvGrant struct {
	Allow []string `json:"allow,omitempty" yaml:"allow"`
}

// Network lists the hosts that a capsule may call.
type Network struct {
	Allow []string `json:"allow,omitempty" yaml:"allow"`
}

// Secrets lists the operator's secrets that a capsule may refer to in the headers
// of its HTTP requests. It never sees their values.
type Secrets struct {
	Allow []string `json:"allow,omitempty" yaml:"allow"`
}

// Limits bound one run of a capsule. A parsed manifest carries the defaults
// where it says nothing; zero and less are refused.
type Limits struct {
	MemoryBytes     int64 `json:"memory_bytes" yaml:"memory_bytes"`         // linear memory
	TableElements   int64 `json:"table_elements" yaml:"table_elements"`     // elements of one table
	Instances       int64 `json:"instances" yaml:"instances"`               // core instances
	DeadlineSeconds int64 `json:"deadline_seconds" yaml:"deadline_seconds"` // wall time of the run
	WorkdirBytes    int64 `json:"workdir_bytes" yaml:"workdir_bytes"`       // bytes in the work directory
}

// Inference bounds what an event capsule may spend. A zero MaxSessionTokens
// means that there is no ceiling.
type Inference struct {
	MaxTurns         int64 `json:"max_turns" yaml:"max_turns"`
	MaxSessionTokens int64 `json:"max_session_tokens,omitempty" yaml:"max_session_tokens"`
}

// The bounds of section 5 that no manifest changes.
const (
	MaxReadOnly    = 64      // paths in filesystem.read_only, the job's with the manifest's: each is a grant of its own
	MaxOutputBytes = 8 << 20 // stdout and import payloads that are kept and streamed
	MaxStderrBytes = 1 << 20
	MaxLineBytes   = 1 << 20
	MaxToolCalls   = 10_000 // of one attempt
	MaxEnvBytes    = 64 << 10
)

// DefaultLimits are the limits of a capsule whose manifest sets none.
func DefaultLimits() Limits {
	return Limits{
		MemoryBytes: 512 << 20, TableElements: 100_000, Instances: 1000,
		DeadlineSeconds: 600, WorkdirBytes: 1 << 30,
	}
}

// DefaultManifest is the manifest of a bare module: the default grants.
func DefaultManifest(name, version string) Manifest {
	return Manifest{
		Name: name, Version: version, Output: OutputText,
		Capabilities: Capabilities{Limits: DefaultLimits()},
		Inference:    Inference{MaxTurns: 10},
	}
}

// ErrManifest says that a manifest cannot be read or asks for something that
// section 5 does not allow. The error names the key.
var ErrManifest = errors.New("manifest")

// ParseManifest reads murmur.yaml and fills in the defaults. Keys that section 5
// does not name are ignored and returned, sorted, as warnings; an error is
// [ErrManifest] and joins all problems.
func ParseManifest(data []byte) (Manifest, []string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return Manifest{}, nil, fmt.Errorf("%w: it is no YAML: %s", ErrManifest, yamlText(err))
	}
	if err := checkShape(&document); err != nil {
		return Manifest{}, nil, err
	}
	m := DefaultManifest("", "")
	if err := document.Decode(&m); err != nil {
		return Manifest{}, nil, fmt.Errorf("%w: %s", ErrManifest, yamlText(err))
	}
	var raw map[string]any
	if err := document.Decode(&raw); err != nil {
		return Manifest{}, nil, fmt.Errorf("%w: %s", ErrManifest, yamlText(err))
	}
	warnings := unknownKeys("", raw, manifestKeys)
	sort.Strings(warnings)
	if asked, ok := dig(raw, "inference", "max_session_tokens"); ok && m.Inference.MaxSessionTokens == 0 && asked != nil {
		return Manifest{}, warnings, fmt.Errorf("%w: inference.max_session_tokens is 0: leave it out for no ceiling", ErrManifest)
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, warnings, err
	}
	return m, warnings, nil
}

// manifestKeys is the tree of known keys; a leaf is what stands there.
var manifestKeys = map[string]any{
	"name": shapeText, "version": shapeText, "description": shapeText, "output": shapeText,
	"capabilities": map[string]any{
		"filesystem": map[string]any{"scope": shapeText, "read_only": shapeTexts},
		"env":        map[string]any{"allow": shapeTexts},
		"network":    map[string]any{"allow": shapeTexts},
		"secrets":    map[string]any{"allow": shapeTexts},
		"limits": map[string]any{
			"memory_bytes": shapeNumber, "table_elements": shapeNumber, "instances": shapeNumber,
			"deadline_seconds": shapeNumber, "workdir_bytes": shapeNumber,
		},
	},
	"inference": map[string]any{"max_turns": shapeNumber, "max_session_tokens": shapeNumber},
}

func unknownKeys(prefix string, got, known map[string]any) []string {
	var unknown []string
	for key, value := range got {
		below, ok := known[key]
		if !ok {
			unknown = append(unknown, fmt.Sprintf("unknown key %q", clip(prefix+key, 128)))
			continue
		}
		sub, isMap := value.(map[string]any)
		if tree, isTree := below.(map[string]any); isMap && isTree {
			unknown = append(unknown, unknownKeys(prefix+key+".", sub, tree)...)
		}
	}
	return unknown
}

func dig(m map[string]any, keys ...string) (any, bool) {
	var value any = m
	for _, key := range keys {
		sub, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = sub[key]; !ok {
			return nil, false
		}
	}
	return value, true
}

// Validate checks every member and joins all problems, each with its key and
// the fix.
func (m Manifest) Validate() error {
	var problems []error
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%w: "+format, append([]any{ErrManifest}, args...)...))
	}
	if err := ValidateName("name", m.Name); err != nil {
		bad("%w", err)
	}
	if err := ValidateVersion("version", m.Version); err != nil {
		bad("%w", err)
	}
	if m.Output != OutputText && m.Output != OutputEvents {
		bad("output is %q: it is \"text\" or \"events\"", clip(string(m.Output), 32))
	}
	if m.Inference.MaxTurns < 1 {
		bad("inference.max_turns is %d: it is at least 1", m.Inference.MaxTurns)
	}
	if m.Inference.MaxSessionTokens < 0 {
		bad("inference.max_session_tokens is %d: it is at least 1, or left out for no ceiling", m.Inference.MaxSessionTokens)
	}
	for _, problem := range m.Capabilities.problems() {
		bad("%w", problem)
	}
	return errors.Join(problems...)
}

// problems are what is wrong with any member, each with its key and the fix.
func (c Capabilities) problems() []error {
	var problems []error
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("capabilities."+format, args...))
	}
	l := c.Limits
	for _, limit := range []struct {
		key        string
		value, max int64
	}{
		{"memory_bytes", l.MemoryBytes, 4 << 30},
		{"table_elements", l.TableElements, math.MaxUint32},
		{"instances", l.Instances, math.MaxInt32},
		{"deadline_seconds", l.DeadlineSeconds, 366 * 24 * 3600},
		{"workdir_bytes", l.WorkdirBytes, math.MaxInt64},
	} {
		if limit.value < 1 || limit.value > limit.max {
			bad("limits.%s is %d: it is 1 to %d", limit.key, limit.value, limit.max)
		}
	}
	fs := c.Filesystem
	if fs.Scope != "" && !subpath(fs.Scope) {
		bad("filesystem.scope is %q: it is a path below the work directory", clip(fs.Scope, 128))
	}
	if n := len(fs.ReadOnly); n > MaxReadOnly {
		bad("filesystem.read_only has %d paths: at most %d", n, MaxReadOnly)
		fs.ReadOnly = nil // one problem is enough
	}
	for i, p := range fs.ReadOnly {
		if !subpath(p) {
			bad("filesystem.read_only[%d] is %q: it is a path below the scope", i, clip(p, 128))
		}
	}
	for i, name := range c.Env.Allow {
		if !ValidEnvName(name) {
			bad("env.allow[%d] is %q: it is an environment name", i, clip(name, 64))
		}
	}
	for i, entry := range c.Network.Allow {
		if _, err := ParseNetworkRule(entry); err != nil {
			bad("network.allow[%d]: %w", i, err)
		}
	}
	for i, name := range c.Secrets.Allow {
		if !ValidSecretName(name) {
			bad("secrets.allow[%d] is %q: it is a name like an environment variable's", i, clip(name, 64))
		}
	}
	return problems
}

// ValidEnvName reports whether an environment variable may have the name: letters,
// digits and _, at most 128, and no digit first.
func ValidEnvName(name string) bool {
	return spelled(name, 1, 128, letters+digits+"_") && !strings.Contains(digits, name[:1])
}

// ValidSecretName reports whether a secret may have the name: it is like that of an
// environment variable.
func ValidSecretName(name string) bool { return ValidEnvName(name) }

// subpath reports whether p names something below a root and nothing else.
func subpath(p string) bool {
	clean := path.Clean(p)
	return !path.IsAbs(p) && clean != "." && clean != ".." && !strings.HasPrefix(clean, "../") &&
		!strings.ContainsAny(p, "\x00\\") && len(p) <= 1024
}

// NetworkRule is one entry of network.allow. An empty Scheme matches http and
// https; an empty Port any port.
type NetworkRule struct {
	Scheme string
	Host   string // lower case, exact; an IPv6 address without brackets
	Port   string
}

// String is the rule as an entry of network.allow.
func (r NetworkRule) String() string {
	host := r.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if r.Port != "" {
		host += ":" + r.Port
	}
	if r.Scheme != "" {
		host = r.Scheme + "://" + host
	}
	return host
}

// ParseNetworkRule reads "scheme://host[:port]", "host:port" or "host". A
// scheme without a port means that scheme's own port.
func ParseNetworkRule(entry string) (NetworkRule, error) {
	refuse := func(why string) (NetworkRule, error) {
		return NetworkRule{}, fmt.Errorf("%q is no network rule: %s", clip(entry, 128), why)
	}
	var r NetworkRule
	hostport := entry
	if scheme, rest, ok := strings.Cut(entry, "://"); ok {
		if scheme != "http" && scheme != "https" {
			return refuse("the scheme is http or https")
		}
		r.Scheme, hostport = scheme, rest
	}
	u, err := url.Parse("http://" + hostport)
	if err != nil || u.Host != hostport || hostport == "" {
		return refuse("it is scheme://host[:port], host:port or host")
	}
	r.Host, r.Port = u.Hostname(), u.Port()
	switch {
	case r.Host == "" || strings.HasSuffix(hostport, ":"):
		return refuse("it is scheme://host[:port], host:port or host")
	case strings.Contains(r.Host, "*"):
		return refuse("a host is exact, there are no wildcards")
	case r.Host != strings.ToLower(r.Host):
		return refuse("a host is written in lower case")
	case net.ParseIP(r.Host) == nil && !validHostName(r.Host):
		return refuse("the host is neither a name nor an address")
	}
	if r.Port != "" {
		n, err := strconv.Atoi(r.Port)
		if err != nil || n < 1 || n > 65535 {
			return refuse("the port is 1 to 65535")
		}
		r.Port = strconv.Itoa(n) // without leading zeros
	} else if r.Scheme == "http" {
		r.Port = "80"
	} else if r.Scheme == "https" {
		r.Port = "443"
	}
	return r, nil
}

func validHostName(host string) bool {
	return spelled(host, 1, 253, lowerLetters+digits+"_.-") && host == strings.Trim(host, ".-")
}

// Allows reports whether the rule covers a call of u.
func (r NetworkRule) Allows(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return (u.Scheme == "http" || u.Scheme == "https") &&
		(r.Scheme == "" || r.Scheme == u.Scheme) &&
		(r.Port == "" || r.Port == port) &&
		r.Host == strings.ToLower(u.Hostname())
}
