package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

// store is a store of runs and the pool for the demo's own tables beside it.
type store interface {
	pawl.Store
	DB() *sql.DB
	Close() error
}

func isURL(db string) bool {
	return strings.HasPrefix(db, "postgres://") || strings.HasPrefix(db, "postgresql://")
}

// checkDB refuses what looks like a URL of another kind, or without its scheme, before a file of that name is made. It
// does not quote it: there may be a password in it.
func checkDB(db string) error {
	before, _, at := strings.Cut(db, "@")
	bare := at && strings.Contains(before, ":") && !strings.Contains(before, "/")
	if !isURL(db) && (bare || strings.Contains(db, "://")) {
		return errors.New("--db is neither a file nor a postgres:// URL: write it like postgres://user:password@host:5432/database")
	}
	return nil
}

// shown is db as it may be printed.
func shown(db string) string {
	if !isURL(db) {
		return db
	}
	u, err := url.Parse(db)
	if err != nil || strings.Contains(strings.ToLower(u.RawQuery), "passw") {
		return "(PostgreSQL)"
	}
	return u.Redacted()
}

// openStore opens a PostgreSQL database or a SQLite file. Connections are few, because many processes share the server.
func openStore(ctx context.Context, db string, migrate bool) (store, error) {
	if isURL(db) {
		s, err := postgres.Open(ctx, db, &postgres.Options{Migrate: migrate, MaxConns: 4})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	s, err := sqlite.Open(db, nil)
	if err != nil {
		return nil, err
	}
	return s, nil
}

const (
	scoresTable = `CREATE TABLE IF NOT EXISTS pawl_demo_scores (
	ticket  TEXT NOT NULL,
	urgency BIGINT NOT NULL,
	reason  TEXT NOT NULL
)`
	jobsTable = `CREATE TABLE IF NOT EXISTS pawl_demo_jobs (
	ticket  TEXT PRIMARY KEY,
	status  TEXT NOT NULL CHECK (status IN ('queued', 'running', 'succeeded')),
	attempt BIGINT NOT NULL
)`
)

// createTables makes the tables of the demo's own: what "record" writes to, and the queue of the plain runner.
func createTables(ctx context.Context, db *sql.DB) error {
	for _, table := range []string{scoresTable, jobsTable} {
		if _, err := db.ExecContext(ctx, table); err != nil {
			return fmt.Errorf("create the demo's tables: %w", err)
		}
	}
	return nil
}

const scoreInsert = `INSERT INTO pawl_demo_scores (ticket, urgency, reason) VALUES ($1, $2, $3)`

func insertScore(ctx context.Context, tx *sql.Tx, s score) (int64, error) {
	r, err := tx.ExecContext(ctx, scoreInsert, s.Ticket, s.Urgency, s.Reason)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

const scoresCount = `SELECT count(*) FROM pawl_demo_scores WHERE ticket = $1`

func countScores(ctx context.Context, db *sql.DB, ticket string) (n int, err error) {
	if err := db.QueryRowContext(ctx, scoresCount, ticket).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the rows of %s: %w", ticket, err)
	}
	return n, nil
}
