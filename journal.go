package pawl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pawlrun/pawl/fault"
)

const (
	journalPage = 1000   // rows of a journal read at once
	maxSteps    = 10_000 // steps of a run outside batches
)

// journal is a run's rows as one execution sees them. A row belongs to the branch that has come by it.
type journal struct {
	mu      sync.Mutex // guards rows, visited and passed once the body runs
	rows    map[string]*StepRow
	visited map[string]bool
	loaded  int // rows that were there at the claim
	passed  int // of those, how many the body has come by
	taken   map[string]bool
	entries []EntryRow // answered questions, if another build wrote some of the rows
}

// readJournal reads a run's rows, 1,000 a page. It runs after the claim has committed: in the claim's own snapshot the
// last write of the former owner could be missing.
func (e *Engine) readJournal(ctx context.Context, id RunID) (*journal, error) {
	j := &journal{rows: make(map[string]*StepRow), visited: make(map[string]bool), taken: make(map[string]bool)}
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
				row := &page[i]
				j.rows[row.Name] = row
				if row.TakenFrom != "" {
					j.taken[row.TakenFrom] = true
				}
				after = row.Name
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read journal of run %s: %w", id, err)
		}
	}
	j.loaded = len(j.rows)
	return j, nil
}

// visit notes that the body came by a row, and returns it. It reports false if the body has been there before.
func (j *journal) visit(path string) (row *StepRow, first bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.visited[path] {
		return nil, false
	}
	row = j.rows[path]
	if row != nil && row.State.Finished() {
		j.passed++
	}
	j.visited[path] = true
	return row, true
}

// put replaces a row.
func (j *journal) put(row *StepRow) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rows[row.Name] = row
}

func (j *journal) row(path string) *StepRow {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.rows[path]
}

func (j *journal) size() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.rows)
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
	for name, row := range j.rows {
		if !j.visited[name] && row.Inherited == "" && !j.taken[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// lookalike is an own, finished, unvisited row of the same kind with the same input: what a step that was renamed
// between builds leaves behind.
func (j *journal) lookalike(kind Kind, hash []byte) *StepRow {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found *StepRow
	for name, row := range j.rows {
		if j.visited[name] || j.taken[name] || row.Inherited != "" || row.State != StepSucceeded || row.Kind != kind ||
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
