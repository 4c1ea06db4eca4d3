package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/protocol"
	"starling/sandbox"
	"starling/sandbox/internal/egress"
	"starling/testenv"
)

// TestHostileRequests is what a guest hears whose pointers, handles and bytes make
// no sense: an errno, and no trap. Each is an expression whose errno is the exit
// status.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then it is not told that the guest is gone
		_, _ = io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	const sent = `(drop (call $good)) (i32.store (i32.const 0) (i32.const 1)) (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))`
	const large = `(drop (call $send (i32.const 1024) (i32.load (i32.const 40)) (i32.const 0) (i32.const 0x800000)))`
	tests := []struct {
		name, before, call string
		errno              int
	}{
		{"a head past the memory", "", `(call $send (i32.const -16) (i32.const 64) (i32.const 0) (i32.const 0))`, 21},
		{"a head of 4 GiB", "", `(call $send (i32.const 1024) (i32.const -1) (i32.const 0) (i32.const 0))`, 21},
		{"a body past the memory", "", `(call $send (i32.const 1024) (i32.const 16) (i32.const 0x9fffff) (i32.const 2))`, 21},
		{"a body of 10 MiB", "", `(call $send (i32.const 1024) (i32.const 16) (i32.const 0) (i32.const 0xa00000))`, 1},
		{"a head of 10 MiB", "", `(call $send (i32.const 0) (i32.const 0xa00000) (i32.const 0) (i32.const 0))`, 1},
		{"a head that is no UTF-8", `(i32.store8 (i32.const 1030) (i32.const 0xff))`, `(call $good)`, 28},
		{"a head with a NUL", `(i32.store8 (i32.const 1030) (i32.const 0))`, `(call $good)`, 28},
		{"a head with a carriage return", `(i32.store8 (i32.const 1030) (i32.const 13))`, `(call $good)`, 28},
		{"an empty head, whose error comes later", "", `(call $send (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))`, -1},
		{"wait for nothing", "", `(call $wait (i32.const 0) (i32.const 0) (i64.const -1))`, 28},
		{"wait for 17", "", `(call $wait (i32.const 0) (i32.const 17) (i64.const -1))`, 28},
		{"wait for 2^30", "", `(call $wait (i32.const 0) (i32.const 0x40000000) (i64.const -1))`, 28},
		{"wait past the memory", "", `(call $wait (i32.const -4) (i32.const 2) (i64.const -1))`, 21},
		{"wait for a handle there is not", "", `(call $wait (i32.const 0) (i32.const 1) (i64.const -1))`, 8},
		{"wait for one there is and one there is not", sent, `(call $wait (i32.const 0) (i32.const 2) (i64.const -1))`, 8},
		{
			"wait a moment", sent + `(drop (call $head (i32.const 1) (i32.const 65536) (i32.const 65536)))
		  (loop $l (br_if $l (i32.le_s (call $read (i32.const 1) (i32.const 65536) (i32.const 65536)) (i32.const 0))))`,
			`(call $wait (i32.const 0) (i32.const 1) (i64.const 1))`, 6,
		},
		{"the head of a handle there is not", "", `(call $head (i32.const 1) (i32.const 0) (i32.const 64))`, 8},
		{"the head past the memory", sent, `(call $head (i32.const 1) (i32.const -1) (i32.const 64))`, 21},
		{"a body of a handle there is not", sent, `(call $read (i32.const -1) (i32.const 0) (i32.const 64))`, 8},
		{"a body past the memory, to read", sent, `(call $read (i32.const 1) (i32.const 0xa00000) (i32.const 1))`, 21},
		{"nothing of a body", sent, `(call $read (i32.const 1) (i32.const 0) (i32.const 0))`, 28},
		{"the error of a handle there is not", "", `(call $error (i32.const 7) (i32.const 0) (i32.const 64))`, 8},
		{"an error past the memory", "", `(call $error (i32.const 0) (i32.const -1) (i32.const 64))`, 21},
		{"close what is not there", "", `(call $close (i32.const 0))`, 8},
		{"close twice", sent + `(drop (call $close (i32.const 1)))`, `(call $close (i32.const 1))`, 8},
		{"use what was closed", sent + `(drop (call $close (i32.const 1)))`, `(call $read (i32.const 1) (i32.const 0) (i32.const 8))`, 8},
		{"17 in flight", `(local $n i32) (loop $l (drop (call $good)) (local.set $n (i32.add (local.get $n) (i32.const 1)))
		  (br_if $l (i32.lt_u (local.get $n) (i32.const 16))))`, `(call $good)`, 33},
		{"bodies of 24 MiB", large + large, large[len("(drop ") : len(large)-1], 33},
		{"bodies of 24 MiB, of which one was closed", large + large + `(drop (call $close (i32.const 1)))` + large, `(call $close (i32.const 1))`, 8},
		{"a thousand one after the other", `(local $n i32) (loop $l (drop (call $close (call $good)))
		  (local.set $n (i32.add (local.get $n) (i32.const 1))) (br_if $l (i32.lt_u (local.get $n) (i32.const 1000))))`, `(call $close (i32.const 1))`, 8},
	}
	everywhere(t, sandbox.HTTPConfig{}, func(t *testing.T, r runner) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				s := spec(t, wat(t, `(module `+httpImports+fromStdin+`
				  (func (export "_start") `+test.before+` (call $exit (i32.sub (i32.const 0) `+test.call+`))))`))
				s.Stdin, s.Network.Allow = []byte("GET "+server.URL+"\n"), allow(t, server.URL)
				end := r.Run(t.Context(), s, func(protocol.Event) {})
				if end.Kind != sandbox.Exited || int32(end.Status) != int32(test.errno) {
					t.Errorf("Run = %+v, want exit status %d", end, test.errno)
				}
			})
		}
	})
}

