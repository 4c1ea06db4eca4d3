package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"starling/broker"
)

// TestHelpFitsIntoATerminal of a hundred columns, for every command.
func TestHelpFitsIntoATerminal(t *testing.T) {
	t.Parallel()
	seen := 0
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		seen++
		words := strings.Fields(cmd.CommandPath())[1:]
		got := starling(t, "", append(words, "--help")...)
		if got.status != exitOK || got.out == "" {
			t.Errorf("%s --help = %d, %q", cmd.CommandPath(), got.status, got.out)
		}
		for line := range strings.Lines(got.out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth && !strings.HasPrefix(cmd.CommandPath(), "starling completion ") {
				t.Errorf("%s --help has a line of %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each((&app{streams: streams{in: strings.NewReader("")}}).root())
	if seen < 25 {
		t.Errorf("%d commands were looked at", seen)
	}
}

// TestHelpOfWorkersSaysHowOldItIs: the columns are of the last heartbeat.
func TestHelpOfWorkersSaysHowOldItIs(t *testing.T) {
	t.Parallel()
	contains(t, "workers --help", starling(t, "", "workers", "--help").out,
		fmt.Sprintf("up to %d s ago", broker.HeartbeatEvery/time.Second), "starling stats")
}
