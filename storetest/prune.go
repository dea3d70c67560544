package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var pruneRules = []rule{
	{"whole", "an old lineage goes with all its runs and all that belongs to them, and nothing of another one", testPruneWhole},
	{"kept", "a lineage stays while a run is live or ended lately, an entry is open, or an attempt may still be reported", testPruneKept},
	{"keys", "a product key outlives its lineage with its end, until its own term is over", testPruneKeys},
	{"acts", "acts of people outlive their run until their own term is over; while the run is there they stay", testPruneActs},
	{"batches", "a call deletes a bounded number of lineages, and of rows unless it is one lineage; the calls that follow do the rest", testPruneBatches},
	{"passes", "old runs that are not finished, however many, do not hide finished ones behind them", testPrunePasses},
	{"idle", "with nothing to delete no write transaction is begun", testPruneIdle},
	{"dry", "a dry call counts what would go and deletes nothing", testPruneDry},
	{"locked", "a lineage of which somebody holds any run is passed over", testPruneLocked},
	{"retry", "of a retry and a prune of one lineage only one takes place", testPruneRetry},
}

const day = 24 * time.Hour

var terms = pawl.PruneTerms{Runs: 30 * day, Keys: 400 * day, Acts: 1000 * day}

// finished inserts n runs that ended just now.
func (f *fixture) finished(n int, more ...func(*pawl.RunRow)) []pawl.RunRow {
	f.t.Helper()
	rows := make([]pawl.RunRow, n)
	now := f.now()
	for i := range rows {
		rows[i] = newRun()
		rows[i].State, rows[i].Ended = pawl.Succeeded, now
		for _, m := range more {
			m(&rows[i])
		}
	}
	f.insertRun(rows...)
	return rows
}

// retryOf is a retry that is not in the store yet.
func retryOf(origin *pawl.RunRow, state pawl.RunState) pawl.RunRow {
	next := newRun()
	next.Lineage, next.Parent, next.Relation, next.State = origin.Lineage, origin.ID, pawl.Retried, state
	return next
}

func (f *fixture) prune(p pawl.PruneTerms) pawl.Pruned {
	f.t.Helper()
	got, err := f.s.Prune(f.ctx(), p)
	f.ok(err)
	return got
}

// pruneAll goes on until nothing is left, and returns what each call has done.
func (f *fixture) pruneAll() (calls []pawl.Pruned) {
	f.t.Helper()
	for p := terms; ; {
		got := f.prune(p)
		calls = append(calls, got)
		if p.After = got.Next; p.After == "" && !got.More {
			return calls
		}
		if len(calls) > 1000 {
			f.t.Fatal("Prune comes to no end")
		}
	}
}