// TestManyInFlight has sixteen requests each of which is answered when all have come.
func TestManyInFlight(t *testing.T) {
	t.Parallel()
	everywhere(t, sandbox.HTTPConfig{}, func(t *testing.T, r runner) {
		var all sync.WaitGroup
		all.Add(egress.MaxInFlight)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			all.Done()
			all.Wait()
			_, _ = io.WriteString(w, "x")
		}))
		defer server.Close()
		s := spec(t, wat(t, `(module `+httpImports+request("good", 1024, "GET "+server.URL+"\n")+`
		  (func (export "_start") (local $n i32) (local $at i32)
		    (loop $send
		      (i32.store (i32.mul (local.get $n) (i32.const 4)) (call $good))
		      (br_if $send (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 16))))
		    (loop $next ;; the place that is ready gives way to the last in the list
		      (local.set $at (i32.mul (call $wait (i32.const 0) (local.get $n) (i64.const -1)) (i32.const 4)))
		      (drop (call $head (i32.load (local.get $at)) (i32.const 65536) (i32.const 65536)))
		      (if (i32.eq (call $read (i32.load (local.get $at)) (i32.const 65536) (i32.const 1)) (i32.const 1)) (then
		        (drop (call $close (i32.load (local.get $at))))
		        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
		        (i32.store (local.get $at) (i32.load (i32.mul (local.get $n) (i32.const 4))))))
		      (br_if $next (local.get $n)))))`))
		s.Network.Allow = allow(t, server.URL)
		if end := r.Run(t.Context(), s, func(protocol.Event) {}); end.Kind != sandbox.Exited || end.Status != 0 {
			t.Errorf("Run = %+v, want exited", end)
		}
	})
}

// TestAGuestThatDoesNotRead holds its server up: little of the answer is taken from
// it. The rest is in no memory of ours.
func TestAGuestThatDoesNotRead(t *testing.T) {
	t.Parallel()
	const offered, most = 60 << 20, 24 << 20 // the kernel's buffers of a connection take some MiB
	everywhere(t, sandbox.HTTPConfig{}, func(t *testing.T, r runner) {
		held := make(chan int, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/held" {
				select {
				case n := <-held:
					fmt.Fprint(w, n)
				case <-r.Context().Done():
				}
				return
			}
			control, n := http.NewResponseController(w), 0
			for piece := make([]byte, 1<<20); n < offered; n += len(piece) {
				if err := control.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
					t.Error(err)
				}
				if _, err := w.Write(piece); err != nil {
					break
				}
			}
			held <- n
		}))
		defer server.Close()
		s := spec(t, wat(t, `(module `+httpImports+request("first", 1024, "GET "+server.URL+"/\n")+request("second", 2048, "GET "+server.URL+"/held\n")+`
		  (func (export "_start")
		    (drop (call $first)) (i32.store (i32.const 0) (call $second))
		    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
		    (drop (call $head (i32.const 2) (i32.const 65536) (i32.const 65536)))
		    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
		    (call $say (call $read (i32.const 2) (i32.const 65536) (i32.const 65536)))))`))
		s.Network.Allow = allow(t, server.URL)
		var n int
		if _, err := fmt.Sscan(says(t, r, s), &n); err != nil || n > most {
			t.Errorf("%d bytes were taken from the server (%v), want at most %d", n, err, most)
		}
	})
}

