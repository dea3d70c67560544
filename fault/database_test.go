package fault_test

import (
	"database/sql"
	"fmt"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	_ "modernc.org/sqlite"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/fault/internal/fakesqlite"
)

// state is any driver's error that carries an SQLSTATE.
type state string

func (s state) Error() string    { return "sqlstate " + string(s) }
func (s state) SQLState() string { return string(s) }

func TestFromSQLState(t *testing.T) {
	lost := func(r fault.Reason) want { return want{fault.OutcomeUnknown, r, maybe} }
	invalid := func(r fault.Reason) want { return want{fault.InvalidRequest, r, rejected} }
	rows := map[string]want{
		"40001": {fault.Transient, "serialization_failure", rejected},
		"40P01": {fault.Transient, "deadlock", rejected},
		"40002": invalid("constraint"),
		"40003": lost("commit_unknown"),
		"55P03": {fault.Transient, "locked", rejected},
		"57014": {fault.Transient, "statement_timeout", rejected},
		"25P03": {fault.Transient, "statement_timeout", rejected},
		"25006": {fault.Transient, "read_only", rejected},
		"08001": {fault.Transient, "unreachable", notSent},
		"57P03": {fault.Transient, "unavailable", notSent},
		"53300": {fault.Transient, "unavailable", notSent},
		"53200": {fault.Transient, "overloaded", rejected},
		"08006": lost("connection_lost"),
		"08003": lost("connection_lost"),
		"57P01": lost("admin_shutdown"),
		"57P02": lost("crash_shutdown"),
		"08007": lost("commit_unknown"),
		"08P01": {fault.InvalidRequest, "protocol_violation", maybe},
		"23505": invalid("unique_violation"),
		"23P01": invalid("unique_violation"),
		"23503": invalid("constraint"),
		"23514": invalid("constraint"),
		"22P02": invalid("malformed"),
		"22001": invalid("malformed"),
		"42P01": invalid("schema_mismatch"),
		"0A000": invalid("unsupported_method"),
		"54000": invalid("too_large"),
		"XX001": invalid("storage_corrupt"),
		"42501": {fault.AccessDenied, "authorization", rejected},
		"28P01": {fault.AccessDenied, "authentication", notSent},
		"28000": {fault.AccessDenied, "authentication", notSent},
		"08004": {fault.AccessDenied, "authentication", notSent},
		"53100": {fault.QuotaExhausted, "storage_full", rejected},
		"P0001": lost("unrecognized"),
		"XX000": lost("unrecognized"),
		"":      lost("unrecognized"),
		"4000":  lost("unrecognized"),
	}
	for code, w := range rows {
		check(t, "SQLSTATE "+code, fault.From(fmt.Errorf("save: %w", state(code))), w)
		check(t, "SQLSTATE "+code+" from pgx", fault.From(fmt.Errorf("save: %w", &pgconn.PgError{Code: code})), w)
	}
}

func TestFromPgxConnect(t *testing.T) {
	_, err := pgx.Connect(t.Context(), "postgres://127.0.0.1:"+port(t)+"/x?sslmode=disable")
	check(t, "pgx cannot connect: nothing was sent", fault.From(err), want{fault.Transient, fault.ReasonUnreachable, notSent})
	_, err = pgx.Connect(ended(t), "postgres://127.0.0.1:"+port(t)+"/x?sslmode=disable")
	f := fault.FromContext(ended(t), nil, err)
	if f.Class != fault.Canceled {
		t.Errorf("our own cancellation of a connect is canceled: got %v", f)
	}
}

// brokenPipe takes n bytes and then fails.
type brokenPipe struct{ n int }

func (p brokenPipe) Write([]byte) (int, error) { return p.n, syscall.EPIPE }

func TestFromPgxSafeToRetry(t *testing.T) {
	for n, w := range map[int]want{
		0: {fault.Transient, fault.ReasonConnectionLost, notSent},
		1: {fault.OutcomeUnknown, fault.ReasonConnectionLost, maybe},
	} {
		frontend := pgproto3.NewFrontend(nil, brokenPipe{n})
		frontend.SendQuery(&pgproto3.Query{String: "INSERT"})
		check(t, fmt.Sprintf("pgx wrote %d bytes of a query", n), fault.From(frontend.Flush()), w)
	}
}