func (f *fixture) there(id pawl.RunID) bool {
	f.t.Helper()
	return f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_runs WHERE id = $1`, string(id)) == "1"
}

var tables = []string{"pawl_runs", "pawl_steps", "pawl_attempts", "pawl_inbox", "pawl_evidence"}

func (f *fixture) counts() (all string) {
	f.t.Helper()
	for _, table := range tables {
		all += f.text(`SELECT CAST(count(*) AS TEXT) FROM `+table) + " "
	}
	return all
}

// fill gives a run a row in each table.
func (f *fixture) fill(id pawl.RunID) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		step := newStep(id, "a")
		step.State = pawl.StepSucceeded
		entry := pawl.EntryRow{Run: id, Step: "a", Kind: pawl.AskTwice, Attempt: 1}
		err := errors.Join(tx.InsertStep(ctx, &step),
			tx.AddAttempt(ctx, &pawl.AttemptRow{Run: id, Step: "a", Attempt: 1, Fault: fault.Fault{Class: fault.Transient, Outcome: fault.OutcomeNotSent}}),
			tx.OpenEntry(ctx, &entry), tx.AddEvidence(ctx, &pawl.EvidenceRow{Run: id, Step: "a", Attempt: 1, Source: "worker"}))
		entry.Choice, entry.By = pawl.AnswerAcknowledge, "ann"
		_, closed := tx.CloseEntry(ctx, &entry)
		return errors.Join(err, closed)
	})
}

func testPruneWhole(t *testing.T, f *fixture) {
	old := f.finished(2)
	retry := retryOf(&old[0], pawl.Failed)
	retry.Ended = f.now()
	f.insertRun(retry)
	f.advance(20 * day)
	young := f.finished(1)[0]
	for _, id := range []pawl.RunID{old[0].ID, old[1].ID, retry.ID, young.ID} {
		f.fill(id)
	}
	f.advance(11 * day)
	if got := f.prune(terms); got.Lineages != 2 || got.Runs != 3 {
		t.Errorf("pruned: %+v, want 2 lineages with 3 runs", got)
	}
	if got, want := f.counts(), "1 1 1 1 1 "; got != want {
		t.Errorf("rows left in %v: %swant %s", tables, got, want)
	}
	if !f.there(young.ID) {
		t.Error("the run that ended lately is gone")
	}
}

func testPruneKept(t *testing.T, f *fixture) {
	f.broken = true // a step without a run's end that fits
	kept := map[string]pawl.RunID{}
	for _, what := range []string{"a live retry", "a retry that ended lately", "an open entry of the first run", "an open entry of the last run",
		"an attempt that may still act"} {
		kept[what] = f.finished(1)[0].ID
	}
	for _, state := range []pawl.RunState{pawl.Queued, pawl.Running, pawl.Waiting, pawl.Blocked} {
		kept[string(state)] = f.inState(state)
	}
	gone := f.finished(1)[0].ID
	first := func(what string) *pawl.RunRow { return f.row(kept[what]) }
	f.insertRun(retryOf(first("a live retry"), pawl.Queued))
	last := retryOf(first("an open entry of the last run"), pawl.Failed)
	last.Ended = f.now()
	after := retryOf(first("an open entry of the first run"), pawl.Failed)
	after.Ended = f.now()
	f.insertRun(last, after)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		slow := newStep(kept["an attempt that may still act"], "a")
		slow.State, slow.Deadline, slow.Settle = pawl.StepGivenUp, f.now()+day.Microseconds(), day.Microseconds()
		return errors.Join(tx.InsertStep(ctx, &slow),
			tx.OpenEntry(ctx, &pawl.EntryRow{Run: kept["an open entry of the first run"], Kind: pawl.AskTwice}),
			tx.OpenEntry(ctx, &pawl.EntryRow{Run: last.ID, Kind: pawl.AskTwice}))
	})
	f.advance(20 * day)
	late := retryOf(first("a retry that ended lately"), pawl.Failed)
	late.Ended = f.now()
	f.insertRun(late)
	f.advance(11 * day)
	if got := f.prune(terms); got.Lineages != 1 || f.there(gone) {
		t.Errorf("pruned: %+v, want the one lineage that nothing keeps", got)
	}
	for what, id := range kept {
		if !f.there(id) {
			t.Errorf("a lineage is gone that is kept by this: %s", what)
		}
	}
	f.exec(`UPDATE pawl_inbox SET closed = opened WHERE kind = 'twice'`)
	f.advance(2 * day)
	if got := f.prune(terms); got.Lineages != 3 {
		t.Errorf("after the answers and the attempt's time %+v, want the 3 lineages that these had kept", got)
	}
}

func testPruneKeys(t *testing.T, f *fixture) {
	run := f.finished(1, func(r *pawl.RunRow) { r.Key = "ticket:1" })[0]
	key := pawl.KeyRow{KeyName: run.KeyName, Key: run.Key, Lineage: run.ID, InputHash: run.InputHash}
	claim := func(lineage pawl.RunID) (row pawl.KeyRow, isNew bool) {
		key.Lineage = lineage
		f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
			row, isNew, err = tx.ClaimKey(ctx, key)
			return err
		})
		return row, isNew
	}
	claim(run.ID)
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.EndKey(ctx, &run) })
	f.advance(399 * day)
	if got := f.prune(terms); got.Lineages != 1 || got.Keys != 0 {
		t.Fatalf("pruned: %+v, want the lineage and no key", got)
	}
	if row, isNew := claim(newRunID()); isNew || row.Lineage != run.ID || row.End != pawl.Succeeded || row.EndedAt != run.Ended {
		t.Errorf("the key's row is %+v (new %t), want that of the deleted run with its end", row, isNew)
	}
	f.advance(2 * day)
	if got := f.prune(terms); got.Keys != 1 {
		t.Errorf("after the key's term: %+v, want 1 key forgotten", got)
	}
	next := f.finished(1)[0]
	if _, isNew := claim(next.ID); !isNew {
		t.Error("a key that was forgotten could not be claimed anew")
	}
	f.advance(500 * day)
	if got := f.prune(pawl.PruneTerms{Runs: 1000 * day, Keys: terms.Keys, Acts: terms.Acts}); got.Keys != 0 {
		t.Errorf("a key was forgotten whose run is still there: %+v", got)
	}
}

func testPruneActs(t *testing.T, f *fixture) {
	run := f.finished(1)[0]
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		return errors.Join(tx.AddAudit(ctx, &pawl.AuditRow{Act: "cancel", By: "ann", Run: run.ID}),
			tx.AddAudit(ctx, &pawl.AuditRow{Act: "prune", By: "ann"}))
	})
	left := func() string { return f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_audit`) }
	f.advance(999 * day)
	if got := f.prune(pawl.PruneTerms{Runs: 2000 * day, Keys: day, Acts: 998 * day}); got.Acts != 1 || left() != "1" {
		t.Errorf("with the run kept: %+v, %s acts left; want only the one about no run forgotten", got, left())
	}
	if got := f.prune(terms); got.Lineages != 1 || got.Acts != 0 || left() != "1" {
		t.Errorf("with the run deleted: %+v, %s acts left; want the act kept until its term", got, left())
	}
	f.advance(2 * day)
	if got := f.prune(terms); got.Acts != 1 || left() != "0" {
		t.Errorf("after the acts' term: %+v, %s left; want 1 forgotten", got, left())
	}
}

