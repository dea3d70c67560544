package postgres

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgset"
	"github.com/pawlrun/pawl/internal/sqlstore"
)

func dialect(h hooks.Store, weak *defaults) sqlstore.Dialect {
	// In a sub-select, so that it is read once for a statement and not once for a row.
	now := `(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)`
	if h.Offset {
		now = `(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + offset_us FROM pawl_test_clock)`
	}
	lock := " FOR NO KEY UPDATE"
	if hooks.Broken(hooks.W1) {
		lock = ""
	}
	return sqlstore.Dialect{
		Name:  "postgres",
		Goose: goose.DialectPostgres,
		Fragments: sqlstore.Fragments{
			Now:      now,
			LeaseNow: now,
			Clock:    "'server'",
			Server: `coalesce(host(inet_server_addr()), 'local') || ' ' || current_setting('port') || ' ' ||
	(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text`,
			Lock:    lock,
			Skip:    " FOR NO KEY UPDATE SKIP LOCKED",
			ID:      "UUID",
			Bytes:   "BYTEA",
			C:       ` COLLATE "C"`,
			Row:     "ctid",
			AnyOf:   "= ANY (ARRAY(",
			End:     "))",
			Hex:     "encode(",
			EndHex:  ", 'hex')",
			Stamp:   "to_timestamp(",
			Stamped: " / 1000000.0)",
			Table:   "SELECT count(to_regclass($1))",
			// Each claim and each end leaves a dead entry at the low end of an index that claims read from.
			Churn: " WITH (autovacuum_vacuum_scale_factor = 0.02)",
		},
		Write:         sql.LevelReadCommitted,
		Read:          sql.LevelRepeatableRead,
		Domains:       true,
		Send:          weak.send,
		SendBatch:     weak.sendBatch,
		Begin:         weak.begin,
		Native:        func(conn *sql.Conn, tx *sql.Tx) pawl.Conn { return native{pawl.SQLConn(tx), conn} },
		LockTopic:     `SELECT current_setting('transaction_isolation') WHERE pg_advisory_xact_lock($1) IS NOT NULL`,
		Steady:        "SELECT " + pgset.SetSteady,
		Classify:      classify,
		CommitUnknown: commitUnknown,
		Settings:      func(ctx context.Context, db *sql.DB) ([]pawl.Finding, error) { return settings(ctx, db) },
		Hint:          hint,
		Locker:        locker,
		MigrateHint:   "run pawl migrate --db URL, or open it with Options.Migrate",
	}
}

// locker lets one migrator in at a time. By a row of a table and not by a session's lock, which a pooler would break.
func locker() (lock.Locker, error) {
	return lock.NewPostgresTableLocker(
		lock.WithTableName(sqlstore.LockTable),
		lock.WithTableLockTimeout(250*time.Millisecond, 1200),
	)
}

func classify(err error) sqlstore.Class {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return sqlstore.Other
	}
	switch e.Code {
	case "40001", "40P01": // serialization failure, deadlock
		return sqlstore.Aborted
	case "55P03": // lock not available
		return sqlstore.Locked
	case "23505":
		if strings.HasSuffix(e.ConstraintName, "_pkey") {
			return sqlstore.SameRow
		}
		return sqlstore.SameMark
	case "25006": // read-only transaction: a standby, or a primary that has been demoted
		return sqlstore.Unusable
	}
	switch e.Code[:2] {
	case "22", "23", "54": // data exception, integrity constraint violation, program limit exceeded
		return sqlstore.Invalid
	}
	return sqlstore.Other
}

// commitUnknown: the server's word is believed, unless it says that the session or the system was going down. Anything
// else means that the answer did not arrive, except an error that proves that nothing was sent.
func commitUnknown(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "40003" || strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "57P0")
	}
	return !errors.Is(err, pgx.ErrTxCommitRollback) && !errors.Is(err, sql.ErrTxDone) && !pgconn.SafeToRetry(err)
}
