package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
)

// The exit codes. They are part of the interface.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3
	exitConflict = 4
	exitPerson   = 5
)

// failure is an error with an exit code and with what to do next.
type failure struct {
	code int
	err  error
	next string // "" means what report makes of err
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// usage reports that cmd was called wrongly.
func usage(cmd *cobra.Command, format string, args ...any) *failure {
	return &failure{exitUsage, fmt.Errorf(format, args...), "see " + cmd.CommandPath() + " --help"}
}

// codeOf is the exit code for err.
func codeOf(err error) int {
	if err == nil {
		return exitOK
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	switch {
	case errors.Is(err, pawl.ErrNotFound):
		return exitNotFound
	case errors.Is(err, pawl.ErrConflict), errors.Is(err, pawl.ErrStale), errors.Is(err, pawl.ErrLive),
		errors.Is(err, pawl.ErrTerminal), errors.Is(err, pawl.ErrTooEarly), errors.Is(err, pawl.ErrExpired):
		return exitConflict
	}
	return exitFailed
}

// report prints err and what to do next.
func (a *app) report(err error) {
	text := oneLine(strings.TrimPrefix(err.Error(), "pawl: "))
	if errors.Is(err, pawl.ErrSchema) { // the store's advice has another program's name in it
		text, _, _ = strings.Cut(text, ": run pawl migrate")
	}
	a.note("%s: %s", a.o.name(), clean(text))
	if next := a.next(err); next != "" {
		a.note("  %s", next)
	}
}

// oneLine joins the lines of an error's text.
func oneLine(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(strings.ReplaceAll(line, "\t", " "))
		switch {
		case line == "" || b.Len() == 0:
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}

func (a *app) next(err error) string {
	if f, ok := errors.AsType[*failure](err); ok && f.next != "" {
		return f.next
	}
	switch {
	case errors.Is(err, pawl.ErrNotFound):
		return fmt.Sprintf("%s and %s list what there is", a.command("runs list"), a.command("inbox --all"))
	case errors.Is(err, pawl.ErrStale):
		return "look at the plan again: repeat the command"
	case errors.Is(err, pawl.ErrLive):
		return "wait for that run, or resume or cancel it first"
	case errors.Is(err, pawl.ErrTerminal):
		return fmt.Sprintf("a finished run stays as it is; %s and %s make a new one of it", a.command("runs retry"), a.command("runs fork"))
	case errors.Is(err, pawl.ErrTooEarly):
		return "look after that time, then answer again"
	case errors.Is(err, pawl.ErrConflict):
		return fmt.Sprintf("%s and %s show how things stand now", a.command("inbox"), a.command("runs show"))
	case errors.Is(err, pawl.ErrSchema):
		if strings.Contains(err.Error(), "newer build") {
			return "use a newer build of this program; nothing was changed"
		}
		return a.command("migrate") + " creates the tables, or brings them up to date"
	case errors.Is(err, pawl.ErrCommitUnknown):
		return "look whether it was done before you repeat it: " + a.command("runs show")
	case !a.opened, errors.Is(err, context.Canceled): // a command that is not ours; interrupted
		return ""
	}
	return "if the reason is not clear, " + a.command("doctor") + " checks the database"
}
