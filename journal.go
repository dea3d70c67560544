package pawl

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pawlrun/pawl/fault"
)

const (
	journalPage = 1000   // rows of a journal read at once
	maxSteps    = 10_000 // steps of a run outside batches
)

// journal is a run's rows as one execution sees them. A row belongs to the branch that has come by it. Those of an item of a
// batch are here only from when it begins, or was begun before, until it ends.
type journal struct {
	mu sync.Mutex // guards pages, items and passed once the body runs
	pages
	items   map[string]*pages // by the item's scope
	loaded  int               // rows that were there at the claim
	passed  int               // of those, how many the body has come by
	taken   map[string]bool
	entries []EntryRow // answered questions, if another build wrote some of the rows
}

// pages are the rows of an item, or those of none.
type pages struct {
	rows    map[string]*StepRow
	visited map[string]bool
}

func newJournal(rows map[string]*StepRow) *journal {
	return &journal{pages: pages{rows, make(map[string]bool)}, loaded: len(rows)}
}

// of gives the pages that a step belongs to. mu is held.
func (j *journal) of(path string) *pages {
	scope := itemScope(path)
	if scope == "" {
		return &j.pages
	}
	p := j.items[scope]
	if p == nil {
		p = &pages{make(map[string]*StepRow), make(map[string]bool)}
		if j.items == nil {
			j.items = make(map[string]*pages)
		}
		j.items[scope] = p
	}
	return p
}

// all gives the rows, those of items too.
func (j *journal) all() iter.Seq[*StepRow] {
	return func(yield func(*StepRow) bool) {
		for _, p := range append(slices.Collect(maps.Values(j.items)), &j.pages) {
			for _, row := range p.rows {
				if !yield(row) {
					return
				}
			}
		}
	}
}

// forget drops what the item has come by. Rows of earlier executions that it has not come by stay.
func (j *journal) forget(scope string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.items[scope]
	if p == nil {
		return
	}
	maps.DeleteFunc(p.rows, func(path string, _ *StepRow) bool { return p.visited[path] })
	clear(p.visited)
	if len(p.rows) == 0 {
		delete(j.items, scope)
	}
}

// dropItems drops the rows of those items of a batch that gone says are there no more.
func (j *journal) dropItems(batch string, gone func(id string) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.items, func(scope string, _ *pages) bool {
		id, ok := strings.CutPrefix(scope, batch+itemMark)
		return ok && gone(unescaper.Replace(id))
	})
}

// itemRows gives the rows of the items of a batch.
func (j *journal) itemRows(batch string) (rows []*StepRow) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for scope, p := range j.items {
		if strings.HasPrefix(scope, batch+itemMark) {
			rows = slices.AppendSeq(rows, maps.Values(p.rows))
		}
	}
	return rows
}

// begun reports whether rows of the item are there.
func (j *journal) begun(scope string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.items[scope]
	return p != nil && len(p.rows) > 0
}

// add takes a row that was read.
func (j *journal) add(row *StepRow) {
	j.of(row.Name).rows[row.Name] = row
	if row.TakenFrom != "" {
		if j.taken == nil {
			j.taken = make(map[string]bool)
		}
		j.taken[row.TakenFrom] = true
	}
}

