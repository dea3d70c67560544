package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Child starts a run of w and waits for its end. The run that waits holds no slot of a worker meanwhile. The child is
// started once, however often its caller is resumed: it is recorded together with the wait. Its result is the step's; if
// it fails, the error is an *[Error] with the child's fault, and if it was cancelled, one that is [ErrCancelled].
//
// With a [Key] the child is the run that has the key, if there is one: several runs may wait for the same. Another input
// fails the step. With [Again] too, such a run is retried if it has failed.
//
// When the caller is cancelled, meets its [Deadline] or ends, so that it does not wait any more, the child is cancelled
// too; not with [Detached], not if it was found by its key, and not while another run waits for it.
//
// A manual retry of the caller does not start a failed child again: the child is retried, as [Engine.Retry] does it, and
// waited for; if that has been done already, its newest run is taken. A child of another input than it had fails the step.
// A fork that is to repeat a child which has succeeded has to name the step, and starts another.
//
// Child and caller are in one store, and are lineages of their own. A run cannot wait for itself.
func Child[In, Out any](run *Run, name string, w *Workflow[In, Out], in In, opts ...StartOption) (Out, error) {
	c := newCall[In, Out](name, fault.KindChild, in, nil)
	call := &childCall{run: run, path: run.path(name), in: in}
	for _, o := range opts {
		o.start(&call.o)
	}
	if w == nil {
		c.o.fail(errors.New("Child without a workflow"))
	} else {
		call.def = w.def
	}
	if err := call.check(); err != nil {
		c.o.fail(err)
	}
	c.wait = &waitKind{begin: call.begin, begun: call.begun}
	return result[Out](run, c)
}

// childCall is one call of [Child].
type childCall struct {
	run  *Run
	path string
	def  *definition
	in   any
	o    startOptions
}

func (c *childCall) check() error {
	switch {
	case c.o.err != nil:
		return c.o.err
	case c.o.again && !c.o.hasKey:
		return errors.New("Again needs a Key")
	case c.o.hasKey:
		if err := payload.CheckName("Key", string(c.o.key)); err != nil {
			return err
		}
	}
	return payload.CheckName("Queue", cmpOr(c.o.queue, "q"))
}

// begun makes workers look for the child.
func (c *childCall) begun() {
	c.run.x.e.offer(c.run.x.hold, c.def.VersionID, 1)
}

// begin starts the child, or finds it, in the transaction that records the wait. What cannot be mended by trying again
// ends the wait.
func (c *childCall) begin(ctx context.Context, tx Txn, row *StepRow, now int64) error {
	e := c.run.x.e
	input, hash, err := e.pack(c.in)
	if err != nil {
		row.fail(fault.From(err), now)
		return nil
	}
	id := newRunID()
	fresh := RunRow{ID: id, Lineage: id, Workflow: c.def.Workflow, Version: c.def.Version, KeyName: c.def.keyName, Key: c.o.key,
		Queue: cmpOr(c.o.queue, c.def.Workflow), Priority: c.o.priority, Share: c.o.share, State: Queued, Input: input, InputHash: hash,
		Called: true}
	c.o.times(&fresh)
	found, err := c.find(ctx, tx, &fresh)
	switch {
	case errors.Is(err, ErrConflict):
		row.fail(&fault.Fault{Class: fault.InvalidRequest, Reason: fault.ReasonKeyConflict, Outcome: fault.OutcomeRejected, Message: err.Error()}, now)
		return nil
	case err != nil:
		return err
	case found.id != "":
		return c.join(ctx, tx, row, found, now)
	}
	rows := []RunRow{fresh}
	if err := schedule(ctx, tx, rows); err != nil {
		return err
	}
	if err := tx.InsertRuns(ctx, rows); err != nil {
		return fmt.Errorf("start child %q: %w", row.Name, err)
	}
	return tx.AddCall(ctx, CallRow{Run: row.Run, Step: row.Name, Child: id, Started: true, Detached: c.o.detached})
}

