package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

func (o Options) db() string { return cmp.Or(o.DB, "pawl.db") }

// database is --db, else PAWL_DB, else the program's default.
func (a *app) database() string { return cmp.Or(a.db, os.Getenv("PAWL_DB"), a.o.db()) }

// purpose says whether a command may create the database.
type purpose bool

const (
	look  purpose = false // the database must be there
	write purpose = true  // a missing SQLite file is created
)

var (
	isDSN = regexp.MustCompile(`(^|\s)(host|hostaddr|port|user|password|dbname|service|sslmode)\s*=`)
	// isBare is a URL whose scheme was forgotten: user:password@host, user@host:port. A file of such a name is ./user:….
	isBare = regexp.MustCompile(`^(//)?([^/\s:@]*:.*@|[^/\s@]+@[^/\s:]*:[0-9]+(/|$))`)
)

// mistyped reports whether db looks like an attempt at a PostgreSQL URL that is none. It may have a password in it.
func mistyped(db string) bool {
	scheme, _, found := strings.Cut(db, "://")
	if found {
		return scheme != "postgres" && scheme != "postgresql"
	}
	return isDSN.MatchString(db) || isBare.MatchString(db) || strings.HasPrefix(db, "postgres:") || strings.HasPrefix(db, "postgresql:")
}

// isPostgres reports whether db is a PostgreSQL URL rather than a file. What looks like an attempt at one is an error,
// so that a mistyped URL is not taken for the name of a file and printed with its password.
func isPostgres(cmd *cobra.Command, db string) (bool, error) {
	switch {
	case mistyped(db):
		err := usage(cmd, "--db (or PAWL_DB) is neither a file nor a postgres:// URL")
		err.next = "write it like postgres://user:password@host:5432/database, or name a SQLite file"
		return false, err
	case strings.TrimSpace(db) == "":
		return false, usage(cmd, "--db is empty")
	}
	return strings.Contains(db, "://"), nil
}

// openStore opens the database.
func (a *app) openStore(cmd *cobra.Command, p purpose) (pawl.Store, error) {
	db := a.database()
	pg, err := isPostgres(cmd, db)
	if err != nil {
		return nil, err
	}
	if pg {
		s, err := postgres.Open(cmd.Context(), db, nil)
		if err != nil {
			return nil, a.unopened(err)
		}
		return s, nil
	}
	if p == look {
		if err := a.fileThere(db); err != nil {
			return nil, err
		}
	}
	s, err := sqlite.Open(db, nil)
	if err != nil {
		return nil, a.unopened(err)
	}
	return s, nil
}

func (a *app) unopened(err error) error {
	if errors.Is(err, pawl.ErrSchema) {
		return err
	}
	if strings.Contains(err.Error(), "the URL cannot be read") {
		return &failure{exitUsage, err, "correct the URL in --db or PAWL_DB"}
	}
	return &failure{codeOf(err), err, whatToCheck(err)}
}

// whatToCheck says what to look at if a database cannot be opened.
func whatToCheck(err error) string {
	denied := strings.Contains(err.Error(), "no permission") || strings.Contains(err.Error(), "no file can be created")
	_, unreachable := errors.AsType[*pgconn.ConnectError](err)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch e.Code {
		case "28P01", "28000":
			return "check user and password in the URL, and what the server's pg_hba.conf allows"
		case "3D000":
			return "create that database first, or name the right one with --db or PAWL_DB"
		case "42501":
			return "ask for a role with the rights that are missing, or name another in the URL"
		}
		unreachable = false
	}
	switch {
	case denied:
		return "this user needs the right to write to the file and to its directory; whoever only looks needs it too"
	case unreachable:
		return "check that the server runs, and that host and port in the URL are its own"
	}
	return "name the right database with --db or PAWL_DB"
}

// fileThere fails if a SQLite file is missing. A command that only looks must not leave an empty one behind.
func (a *app) fileThere(db string) error {
	_, err := os.Stat(db)
	if errors.Is(err, fs.ErrNotExist) {
		return &failure{exitNotFound, fmt.Errorf("there is no database %s", db),
			fmt.Sprintf("name it with --db or PAWL_DB; `%s work`, `start` and `migrate` create one", a.o.name())}
	}
	return nil // any other trouble is the store's to describe
}

