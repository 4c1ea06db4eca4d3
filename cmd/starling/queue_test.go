package main

import (
	"strings"
	"testing"

	"starling/broker"
	"starling/testenv"
)

// TestAFullQueueIsRefusedAtOnce fills the jobs stream, by count and by bytes: the
// job past the limit is refused with what is full and the way out, its exit status
// is 7, nothing of it stays, and one that is taken makes room.
func TestAFullQueueIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]struct {
		init   broker.InitConfig
		task   string
		fits   int
		advice string
	}{
		"by count": {broker.InitConfig{MaxJobs: 3}, "small", 3, "`starling init --max-jobs N` raises its limit, with more messages; or try again later"},
		"by bytes": {
			broker.InitConfig{MaxJobBytes: 300_000},
			strings.Repeat("x", 90_000), 3,
			"`starling init --max-job-bytes N` raises its limit, with more bytes; or try again later",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.NATS(t).URL()
			bus, err := broker.Connect(t.Context(), broker.Config{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = bus.Close() })
			if err := bus.Init(t.Context(), limit.init); err != nil {
				t.Fatal(err)
			}
			push(t, url, testenv.WAT(t, "noop"), "name: noop\nversion: 1.0.0\n")
			dispatch := func(session string) result {
				return starling(t, limit.task, "dispatch", "noop@1.0.0", "--allow-unserved", "--session", session, "--url", url)
			}
			var first string
			for n := range limit.fits {
				got := dispatch("ses_1")
				if got.status != exitOK {
					t.Fatalf("job %d: status %d, %s", n+1, got.status, got.err)
				}
				if n == 0 {
					first = strings.TrimSpace(got.out)
				}
			}
			got := dispatch("ses_refused")
			if got.status != exitRefused {
				t.Errorf("a job past the limit: status %d, want %d", got.status, exitRefused)
			}
			contains(t, "what is said", got.err, "queue full: stream STARLING_JOBS: ", limit.advice)
			if got := starling(t, "", "ps", "--all", "--json", "--url", url); strings.Contains(got.out, "ses_refused") {
				t.Errorf("a refused delegation is in the ledger:\n%s", got.out)
			}
			if got := starling(t, "", "cancel", first, "--url", url); got.status != exitOK { // an operator's cancel removes the job
				t.Fatalf("cancel: %s", got.err)
			}
			if got := dispatch("ses_1"); got.status != exitOK {
				t.Errorf("with room again: status %d, %s", got.status, got.err)
			}
		})
	}
}

// TestAFullLedgerIsRefusedAtOnce with its name, its exit status and its flag.
func TestAFullLedgerIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	o := operator{t, testenv.NATS(t).URL()}
	o.must("init", "--max-ledger-bytes", "66560")
	push(t, o.url, testenv.WAT(t, "noop"), "name: noop\nversion: 1.0.0\n")
	js := testenv.JetStream(t, o.url)
	if _, err := js.Publish(t.Context(), "$KV.starling-delegations.ses_x.dlg_1", make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	var got result
	for range 10 { // a record has some hundred bytes
		if got = o.do("dispatch", "noop@1.0.0", "--task", "x", "--allow-unserved"); got.status != exitOK {
			break
		}
	}
	if got.status != exitRefused {
		t.Errorf("status %d, want %d", got.status, exitRefused)
	}
	contains(t, "what is said", got.err, "ledger full", "starling init --max-ledger-bytes")
}
