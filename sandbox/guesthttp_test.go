package sandbox_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/testenv"
)

// requestsSpec is the capsule of requests with a task and a grant of one server.
func requestsSpec(t *testing.T, server *httptest.Server, task string) sandbox.Spec {
	t.Helper()
	s := spec(t, testenv.GoCapsule(t, "requests"))
	s.Stdin = []byte(task)
	s.Network = sandbox.Network{Allow: allow(t, server.URL)}
	return s
}

// patiently lets a capsule with net/http compile beside other tests.
func patiently(c *sandbox.ProcessConfig) { c.CompileTimeout = 10 * time.Minute }

// together answers nobody before n have asked.
type together struct {
	n    int
	mu   sync.Mutex
	here int
	all  chan struct{}
}

func newTogether(n int) *together { return &together{n: n, all: make(chan struct{})} }

func (b *together) meet(r *http.Request) {
	b.mu.Lock()
	if b.here++; b.here == b.n {
		close(b.all)
	}
	b.mu.Unlock()
	select {
	case <-b.all:
	case <-r.Context().Done():
	}
}

// TestGoTransport has a Go guest make requests with the SDK, in this process and
// in a sandbox process.
func TestGoTransport(t *testing.T) {
	t.Parallel()
	var server *httptest.Server
	eight, sixteen := sync.Map{}, sync.Map{} // a meeting for each run: its capsule's name in the path
	meeting := func(m *sync.Map, r *http.Request, n int) {
		b, _ := m.LoadOrStore(r.URL.Path, newTogether(n))
		b.(*together).meet(r)
	}
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		flush := w.(http.Flusher).Flush
		first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch first {
		case "plain":
			w.Header().Add("X-Test", "a")
			w.Header().Add("X-Test", "b: c")
			fmt.Fprint(w, "hello")
		case "headers":
			fmt.Fprint(w, r.Header["X-Two"], r.Header["X-Smuggled"])
		case "count":
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, "%s %d", r.Method, n)
		case "none":
			w.WriteHeader(http.StatusNoContent)
		case "fault":
			w.WriteHeader(http.StatusTeapot)
		case "away":
			http.Redirect(w, r, "/plain", http.StatusSeeOther)
		case "early":
			w.Header().Set("Link", "</x>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Trailer", "X-Late")
			fmt.Fprint(w, "hello")
			flush()
			w.Header().Set("X-Late", "1")
		case "torn":
			fmt.Fprint(w, "half")
			flush()
			panic(http.ErrAbortHandler)
		case "eight":
			meeting(&eight, r, 8)
			fmt.Fprint(w, r.URL.Query().Get("n"))
		case "sixteen":
			meeting(&sixteen, r, 16)
			fmt.Fprint(w, r.URL.Query().Get("n"))
		case "silent":
			if strings.HasSuffix(r.URL.Path, "/piece") {
				fmt.Fprint(w, "a piece")
				flush()
			}
			_, _ = io.Copy(io.Discard, r.Body) // or the server does not see that the guest is gone
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close) // which waits for the requests: all must have ended
	engine, processes := newEngine(t), newSupervisor(t, patiently)
	for where, run := range map[string]func(sandbox.Spec, func(protocol.Event)) sandbox.Ending{
		"here": func(s sandbox.Spec, emit func(protocol.Event)) sandbox.Ending {
			return engine.Run(t.Context(), s, emit)
		},
		"in a process": func(s sandbox.Spec, emit func(protocol.Event)) sandbox.Ending {
			return processes.Run(t.Context(), s, emit)
		},
	} {
		for name, test := range map[string]struct {
			task, url string
			want      []string
		}{
			"a response":             {"get", "/plain", []string{`200 OK, length 5, X-Test ["a" "b: c"], body "hello", <nil>`}},
			"the head only":          {"head", "/plain", []string{`200 OK, length 5, X-Test ["a" "b: c"], body "", <nil>`}},
			"no content":             {"get", "/none", []string{`204 No Content, length 0, X-Test [], body "", <nil>`}},
			"another status":         {"get", "/fault", []string{`418 I'm a teapot, length 0, X-Test [], body "", <nil>`}},
			"a redirect":             {"get", "/away", []string{`200 OK, length 5, X-Test ["a" "b: c"], body "hello", <nil>`}},
			"1xx and trailers":       {"get", "/early", []string{`200 OK, length -1, X-Test [], body "hello", <nil>`}},
			"a body":                 {"post 8388608", "/count", []string{`body "POST 8388608", <nil>`}},
			"a body too large":       {"post 8388609", "/count", []string{"the body of the request has more than 8388608 bytes\n", "it is too large"}},
			"a body of no length":    {"pipe 1000", "/count", []string{`body "POST 6000", <nil>`}},
			"a body that is stuck":   {"stuck", "/count", []string{"it is canceled"}},
			"a torn response":        {"get", "/torn", []string{`body "half", the response cannot be read: unexpected EOF`}},
			"eight side by side":     {"side 8", "/eight/" + where, []string{"8 answered\n"}},
			"more than are allowed":  {"side 40", "/sixteen/" + where, []string{"40 answered\n"}},
			"bodies never closed":    {"unclosed 40", "/plain", []string{"all done\n"}},
			"bodies left alone":      {"leave 40", "/silent/piece", []string{"left\n"}},
			"a cancel":               {"cancel", "/silent/piece", []string{"canceled true\n"}},
			"a deadline":             {"deadline 50", "/silent", []string{"deadline true\n"}},
			"a client's timeout":     {"timeout 50", "/silent", []string{"timeout true\n"}},
			"a body that is closed":  {"close", "/silent/piece", []string{"closed: guesthttp: read on a closed response body\n"}},
			"computing meanwhile":    {"compute 1000", "/plain", []string{"counted\n", `body "hello"`}},
			"another Host":           {"host", "/plain", []string{`the request's Host is "other.example"`, "it is invalid"}},
			"a connection's headers": {"keep", "/headers", []string{`body "[one two] []", <nil>`}},
			"a header in a header":   {"smuggle", "/headers", []string{`the header "X-A" has a name or a value that no header can have`, "it is invalid"}},
			"a scheme of its own":    {"get", "ftp://127.0.0.1/", []string{`the scheme "ftp" is neither http nor https`, "it is "}},
			"a host without a grant": {"get", "http://10.0.0.1/", []string{"http://10.0.0.1 is not granted", "it is not granted\n", "it is permission\n"}},
		} {
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				url := test.url
				if strings.HasPrefix(url, "/") {
					url = server.URL + strings.ReplaceAll(url, " ", "-")
				}
				var said recorder
				end := run(requestsSpec(t, server, test.task+" "+url), said.emit)
				if end.Kind != sandbox.Exited || end.Status != 0 {
					t.Fatalf("the guest ended %s %s: %q", end.Kind, end.Message, end.StderrTail)
				}
				for _, want := range test.want {
					if !strings.Contains(said.text(), want) {
						t.Errorf("the guest said %q, want %q", said.text(), want)
					}
				}
			})
		}
	}
}

