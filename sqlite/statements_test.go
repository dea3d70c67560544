package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/pawlrun/pawl/sqlite"
)

// A connection of the store's keeps what it has prepared, and nobody sees a difference.
func TestKeptStatements(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	conn, kept := sqlite.Preparing(t, path)
	exec := func(text string, args ...any) error {
		_, err := conn.ExecContext(t.Context(), text, args...)
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	one := func(text string, args ...any) (n int) {
		t.Helper()
		must(conn.QueryRowContext(t.Context(), text, args...).Scan(&n))
		return n
	}
	const insert, sum = `INSERT INTO a (n) VALUES (?)`, `SELECT sum(n) FROM a WHERE n > ?`
	must(exec(`CREATE TABLE a (n INTEGER UNIQUE); CREATE TABLE b (n INTEGER)`))
	before := kept()
	for n := range 5 {
		must(exec(insert, n))
	}
	if got := one(sum, 0) + one(sum, 3); got != 14 {
		t.Errorf("sums of %d, want 14", got)
	}
	if n := kept() - before; n != 2 {
		t.Errorf("%d statements are kept for two texts", n)
	}

	// A text whose rows are being read is run again, and both readers see their own.
	const list = `SELECT n FROM a WHERE n >= ? ORDER BY n`
	outer, err := conn.QueryContext(t.Context(), list, 1)
	must(err)
	var got []string
	for outer.Next() {
		var n int
		must(outer.Scan(&n))
		got = append(got, fmt.Sprint(n, "/", one(list, n)))
	}
	must(errors.Join(outer.Err(), outer.Close()))
	if s := fmt.Sprint(got); s != "[1/1 2/2 3/3 4/4]" {
		t.Errorf("nested reads gave %s", s)
	}

	// What has failed works when its reason is gone; what was cut off, too.
	if err := exec(insert, 3); err == nil {
		t.Error("a value was inserted twice")
	}
	must(exec(insert, 5))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := conn.ExecContext(ended, insert, 6); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	must(exec(insert, 6))

	// Tables change under a statement: by this connection and by another one.
	const all = `SELECT count(*) FROM b`
	if n := one(all); n != 0 {
		t.Errorf("%d rows in an empty table", n)
	}
	must(exec(`ALTER TABLE b ADD COLUMN more INTEGER`))
	other, _ := sqlite.Preparing(t, path)
	_, err = other.ExecContext(t.Context(), `DROP TABLE b; CREATE TABLE b (n INTEGER, m INTEGER); INSERT INTO b VALUES (1, 2)`)
	must(err)
	if n := one(all); n != 1 {
		t.Errorf("%d rows in the table that another connection made", n)
	}

	for i := range 1000 {
		if n := one(fmt.Sprintf(`SELECT %d`, i)); n != i {
			t.Errorf("SELECT %d gave %d", i, n)
		}
	}
	if n := kept(); n > 256 {
		t.Errorf("%d statements are kept after a thousand texts", n)
	}
}
