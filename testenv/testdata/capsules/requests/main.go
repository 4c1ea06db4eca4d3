// Command requests makes requests with the SDK's transport. The first word of its
// task says how, the last is a URL; what came of it is its text.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"starling/sandbox/guest"
	"starling/sandbox/guest/guesthttp"
)

func main() {
	task, err := guest.Task()
	words := strings.Fields(task)
	if err != nil || len(words) < 2 || behaviours[words[0]] == nil {
		fmt.Fprintln(os.Stderr, "no such behaviour:", task, err)
		os.Exit(2)
	}
	n := 0
	if len(words) > 2 {
		n, _ = strconv.Atoi(words[1])
	}
	behaviours[words[0]](words[len(words)-1], n)
}

var (
	client = guesthttp.NewClient()
	say    = func(format string, args ...any) { guest.TextDelta(fmt.Sprintf(format, args...) + "\n") }
)

// behaviours are given the URL and the number before it.
var behaviours = map[string]func(url string, n int){
	// get prints a response.
	"get": func(url string, _ int) { show(client.Get(url)) },
	// head asks for the head only.
	"head": func(url string, _ int) { show(client.Head(url)) },
	// post sends N bytes.
	"post": func(url string, n int) {
		show(client.Post(url, "text/plain", bytes.NewReader(make([]byte, n))))
	},
	// pipe sends a body whose end is not known before.
	"pipe": func(url string, n int) {
		r, w := io.Pipe()
		go func() {
			for range n {
				_, _ = w.Write([]byte("piece "))
			}
			_ = w.Close()
		}()
		show(client.Post(url, "text/plain", r))
	},
	// stuck has a body that never comes and a request that is canceled.
	"stuck": func(url string, _ int) {
		ctx, cancel := context.WithCancel(context.Background())
		r, _ := io.Pipe()
		go cancel()
		show(client.Do(request(ctx, http.MethodPost, url, r)))
	},
	// side makes N requests side by side and prints how many were answered well.
	"side": func(url string, n int) {
		var group sync.WaitGroup
		var mu sync.Mutex
		well := 0
		for i := range n {
			group.Go(func() {
				answer, err := client.Get(url + "?n=" + strconv.Itoa(i))
				if err != nil {
					say("%d: %v", i, err)
					return
				}
				defer answer.Body.Close()
				body, err := io.ReadAll(answer.Body)
				if err != nil || string(body) != strconv.Itoa(i) {
					say("%d: %q, %v", i, body, err)
					return
				}
				mu.Lock()
				well++
				mu.Unlock()
			})
		}
		group.Wait()
		say("%d answered", well)
	},
	// streams reads N streams side by side and says each piece as it comes.
	"streams": func(url string, n int) {
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				answer, err := client.Get(url + "?n=" + strconv.Itoa(i))
				if err != nil {
					say("%d: %v", i, err)
					return
				}
				defer answer.Body.Close()
				buffer := make([]byte, 4096)
				for {
					n, err := answer.Body.Read(buffer)
					if n > 0 {
						guest.TextDelta(fmt.Sprintf("%d:%s", i, buffer[:n]))
					}
					if err != nil {
						say("%d ends with %v", i, err)
						return
					}
				}
			})
		}
		group.Wait()
	},
	// unclosed makes N requests one after another and reads the bodies without
	// closing them.
	"unclosed": func(url string, n int) {
		for i := range n {
			answer, err := client.Get(url + "?n=" + strconv.Itoa(i))
			if err != nil {
				say("%d: %v", i, err)
				return
			}
			_, _ = io.Copy(io.Discard, answer.Body)
		}
		say("all done")
	},
	// leave cancels N requests one after another and does not look at their bodies.
	"leave": func(url string, n int) {
		for range n {
			ctx, cancel := context.WithCancel(context.Background())
			if _, err := client.Do(request(ctx, http.MethodGet, url, nil)); err != nil {
				cancel()
				say("%v", err)
				return
			}
			cancel()
		}
		say("left")
	},
	// cancel ends a request while its body is read.
	"cancel": func(url string, _ int) {
		ctx, cancel := context.WithCancel(context.Background())
		answer, err := client.Do(request(ctx, http.MethodGet, url, nil))
		if err != nil {
			say("%v", err)
			return
		}
		go cancel()
		_, err = io.ReadAll(answer.Body)
		say("canceled %t", errors.Is(err, context.Canceled))
	},
	// deadline gives a request N ms to its head.
	"deadline": func(url string, n int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n)*time.Millisecond)
		defer cancel()
		_, err := client.Do(request(ctx, http.MethodGet, url, nil))
		say("deadline %t", errors.Is(err, context.DeadlineExceeded))
	},
	// timeout is the client's own.
	"timeout": func(url string, n int) {
		impatient := guesthttp.NewClient()
		impatient.Timeout = time.Duration(n) * time.Millisecond
		_, err := impatient.Get(url)
		var timeout interface{ Timeout() bool }
		say("timeout %t", errors.As(err, &timeout) && timeout.Timeout())
	},
	// close closes a body that another goroutine reads.
	"close": func(url string, _ int) {
		answer, err := client.Get(url)
		if err != nil {
			say("%v", err)
			return
		}
		done := make(chan error)
		go func() { _, err := io.ReadAll(answer.Body); done <- err }()
		runtime.Gosched()
		_ = answer.Body.Close()
		say("closed: %v", <-done)
	},
	// stop waits until the task is canceled.
	"stop": func(url string, _ int) {
		ctx, stop := guest.Context(context.Background())
		defer stop()
		_, err := client.Do(request(ctx, http.MethodGet, url, nil))
		say("stopped %t", errors.Is(err, guest.ErrCanceled))
	},
	// endless reads a body until the task is canceled, by a client with a time limit,
	// whose context is another than the task's.
	"endless": func(url string, _ int) {
		ctx, stop := guest.Context(context.Background())
		defer stop()
		patient := guesthttp.NewClient()
		patient.Timeout = time.Hour
		answer, err := patient.Do(request(ctx, http.MethodGet, url, nil))
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		say("stopped %t", errors.Is(err, guest.ErrCanceled) || errors.Is(err, context.Canceled))
	},
	// compute counts while it waits, and gives way now and then.
	"compute": func(url string, n int) {
		done := make(chan struct{})
		go func() { show(client.Get(url)); close(done) }()
		for i := 0; i < n; i++ {
			runtime.Gosched()
		}
		say("counted")
		<-done
	},
	// host asks for another Host than the URL's.
	"host": func(url string, _ int) {
		r := request(context.Background(), http.MethodGet, url, nil)
		r.Host = "other.example"
		show(client.Do(r))
	},
	// keep sets headers of the connection, as clients do.
	"keep": func(url string, _ int) {
		r := request(context.Background(), http.MethodGet, url, nil)
		r.Header.Set("Connection", "keep-alive")
		r.Header["host"] = []string{"other.example"}
		show(client.Do(r))
	},
	// smuggle has a header in a header.
	"smuggle": func(url string, _ int) {
		r := request(context.Background(), http.MethodGet, url, nil)
		r.Header.Set("X-A", "b\nX-Smuggled: yes")
		show(client.Do(r))
	},
}

func request(ctx context.Context, method, url string, body io.Reader) *http.Request {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		panic(err)
	}
	r.Header.Add("X-Two", "one")
	r.Header.Add("X-Two", "two")
	return r
}

var codes = map[string]error{
	"too large": guesthttp.ErrRequestTooLarge, "refused": guesthttp.ErrConnRefused, "invalid": guesthttp.ErrInvalidRequest,
	"not granted": guesthttp.ErrNotGranted, "permission": fs.ErrPermission, "canceled": context.Canceled,
	"bad response": guesthttp.ErrBadResponse,
}

func show(answer *http.Response, err error) {
	if err != nil {
		say("%v", err)
		for name, code := range codes {
			if errors.Is(err, code) {
				say("it is %s", name)
			}
		}
		return
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	say("%s, length %d, X-Test %q, body %q, %v", answer.Status, answer.ContentLength, answer.Header.Values("X-Test"), body, err)
}