// find gives the run to wait for: what an earlier run of the caller's lineage has called here, or what has the key. It gives
// none if a new one is to be inserted.
func (c *childCall) find(ctx context.Context, tx Txn, fresh *RunRow) (started, error) {
	former, hash, err := c.former(ctx, tx)
	if err != nil {
		return started{}, err
	}
	if former != "" {
		return c.continued(ctx, tx, fresh, former, hash)
	}
	if fresh.Key == "" {
		return started{}, nil
	}
	found, err := c.run.x.e.byKey(ctx, tx, fresh, c.o.again)
	if err != nil || found.id == "" {
		return found, err
	}
	last, err := lastOf(ctx, tx, found.id) // it may have continued since the key was read
	if err != nil {
		return found, err
	}
	found.id = last.ID
	return found, c.circle(ctx, tx, found.id)
}

// former is the child that the caller's step had in the run that the caller retries, or in one before that. A fork that
// repeats what has succeeded has none, nor one with keys of its own. hash is that of the input which the step had.
func (c *childCall) former(ctx context.Context, tx Txn) (child RunID, hash []byte, err error) {
	me := &c.run.x.row
	if me.Parent == "" || me.NewKeys {
		return "", nil, nil
	}
	family, err := tx.Lineage(ctx, me.Lineage)
	if err != nil {
		return "", nil, err
	}
	for id := me.Parent; id != ""; {
		calls, err := tx.Calls(ctx, id)
		if err != nil {
			return "", nil, err
		}
		if i := slices.IndexFunc(calls, func(r CallRow) bool { return r.Step == c.path }); i >= 0 {
			row, err := tx.Step(ctx, id, c.path)
			if err != nil || row == nil || row.State == StepSucceeded {
				return "", nil, err
			}
			return calls[i].Child, row.InputHash, nil
		}
		i := slices.IndexFunc(family, func(r RunRow) bool { return r.ID == id })
		if i < 0 || family[i].NewKeys {
			break
		}
		id = family[i].Parent
	}
	return "", nil, nil
}

// continued is the newest run of a former child's lineage, retried if it has not succeeded.
func (c *childCall) continued(ctx context.Context, tx Txn, fresh *RunRow, former RunID, hash []byte) (started, error) {
	run, err := lastOf(ctx, tx, former)
	if errors.Is(err, ErrNotFound) {
		return started{}, fmt.Errorf("the child that step %q had, run %s, is deleted: %w", c.path, former, ErrConflict)
	}
	if err != nil {
		return started{}, err
	}
	switch {
	case run.Workflow != fresh.Workflow:
		return started{}, fmt.Errorf("step %q had a child of workflow %q, run %s, and not of %q: give the new one a name of its own: %w",
			c.path, run.Workflow, former, fresh.Workflow, ErrConflict)
	case !slices.Equal(hash, fresh.InputHash):
		return started{}, fmt.Errorf("step %q had a child with another input, run %s, whose steps may have happened: %w", c.path, former, ErrConflict)
	}
	newest, err := newestOf(ctx, tx, run)
	if err != nil {
		return started{}, err
	}
	if !newest.State.Terminal() || newest.State == Succeeded {
		return started{id: newest.ID}, nil
	}
	e := c.run.x.e
	p, err := e.planIn(ctx, tx, newest.ID, PlanOptions{Mode: PlanRetry}, false)
	if err != nil {
		return started{}, err
	}
	id, err := e.retryIn(ctx, tx, p, Act{By: "run " + string(c.run.x.row.ID), Reason: "the run that waits for it was retried"})
	return started{id: id, isNew: true}, err
}

// maxCallers bounds how many runs above the caller are looked at for the one it is about to wait for.
const maxCallers = 1000

// circle refuses a run that waits for the caller, and so would never end.
func (c *childCall) circle(ctx context.Context, tx Txn, child RunID) error {
	me := c.run.x.row.ID
	seen := []RunID{me}
	for i := 0; i < len(seen) && i < maxCallers; i++ {
		if seen[i] == child {
			return fmt.Errorf("step %q would wait for run %s, which waits for this run: %w", c.path, child, ErrConflict)
		}
		calls, err := tx.Callers(ctx, seen[i])
		if err != nil {
			return err
		}
		for _, call := range calls {
			if !slices.Contains(seen, call.Run) {
				seen = append(seen, call.Run)
			}
		}
	}
	return nil
}