// session is an engine on an open database.
type session struct {
	*pawl.Engine
	a     *app
	cmd   *cobra.Command
	store pawl.Store
}

// with opens the database, runs fn and closes the database.
func (a *app) with(cmd *cobra.Command, p purpose, fn func(ctx context.Context, s *session) error) error {
	return a.withEngine(cmd, p, a.o.Engine, a.defs, slog.LevelWarn, fn)
}

func (a *app) withEngine(cmd *cobra.Command, p purpose, o pawl.Options, defs []pawl.Definition, level slog.Level,
	fn func(ctx context.Context, s *session) error) (err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
	}
	store, err := a.openStore(cmd, p)
	if err != nil {
		return err
	}
	a.opened = true
	defer func() { err = errors.Join(err, store.Close()) }()
	e, err := pawl.New(store, &o, defs...)
	if err != nil {
		return err
	}
	return fn(cmd.Context(), &session{e, a, cmd, store})
}

// run finds the run that an argument names by its id or the beginning of it.
func (s *session) run(ctx context.Context, arg string) (pawl.RunID, error) {
	id, err := s.store.FindRun(ctx, arg)
	return id, s.found(err)
}

// entry finds the inbox entry that an argument names by its id or the beginning of it.
func (s *session) entry(ctx context.Context, arg string) (*pawl.Entry, error) {
	id, err := s.store.FindEntry(ctx, arg)
	if err != nil {
		return nil, s.found(err)
	}
	var run pawl.RunID
	if err := s.store.View(ctx, func(ctx context.Context, tx pawl.Txn) error {
		row, err := tx.Entry(ctx, id)
		if err == nil {
			run = row.Run
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("entry %s: %w", id, err)
	}
	entries, err := s.entries(ctx, run, true)
	for i := range entries {
		if entries[i].ID == id {
			return &entries[i], nil
		}
	}
	return nil, errors.Join(err, fmt.Errorf("entry %s: %w", id, pawl.ErrNotFound)) // unreachable unless it is deleted now
}

// entries are a run's inbox entries, oldest first; only the open ones unless all.
func (s *session) entries(ctx context.Context, run pawl.RunID, all bool) ([]pawl.Entry, error) {
	var entries []pawl.Entry
	for q := (pawl.InboxQuery{Run: run, All: all, Limit: 1000}); ; {
		page, next, err := s.Inbox(ctx, q)
		entries = append(entries, page...)
		if err != nil || next == "" {
			return entries, err
		}
		q.After = next
	}
}

// row reads the run's row, without its journal.
func (s *session) row(ctx context.Context, id pawl.RunID) (row *pawl.RunRow, err error) {
	err = s.store.View(ctx, func(ctx context.Context, tx pawl.Txn) error {
		row, err = tx.LockRun(ctx, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", id, err)
	}
	return row, nil
}

// found makes a usage error of a prefix that several ids have. The store promises ErrNotFound or an error that lists the
// candidates, and wraps what the database reports.
func (s *session) found(err error) error {
	if err == nil || errors.Is(err, pawl.ErrNotFound) || errors.Unwrap(err) != nil {
		return err
	}
	return &failure{exitUsage, err, "give more of the id"}
}

// line is a command of this program, as a person would type it to reach the same database.
func (a *app) line(args string) string {
	s := a.o.name() + " " + args
	switch {
	case a.db == "":
	case mistyped(a.db) || secret(a.db):
		s += " --db …"
	default:
		s += " --db " + quote(a.db)
	}
	return s
}

// secret reports whether a URL has a password in it, or may have one.
func secret(db string) bool {
	if !strings.Contains(db, "://") {
		return false
	}
	u, err := url.Parse(db)
	if err != nil {
		return true
	}
	_, has := u.User.Password()
	return has || strings.Contains(strings.ToLower(u.RawQuery), "passw")
}

// command is line within a sentence.
func (a *app) command(args string) string { return "`" + a.line(args) + "`" }
