package pawl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// stepOp is one change to one journal row: a plain insert, or a move guarded by state and attempt.
type stepOp struct {
	row     *StepRow
	item    *ItemRow // instead of a row: an item that has ended
	insert  bool
	attempt int         // the stored attempt a move expects
	lost    *AttemptRow // an attempt that ended without success, recorded with it
	entry   *EntryRow   // an inbox entry that it opens
	lane    *laneHold   // a lane that it holds
	mark    bool        // only MarkStep
	// also runs in the transaction, before the row is written, and may change it; errSettled leaves it as it is stored.
	also    func(ctx context.Context, tx Txn, row *StepRow, now int64) error
	effects bool // a result of a step with an intent: evidence if it cannot be written
	timer   bool // a sleep that is over
	given   bool // the row is the write's, see hand
}

// write is what an execution wants to become durable, all of it or nothing.
type write struct {
	run   *RunRow // as claimed
	ops   []stepOp
	end   *runEnd
	final *RunRow // how the run has ended by it, with its result; nil if it has not

	waiting waiting     // for a transaction with others
	rows    [1]*StepRow // room for the change that is most common
}

// change gives the write in the form that may share a transaction with those of other runs. Few need more than that: what
// opens a question, records a failed attempt, lets go of a run that is not finished, or has to look first.
func (q *write) change() (c Change, ok bool) {
	c = Change{Run: q.run.ID, Epoch: q.run.Epoch, Token: q.run.Token, Insert: q.rows[:0]}
	if q.run.Lost > 0 {
		return c, false
	}
	for i := range q.ops {
		op := &q.ops[i]
		switch {
		case !op.shares():
			return c, false
		case op.item != nil:
			c.Items = append(c.Items, op.item)
		case op.insert:
			c.Insert = append(c.Insert, op.row)
		default:
			c.Settle = append(c.Settle, op.row)
		}
	}
	return c, q.end == nil || q.changeEnd(&c)
}

// shares reports whether the op is of the kind that may share a transaction with those of other runs.
func (op *stepOp) shares() bool {
	switch {
	case op.item != nil:
		return true
	case op.mark, op.lost != nil, op.entry != nil, op.also != nil, op.lane != nil:
		return false
	case op.insert:
		return true
	}
	return (op.effects || op.timer) && op.row.State == StepSucceeded // an intent of this claim
}

// manyOps in a row that may share a transaction are not written statement by statement because of one beside them that may not.
const manyOps = 8

// apart adds ops to parts, as parts that may be written one after the other.
func apart(parts [][]stepOp, ops []stepOp) [][]stepOp {
	from := 0
	for i := 0; i < len(ops); i++ {
		row := i // end of those in a row that may share
		for row < len(ops) && ops[row].shares() {
			row++
		}
		if row-i >= manyOps {
			if i > from {
				parts = append(parts, ops[from:i])
			}
			parts, from = append(parts, ops[i:row]), row
		}
		i = row
	}
	if from < len(ops) || len(parts) == 0 {
		parts = append(parts, ops[from:])
	}
	return parts
}

// shares reports whether the run's end may share a transaction.
func (end *runEnd) shares(run *RunRow) bool {
	return end.finish != "" && !end.alone && end.next == nil && !run.Called
}

// changeEnd adds the run's end, if nothing else has to be looked at or written with it.
func (q *write) changeEnd(c *Change) bool {
	if !q.end.shares(q.run) {
		return false
	}
	c.End = &RunEnd{State: q.end.finish, Fault: q.end.fault, Row: q.run}
	if q.end.finish == Succeeded {
		c.End.Result = q.end.result
	}
	return true
}

