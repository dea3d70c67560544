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
	insert  bool
	attempt int // the stored attempt a move expects
	// fill sets the times of row that come from the store's clock. It may run more than once.
	fill    func(row *StepRow, now int64)
	lost    *AttemptRow // an attempt that ended without success, recorded with it
	entry   *EntryRow   // an inbox entry that it opens
	mark    bool        // only MarkStep
	effects bool        // a result of a step with an intent: evidence if it cannot be written
}

// write is what an execution wants to become durable, all of it or nothing.
type write struct {
	run   RunID
	epoch int64
	token int64
	build string
	ops   []stepOp
	end   *runEnd
}

// writer is the one place of a process through which the journals are written. It bounds how many transactions are
// open; the writes of one run come one after the other, because its execution waits for each.
type writer struct {
	e     *Engine
	slots chan struct{}
}

func newWriter(e *Engine) *writer {
	n := 8
	if e.store.Name() == "sqlite" {
		n = 1 // there is one write lock, waiting for it in order beats polling for it
	}
	return &writer{e, make(chan struct{}, n)}
}

// write makes q durable. It tries again while ctx lives, which ends with the trust in the lease. ErrLeaseLost means
// that the run is not this worker's any more; nothing was written then.
func (w *writer) write(ctx context.Context, q *write) error {
	unknown := false
	for try := 0; ; try++ {
		err := w.once(ctx, q, unknown)
		switch {
		case err == nil, errors.Is(err, ErrLeaseLost), errors.Is(err, errUnstorable):
			return err
		case errors.Is(err, ErrCommitUnknown):
			unknown = true
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		if try == 0 || try%20 == 0 {
			w.e.log.Warn("journal write is tried again", "run", q.run, "try", try+1, "err", err)
		}
		if err := pause(ctx, backoff(try, 20*time.Millisecond, time.Second)); err != nil {
			return fmt.Errorf("%w: %w", err, ErrLeaseLost)
		}
	}
}

func (w *writer) once(ctx context.Context, q *write, unknown bool) error {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return w.e.store.Update(ctx, func(ctx context.Context, tx Txn) error {
		if err := w.e.apply(ctx, tx, q, unknown); err != nil {
			return err
		}
		w.e.hooks.Reach(hooks.CommitSending, string(q.run), "")
		return nil
	})
}

// errUnstorable marks a row that the store can never take, so that trying again is of no use.
var errUnstorable = errors.New("journal row cannot be stored")

// apply is the fence and the write: lock the run's row, write only if this claim still holds it. With unknown set an
// earlier try may have landed, or may have been on its way until the lock was given; what is found written is passed over.
func (e *Engine) apply(ctx context.Context, tx Txn, q *write, unknown bool) error {
	run, err := e.fence(ctx, tx, q)
	if err != nil {
		if unknown && run != nil && q.end != nil && run.Epoch == q.epoch+1 && run.Owner == "" {
			return nil // the release landed
		}
		return err
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	progress, err := e.applyOps(ctx, tx, q, now, unknown)
	if err != nil {
		return err
	}
	if q.end != nil {
		if progress {
			run.Lost = 0
		}
		return q.end.apply(ctx, tx, run, now)
	}
	if progress && run.Lost > 0 {
		run.Lost = 0
		return tx.SaveRun(ctx, run)
	}
	return nil
}

// fence locks the run's row and compares the claim. The row comes back with the error too.
func (e *Engine) fence(ctx context.Context, tx Txn, q *write) (*RunRow, error) {
	run, err := tx.LockRun(ctx, q.run)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("run %s is gone: %w", q.run, ErrLeaseLost)
	}
	if err != nil {
		return nil, err
	}
	if run.Epoch != q.epoch || run.Token != q.token || run.State != Running {
		return run, fmt.Errorf("run %s is at epoch %d, %s: %w", q.run, run.Epoch, run.State, ErrLeaseLost)
	}
	return run, nil
}

// applyOps writes the journal rows and reports whether a result is among them.
func (e *Engine) applyOps(ctx context.Context, tx Txn, q *write, now int64, unknown bool) (progress bool, err error) {
	for i := range q.ops {
		op := &q.ops[i]
		if op.fill != nil {
			op.fill(op.row, now)
		}
		progress = progress || !op.mark && op.row.State == StepSucceeded
		if unknown && !op.mark {
			there, err := tx.Step(ctx, q.run, op.row.Name)
			if err != nil {
				return false, err
			}
			if there != nil && there.State == op.row.State && there.Attempt == op.row.Attempt && there.Epoch == op.row.Epoch {
				*op.row = *there
				continue
			}
		}
		if err := e.applyOp(ctx, tx, op, now); err != nil {
			return false, err
		}
	}
	return progress, nil
}

func (e *Engine) applyOp(ctx context.Context, tx Txn, op *stepOp, now int64) error {
	switch {
	case op.mark:
		return tx.MarkStep(ctx, op.row)
	case op.insert:
		err := tx.InsertStep(ctx, op.row)
		if errors.Is(err, ErrStepExists) {
			return fmt.Errorf("step %q: %w: %w", op.row.Name, err, ErrLeaseLost)
		}
		if err != nil {
			return storable(op.row.Name, err)
		}
	default:
		ok, err := tx.MoveStep(ctx, op.row, op.attempt)
		if err != nil {
			return storable(op.row.Name, err)
		}
		if !ok {
			return fmt.Errorf("step %q is not at attempt %d any more: %w", op.row.Name, op.attempt, ErrLeaseLost)
		}
	}
	if op.lost != nil {
		op.lost.Ended = now
		if err := tx.AddAttempt(ctx, op.lost); err != nil {
			return err
		}
	}
	if op.entry != nil {
		return tx.OpenEntry(ctx, op.entry)
	}
	return nil
}

// storable tells a row that the database refuses for good from a database that is in trouble: a table that is missing,
// say, is no fault of the row.
func storable(step string, err error) error {
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
