package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
)

var scheduleRules = []rule{
	{"round_trip", "a schedule comes back as it was saved, and its name is taken once", testScheduleRoundTrip},
	{"due", "what is due of a worker's versions, or of its workflows without a version, is found, longest due first", testScheduleDue},
	{"waits", "a schedule that waits for a run is to be looked at when that has ended, or is to be cancelled", testScheduleWaits},
	{"locked", "schedules that others have locked are passed over", testScheduleLocked},
	{"ledger", "an instant has one row, whoever adds it and however often", testLedgerOnce},
	{"ledger_race", "of concurrent transactions one adds an instant", testLedgerRace},
	{"move", "an occurrence changes only from the state that was seen", testLedgerMove},
	{"ranges", "a range is found by any of its instants, and shrinks", testLedgerRanges},
	{"ahead", "what is in the ledger of a schedule before it has decided about it", testLedgerAhead},
	{"open", "open occurrences tell which run of the lineage is live", testLedgerOpen},
	{"keys", "of many keys those that are free are claimed", testClaimKeys},
	{"prune", "the ledger is deleted by the age of its instants, but for what is open", testLedgerPrune},
	{"check", "Check finds schedules that are due and not decided about, or start nothing", testScheduleCheck},
}

func newSchedule(name string, set ...func(s *pawl.ScheduleRow)) pawl.ScheduleRow {
	s := pawl.ScheduleRow{Name: name, Workflow: "refund", Version: "1", Spec: []byte(`{"when":"every 1m0s"}`), Overlap: pawl.OverlapSkip, Revision: 1}
	for _, fn := range set {
		fn(&s)
	}
	return s
}

func (f *fixture) schedule(s pawl.ScheduleRow) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		isNew, err := tx.InsertSchedule(ctx, &s)
		if err == nil && !isNew {
			err = fmt.Errorf("name %q is taken", s.Name)
		}
		return err
	})
}

func (f *fixture) add(rows ...pawl.OccurrenceRow) (added []pawl.OccurrenceRow) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
		added, err = tx.AddOccurrences(ctx, slices.Clone(rows))
		return err
	})
	return added
}

func skipped(name string, at int64) pawl.OccurrenceRow {
	return pawl.OccurrenceRow{Schedule: name, At: at, Count: 1, State: pawl.OccurrenceSkipped, Reason: "previous_running", Revision: 1}
}

func started(name string, at int64, run pawl.RunID) pawl.OccurrenceRow {
	return pawl.OccurrenceRow{Schedule: name, At: at, Count: 1, State: pawl.OccurrenceStarted, Run: run, Open: true, Revision: 1}
}

func testScheduleRoundTrip(t *testing.T, f *fixture) {
	s := newSchedule("night \U0001F319", func(s *pawl.ScheduleRow) {
		s.Input, s.CodeHash, s.Coded, s.Edited = []byte("\x00in"), []byte{1, 0, 2}, true, true
		s.PausedAt, s.PausedBy, s.PausedWhy = 1, "ann", "because"
		s.Upto, s.Due, s.Started, s.Buffered, s.Blocker, s.Streak = 5, 6, 7, 8, newRunID(), 9
	})
	f.schedule(s)
	read := func(name string) (got *pawl.ScheduleRow) {
		f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
			got, err = tx.Schedule(ctx, name)
			return err
		})
		return got
	}
	same := func(what string) {
		t.Helper()
		got := read(s.Name)
		if got.Created == 0 {
			t.Error("Created is not set")
		}
		s.Created, s.Changed = got.Created, got.Changed
		if d := cmp.Diff(&s, got); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	same("inserted")
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		twin := newSchedule(s.Name)
		if isNew, err := tx.InsertSchedule(ctx, &twin); err != nil || isNew {
			t.Errorf("a second schedule of the name was added: %v", err)
		}
		return nil
	})
	others := make([]pawl.ScheduleRow, 70)
	for i := range others {
		others[i] = newSchedule(fmt.Sprintf("other-%02d", i))
		f.schedule(others[i])
		others[i].Due, others[i].Version = int64(i+1), ""
	}
	s.Version, s.Coded, s.Spec, s.Input, s.Overlap, s.CodeHash, s.Edited = "2", false, []byte(`{}`), nil, pawl.OverlapCancel, nil, false
	s.Revision, s.PausedAt, s.PausedBy, s.PausedWhy = 2, 0, "", ""
	s.Upto, s.Due, s.Started, s.Buffered, s.Blocker, s.Streak = 15, 16, 17, 0, "", 0
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.SaveSchedules(ctx, append(others, s)) })
	same("saved")
	if got := read("other-69"); got.Due != 70 || got.Version != "" {
		t.Errorf("saved with others: %+v", got)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		page, err := tx.Schedules(ctx, "other-67", 10)
		if len(page) != 2 || page[0].Name != "other-68" {
			t.Errorf("the page after other-67 has %d: want other-68 and other-69", len(page))
		}
		return err
	})
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.DeleteSchedule(ctx, s.Name) })
	err := f.s.View(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { _, err := tx.Schedule(ctx, s.Name); return err })
	if !errors.Is(err, pawl.ErrNotFound) {
		t.Errorf("a deleted schedule gives %v", err)
	}
}

