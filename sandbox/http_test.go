package sandbox_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"starling/protocol"
	"starling/sandbox"
)

// getter prints the head and the body of one response, or why there is none.
func getter(head string) string {
	return fmt.Sprintf(`(module
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "send" (func $send (param i32 i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "wait" (func $wait (param i32 i32 i64) (result i32)))
	  (import "starling:capsule/http@0.1.0" "head" (func $head (param i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "read" (func $read (param i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "error" (func $error (param i32 i32 i32) (result i32)))
	  (import "starling:capsule/http@0.1.0" "close" (func $close (param i32) (result i32)))
	  (memory (export "memory") 4)
	  (data (i32.const 1024) "%s")
	  (func $say (param $n i32)
	    (i32.store (i32.const 16) (i32.const 65536)) (i32.store (i32.const 20) (local.get $n))
	    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24))))
	  (func (export "_start") (local $h i32) (local $n i32)
	    (local.set $h (call $send (i32.const 1024) (i32.const %d) (i32.const 0) (i32.const 0)))
	    (i32.store (i32.const 0) (local.get $h))
	    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
	    (local.set $n (call $head (local.get $h) (i32.const 65536) (i32.const 65536)))
	    (if (i32.lt_s (local.get $n) (i32.const 0)) (then
	      (call $say (call $error (local.get $h) (i32.const 65536) (i32.const 4096))) (return)))
	    (call $say (local.get $n))
	    (loop $more
	      (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
	      (local.set $n (call $read (local.get $h) (i32.const 65536) (i32.const 65536)))
	      (if (i32.gt_s (local.get $n) (i32.const 0)) (then (call $say (local.get $n)) (br $more))))
	    (drop (call $close (local.get $h)))))`, strings.ReplaceAll(head, "\n", "\\n"), len(head))
}

// TestAGuestCallsWhatItIsGranted runs the same calls in this process and in a
// sandbox process, where this one makes them.
func TestAGuestCallsWhatItIsGranted(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789abcdef"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo": // in two pieces
			got := r.Header.Get("Authorization")
			w.Header().Set("X-Echo", got)
			_, _ = w.Write([]byte("you said " + got[:len(got)-5]))
			w.(http.Flusher).Flush()
			_, _ = w.Write([]byte(got[len(got)-5:] + " that is all"))
			if got != "Bearer "+value {
				t.Errorf("the server got the header %q", got)
			}
		case "/large":
			_, _ = w.Write([]byte(strings.Repeat("x", 1<<20)))
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	rule, err := protocol.ParseNetworkRule(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	granted := sandbox.Network{
		Allow: []protocol.NetworkRule{rule},
		Secrets: []sandbox.Secret{{
			Name: "MODEL", Value: value, Hosts: []protocol.NetworkRule{rule}, Headers: []string{"authorization"},
		}},
	}
	engine, processes := newEngine(t), newSupervisor(t)
	for name, test := range map[string]struct {
		head, want string
		network    sandbox.Network
	}{
		"a secret is filled in and taken out": {"GET " + server.URL + "/echo\nAuthorization: Bearer ${secret:MODEL}\n", "you said Bearer [secret] that is all", granted},
		"a header of the answer too":          {"GET " + server.URL + "/echo\nAuthorization: Bearer ${secret:MODEL}\n", "X-Echo: Bearer [secret]\n", granted},
		"more than a window":                  {"GET " + server.URL + "/large\n", strings.Repeat("x", 1<<20), granted},
		"nothing is granted":                  {"GET " + server.URL + "/large\n", "is not granted: capabilities.network.allow is empty", sandbox.Network{}},
		"a redirect to metadata":              {"GET " + server.URL + "/away\n", "a redirect: http://169.254.169.254 is not granted", granted},
		"a secret in another header":          {"GET " + server.URL + "/echo\nX-Key: ${secret:MODEL}\n", `the secret "MODEL" is not granted in the header X-Key`, granted},
		"a secret that there is not":          {"GET " + server.URL + "/echo\nX-Key: ${secret:OTHER}\n", `the secret "OTHER" is not granted in the header X-Key`, granted},
		"another scheme":                      {"GET file:///etc/passwd\n", `the scheme "file" is neither http nor https`, granted},
		"the host's header":                   {"GET " + server.URL + "/\nHost: other\n", "the header Host is the host's to set", granted},
	} {
		for where, run := range map[string]func(sandbox.Spec, func(protocol.Event)) sandbox.Ending{
			"here": func(s sandbox.Spec, emit func(protocol.Event)) sandbox.Ending {
				return engine.Run(t.Context(), s, emit)
			},
			"in a process": func(s sandbox.Spec, emit func(protocol.Event)) sandbox.Ending {
				return processes.Run(t.Context(), s, emit)
			},
		} {
			t.Run(name+"/"+where, func(t *testing.T) {
				s := spec(t, wat(t, getter(test.head)))
				s.Network = test.network
				var said recorder
				end := run(s, said.emit)
				text := said.text()
				if end.Kind != sandbox.Exited || !strings.Contains(text, test.want) {
					t.Errorf("the guest ended %+v and said %.300q, want %.300q", end.Message, text, test.want)
				}
				if strings.Contains(text, value) {
					t.Error("the guest was told the secret")
				}
			})
		}
	}
}