// TestGoTransportStreams sends the next piece of a stream only when the guest has
// said the one before, in eight streams side by side.
func TestGoTransportStreams(t *testing.T) {
	t.Parallel()
	const streams, pieces = 8, 50
	heard := make([]chan struct{}, streams)
	for i := range heard {
		heard[i] = make(chan struct{}, 1)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Query().Get("n"))
		if err != nil {
			t.Error(err)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range pieces {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-heard[n]:
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	processes := newSupervisor(t, patiently)
	said := make([]strings.Builder, streams)
	end := processes.Run(t.Context(), requestsSpec(t, server, fmt.Sprint("streams ", streams, " ", server.URL)), func(e protocol.Event) {
		var n int
		if _, err := fmt.Sscanf(e.Text, "%d:", &n); err == nil {
			said[n].WriteString(e.Text)
			heard[n] <- struct{}{}
		}
	})
	if end.Kind != sandbox.Exited || end.Status != 0 {
		t.Fatalf("the guest ended %s %s: %q", end.Kind, end.Message, end.StderrTail)
	}
	for n := range said {
		var want strings.Builder
		for i := range pieces {
			fmt.Fprintf(&want, "%d:data: %d\n\n", n, i)
		}
		if said[n].String() != want.String() {
			t.Errorf("stream %d is %q, want a text for each piece", n, said[n].String())
		}
	}
}

// TestGoTransportStopsWhenAsked cancels a task whose guest waits for a response.
func TestGoTransportStopsWhenAsked(t *testing.T) {
	t.Parallel()
	canceled := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(canceled)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	processes := newSupervisor(t, patiently)
	s := requestsSpec(t, server, "stop "+server.URL)
	s.Canceled = canceled
	var said recorder
	if end := processes.Run(t.Context(), s, said.emit); end.Kind != sandbox.Exited || said.text() != "stopped true\n" {
		t.Errorf("the guest ended %s %s and said %q", end.Kind, end.Message, said.text())
	}
}

// TestGoTransportStopsInAnEndlessBody cancels a task whose guest reads without a pause.
func TestGoTransportStopsInAnEndlessBody(t *testing.T) {
	t.Parallel()
	canceled := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for n, err := 0, error(nil); err == nil; n++ {
			if n == 100 {
				close(canceled)
			}
			_, err = w.Write(make([]byte, 64<<10))
		}
	}))
	t.Cleanup(server.Close)
	s := requestsSpec(t, server, "endless "+server.URL)
	s.Canceled = canceled
	var said recorder
	end := newSupervisor(t, patiently).Run(t.Context(), s, said.emit)
	if end.Kind != sandbox.Exited || said.text() != "stopped true\n" {
		t.Errorf("the guest ended %s %s and said %q", end.Kind, end.Message, said.text())
	}
}