func (f *fixture) due(has []pawl.VersionID, limit int, except ...string) (names []string) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		rows, err := tx.DueSchedules(ctx, has, except, limit)
		for i := range rows {
			names = append(names, rows[i].Name)
		}
		return err
	})
	return names
}

func testScheduleDue(t *testing.T, f *fixture) {
	now := f.now()
	at := func(due int64, version string) func(s *pawl.ScheduleRow) {
		return func(s *pawl.ScheduleRow) { s.Due, s.Version = due, version }
	}
	if _, due, err := f.s.NextSchedule(f.ctx(), v1); err != nil || due != 0 {
		t.Errorf("without schedules the next is due at %d, %v", due, err)
	}
	f.schedule(newSchedule("over", at(0, "1")))
	f.schedule(newSchedule("later", at(now+time.Hour.Microseconds(), "1")))
	got, due, err := f.s.NextSchedule(f.ctx(), v1)
	if err != nil || due != now+time.Hour.Microseconds() || got < now {
		t.Errorf("next is due at %d of %d, %v", due, got, err)
	}
	f.schedule(newSchedule("second", at(now-1000, "1")))
	f.schedule(newSchedule("first", at(now-2000, "1")))
	f.schedule(newSchedule("any", at(now-3000, "")))
	f.schedule(newSchedule("newer", at(now-4000, "2")))
	f.schedule(newSchedule("else", func(s *pawl.ScheduleRow) { s.Due, s.Workflow = now-5000, "other" }))
	if _, due, err = f.s.NextSchedule(f.ctx(), v1); err != nil || due != now-3000 {
		t.Errorf("next is due at now%+d, want -3000: %v", due-now, err)
	}
	for _, c := range []struct {
		limit  int
		except []string
		want   []string
	}{{10, nil, []string{"first", "second", "any"}}, {1, nil, []string{"first"}}, {10, []string{"first", "any"}, []string{"second"}}} {
		if got := f.due(v1, c.limit, c.except...); !slices.Equal(got, c.want) {
			t.Errorf("due without %v, at most %d: %v, want %v", c.except, c.limit, got, c.want)
		}
	}
	f.advance(2 * time.Hour)
	if got := f.due(v1, 10, "any", "first"); !slices.Equal(got, []string{"second", "later"}) {
		t.Errorf("after two hours %v are due", got)
	}
}

