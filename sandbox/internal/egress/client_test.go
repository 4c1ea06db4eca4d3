package egress

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"starling/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer keeps a response.
type answer struct{ head, body strings.Builder }

func (a *answer) Head(head string) error { a.head.WriteString(head); return nil }
func (a *answer) Body(p []byte) error    { a.body.Write(p); return nil }

func allow(t *testing.T, entries ...string) []protocol.NetworkRule {
	t.Helper()
	var rules []protocol.NetworkRule
	for _, e := range entries {
		rule, err := protocol.ParseNetworkRule(e)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, rule)
	}
	return rules
}

func newClient(t *testing.T, cfg Config, p Policy) *Client {
	t.Helper()
	c := NewClient(cfg, p)
	t.Cleanup(c.Close)
	return c
}

// lookups is a resolver that answers each time with the next addresses, and with the
// last ones from then on.
type lookups struct {
	answers [][]string
	asked   atomic.Int64
}

func (l *lookups) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	n := int(l.asked.Add(1)) - 1
	var addrs []netip.Addr
	for _, a := range l.answers[min(n, len(l.answers)-1)] {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs, nil
}

// listenOn serves on an address of loopback and a port that is the same for all.
func listenOn(t *testing.T, address, port string, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close() // another takes its place
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

// TestANameCannotBeRebound: a name is resolved once for a connection, what was judged
// is what is dialled, and a later answer is judged anew.
func TestANameCannotBeRebound(t *testing.T) {
	t.Parallel()
	port := listenOn(t, "127.0.0.1", "0", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // the next request dials
		_, _ = io.WriteString(w, "the listed one")
	})
	listenOn(t, "127.0.0.2", port, func(http.ResponseWriter, *http.Request) { t.Error("the other one was called") })
	policy := Policy{Allow: allow(t, "rebind.test", "127.0.0.1")}
	for name, test := range map[string]struct {
		answers [][]string
		want    []string // of one request after the other
	}{
		"another answer the second time": {[][]string{{"127.0.0.1"}, {"127.0.0.2"}}, []string{"the listed one", "rebind.test is at 127.0.0.2, which is no public address"}},
		"link-local the second time":     {[][]string{{"127.0.0.1"}, {"169.254.169.254"}}, []string{"the listed one", "which is link-local"}},
		"a bad one among good ones":      {[][]string{{"127.0.0.1", "127.0.0.2"}}, []string{"rebind.test is at 127.0.0.2"}},
		"a good one after a dead one":    {[][]string{{"127.0.0.1", "127.0.0.1"}}, []string{"the listed one"}},
		"no address":                     {[][]string{{}}, []string{`the host "rebind.test" has no address`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resolver := &lookups{answers: test.answers}
			c := newClient(t, Config{Resolver: resolver}, policy)
			for i, want := range test.want {
				var a answer
				err := c.Do(t.Context(), Request{Head: "GET http://rebind.test:" + port + "/\n"}, &a)
				if got := fmt.Sprint(a.body.String(), err); !strings.Contains(got, want) {
					t.Errorf("request %d: %q, want %q", i, got, want)
				}
				if n := resolver.asked.Load(); int(n) != i+1 {
					t.Errorf("the name was resolved %d times for %d requests", n, i+1)
				}
			}
		})
	}
}

// TestWhatARedirectTakesAlong: to another origin no credentials, and none after the
// way back; the body and other headers go along.
func TestWhatARedirectTakesAlong(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789"
	show := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %q %q %q %q %q %q", r.Method, r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.Header.Get("X-Secret"),
			r.Header.Get("X-Plain"), r.Referer(), body)
	}
	var away string
	mux := http.NewServeMux()
	mux.HandleFunc("/show", show)
	mux.HandleFunc("/within", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/show", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, away+"/show", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/boomerang", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, away+"/to?http://"+r.Host+"/show", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/see", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/show", http.StatusSeeOther) })
	home := httptest.NewServer(mux)
	t.Cleanup(home.Close)
	far := http.NewServeMux()
	far.HandleFunc("/show", show)
	far.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.RawQuery, http.StatusTemporaryRedirect)
	})
	abroad := httptest.NewServer(far)
	t.Cleanup(abroad.Close)
	away = abroad.URL
	c := newClient(t, Config{}, Policy{
		Allow:   allow(t, home.URL, abroad.URL),
		Secrets: []Secret{{Name: "A", Value: value, Hosts: allow(t, home.URL)}},
	})
	for path, want := range map[string]string{
		"/show":      `POST "Basic eA==" "c=1" "[secret]" "p" "" "body"`,
		"/within":    `POST "Basic eA==" "c=1" "[secret]" "p" "` + home.URL + `/within" "body"`,
		"/see":       `GET "Basic eA==" "c=1" "[secret]" "p" "` + home.URL + `/see" ""`,
		"/away":      `POST "" "" "" "p" "" "body"`,
		"/boomerang": `POST "" "" "" "p" "" "body"`,
	} {
		var a answer
		err := c.Do(t.Context(), Request{
			Head: "POST " + home.URL + path + "\nAuthorization: Basic eA==\nCookie: c=1\nX-Secret: ${secret:A}\nX-Plain: p\n", Body: []byte("body"),
		}, &a)
		if got := a.body.String(); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", path, got, err, want)
		}
	}
}

