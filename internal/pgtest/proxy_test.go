//go:build unix

package pgtest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlrun/pawl/internal/pgtest"
)

// bench is a table that is looked at directly and written through a proxy.
type bench struct {
	proxy   *pgtest.Proxy
	direct  *pgx.Conn
	through string
}

func setup(t *testing.T) *bench {
	t.Helper()
	url := pgtest.URL(t)
	b := &bench{proxy: pgtest.NewProxy(t, url), direct: connect(t, url)}
	b.through = b.proxy.Rewrite(t, url)
	exec1(t, b.direct, `CREATE TABLE seen (n int)`)
	return b
}

func (b *bench) rows(t *testing.T) int {
	t.Helper()
	return scan[int](t, b.direct, `SELECT count(*)::int FROM seen`)
}

// open counts the transactions that hold a lock on the table.
func (b *bench) open(t *testing.T) int {
	t.Helper()
	return scan[int](t, b.direct, `SELECT count(*)::int FROM pg_locks WHERE relation = 'seen'::regclass AND pid <> pg_backend_pid()`)
}

// begin writes a row in a transaction.
func begin(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec1(t, conn, `BEGIN`)
	if _, err := conn.Exec(t.Context(), `INSERT INTO seen VALUES ($1)`, 1); err != nil {
		t.Fatal(err)
	}
}

// protocols are the ways to send a COMMIT.
var protocols = map[string]func(ctx context.Context, conn *pgx.Conn) error{
	"simple": func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, ` CommiT;`)
		return err
	},
	"extended": func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().ExecParams(ctx, `commit`, nil, nil, nil, nil).Close()
		return err
	},
	"prepared": func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Prepare(ctx, "finish", `commit`); err != nil {
			return err
		}
		_, err := conn.PgConn().ExecPrepared(ctx, "finish", nil, nil, nil).Close()
		return err
	},
	"batch": func(ctx context.Context, conn *pgx.Conn) error {
		var b pgx.Batch
		b.Queue(`INSERT INTO seen SELECT $1::int WHERE false`, 1)
		b.Queue(`commit`)
		return conn.SendBatch(ctx, &b).Close()
	},
}

func TestProxyPassesEverything(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn := connect(t, b.through)
	for name, commit := range protocols {
		begin(t, conn)
		if err := commit(t.Context(), conn); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := b.rows(t); got != len(protocols) {
		t.Errorf("%d rows, want %d", got, len(protocols))
	}
	big := strings.Repeat("x", 3<<20)
	if got := scan[string](t, conn, `SELECT $1::text`, big); got != big {
		t.Error("a big value comes back changed")
	}
	rows := [][]any{{1}, {2}, {3}}
	if n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"seen"}, []string{"n"}, pgx.CopyFromRows(rows)); n != 3 || err != nil {
		t.Errorf("COPY of 3 rows: %d, %v", n, err)
	}
	connect(t, strings.Replace(b.through, "sslmode=disable", "sslmode=prefer", 1))
	if conn, err := pgx.Connect(t.Context(), strings.Replace(b.through, "sslmode=disable", "sslmode=require", 1)); err == nil {
		conn.Close(t.Context())
		t.Error("the proxy speaks TLS")
	}
}

func TestProxyPassesCancelRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn := connect(t, b.through)
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `SELECT pg_sleep(60)`)
		done <- err
	}()
	waitFor(t, "the query", func() bool {
		return scan[int](t, b.direct, `SELECT count(*)::int FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND datname = current_database()`) == 1
	})
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the query was not cancelled")
	}
}

func TestCutAfterCommit(t *testing.T) {
	t.Parallel()
	for name, commit := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.proxy.CutAfterCommit(2)
			first, second := connect(t, b.through), connect(t, b.through)
			begin(t, first)
			begin(t, second)
			if err := commit(t.Context(), first); err != nil {
				t.Fatalf("the first COMMIT: %v", err)
			}
			if err := commit(t.Context(), second); err == nil {
				t.Error("the client learns of the second COMMIT")
			}
			if got := b.rows(t); got != 2 {
				t.Errorf("%d rows, want 2: the transaction is committed", got)
			}
			begin(t, first)
			if err := commit(t.Context(), first); err != nil {
				t.Errorf("the third COMMIT: %v", err)
			}
		})
	}
}