// write makes q durable: together with the writes of other runs if it is of the common kind, else in a transaction of its
// own. It tries again while ctx lives, which ends with the trust in the lease. ErrLeaseLost means that the run is not
// this worker's any more; nothing was written then.
func (w *writer) write(ctx context.Context, q *write) error {
	change, together := q.change()
	together = together && !hooks.Broken(hooks.W1) // whose shared transactions lock by a statement of their own
	unknown := false
	for try := 0; ; try++ {
		var err error
		if together {
			w.e.hooks.Reach(hooks.CommitSending, string(q.run.ID), "")
			q.waiting = waiting{change: change, answer: q.waiting.answer}
			if err = w.enter(ctx, &q.waiting); err == nil && change.End != nil {
				q.final = &RunRow{ID: q.run.ID, State: change.End.State, Fault: change.End.Fault, Result: change.End.Result}
			}
		} else {
			err = w.alone(ctx, q, unknown)
		}
		switch {
		case err == nil, errors.Is(err, ErrLeaseLost), errors.Is(err, errUnstorable):
			return err
		case errors.Is(err, ErrCommitUnknown):
			together, unknown = false, true
		case errors.Is(err, ErrOneByOne) && together:
			together = false
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		if try == 0 || try%20 == 0 {
			w.e.log.Warn("journal write is tried again", "run", q.run.ID, "try", try+1, "err", err)
		}
		if err := pause(ctx, backoff(try, 20*time.Millisecond, time.Second)); err != nil {
			return fmt.Errorf("%w: %w", err, ErrLeaseLost)
		}
	}
}

// alone writes q in a transaction of its own.
func (w *writer) alone(ctx context.Context, q *write, unknown bool) error {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var written []StepRow
	err := w.e.store.Update(ctx, func(ctx context.Context, tx Txn) (err error) {
		if written, err = w.e.apply(ctx, tx, q, unknown); err != nil {
			return err
		}
		w.e.hooks.Reach(hooks.CommitSending, string(q.run.ID), "")
		return nil
	})
	if err == nil {
		q.landed(written)
	}
	return err
}

// landed gives the rows the form in which they are stored. A result is progress, which the run's row notes too.
func (q *write) landed(written []StepRow) {
	for i := range written {
		if q.ops[i].item != nil {
			continue
		}
		if q.ops[i].given {
			q.ops[i].row.timesOf(&written[i])
		} else {
			*q.ops[i].row = written[i]
		}
		if written[i].State == StepSucceeded && !q.ops[i].mark {
			q.run.Lost = 0
		}
	}
}

// errUnstorable marks a row that the store can never take, so that trying again is of no use.
var errUnstorable = errors.New("journal row cannot be stored")

// apply is the fence and the write: lock the run's row, write only if this claim still holds it. With unknown set an
// earlier try may have landed, or may have been on its way until the lock was given; what is found written is passed over.
// It returns the rows of q.ops as they are stored.
func (e *Engine) apply(ctx context.Context, tx Txn, q *write, unknown bool) ([]StepRow, error) {
	run, err := e.fence(ctx, tx, q)
	if err != nil {
		if unknown && run != nil && q.end != nil && run.Epoch == q.run.Epoch+1 && run.Owner == "" {
			return nil, nil // the release landed
		}
		return nil, err
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return nil, err
	}
	written, progress, err := e.applyOps(ctx, tx, q, now, unknown)
	if err != nil {
		return nil, err
	}
	switch {
	case q.end != nil:
		if progress {
			run.Lost = 0
		}
		err = q.applyEnd(ctx, tx, run, now)
	case progress && run.Lost > 0:
		run.Lost = 0
		err = tx.SaveRun(ctx, run)
	}
	return written, err
}

// applyEnd writes the end and notes it, if it is the run's last.
func (q *write) applyEnd(ctx context.Context, tx Txn, run *RunRow, now int64) error {
	q.final = nil
	err := q.end.apply(ctx, tx, run, now)
	if err == nil && run.State.Terminal() && (run.State != Succeeded || run.SetResult) {
		q.final = run
	}
	return err
}

// fence locks the run's row, after those of other runs that its end may have to write to, and compares the claim. The row comes back with the error too.
func (e *Engine) fence(ctx context.Context, tx Txn, q *write) (*RunRow, error) {
	if q.end != nil && q.end.suspend == nil { // the run may end
		if err := lockFirst(ctx, tx, q.run.ID); err != nil {
			return nil, err
		}
	}
	run, err := tx.LockRun(ctx, q.run.ID)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("run %s is gone: %w", q.run.ID, ErrLeaseLost)
	}
	if err != nil {
		return nil, err
	}
	if run.Epoch != q.run.Epoch || run.Token != q.run.Token || run.State != Running {
		return run, fmt.Errorf("run %s is at epoch %d, %s: %w", q.run.ID, run.Epoch, run.State, ErrLeaseLost)
	}
	return run, nil
}

