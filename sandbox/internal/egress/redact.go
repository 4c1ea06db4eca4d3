package egress

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

const redacted = "[secret]"

// redactor takes the values of secrets out of text that comes in pieces. What it
// holds back until more comes does not depend on what the values are: a guest that
// has its guesses echoed would else see which of them begin one. It is the text
// since the last line feed, which no value holds, and no more than the longest value
// less a byte.
type redactor struct {
	values  [][]byte // the longest first; shared
	longest int
	held    []byte
}

func newRedactor(secrets []Secret) *redactor {
	r := &redactor{}
	for _, s := range secrets {
		for _, form := range forms(s.Value) {
			r.values = append(r.values, []byte(form))
			r.longest = max(r.longest, len(form))
		}
	}
	slices.SortStableFunc(r.values, func(a, b []byte) int { return len(b) - len(a) })
	return r
}

// forms are how an honest server echoes a value: as it is, in a string of JSON, and
// in a query or a path.
func forms(value string) []string {
	all := []string{value, url.QueryEscape(value), url.PathEscape(value)}
	for _, html := range []bool{false, true} {
		var quoted bytes.Buffer
		e := json.NewEncoder(&quoted)
		e.SetEscapeHTML(html)
		if e.Encode(value) == nil { // it cannot fail
			text := strings.TrimSuffix(strings.TrimPrefix(quoted.String(), `"`), "\"\n")
			all = append(all, text, strings.ReplaceAll(text, "/", `\/`))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// write gives what is sure of all that was written so far. The caller may change
// piece afterwards, but what is given is valid only until then.
func (r *redactor) write(piece []byte) []byte {
	if len(r.values) == 0 {
		return piece
	}
	r.held = append(r.held, piece...)
	return r.clean(false)
}

// rest is what was held back, at the end.
func (r *redactor) rest() []byte { return r.clean(true) }

// clean takes values out of what is held and gives all of which it is sure.
func (r *redactor) clean(all bool) []byte {
	sure := len(r.held)
	if !all {
		sure = max(0, sure-r.longest+1, bytes.LastIndexByte(r.held, '\n')+1)
	}
	var out []byte
	at, next := 0, make([]int, len(r.values)) // where each value is found next
	for i := range next {
		next[i] = -1
	}
	for at < sure {
		found, size := sure, 0
		for i, v := range r.values {
			if next[i] < at {
				next[i] = at + index(r.held[at:], v)
			}
			if next[i] < found {
				found, size = next[i], len(v)
			}
		}
		out = append(out, r.held[at:found]...)
		if size > 0 {
			out = append(out, redacted...)
		}
		at = found + size
	}
	r.held = append([]byte(nil), r.held[at:]...)
	return out
}

// index is where v is in text, or text's length.
func index(text, v []byte) int {
	if i := bytes.Index(text, v); i >= 0 {
		return i
	}
	return len(text)
}

// text takes values out of a whole text.
func (r *redactor) text(text string) string {
	one := r.fresh()
	out := string(one.write([]byte(text)))
	return strings.ToValidUTF8(out+string(one.rest()), "\uFFFD")
}

// fresh is a redactor of the same values for another text.
func (r *redactor) fresh() *redactor { return &redactor{values: r.values, longest: r.longest} }
