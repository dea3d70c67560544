package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var itemRules = []rule{
	{"once", "an item is inserted plainly: the second insert fails with ErrStepExists and changes nothing", testItemOnce},
	{"write", "an item that Write inserts is the one that AddItem would have, and one that is there fails all changes with ErrOneByOne", testItemWrite},
	{"pages", "Items pages by id in byte order, of one state or both, without large values", testItemPages},
	{"steps", "steps of items are left out by Steps, are open steps, and are given by ItemSteps until their item has ended", testItemSteps},
	{"inherit", "InheritItems copies done items and names the run that made them; ItemCounts and ItemUsage count a run's own apart", testItemInherit},
	{"kept", "items go with their run", testItemsPruned},
}

func item(run pawl.RunID, id string) *pawl.ItemRow {
	return &pawl.ItemRow{Run: run, Batch: "a/rows", Item: id, State: pawl.ItemDone, Epoch: 1, InputHash: []byte{1}, Value: []byte(`"` + id + `"`)}
}

func failed(run pawl.RunID, id string) *pawl.ItemRow {
	it := item(run, id)
	it.State, it.Value, it.Fault = pawl.ItemFailed, nil, &fault.Fault{Class: fault.InvalidRequest, Outcome: fault.OutcomeRejected, Message: "no"}
	return it
}

func (f *fixture) addItems(items ...*pawl.ItemRow) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
		for _, it := range items {
			err = errors.Join(err, tx.AddItem(ctx, it))
		}
		return err
	})
}

func (f *fixture) item(run pawl.RunID, id string) (it *pawl.ItemRow) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		it, err = tx.Item(ctx, run, "a/rows", id)
		return err
	})
	return it
}

func testItemOnce(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	first := item(run.ID, "x")
	f.addItems(first)
	second := failed(run.ID, "x")
	if err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.AddItem(ctx, second) }); !errors.Is(err, pawl.ErrStepExists) {
		t.Errorf("second insert = %v, want ErrStepExists", err)
	}
	if diff := cmp.Diff(f.item(run.ID, "x"), first); diff != "" {
		t.Errorf("the item (-got +want):\n%s", diff)
	}
	if got := f.item(run.ID, "y"); got != nil {
		t.Errorf("an item that is not there is %+v", got)
	}
}

func testItemWrite(t *testing.T, f *fixture) {
	runs := f.claimed(2)
	c := held(runs[0])
	c.Insert = []*pawl.StepRow{result(runs[0].ID, "a/rows//x/s", "1")}
	c.Items = []*pawl.ItemRow{item(runs[0].ID, "x"), failed(runs[0].ID, "y")}
	now, err := f.s.Write(f.ctx(), []pawl.Change{c})
	f.ok(err)
	for _, want := range []*pawl.ItemRow{item(runs[0].ID, "x"), failed(runs[0].ID, "y")} {
		want.Ended, want.ValueSize = now, len(want.Value)
		if diff := cmp.Diff(f.item(runs[0].ID, want.Item), want); diff != "" {
			t.Errorf("item %s (-got +want):\n%s", want.Item, diff)
		}
	}
	bad := held(runs[0])
	bad.Items = []*pawl.ItemRow{item(runs[0].ID, "x")}
	f.refused("an item that is there", runs[1], bad)
	bad.Items, bad.Epoch = []*pawl.ItemRow{item(runs[0].ID, "z")}, runs[0].Epoch+1
	f.refused("an item under another claim", runs[1], bad)
	if f.item(runs[0].ID, "z") != nil {
		t.Error("an item was written under a claim that does not hold")
	}
}

func testItemPages(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	large := item(run.ID, "b")
	large.Value = []byte(`"` + strings.Repeat("x", 4095) + `"`)
	other := item(run.ID, "b")
	other.Batch = "a/rows2"
	f.addItems(item(run.ID, "ä"), large, failed(run.ID, "a"), item(run.ID, "B"), other)
	page := func(q pawl.ItemQuery) (text string) {
		q.Run, q.Batch = run.ID, "a/rows"
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			items, err := tx.Items(ctx, q)
			for _, it := range items {
				text += fmt.Sprintf("%s:%d/%d ", it.Item, len(it.Value), it.ValueSize)
			}
			return err
		})
		return text
	}
	for _, c := range []struct {
		q    pawl.ItemQuery
		want string
	}{
		{pawl.ItemQuery{Limit: 9}, "B:0/3 a:0/0 b:0/4097 ä:0/4 "},
		{pawl.ItemQuery{Limit: 2, Values: true}, "B:3/3 a:0/0 "},
		{pawl.ItemQuery{Limit: 2, Values: true, After: "a"}, "b:0/4097 ä:4/4 "},
		{pawl.ItemQuery{Limit: 9, State: pawl.ItemFailed}, "a:0/0 "},
		{pawl.ItemQuery{Limit: 9, State: pawl.ItemDone, After: "b"}, "ä:0/4 "},
	} {
		if got := page(c.q); got != c.want {
			t.Errorf("%+v gives %q, want %q", c.q, got, c.want)
		}
	}
	without := item(run.ID, "c d")
	without.InputHash = nil
	f.addItems(without)
	ended := func(after string, limit int) (text string) {
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			items, err := tx.EndedItems(ctx, run.ID, "a/rows", after, limit)
			for _, it := range items {
				text += fmt.Sprintf("%s:%s:%x ", it.Item, it.State, it.InputHash)
			}
			return err
		})
		return text
	}
	for _, c := range []struct {
		after string
		limit int
		want  string
	}{
		{"", 9, "B:done:01 a:failed:01 b:done:01 c d:done: ä:done:01 "},
		{"a", 2, "b:done:01 c d:done: "},
		{"ä", 2, ""},
	} {
		if got := ended(c.after, c.limit); got != c.want {
			t.Errorf("%d ended items after %q are %q, want %q", c.limit, c.after, got, c.want)
		}
	}
}

