package main

import (
	"bytes"
	"strings"
	"testing"
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
