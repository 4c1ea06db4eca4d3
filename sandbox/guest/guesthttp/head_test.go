package guesthttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequestHead(t *testing.T) {
	t.Parallel()
	address := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	plain := address("https://a.example/x?q=1")
	for name, test := range map[string]struct {
		request    http.Request
		want, fail string
	}{
		"nothing but a URL":   {http.Request{URL: plain}, "GET https://a.example/x?q=1\n", ""},
		"headers in order":    {http.Request{Method: "POST", URL: plain, Header: http.Header{"B": {"1", "2"}, "A": {"ü"}}}, "POST https://a.example/x?q=1\nA: ü\nB: 1\nB: 2\n", ""},
		"user and fragment":   {http.Request{URL: address("https://me:pass@a.example/#there")}, "GET https://a.example/\n", ""},
		"a path to be quoted": {http.Request{URL: &url.URL{Scheme: "https", Host: "a.example", Path: "/a b\nc"}}, "GET https://a.example/a%20b%0Ac\n", ""},
		"of the connection":   {http.Request{URL: plain, Header: http.Header{"connection": {"close"}, "Te": {"trailers"}, "Host": {"b"}}}, "GET https://a.example/x?q=1\n", ""},
		"the URL's host":      {http.Request{URL: plain, Host: "a.example"}, "GET https://a.example/x?q=1\n", ""},
		"another host":        {http.Request{URL: plain, Host: "b.example"}, "", `the request's Host is "b.example" and its URL's "a.example"`},
		"no URL":              {http.Request{}, "", "the request has no URL"},
		"a method of two":     {http.Request{Method: "GET https://b.example", URL: plain}, "", "holds a space or a line feed"},
		"a query of two":      {http.Request{URL: &url.URL{Scheme: "https", Host: "a.example", RawQuery: "a\nX: y"}}, "", "holds a space or a line feed"},
		"a value of two":      {http.Request{URL: plain, Header: http.Header{"A": {"b\nX: y"}}}, "", `the header "A"`},
		"a return":            {http.Request{URL: plain, Header: http.Header{"A": {"b\rX"}}}, "", `the header "A"`},
		"a name of two":       {http.Request{URL: plain, Header: http.Header{"A: b\nX": {"y"}}}, "", `the header "A: b\nX"`},
		"no name":             {http.Request{URL: plain, Header: http.Header{"": {"y"}}}, "", `the header ""`},
	} {
		got, err := requestHead(&test.request)
		if test.fail != "" {
			if !errors.Is(err, ErrInvalidRequest) || !strings.Contains(err.Error(), test.fail) {
				t.Errorf("%s: requestHead = %v, want an ErrInvalidRequest with %q", name, err, test.fail)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%s: requestHead = %q, %v, want %q", name, got, err, test.want)
		}
	}
}

func TestResponse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		head, method string
		status       string
		length       int64
		header       http.Header
		fails        bool
	}{
		"a status alone":    {"200\n", "GET", "200 OK", -1, http.Header{}, false},
		"an unknown status": {"299\n", "GET", "299", -1, http.Header{}, false},
		"headers":           {"404\na: b: c\nA: d\nContent-Length: 3\n", "GET", "404 Not Found", 3, http.Header{"A": {"b: c", "d"}, "Content-Length": {"3"}}, false},
		"a bad length":      {"200\nContent-Length: -3\n", "GET", "200 OK", -1, http.Header{"Content-Length": {"-3"}}, false},
		"no content":        {"204\n", "GET", "204 No Content", 0, http.Header{}, false},
		"not modified":      {"304\n", "HEAD", "304 Not Modified", -1, http.Header{}, false},
		"nothing":           {"", "GET", "", 0, nil, true},
		"no status":         {"OK\n", "GET", "", 0, nil, true},
		"a line of no name": {"200\nhello\n", "GET", "", 0, nil, true},
	} {
		r := &http.Request{Method: test.method}
		got, err := response(test.head, r)
		if (err != nil) != test.fails {
			t.Errorf("%s: response = %v", name, err)
		}
		if err != nil {
			continue
		}
		_ = got.Body // the caller's to set
		if got.Status != test.status || got.ContentLength != test.length || got.Request != r || !cmp.Equal(got.Header, test.header) {
			t.Errorf("%s: response = %q, length %d, %v", name, got.Status, got.ContentLength, got.Header)
		}
	}
}

func FuzzResponse(f *testing.F) {
	f.Add("200\nA: b\n")
	f.Fuzz(func(t *testing.T, head string) {
		got, err := response(head, &http.Request{})
		if (got == nil) == (err == nil) {
			t.Errorf("response = %v, %v", got, err)
		}
	})
}

// body is a request's body that counts how often it is closed.
type body struct {
	io.Reader
	closed int
	err    error
}

func (b *body) Close() error { b.closed++; return b.err }

func TestRequestBody(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	zeros := func(n int64) io.Reader { return io.LimitReader(zero{}, n) }
	for name, test := range map[string]struct {
		body   *body
		length int64
		want   int
		is     error
		text   string
	}{
		"whole":               {&body{Reader: strings.NewReader("hello")}, -1, 5, nil, ""},
		"as long as it says":  {&body{Reader: strings.NewReader("hello")}, 5, 5, nil, ""},
		"shorter":             {&body{Reader: strings.NewReader("hell")}, 5, 0, nil, "ContentLength is 5 and its body has 4 bytes"},
		"as large as may be":  {&body{Reader: zeros(maxRequestBytes)}, 0, maxRequestBytes, nil, ""},
		"one byte too many":   {&body{Reader: zeros(maxRequestBytes + 1)}, 0, 0, ErrRequestTooLarge, "more than 8388608 bytes"},
		"one that breaks":     {&body{Reader: io.MultiReader(strings.NewReader("a"), errReader{broken})}, 0, 0, broken, ""},
		"one that ends badly": {&body{Reader: strings.NewReader("a"), err: broken}, 0, 0, broken, ""},
	} {
		r := &http.Request{Body: test.body, ContentLength: test.length}
		got, err := requestBody(r)
		switch {
		case test.is == nil && test.text == "":
			if err != nil || len(got) != test.want {
				t.Errorf("%s: requestBody = %d bytes, %v, want %d", name, len(got), err, test.want)
			}
		case err == nil || !strings.Contains(err.Error(), test.text) || test.is != nil && !errors.Is(err, test.is):
			t.Errorf("%s: requestBody = %v, want %v %q", name, err, test.is, test.text)
		}
		if test.body.closed != 1 {
			t.Errorf("%s: the body was closed %d times, want once", name, test.body.closed)
		}
	}
	t.Run("canceled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		stuck, _ := io.Pipe()
		cancel()
		if _, err := requestBody((&http.Request{Body: stuck}).WithContext(ctx)); err == nil {
			t.Error("requestBody has no error for a body that was closed")
		}
	})
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
