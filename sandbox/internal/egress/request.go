package egress

import (
	"bytes"
	"context"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// Request is what a guest sends: a head of lines, "METHOD URL" and then
// "name: value" for each header, and a body.
type Request struct {
	Head string
	Body []byte
}

// Validate checks what can be told of a request without a policy: its bounds, and
// that its head is text.
func (r Request) Validate() *Error {
	switch {
	case len(r.Head) > MaxHeadBytes:
		return refuse(ErrnoTooBig, "the head of the request has %d bytes: at most %d", len(r.Head), MaxHeadBytes)
	case len(r.Body) > MaxRequestBytes:
		return refuse(ErrnoTooBig, "the body of the request has %d bytes: at most %d", len(r.Body), MaxRequestBytes)
	case !utf8.ValidString(r.Head):
		return refuse(ErrnoInvalid, "the head of the request is no UTF-8")
	case strings.ContainsAny(r.Head, "\x00\r"):
		return refuse(ErrnoInvalid, "the head of the request holds a NUL or a carriage return: a line ends with a line feed")
	}
	return nil
}

// dropped are headers that the host sets itself, and which clients set that know
// nothing of it; forbidden are those that would change who is talked to or how.
var (
	dropped = map[string]bool{
		"Accept-Encoding": true, "Content-Length": true, "Connection": true, "Keep-Alive": true, "Proxy-Connection": true,
	}
	forbidden = map[string]bool{
		"Host": true, "Transfer-Encoding": true, "Te": true, "Trailer": true, "Upgrade": true, "Expect": true, "Proxy-Authorization": true,
	}
)

// parse makes a request that the policy allows. The names are of its headers that
// hold a secret.
func (p Policy) parse(ctx context.Context, r Request) (*http.Request, []string, *Error) {
	if problem := r.Validate(); problem != nil {
		return nil, nil, problem
	}
	first, rest, _ := strings.Cut(r.Head, "\n")
	method, address, ok := strings.Cut(first, " ")
	switch {
	case !ok || !httpguts.ValidHeaderFieldName(method):
		return nil, nil, refuse(ErrnoInvalid, "the first line of the request is not METHOD URL")
	case strings.EqualFold(method, http.MethodConnect), strings.EqualFold(method, http.MethodTrace):
		return nil, nil, refuse(ErrnoInvalid, "the method %s is not supported", method)
	case len(address) > MaxURLBytes:
		return nil, nil, refuse(ErrnoTooBig, "the URL has %d bytes: at most %d", len(address), MaxURLBytes)
	case strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return nil, nil, refuse(ErrnoInvalid, "the URL holds a space or a control character: write it as %%20 and the like")
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, nil, refuse(ErrnoInvalid, "the URL cannot be read")
	}
	if problem := p.checkURL(u); problem != nil {
		return nil, nil, problem
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, nil, refuse(ErrnoInvalid, "the request cannot be made: %s", err)
	}
	secret, problem := p.setHeaders(req, u, rest)
	if problem != nil {
		return nil, nil, problem
	}
	if len(r.Head)-len(first) > MaxHeaderBytes {
		return nil, nil, refuse(ErrnoTooBig, "the headers of the request have more than %d bytes", MaxHeaderBytes)
	}
	return req, secret, nil
}

// setHeaders gives a request to u the headers of some lines, with secrets in the place
// of references, and gives the names of those that hold one.
func (p Policy) setHeaders(req *http.Request, u *url.URL, lines string) (secret []string, _ *Error) {
	req.Header["User-Agent"] = nil // unless the guest has one
	count := 0
	for line := range strings.Lines(lines) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		key := textproto.CanonicalMIMEHeaderKey(name)
		switch count++; {
		case count > MaxHeaders:
			return nil, refuse(ErrnoTooBig, "the request has more than %d headers", MaxHeaders)
		case !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value):
			return nil, refuse(ErrnoInvalid, "line %d of the request's head is no header", count+1)
		case forbidden[key]:
			return nil, refuse(ErrnoInvalid, "the header %s is the host's to set", key)
		case dropped[key]:
			continue
		}
		filled, problem := p.fill(u, key, value)
		if problem != nil {
			return nil, problem
		}
		if filled != value {
			secret = append(secret, key)
		}
		req.Header[key] = append(req.Header[key], filled)
	}
	return secret, nil
}
