package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// steers reports whether a character of somebody else's text could steer a
// terminal, or show a line in another order than it has: control characters but
// newline and tab, and what changes the direction of text.
func steers(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x20, r >= 0x7f && r < 0xa0:
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return true // marks, embeddings, overrides and isolates of bidirectional text
	case r == 0x2028, r == 0x2029:
		return true // line and paragraph separators
	}
	return false
}

// printable takes what steers a terminal out of a text of somebody else's.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if steers(r) {
			return -1
		}
		return r
	}, s)
}

// cell is printable on one line: what a record says must not make lines, or
// columns, of its own.
func cell(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, printable(s))
}

// harmlessJSON writes what steers a terminal as the escapes of JSON: the values
// stay what they are.
func harmlessJSON(data []byte) []byte {
	if !bytes.ContainsFunc(data, steers) {
		return data
	}
	var out bytes.Buffer
	for _, r := range string(data) {
		if steers(r) {
			fmt.Fprintf(&out, "\\u%04x", r) // outside of strings JSON has none of them
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// printableWriter is printable for a text that comes in pieces. Close writes what
// is left of a character that was cut.
type printableWriter struct {
	out  io.Writer
	rest []byte
}

func (w *printableWriter) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	cut := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if b := text[len(text)-back]; utf8.RuneStart(b) {
			if !utf8.FullRune(text[len(text)-back:]) {
				cut = len(text) - back
			}
			break
		}
	}
	w.rest = append([]byte(nil), text[cut:]...)
	if _, err := io.WriteString(w.out, printable(string(text[:cut]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *printableWriter) Close() error {
	_, err := io.WriteString(w.out, printable(string(w.rest)))
	w.rest = nil
	return err
}

// jsonWriter is harmlessJSON for an encoder, which writes whole values.
type jsonWriter struct{ out io.Writer }

func (w jsonWriter) Write(p []byte) (int, error) {
	if _, err := w.out.Write(harmlessJSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
