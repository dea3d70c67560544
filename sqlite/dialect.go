package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	sqlite3 "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/host"
	"github.com/pawlrun/pawl/internal/sqlstore"
)

// connector opens connections that have the store's clocks as SQL functions. They are registered on a driver of the
// store's own, so that neither the process's "sqlite" driver nor another store sees them.
type connector struct {
	driver *sqlite3.Driver
	dsn    string
}

func newConnector(name string, busy time.Duration, h hooks.Store) (*connector, error) {
	c := &connector{new(sqlite3.Driver), dsn(name, busy)}
	lease, wall := leaseNow, now
	if h.WallLease {
		lease = now
	}
	if h.Wall != nil {
		wall = func() int64 { return now() + h.Wall().Microseconds() }
	}
	for name, f := range map[string]func() int64{"pawl_now": wall, "pawl_lease_now": lease} {
		err := c.driver.RegisterScalarFunction(name, 0, func(*sqlite3.FunctionContext, []driver.Value) (driver.Value, error) {
			return f(), nil
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c *connector) Driver() driver.Driver                        { return c.driver }

// now is the wall clock, in a synctest bubble the bubble's.
func now() int64 { return time.Now().UnixMicro() }

// leaseNow goes on while the machine sleeps, and does not jump when its clock is set. It begins anew at each boot, which
// is why a lease is stored with the boot's id.
func leaseNow() int64 {
	if boot, ok := host.BootTime(); ok {
		return boot.Microseconds()
	}
	return now()
}

// leaseClock names the clock that leaseNow reads.
func leaseClock(h hooks.Store) string {
	_, ok := host.BootTime()
	boot := host.BootID()
	if h.WallLease || !ok || boot == "" {
		return "wall"
	}
	return boot
}

func dialect(h hooks.Store, name string) sqlstore.Dialect {
	offset := ""
	if h.Offset {
		offset = " + (SELECT offset_us FROM pawl_test_clock)"
	}
	clock := "'" + strings.ReplaceAll(leaseClock(h), "'", "''") + "'"
	return sqlstore.Dialect{
		Name:      "sqlite",
		Goose:     goose.DialectSQLite3,
		OneWriter: true,
		Fragments: sqlstore.Fragments{
			Now:       "(pawl_now()" + offset + ")",
			LeaseNow:  "(pawl_lease_now()" + offset + ")",
			Clock:     clock,
			Server:    clock,
			ID:        "TEXT",
			Bytes:     "BLOB",
			Row:       "id",
			AnyOf:     "IN (",
			End:       ")",
			ByID:      " INDEXED BY sqlite_autoindex_pawl_runs_1",
			ByDue:     " INDEXED BY pawl_runs_claim",
			ByOwner:   " INDEXED BY pawl_runs_owner",
			BySlot:    " INDEXED BY pawl_runs_slots",
			ByRun:     " INDEXED BY sqlite_autoindex_pawl_steps_1",
			ByKey:     " INDEXED BY sqlite_autoindex_pawl_keys_1",
			Hex:       "hex(",
			EndHex:    ")",
			Clustered: " WITHOUT ROWID",
			Stamp:     "strftime('%Y-%m-%dT%H:%M:%fZ', ",
			Stamped:   " / 1000000.0, 'unixepoch')",
			Table:     "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = $1",
		},
		Classify:      classify,
		CommitUnknown: func(err error) bool { return code(err)&0xff == lib.SQLITE_IOERR },
		Settings:      func(ctx context.Context, db *sql.DB) ([]pawl.Finding, error) { return settings(ctx, db, name) },
		GiveBack:      giveBack,
		MigrateHint:   "open it with sqlite.Open",
	}
}

// The file keeps an eighth of its pages, and at least these, free for what comes next: what is given back has to be asked
// for again. A statement gives back so many; each of them is a page that is moved.
const (
	sparePages = 256
	givePages  = 500
)

// giveBack works on files that were made with incremental vacuuming; others keep their size, and reuse what is free.
func giveBack(ctx context.Context, db *sql.DB) (string, error) {
	var free, pages, vacuum int64
	err := db.QueryRowContext(ctx, "SELECT freelist_count, page_count, auto_vacuum FROM pragma_freelist_count, pragma_page_count, pragma_auto_vacuum").
		Scan(&free, &pages, &vacuum)
	if err != nil || vacuum != autoVacuumIncremental || free <= max(pages/8, sparePages) {
		return "", err
	}
	return fmt.Sprintf("PRAGMA incremental_vacuum(%d)", givePages), nil
}

// code is the extended result code, 0 if err is not SQLite's.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite3.Error](err); ok {
		return e.Code()
	}
	return 0
}

func classify(err error) sqlstore.Class {
	switch c := code(err); {
	case c == lib.SQLITE_CONSTRAINT_PRIMARYKEY:
		return sqlstore.SameRow
	case c == lib.SQLITE_CONSTRAINT_UNIQUE:
		return sqlstore.SameMark
	case c&0xff == lib.SQLITE_CONSTRAINT, c&0xff == lib.SQLITE_TOOBIG:
		return sqlstore.Invalid
	case c&0xff == lib.SQLITE_BUSY, c&0xff == lib.SQLITE_LOCKED:
		return sqlstore.Aborted
	}
	return sqlstore.Other
}

// setUp claims the file for Pawl, sets what is kept in it and brings the schema up to date.
func (s *Store) setUp(ctx context.Context, memory bool, h hooks.Store) error {
	if err := s.again(ctx, func() error { return s.claimFile(ctx) }); err != nil {
		return plain(err)
	}
	if !memory {
		// Kept in the file. The switch needs the file for itself for a moment and does not wait for it.
		err := s.again(ctx, func() error {
			_, err := s.Writer().ExecContext(ctx, "PRAGMA journal_mode = WAL")
			return err
		})
		if err != nil {
			return fmt.Errorf("switch to write-ahead logging: %w", plain(err))
		}
	}
	if h.Offset {
		if err := s.AddTestClock(ctx); err != nil {
			return err
		}
	}
	return s.again(ctx, func() error { return s.Migrate(ctx) })
}

// claimFile marks an empty database as Pawl's, and refuses one that somebody else has put something into.
func (s *Store) claimFile(ctx context.Context) error {
	// Only an empty file takes it on, and has it for good.
	if _, err := s.Writer().ExecContext(ctx, "PRAGMA auto_vacuum = INCREMENTAL"); err != nil {
		return err
	}
	tx, err := s.Writer().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	var id, tables int64
	if err := tx.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if id == applicationID {
		return nil
	}
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
		return err
	}
	if id != 0 || tables > 0 {
		return fmt.Errorf("the file is another program's database (application id %#x, %d tables and indexes): "+
			"give Pawl a file of its own; your tables may go into that one", id, tables)
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
		return err
	}
	return tx.Commit()
}

// again repeats do while the file is locked.
func (s *Store) again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || classify(err) != sqlstore.Aborted {
			return err
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// plain replaces the errors whose text says little.
func plain(err error) error {
	switch code(err) & 0xff {
	case lib.SQLITE_NOTADB:
		return fmt.Errorf("the file is not a SQLite database, or it is encrypted: %w", err)
	case lib.SQLITE_CORRUPT:
		return fmt.Errorf("the file is damaged: %w", err)
	case lib.SQLITE_READONLY, lib.SQLITE_CANTOPEN, lib.SQLITE_PERM:
		return fmt.Errorf("no permission to write to the file or its directory: %w", err)
	}
	return err
}