// readJournal reads a run's rows, 1,000 a page. It runs after the claim has committed: in the claim's own snapshot the
// last write of the former owner could be missing.
func (e *Engine) readJournal(ctx context.Context, id RunID) (*journal, error) {
	j := newJournal(make(map[string]*StepRow))
	for after, more := "", true; more; {
		err := e.store.View(ctx, func(ctx context.Context, tx Txn) error {
			page, err := tx.Steps(ctx, id, after, journalPage+1)
			if err != nil {
				return err
			}
			if more = len(page) > journalPage; more {
				page = page[:journalPage]
			}
			for i := range page {
				j.add(&page[i])
				after = page[i].Name
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read journal of run %s: %w", id, err)
		}
	}
	return j, nil
}

// readJournals reads the rows of runs that were claimed together, as far as they fit into one page. A journal that is not among
// what it returns has to be read by itself.
func (w *worker) readJournals(ctx context.Context, token int64, runs []Claimed) map[RunID]*journal {
	again := make(map[RunID]*journal)
	for i := range runs {
		if runs[i].Row.Epoch > 1 {
			again[runs[i].Row.ID] = newJournal(make(map[string]*StepRow))
		}
	}
	if len(again) < 2 {
		return nil
	}
	var page []StepRow
	err := w.e.store.View(ctx, func(ctx context.Context, tx Txn) (err error) {
		page, err = tx.ClaimedSteps(ctx, w.id.ID, token, journalPage)
		return err
	})
	if err != nil { // each may have better luck
		return nil
	}
	for i := range page {
		if j := again[page[i].Run]; j != nil {
			j.add(&page[i])
		}
	}
	if len(page) < journalPage {
		return again
	}
	last := page[len(page)-1].Run
	maps.DeleteFunc(again, func(id RunID, j *journal) bool { return id == last || len(j.rows) == 0 })
	return again
}

// readItems reads the rows of items that were begun and have not ended.
func (e *Engine) readItems(ctx context.Context, id RunID, j *journal) error {
	for after, more := "", true; more; {
		err := e.store.View(ctx, func(ctx context.Context, tx Txn) error {
			page, err := tx.ItemSteps(ctx, id, after, journalPage, false)
			if err != nil {
				return err
			}
			more = len(page) == journalPage
			for i := range page {
				j.add(&page[i])
				after = page[i].Name
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read steps of items of run %s: %w", id, err)
		}
	}
	return nil
}

// visit notes that the body came by a row, and returns it. It reports false if the body has been there before.
func (j *journal) visit(path string) (row *StepRow, first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.of(path)
	if p.visited[path] {
		return nil, false
	}
	row = p.rows[path]
	if row != nil && row.State.Finished() && p == &j.pages {
		j.passed++
	}
	p.visited[path] = true
	return row, true
}

// put replaces a row.
func (j *journal) put(row *StepRow) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.of(row.Name).rows[row.Name] = row
}

func (j *journal) row(path string) *StepRow {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.of(path).rows[path]
}

// size counts the rows beside that of path: those of its item, or those of none.
func (j *journal) size(path string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.of(path).rows)
}

// allPassed reports whether the body has come by every row that was there and finished when the run was claimed.
func (j *journal) allPassed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.passed >= j.loaded
}

// unvisited lists rows of this run's own making that the body did not come by.
func (j *journal) unvisited() []string {
	var names []string
	for row := range j.all() {
		if name := row.Name; !j.of(name).visited[name] && row.Inherited == "" && !j.taken[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// lookalike is an own, finished, unvisited row of the same kind with the same input: what a step that was renamed
// between builds leaves behind. A step of an item looks like one of that item only.
func (j *journal) lookalike(kind Kind, path string, hash []byte) *StepRow {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found *StepRow
	p := j.of(path)
	for name, row := range p.rows {
		if p.visited[name] || j.taken[name] || row.Inherited != "" || row.State != StepSucceeded || row.Kind != kind ||
			!slices.Equal(row.InputHash, hash) {
			continue
		}
		if found == nil || row.Name < found.Name {
			found = row
		}
	}
	return found
}

// answered is the newest answer to a closed entry of that kind about the step.
func (j *journal) answered(kind EntryKind, step string) Choice {
	var c Choice
	for i := range j.entries {
		if en := &j.entries[i]; en.Kind == kind && en.Step == step && en.Closed > 0 {
			c = en.Choice
		}
	}
	return c
}

// otherBuild reports whether a build other than this one wrote some of the run's rows.
func otherBuild(builds, build string) bool {
	for b := range strings.SplitSeq(builds, ",") {
		if b != "" && b != build {
			return true
		}
	}
	return false
}

// stored is the error that a body gets for a finished row without a result.
func (row *StepRow) stored() error {
	f := fault.Fault{Class: fault.OutcomeUnknown, Reason: fault.ReasonUnrecognized, Outcome: fault.OutcomeMaybeExecuted}
	if row.Fault != nil {
		f = *row.Fault
	}
	if row.State == StepGivenUp {
		f.Class, f.Reason = fault.InvalidRequest, fault.ReasonGaveUp
	}
	f.Err = nil
	return &Error{Run: row.Run, Step: row.Name, Fault: f}
}