// TestWhoseAnswersAreSearched: a host that a secret is bound to, however it is called
// and whatever it was sent before; no other, for what is taken out of its echo of a
// guess would tell that the guess is right.
func TestWhoseAnswersAreSearched(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789"
	echo := func(w http.ResponseWriter, r *http.Request) {
		guess, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/broken" {
			w.Header().Set("Content-Length", "1000")
		}
		w.Header().Set("X-Echo", string(guess))
		_, _ = w.Write(guess)
	}
	port := listenOn(t, "127.0.0.1", "0", echo)
	bound, other := "http://127.0.0.1:"+port, "http://127.0.0.2:"+listenOn(t, "127.0.0.2", port, echo)
	c := newClient(t, Config{}, Policy{
		Allow:   allow(t, bound, other),
		Secrets: []Secret{{Name: "A", Value: value, Hosts: allow(t, "https://127.0.0.1:1")}},
	})
	ask := func(url, guess string) (string, error) {
		var a answer
		err := c.Do(t.Context(), Request{Head: "POST " + url + "\n", Body: []byte(guess)}, &a)
		_, header, _ := strings.Cut(a.head.String(), "X-Echo: ")
		header, _, _ = strings.Cut(header, "\n")
		return header + " " + a.body.String(), err
	}
	for url, want := range map[string]string{bound: "[secret] [secret]", other: value + " " + value} {
		if got, err := ask(url, value); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", url, got, err, want)
		}
	}
	for _, url := range []string{bound, other} {
		right, err := ask(url+"/broken", "sk-012")
		wrong, err2 := ask(url+"/broken", "sk-013")
		if err == nil || err2 == nil || right != strings.ReplaceAll(wrong, "3", "2") {
			t.Errorf("%s: %q (%v) for the beginning of the secret, %q (%v) for another", url, right, err, wrong, err2)
		}
	}
}

// TestCloseEndsWhatIsBeingDialled has a server that takes connections and never
// speaks TLS with them, and requests that were canceled.
func TestCloseEndsWhatIsBeingDialled(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken, ended := make(chan struct{}, 3), make(chan error, 3)
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				taken <- struct{}{}
				_, err := io.Copy(io.Discard, conn)
				ended <- errors.Join(err, conn.Close())
			})
		}
	})
	address := listener.Addr().String()
	c := NewClient(Config{}, Policy{Allow: allow(t, address)})
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		group.Go(func() {
			err := c.Do(ctx, Request{Head: "GET https://" + address + "/\n"}, &answer{})
			var problem *Error
			if !errors.As(err, &problem) || problem.Errno != ErrnoCanceled {
				t.Errorf("Do = %v, want canceled", err)
			}
		})
	}
	for range 3 {
		<-taken
	}
	cancel()
	c.Close()
	for range 3 {
		<-ended
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	group.Wait()
	if err := c.Do(t.Context(), Request{Head: "GET https://" + address + "/\n"}, &answer{}); err == nil {
		t.Error("a closed client makes a request")
	}
}

// TestConnectionsAreBounded has more connections asked for than a run may have.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	c := newConns()
	var places []connPlace
	for range maxConns {
		place, err := c.enter()
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, place)
	}
	if _, err := c.enter(); err == nil || !strings.Contains(err.Error(), "too many connections") {
		t.Errorf("enter = %v, want too many", err)
	}
	if _, err := places[0].take(nil, errors.New("nobody listens")); err == nil {
		t.Error("take = nil, want the error")
	}
	one, other := net.Pipe()
	defer other.Close()
	conn, err := places[1].take(one, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time counts nothing
		_ = conn.Close()
	}
	for range 2 {
		if _, err := c.enter(); err != nil {
			t.Errorf("enter = %v, want a place", err)
		}
	}
	if _, err := c.enter(); err == nil {
		t.Error("enter = nil, want too many")
	}
}

// http2Server speaks HTTP/2 by hand: serve has each connection, after the client's
// preface and with settings sent, until it returns.
func http2Server(t *testing.T, serve func(*http2.Framer)) (url string, roots *x509.CertPool, accepted *atomic.Int32) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.EnableHTTP2 = true
	server.StartTLS() // for its certificate
	certificate := server.TLS.Certificates[0]
	roots = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	server.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int32)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				framer := http2.NewFramer(conn, conn)
				_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
				_ = framer.WriteSettings()
				serve(framer)
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	return "https://" + listener.Addr().String(), roots, accepted
}

// readFrames reads frames until the connection ends, or one of a kind has come.
func readFrames(framer *http2.Framer, until http2.FrameType) error {
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		if frame.Header().Type == until {
			return nil
		}
	}
}