// join waits for a run that is there, or takes its end.
func (c *childCall) join(ctx context.Context, tx Txn, row *StepRow, found started, now int64) error {
	child, err := lastOf(ctx, tx, found.id)
	if err != nil {
		return err
	}
	if child.State.Terminal() {
		if err := row.childEnded(ctx, tx, child, now); err != nil {
			return err
		}
	} else if !child.Called {
		child.Called = true
		if err := tx.SaveRun(ctx, child); err != nil {
			return err
		}
	}
	return tx.AddCall(ctx, CallRow{Run: row.Run, Step: row.Name, Child: child.ID, Started: found.isNew, Detached: c.o.detached})
}

// fail gives the wait its end.
func (row *StepRow) fail(f *fault.Fault, now int64) {
	f.Err = nil
	row.State, row.Ended, row.Fault = StepFailed, now, f
}

// childEnded gives the wait the end of the run that it waits for.
func (row *StepRow) childEnded(ctx context.Context, tx Txn, child *RunRow, now int64) error {
	f := &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonRunCanceled, Outcome: fault.OutcomeMaybeExecuted}
	switch {
	case child.State == Succeeded:
		result := child.Result
		if !child.SetResult {
			var err error
			if _, result, err = tx.Payload(ctx, child.ID); err != nil {
				return err
			}
		}
		row.State, row.Ended, row.Value, row.ValueSize = StepSucceeded, now, result, len(result)
		return nil
	case child.State == Failed && child.Fault != nil:
		copied := *child.Fault
		f = &copied
		f.Message = fmt.Sprintf("child run %s: %s", child.ID, child.Fault.Error())
	case child.State == Failed:
		f.Class, f.Reason, f.Message = fault.OutcomeUnknown, fault.ReasonUnrecognized, fmt.Sprintf("child run %s failed", child.ID)
	default:
		f.Message = fmt.Sprintf("child run %s was cancelled", child.ID)
	}
	f.Message = payload.Clean(f.Message, 4096)
	row.fail(f, now)
	return nil
}