func TestCutBeforeCommit(t *testing.T) {
	t.Parallel()
	for name, commit := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.proxy.CutBeforeCommit(1)
			conn := connect(t, b.through)
			begin(t, conn)
			if err := commit(t.Context(), conn); err == nil {
				t.Error("the client gets an answer")
			}
			waitFor(t, "the end of the transaction", func() bool { return b.open(t) == 0 })
			if got := b.rows(t); got != 0 {
				t.Errorf("%d rows, want 0: the transaction is rolled back", got)
			}
		})
	}
}

func TestCutAfterAnyStatement(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.proxy.CutAfter(1, func(sql string) bool { return strings.HasPrefix(sql, "INSERT") })
	conn := connect(t, b.through)
	exec1(t, conn, `SELECT 1`)
	if _, err := conn.Exec(t.Context(), `INSERT INTO seen VALUES ($1)`, 1); err == nil {
		t.Error("the client gets an answer")
	}
	if got := b.rows(t); got != 1 {
		t.Errorf("%d rows, want 1", got)
	}
}

func TestHeldCommitOutlivesItsClient(t *testing.T) {
	t.Parallel()
	for name, commit := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			conn := connect(t, b.through)
			begin(t, conn)
			if name == "prepared" { // its preparation would be the first to match
				if _, err := conn.Prepare(t.Context(), "finish", `commit`); err != nil {
					t.Fatal(err)
				}
			}
			held := b.proxy.HoldCommit()
			done := make(chan error, 1)
			go func() { done <- commit(t.Context(), conn) }()
			<-held
			b.proxy.CutAll() // not a cancelled context: the driver would ask the server to cancel, at a time of its own
			if err := <-done; err == nil {
				t.Error("the client's COMMIT has an answer though its connection was cut while it was held")
			}
			if got := b.open(t); got != 1 {
				t.Errorf("%d transactions open while the COMMIT is held, want 1", got)
			}
			if got := b.rows(t); got != 0 {
				t.Errorf("%d rows while the COMMIT is held, want 0", got)
			}
			b.proxy.ReleaseCommit(t)
			if got := b.rows(t); got != 1 {
				t.Errorf("%d rows after the release, want 1", got)
			}
		})
	}
}

func TestHeldCommitIsAnswered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn := connect(t, b.through)
	begin(t, conn)
	held := b.proxy.HoldCommit()
	done := make(chan error, 1)
	go func() { done <- protocols["simple"](t.Context(), conn) }()
	<-held
	b.proxy.ReleaseCommit(t)
	if err := <-done; err != nil {
		t.Errorf("a released COMMIT: %v", err)
	}
	exec1(t, conn, `SELECT 1`)
}

func TestFreedCommitTellsWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	server := pgtest.Private(t)
	exec1(t, connect(t, server.URL()), `CREATE TABLE seen (n int)`)
	proxy := pgtest.NewProxy(t, server.URL())
	if err := proxy.FreeCommit(); err == nil {
		t.Error("a COMMIT was freed though none is held")
	}
	for _, gone := range []bool{false, true} {
		conn := connect(t, proxy.Rewrite(t, server.URL()))
		begin(t, conn)
		held := proxy.HoldCommit()
		done := make(chan error, 1)
		go func() { done <- protocols["simple"](t.Context(), conn) }()
		<-held
		if gone {
			server.Kill(t)
		}
		if err := proxy.FreeCommit(); (err != nil) != gone {
			t.Errorf("the freed COMMIT, server gone %v: %v", gone, err)
		}
		if err := <-done; (err != nil) != gone {
			t.Errorf("the client's COMMIT, server gone %v: %v", gone, err)
		}
	}
}

func TestDroppedCommitRollsBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn := connect(t, b.through)
	begin(t, conn)
	held := b.proxy.HoldCommit()
	done := make(chan error, 1)
	go func() { done <- protocols["extended"](t.Context(), conn) }()
	<-held
	b.proxy.DropCommit(t)
	if err := <-done; err == nil {
		t.Error("a lost COMMIT is answered")
	}
	waitFor(t, "the end of the transaction", func() bool { return b.open(t) == 0 })
	if got := b.rows(t); got != 0 {
		t.Errorf("%d rows, want 0", got)
	}
}

func TestHeldCommitEndsWithTheProxy(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	direct := connect(t, url)
	exec1(t, direct, `CREATE TABLE seen (n int)`)
	done := make(chan error, 1)
	t.Run("hold", func(t *testing.T) {
		proxy := pgtest.NewProxy(t, url)
		config := parse(t, proxy.Rewrite(t, url))
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		begin(t, conn)
		held := proxy.HoldCommit()
		go func() { done <- protocols["simple"](context.WithoutCancel(t.Context()), conn) }()
		<-held
	})
	if err := <-done; err == nil {
		t.Error("a COMMIT is answered after the proxy has ended")
	}
}

func TestCutAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool, err := pgxpool.New(t.Context(), b.through)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	conn := connect(t, b.through)
	begin(t, conn)
	if got := b.proxy.Connections(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	b.proxy.CutAll()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a cut connection works")
	}
	waitFor(t, "the end of the transaction", func() bool { return b.open(t) == 0 })
	if err := pool.Ping(t.Context()); err != nil {
		t.Errorf("connect after the cut: %v", err)
	}
}

func TestBlackHole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	early, late := connect(t, b.through), connect(t, b.through)
	b.proxy.BlackHole(true)
	b.proxy.BlackHole(true)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := early.Exec(short, `INSERT INTO seen VALUES (1)`); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a statement in a black hole: %v, want a timeout", err)
	}
	if _, err := pgx.Connect(short, b.through); err == nil {
		t.Error("a client connects through a black hole")
	}
	done := make(chan error, 1)
	go func() {
		_, err := late.Exec(t.Context(), `INSERT INTO seen VALUES (2)`)
		done <- err
	}()
	b.proxy.BlackHole(false)
	if err := <-done; err != nil {
		t.Errorf("a statement sent before the hole closed: %v", err)
	}
	exec1(t, connect(t, b.through), `SELECT 1`)
}

func TestProxyOutlivesARestartOfItsServer(t *testing.T) {
	t.Parallel()
	s := pgtest.Private(t)
	p := pgtest.NewProxy(t, s.URL())
	conn := connect(t, p.Rewrite(t, s.URL()))
	exec1(t, conn, `SELECT 1`)
	s.Stop(t)
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a session outlives its server")
	}
	if _, err := pgx.Connect(t.Context(), p.Rewrite(t, s.URL())); err == nil {
		t.Error("a client connects to a server that is down")
	}
	s.Start(t)
	exec1(t, connect(t, p.Rewrite(t, s.URL())), `SELECT 1`)
}

func TestProxyCountsRounds(t *testing.T) {
	t.Parallel()
	for name, commit := range protocols {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			conn := connect(t, b.through)
			rounds, commits := b.proxy.Rounds(), b.proxy.Commits()
			want := func(what string, moreRounds, moreCommits int) {
				t.Helper()
				rounds, commits = rounds+moreRounds, commits+moreCommits
				if b.proxy.Rounds() != rounds || b.proxy.Commits() != commits {
					t.Errorf("%s: %d rounds with %d commits, want %d with %d", what, b.proxy.Rounds(), b.proxy.Commits(), rounds, commits)
				}
			}
			begin(t, conn)
			want("BEGIN and an INSERT", 2, 0)
			if err := conn.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			want("a ping", 0, 0)
			held := b.proxy.HoldCommit()
			done := make(chan error, 1)
			go func() { done <- commit(t.Context(), conn) }()
			<-held
			want("a COMMIT that is held", 0, 0)
			b.proxy.ReleaseCommit(t)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			want("the COMMIT", 1, 1)
		})
	}
}
