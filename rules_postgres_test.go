package pawl_test

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
)

func openPostgres(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, &postgres.Options{Migrate: true, Hooks: &hooks.Store{Offset: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// eventually polls until cond holds. It is for real processes and servers, outside of bubbles.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("still waiting: %s", what)
		case <-tick.C:
		}
	}
}

// While a write of the holder is between its fence and its commit, nobody can claim the run (W1): a fence that only
// read the epoch would let both write.
func TestFenceKeepsClaimersOut(t *testing.T) {
	t.Parallel()
	s := openPostgres(t, pgtest.URL(t))
	// The first row of the journal waits inside the server, behind its transaction's fence, for as long as gate is open.
	gate, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{`CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END'`,
		`CREATE TRIGGER gate BEFORE INSERT ON pawl_steps FOR EACH ROW EXECUTE FUNCTION wait_at_gate()`} {
		if _, err := s.DB().ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := gate.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock(7)"); err != nil {
		t.Fatal(err)
	}
	w := pawl.Define("mail", "v1", mixed("o"))
	e, err := pawl.New(s, &pawl.Options{Lease: 2 * time.Second, Hooks: &hooks.Hooks{NoSweep: true}, Drain: time.Second, Build: "b1"}, w)
	if err != nil {
		t.Fatal(err)
	}
	run, err := w.Start(t.Context(), e, 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	// A shared write gives up after 100 ms, and is followed by one that waits.
	eventually(t, "a journal write waits between fence and commit", func() bool {
		var n int
		err := s.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND waitstart < clock_timestamp() - interval '300 ms'").Scan(&n)
		return err == nil && n == 1
	})
	if _, err := s.DB().ExecContext(t.Context(), "UPDATE pawl_test_clock SET offset_us = offset_us + 60000000"); err != nil {
		t.Fatal(err)
	}
	rival := pawl.WorkerRow{ID: "7d444840-9dc0-11d1-b245-5ffdce74fad2", Lease: time.Minute}
	has := []pawl.VersionID{pawl.NameOf(w)}
	if err := s.Register(t.Context(), rival, has); err != nil {
		t.Fatal(err)
	}
	claim := func() []pawl.Claimed {
		got, err := s.Claim(t.Context(), pawl.Claim{Worker: rival.ID, Has: has, Limit: 1, Token: 5, Expired: true})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := claim(); len(got) != 0 {
		t.Errorf("a run was claimed while its holder's write was between fence and commit: %+v", got[0].Row)
	}
	if err := gate.Rollback(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the intent or the end is written", func() bool {
		d, err := e.Show(t.Context(), run.ID())
		return err == nil && len(d.Steps) == 1
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What was committed while the lock on the run was waited for is seen by the statements after it (W17): else a run
// would be finished beside a fresh open row.
func TestStatementsAfterTheLockSeeWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	s := openPostgres(t, pgtest.URL(t))
	w := pawl.Define("mail", "v1", mixed("o"))
	e, err := pawl.New(s, nil, w)
	if err != nil {
		t.Fatal(err)
	}
	run, err := w.Start(t.Context(), e, 1)
	if err != nil {
		t.Fatal(err)
	}
	locked, waited := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			if _, err := tx.LockRun(ctx, run.ID()); err != nil {
				return err
			}
			close(locked)
			<-waited
			return tx.InsertStep(ctx, &pawl.StepRow{Run: run.ID(), Name: "mail", Kind: 4, State: pawl.StepUncertain, Attempt: 1})
		})
	}()
	<-locked
	seen := -1
	second := make(chan error, 1)
	go func() {
		second <- s.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			if _, err := tx.LockRun(ctx, run.ID()); err != nil {
				return err
			}
			open, err := tx.OpenSteps(ctx, run.ID())
			seen = len(open)
			return err
		})
	}()
	eventually(t, "the second transaction waits for the lock", func() bool {
		var n int
		err := s.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n)
		return err == nil && n == 1
	})
	close(waited)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if seen != 1 {
		t.Errorf("after waiting for the run's lock %d open steps were seen, want 1", seen)
	}
}

// A transaction step in the user's own PostgreSQL, through database/sql or pgx, has the settings the protocol needs: a
// process that freezes in it must not keep others from the step's record for ever.
func TestTransactionsElsewhereAreBounded(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	s := openPostgres(t, url)
	plain, err := sql.Open("pgx", pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	t.Cleanup(func() { _ = plain.Close() })
	if _, err := plain.ExecContext(t.Context(), pawl.TxTable("BYTEA")); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), pawl.TxTable("BYTEA")); err != nil {
		t.Fatal(err)
	}
	const ask = `SELECT current_setting('idle_in_transaction_session_timeout')`
	w := pawl.Define("elsewhere", "v1", func(run *pawl.Run, in string) ([]string, error) {
		a, err := pawl.TxIn(run, "sql", plain, in, func(ctx context.Context, tx *sql.Tx, _ string) (got string, err error) {
			err = tx.QueryRowContext(ctx, ask).Scan(&got)
			return got, err
		})
		if err != nil {
			return nil, err
		}
		b, err := postgres.Tx(run, "pgx", pool, in, func(ctx context.Context, tx pgx.Tx, _ string) (got string, err error) {
			err = tx.QueryRow(ctx, ask).Scan(&got)
			return got, err
		})
		return []string{a, b}, err
	})
	e, err := pawl.New(s, &pawl.Options{Build: "b1"}, w)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	h, err := w.Start(t.Context(), e, "x")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.Result(t.Context()); err != nil || !slices.Equal(got, []string{"1min", "1min"}) {
		t.Errorf("idle timeouts %q, %v; want 1min in both", got, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Callers that find children by their keys while these end: nobody waits for a run that is over (W9), and transactions that
// lock the same runs the other way round are run again.
func TestCallersMeetEndingChildren(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	kid := pawl.Define("kid", "v1", func(_ *pawl.Run, in int) (int, error) { return in, nil })
	caller := pawl.Define("caller", "v1", func(run *pawl.Run, n int) (sum int, err error) {
		for i := range 6 {
			k := (n + i*(1+n%5)) % 12
			got, err := pawl.Child(run.Item(strconv.Itoa(i)), "kid", kid, k, pawl.Key(strconv.Itoa(k)))
			if err != nil {
				return 0, err
			}
			sum += got + 1
		}
		return sum, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var engines []*pawl.Engine
	done := make(chan error, 2)
	for range 2 {
		e, err := pawl.New(openPostgres(t, url), &pawl.Options{Poll: 50 * time.Millisecond, Build: "b1"}, kid, caller)
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
		go func() { done <- e.Work(ctx) }()
	}
	ins := make([]int, 60)
	for i := range ins {
		ins[i] = i
	}
	handles, err := caller.StartMany(t.Context(), engines[0], ins, nil)
	if err != nil {
		t.Fatal(err)
	}
	within, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for i, h := range handles {
		want := 0
		for j := range 6 {
			want += (i+j*(1+i%5))%12 + 1
		}
		if got, err := h.Result(within); err != nil || got != want {
			t.Errorf("caller %d: %d, %v; want %d", i, got, err, want)
		}
	}
	kids, _, err := engines[0].Runs(t.Context(), pawl.RunQuery{Workflow: "kid", Limit: 1000})
	if err != nil || len(kids) != 12 {
		t.Errorf("%d children, %v; want 12", len(kids), err)
	}
	cancel()
	for range engines {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	found, err := engines[0].Store().Check(t.Context())
	for _, f := range found {
		if f.Level == "error" {
			t.Errorf("invariant %s, run %s: %s", f.Rule, f.Run, f.Text)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
