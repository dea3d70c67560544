package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
)

var listRules = []rule{
	{"runs", "ListRuns pages all runs once, newest first, also those of one microsecond", testListRuns},
	{"run_filters", "each filter of ListRuns selects what it says", testListFilters},
	{"inbox", "ListInbox pages open entries once, oldest first, and all of them if asked", testListInbox},
	{"bounds", "a list without a limit has 100 rows, and never more than 1,000", testListBounds},
	{"find", "a prefix finds the one run or entry it fits; several are listed, none is ErrNotFound", testFind},
}

func testListRuns(t *testing.T, f *fixture) {
	var want []pawl.RunID
	for _, r := range f.runs(25) {
		want = append(want, r.ID)
	}
	f.exec(`UPDATE pawl_runs SET created = 5`)
	slices.Sort(want)
	slices.Reverse(want)
	var got []pawl.RunID
	for after := pawl.Cursor(""); ; {
		page, err := f.s.ListRuns(f.ctx(), pawl.RunQuery{Limit: 10, After: after})
		f.ok(err)
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			got = append(got, r.ID)
			if r.Input != nil || r.Result != nil {
				t.Errorf("run %s came with payloads", r.ID)
			}
		}
		after = pawl.Cursor(page[len(page)-1].ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages: %v\nwant: %v", got, want)
	}
	if _, err := f.s.ListRuns(f.ctx(), pawl.RunQuery{After: "nonsense"}); err == nil {
		t.Error("a cursor of no list gave no error")
	}
}

func testListFilters(t *testing.T, f *fixture) {
	plain := f.runs(1)[0]
	done := newRun()
	done.State, done.Ended, done.Workflow = pawl.Succeeded, 5, "enrich"
	keyed := newRun()
	keyed.Key, keyed.State, keyed.Ended = "ticket:1", pawl.Failed, 6
	retry := newRun()
	retry.Key, retry.Lineage, retry.Relation = "ticket:1", keyed.ID, pawl.Retried
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		_, _, err := tx.ClaimKey(ctx, pawl.KeyRow{KeyName: "refund", Key: "ticket:1", Lineage: keyed.ID})
		return errors.Join(err, tx.InsertRuns(ctx, []pawl.RunRow{done, keyed, retry}))
	})
	for _, c := range []struct {
		name string
		q    pawl.RunQuery
		want []pawl.RunID
	}{
		{"all", pawl.RunQuery{}, []pawl.RunID{retry.ID, keyed.ID, done.ID, plain.ID}},
		{"live state", pawl.RunQuery{States: []pawl.RunState{pawl.Queued, pawl.Blocked}}, []pawl.RunID{retry.ID, plain.ID}},
		{"states", pawl.RunQuery{States: []pawl.RunState{pawl.Succeeded, pawl.Queued}}, []pawl.RunID{retry.ID, done.ID, plain.ID}},
		{"workflow", pawl.RunQuery{Workflow: "enrich"}, []pawl.RunID{done.ID}},
		{"key", pawl.RunQuery{Key: "ticket:1"}, []pawl.RunID{retry.ID, keyed.ID}},
		{"key and state", pawl.RunQuery{Key: "ticket:1", States: []pawl.RunState{pawl.Failed}}, []pawl.RunID{keyed.ID}},
		{"lineage", pawl.RunQuery{Lineage: keyed.ID}, []pawl.RunID{retry.ID, keyed.ID}},
		{"no such key", pawl.RunQuery{Key: "ticket:2"}, nil},
		{"no such lineage", pawl.RunQuery{Lineage: "nonsense"}, nil},
	} {
		rows, err := f.s.ListRuns(f.ctx(), c.q)
		f.ok(err)
		var got []pawl.RunID
		for _, r := range rows {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if _, err := f.s.ListRuns(f.ctx(), pawl.RunQuery{States: []pawl.RunState{"'"}}); err == nil {
		t.Error("a state that does not exist gave no error")
	}
}

func testListInbox(t *testing.T, f *fixture) {
	rows := f.runs(7)
	var want []pawl.EntryID
	for _, r := range rows {
		e := pawl.EntryRow{Run: r.ID, Kind: pawl.AskTwice}
		f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.OpenEntry(ctx, &e) })
		want = append(want, e.ID)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		_, err := tx.CloseEntry(ctx, &pawl.EntryRow{ID: want[3], Choice: pawl.AnswerAcknowledge, By: "me"})
		return err
	})
	pages := func(q pawl.InboxQuery) (got []pawl.EntryID) {
		for q.Limit = 2; ; {
			page, err := f.s.ListInbox(f.ctx(), q)
			f.ok(err)
			if len(page) == 0 {
				return got
			}
			for _, e := range page {
				got = append(got, e.ID)
			}
			q.After = pawl.Cursor(page[len(page)-1].ID)
		}
	}
	if got := pages(pawl.InboxQuery{All: true}); !slices.Equal(got, want) {
		t.Errorf("all: %v, want %v", got, want)
	}
	if got := pages(pawl.InboxQuery{Run: rows[5].ID, Kind: pawl.AskTwice}); !slices.Equal(got, want[5:6]) {
		t.Errorf("of one run: %v, want %v", got, want[5:6])
	}
	open := slices.Delete(slices.Clone(want), 3, 4)
	if got := pages(pawl.InboxQuery{}); !slices.Equal(got, open) {
		t.Errorf("open: %v, want %v", got, open)
	}
	if got := pages(pawl.InboxQuery{Kind: pawl.AskLimit}); len(got) != 0 {
		t.Errorf("of another kind: %v", got)
	}
}

