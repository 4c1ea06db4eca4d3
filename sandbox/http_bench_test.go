package sandbox_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"starling/sandbox"
)

// BenchmarkRequest is one request for a few bytes on a connection that is there: of a
// plain client, and of guests that make 100 one after the other.
func BenchmarkRequest(b *testing.B) {
	const each = 100
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	b.Cleanup(server.Close)
	b.Run("plain", func(b *testing.B) {
		client := server.Client()
		for b.Loop() {
			response, err := client.Get(server.URL)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
	})
	s := spec(b, wat(b, `(module `+httpImports+fromStdin+`
	  (func (export "_start") (local $n i32) (local $h i32) (local $got i32)
	    (loop $next
	      (local.set $h (call $good))
	      (i32.store (i32.const 0) (local.get $h))
	      (loop $more
	        (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
	        (drop (call $head (local.get $h) (i32.const 65536) (i32.const 65536)))
	        (local.set $got (call $read (local.get $h) (i32.const 65536) (i32.const 65536)))
	        (br_if $more (local.get $got)))
	      (drop (call $close (local.get $h)))
	      (br_if $next (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 100))))))`))
	s.Stdin, s.Network.Allow = []byte("GET "+server.URL+"\n"), allow(b, server.URL)
	for name, r := range map[string]runner{"here": newEngineWith(b, sandbox.Config{}), "process": newSupervisor(b)} {
		b.Run(name, func(b *testing.B) {
			benchmarkSpec(b, r, s)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each, "ns/request")
		})
	}
}
