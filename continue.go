package pawl

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/pawlrun/pawl/fault"
)

// ContinueAs ends the run and lets a successor begin with in: for a run that would get too long. It is called last in the body,
// whose own result it takes the place of:
//
//	return pawl.ContinueAs[Out](run, next)
//
// It writes nothing itself and always gives an error, which the body has to return, wrapped or not; a body that keeps it to
// itself goes on. The run has succeeded then, without a result, and in the same transaction its successor is queued: a run of the
// same workflow and version with in, which has to be of the workflow's input type and storable like a start's. It is a lineage of
// its own: it has an empty journal, other operation keys for steps of the same names, and limits that begin anew. It has the
// queue, priority, share and product key of the run, and its [Deadline], which does not move. A [Start] under the key
// finds the successor; what a later start is compared with is the input of the first one.
//
// [Handle.Result] of the run, and a run that waits for it as its [Child], get what the last successor comes to.
//
// A run that is cancelled, whose deadline has passed, or whose effects or [Run.Finally] say otherwise ends as it would without
// ContinueAs, and has no successor. While a question holds its end back the successor has not begun.
//
// Called in a branch of a [Group], in an item of a [Batch], in Finally or in a step it gives an *[Error].
func ContinueAs[Out, In any](run *Run, in In) (Out, error) {
	var none Out
	return none, run.continueAs(reflect.TypeFor[In](), in)
}

// continuation is the error by which a body says that the run goes on as a successor.
type continuation struct {
	x     *execution
	input []byte // sealed
	hash  []byte
}

func (c *continuation) Error() string {
	return "the run goes on as a successor: the body has to return this error of ContinueAs"
}

// told is what a body says by its error: that the run goes on as a successor, or else what [tame] makes of it.
func (x *execution) told(err error) error {
	if next, ok := errors.AsType[*continuation](err); ok && next.x == x {
		return next
	}
	return tame(err)
}

// goesOn reports whether a body that has told so much has succeeded.
func goesOn(err error) bool {
	_, ok := err.(*continuation) //nolint:errorlint // told has looked into it
	return ok
}

func (r *Run) continueAs(in reflect.Type, v any) error {
	x, b := r.x, r.branch
	wrong := func(reason fault.Reason, text string) error { return misuse(x, r.scope, reason, "ContinueAs: "+text) }
	if !b.mu.TryLock() {
		return wrong(fault.ReasonNestedStep, "a step of this Run is running: it belongs at the end of the body")
	}
	defer b.mu.Unlock()
	if b.over.Load() {
		return b.refuse()
	}
	if !b.main.Load() {
		return wrong(fault.ReasonNestedStep, "only the body itself can continue the run, not a branch, an item of a batch or Finally")
	}
	if err := b.enter(r.scope); err != nil {
		return err
	}
	if in != x.def.inType {
		return wrong(fault.ReasonInvalidValue, fmt.Sprintf("the input is %v, workflow %q takes %v", in, x.def.Workflow, x.def.inType))
	}
	input, hash, err := x.e.pack(v)
	switch {
	case errors.Is(err, fault.ReasonTooLarge):
		return wrong(fault.ReasonTooLarge, "input: "+err.Error())
	case err != nil:
		return wrong(fault.ReasonInvalidValue, "input: "+err.Error())
	}
	return &continuation{x, input, hash}
}

// succeed ends a locked run that continues, and inserts its successor, which its key and those who wait for it are given over
// to.
func succeed(ctx context.Context, tx Txn, run *RunRow) error {
	input := run.Result
	if !run.SetResult {
		var err error
		if _, input, err = tx.Payload(ctx, run.ID); err != nil {
			return err
		}
	}
	id := newRunID()
	run.Successor = id
	if err := tx.SaveRun(ctx, run); err != nil {
		return err
	}
	next := RunRow{ID: id, Lineage: id, Continues: run.ID, Workflow: run.Workflow, Version: run.Version, KeyName: run.KeyName,
		Queue: run.Queue, Priority: run.Priority, Share: run.Share, State: Queued, Input: input, InputHash: run.NextHash,
		Restored: run.Restored, Deadline: run.Deadline, TimeLimit: run.TimeLimit, Called: run.Called}
	if !run.NewKeys { // such a fork does not speak for the product key, nor a run whose key another lineage has by now
		ok, err := tx.MoveKey(ctx, run, id)
		if err != nil {
			return err
		}
		if ok {
			next.Key = run.Key
		}
	}
	if err := tx.InsertRuns(ctx, []RunRow{next}); err != nil {
		return fmt.Errorf("start the successor of run %s: %w", run.ID, err)
	}
	if err := tx.HandOccurrence(ctx, run.Lineage, id); err != nil || !run.Called {
		return err
	}
	return tx.MoveCalls(ctx, run.ID, id)
}

// lastOf locks the run, or the last one that it has continued as. Nobody can continue that one any more while it is locked.
func lastOf(ctx context.Context, tx Txn, id RunID) (*RunRow, error) {
	for {
		run, err := tx.LockRun(ctx, id)
		if err != nil || run.Successor == "" {
			return run, err
		}
		id = run.Successor
	}
}

// newestOf gives the last run that came of a run: its newest retry or fork, the last successor of that, and so on.
func newestOf(ctx context.Context, tx Txn, run *RunRow) (*RunRow, error) {
	for {
		family, err := tx.Lineage(ctx, run.Lineage)
		if err != nil {
			return nil, err
		}
		later := after(family, run.ID)
		if len(later) == 0 {
			return run, nil
		}
		if run, err = lastOf(ctx, tx, later[len(later)-1].ID); err != nil {
			return nil, err
		}
	}
}
