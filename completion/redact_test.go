package completion_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"starling/completion"
	"starling/protocol"
	"starling/testenv"
)

// TestNoSecretOfTheAddressEscapes posts to doors that answer with what they
// know of their own address, in every form.
func TestNoSecretOfTheAddressEscapes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		part, userinfo, path string
		secrets              []string
	}{
		{"a user and a password", "us3r:pa55word@", "/", []string{"us3r", "pa55word", "dXMzcjpwYTU1d29yZA=="}},
		{"an escaped password", "us3r:pa55%2Fword@", "/", []string{"pa55/word", "pa55%2Fword"}},
		{"a token as the user", "t0ken@", "/", []string{"t0ken", "dDBrZW46"}},
		{"a token in the path", "", "/hook/t0ken", []string{"t0ken", "/hook/t0ken"}},
		{"an escaped token in the path", "", "/hook/t0k%20en/x", []string{"t0k en", "t0k%20en"}},
		{"a token in the path, before a query", "", "/hook/t0ken?a=b", []string{"t0ken"}},
		{"a token in the query", "", "/?a=b&key=t0ken", []string{"t0ken", "a=b&key=t0ken"}},
		{"an escaped token in the query", "", "/?key=t0k%20en", []string{"t0k en", "t0k%20en"}},
		{"a token as the query", "", "/?t0ken", []string{"t0ken"}},
		{"a token as a name", "", "/?t0ken&a=b", []string{"t0ken"}},
		{"a token that is part of another", "", "/t0ken/t0ken-and-more", []string{"t0ken-and-more"}},
	}
	for _, tt := range tests {
		t.Run(tt.part, func(t *testing.T) {
			t.Parallel()
			for name, answer := range map[string]testenv.Answer{
				"in an error": func(w http.ResponseWriter, r *http.Request, p testenv.Post) {
					testenv.Refuse(-32000, fmt.Sprint(r.URL.Path, " ", r.RequestURI, " ", r.Header.Get("Authorization"), " ", tt.secrets))(w, r, p)
				},
				"instead of HTTP": func(w http.ResponseWriter, r *http.Request, _ testenv.Post) {
					if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
						_, _ = fmt.Fprint(conn, r.RequestURI, " ", r.Header.Get("Authorization"), " ", tt.secrets, "\r\n\r\n")
						_ = conn.Close()
					}
				},
				"at the cut": testenv.Refuse(-32000, strings.Repeat("-", protocol.MaxDetailBytes-4)+tt.secrets[0]),
				"nowhere":    testenv.Drop(),
			} {
				var log bytes.Buffer
				door := testenv.Door(t, answer)
				b := newBridge(t, completion.Config{Backoff: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				err := deliver(t, b, "http://"+tt.userinfo+door.Addr().String()+tt.path)
				if err == nil || log.Len() == 0 {
					t.Fatalf("%s: Deliver = %v and the log is %q, want both to say why", name, err, log.String())
				}
				secrets := tt.secrets
				if name == "at the cut" {
					secrets = []string{tt.secrets[0][:4]}
				}
				for _, secret := range secrets {
					if len(secret) > 8 {
						secret = secret[len(secret)/2:] // no half of it either
					}
					if strings.Contains(err.Error(), secret) || strings.Contains(log.String(), secret) {
						t.Errorf("%s: %q is in the error or the log:\n%v\n%s", name, secret, err, log.String())
					}
				}
			}
		})
	}
}

// TestOurOwnTextsStay: an address that has words of ours in it makes no holes
// in the texts of the protocol.
func TestOurOwnTextsStay(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer testenv.Answer
		want   string
	}{
		"rejected": {testenv.Reject(), rejected},
		"refused":  {testenv.Raw(200, `{"error":null}`), "the parent refused the completion"},
		"no JSON":  {testenv.Raw(500, ``), "the door answered HTTP 500"},
	} {
		door := testenv.Door(t, tt.answer)
		err := deliver(t, once(t), "http://parent:refused@"+door.Addr().String()+"/completion/door?queue=full")
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: Deliver = %v, want %s", name, err, tt.want)
		}
	}
}