// hanging is a server whose answers never end, and tells who hung up.
func hanging(t *testing.T) (url string, begun, gone chan struct{}) {
	begun, gone = make(chan struct{}, 64), make(chan struct{}, 64)
	tell := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default: // more than anybody waits for
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does a server see that a client hangs up
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		tell(begun)
		<-r.Context().Done()
		tell(gone)
	}))
	t.Cleanup(server.Close)
	return server.URL, begun, gone
}

// TestRequestsEndWithTheirGuest: whatever ends it, and when the guest closes one.
func TestRequestsEndWithTheirGuest(t *testing.T) {
	t.Parallel()
	waits := `(drop (call $good)) (drop (call $good))
	  (loop $l (i32.store (i32.const 0) (i32.const 1)) (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
	    (drop (call $head (i32.const 1) (i32.const 65536) (i32.const 65536))) (drop (call $read (i32.const 1) (i32.const 65536) (i32.const 64))) (br $l))`
	for _, test := range []struct {
		name, guest string
		stop        bool
		kind        sandbox.EndingKind
	}{
		{"interrupted", waits, true, sandbox.Interrupted},
		{"at its deadline", waits, false, sandbox.LimitHit},
		{"trapped", `(drop (call $good)) (drop (call $good)) (i32.store (i32.const 0) (i32.const 1)) (i32.store (i32.const 4) (i32.const 2))
		  (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1))) (drop (call $wait (i32.const 4) (i32.const 1) (i64.const -1))) unreachable`, false, sandbox.Trapped},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			everywhere(t, sandbox.HTTPConfig{}, func(t *testing.T, r runner) {
				url, begun, gone := hanging(t)
				s := spec(t, wat(t, `(module `+httpImports+request("good", 1024, "GET "+url+"\n")+`(func (export "_start") `+test.guest+`))`))
				s.Network.Allow = allow(t, url)
				s.Limits.DeadlineSeconds = 60
				if test.kind == sandbox.LimitHit {
					s.Limits.DeadlineSeconds = 1
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var stopping sync.WaitGroup
				if test.stop {
					stopping.Go(func() {
						<-begun
						<-begun
						cancel(errors.New("enough"))
					})
				}
				if end := r.Run(ctx, s, func(protocol.Event) {}); end.Kind != test.kind {
					t.Errorf("Run = %+v, want %s", end, test.kind)
				}
				stopping.Wait()
				<-gone
				<-gone
			})
		})
	}
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		everywhere(t, sandbox.HTTPConfig{}, func(t *testing.T, r runner) {
			url, _, gone := hanging(t)
			closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-gone:
					_, _ = io.WriteString(w, "it hung up")
				case <-r.Context().Done():
				}
			}))
			defer closed.Close()
			s := spec(t, wat(t, `(module `+httpImports+request("first", 1024, "GET "+url+"\n")+request("second", 2048, "GET "+closed.URL+"\n")+`
			  (func (export "_start")
			    (drop (call $first)) (i32.store (i32.const 0) (i32.const 1)) (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
			    (drop (call $close (i32.const 1)))
			    (i32.store (i32.const 0) (call $second))
			    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
			    (drop (call $head (i32.const 2) (i32.const 65536) (i32.const 65536)))
			    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
			    (call $say (call $read (i32.const 2) (i32.const 65536) (i32.const 65536)))))`))
			s.Network.Allow = allow(t, url, closed.URL)
			if text := says(t, r, s); text != "it hung up" {
				t.Errorf("the guest said %q, want that the first request hung up", text)
			}
		})
	})
}