func testPruneBatches(t *testing.T, f *fixture) {
	const small, heavy, steps, huge = 230, 20, 300, 2500
	f.finished(small)
	for i, run := range f.finished(heavy + 1) {
		n := steps
		if i == heavy {
			n = huge
		}
		f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
			for k := range n {
				step := newStep(run.ID, fmt.Sprint(k))
				step.State = pawl.StepSucceeded
				err = errors.Join(err, tx.InsertStep(ctx, &step))
			}
			return err
		})
	}
	f.advance(31 * day)
	before := 0
	_, _ = fmt.Sscan(f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_steps`), &before)
	sum := 0
	for p, calls := terms, 1; sum < small+heavy+1; calls++ {
		got, left := f.prune(p), 0
		_, _ = fmt.Sscan(f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_steps`), &left)
		if got.Lineages == 0 || got.Lineages > 100 {
			t.Fatalf("call %d deleted %d lineages, want 1 to 100", calls, got.Lineages)
		}
		if n := before - left; n > 2000 && got.Lineages > 1 {
			t.Errorf("call %d deleted %d lineages with %d steps, want no more than 2,000", calls, got.Lineages, n)
		}
		before, sum, p.After = left, sum+got.Lineages, got.Next
		if sum < small+heavy+1 && !got.More {
			t.Errorf("call %d says that there is no more, with %d lineages done", calls, sum)
		}
	}
	if got := f.counts(); got != "0 0 0 0 0 " {
		t.Errorf("left behind in %v: %s", tables, got)
	}
}