func testListBounds(t *testing.T, f *fixture) {
	f.runs(1001)
	for _, c := range []struct{ limit, want int }{{0, 100}, {-1, 100}, {7, 7}, {5000, 1000}} {
		rows, err := f.s.ListRuns(f.ctx(), pawl.RunQuery{Limit: c.limit})
		f.ok(err)
		if len(rows) != c.want {
			t.Errorf("limit %d gave %d rows, want %d", c.limit, len(rows), c.want)
		}
	}
}

func testFind(t *testing.T, f *fixture) {
	const stem = "01234567-89ab-7def-8000-0000000000"
	for _, end := range []string{"00", "01", "ff"} {
		row := newRun()
		row.ID = pawl.RunID(stem + end)
		row.Lineage = row.ID
		f.insertRun(row)
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			return tx.OpenEntry(ctx, &pawl.EntryRow{ID: pawl.EntryID(stem + end), Run: row.ID, Kind: pawl.AskTwice})
		})
	}
	for _, prefix := range []string{stem + "f", strings.ToUpper(stem + "ff")} {
		run, err := f.s.FindRun(f.ctx(), prefix)
		if err != nil || run != stem+"ff" {
			t.Errorf("FindRun(%q) = %q, %v; want the one that fits", prefix, run, err)
		}
		entry, err := f.s.FindEntry(f.ctx(), prefix)
		if err != nil || entry != stem+"ff" {
			t.Errorf("FindEntry(%q) = %q, %v; want the one that fits", prefix, entry, err)
		}
	}
	_, err := f.s.FindRun(f.ctx(), "0123")
	if err == nil || errors.Is(err, pawl.ErrNotFound) || !strings.Contains(err.Error(), stem+"00") || !strings.Contains(err.Error(), stem+"ff") {
		t.Errorf("FindRun of a prefix of three = %v, want an error that lists them", err)
	}
	for _, prefix := range []string{"", "1", "x", "%", "0123456-", uuid.NewString(), stem + "ff0"} {
		if _, err := f.s.FindRun(f.ctx(), prefix); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("FindRun(%q) = %v, want ErrNotFound", prefix, err)
		}
		if _, err := f.s.FindEntry(f.ctx(), prefix); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("FindEntry(%q) = %v, want ErrNotFound", prefix, err)
		}
	}
}