func testScheduleWaits(t *testing.T, f *fixture) {
	now := f.now()
	run := f.runs(1)[0]
	f.add(pawl.OccurrenceRow{Schedule: "waits", At: 8, Count: 1, State: pawl.OccurrenceBuffered, Revision: 1})
	s := newSchedule("waits", func(s *pawl.ScheduleRow) {
		s.Due, s.Buffered, s.Blocker, s.Overlap = now+time.Hour.Microseconds(), 8, run.ID, pawl.OverlapBuffer
	})
	f.schedule(s)
	look := func(what string, want bool) {
		t.Helper()
		_, due, err := f.s.NextSchedule(f.ctx(), v1)
		if is := len(f.due(v1, 10)) == 1; err != nil || is != want || (due < now) != want {
			t.Errorf("%s: found %v and due at %d, want %v: %v", what, is, due, want, err)
		}
	}
	set := func(fn func(s *pawl.ScheduleRow)) {
		fn(&s)
		f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.SaveSchedules(ctx, []pawl.ScheduleRow{s}) })
	}
	look("while the run is queued", false)
	set(func(s *pawl.ScheduleRow) { s.Overlap = pawl.OverlapCancel })
	look("when the run is to be cancelled", true)
	f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.CancelAt = now }))
	look("when it has been asked to end", false)
	f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.State = pawl.Cancelled }))
	look("when it has ended", true)
	set(func(s *pawl.ScheduleRow) { s.PausedAt = now })
	look("while it is paused", false)
	set(func(s *pawl.ScheduleRow) { s.PausedAt, s.Blocker = 0, newRunID() })
	look("when the run is deleted", true)
}

// testScheduleLocked also shows C57: nobody decides about a schedule beside another one.
func testScheduleLocked(t *testing.T, f *fixture) {
	if f.s.Name() == "sqlite" {
		t.Skip("a write transaction is alone")
	}
	for _, name := range []string{"a", "b", "c"} {
		f.schedule(newSchedule(name))
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		if _, err := tx.Schedule(ctx, "b"); err != nil {
			return err
		}
		return f.s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			rows, err := tx.LockSchedules(ctx, []string{"a", "b", "c", "none"})
			if len(rows) != 2 || rows[0].Name != "a" || rows[1].Name != "c" {
				t.Errorf("%d schedules were locked, want a and c", len(rows))
			}
			return err
		})
	})
}

func testLedgerOnce(t *testing.T, f *fixture) {
	run := newRunID()
	first := []pawl.OccurrenceRow{skipped("s", 10), started("s", 20, run), skipped("other", 10)}
	if added := f.add(first...); len(added) != 3 || added[0].Decided == 0 {
		t.Errorf("added %+v", added)
	}
	added := f.add(started("s", 10, newRunID()), skipped("s", 20), skipped("s", 30))
	if len(added) != 1 || added[0].At != 30 {
		t.Errorf("a second time %+v were added, want the instant 30", added)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		rows, err := tx.Occurrences(ctx, "s", 1<<60, 2)
		if len(rows) != 2 || rows[0].At != 30 || rows[1].Run != run || !rows[1].Open || rows[1].State != pawl.OccurrenceStarted {
			t.Errorf("the newest two are %+v", rows)
		}
		return err
	})
	many := make([]pawl.OccurrenceRow, 150)
	for i := range many {
		many[i] = skipped("many", int64(i+1))
	}
	if added := f.add(many...); len(added) != 150 {
		t.Errorf("%d of 150 were added", len(added))
	}
}

func testLedgerRace(t *testing.T, f *fixture) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for range 8 {
		wg.Go(func() {
			var added []pawl.OccurrenceRow
			err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) (err error) {
				added, err = tx.AddOccurrences(ctx, []pawl.OccurrenceRow{skipped("s", 1), skipped("s", 2)})
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if n += len(added); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n != 2 {
		t.Errorf("two instants were added %d times", n)
	}
}

func testLedgerMove(t *testing.T, f *fixture) {
	f.broken = true // no schedule waits for the instant
	row := pawl.OccurrenceRow{Schedule: "s", At: 10, Count: 1, State: pawl.OccurrenceBuffered, Reason: "previous_running", Other: newRunID(), Revision: 1, By: "ann"}
	f.add(row)
	move := func(from pawl.OccurrenceState, to pawl.OccurrenceRow) (ok bool) {
		f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
			ok, err = tx.MoveOccurrence(ctx, &to, from)
			return err
		})
		return ok
	}
	next := started("s", 10, newRunID())
	if !move(pawl.OccurrenceBuffered, next) || move(pawl.OccurrenceBuffered, skipped("s", 10)) {
		t.Error("an occurrence moved twice from one state")
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		rows, err := tx.Occurrences(ctx, "s", 11, 10)
		if len(rows) != 1 || rows[0].Run != next.Run || rows[0].Other != row.Other || rows[0].By != "ann" || rows[0].State != pawl.OccurrenceStarted {
			t.Errorf("got %+v", rows)
		}
		return err
	})
}

