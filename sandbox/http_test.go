package sandbox_test

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/sandbox/internal/egress"
	"starling/testenv"
)

// httpImports are the imports of a guest that makes requests, and what it has of
// memory. A guest's own functions follow.
const httpImports = `
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "fd_read" (func $in (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
	  (import "starling:capsule/http@0.1.0" "send" (func $send (param i32 i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "wait" (func $wait (param i32 i32 i64) (result i32)))
	  (import "starling:capsule/http@0.1.0" "head" (func $head (param i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "read" (func $read (param i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "error" (func $error (param i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "close" (func $close (param i32) (result i32)))
	  (memory (export "memory") 160)
	  (func $say (param $n i32)
	    (i32.store (i32.const 16) (i32.const 65536)) (i32.store (i32.const 20) (local.get $n))
	    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24))))`

// request is a head in the memory at an address, and a function that sends it.
func request(name string, at int, head string) string {
	escaped := strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n", "\r", "\\r").Replace(head)
	return fmt.Sprintf(`
	  (data (i32.const %d) "%s")
	  (func $%s (result i32) (call $send (i32.const %d) (i32.const %d) (i32.const 0) (i32.const 0)))`, at, escaped, name, at, len(head))
}

// fromStdin is a function that sends the head on stdin, which comes to be at 1024.
const fromStdin = `
	  (start $load)
	  (func $load
	    (i32.store (i32.const 32) (i32.const 1024)) (i32.store (i32.const 36) (i32.const 63488))
	    (drop (call $in (i32.const 0) (i32.const 32) (i32.const 1) (i32.const 40))))
	  (func $good (result i32) (call $send (i32.const 1024) (i32.load (i32.const 40)) (i32.const 0) (i32.const 0)))`

// names is a resolver that knows some names.
type names map[string]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(n[host])}, nil
}

// everywhere runs a test with guests of this process, and with those of a sandbox
// process, whose requests this one makes.
func everywhere(t *testing.T, cfg sandbox.HTTPConfig, test func(*testing.T, runner)) {
	t.Helper()
	eachRunner(t, func(c *sandbox.ProcessConfig) { c.HTTP = cfg }, test)
}

func allow(tb testing.TB, entries ...string) []protocol.NetworkRule {
	tb.Helper()
	var rules []protocol.NetworkRule
	for _, e := range entries {
		rule, err := protocol.ParseNetworkRule(e)
		if err != nil {
			tb.Fatal(err)
		}
		rules = append(rules, rule)
	}
	return rules
}

const modelKey = "sk-0123456789/abcdef"

// answers is a server that answers in all kinds of ways.
func answers(t *testing.T) http.Handler {
	mux := http.NewServeMux()
	flush := func(w http.ResponseWriter) { w.(http.Flusher).Flush() }
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Method, r.RequestURI)
		for _, name := range []string{"Authorization", "X-Key", "Accept-Encoding", "User-Agent"} {
			fmt.Fprintf(w, " %s=%q", name, r.Header[name])
		}
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { // in pieces that cut the secret
		got := r.Header.Get("Authorization")
		if got != "Bearer "+modelKey {
			t.Errorf("the server got the header %q", got)
		}
		w.Header().Set("X-Echo", got)
		for piece := range strings.SplitSeq("raw "+got+" url "+url.QueryEscape(got)+" json "+strings.ReplaceAll(got, "/", `\/`)+" end", "") {
			_, _ = io.WriteString(w, piece)
			flush(w)
		}
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 1<<20)) })
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.RawQuery, http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/stuck", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "a little")
		flush(w)
		<-r.Context().Done()
	})
	endless := func(w io.Writer) {
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 64<<10))
		}
	}
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) { endless(w) })
	mux.HandleFunc("/bomb", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		endless(gzip.NewWriter(w))
	})
	mux.HandleFunc("/packed", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "unpacked")
		_ = z.Close()
	})
	mux.HandleFunc("/brotli", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "br") })
	mux.HandleFunc("/1000", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 1000 {
			w.Header().Set(fmt.Sprintf("X-%d", i), "x")
		}
	})
	mux.HandleFunc("/wide", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 128<<10)) })
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "all of a line\nand less of another")
	})
	mux.HandleFunc("/nonsense", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "220 mail.example ESMTP\r\n\r\n")
		_ = conn.Close()
	})
	return mux
}

