package postgres

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/pgtest"
)

func dial(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// Rows are scanned as pgx scans them, and what pgx refuses is refused.
func TestRowsAreScannedAsByPgx(t *testing.T) {
	t.Parallel()
	conn := dial(t)
	exec := func(text string) {
		if _, err := conn.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE DOMAIN word AS TEXT CHECK (VALUE <> 'no')`)
	for _, c := range []struct {
		value string
		into  []any // a pointer of each type
	}{
		{`'some text'`, []any{new(string), new(pawl.RunID), new([]byte), new(int64)}},
		{`'word'::word`, []any{new(string), new(pawl.RunState)}},
		{`''`, []any{new(string)}},
		{`'0192d0c0-0000-7000-8000-00000000abcd'::uuid`, []any{new(string), new(pawl.RunID), new(int64)}},
		{`(-9223372036854775808)::bigint`, []any{new(int64), new(int), new(int32), new(string), new(bool)}},
		{`(-7)::int`, []any{new(int64), new(int), new(int32), new(int8)}},
		{`300::int`, []any{new(int8)}},
		{`TRUE`, []any{new(bool), new(int64)}},
		{`FALSE`, []any{new(bool)}},
		{`'\x0001ff'::bytea`, []any{new([]byte), new(string)}},
		{`'\x'::bytea`, []any{new([]byte)}},
		{`NULL::text`, []any{new(string), new(*string), new([]byte)}},
		{`NULL::bigint`, []any{new(int64)}},
		{`NULL::bytea`, []any{new([]byte)}},
		{`1.5::float8`, []any{new(float64), new(int64)}},
	} {
		for _, to := range c.into {
			for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
				plain, ours := reflect.New(reflect.TypeOf(to).Elem()), reflect.New(reflect.TypeOf(to).Elem())
				scan := func(rows pgx.Rows, err error, into any, own bool) error {
					if err != nil {
						t.Fatal(err)
					}
					defer rows.Close()
					if !rows.Next() {
						t.Fatalf("%s: no row: %v", c.value, rows.Err())
					}
					if own {
						return pgxRows{rows}.Scan(into)
					}
					return rows.Scan(into)
				}
				rows, err := conn.Query(t.Context(), "SELECT "+c.value, mode)
				want := scan(rows, err, plain.Interface(), false)
				rows, err = conn.Query(t.Context(), "SELECT "+c.value, mode)
				got := scan(rows, err, ours.Interface(), true)
				if (got == nil) != (want == nil) || want == nil && !reflect.DeepEqual(ours.Interface(), plain.Interface()) {
					t.Errorf("%s into %T, %v: %v, %v; pgx has %v, %v", c.value, to, mode, ours.Elem(), got, plain.Elem(), want)
				}
			}
		}
	}
}

// A row does not change when the next one is scanned into the same fields.
func TestRowsKeepWhatTheyHave(t *testing.T) {
	t.Parallel()
	conn := dial(t)
	rows, err := conn.Query(t.Context(), `SELECT convert_to(v, 'UTF8'), v FROM (VALUES ('one'), ('two'), ('two')) AS v (v)`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var data []byte
	var text string
	var all [][]byte
	var texts []string
	for rows.Next() {
		if err := (pgxRows{rows}).Scan(&data, &text); err != nil {
			t.Fatal(err)
		}
		all, texts = append(all, data), append(texts, text)
	}
	for i, want := range []string{"one", "two", "two"} {
		if string(all[i]) != want || texts[i] != want {
			t.Errorf("row %d: %q, %q, want %q", i, all[i], texts[i], want)
		}
	}
}

// After its transaction has been rolled back nothing is sent on the connection any more: it would be committed by itself.
func TestNothingIsQueriedOutsideOfTheTransaction(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(t.Context(), `CREATE TABLE one (n BIGINT)`); err != nil {
		t.Fatal(err)
	}
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	in := native{pawl.SQLConn(tx), conn}
	add := func() error {
		return in.Each(t.Context(), `INSERT INTO one VALUES ($1) RETURNING n`, []any{int64(7)}, func(r pawl.Rows) error { return r.Scan(&n) })
	}
	if err := add(); err != nil || n != 7 {
		t.Errorf("in the transaction: %d, %v", n, err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := add(); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("after the rollback: %v, want %v", err, sql.ErrTxDone)
	}
	if err := conn.QueryRowContext(t.Context(), `SELECT count(*) FROM one`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows are there, %v", n, err)
	}
}
