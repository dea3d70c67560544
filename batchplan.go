package pawl

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// retried says what a retry does with a row. A failure that is proven not to have happened is tried again; one that may have
// happened is asked about first, where a repetition would do harm.
func (pl *planner) retried(row *StepRow) (Fate, string) {
	proven := row.Fault != nil && row.Fault.Outcome.Proven()
	harmful := row.Kind == fault.KindOnce || pl.expired(row)
	switch {
	case row.State == StepSucceeded:
		return Reuse, ""
	case hooks.Broken(hooks.W7):
		return Rerun, ""
	case row.State == StepGivenUp, row.State == StepUncertain, row.State == StepInFlight && row.Kind != fault.KindRepeatable:
		return Ask, "nobody knows whether it happened"
	case harmful && !proven && row.State != StepRetrying:
		return Ask, "it failed, and may have happened"
	case row.Kind == fault.KindKeyed:
		return Rerun, keyWhy(&pl.plan.Options, row.Name)
	case row.Kind == fault.KindChild:
		return Rerun, "its child is retried"
	}
	return Rerun, ""
}

// batches says what becomes of the items of batches: done ones are reused, the others go on, as in a retry. A fork that
// begins at or before a batch runs it only as a whole, and only if it is told to.
func (pl *planner) batches(ctx context.Context, tx Txn) error {
	counts, err := tx.ItemCounts(ctx, pl.run.ID)
	if err != nil {
		return err
	}
	open, err := pl.openItems(ctx, tx)
	if err != nil {
		return err
	}
	pl.unseen(counts, open)
	goesOn := make(map[string]bool)
	for i := range pl.plan.Steps {
		s, row := &pl.plan.Steps[i], &pl.rows[i]
		if s.Kind != fault.KindBatch {
			continue
		}
		var n ItemCount
		if k := slices.IndexFunc(counts, func(c ItemCount) bool { return c.Batch == s.Name }); k >= 0 {
			n = counts[k]
		}
		s.Calls, s.Cost = 0, 0
		again := pl.plan.Options.Mode == PlanFork && row.Begun >= pl.from
		switch {
		case s.Fate == Reuse:
			s.Why = fmt.Sprintf("with %d items", n.Done)
		case s.Fate == Rerun && slices.Contains(pl.plan.Options.Repeat, s.Name):
			s.Why = "all items run again, repeated on purpose"
		case s.Fate == Rerun && again && n.Done+n.Failed > 0:
			s.Fate, s.Why = Refused, "some of its items were run; name it in Repeat to run them all again"
			pl.plan.refuse(fmt.Sprintf("batch %q would run again: allow it with --repeat %q, or retry the run to go on with the other items", s.Name, s.Name))
		case s.Fate == Rerun:
			goesOn[s.Name] = true
			s.Why = fmt.Sprintf("%d items are reused; %d failed and %d missing ones run", n.Done, n.Failed, max(0, row.Items-n.Done-n.Failed))
		}
	}
	pl.itemSteps(open, goesOn)
	return nil
}

// openItems reads the steps of items that are not done.
func (pl *planner) openItems(ctx context.Context, tx Txn) (open []StepRow, err error) {
	for after, more := "", true; more; {
		page, err := tx.ItemSteps(ctx, pl.run.ID, after, journalPage, true)
		if err != nil {
			return nil, err
		}
		if more = len(page) == journalPage; more {
			after = page[len(page)-1].Name
		}
		open = append(open, page...)
	}
	return open, nil
}

// unseen plans the batches of which the run has inherited items, and to which its body has not come: those have no row yet. For
// a fork they come after all that was begun.
func (pl *planner) unseen(counts []ItemCount, open []StepRow) {
	var names []string
	for _, n := range counts {
		names = append(names, n.Batch)
	}
	for i := range open {
		batch, _ := open[i].Item()
		names = append(names, batch)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if slices.ContainsFunc(pl.rows, func(r StepRow) bool { return r.Name == name }) {
			continue
		}
		row := StepRow{Run: pl.run.ID, Name: name, Kind: fault.KindBatch, State: StepWaiting, Begun: math.MaxInt64}
		pl.rows = append(pl.rows, row)
		pl.add(&row, Rerun, "")
	}
}

// itemSteps plans the steps of items that are not done, of batches that go on. Those that a person is asked about are shown.
func (pl *planner) itemSteps(open []StepRow, goesOn map[string]bool) {
	for i := range open {
		if batch, _ := open[i].Item(); goesOn[batch] {
			pl.items = append(pl.items, open[i])
		}
	}
	shown := len(pl.plan.Steps)
	for i := range pl.items {
		fate, why := pl.retried(&pl.items[i])
		pl.add(&pl.items[i], fate, why)
	}
	for _, s := range pl.plan.Steps[shown:] {
		if s.Fate != Ask {
			pl.plan.items = append(pl.plan.items, s)
		}
	}
	pl.plan.Steps = slices.DeleteFunc(pl.plan.Steps, func(s PlannedStep) bool { return s.Fate != Ask && itemScope(s.Name) != "" })
}

// inheritItems gives the heir what is planned about items.
func inheritItems(ctx context.Context, tx Txn, from, id RunID, p *Plan) error {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Kind != fault.KindBatch || s.Fate != Reuse && slices.Contains(p.Options.Repeat, s.Name) {
			continue
		}
		if _, err := tx.InheritItems(ctx, from, id, s.Name); err != nil {
			return err
		}
	}
	for i := range p.items {
		if err := inherit(ctx, tx, from, id, &p.items[i], &p.Options); err != nil {
			return fmt.Errorf("inherit step %q: %w", p.items[i].Name, err)
		}
	}
	return nil
}
