//go:build unix

package torture_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/pawlrun/pawl"
)

// A batch has so many items, of which so many run at once.
const (
	batchItems  = 10
	batchAtOnce = 4
)

// itemsLine is the line of the table that items have.
const itemsLine = "Batch items"

// isItem reports whether a step's path is that of an item of a batch.
func isItem(step string) bool { return strings.Contains(step, "//") }

// batch has an effect for each item, in another order each time the body is executed. Nothing comes of it for the next step.
func (w *world) batch(run *pawl.Run, last string) error {
	items := make([]string, batchItems)
	for i := range items {
		items[i] = fmt.Sprint("i", i)
	}
	rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	_, err := pawl.Batch(run, "batch", items, func(id string) string { return id }, func(run *pawl.Run, id string) (string, error) {
		verb := "keyed"
		if id == "i0" {
			verb = "once"
		}
		return w.step(run, verb, last+":"+id)
	}, pawl.AtOnce(batchAtOnce))
	return err
}

// batchOf is a batch of a run.
type batchOf struct {
	run  *pawl.RunDetail
	name string
}

// items checks the batches: each item that is done had its effect, once, whichever run did it; and of what a worker has run,
// the next one runs no more again than was in flight (C44).
func (a *audit) items(ctx context.Context) error {
	values := map[op]string{} // of done items, by the path of their scope
	for _, b := range a.batches {
		var rows []pawl.ItemRow
		err := a.store.View(ctx, func(ctx context.Context, tx pawl.Txn) (err error) {
			rows, err = tx.Items(ctx, pawl.ItemQuery{Run: b.run.ID, Batch: b.name, Limit: 1000, Values: true})
			return err
		})
		if err != nil {
			return err
		}
		done := 0
		for _, row := range rows {
			if row.State != pawl.ItemDone {
				continue
			}
			done++
			var value string
			if err := json.Unmarshal(row.Value, &value); err != nil {
				a.violate(b.run.ID, "the value of item %s of batch %q does not decode: %v", row.Item, b.name, err)
			}
			o := op{b.run.Lineage, b.name + "//" + row.Item}
			if was, ok := values[o]; ok && was != value {
				a.violate(b.run.ID, "item %q had the value %q in an earlier run of the lineage and has %q now", o.Step, was, value)
			}
			values[o] = value
		}
		if b.run.State == pawl.Succeeded && done != batchItems {
			a.violate(b.run.ID, "the run has succeeded, and %d of %d items of batch %q are done", done, batchItems, b.name)
		}
	}
	a.itemEffects(values)
	a.itemsAgain()
	return nil
}

// itemEffects checks the effects of items.
func (a *audit) itemEffects(values map[op]string) {
	line := a.lines[itemsLine]
	for _, o := range a.effects.ops() {
		if !isItem(o.Step) {
			continue
		}
		scope, _ := cutVerb(o.Step)
		_, id, _ := strings.Cut(scope, "//")
		want := a.before(place{o.Lineage, index(o.Step)}) + ":" + id
		value, done := values[op{o.Lineage, scope}]
		delete(values, op{o.Lineage, scope})
		line.intended++
		fresh := 0
		var refs []string
		var run pawl.RunID
		for _, e := range a.effects.of(o) {
			line.requests++
			refs, run = append(refs, e.Ref), e.Run
			if e.Fresh {
				fresh++
			}
			if e.Input != want {
				a.violate(e.Run, "item %q was called with %q, want %q", o.Step, e.Input, want)
			}
		}
		line.performed += fresh
		if fresh != 1 {
			line.doubled += fresh - 1
			a.violate(run, "item %q of lineage %s happened %d times", o.Step, o.Lineage, fresh)
		}
		if done && !slices.Contains(refs, value) {
			a.violate(run, "item %q has the value %q, the world said %q", o.Step, value, refs)
		}
	}
	for o, value := range values {
		line.intended++
		line.lost++
		a.violate(o.Lineage, "item %q is done (%q), and nothing happened", o.Step, value)
	}
}

// cutVerb cuts the verb off a step's path.
func cutVerb(step string) (scope, verb string) {
	at := strings.LastIndexByte(step, '/')
	return step[:at], step[at+1:]
}

// itemsAgain: each time another worker goes on with a batch, it runs no more items again than run at once.
func (a *audit) itemsAgain() {
	type batch struct {
		run  pawl.RunID
		name string
	}
	calls := map[batch][]effect{}
	for i := range a.effects.all {
		if e := a.effects.all[i]; isItem(e.Step) {
			name, _, _ := strings.Cut(e.Step, "//")
			calls[batch{e.Run, name}] = append(calls[batch{e.Run, name}], e)
		}
	}
	for b, all := range calls { // in the order in which they came
		workers := map[string]map[int]bool{}
		changes, again := 0, 0
		for i, e := range all {
			if i > 0 && all[i-1].PID != e.PID {
				changes++
			}
			if workers[e.Step] == nil {
				workers[e.Step] = map[int]bool{}
			}
			if len(workers[e.Step]) > 0 && !workers[e.Step][e.PID] {
				again++
			}
			workers[e.Step][e.PID] = true
		}
		a.again += again
		a.lines[itemsLine].repeated += again
		if again > batchAtOnce*changes {
			a.violate(b.run, "of batch %q %d items were run again, by %d changes of the worker", b.name, again, changes)
		}
	}
}
