package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// tableIndent is the width of the columns before a setting's text.
const tableIndent = 2 + 34 + 1 + 10 + 1

// variableTable is the table of variables, for the help.
func variableTable(all ...any) string {
	var out strings.Builder
	for _, group := range all {
		for _, s := range settingsOf(group) {
			fallback := s.fallback
			if fallback == "" {
				fallback = "—"
			}
			for _, text := range wrapped(s.usage, helpWidth-tableIndent) {
				fmt.Fprintf(&out, "  %-34s %-10s %s\n", s.variable, fallback, text)
				s.variable, fallback = "", ""
			}
		}
	}
	return out.String()
}

// wrapped are the lines of a text, each of at most width columns where its words allow.
func wrapped(text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last < 0 || utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, word)
			continue
		}
		lines[last] += " " + word
	}
	return lines
}
