package pawl

import (
	"context"
	"fmt"
	"time"
)

// Limits bound what one run may do before a person is asked whether it is to go on. A field of 0 means its default. Each answer
// "resume" allows as much again. Steps under [Run.WithoutCancel] and in [Run.Finally] are not counted against them, so that what was
// begun can be cleaned up.
type Limits struct {
	Steps      int           // rows in the journal, waits included and items of batches not; 0 means 10,000
	Elapsed    time.Duration // since the run's first claim, by the store's clock and waits included; 0 means none
	CostMicros int64         // estimated cost of all attempts so far, in millionths of a US dollar; 0 means none
}

// What a limit entry is about, in its Other.
const (
	limitSteps   = "steps"
	limitElapsed = "elapsed"
	limitCost    = "cost"
)

// Limit sets the workflow's limits. What they bound is looked at before a step is begun, not while it runs: a single step may
// go beyond them. A run that reaches one is blocked with an inbox entry, not failed.
func Limit(l Limits) DefineOption {
	return defineFunc(func(d *definition) { d.limits = l })
}

func (l Limits) check() error {
	if l.Steps < 0 || l.Elapsed < 0 || l.CostMicros < 0 {
		return fmt.Errorf("Limit(%+v): want no negative number", l)
	}
	return nil
}

// overLimit suspends the body by a question if the run has come to one of its limits.
func (s *stepRun) overLimit() error {
	x, l := s.x, s.x.def.limits
	if s.run.shield {
		return nil
	}
	if l.Steps == 0 {
		l.Steps = maxSteps
	}
	size, took, cost := 0, int64(0), x.cost.Load()
	if s.row == nil {
		size = x.j.size(s.path)
	}
	if l.Elapsed > 0 { // the boot clock is a system call
		took = x.w.now() - x.row.Started
	}
	if l.within(size, took, cost) {
		return nil
	}
	entries, err := x.allowed()
	if err != nil {
		x.logger().Error("answers to limits could not be read", "err", err)
		return s.b.later()
	}
	steps, _ := granted(entries, limitSteps)
	_, since := granted(entries, limitElapsed)
	costs, _ := granted(entries, limitCost)
	mostSteps, mostCost := l.Steps*(1+steps), l.CostMicros*int64(1+costs)
	switch {
	case size >= mostSteps:
		return s.limit(limitSteps, fmt.Sprintf("the run has %d steps, its limit: split it, make it a batch, go on as a new run with ContinueAs, or let it make %d more", mostSteps, l.Steps))
	case l.Elapsed > 0 && x.w.now()-max(since, x.row.Started) >= micro(l.Elapsed):
		return s.limit(limitElapsed, fmt.Sprintf("the run was begun, or last allowed to go on, more than %v ago", l.Elapsed))
	case mostCost > 0 && cost >= mostCost:
		return s.limit(limitCost, fmt.Sprintf("the run has cost an estimated $%.6f, its limit is $%.6f", float64(cost)/1e6, float64(mostCost)/1e6))
	}
	return nil
}

// granted counts how often people have let the run go on beyond a limit, and says when they did so last.
func granted(entries []EntryRow, what string) (n int, last int64) {
	for i := range entries {
		if en := &entries[i]; en.Kind == AskLimit && en.Other == what && en.Choice == AnswerResume {
			n, last = n+1, max(last, en.Closed)
		}
	}
	return n, last
}

// within reports whether a run is clearly within its limits.
func (l *Limits) within(size int, took, cost int64) bool {
	return size < l.Steps && (l.Elapsed == 0 || took < micro(l.Elapsed)) && (l.CostMicros == 0 || cost < l.CostMicros)
}

func (s *stepRun) limit(what, detail string) error {
	en := s.x.entry(AskLimit, s.path, detail)
	en.Other = what
	return s.b.ask(en)
}

// allowed reads what people have answered about this run.
func (x *execution) allowed() (entries []EntryRow, err error) {
	err = x.e.store.View(x.hold, func(ctx context.Context, tx Txn) error {
		entries, err = tx.Entries(ctx, x.row.ID, false)
		return err
	})
	return entries, err
}

// countCost adds up what the run has cost so far, if that is limited.
func (x *execution) countCost() error {
	if x.def.limits.CostMicros == 0 || x.j.loaded == 0 {
		return nil
	}
	var lost []AttemptRow
	var items Usage
	err := x.e.store.View(x.hold, func(ctx context.Context, tx Txn) (err error) {
		if lost, err = tx.Attempts(ctx, x.row.ID); err != nil {
			return err
		}
		items, err = tx.ItemUsage(ctx, x.row.ID)
		return err
	})
	if err != nil {
		return err
	}
	total := items.CostMicros
	for _, row := range x.j.rows {
		if row.State == StepSucceeded && row.Inherited == "" {
			total += row.Usage.CostMicros
		}
	}
	for i := range lost {
		total += lost[i].Usage.CostMicros
	}
	x.cost.Store(total)
	return nil
}