func testLedgerRanges(t *testing.T, f *fixture) {
	missed := pawl.OccurrenceRow{Schedule: "s", At: 100, Until: 2000, Count: 1500, Spec: []byte(`{"when": 1}`), State: pawl.OccurrenceMissed, Reason: "later_one_runs", Revision: 1}
	f.add(missed, skipped("s", 50), skipped("s", 1500), skipped("s", 3000), skipped("other", 1500))
	within := func(from, to int64) (at []int64) {
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			rows, err := tx.Within(ctx, "s", from, to, 10)
			for i := range rows {
				at = append(at, rows[i].At)
			}
			return err
		})
		return at
	}
	for _, c := range []struct {
		from, to int64
		want     []int64
	}{{1500, 1500, []int64{100, 1500}}, {700, 700, []int64{100}}, {0, 5000, []int64{50, 100, 1500, 3000}}, {2001, 2999, nil}, {2000, 2000, []int64{100}}} {
		if got := within(c.from, c.to); !slices.Equal(got, c.want) {
			t.Errorf("from %d to %d are %v, want %v", c.from, c.to, got, c.want)
		}
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		rows, err := tx.Within(ctx, "s", 100, 100, 1)
		if len(rows) != 1 || rows[0].Until != 2000 || rows[0].Count != 1500 || string(rows[0].Spec) != string(missed.Spec) {
			t.Errorf("the range is %+v", rows)
		}
		return err
	})
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.ShrinkOccurrence(ctx, &missed, 200, 1400) })
	if got := within(100, 199); got != nil {
		t.Errorf("the range has shrunk, but covers %v", got)
	}
	missed.At = 200
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.ShrinkOccurrence(ctx, &missed, 0, 0) })
	if got := within(300, 300); got != nil {
		t.Errorf("the range is used up, but there is %v", got)
	}
}

func testLedgerAhead(t *testing.T, f *fixture) {
	for name, upto := range map[string]int64{"a": 10, "b": 10, "c": 0, "d": 10} {
		f.schedule(newSchedule(name, func(s *pawl.ScheduleRow) { s.Upto = upto }))
	}
	f.add(skipped("a", 10), skipped("a", 20), skipped("a", 15), skipped("b", 10), skipped("b", 9), skipped("c", 5), skipped("gone", 7))
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		rows, err := tx.OccurrencesAhead(ctx, []string{"a", "b", "d", "gone"})
		var got []string
		for i := range rows {
			got = append(got, fmt.Sprint(rows[i].Schedule, rows[i].At))
		}
		if !slices.Equal(got, []string{"a15", "a20"}) {
			t.Errorf("ahead are %v, want a15 and a20", got)
		}
		return err
	})
}

func testLedgerOpen(t *testing.T, f *fixture) {
	runs := f.runs(3)
	f.ok(f.change(runs[1].ID, func(r *pawl.RunRow) { r.State = pawl.Failed }))
	f.ok(f.change(runs[2].ID, func(r *pawl.RunRow) { r.State = pawl.Failed }))
	retry := newRun()
	retry.Lineage, retry.Parent, retry.Relation = runs[2].ID, runs[2].ID, pawl.Retried
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{retry}) })
	f.add(started("a", 1, runs[0].ID), started("a", 2, runs[1].ID), started("b", 3, runs[2].ID), started("c", 4, newRunID()), skipped("a", 5))
	open := func() (all []pawl.OpenOccurrence) {
		f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
			all, err = tx.OpenOccurrences(ctx, []string{"a", "b", "none"})
			return err
		})
		return all
	}
	want := []pawl.OpenOccurrence{{Schedule: "a", At: 1, Run: runs[0].ID, State: pawl.Queued}, {Schedule: "a", At: 2}, {Schedule: "b", At: 3, Run: retry.ID, State: pawl.Queued}}
	if d := cmp.Diff(want, open()); d != "" {
		t.Error(d)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.CloseOccurrences(ctx, want[1:2]) })
	if d := cmp.Diff([]pawl.OpenOccurrence{want[0], want[2]}, open()); d != "" {
		t.Error(d)
	}
}

