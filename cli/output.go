package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf16"
	"unicode/utf8"
)

// format is how results are printed. It is a flag value.
type format string

const (
	text  format = "text"
	jsons format = "json"  // one document, indented
	jsonl format = "jsonl" // one line for each item of a list
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// Set accepts the known formats.
func (f *format) Set(s string) error {
	switch format(s) {
	case text, jsons, jsonl:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("want text, json or jsonl")
}

// printJSON prints one value.
func (a *app) printJSON(v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if a.format == jsons {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err := a.out.Write(escaped(buf.Bytes()))
	return err
}

// printList prints items as a JSON array or as JSON lines.
func printList[T any](a *app, items []T) error {
	if a.format == jsons {
		if items == nil {
			items = []T{} // [] and not null
		}
		return a.printJSON(items)
	}
	for i := range items {
		if err := a.printJSON(items[i]); err != nil {
			return err
		}
	}
	return nil
}

// escaped writes what a terminal might act on as JSON escapes; outside of strings valid JSON has no such character.
func escaped(doc []byte) []byte {
	var b bytes.Buffer
	for rest := doc; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		switch {
		case r < 0x7f || r > 0x7f && printable(r):
			b.Write(rest[:n])
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		rest = rest[n:]
	}
	return b.Bytes()
}

// raw is stored JSON for output. Whatever is not JSON is shown as a string.
func raw(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	if !json.Valid(b) {
		b, _ = json.Marshal(string(b)) // a string always encodes
	}
	return b
}

// compact shows stored JSON in text, at most limit bytes of it; 0 means all.
func compact(b []byte, limit int) string {
	var buf bytes.Buffer
	if err := json.Compact(&buf, raw(b)); err != nil {
		return "" // nothing stored
	}
	s := string(escaped(buf.Bytes()))
	if limit > 0 && len(s) > limit {
		cut := limit
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		return fmt.Sprintf("%s… (%d bytes, all with -o json)", s[:cut], len(b))
	}
	return s
}

// table collects rows and prints them in columns. Its cells may hold any text.
type table struct {
	buf bytes.Buffer
	w   *tabwriter.Writer
}

func newTable(head ...string) *table {
	t := &table{}
	t.w = tabwriter.NewWriter(&t.buf, 0, 0, 2, ' ', 0)
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = clean(cells[i])
	}
	_, _ = fmt.Fprintln(t.w, strings.Join(cells, "\t")) // into memory
}

// fact adds a row with a name and a value, unless there is none.
func (t *table) fact(name, value string) {
	if value != "" {
		t.row(name, value)
	}
}

// columns writes a table with each line after indent.
func (a *app) columns(t *table, indent string) error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(t.buf.String()) {
		if _, err := fmt.Fprintf(a.out, "%s%s\n", indent, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// say prints a line on standard output.
func (a *app) say(format string, args ...any) error {
	_, err := fmt.Fprintf(a.out, format+"\n", args...)
	return err
}

// note tells the person something that is no result: on standard error.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.err, format+"\n", args...) // there is no other place to say that it failed
}
