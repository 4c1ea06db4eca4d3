package guesthttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

func invalid(format string, args ...any) error {
	return &Error{ErrInvalidRequest, fmt.Sprintf(format, args...)}
}

// dropped are the headers of the connection, which is the host's. They are left out
// rather than refused: clients set them out of habit, and net/http's transport leaves some out too.
var dropped = []string{
	"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Te", "Expect", "Connection", "Keep-Alive", "Proxy-Connection",
}

// requestHead is a request's head as the host reads it: a line "METHOD URL", and
// a line for each header. What could end a line early is refused here.
func requestHead(r *http.Request) (string, error) {
	if r.URL == nil {
		return "", invalid("the request has no URL")
	}
	if r.Host != "" && r.Host != r.URL.Host {
		return "", invalid("the request's Host is %q and its URL's %q: the host sets the header Host from the URL", r.Host, r.URL.Host)
	}
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	u := *r.URL
	u.User, u.Fragment, u.RawFragment = nil, "", "" // a client has made a header of the user
	address := u.String()
	if strings.ContainsAny(method+address, " \n") {
		return "", invalid("the method %q or the URL holds a space or a line feed", method)
	}
	var head strings.Builder
	head.WriteString(method + " " + address + "\n")
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if slices.Contains(dropped, http.CanonicalHeaderKey(name)) {
			continue
		}
		for _, value := range r.Header[name] {
			if name == "" || strings.ContainsAny(name, ": \r\n") || strings.ContainsAny(value, "\x00\r\n") {
				return "", invalid("the header %q has a name or a value that no header can have", name)
			}
			head.WriteString(name + ": " + value + "\n")
		}
	}
	return head.String(), nil
}

// requestBody reads a request's body to its end and closes it. A body that does
// not come is closed when the request is canceled.
func requestBody(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	closed := sync.OnceValue(r.Body.Close)
	stop := context.AfterFunc(r.Context(), func() { _ = closed() }) // the read tells of it
	defer stop()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequestBytes+1))
	if len(body) > maxRequestBytes {
		err = &Error{ErrRequestTooLarge, fmt.Sprintf("the body of the request has more than %d bytes", maxRequestBytes)}
	}
	if err == nil && r.ContentLength > 0 && int64(len(body)) != r.ContentLength {
		err = fmt.Errorf("the request's ContentLength is %d and its body has %d bytes", r.ContentLength, len(body))
	}
	if e := closed(); err == nil {
		err = e
	}
	return body, err
}

var errNoHead = errors.New("guesthttp: the host gave a head that is none")

// response is what a head says; its body is the caller's to set.
func response(head string, r *http.Request) (*http.Response, error) {
	first, rest, _ := strings.Cut(head, "\n")
	status, err := strconv.Atoi(first)
	if err != nil {
		return nil, errNoHead
	}
	header := http.Header{}
	for line := range strings.Lines(rest) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if !ok {
			return nil, errNoHead
		}
		header.Add(name, strings.TrimSpace(value))
	}
	length := int64(-1)
	if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		length = n
	}
	if r.Method != http.MethodHead && (status == http.StatusNoContent || status == http.StatusNotModified) {
		length = 0
	}
	return &http.Response{
		Status: strings.TrimSpace(first + " " + http.StatusText(status)), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, ContentLength: length, Request: r,
	}, nil
}
