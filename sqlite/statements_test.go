package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
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

// After an ANALYZE there are histograms, which tempt SQLite to plan a statement anew for each value of a parameter.
func TestPlansAreKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	first := open(t, path)
	insert(t, first, 500)
	_, err := first.DB().ExecContext(t.Context(), `ANALYZE`)
	ok(err)
	closeStore(t, first)

	s := open(t, path)
	planned := sqlite.Planned(t, s)
	w := pawl.WorkerRow{ID: pawl.WorkerID(uuid.NewString()), Lease: time.Minute}
	ok(s.Register(t.Context(), w, w1))
	for round := range 6 {
		if round == 2 { // all texts have come
			planned.Store(0)
		}
		got, err := s.Claim(t.Context(), pawl.Claim{Worker: w.ID, Has: w1, Limit: 5, Token: int64(round + 1)})
		ok(err)
		for i := range got {
			run := &got[i].Row
			c := pawl.Change{Run: run.ID, Epoch: run.Epoch, Token: run.Token}
			write := func() {
				t.Helper()
				_, err := s.Write(t.Context(), []pawl.Change{c})
				ok(err)
			}
			step := pawl.StepRow{Run: run.ID, Name: "a", Kind: fault.KindOnce, State: pawl.StepInFlight, Attempt: 1, Epoch: run.Epoch, Key: "k", Begun: pawl.AtWrite}
			c.Insert = []*pawl.StepRow{&step}
			write()
			step.State, step.Ended = pawl.StepSucceeded, pawl.AtWrite
			c.Insert, c.Settle, c.End = nil, []*pawl.StepRow{&step}, &pawl.RunEnd{State: pawl.Succeeded, Row: run}
			write()
		}
		ok(s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error { // ends what is remembered of claims
			_, err := tx.LockRun(ctx, got[0].Row.ID)
			return err
		}))
	}
	if n := planned.Load(); n > 0 {
		t.Errorf("statements were planned again: SQLite asked %d times", n)
	}
}

func TestSteady(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`SELECT 1 FROM pawl_runs WHERE id = $1 AND due <= $12`: `SELECT 1 FROM pawl_runs WHERE id = +$1 AND due <= +$12`,
		`UPDATE pawl_runs SET builds = '$1 ''$2''' || $3`:      `UPDATE pawl_runs SET builds = '$1 ''$2''' || +$3`,
		`SELECT "$1" FROM pawl_runs WHERE id = $1`:             `SELECT "$1" FROM pawl_runs WHERE id = +$1`,
		`SELECT 1 FROM orders WHERE id = $1`:                   `SELECT 1 FROM orders WHERE id = $1`,
	} {
		if got := sqlite.Steady(text); got != want {
			t.Errorf("%s is prepared as %s, want %s", text, got, want)
		}
	}
}