// lockFirst locks, in the order of their ids, the runs with lower ids than the run that its end may have to write to: those
// that wait for it, and those that it waits for. What is added meanwhile is locked out of order; the database undoes one
// of two transactions that wait for each other, and it runs again.
func lockFirst(ctx context.Context, tx Txn, id RunID) error {
	callers, err := tx.Callers(ctx, id)
	if err != nil {
		return err
	}
	calls, err := tx.Calls(ctx, id)
	if err != nil {
		return err
	}
	var lower []RunID
	for i := range callers {
		lower = append(lower, callers[i].Run)
	}
	for i := range calls {
		lower = append(lower, calls[i].Child)
	}
	slices.Sort(lower)
	for _, other := range slices.Compact(lower) {
		if other >= id {
			break
		}
		if _, err := tx.LockRun(ctx, other); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

// lockInOrder locks a run that may end, after those that come before it.
func lockInOrder(ctx context.Context, tx Txn, id RunID) (*RunRow, error) {
	if err := lockFirst(ctx, tx, id); err != nil {
		return nil, err
	}
	return tx.LockRun(ctx, id)
}

// settleCallers ends the waits for a run that has just ended.
func settleCallers(ctx context.Context, tx Txn, child *RunRow, now int64) error {
	if !child.Called {
		return nil
	}
	callers, err := tx.Callers(ctx, child.ID)
	if err != nil {
		return err
	}
	for i := range callers {
		call := &callers[i]
		run, err := tx.LockRun(ctx, call.Run)
		if errors.Is(err, ErrNotFound) { // deleted, so it has ended
			continue
		}
		if err != nil {
			return err
		}
		row, err := tx.Step(ctx, call.Run, call.Step)
		if err != nil {
			return err
		}
		if row == nil || row.State != StepWaiting {
			continue
		}
		if err := row.childEnded(ctx, tx, child, now); err != nil {
			return err
		}
		if _, err := settleWait(ctx, tx, run, row, now); err != nil {
			return err
		}
	}
	return nil
}

// endCall cancels the child of a wait that is closed, unless it is to go on without its caller.
func endCall(ctx context.Context, tx Txn, row *StepRow, why fault.Reason, now int64) error {
	calls, err := tx.Calls(ctx, row.Run)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(calls, func(c CallRow) bool { return c.Step == row.Name })
	if i < 0 || calls[i].Detached {
		return nil
	}
	if !slices.ContainsFunc(calls, func(c CallRow) bool { return c.Child == calls[i].Child && c.Started && !c.Detached }) {
		return nil
	}
	child, err := lastOf(ctx, tx, calls[i].Child)
	if errors.Is(err, ErrNotFound) || err == nil && child.State.Terminal() {
		return nil
	}
	if err != nil {
		return err
	}
	wanted, err := hasCaller(ctx, tx, child.ID)
	if err != nil || wanted {
		return err
	}
	return cancelChild(ctx, tx, child, Act{By: "run " + string(row.Run), Reason: fmt.Sprintf("it does not wait any more: %s", why)}, now)
}

// cancelChild cancels a locked child in its caller's name.
func cancelChild(ctx context.Context, tx Txn, child *RunRow, a Act, now int64) error {
	if child.CancelAt == 0 {
		child.CancelAt, child.CancelBy, child.CancelWhy = now, a.By, a.Reason
	}
	if err := tx.AddAudit(ctx, &AuditRow{Act: "cancel", By: a.By, Why: a.Reason, Run: child.ID}); err != nil {
		return err
	}
	if err := closeGates(ctx, tx, child, fault.ReasonRunCanceled, now); err != nil {
		return err
	}
	return cancelRun(ctx, tx, child, a, now)
}

// hasCaller reports whether a run waits for the child.
func hasCaller(ctx context.Context, tx Txn, child RunID) (bool, error) {
	callers, err := tx.Callers(ctx, child)
	if err != nil {
		return false, err
	}
	for i := range callers {
		row, err := tx.Step(ctx, callers[i].Run, callers[i].Step)
		if err != nil {
			return false, err
		}
		if row != nil && row.State == StepWaiting {
			return true, nil
		}
	}
	return false, nil
}

// abandonWait closes the wait for a child when the contexts of the run have ended, and gives the body what the journal says
// then. Other waits have nobody to tell, and are closed with the run.
func (s *stepRun) abandonWait(err error) ([]byte, error) {
	cut, ok := errors.AsType[*Error](err)
	if !ok || s.row == nil || s.row.Kind != fault.KindChild || s.row.State != StepWaiting {
		return nil, err
	}
	row := *s.row
	op := stepOp{row: &row, attempt: row.Attempt, also: func(ctx context.Context, tx Txn, row *StepRow, now int64) error {
		stored, err := tx.Step(ctx, row.Run, row.Name)
		if err != nil {
			return err
		}
		if stored == nil || stored.State != StepWaiting {
			return errSettled
		}
		*row = *stored
		row.Epoch = s.x.row.Epoch
		if err := closeWait(ctx, tx, row, cut.Fault.Reason, now); err != nil {
			return err
		}
		return errSettled
	}}
	if err := s.recordWait(op); err != nil {
		return nil, err
	}
	s.x.e.nudge()
	s.x.e.hint(s.x.hold)
	if s.row.State == StepSucceeded { // just before that
		return s.b.opened(s.row.Name, s.row.Value)
	}
	return nil, s.row.stored()
}

// showCalls adds what a run has waited for, and what has waited for it.
func showCalls(ctx context.Context, tx Txn, d *RunDetail) error {
	calls, err := tx.Calls(ctx, d.ID)
	if err != nil {
		return err
	}
	callers, err := tx.Callers(ctx, d.ID)
	if err != nil {
		return err
	}
	for i, r := range slices.Concat(calls, callers) {
		down := i < len(calls)
		c := Call{Step: r.Step, Run: r.Run, Detached: r.Detached, Found: !r.Started}
		if down {
			c.Run = r.Child
		}
		run, err := tx.LockRun(ctx, c.Run)
		switch {
		case err == nil:
			c.State = run.State
		case !errors.Is(err, ErrNotFound):
			return err
		}
		if down {
			d.Children = append(d.Children, c)
		} else {
			d.Callers = append(d.Callers, c)
		}
	}
	return nil
}
