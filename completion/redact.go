package completion

import (
	"cmp"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strings"

	"starling/protocol"
)

// minSecretBytes is the length from which a part of a door's address is taken
// out of texts: a shorter one is no secret, and would make holes in words.
const minSecretBytes = 4

// deliveryError is why a post failed, in a text that may be kept: bounded, and
// without the secrets of the door's address.
type deliveryError struct {
	text  string
	cause error
}

func (e *deliveryError) Error() string { return e.text }
func (e *deliveryError) Unwrap() error { return e.cause }

// redact takes the address, and the secrets in it, out of an error's text where
// the door had a part in it: a door may answer with what it was sent. Our own
// texts do not repeat it and stay as they are. The bound comes after, so that no
// half of a secret escapes at the cut.
func redact(err error, door *url.URL) error {
	text := err.Error()
	var refused *refusal
	var transport *transportError
	if errors.As(err, &refused) && refused.quoted || errors.As(err, &transport) {
		for _, secret := range secrets(door) {
			text = strings.ReplaceAll(text, secret, "[redacted]")
		}
	}
	return &deliveryError{text: protocol.Bound(text), cause: err}
}

// secrets are the parts of an address that a door's answer must not carry on,
// as they were written and as they are read, the longest first.
func secrets(door *url.URL) []string {
	found := []string{door.String(), door.RequestURI(), door.EscapedPath(), door.Path, door.RawQuery}
	found = append(found, strings.Split(door.EscapedPath(), "/")...)
	found = append(found, strings.Split(door.Path, "/")...)
	found = append(found, strings.FieldsFunc(door.RawQuery, func(r rune) bool { return r == '&' || r == '=' })...)
	for name, values := range door.Query() {
		found = append(append(found, name), values...)
	}
	if user := door.User; user != nil {
		password, _ := user.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		found = append(found, user.String(), user.Username(), password, basic)
		found = append(found, strings.Split(user.String(), ":")...)
	}
	found = slices.DeleteFunc(found, func(s string) bool { return len(s) < minSecretBytes })
	slices.SortFunc(found, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return found
}
