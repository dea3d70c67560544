package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/pawlrun/pawl"
)

// row is what came of one scenario.
type row struct {
	Mode      mode   `json:"mode"`
	Crash     crash  `json:"crash"`
	Fetches   int    `json:"fetches"`
	PaidCalls int    `json:"paid_calls"`
	Rows      int    `json:"rows"`
	Emails    int    `json:"emails"`
	State     string `json:"state"`
	Inbox     int    `json:"inbox"` // entries that a person was asked

	run pawl.RunID
}

// format is how the rows are written. It is a flag's value.
type format string

const (
	text   format = "text"
	ndjson format = "json"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// Set takes "jsonl" too, the name that other commands have for one object per line.
func (f *format) Set(s string) error {
	switch s {
	case "text":
		*f = text
	case "json", "jsonl":
		*f = ndjson
	default:
		return errors.New("want text or json")
	}
	return nil
}

// words says in the table where the worker was killed.
func (c crash) words() string {
	switch c {
	case never:
		return "never"
	case beforeNotify:
		return "before the e-mail step"
	case intentWritten:
		return "about to send it"
	case effectDone:
		return "sent, not written down"
	case journalled:
		return "sent and written down"
	case lastWrite:
		return "at the last bookkeeping write"
	}
	return string(c)
}

const legend = `
Each worker but the first two was killed (kill -9) where the first column says, and another one went on.
The plain runner retries from the top: it pays for the model again and writes a second row, and once the
e-mail had left it sends a second one. Its jobs read "succeeded" all the same.
Pawl resumes at the first step that is not finished. It pays once, writes one row, and never sends two. Where
nobody can know whether the e-mail left, it does not guess: a person is asked (inbox). Here the demo was the
person, looked into the mail server, and answered.
`

// writeRows writes the rows as a table with its legend, or as JSON lines.
func writeRows(out io.Writer, f format, rows []row) error {
	if f == ndjson {
		enc := json.NewEncoder(out)
		for i := range rows {
			if err := enc.Encode(&rows[i]); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "WORKER KILLED\tRUNNER\tFETCHES\tPAID CALLS\tROWS\tE-MAILS\tSTATE\tINBOX") // Flush has the error
	for _, r := range rows {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t%d\n", r.Crash.words(), r.Mode, r.Fetches, r.PaidCalls, r.Rows, r.Emails, r.State, r.Inbox)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, legend)
	return err
}

// program is how this program was started, for a person to type again.
func program() string {
	exe, err := os.Executable()
	if err == nil && goRun.MatchString(filepath.ToSlash(exe)) { // what go run has built is on no PATH and may be gone
		return "go run ./cmd/pawl"
	}
	return quote(os.Args[0])
}

// goRun matches where go run keeps an executable: in a directory for the work, or in the build cache.
var goRun = regexp.MustCompile(`/go-build[0-9]*/|/[0-9a-f]{64}-d/`)

var plainWord = regexp.MustCompile(`^[-A-Za-z0-9_./:=,@%+]+$`)

// quote makes a word of a command line for a POSIX shell.
func quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// writeHints says how to look at the runs. A URL that may have a password in it is not printed, nor one with the
// password masked, which nobody could use: the person has it.
func writeHints(out io.Writer, prog, db string, rows []row) error {
	id := "ID"
	for _, r := range rows {
		if r.run != "" && r.Inbox > 0 {
			id = string(r.run)
		}
	}
	set, flag := "", " --db "+quote(db)
	if isURL(db) && shown(db) != db {
		set, flag = "  export PAWL_DB='…the URL that you gave to --db…'\n", ""
	}
	_, err := fmt.Fprintf(out, `
To look at the runs:
%[4]s  %[3]s runs list%[1]s
  %[3]s runs show %[2]s%[1]s
  %[3]s inbox --all%[1]s
`, flag, id, prog, set)
	return err
}

// check reports each row of Pawl's that is not what it must be. No crash point lies inside the paid step, so nothing is
// paid twice.
func check(rows []row) error {
	var errs []error
	for _, r := range rows {
		if r.Mode == durable && (r.Emails != 1 || r.PaidCalls != 1 || r.Rows != 1 || r.State != string(pawl.Succeeded)) {
			errs = append(errs, fmt.Errorf("pawl, crash %s: %d e-mails, %d paid calls, %d rows, state %s: want 1, 1, 1, %s",
				r.Crash, r.Emails, r.PaidCalls, r.Rows, r.State, pawl.Succeeded))
		}
	}
	return errors.Join(errs...)
}