// applyOps writes the journal rows. It returns them as they are stored, and whether a result is among them.
func (e *Engine) applyOps(ctx context.Context, tx Txn, q *write, now int64, unknown bool) (written []StepRow, progress bool, err error) {
	written = make([]StepRow, len(q.ops))
	for i := range q.ops {
		op, row := q.ops[i], &written[i]
		if op.item != nil {
			if err := putItem(ctx, tx, op.item, unknown); err != nil {
				return nil, false, err
			}
			continue
		}
		*row = *op.row
		row.Resolve(now)
		op.row = row
		progress = progress || !op.mark && row.State == StepSucceeded
		if unknown && !op.mark {
			same, err := op.applied(ctx, tx)
			if err != nil {
				return nil, false, err
			}
			if same {
				continue
			}
		}
		if err := e.applyOp(ctx, tx, &op, now); err != nil {
			return nil, false, err
		}
	}
	return written, progress, nil
}

// applied reports whether an earlier transaction, whose outcome nobody learned, has written the row, and takes it as it is
// stored if so.
func (op *stepOp) applied(ctx context.Context, tx Txn) (bool, error) {
	row := op.row
	there, err := tx.Step(ctx, row.Run, row.Name)
	if err != nil || there == nil || there.Attempt != row.Attempt || there.Epoch != row.Epoch {
		return false, err
	}
	same := there.State == row.State
	if op.also != nil { // which may have ended it
		same = there.Orphaned == row.Orphaned &&
			(op.insert || there.State.Finished() || same && row.State != StepWaiting)
	}
	if same {
		*row = *there
	}
	return same, nil
}

func (e *Engine) applyOp(ctx context.Context, tx Txn, op *stepOp, now int64) error {
	if op.mark {
		return tx.MarkStep(ctx, op.row)
	}
	if op.also != nil {
		err := op.also(ctx, tx, op.row, now)
		if errors.Is(err, errSettled) {
			return op.reread(ctx, tx)
		}
		if err != nil {
			return err
		}
	}
	if err := op.put(ctx, tx); err != nil {
		return err
	}
	return op.applyRest(ctx, tx, now)
}

// applyRest writes what goes with the row.
func (op *stepOp) applyRest(ctx context.Context, tx Txn, now int64) error {
	if op.lost != nil {
		op.lost.Ended = now
		resolve(now, &op.lost.Begun)
		if err := tx.AddAttempt(ctx, op.lost); err != nil {
			return err
		}
	}
	if err := op.lane.apply(ctx, tx, now); err != nil {
		return err
	}
	if op.entry != nil {
		return tx.OpenEntry(ctx, op.entry)
	}
	return nil
}

// put writes the row itself.
func (op *stepOp) put(ctx context.Context, tx Txn) error {
	if op.insert {
		err := tx.InsertStep(ctx, op.row)
		if errors.Is(err, ErrStepExists) {
			return fmt.Errorf("step %q: %w: %w", op.row.Name, err, ErrLeaseLost)
		}
		return storable(op.row.Name, err)
	}
	ok, err := tx.MoveStep(ctx, op.row, op.attempt)
	if err != nil {
		return storable(op.row.Name, err)
	}
	if !ok {
		return fmt.Errorf("step %q is not at attempt %d any more: %w", op.row.Name, op.attempt, ErrLeaseLost)
	}
	return nil
}

// reread takes the row as it is stored.
func (op *stepOp) reread(ctx context.Context, tx Txn) error {
	stored, err := tx.Step(ctx, op.row.Run, op.row.Name)
	if err == nil && stored == nil {
		err = ErrNotFound
	}
	if err == nil {
		*op.row = *stored
	}
	return err
}

// storable tells a row that the database refuses for good from a database that is in trouble: a table that is missing,
// say, is no fault of the row.
func storable(step string, err error) error {
	if err == nil {
		return nil
	}
	switch fault.From(err).Reason {
	case fault.ReasonMalformed, fault.ReasonInvalidValue, fault.ReasonTooLarge, fault.ReasonConstraint:
		return fmt.Errorf("step %q: %w: %w", step, errUnstorable, err)
	default:
		return err
	}
}

// backoff is the full-jitter pause after try failed tries.
func backoff(try int, first, most time.Duration) time.Duration {
	d := most
	if try < 16 {
		d = min(most, first<<try)
	}
	return time.Duration(rand.Int64N(int64(d) + 1))
}

// pause waits for d or for the end of ctx, whose cause it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
