//go:build unix

package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawlrun/pawl/internal/pgtest"
)

// TestFailover: what was committed before the primary died is on the promoted standby, and a second failover works too.
func TestFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("three clusters")
	}
	primary := pgtest.Private(t)
	url := primary.NewDatabase(t)
	proxy := pgtest.NewProxy(t, url)
	url = proxy.Rewrite(t, url)
	must(t, url, `CREATE TABLE seen (n int)`)
	for n := range 2 {
		standby, err := primary.Standby(t)
		if err != nil {
			t.Fatal(err)
		}
		must(t, url, `INSERT INTO seen VALUES (1)`)
		if n == 1 {
			primary.Freeze(t)
		} else {
			primary.Kill(t)
		}
		standby.Promote(t)
		proxy.Retarget(t, standby.URL())
		proxy.CutAll()
		if n == 1 {
			primary.Kill(t)
		}
		primary.Remove(t)
		primary = standby
		if got := number(t, url, `SELECT count(*) FROM seen`); got != n+1 {
			t.Fatalf("%d rows after failover %d, want %d", got, n+1, n+1)
		}
	}
	must(t, url, `INSERT INTO seen VALUES (2)`) // nothing is waited for any more
}

// TestFakeClock: the server's clock is set while it runs, for sessions that are there too.
func TestFakeClock(t *testing.T) {
	if _, err := pgtest.FakeTime(); err != nil {
		t.Skip(err)
	}
	s := pgtest.Private(t, pgtest.FakeClock())
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, want := range []time.Duration{0, 5 * time.Minute, -3 * time.Minute, 0} {
		if err := s.SetClock(want); err != nil {
			t.Fatal(err)
		}
		var now time.Time
		if err := conn.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
			t.Fatal(err)
		}
		if got := time.Until(now); got < want-10*time.Second || got > want+10*time.Second {
			t.Errorf("the server's clock is off by %v, want %v", got, want)
		}
	}
}

// TestBouncer: two clients share one session, and a transaction has it for itself.
func TestBouncer(t *testing.T) {
	if _, err := pgtest.PgBouncer(); err != nil {
		t.Skip(err)
	}
	s := pgtest.Private(t)
	url := s.NewDatabase(t)
	url = pgtest.NewBouncer(t, url).Rewrite(t, url)
	must(t, url, `CREATE TABLE seen (n int)`)
	pid := number(t, url, `SELECT pg_backend_pid()`)
	if again := number(t, url, `SELECT pg_backend_pid()`); again != pid {
		t.Errorf("the second client has the session %d, the first had %d", again, pid)
	}
}

// TestLoseReply: a transaction is known by a statement in it, and takes effect although its client hears nothing.
func TestLoseReply(t *testing.T) {
	s := pgtest.Private(t)
	url := s.NewDatabase(t)
	proxy := pgtest.NewProxy(t, url)
	through := proxy.Rewrite(t, url)
	must(t, url, `CREATE TABLE seen (n int)`)
	two := func(sql string) bool { return sql == `INSERT INTO seen VALUES (2)` }
	proxy.LoseReply(1, two)
	must(t, through, `INSERT INTO seen VALUES (1)`) // another one
	conn, err := pgx.Connect(t.Context(), through)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO seen VALUES (2)`); err != nil {
		t.Fatalf("the statement itself: %v", err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the COMMIT was answered")
	}
	proxy.LoseReply(1, two)
	if conn, err = pgx.Connect(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO seen VALUES (2)`); err == nil {
		t.Error("a statement that commits by itself was answered")
	}
	if got := number(t, url, `SELECT count(*) FROM seen`); got != 3 {
		t.Errorf("%d rows, want 3", got)
	}
}

func must(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func number(t *testing.T, url, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
