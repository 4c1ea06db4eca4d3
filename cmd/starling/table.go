package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

const (
	// maxColumn is the widest column but the last on a terminal: every id and name of
	// the protocol fits, what others put in their place is cut.
	maxColumn = 64
	// maxLastColumn is the widest last one there.
	maxLastColumn = 200
)

// table prints lines of columns. What a record says is made harmless, and on a
// terminal cut where it is longer than anything valid; elsewhere it is whole.
type table struct {
	out *tabwriter.Writer
	cut bool
}

// newTable begins a table with its header.
func newTable(out io.Writer, header ...string) *table {
	t := &table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), terminal(out)}
	fmt.Fprintln(t.out, strings.Join(header, "\t")) // an error comes at the end
	return t
}

// row writes a line; a column without a text is -.
func (t *table) row(columns ...any) {
	texts := make([]string, len(columns))
	for i, column := range columns {
		widest := maxColumn
		if i == len(columns)-1 {
			widest = maxLastColumn
		}
		texts[i] = dash(cell(fmt.Sprint(column)))
		if t.cut {
			texts[i] = shortened(texts[i], widest)
		}
	}
	fmt.Fprintln(t.out, strings.Join(texts, "\t")) // an error comes at the end
}

// flush prints what is left; its error is the first of all writes.
func (t *table) flush() error { return t.out.Flush() }

// shortened is a text of at most so many characters, the last … when it had more.
func shortened(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
