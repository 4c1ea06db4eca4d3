package egress

import (
	"bytes"
	"strings"
)

const redacted = "[secret]"

// redactor takes the values of secrets out of text that comes in pieces. It
// holds back only what may be the beginning of one.
type redactor struct {
	values [][]byte
	held   []byte
}

func newRedactor(secrets []Secret) *redactor {
	r := &redactor{}
	for _, s := range secrets {
		r.values = append(r.values, []byte(s.Value))
	}
	return r
}

// write gives what is sure of all that was written so far.
func (r *redactor) write(piece []byte) []byte {
	if len(r.values) == 0 {
		return piece
	}
	r.held = append(r.held, piece...)
	var out []byte
	for {
		at, size := r.first()
		if at < 0 {
			break
		}
		out = append(append(out, r.held[:at]...), redacted...)
		r.held = r.held[at+size:]
	}
	keep := r.beginning()
	out = append(out, r.held[:len(r.held)-keep]...)
	r.held = append([]byte(nil), r.held[len(r.held)-keep:]...)
	return out
}

// rest is what was held back, at the end.
func (r *redactor) rest() []byte { return r.held }

// first is the first value in what is held, the longest where two begin there.
func (r *redactor) first() (at, size int) {
	at = -1
	for _, v := range r.values {
		i := bytes.Index(r.held, v)
		if i >= 0 && (at < 0 || i < at || i == at && len(v) > size) {
			at, size = i, len(v)
		}
	}
	return at, size
}

// beginning is the length of the longest end of what is held that may go on to a
// value.
func (r *redactor) beginning() int {
	longest := 0
	for _, v := range r.values {
		for n := min(len(v)-1, len(r.held)); n > longest; n-- {
			if bytes.HasSuffix(r.held, v[:n]) {
				longest = n
			}
		}
	}
	return longest
}

func redact(secrets []Secret, text string) string {
	r := newRedactor(secrets)
	out := string(r.write([]byte(text)))
	return strings.ToValidUTF8(out+string(r.rest()), "\uFFFD")
}
