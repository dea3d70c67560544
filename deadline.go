package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// times are those of a run that is to be started.
func (o *startOptions) times(row *RunRow) {
	row.Due = o.at
	if o.deadline > 0 {
		row.TimeLimit = max(micro(o.deadline), 1)
	}
}

// schedule makes the times of runs that are to be inserted absolute.
func schedule(ctx context.Context, tx Txn, rows []RunRow) error {
	if !slices.ContainsFunc(rows, func(r RunRow) bool { return r.Due > 0 || r.TimeLimit > 0 }) {
		return nil
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	for i := range rows {
		row := &rows[i]
		if row.Due > 0 {
			row.Due = max(row.Due, now)
		}
		if row.TimeLimit > 0 {
			row.Deadline = max(row.Due, now) + row.TimeLimit
		}
	}
	return nil
}

// watch ends the context of the run's steps when its deadline passes, until the returned function is called.
func (x *execution) watch() (stop func()) {
	if x.row.Deadline == 0 {
		return func() {}
	}
	left := time.Duration(x.row.Deadline-max(x.w.now(), x.row.Claimed)) * time.Microsecond
	if left <= 0 {
		x.late = true
		x.quit(fault.ReasonRunDeadline)
		return func() {}
	}
	t := time.AfterFunc(left, func() { x.quit(fault.ReasonRunDeadline) })
	return func() { t.Stop() }
}

// overdue: the run's deadline has ended the contexts of its steps.
func (x *execution) overdue() bool { return errors.Is(context.Cause(x.ctx), fault.ReasonRunDeadline) }

// missed is the fault of a run whose deadline has passed. It says what the run was doing then.
func (x *execution) missed() *fault.Fault {
	return &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonRunDeadline, Outcome: fault.OutcomeMaybeExecuted,
		Message: payload.Clean("the run's deadline passed"+x.cut, 4096)}
}

// cutOff is the error of a step that is not begun because the contexts of the run have ended, and notes what they ended.
func (s *stepRun) cutOff(text string) error {
	x := s.x
	f := fault.Fault{Class: fault.Canceled, Reason: fault.ReasonRunCanceled, Outcome: fault.OutcomeNotSent, Message: "the run " + text}
	if x.overdue() {
		f.Reason, f.Message = fault.ReasonRunDeadline, "the run's deadline has passed: it "+text
		s.noteCut()
	}
	return &Error{Run: x.row.ID, Step: s.path, Fault: f}
}

// noteCut notes the first step that the deadline has cut off, or what the run waited for.
func (s *stepRun) noteCut() {
	x := s.x
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.cut != "" || !x.overdue():
	case s.row != nil && s.row.State == StepWaiting:
		x.cut = fmt.Sprintf(" while it waited for %s %q, since %s", s.row.Kind, s.path, micros(s.row.Begun).Format(time.RFC3339))
	default:
		x.cut = fmt.Sprintf(" at %s %q", s.c.kind, s.path)
	}
}

// beyond reports whether the run's deadline comes before the end of a pause of that length.
func (s *stepRun) beyond(pause time.Duration) bool {
	x := s.x
	return x.row.Deadline > 0 && !s.run.shield && x.w.now()+micro(pause) >= x.row.Deadline
}