func TestFromSQLiteCodes(t *testing.T) {
	rows := map[fakesqlite.Error]want{
		5:    {fault.Transient, "locked", rejected},
		261:  {fault.Transient, "locked", rejected}, // BUSY_RECOVERY
		517:  {fault.Transient, "stale_snapshot", rejected},
		6:    {fault.Transient, "locked", rejected},
		9:    {fault.Transient, "statement_timeout", rejected},
		13:   {fault.QuotaExhausted, "storage_full", rejected},
		19:   {fault.InvalidRequest, "constraint", rejected},
		787:  {fault.InvalidRequest, "constraint", rejected},
		2067: {fault.InvalidRequest, "unique_violation", rejected},
		1555: {fault.InvalidRequest, "unique_violation", rejected},
		11:   {fault.InvalidRequest, "storage_corrupt", rejected},
		26:   {fault.InvalidRequest, "storage_corrupt", rejected},
		1:    {fault.InvalidRequest, "schema_mismatch", rejected},
		18:   {fault.InvalidRequest, "too_large", rejected},
		8:    {fault.AccessDenied, "authorization", rejected},
		1034: {fault.OutcomeUnknown, "commit_unknown", maybe}, // IOERR_FSYNC
		2:    {fault.OutcomeUnknown, "unrecognized", maybe},
		0:    {fault.OutcomeUnknown, "unrecognized", maybe},
	}
	for code, w := range rows {
		check(t, fmt.Sprintf("SQLite code %d", code), fault.From(fmt.Errorf("save: %w", &code)), w)
	}
}

// coded has a method Code that has nothing to do with SQLite.
type coded int

func (c coded) Error() string { return "coded" }
func (c coded) Code() int     { return int(c) }

func TestCodeOfAnotherLibraryIsNotSQLite(t *testing.T) {
	check(t, "a method Code() int alone proves nothing", fault.From(coded(5)), want{fault.OutcomeUnknown, "unrecognized", maybe})
}

func TestFromRealSQLite(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/x.db?_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec := func(c interface {
		Exec(string, ...any) (sql.Result, error)
	}, text string) error {
		_, err := c.Exec(text)
		return err
	}
	if err := exec(db, "CREATE TABLE x (id INTEGER PRIMARY KEY, n INTEGER UNIQUE NOT NULL); INSERT INTO x VALUES (1, 1)"); err != nil {
		t.Fatal(err)
	}
	check(t, "unique index", fault.From(exec(db, "INSERT INTO x VALUES (2, 1)")), want{fault.InvalidRequest, "unique_violation", rejected})
	check(t, "primary key", fault.From(exec(db, "INSERT INTO x VALUES (1, 2)")), want{fault.InvalidRequest, "unique_violation", rejected})
	check(t, "not null", fault.From(exec(db, "INSERT INTO x VALUES (2, NULL)")), want{fault.InvalidRequest, "constraint", rejected})
	check(t, "no such table", fault.From(exec(db, "INSERT INTO y VALUES (2)")), want{fault.InvalidRequest, "schema_mismatch", rejected})

	reader, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := reader.QueryRow("SELECT count(*) FROM x").Scan(&n); err != nil {
		t.Fatal(err)
	}
	writer, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := exec(writer, "INSERT INTO x VALUES (3, 3)"); err != nil {
		t.Fatal(err)
	}
	check(t, "two writers", fault.From(exec(db, "INSERT INTO x VALUES (4, 4)")), want{fault.Transient, "locked", rejected})
	if err := writer.Commit(); err != nil {
		t.Fatal(err)
	}
	check(t, "a write after an old read", fault.From(exec(reader, "INSERT INTO x VALUES (5, 5)")), want{fault.Transient, "stale_snapshot", rejected})
	reader.Rollback()
	check(t, "sql.ErrNoRows", fault.From(db.QueryRow("SELECT n FROM x WHERE id = 99").Scan(&n)), want{fault.OutcomeUnknown, "unrecognized", maybe})
}