// TestHostileProcesses are sandbox processes that do not keep to the protocol, most of
// them where it passes requests on. Each ends its own run, and not later than a hung one.
func TestHostileProcesses(t *testing.T) {
	t.Parallel()
	url, _, _ := hanging(t)
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 64<<10))
		}
	}))
	t.Cleanup(endless.Close)
	for how, test := range map[string]struct {
		kind sandbox.EndingKind
		says string
	}{
		"acks of a handle there is not":                       {sandbox.Exited, ""},
		"acks of bytes that never came":                       {sandbox.Exited, ""},
		"closes of a handle there is not":                     {sandbox.Exited, ""},
		"ten thousand requests, closed":                       {sandbox.Exited, ""},
		"a request that is not granted":                       {sandbox.Exited, "http://127.0.0.1:1 is not granted"},
		"a body that is too large":                            {sandbox.Exited, "the body of the request has 9437184 bytes"},
		"a request that is cut off":                           {sandbox.ProcessDied, "bad message"},
		"a request with more behind it":                       {sandbox.ProcessDied, "bad message"},
		"a length of 4 GiB":                                   {sandbox.ProcessDied, "its length is 4294967295"},
		"17 requests":                                         {sandbox.ProcessDied, "too many requests in flight"},
		"bodies of 24 MiB":                                    {sandbox.ProcessDied, "too many bytes of requests in flight"},
		"a handle twice":                                      {sandbox.ProcessDied, "a request's handle is used twice"},
		"a request before the guest started":                  {sandbox.ProcessDied, "signal: killed"},
		"answers that are not read":                           {sandbox.ProcessDied, "signal: killed"},
		"a question for room that nobody has":                 {sandbox.ProcessDied, "nobody says how much it may write"},
		"a refusal without an error":                          {sandbox.ProcessDied, "bad message"},
		"a refusal without an error before the guest started": {sandbox.ProcessDied, "signal: killed"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newSupervisor(t, func(c *sandbox.ProcessConfig) {
				c.Command = hostileProcess(t, how, url, endless.URL)
				c.KillAfter = 100 * time.Millisecond
			})
			run := spec(t, wat(t, `(module (memory (export "memory") 1) (func (export "_start")))`))
			run.Network.Allow = allow(t, url, endless.URL)
			run.Limits.DeadlineSeconds = 30
			end := s.Run(t.Context(), run, func(protocol.Event) {})
			if text := end.Message + end.Trap + end.Stdout; end.Kind != test.kind || !strings.Contains(text, test.says) {
				t.Errorf("Run = %+v, want %s and %q", end, test.kind, test.says)
			}
		})
	}
}

func hostileProcess(t *testing.T, how, hanging, endless string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "hostile", how, hanging, endless}
}

// TestAProcessThatTalksOn past its guest's deadline is killed, though an observer that
// was slow holds it back past that.
func TestAProcessThatTalksOn(t *testing.T) {
	t.Parallel()
	const killAfter = 8 * time.Second
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) {
		c.Command = hostileProcess(t, "events without an end", "", "")
		c.KillAfter = killAfter
	})
	run := spec(t, testenv.WAT(t, "noop"))
	run.Limits.DeadlineSeconds = 1
	slow := sync.OnceFunc(func() { <-time.After(time.Second + killAfter) }) // the deadline itself has to pass
	end := s.Run(t.Context(), run, func(protocol.Event) { slow() })
	if end.Kind != sandbox.ProcessDied || end.Blame != sandbox.BlameGuest || !strings.Contains(end.Message+end.Trap, "it goes on") {
		t.Errorf("Run = %+v, want a process that was killed because it goes on", end)
	}
}

// TestAProcessThatTalksNowAndThen past its guest's deadline has little time beside what
// an observer takes that is slow with each word.
func TestAProcessThatTalksNowAndThen(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) {
		c.Command = hostileProcess(t, "an event now and then", "", "")
		c.KillAfter = 500 * time.Millisecond // longer than it is silent
	})
	run := spec(t, testenv.WAT(t, "noop"))
	run.Limits.DeadlineSeconds = 1
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	end := s.Run(ctx, run, func(protocol.Event) { <-time.After(60 * time.Millisecond) }) // an observer that takes long
	if end.Kind != sandbox.LimitHit || end.Limit != sandbox.LimitDeadline {
		t.Errorf("Run = %+v, want the deadline", end)
	}
}

// TestManyWordsBeforeTheDeadline: a guest that says more at once than a process may
// after its deadline is not taken for one that goes on, when the observer held it back.
func TestManyWordsBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	const killAfter = time.Second
	s := newSupervisor(t, func(c *sandbox.ProcessConfig) { c.KillAfter = killAfter })
	run := spec(t, wat(t, `(module
	  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	  (import "murmur:stream/events@0.1.0" "emit-chunk" (func $chunk (param i32 i32)))
	  (memory (export "memory") 16)
	  (func (export "_start") (local $at i32)
	    (call $chunk (i32.const 16) (i32.const 1))
	    (local.set $at (i32.const 1024))
	    (loop $fill
	      (i32.store offset=4 (local.get $at) (i32.const 1))
	      (local.set $at (i32.add (local.get $at) (i32.const 8)))
	      (br_if $fill (i32.lt_u (local.get $at) (i32.const 801024))))
	    (loop $l
	      (drop (call $write (i32.const 2) (i32.const 1024) (i32.const 100000) (i32.const 64)))
	      (br $l))))`))
	run.Limits.DeadlineSeconds = 1
	slow := sync.OnceFunc(func() { <-time.After(time.Second + 2*killAfter) }) // the deadline itself has to pass
	end := s.Run(t.Context(), run, func(protocol.Event) { slow() })
	if end.Kind != sandbox.LimitHit || end.Limit != sandbox.LimitDeadline {
		t.Errorf("Run = %+v, want the deadline", end)
	}
}
