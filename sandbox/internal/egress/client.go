package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Resolver looks names up; [net.DefaultResolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config is what the runs of one host share.
type Config struct {
	Roots    *x509.CertPool // nil: the system's
	Resolver Resolver       // nil: the system's
	Limits   Limits
}

// Sink is given a response. Its methods are called in order; an error ends the
// request with it.
type Sink interface {
	// Head is the status and the headers: "200\n", then "name: value\n" for each.
	Head(head string) error
	// Body is the next piece, valid until it returns. It blocks while the guest
	// does not read.
	Body(piece []byte) error
}

// Client makes the requests of one run. It is safe for concurrent use.
type Client struct {
	cfg       Config
	policy    Policy
	transport *http.Transport
	conns     *conns
}

// NewClient makes a client without connections. Close it.
func NewClient(cfg Config, policy Policy) *Client {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	c := &Client{cfg: cfg, policy: policy, conns: newConns()}
	c.transport = &http.Transport{
		// No proxy: it would dial for us, and not what was judged.
		DialContext:            c.dial,
		TLSClientConfig:        &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    30 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           MaxInFlight,
		MaxConnsPerHost:        MaxInFlight,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: MaxHeaderBytes,
	}
	return c
}

// Close drops the connections, also those that are being made; every Do has
// returned.
func (c *Client) Close() {
	c.transport.CloseIdleConnections()
	c.conns.close()
}

// Do makes a request and gives its response to a sink. It blocks until the whole
// response was given, or ctx ends. The error is an [*Error], or the sink's.
func (c *Client) Do(ctx context.Context, r Request, sink Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, secret, problem := c.policy.parse(ctx, r)
	if problem != nil {
		return problem
	}
	trail := &asked{urls: []*url.URL{req.URL}, secret: secret}
	if err := c.do(ctx, cancel, req, trail, sink); err != nil {
		var sunk *sinkError
		if errors.As(err, &sunk) {
			return sunk.err
		}
		e := *classify(ctx, err)
		e.Sentence = clip(c.policy.redactor(trail.urls).text(e.Sentence))
		return &e
	}
	return nil
}

// sinkError is an error of a sink's own.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }

// asked is what a request was made of.
type asked struct {
	urls   []*url.URL // its own, and those that redirects led to
	secret []string   // the headers that hold a secret
}

func (c *Client) do(ctx context.Context, cancel context.CancelCauseFunc, req *http.Request, trail *asked, sink Sink) error {
	l := c.cfg.Limits
	client := http.Client{Transport: c.transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		trail.urls = append(trail.urls, next.URL)
		return c.redirect(next, via, trail.secret)
	}}
	head := time.AfterFunc(l.Head, func() {
		cancel(refuse(ErrnoTimedOut, "no response came within %s", l.Head))
	})
	response, err := client.Do(bounded(req, cancel))
	head.Stop()
	if err != nil {
		if wideHeaders(err) {
			return refuse(ErrnoMessageSize, "the response's headers have more than %d bytes", MaxHeaderBytes)
		}
		return err
	}
	defer func() { _ = response.Body.Close() }() // what it has is read
	clean := c.policy.redactor(trail.urls)
	text, problem := c.head(response, clean)
	if problem != nil {
		return problem
	}
	if err := sink.Head(text); err != nil {
		return &sinkError{err}
	}
	return c.body(cancel, response.Body, clean, sink)
}

// wideHeaders reports whether a response's headers were over MaxHeaderBytes. net/http
// has words for it, of HTTP/1 and of HTTP/2, and no error value. Where HTTP/2 says a
// protocol error instead (one header alone is over it, or twice as much came), so do we.
func wideHeaders(err error) bool {
	return strings.Contains(err.Error(), "server response headers exceeded") ||
		strings.Contains(err.Error(), "response header list larger than advertised limit")
}

// maxTries is how many connections a request and its redirects may use up: a host may
// end each one before it answers, and the transport tries again for ever.
const maxTries = 16

// bounded ends a request that uses up too many connections.
func bounded(req *http.Request, cancel context.CancelCauseFunc) *http.Request {
	var tries atomic.Int32 // redirects are followed on one goroutine, and a connection may come on another
	return req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		if tries.Add(1) > maxTries {
			cancel(refuse(ErrnoProtocol, "the request used up %d connections without an answer", maxTries))
		}
	}}))
}

// credentials are the headers that never go to another origin.
var credentials = []string{"Authorization", "Cookie", "Cookie2", "X-Api-Key", "Api-Key", "Www-Authenticate", "Referer"}

// redirect judges where a redirect leads, and leaves secrets behind.
func (c *Client) redirect(next *http.Request, via []*http.Request, secret []string) error {
	if len(via) > MaxRedirects {
		return refuse(ErrnoProtocol, "more than %d redirects", MaxRedirects)
	}
	if problem := c.policy.checkURL(next.URL); problem != nil {
		problem.Sentence = "a redirect: " + problem.Sentence
		return problem
	}
	origin := func(r *http.Request) string { return r.URL.Scheme + "://" + strings.ToLower(r.URL.Host) }
	elsewhere := func(r *http.Request) bool { return origin(r) != origin(via[0]) }
	if !elsewhere(next) && !slices.ContainsFunc(via, elsewhere) {
		return nil
	}
	for _, name := range slices.Concat(credentials, secret) {
		next.Header.Del(name)
	}
	return nil
}

// head is a response's head as the guest reads it.
func (c *Client) head(r *http.Response, clean *redactor) (string, *Error) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return "", refuse(ErrnoProtocol, "the response has the content encoding %q, which nobody asked for", clip(coding))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d\n", r.StatusCode)
	count := 0
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if name == "Content-Length" && len(clean.values) > 0 && r.Request.Method != http.MethodHead {
			continue // it may be another when secrets were taken out
		}
		for _, value := range r.Header[name] {
			if count++; count > MaxHeaders {
				return "", refuse(ErrnoMessageSize, "the response has more than %d headers", MaxHeaders)
			}
			line := clean.text(name + ": " + value)
			text.WriteString(strings.Map(oneLine, line) + "\n")
		}
	}
	return text.String(), nil
}

func oneLine(r rune) rune {
	if r == '\n' || r == '\r' || r == 0 {
		return ' '
	}
	return r
}

// body gives a body to the sink in pieces as they come.
func (c *Client) body(cancel context.CancelCauseFunc, body io.Reader, clean *redactor, sink Sink) error {
	l := c.cfg.Limits
	idle := time.AfterFunc(l.Idle, func() {
		cancel(refuse(ErrnoTimedOut, "nothing more of the response came within %s", l.Idle))
	})
	defer idle.Stop()
	buffer := make([]byte, 32<<10)
	for total := int64(0); ; {
		idle.Reset(l.Idle)
		n, err := body.Read(buffer)
		idle.Stop() // a guest that does not read is not the server's fault
		if total += int64(n); total > l.ResponseBytes {
			return refuse(ErrnoMessageSize, "the response has more than %d bytes", l.ResponseBytes)
		}
		piece := clean.write(buffer[:n])
		if err == io.EOF {
			piece = append(slices.Clip(piece), clean.rest()...)
		}
		if len(piece) > 0 {
			if err := sink.Body(piece); err != nil {
				return &sinkError{err}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
