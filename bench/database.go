package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

// openSQL opens the target with the standard settings of this benchmark: on SQLite WAL and synchronous=FULL.
func openSQL(t target, conns int) (*sql.DB, error) {
	name, dsn := "pgx", t.URL
	if t.URL == "" {
		q := url.Values{"_txlock": {"immediate"}, "_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"}}
		name, dsn = "sqlite", (&url.URL{Scheme: "file", Path: t.Path, RawQuery: q.Encode()}).String()
	}
	db, err := sql.Open(name, dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// countRows runs a query that gives finished runs, open runs and step rows.
func countRows(ctx context.Context, db *sql.DB, query string) (n tally, err error) {
	err = db.QueryRowContext(ctx, query).Scan(&n.finished, &n.open, &n.steps)
	return n, err
}

// execAll runs statements one after the other.
func execAll(ctx context.Context, db *sql.DB, statements ...string) error {
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%.60s: %w", s, err)
		}
	}
	return nil
}