func testPrunePasses(t *testing.T, f *fixture) {
	rows := make([]pawl.RunRow, 2100)
	for i := range rows {
		rows[i] = newRun()
	}
	f.insertRun(rows...)
	f.finished(1)
	f.advance(31 * day)
	calls := f.pruneAll()
	sum := 0
	for i, c := range calls {
		sum += c.Lineages
		if c.More && c.Lineages == 0 {
			t.Errorf("call %d found nothing, and says that there is more", i+1)
		}
	}
	if sum != 1 || len(calls) != 3 {
		t.Errorf("%d lineages in %d calls, want 1 in 3, a thousand runs looked at in each", sum, len(calls))
	}
}

func testPruneIdle(t *testing.T, f *fixture) {
	f.finished(3)
	f.runs(3)
	f.update(func(context.Context, pawl.Txn) error { // on SQLite this holds the one write lock
		ctx, cancel := context.WithTimeout(f.ctx(), 20*time.Second)
		defer cancel()
		got, err := f.s.Prune(ctx, terms)
		if got != (pawl.Pruned{}) {
			t.Errorf("pruned: %+v, want nothing", got)
		}
		return err
	})
}

func testPruneDry(t *testing.T, f *fixture) {
	origin := f.finished(120)[0]
	retry := retryOf(&origin, pawl.Failed)
	retry.Ended = f.now()
	f.insertRun(retry)
	f.advance(31 * day)
	p := terms
	p.Dry = true
	first := f.prune(p)
	p.After = first.Next
	second := f.prune(p)
	if first.Lineages+second.Lineages != 120 || first.Runs+second.Runs != 121 || second.Next != "" {
		t.Errorf("dry: %+v and %+v, want 120 lineages with 121 runs in two calls", first, second)
	}
	if got := f.counts(); got != "121 0 0 0 0 " {
		t.Errorf("after dry calls the tables %v have %s", tables, got)
	}
}

func testPruneLocked(t *testing.T, f *fixture) {
	if f.s.Name() == "sqlite" {
		return // nobody else can write while a lock is held there
	}
	rows := f.finished(3)
	retry := retryOf(&rows[1], pawl.Failed)
	retry.Ended = f.now()
	f.insertRun(retry)
	f.advance(31 * day)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		_, first := tx.LockRun(ctx, rows[0].ID)
		_, last := tx.LockRun(ctx, retry.ID)
		short, cancel := context.WithTimeout(f.ctx(), 20*time.Second)
		defer cancel()
		got, err := f.s.Prune(short, terms)
		if got.Lineages != 1 || f.there(rows[2].ID) {
			t.Errorf("pruned: %+v, want only the lineage that nobody holds", got)
		}
		return errors.Join(first, last, err)
	})
	if got := f.prune(terms); got.Lineages != 2 {
		t.Errorf("after the locks: %+v, want the 2 others", got)
	}
}

func testPruneRetry(t *testing.T, f *fixture) {
	const lineages = 60
	rows := f.finished(lineages)
	f.advance(31 * day)
	retries := make([]error, lineages)
	heirs := make([]pawl.RunRow, lineages)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := lineages - 1; i >= 0; i-- {
			heirs[i] = retryOf(&rows[i], pawl.Queued)
			retries[i] = f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
				if _, err := tx.LockRun(ctx, rows[i].ID); err != nil {
					return err
				}
				return tx.InsertRuns(ctx, []pawl.RunRow{heirs[i]})
			})
		}
	})
	for range 3 {
		if _, err := f.s.Prune(f.ctx(), terms); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	for i := range rows {
		origin, heir := f.there(rows[i].ID), f.there(heirs[i].ID)
		switch {
		case retries[i] == nil && (!origin || !heir):
			t.Errorf("lineage %d was retried, and then deleted: origin there %t, retry there %t", i, origin, heir)
		case retries[i] != nil && (origin || heir || !errors.Is(retries[i], pawl.ErrNotFound)):
			t.Errorf("lineage %d was not retried (%v): origin there %t, retry there %t; want ErrNotFound and both gone", i, retries[i], origin, heir)
		}
	}
}