func testClaimKeys(t *testing.T, f *fixture) {
	run := f.runs(1)[0].ID
	keys := make([]pawl.KeyRow, 100)
	for i := range keys {
		keys[i] = pawl.KeyRow{KeyName: "refund", Key: pawl.Key(fmt.Sprint(i)), InputHash: []byte{1}, Lineage: run}
	}
	claim := func(keys []pawl.KeyRow) (free []pawl.Key) {
		f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
			free, err = tx.ClaimKeys(ctx, keys)
			return err
		})
		return free
	}
	if free := claim(keys[:40]); len(free) != 40 {
		t.Errorf("%d of 40 keys were free", len(free))
	}
	if free := claim(keys); len(free) != 60 || slices.Contains(free, "39") || !slices.Contains(free, "40") {
		t.Errorf("%d keys were free, want the other 60", len(free))
	}
	other := keys[0]
	other.KeyName = "other"
	if free := claim([]pawl.KeyRow{other}); len(free) != 1 {
		t.Error("a key of another workflow was not free")
	}
}

func testLedgerPrune(t *testing.T, f *fixture) {
	now := f.now()
	old := now - 500*24*time.Hour.Microseconds()
	f.add(started("a", old, newRunID()), skipped("a", old+1), skipped("a", old+2), skipped("a", now))
	rows := func() (at []int64) {
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			all, err := tx.Occurrences(ctx, "a", 1<<60, 10)
			for i := range all {
				at = append(at, all[i].At)
			}
			return err
		})
		return at
	}
	prune := func() (n int) {
		for n = range 10 {
			more, err := f.s.PruneOccurrences(f.ctx(), 400*24*time.Hour)
			f.ok(err)
			if !more {
				return n
			}
		}
		t.Error("there is always more to delete")
		return n
	}
	prune()
	if got := rows(); !slices.Equal(got, []int64{now, old}) {
		t.Errorf("left are %v, want now and the one that is open", got)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		return tx.CloseOccurrences(ctx, []pawl.OpenOccurrence{{Schedule: "a", At: old}})
	})
	prune()
	if got := rows(); !slices.Equal(got, []int64{now}) || prune() != 0 {
		t.Errorf("left are %v, want now", got)
	}
}

func testScheduleCheck(t *testing.T, f *fixture) {
	now := f.now()
	f.schedule(newSchedule("undecided", func(s *pawl.ScheduleRow) { s.Due, s.Upto = now, now-1 }))
	f.schedule(newSchedule("streak", func(s *pawl.ScheduleRow) { s.Streak, s.Upto = 5, now }))
	f.add(skipped("streak", now))
	f.schedule(newSchedule("ahead", func(s *pawl.ScheduleRow) { s.Upto = now + time.Hour.Microseconds(); s.Due = s.Upto + 1 }))
	f.schedule(newSchedule("paused", func(s *pawl.ScheduleRow) { s.PausedAt, s.PausedBy = now, "ann" }))
	if n := f.found("warn", "schedule", ""); n != 2 {
		t.Errorf("%d warnings, want one about the streak and one about the clock", n)
	}
	f.advance(10 * time.Minute)
	if n := f.found("warn", "schedule", ""); n != 3 {
		t.Errorf("%d warnings, want another one about what is due", n)
	}
	if n := f.found("warn", "paused", ""); n != 1 {
		t.Errorf("%d warnings about pauses, want 1", n)
	}
	f.broken = true
	f.schedule(newSchedule("again", func(s *pawl.ScheduleRow) { s.Due, s.Upto = now, now+1 }))
	f.add(pawl.OccurrenceRow{Schedule: "lost", At: 8, Count: 1, State: pawl.OccurrenceBuffered, Revision: 1})
	if n := f.found("error", "I6", ""); n != 2 {
		t.Errorf("%d errors, want one about an instant that is decided about twice and one that waits for nobody", n)
	}
	run := newRunID()
	f.add(started("twice", 1, run), started("twice", 2, run))
	if n := f.found("error", "I6", run); n != 1 {
		t.Errorf("%d errors about a run of two instants", n)
	}
}
