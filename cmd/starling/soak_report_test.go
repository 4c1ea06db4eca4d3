//go:build soak

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// messagesIn counts what a log says, by level and message.
func messagesIn(log string) map[string]int {
	all := make(map[string]int)
	for line := range strings.Lines(log) {
		var said struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &said) != nil {
			said.Level, said.Msg = "not JSON", strings.TrimSpace(line[:min(60, len(line))])
		}
		all[said.Level+" "+said.Msg]++
	}
	return all
}

// linesOf are the lines of a log that hold a text.
func linesOf(log, text string) string {
	var found strings.Builder
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			found.WriteString(line)
		}
	}
	return found.String()
}

func countTable(counts map[string]int) string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(table, "%s\t%d\n", name, counts[name])
	}
	_ = table.Flush()
	return out.String()
}