// TestAHostThatEndsEachConnection before it answers, and says that the request may be
// made again, is not asked for ever.
func TestAHostThatEndsEachConnection(t *testing.T) {
	t.Parallel()
	url, roots, accepted := http2Server(t, func(framer *http2.Framer) {
		_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
		_ = readFrames(framer, http2.FrameGoAway)
	})
	c := newClient(t, Config{Roots: roots}, Policy{Allow: allow(t, url)})
	var got *Error
	if err := c.Do(t.Context(), Request{Head: "GET " + url + "/\n"}, new(answer)); !errors.As(err, &got) || got.Errno != ErrnoProtocol ||
		!strings.Contains(got.Sentence, "used up 16 connections without an answer") {
		t.Errorf("Do() = %v", err)
	}
	if n := accepted.Load(); n > 2*maxTries { // some more may be under way
		t.Errorf("%d connections were made", n)
	}
}

// TestWideHeaders are a response that is too large, over HTTP/1 and HTTP/2.
func TestWideHeaders(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if (r.ProtoMajor == 2) != http2 {
					t.Errorf("the request came by %s", r.Proto)
				}
				for i := range 100 {
					w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", MaxHeaderBytes/100))
				}
			}))
			server.EnableHTTP2 = http2
			server.StartTLS()
			t.Cleanup(server.Close)
			roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			c := newClient(t, Config{Roots: roots}, Policy{Allow: allow(t, server.URL)})
			var got *Error
			if err := c.Do(t.Context(), Request{Head: "GET " + server.URL + "/\n"}, new(answer)); !errors.As(err, &got) ||
				got.Errno != ErrnoMessageSize || got.Sentence != "the response's headers have more than 65536 bytes" {
				t.Errorf("Do() = %v, want that the headers are too large", err)
			}
		})
	}
}

// TestFramesThatHoldNothing come without an end, and are no pieces of a body: the
// request ends as if nothing came, and then the connection as one that is not used.
func TestFramesThatHoldNothing(t *testing.T) {
	t.Parallel()
	const stream = 1 // the client's first
	head := func(framer *http2.Framer, headers ...hpack.HeaderField) error {
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for _, field := range headers {
			if err := encoder.WriteField(field); err != nil {
				return err
			}
		}
		return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	}
	var packed bytes.Buffer // a gzip header, and blocks that unpack to nothing
	if z := gzip.NewWriter(&packed); z.Flush() != nil {
		t.Fatal("no gzip header")
	}
	beginning := packed.Len() // each flush is one more such block
	empty := []byte{0, 0, 0, 0xff, 0xff}
	ok := hpack.HeaderField{Name: ":status", Value: "200"}
	gzipped := hpack.HeaderField{Name: "content-encoding", Value: "gzip"}
	answered := func(framer *http2.Framer) error {
		return errors.Join(head(framer, ok), framer.WriteData(stream, false, []byte("x")))
	}
	for name, test := range map[string]struct {
		begin, again func(*http2.Framer) error
		body, want   string
	}{
		"data": {
			answered, func(f *http2.Framer) error { return f.WriteData(stream, false, nil) },
			"x", "nothing more of the response came within 500ms",
		},
		"padding": {
			answered, func(f *http2.Framer) error { return f.WriteDataPadded(stream, false, nil, make([]byte, 100)) },
			"x", "nothing more of the response came within 500ms",
		},
		"pings": {
			answered, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) },
			"x", "nothing more of the response came within 500ms",
		},
		"data that unpacks to nothing": {
			func(f *http2.Framer) error {
				return errors.Join(head(f, ok, gzipped), f.WriteData(stream, false, packed.Bytes()[:beginning]))
			},
			func(f *http2.Framer) error { return f.WriteData(stream, false, empty) },
			"", "nothing more of the response came within 500ms",
		},
		"pings and no head": {
			func(*http2.Framer) error { return nil }, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) },
			"", "no response came within 2s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			gone := make(chan struct{}, maxTries)
			url, roots, _ := http2Server(t, func(framer *http2.Framer) {
				defer func() { gone <- struct{}{} }()
				if readFrames(framer, http2.FrameHeaders) != nil || test.begin(framer) != nil {
					return
				}
				var reading sync.WaitGroup
				reading.Go(func() { _ = readFrames(framer, http2.FrameGoAway) })
				for test.again(framer) == nil {
					sent.Add(1)
				}
				reading.Wait()
			})
			limits := Limits{Head: time.Minute, Idle: 500 * time.Millisecond}
			if strings.HasPrefix(test.want, "no response") {
				limits.Head = 2 * time.Second // which the connection is made in, too
			}
			c := newClient(t, Config{Roots: roots, Limits: limits}, Policy{Allow: allow(t, url)})
			c.transport.IdleConnTimeout = 100 * time.Millisecond
			var a answer
			var got *Error
			err := c.Do(t.Context(), Request{Head: "GET " + url + "/\n"}, &a)
			if sent.Load() == 0 {
				t.Error("no such frame came")
			}
			if !errors.As(err, &got) || got.Errno != ErrnoTimedOut || got.Sentence != test.want || a.body.String() != test.body {
				t.Errorf("Do() = %v with the body %q, want %q and %q", err, a.body.String(), test.want, test.body)
			}
			<-gone
		})
	}
}