// TestAGuestsRequests is what a guest hears of each kind of request and answer.
//
// Source: docs/protocol.md, section 5, HTTP.
func TestAGuestsRequests(t *testing.T) {
	t.Parallel()
	server, other := httptest.NewServer(answers(t)), httptest.NewServer(answers(t))
	t.Cleanup(server.Close)
	t.Cleanup(other.Close)
	secure := httptest.NewUnstartedServer(answers(t))
	secure.Config.ErrorLog = silent()
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	port := func(s *httptest.Server) string { return s.URL[strings.LastIndex(s.URL, ":"):] }
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate()) // of example.com and 127.0.0.1
	trusting, distrusting := sandbox.HTTPConfig{Roots: roots}, sandbox.HTTPConfig{Roots: x509.NewCertPool()}
	resolver := names{
		"example.com": "127.0.0.1", "wrong.test": "127.0.0.1", "local.test": "127.0.0.2", "meta.test": "169.254.169.254",
		"mapped.test": "::ffff:169.254.169.254", "nat.test": "64:ff9b::a9fe:a9fe", "ula.test": "fd00::1", "alibaba.test": "100.100.100.200",
	}
	limits := egress.Limits{ResponseBytes: 4 << 20}
	trusting.Bound(limits, resolver)
	distrusting.Bound(limits, resolver)
	rule := allow(t, server.URL)
	granted := sandbox.Network{
		Allow: append(allow(t, server.URL, secure.URL, "http://127.0.0.1:1"), allow(t, "example.com", "wrong.test", "local.test",
			"meta.test", "mapped.test", "nat.test", "ula.test", "alibaba.test", "169.254.169.254", "[fe80::1]")...),
		Secrets: []sandbox.Secret{{Name: "MODEL", Value: modelKey, Hosts: rule, Headers: []string{"authorization", "x-key"}}},
	}
	get := func(path string, headers ...string) string {
		return "GET " + server.URL + path + "\n" + strings.Join(append(headers, ""), "\n")
	}
	const auth = "Authorization: Bearer ${secret:MODEL}"
	tests := []struct{ name, head, want string }{
		{
			"what is sent", "PUT " + server.URL + "/headers?q=${secret:MODEL}\nX-Key: a\nx-key: b\n",
			`PUT /headers?q=${secret:MODEL} Authorization=[] X-Key=["a" "b"] Accept-Encoding=["gzip"] User-Agent=[]`,
		},
		{"a secret is taken out of a body", get("/echo", auth), "raw Bearer [secret] url Bearer+[secret] json Bearer [secret] end"},
		{"and out of a header", get("/echo", auth), "\nX-Echo: Bearer [secret]\n"},
		{"a secret in another header", get("/headers", "X-Other: ${secret:MODEL}"), `the secret "MODEL" is not granted in the header X-Other`},
		{"a secret that there is not", get("/headers", "X-Key: ${secret:OTHER}"), `the secret "OTHER" is not granted in the header X-Key`},
		{"a secret for another host", "GET " + secure.URL + "/headers\n" + auth + "\n", `the secret "MODEL" is not granted in the header Authorization`},
		{"a secret in a header's name", get("/headers", "${secret:MODEL}: x"), "line 2 of the request's head is no header"},
		{"more than a window", get("/large"), strings.Repeat("x", 1<<20)},
		{"nothing listed", "GET " + other.URL + "/large\n", other.URL + " is not granted: capabilities.network.allow is "},
		{"another port", "GET http://127.0.0.1:9/\n", "http://127.0.0.1:9 is not granted"},
		{"another scheme", "GET " + strings.Replace(server.URL, "http", "https", 1) + "/\n", "is not granted"},
		{"no web", "GET file:///etc/passwd\n", `the scheme "file" is neither http nor https`},
		{"a user in the URL", "GET http://a:b@" + server.URL[7:] + "/\n", "the URL holds a user name"},
		{"no URL", "GET ://\n", "the URL cannot be read"},
		{"no method", server.URL + "\n", "is not METHOD URL"},
		{"a tunnel", "CONNECT " + server.URL + "\n", "the method CONNECT is not supported"},
		{"a tunnel, in lower case", "connect " + server.URL + "\n", "the method connect is not supported"},
		{"a request line of its own", get("/headers?a HTTP/1.0"), "the URL holds a space or a control character: write it as %20"},
		{"a long URL", get("/" + strings.Repeat("x", 9000)), "the URL has 9"},
		{"many headers", get("/", strings.Repeat("A: b\n", 300)), "the request has more than 256 headers"},
		{"a carriage return", get("/", "A: b\rX: c"), "holds a NUL or a carriage return"},
		{"the host's header", get("/", "Host: other"), "the header Host is the host's to set"},
		{"two lengths", get("/headers", "Content-Length: 7", "Transfer-Encoding: chunked"), "the header Transfer-Encoding is the host's to set"},
		{"nobody listens", "GET http://127.0.0.1:1/\n", "the host refuses the connection"},
		{"loopback by name", "GET http://local.test" + port(server) + "/\n", "local.test is at 127.0.0.2, which is no public address"},
		{"link-local by name", "GET http://meta.test/\n", "meta.test is at 169.254.169.254, which is link-local"},
		{"link-local by number, listed", "GET http://169.254.169.254/\n", "which is link-local or serves metadata and is never granted"},
		{"link-local in IPv6, mapped", "GET http://mapped.test/\n", "which is link-local"},
		{"link-local through NAT64", "GET http://nat.test/\n", "which is link-local"},
		{"link-local of IPv6, listed", "GET http://[fe80::1]/\n", "which is link-local"},
		{"private by name", "GET http://ula.test/\n", "ula.test is at fd00::1, which is no public address"},
		{"metadata elsewhere", "GET http://alibaba.test/\n", "serves metadata and is never granted"},
		{"a redirect to what is listed", get("/to?/headers"), "GET /headers"},
		{"a redirect to what is not", get("/to?" + other.URL), "a redirect: " + other.URL + " is not granted"},
		{"a redirect to metadata", get("/to?http://meta.test/latest"), "meta.test is at 169.254.169.254"},
		{"a redirect to a number", get("/to?http://2852039166/"), "a redirect: http://2852039166 is not granted"},
		{"a redirect to a file", get("/to?file:///etc/passwd"), `a redirect: the scheme "file"`},
		{"redirects without an end", get("/to?/to?/to?/to?/to?/to?/to?/to?/headers"), "more than 5 redirects"},
		{"a secret stays at its origin", get("/to?http://example.com"+port(server)+"/headers", auth), "Authorization=[] X-Key=[]"},
		{"a secret goes along within it", get("/to?/headers", "X-Key: ${secret:MODEL}"), `X-Key=["[secret]"]`},
		{"https", "GET " + secure.URL + "/headers\n", "GET /headers"},
		{"https by name", "GET https://example.com" + port(secure) + "/headers\n", "GET /headers"},
		{"another's certificate", "GET https://wrong.test" + port(secure) + "/\n", "certificate is valid for example.com"},
		{"http to https", "GET http://127.0.0.1" + port(secure) + "/\n", "is not granted"},
		{"a body that ends early", get("/short"), "all of a line\nthe response cannot be read: unexpected EOF"},
		{"an endless body", get("/endless"), "the response has more than 4194304 bytes"},
		{"a bomb", get("/bomb"), "the response has more than 4194304 bytes"},
		{"a packed body", get("/packed"), "\nunpacked"},
		{"a coding that nobody asked for", get("/brotli"), `the response has the content encoding "br"`},
		{"1000 headers", get("/1000"), "the response has more than 256 headers"},
		{"wide headers", get("/wide"), "the response's headers have more than 65536 bytes"},
		{"another protocol", get("/nonsense"), "malformed HTTP"},
	}
	module := testenv.WAT(t, "fetch")
	everywhere(t, trusting, func(t *testing.T, r runner) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				s := spec(t, module)
				s.Stdin = []byte(test.head)
				s.Network = granted
				if text := says(t, r, s); !strings.Contains(text, test.want) {
					t.Errorf("the guest said %.400q, want %.300q", text, test.want)
				}
			})
		}
	})
	for path, test := range map[string]struct {
		limits egress.Limits
		want   string
	}{
		"/slow":  {egress.Limits{Head: 100 * time.Millisecond}, "no response came within 100ms"},
		"/stuck": {egress.Limits{Idle: 100 * time.Millisecond}, "nothing more of the response came within 100ms"},
	} {
		impatient := sandbox.HTTPConfig{}
		impatient.Bound(test.limits, resolver)
		everywhere(t, impatient, func(t *testing.T, r runner) {
			s := spec(t, module)
			s.Stdin, s.Network = []byte(get(path)), granted
			if text := says(t, r, s); !strings.Contains(text, test.want) {
				t.Errorf("the guest said %q, want %q", text, test.want)
			}
		})
	}
	everywhere(t, distrusting, func(t *testing.T, r runner) {
		s := spec(t, module)
		s.Stdin = []byte("GET " + secure.URL + "/headers\n")
		s.Network = granted
		if text := says(t, r, s); !strings.Contains(text, "certificate signed by unknown authority") {
			t.Errorf("the guest said %q, want that nobody vouches for the certificate", text)
		}
		s.Network = sandbox.Network{}
		if text := says(t, r, s); !strings.Contains(text, "is not granted: capabilities.network.allow is empty") {
			t.Errorf("the guest said %q, want that nothing is granted", text)
		}
	})
}

// says runs a guest to its end and gives its text, which never holds the secret.
func says(t *testing.T, r runner, s sandbox.Spec) string {
	t.Helper()
	var said recorder
	end := r.Run(t.Context(), s, said.emit)
	if end.Kind != sandbox.Exited || end.Status != 0 {
		t.Errorf("Run = %+v, want exit status 0", end)
	}
	text := said.text()
	if strings.Contains(text+end.Message+strings.Join(end.StderrTail, ""), modelKey) {
		t.Errorf("the guest was told the secret: %.400q", text)
	}
	return text
}

// silent is a server's log that nobody reads: it tells of clients that do not trust it.
func silent() *log.Logger { return log.New(io.Discard, "", 0) }
