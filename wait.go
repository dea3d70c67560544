package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// waitKind is what is particular to a kind of wait. Both functions run in the transaction that writes the row, under the
// run's lock.
type waitKind struct {
	until int64 // when it is over by itself, may be relative; 0 for as long as it takes
	// begin is called when the row is to be inserted, and may end the wait at once by giving the row another state.
	begin func(ctx context.Context, tx Txn, row *StepRow, now int64) error
	// late is called when its time has come and nobody else has ended it, and gives the row its last state. Without it the
	// time is all that was waited for.
	late func(ctx context.Context, tx Txn, row *StepRow, now int64) error
	// begun is called when what begin has written is durable, and the wait goes on.
	begun func()
}

// Sleep suspends the run until d has passed by the store's clock, counted from when the sleep was first recorded. The run
// holds no slot of a worker meanwhile. A resumed run does not sleep again, and a d that later code has changed does not
// move the stored time. A d of 0 or less is over at once.
func Sleep(run *Run, name string, d time.Duration) error {
	c := &stepCall{name: name, kind: fault.KindTimer, in: d, wait: &waitKind{}}
	if d > 0 {
		c.wait.until = AtWrite + max(micro(d), 1)
	}
	_, err := run.step(c)
	return err
}

// SleepUntil is [Sleep] until t by the store's clock; a t in the past is over at once.
func SleepUntil(run *Run, name string, t time.Time) error {
	c := &stepCall{name: name, kind: fault.KindTimer, in: t.UTC(), wait: &waitKind{}}
	switch {
	case t.Year() > 9999: // beyond that, microseconds overflow sooner or later
		c.o.fail(fmt.Errorf("SleepUntil(%v): want a time before the year 10000", t))
	case t.Year() >= 1970:
		c.wait.until = t.UnixMicro()
	}
	_, err := run.step(c)
	return err
}

// await is the step call of a wait.
func (s *stepRun) await() ([]byte, error) {
	x, w := s.x, s.c.wait
	if s.row == nil {
		if err := s.first(); err != nil {
			return nil, err
		}
		if err := s.beginWait(); err != nil {
			return nil, err
		}
	}
	row := s.row
	if row.State == StepWaiting && row.NextAt > 0 && row.NextAt <= max(x.w.now(), x.row.Claimed) {
		if err := s.endWait(w.late); err != nil {
			return nil, err
		}
		row = s.row
	}
	switch row.State {
	case StepWaiting:
		return nil, s.b.waitFor(row)
	case StepSucceeded:
		x.quietN.Store(false)
		return s.b.opened(row.Name, row.Value)
	default:
		return nil, s.b.failure(row)
	}
}

// beginWait records the wait. What begin finds may end it at once.
func (s *stepRun) beginWait() error {
	w := s.c.wait
	row := &StepRow{Run: s.x.row.ID, Name: s.path, Kind: s.c.kind, State: StepWaiting, Attempt: 1, Epoch: s.x.row.Epoch,
		InputHash: s.hash, Begun: AtWrite, NextAt: w.until}
	if w.until == 0 && s.c.kind == fault.KindTimer {
		row.State, row.Ended = StepSucceeded, AtWrite
	}
	err := s.recordWait(stepOp{row: row, insert: true, also: w.begin})
	if err == nil && w.begun != nil && s.row.State == StepWaiting {
		w.begun()
	}
	return err
}

// endWait records that the wait's time has come, unless it was ended by something else before.
func (s *stepRun) endWait(late func(context.Context, Txn, *StepRow, int64) error) error {
	row := *s.row
	op := stepOp{row: &row, attempt: row.Attempt}
	if late == nil {
		row.State, row.Ended = StepSucceeded, AtWrite
		row.noteInput(s.hash)
		op.timer = row.OtherHash == nil
		return s.recordWait(op)
	}
	op.also = func(ctx context.Context, tx Txn, row *StepRow, now int64) error {
		stored, err := tx.Step(ctx, row.Run, row.Name)
		if err != nil {
			return err
		}
		if stored == nil || stored.State != StepWaiting {
			return errSettled
		}
		*row = *stored
		row.Epoch, row.Ended = s.x.row.Epoch, now
		row.noteInput(s.hash)
		return late(ctx, tx, row, now)
	}
	return s.recordWait(op)
}

// noteInput records that the code has changed what is waited for; what was recorded first holds.
func (row *StepRow) noteInput(hash []byte) {
	if !slices.Equal(row.InputHash, hash) {
		row.OtherHash = hash
	}
}

// errSettled says in [stepOp.also] that the wait has been ended already: what is stored holds.
var errSettled = errors.New("the wait is over already")

// recordWait writes a row of a wait: with what comes next, if nothing else has to be looked at or written with it.
func (s *stepRun) recordWait(op stepOp) error {
	if op.also == nil {
		s.x.buffer(op)
	} else if err := s.x.commit([]stepOp{op}, nil); err != nil || s.x.unstorable() != nil {
		return s.b.suspend()
	}
	s.keep(op.row)
	return nil
}

// settleWait ends a wait from outside: of a run whose row is locked, by what row says now. It wakes the run, and reports
// false if the wait was over already.
func settleWait(ctx context.Context, tx Txn, run *RunRow, row *StepRow, now int64) (bool, error) {
	row.Ended = now
	ok, err := tx.MoveStep(ctx, row, row.Attempt)
	if err != nil || !ok {
		return false, err
	}
	return true, wake(ctx, tx, run, now)
}

// closeWait ends a wait that nobody is interested in any more.
func closeWait(ctx context.Context, tx Txn, row *StepRow, why fault.Reason, now int64) error {
	row.State, row.Ended = StepFailed, now
	row.Fault = &fault.Fault{Class: fault.Canceled, Reason: why, Outcome: fault.OutcomeNotSent}
	ok, err := tx.MoveStep(ctx, row, row.Attempt)
	if err == nil && !ok {
		err = fmt.Errorf("wait %q changed under the run's lock", row.Name)
	}
	if err != nil {
		return err
	}
	switch row.Kind {
	case fault.KindChild:
		return endCall(ctx, tx, row, why, now)
	case fault.KindEvent:
		return tx.CloseAwait(ctx, row.Run, row.Name)
	default:
		return nil
	}
}
