package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/storetest"
)

// As behind a pooler: no named statements, and defaults of the database that are as weak as they can be.
func TestStoreOnWeakDefaults(t *testing.T) {
	if testing.Short() {
		t.Skip("the same suite once more")
	}
	s := &schemas{url: pgtest.URL(t)}
	weaken(t, s.url)
	storetest.Run(t, func(t testing.TB) pawl.Store {
		return open(t, s.take(t)+"&default_query_exec_mode=simple_protocol")
	})
}

func weaken(t testing.TB, url string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, set := range []string{"synchronous_commit = off", "default_transaction_isolation = serializable",
		"idle_in_transaction_session_timeout = 0", "timezone = 'Asia/Tokyo'"} {
		if _, err := conn.Exec(ctx, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+strings.ReplaceAll(set, "'", "''")+`', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
	}
}

func newRun() pawl.RunRow {
	id := pawl.RunID(uuid.Must(uuid.NewV7()).String())
	return pawl.RunRow{ID: id, Lineage: id, Workflow: "w", Version: "1", KeyName: "w", Queue: "w", State: pawl.Queued}
}

func insert(s pawl.Store, ctx context.Context, row pawl.RunRow) error {
	return s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{row}) })
}

func there(t *testing.T, s pawl.Store, id pawl.RunID) bool {
	t.Helper()
	rows, err := s.ListRuns(t.Context(), pawl.RunQuery{Lineage: id})
	if err != nil {
		t.Fatal(err)
	}
	return len(rows) == 1
}

// shown reads a setting inside a write transaction of the store and, after it, on the same connection.
func shown(t *testing.T, s *postgres.Store, name string) (inside, after string) {
	t.Helper()
	err := s.UpdateSQL(t.Context(), time.Minute, func(ctx context.Context, _ pawl.Txn, user *sql.Tx) error {
		return user.QueryRowContext(ctx, "SELECT current_setting($1)", name).Scan(&inside)
	})
	if err == nil {
		err = s.DB().QueryRowContext(t.Context(), "SELECT current_setting($1)", name).Scan(&after)
	}
	if err != nil {
		t.Fatal(err)
	}
	return inside, after
}

func TestSettingsAreLocal(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	weaken(t, url)
	s, err := postgres.Open(t.Context(), url, &postgres.Options{Migrate: true, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if inside, after := shown(t, s, "synchronous_commit"); inside != "on" || after != "off" {
		t.Errorf("synchronous_commit is %s in a write transaction and %s after it; want on, and the database's off", inside, after)
	}
	if inside, _ := shown(t, s, "idle_in_transaction_session_timeout"); inside != "1min" {
		t.Errorf("idle timeout in a write transaction: %s, want 1min", inside)
	}
	if inside, _ := shown(t, s, "transaction_isolation"); inside != "read committed" {
		t.Errorf("isolation: %s, want read committed", inside)
	}
	if _, after := shown(t, s, "application_name"); after != "pawl" {
		t.Errorf("application_name is %s, want pawl", after)
	}
	found, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, f := range found {
		text += f.Level + ": " + f.Text + "\n"
	}
	for _, want := range []string{"warn: synchronous_commit is off", "warn: default_transaction_isolation is serializable"} {
		if !strings.Contains(text, want) {
			t.Errorf("findings:\n%swant %q", text, want)
		}
	}
}

func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	open(t, url)
	proxy := pgtest.NewProxy(t, url)
	s, err := postgres.Open(t.Context(), proxy.Rewrite(t, url), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, c := range []struct {
		name    string
		cut     func(int)
		applied bool
	}{{"reply lost", proxy.CutAfterCommit, true}, {"commit lost", proxy.CutBeforeCommit, false}} {
		row, calls := newRun(), 0
		c.cut(1)
		err := s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			calls++
			return tx.InsertRuns(ctx, []pawl.RunRow{row})
		})
		if !errors.Is(err, pawl.ErrCommitUnknown) || calls != 1 {
			t.Errorf("%s: %v after %d calls; want ErrCommitUnknown after one", c.name, err, calls)
		}
		if got := there(t, s, row.ID); got != c.applied {
			t.Errorf("%s: the run is there: %t, want %t", c.name, got, c.applied)
		}
	}
	row := newRun()
	proxy.CutBefore(1, func(q string) bool { return strings.Contains(q, "INSERT INTO pawl_runs") })
	if err := insert(s, t.Context(), row); err == nil || errors.Is(err, pawl.ErrCommitUnknown) {
		t.Errorf("connection lost before the commit: %v; want an error that says nothing was written", err)
	}
	if err := insert(s, t.Context(), row); err != nil {
		t.Errorf("the pool has not recovered: %v", err)
	}
}

// A context that ends while COMMIT is under way does not tear it down.
func TestCommitOutlivesContext(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	open(t, url)
	proxy := pgtest.NewProxy(t, url)
	s, err := postgres.Open(t.Context(), proxy.Rewrite(t, url), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	row := newRun()
	ctx, cancel := context.WithCancel(t.Context())
	held := proxy.HoldCommit()
	done := make(chan error, 1)
	go func() { done <- insert(s, ctx, row) }()
	<-held
	cancel()
	select {
	case err := <-done:
		t.Errorf("Update = %v while its COMMIT was under way", err)
	case <-time.After(50 * time.Millisecond): // time to give up too early
	}
	go proxy.ReleaseCommit(t)
	if err := <-done; err != nil {
		t.Errorf("Update = %v, want success: the commit was applied", err)
	}
}

// sequence counts the calls across rollbacks.
const prepareAborts = `CREATE SEQUENCE calls; CREATE TABLE t (n int);
CREATE FUNCTION abort_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF nextval('calls') < 3 THEN RAISE EXCEPTION 'test' USING ERRCODE = TG_ARGV[0]; END IF; RETURN NULL; END $$`

func TestAbortedIsRepeated(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ code, when string }{
		{"40001", ""}, {"40P01", ""}, {"55P03", ""},
		{"40001", "DEFERRABLE INITIALLY DEFERRED"}, // at COMMIT
	} {
		s := open(t, pgtest.URL(t))
		if _, err := s.DB().ExecContext(t.Context(), prepareAborts+`; CREATE CONSTRAINT TRIGGER abort AFTER INSERT ON t `+c.when+
			` FOR EACH ROW EXECUTE FUNCTION abort_first('`+c.code+`')`); err != nil {
			t.Fatal(err)
		}
		calls, row := 0, newRun()
		err := s.UpdateSQL(t.Context(), time.Minute, func(ctx context.Context, tx pawl.Txn, user *sql.Tx) error {
			calls++
			if err := tx.InsertRuns(ctx, []pawl.RunRow{row}); err != nil {
				return err
			}
			if _, err := user.ExecContext(ctx, "INSERT INTO t VALUES (1)"); err != nil {
				return &fault.Fault{Class: fault.Transient, Err: err} // as the engine wraps what a callback returns
			}
			return nil
		})
		if err != nil || calls != 3 || !there(t, s, row.ID) {
			t.Errorf("%s %s: %v after %d calls, want success with the third", c.code, c.when, err, calls)
		}
	}
}

func TestCommitThatIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.URL(t))
	if _, err := s.DB().ExecContext(t.Context(), `CREATE TABLE t (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	update := func(statement string, swallow bool) error {
		return s.UpdateSQL(t.Context(), time.Minute, func(ctx context.Context, tx pawl.Txn, user *sql.Tx) error {
			_, err := user.ExecContext(ctx, statement)
			if swallow {
				return nil
			}
			return err
		})
	}
	err := update(`INSERT INTO t VALUES (1), (1)`, false)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "23505" || errors.Is(err, pawl.ErrCommitUnknown) {
		t.Errorf("a constraint that fails at COMMIT: %v; want that error, and no doubt", err)
	}
	err = update(`SELECT nonsense`, true)
	if err == nil || errors.Is(err, pawl.ErrCommitUnknown) {
		t.Errorf("COMMIT of a transaction that an error has ended: %v; want an error, and no doubt", err)
	}
}

func TestServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	server := pgtest.Private(t)
	s := open(t, server.URL())
	server.SetReadOnly(t, true)
	row := newRun()
	err := insert(s, t.Context(), row)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "25006" {
		t.Errorf("Update on a read-only server = %v, want its error 25006", err)
	}
	if n := s.DB().Stats().OpenConnections; n > 9 {
		t.Errorf("%d connections are kept", n)
	}
	if _, err := postgres.Open(t.Context(), server.URL(), nil); err == nil || !strings.Contains(err.Error(), "read only") {
		t.Errorf("Open on a read-only server = %v, want it refused", err)
	}
	server.SetReadOnly(t, false)
	if err := insert(s, t.Context(), row); err != nil {
		t.Errorf("Update after the server takes writes again = %v", err)
	}
	server.Stop(t)
	if err := insert(s, t.Context(), newRun()); err == nil || errors.Is(err, pawl.ErrCommitUnknown) {
		t.Errorf("Update on a server that is down = %v, want an error that says nothing was written", err)
	}
	server.Start(t)
	if err := insert(s, t.Context(), newRun()); err != nil {
		t.Errorf("Update after the server is up again = %v", err)
	}
}

// A session that has become read-only, as on a primary that was demoted while we were connected, is not kept.
func TestReadOnlySessionIsDropped(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), pgtest.URL(t), &postgres.Options{Migrate: true, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.DB().ExecContext(t.Context(), "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"); err != nil {
		t.Fatal(err)
	}
	if err := insert(s, t.Context(), newRun()); err == nil {
		t.Fatal("a write in a read-only session gave no error")
	}
	if err := insert(s, t.Context(), newRun()); err != nil {
		t.Errorf("the pool keeps the session: %v", err)
	}
}

func TestPasswordIsNeverShown(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, url := range []string{
		"postgres://me:" + secret + "@127.0.0.1:1/db",
		"postgres://me:" + secret + "%zz@127.0.0.1:1/db",
		"postgres://me:a" + secret + "/b@127.0.0.1:1/db",
		"postgres://me:" + secret + "@127.0.0.1:notaport/db",
		"postgres://me@127.0.0.1:1/db?password=" + secret + "&sslmode=nonsense",
		"host=127.0.0.1 port=1 password=" + secret + " sslmode=nonsense",
		"host=127.0.0.1 port=1 password='" + secret,
		"postgres//me:" + secret + "@host/db",
		"", " ",
	} {
		_, err := postgres.Open(t.Context(), url, nil)
		if err == nil {
			t.Errorf("%s: opened", url)
			continue
		}
		for ; err != nil; err = errors.Unwrap(err) {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q: the error shows the password: %v", url, err)
			}
		}
	}
	if _, err := postgres.Open(t.Context(), "postgres://127.0.0.1:1/db", nil); err == nil || !strings.Contains(err.Error(), `"db" at 127.0.0.1:1`) {
		t.Errorf("nobody listens there: %v; want an error that names database and place", err)
	}
	if _, err := postgres.Open(t.Context(), "postgres://127.0.0.1:1/db", &postgres.Options{MaxConns: -1}); err == nil || !strings.Contains(err.Error(), "MaxConns") {
		t.Errorf("MaxConns -1: %v", err)
	}
}

// The row operations work on a transaction of pgx as on one of database/sql.
func TestOnPgx(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	s := open(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	on := s.On(postgres.ConnOf(tx))
	row := newRun()
	row.Fault, row.Input, row.Builds = &fault.Fault{Class: fault.Transient, Reason: "x"}, []byte("\x00\xff"), "b"
	rows := []pawl.RunRow{row}
	step := pawl.StepRow{Run: row.ID, Name: "a", Kind: fault.KindOnce, State: pawl.StepInFlight, Attempt: 1, Input: []byte("\x00\xff"),
		Worker: pawl.WorkerID(uuid.NewString()), Paid: true, Usage: pawl.Usage{Latency: time.Millisecond}}
	entry := pawl.EntryRow{Run: row.ID, Step: "a", Kind: pawl.AskUncertain, Attempt: 1}
	key := pawl.KeyRow{KeyName: "w", Key: "k", Lineage: row.ID, InputHash: []byte{1}}
	ctx := t.Context()
	_, won, err := on.ClaimKey(ctx, key)
	if err := errors.Join(err, on.InsertRuns(ctx, rows), on.InsertStep(ctx, &step), on.OpenEntry(ctx, &entry)); err != nil || !won {
		t.Fatal(err, won)
	}
	gotRun, err := on.LockRun(ctx, row.ID)
	if err != nil {
		t.Fatal(err)
	}
	rows[0].Input = nil
	if diff := cmp.Diff(*gotRun, rows[0]); diff != "" {
		t.Errorf("run (-got +want):\n%s", diff)
	}
	gotStep, err := on.Step(ctx, row.ID, "a")
	if err != nil {
		t.Fatal(err)
	}
	step.ValueSize = 0
	if diff := cmp.Diff(*gotStep, step); diff != "" {
		t.Errorf("step (-got +want):\n%s", diff)
	}
	gotKey, won, err := on.ClaimKey(ctx, key)
	if diff := cmp.Diff(gotKey, key); diff != "" || won || err != nil {
		t.Errorf("key, new %t, %v (-got +want):\n%s", won, err, diff)
	}
	if _, err := on.LockRun(ctx, newRun().ID); !errors.Is(err, pawl.ErrNotFound) {
		t.Errorf("LockRun = %v, want ErrNotFound", err)
	}
	if err := on.InsertStep(ctx, &step); !errors.Is(err, pawl.ErrStepExists) {
		t.Errorf("second InsertStep = %v, want ErrStepExists", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if there(t, s, row.ID) {
		t.Error("the run outlived the rollback")
	}
}

// Statements that are planned on an empty table keep their plan, so our connections avoid sequential scans; a URL that
// says otherwise is respected.
func TestTuning(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	for _, c := range []struct{ url, want string }{{url, "off"}, {url + "&enable_seqscan=on", "on"}} {
		s, err := postgres.Open(t.Context(), c.url, &postgres.Options{Migrate: true, Hooks: &hooks.Store{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, got := shown(t, s, "enable_seqscan"); got != c.want {
			t.Errorf("enable_seqscan is %s, want %s", got, c.want)
		}
		_ = s.Close()
	}
}

// The table whose rows change most is vacuumed early, and the doctor says where nothing is vacuumed.
func TestAutovacuum(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), pgtest.URL(t), &postgres.Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	var options string
	if err := s.DB().QueryRowContext(t.Context(), `SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE relname = 'pawl_runs'`).Scan(&options); err != nil ||
		options != "autovacuum_vacuum_scale_factor=0.02" {
		t.Errorf("pawl_runs has %q, %v", options, err)
	}
	warned := func() bool {
		found, err := s.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found, func(f pawl.Finding) bool { return strings.Contains(f.Text, "autovacuum is off") })
	}
	if warned() {
		t.Error("a warning, though autovacuum is on")
	}
	if _, err := s.DB().ExecContext(t.Context(), `ALTER TABLE pawl_steps SET (autovacuum_enabled = off)`); err != nil {
		t.Fatal(err)
	}
	if !warned() {
		t.Error("no warning, though autovacuum is off for a table")
	}
}