func names(rows []pawl.StepRow) (text string) {
	for i := range rows {
		text += rows[i].Name + " "
	}
	return text
}

func testItemSteps(t *testing.T, f *fixture) {
	f.broken = true // steps in flight of items that have ended
	run, _ := f.running(time.Minute)
	batch := pawl.StepRow{Run: run.ID, Name: "a/rows", Kind: fault.KindBatch, State: pawl.StepWaiting, Attempt: 1, Items: 4}
	f.insert(batch)
	for _, name := range []string{"a/rows//x/s", "a/rows//x%2Fy/s", "a/rows//y/deep/er/s", "a/rows//z/s", "a/rowsb", "z"} {
		f.insert(newStep(run.ID, name))
	}
	f.addItems(item(run.ID, "z"), failed(run.ID, "y"))
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		steps, err := tx.Steps(ctx, run.ID, "", 99)
		open, err2 := tx.OpenSteps(ctx, run.ID)
		left, err3 := tx.ItemSteps(ctx, run.ID, "", 99, false)
		retried, err4 := tx.ItemSteps(ctx, run.ID, "a/rows//x%2Fy/s", 2, true)
		for _, c := range []struct{ what, got, want string }{
			{"Steps", names(steps), "a/rows a/rowsb z "},
			{"OpenSteps", names(open), "a/rows a/rows//x%2Fy/s a/rows//x/s a/rows//y/deep/er/s a/rows//z/s a/rowsb z "},
			{"ItemSteps", names(left), "a/rows//x%2Fy/s a/rows//x/s "},
			{"ItemSteps with failed", names(retried), "a/rows//x/s a/rows//y/deep/er/s "},
		} {
			if c.got != c.want {
				t.Errorf("%s gives %q, want %q", c.what, c.got, c.want)
			}
		}
		return errors.Join(err, err2, err3, err4)
	})
	batch.Items = 7
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.MarkStep(ctx, &batch) })
	if got := f.step(run.ID, "a/rows"); got.Items != 7 {
		t.Errorf("the batch has %d items, want the 7 of MarkStep", got.Items)
	}
}

func testItemInherit(t *testing.T, f *fixture) {
	f.broken = true // items of no batch
	run, _ := f.running(time.Minute)
	heir := f.runs(1)[0]
	f.addItems(item(run.ID, "x"), item(run.ID, "y"), failed(run.ID, "z"))
	for i, name := range []string{"a/rows//x/s", "a/rows//y/s", "s"} {
		row := result(run.ID, name, "1")
		row.Usage = pawl.Usage{TokensIn: 1, TokensOut: 2, CostMicros: 10 << i}
		f.insert(*stored(row))
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		n, err := tx.InheritItems(ctx, run.ID, heir.ID, "a/rows")
		if n != 2 {
			t.Errorf("%d items were inherited, want 2", n)
		}
		return errors.Join(err, tx.InheritStep(ctx, run.ID, heir.ID, "a/rows//x/s", pawl.StepSucceeded), tx.AddItem(ctx, item(heir.ID, "z")))
	})
	want := item(heir.ID, "x")
	want.Inherited, want.ValueSize = run.ID, 3
	if diff := cmp.Diff(f.item(heir.ID, "x"), want, cmpopts.IgnoreFields(pawl.ItemRow{}, "Ended")); diff != "" {
		t.Errorf("the inherited item (-got +want):\n%s", diff)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		own, err := tx.ItemCounts(ctx, run.ID)
		counts, err2 := tx.ItemCounts(ctx, heir.ID)
		if len(own) != 1 || own[0].Done != 2 || own[0].Failed != 1 || own[0].Reused != 0 || own[0].Last == 0 {
			t.Errorf("counts are %+v", own)
		}
		if len(counts) != 1 || counts[0].Done != 3 || counts[0].Reused != 2 || counts[0].Last == 0 {
			t.Errorf("counts of the heir are %+v", counts)
		}
		used, err3 := tx.ItemUsage(ctx, run.ID)
		if used != (pawl.Usage{TokensIn: 2, TokensOut: 4, CostMicros: 30}) {
			t.Errorf("items have used %+v", used)
		}
		none, err4 := tx.ItemUsage(ctx, heir.ID)
		if none != (pawl.Usage{}) {
			t.Errorf("items of the heir have used %+v", none)
		}
		return errors.Join(err, err2, err3, err4)
	})
}

func testItemsPruned(t *testing.T, f *fixture) {
	f.broken = true // items of no batch
	run := f.finished(1)[0]
	f.addItems(item(run.ID, "x"))
	f.advance(terms.Runs + time.Hour)
	f.pruneAll()
	if n := f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_items`); n != "0" {
		t.Errorf("%s items of runs that are deleted", n)
	}
}
