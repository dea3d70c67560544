// Package storetest is the conformance suite of [pawl.Store]: one subtest for each rule that the engine relies on. A
// failure names the rule. Both stores of this module pass it.
package storetest

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
)

// rule is what a store must do, and a test that shows whether it does.
type rule struct {
	name string
	says string
	test func(t *testing.T, f *fixture)
}

// Run runs the suite. open gives a store on an empty database of its own and closes it in a Cleanup. Its clock must have
// the offset of the table pawl_test_clock, by which the suite moves time.
func Run(t *testing.T, open func(t testing.TB) pawl.Store) {
	for _, group := range []struct {
		name  string
		rules []rule
	}{
		{"tx", txRules}, {"runs", runRules}, {"steps", stepRules}, {"people", peopleRules}, {"gates", gateRules}, {"claim", claimRules},
		{"leases", leaseRules}, {"lists", listRules}, {"check", checkRules}, {"prune", pruneRules}, {"write", writeRules},
		{"hints", hintRules}, {"calls", callRules}, {"items", itemRules}, {"pages", pageRules}, {"events", eventRules}, {"queues", queueRules},
		{"schedules", scheduleRules},
	} {
		for _, r := range group.rules {
			t.Run(group.name+"/"+r.name, func(t *testing.T) {
				t.Parallel()
				f := &fixture{t: t, s: open(t)}
				t.Cleanup(func() {
					if !f.broken {
						Invariants(t, f.s)
					}
					if t.Failed() {
						t.Logf("the rule: %s", r.says)
					}
				})
				r.test(t, f)
			})
		}
	}
}

// Invariants fails the test for each broken invariant that the rows at rest show.
func Invariants(t testing.TB, s pawl.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	found, err := s.Check(ctx)
	if err != nil {
		t.Errorf("check of the invariants: %v", err)
	}
	for _, f := range found {
		if f.Level == "error" {
			t.Errorf("invariant %s is broken: run %s: %s", f.Rule, f.Run, f.Text)
		}
	}
}

// fixture is one test's store, with what makes it short to use.
type fixture struct {
	t      *testing.T
	s      pawl.Store
	broken bool // the test leaves rows that break invariants
}

func (f *fixture) ctx() context.Context { return f.t.Context() }

func (f *fixture) ok(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// update runs fn in a write transaction that must succeed.
func (f *fixture) update(fn func(ctx context.Context, tx pawl.Txn) error) {
	f.t.Helper()
	f.ok(f.s.Update(f.ctx(), fn))
}

// view runs fn in a snapshot that must succeed.
func (f *fixture) view(fn func(ctx context.Context, tx pawl.Txn) error) {
	f.t.Helper()
	f.ok(f.s.View(f.ctx(), fn))
}

// exec runs SQL behind the store's back.
func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	f.ok(f.s.UpdateSQL(f.ctx(), time.Minute, func(ctx context.Context, _ pawl.Txn, user *sql.Tx) error {
		_, err := user.ExecContext(ctx, query, args...)
		return err
	}))
}

// text reads one value.
func (f *fixture) text(query string, args ...any) (s string) {
	f.t.Helper()
	f.ok(f.s.UpdateSQL(f.ctx(), time.Minute, func(ctx context.Context, _ pawl.Txn, user *sql.Tx) error {
		return user.QueryRowContext(ctx, query, args...).Scan(&s)
	}))
	return s
}

// advance moves the store's clock.
func (f *fixture) advance(d time.Duration) {
	f.t.Helper()
	f.exec(`UPDATE pawl_test_clock SET offset_us = offset_us + $1`, d.Microseconds())
}

func (f *fixture) now() (now int64) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		now, err = tx.Now(ctx)
		return err
	})
	return now
}

var v1 = []pawl.VersionID{{Workflow: "refund", Version: "1"}}

func newRunID() pawl.RunID       { return pawl.RunID(uuid.Must(uuid.NewV7()).String()) }
func newWorkerID() pawl.WorkerID { return pawl.WorkerID(uuid.NewString()) }

// newRun is a queued run of v1 that is not in the store yet.
func newRun() pawl.RunRow {
	id := newRunID()
	return pawl.RunRow{ID: id, Lineage: id, Workflow: "refund", Version: "1", KeyName: "refund", Queue: "refund",
		State: pawl.Queued, Input: []byte(`{"a":1}`), InputHash: []byte{1, 2, 3}}
}

// runs inserts n queued runs.
func (f *fixture) runs(n int) []pawl.RunRow {
	f.t.Helper()
	rows := make([]pawl.RunRow, n)
	for i := range rows {
		rows[i] = newRun()
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) })
	return rows
}

// row reads a run as it is stored.
func (f *fixture) row(id pawl.RunID) (row *pawl.RunRow) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		row, err = tx.LockRun(ctx, id)
		return err
	})
	return row
}

// change locks a run, lets fn change it and saves it.
func (f *fixture) change(id pawl.RunID, fn func(r *pawl.RunRow)) error {
	return f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
		row, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		fn(row)
		return tx.SaveRun(ctx, row)
	})
}

// worker registers a worker.
func (f *fixture) worker(lease time.Duration, has []pawl.VersionID) pawl.WorkerRow {
	f.t.Helper()
	w := pawl.WorkerRow{ID: newWorkerID(), Lease: lease}
	f.ok(f.s.Register(f.ctx(), w, has))
	return w
}

// claim takes runs of v1.
func (f *fixture) claim(w pawl.WorkerRow, limit int, more ...func(*pawl.Claim)) []pawl.Claimed {
	f.t.Helper()
	c := pawl.Claim{Worker: w.ID, Has: v1, Limit: limit, Token: 77}
	for _, m := range more {
		m(&c)
	}
	got, err := f.s.Claim(f.ctx(), c)
	f.ok(err)
	if len(got) > limit {
		f.t.Errorf("claim of %d gave %d runs", limit, len(got))
	}
	return got
}

func expired(c *pawl.Claim) { c.Expired = true }
func suspect(c *pawl.Claim) { c.Suspect = true }

// running is a run that a worker with the given lease holds.
func (f *fixture) running(lease time.Duration) (pawl.RunRow, pawl.WorkerRow) {
	f.t.Helper()
	w := f.worker(lease, v1)
	f.runs(1)
	got := f.claim(w, 1)
	if len(got) != 1 {
		f.t.Fatalf("claim gave %d runs, want the one there is", len(got))
	}
	return got[0].Row, w
}

func ids(claimed []pawl.Claimed) string {
	var all []string
	for _, c := range claimed {
		all = append(all, string(c.Row.ID))
	}
	return strings.Join(all, " ")
}
