package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"starling/protocol"
)

// TestATableCutsWhatIsLongerThanAnythingValid on a terminal alone.
func TestATableCutsWhatIsLongerThanAnythingValid(t *testing.T) {
	t.Parallel()
	id, long := strings.Repeat("i", 64), strings.Repeat("é", 300)
	for _, c := range []struct {
		name      string
		cut       bool
		wide, end string
	}{
		{"on a terminal", true, strings.Repeat("é", 63) + "…", strings.Repeat("é", 199) + "…"},
		{"elsewhere", false, long, long},
	} {
		var out bytes.Buffer
		table := newTable(&out, "ID", "NAME", "EMPTY", "WHY")
		table.cut = c.cut
		table.row(id, long, "", long)
		table.row("a\tb\nc", "x", 7, "\x1b[31mred")
		if err := table.flush(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out.String(), "\n")
		if got, want := strings.Fields(lines[1]), []string{id, c.wide, "-", c.end}; strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: row = %q, want %q", c.name, got, want)
		}
		if got := strings.Fields(lines[2]); strings.Join(got, " ") != "a b c x 7 [31mred" || len(lines) != 4 {
			t.Errorf("%s: row = %q in %d lines, want one harmless line", c.name, got, len(lines)-1)
		}
	}
}

// TestAWorkerThatIsNotHeardOfIsSilent, and one that was heard of lately is not.
func TestAWorkerThatIsNotHeardOfIsSilent(t *testing.T) {
	t.Parallel()
	f := testFleet(t, nil)
	nc, err := nats.Connect(f.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	putWorker(t, js, protocol.WorkerInfo{WorkerID: "wrk_gone", Pool: "default", Host: "h", SeenAt: protocol.NewTime(time.Now().Add(-time.Minute))})
	got := starling(t, "", "workers", "--url", f.server.ClientURL())
	for line := range strings.Lines(got.out) {
		if silent := strings.Contains(line, "silent"); silent != strings.Contains(line, "wrk_gone") {
			t.Errorf("workers: %s", line)
		}
	}
	contains(t, "workers", got.out, "wrk_gone", string(f.staff.worker.ID()))
}
