package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"starling/protocol"
	"starling/sandbox"
)

// Secrets is the operator's store: values that capsules may have put into headers
// of their HTTP requests, and never see. The zero value holds none.
//
// Source: docs/protocol.md, section 5, Secrets.
type Secrets struct{ byName map[string]sandbox.Secret }

// String keeps the values out of logs and messages.
func (s Secrets) String() string { return fmt.Sprintf("%d secrets", len(s.byName)) }

// GoString is String.
func (s Secrets) GoString() string { return s.String() }

const maxSecretsBytes = 1 << 20

// ReadSecrets reads a store: a YAML file of names, each with value, hosts, and
// headers if it is for some only. It is refused when anybody but its owner can read
// it, or when that is neither this user nor root. No error holds anything that the
// file says but names of secrets and of keys, and a host that lacks its scheme.
func ReadSecrets(path string) (Secrets, error) {
	text, err := readPrivate(path)
	if err != nil {
		return Secrets{}, fmt.Errorf("secrets: %w", err)
	}
	store, err := parseSecrets(text)
	if err != nil {
		return Secrets{}, fmt.Errorf("secrets of %s: %w", path, err)
	}
	return store, nil
}

// readPrivate reads a file that is its owner's alone.
func readPrivate(path string) ([]byte, error) {
	// A named pipe without a writer would hold the open up.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has the mode %04o, so that others than its owner can read or change it: chmod 600 %s", path, info.Mode().Perm(), path)
	case known && owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d: it is to belong to the user of the worker, or to root", path, owner.Uid)
	case info.Size() > maxSecretsBytes:
		return nil, fmt.Errorf("%s has %d bytes: at most %d", path, info.Size(), maxSecretsBytes)
	}
	return io.ReadAll(io.LimitReader(f, maxSecretsBytes))
}

// parseSecrets reads the file's text. What the YAML package says may hold a value,
// so that only its line is told.
func parseSecrets(text []byte) (Secrets, error) {
	store := Secrets{byName: map[string]sandbox.Secret{}}
	var document yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return store, fmt.Errorf("it is no YAML%s", lineOf(err))
	}
	if documents.Decode(new(yaml.Node)) != io.EOF {
		return store, errors.New("it holds more than one document, or ends in what is no YAML")
	}
	if len(document.Content) == 0 {
		return store, nil // empty
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return store, fmt.Errorf("line %d: want names of secrets, each with value and hosts", root.Line)
	}
	var problems []error
	for i := 0; i+1 < len(root.Content); i += 2 {
		name := root.Content[i]
		if name.Kind != yaml.ScalarNode || !protocol.ValidSecretName(name.Value) {
			problems = append(problems, fmt.Errorf("line %d: a secret's name has letters, digits and _, and begins with no digit", name.Line))
			continue
		}
		secret, line, err := parseSecret(name, root.Content[i+1])
		if _, twice := store.byName[name.Value]; twice {
			line, err = name.Line, errors.New("it is there twice")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s, line %d: %w", name.Value, line, err))
			continue
		}
		store.byName[name.Value] = secret
	}
	return store, errors.Join(problems...)
}

// parseSecret reads one secret. line is where the error is.
func parseSecret(name, entry *yaml.Node) (secret sandbox.Secret, line int, _ error) {
	secret.Name = name.Value
	if entry.Kind != yaml.MappingNode {
		return secret, name.Line, errors.New("want value and hosts below the name")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(entry.Content); i += 2 {
		key, value := entry.Content[i], entry.Content[i+1]
		var err error
		switch {
		case seen[key.Value]:
			err = errors.New("the key is there twice")
		case key.Value == "value":
			if value.Kind != yaml.ScalarNode || value.ShortTag() == "!!binary" {
				err = errors.New("want a text")
			}
			secret.Value = value.Value
		case key.Value == "hosts":
			var hosts []string
			if hosts, err = texts(value); err == nil {
				secret.Hosts, err = rules(hosts)
			}
		case key.Value == "headers":
			if secret.Headers, err = texts(value); err == nil {
				for j, h := range secret.Headers {
					secret.Headers[j] = strings.ToLower(h)
				}
			}
		default:
			return secret, key.Line, fmt.Errorf("%s: a secret has value, hosts and headers", unknownKey(key.Value))
		}
		if err != nil {
			return secret, key.Line, fmt.Errorf("%s: %w", key.Value, err)
		}
		seen[key.Value] = true
	}
	return secret, name.Line, secret.Validate()
}

// unknownKey names a key that there is not, unless it is long enough to be a value that
// stands in the wrong place.
func unknownKey(key string) string {
	if key != "" && len(key) < sandbox.MinSecretBytes && !strings.ContainsFunc(key, noKeyLetter) {
		return "there is no key " + key
	}
	return "there is a key that is none of these (it may be a value, so it is not shown)"
}

func noKeyLetter(r rune) bool {
	return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

func texts(list *yaml.Node) ([]string, error) {
	var all []string
	if list.Kind != yaml.SequenceNode {
		return nil, errors.New("want a list of texts")
	}
	for _, item := range list.Content {
		if item.Kind != yaml.ScalarNode {
			return nil, errors.New("want a list of texts")
		}
		all = append(all, item.Value)
	}
	return all, nil
}

func rules(hosts []string) ([]protocol.NetworkRule, error) {
	var all []protocol.NetworkRule
	for _, entry := range hosts {
		rule, err := protocol.ParseNetworkRule(entry)
		if err != nil {
			return nil, errors.New("one is no network rule: write https://host[:port]")
		}
		all = append(all, rule)
	}
	return all, nil
}

var yamlLine = regexp.MustCompile(`line \d+`)

func lineOf(err error) string {
	if line := yamlLine.FindString(err.Error()); line != "" {
		return " at " + line
	}
	return ""
}

// granted are the secrets of a capsule, and the names that it asks for and that
// there are not.
func (s Secrets) granted(asked protocol.Secrets) (secrets []sandbox.Secret, unknown []string) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(asked.Allow))) {
		if secret, ok := s.byName[name]; ok {
			secrets = append(secrets, secret)
		} else {
			unknown = append(unknown, name)
		}
	}
	return secrets, unknown
}
