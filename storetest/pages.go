package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var pageRules = []rule{
	{"rows", "Steps gives each row as it is stored, however much is in it, and passes over the items of each batch wherever they lie", testPageRows},
	{"items", "ItemSteps finds what has not ended among many that have, in batches with ids of all kinds", testPageItems},
}

// testPageRows has rows of all shapes in an order that says nothing about their shape, more of them than are read at once.
func testPageRows(t *testing.T, f *fixture) {
	f.broken = true // steps of items without a batch
	run, _ := f.running(time.Minute)
	shapes := []func(*pawl.StepRow){
		func(*pawl.StepRow) {},
		func(row *pawl.StepRow) { row.Value = oddBytes },
		func(row *pawl.StepRow) { row.InputHash, row.Worker, row.Begun = nil, "", 0 },
		func(row *pawl.StepRow) { row.Usage.Latency = 7 * time.Millisecond },
		func(row *pawl.StepRow) { row.Value = nil },
		func(row *pawl.StepRow) {
			row.Kind, row.Key, row.Settle, row.Input = fault.KindOnce, "key\n\x1f", 5, []byte("in")
		},
		func(row *pawl.StepRow) {
			row.Usage = pawl.Usage{Provider: "p", Model: "m\nn", TokensIn: 3, CostMicros: 9}
		},
		func(row *pawl.StepRow) {
			row.State, row.Value, row.Fault = pawl.StepFailed, nil, &fault.Fault{Message: "a\nb"}
		},
		func(row *pawl.StepRow) { row.State, row.Value, row.NextAt = pawl.StepRetrying, nil, 17 },
		func(row *pawl.StepRow) { row.Value = make([]byte, 5000) },
		func(row *pawl.StepRow) { row.OtherHash, row.Inherited = []byte{4}, run.ID },
	}
	names := []string{"rows", "rows/", "rows/.", "rows/0", "rows0", "rows-", "rows/-/x", "s", "r"}
	for i := range 300 {
		names = append(names, fmt.Sprintf("%03d", i*7919%1000))
	}
	want := make(map[string]pawl.StepRow)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		for _, batch := range []string{"050x", "rows", "rows/-", "zz"} {
			for i := range 150 {
				row := stored(result(run.ID, fmt.Sprintf("%s//%d/s", batch, i), "1"))
				if err := tx.InsertStep(ctx, row); err != nil {
					return err
				}
			}
		}
		for i, name := range names {
			row := stored(result(run.ID, name, `"v"`))
			row.Attempt, row.Epoch = 1+i%3, int64(1+i%5)
			shapes[i%len(shapes)](row)
			if err := tx.InsertStep(ctx, row); err != nil {
				return err
			}
			want[name] = *row
		}
		return nil
	})
	for _, limit := range []int{1000, 120, 7} {
		got := f.journal(run.ID, limit)
		if len(got) != len(want) {
			t.Errorf("pages of %d have %d rows, want %d", limit, len(got), len(want))
		}
		if !slices.IsSortedFunc(got, func(a, b pawl.StepRow) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("pages of %d are not in the order of the names", limit)
		}
		for _, row := range got {
			whole := want[row.Name]
			whole.ValueSize, whole.Input = len(whole.Value), nil
			if len(whole.Value) > 4096 {
				whole.Value = nil
			}
			if diff := cmp.Diff(row, whole, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("row %q in pages of %d (-got +want):\n%s", row.Name, limit, diff)
			}
		}
	}
}

// journal reads all of Steps, so many rows at a time.
func (f *fixture) journal(run pawl.RunID, limit int) (all []pawl.StepRow) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		for after := ""; ; {
			page, err := tx.Steps(ctx, run, after, limit)
			if len(page) > limit {
				err = errors.Join(err, fmt.Errorf("a page of %d has %d rows", limit, len(page)))
			}
			all = append(all, page...)
			if err != nil || len(page) < limit {
				return err
			}
			after = page[limit-1].Name
		}
	})
	return all
}

func testPageItems(t *testing.T, f *fixture) {
	f.broken = true // items of no batch
	run, _ := f.running(time.Minute)
	ids := []string{"a", "a/b", "a%b", "a-", "a.", "a&", "/", "%", "//", "ä", "a b", "~"}
	for i := range 1200 {
		ids = append(ids, fmt.Sprintf("a%d", i), fmt.Sprintf("a/%d", i))
	}
	var want, failures []string
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		for _, batch := range []string{"a/rows", "b"} {
			for i, id := range ids {
				it := item(run.ID, id)
				it.Batch = batch
				row := stored(result(run.ID, "", "1"))
				row.Name = batch + "//" + strings.NewReplacer("%", "%25", "/", "%2F").Replace(id) + "/s"
				if err := tx.InsertStep(ctx, row); err != nil {
					return err
				}
				switch {
				case i%90 == 0:
					want = append(want, row.Name)
					failures = append(failures, row.Name)
					continue
				case i%50 == 0:
					*it = *failed(run.ID, id)
					it.Batch = batch
					failures = append(failures, row.Name)
				}
				if err := tx.AddItem(ctx, it); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for _, c := range []struct {
		failed bool
		limit  int
		want   []string
	}{{false, 1000, want}, {false, 7, want}, {true, 1000, failures}, {true, 20, failures}} {
		var got []string
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			for after := ""; ; {
				page, err := tx.ItemSteps(ctx, run.ID, after, c.limit, c.failed)
				for i := range page {
					got = append(got, page[i].Name)
				}
				if len(page) > c.limit {
					err = errors.Join(err, fmt.Errorf("a page of %d has %d rows", c.limit, len(page)))
				}
				if err != nil || len(page) < c.limit {
					return err
				}
				after = got[len(got)-1]
			}
		})
		slices.Sort(c.want)
		if diff := cmp.Diff(got, c.want); diff != "" {
			t.Errorf("steps of items that have not ended, failed ones too: %v, in pages of %d (-got +want):\n%s", c.failed, c.limit, diff)
		}
	}
}
