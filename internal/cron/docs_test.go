package cron_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the table into docs/schedules.md")

const (
	document = "../../docs/schedules.md"
	begin    = "<!-- instants: begin -->\n"
	end      = "<!-- instants: end -->"
)

// TestDocument keeps the table of docs/schedules.md equal to that of the test.
func TestDocument(t *testing.T) {
	doc, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(doc), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", document)
	}
	want := before + begin + table(t) + end + after
	if string(doc) == want {
		return
	}
	if !*update {
		t.Fatalf("the table of %s is not that of the test: go test ./internal/cron -run Document -update", document)
	}
	if err := os.WriteFile(document, []byte(want), 0o644); err != nil { //nolint:gosec // a document
		t.Fatal(err)
	}
}

func table(t *testing.T) string {
	var b strings.Builder
	b.WriteString("\n| | expression, zone | after | instants (UTC), and what the clock reads |\n|---|---|---|---|\n")
	for _, c := range cases {
		var instants []string
		for _, text := range c.Want {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Fatal(err)
			}
			reads, _, _ := strings.Cut(local(t, at, c.Zone)[len("2006-01-02 "):], " ")
			instants = append(instants, fmt.Sprintf("%s (%s)", strings.TrimSuffix(text, "Z"), strings.TrimSuffix(reads, ":00")))
		}
		fmt.Fprintf(&b, "| %s | `%s` %s | %s | %s |\n", c.What, c.Expr, c.Zone, strings.TrimSuffix(c.After, "Z"), strings.Join(instants, "<br>"))
	}
	b.WriteString("\n")
	return b.String()
}
