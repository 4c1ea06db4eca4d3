package egress

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"starling/protocol"
)

// Secret is one value of the operator's store.
type Secret struct {
	Name    string
	Value   string
	Hosts   []protocol.NetworkRule // where it may be sent; none is nowhere
	Headers []string               // in which headers, lower case; none is any
}

// String keeps the value out of logs and messages.
func (s Secret) String() string { return s.Name }

// GoString is String.
func (s Secret) GoString() string { return s.Name }

// The bounds of a secret's value. A shorter one would be taken out of text that
// only looks like it.
const (
	MinSecretBytes = 8
	maxSecretBytes = 8 << 10
)

// Validate refuses a secret that cannot be used. The error does not hold the value.
func (s Secret) Validate() error {
	switch n := len(s.Value); {
	case n < MinSecretBytes || n > maxSecretBytes:
		return fmt.Errorf("its value has %d bytes: it is %d to %d", n, MinSecretBytes, maxSecretBytes)
	case strings.TrimSpace(s.Value) != s.Value:
		return errors.New("its value has white space around it")
	case !httpguts.ValidHeaderFieldValue(s.Value):
		return errors.New("its value cannot stand in a header: it holds a control character")
	case strings.Contains(s.Value, redacted):
		return fmt.Errorf("its value holds %s, which takes the place of secrets", redacted)
	case len(s.Hosts) == 0:
		return errors.New("it has no hosts: name those that it may be sent to")
	}
	for _, r := range s.Hosts {
		if r.Scheme == "" {
			return fmt.Errorf("its host %s has no scheme: write https://%s", r.Host, r.Host)
		}
	}
	for _, h := range s.Headers {
		if !httpguts.ValidHeaderFieldName(h) || h != strings.ToLower(h) {
			return fmt.Errorf("one of its headers is no header's name in lower case")
		}
	}
	return nil
}

var reference = regexp.MustCompile(`\$\{secret:([^}]*)\}`)

// fill puts secrets in the place of references in a header's value. One sentence
// refuses whatever the reason: it does not tell which names there are.
func (p Policy) fill(u *url.URL, header, value string) (string, *Error) {
	var problem *Error
	filled := reference.ReplaceAllStringFunc(value, func(ref string) string {
		name := reference.FindStringSubmatch(ref)[1]
		for _, s := range p.Secrets {
			if s.Name != name {
				continue
			}
			if slices.ContainsFunc(s.Hosts, func(r protocol.NetworkRule) bool { return r.Allows(u) }) &&
				(len(s.Headers) == 0 || slices.Contains(s.Headers, strings.ToLower(header))) {
				return s.Value
			}
			if p.Misdirected != nil {
				p.Misdirected(s, u.Scheme+"://"+clip(u.Host), clip(header))
			}
		}
		problem = refuse(ErrnoNotGranted, "the secret %q is not granted in the header %s of a request to %s://%s:"+
			" capabilities.secrets.allow and the operator's store say which are", clip(name), header, u.Scheme, clip(u.Host))
		return ""
	})
	return filled, problem
}

// redactor takes out of an answer the secrets that any of the hosts may have been
// sent, in this request or in an earlier one, however it was called. Others are not
// looked for: their absence would tell that something else is their value.
func (p Policy) redactor(hosts []*url.URL) *redactor {
	known := func(s Secret) bool {
		return slices.ContainsFunc(s.Hosts, func(r protocol.NetworkRule) bool {
			return slices.ContainsFunc(hosts, func(u *url.URL) bool { return r.Host == strings.ToLower(u.Hostname()) })
		})
	}
	return newRedactor(slices.DeleteFunc(slices.Clone(p.Secrets), func(s Secret) bool { return !known(s) }))
}
