package fault

import (
	"context"
	"errors"
)

// FromContext is [From] for the place where a step's error enters the journal: it knows run, the context of
// the run (or branch), and step, the context derived from it that the step's callback was given. It asks the
// contexts and not the error whether they ended, because net/http returns a context's cause instead of
// context.Canceled, and because a dial timeout is context.DeadlineExceeded although no context ended. So call it
// before the step's context is released.
//
//   - run has ended: class canceled; the reason is the cause's if that is one of [ErrRunCanceled],
//     [ErrStopping], [ErrLeaseLost], [ErrSiblingFailed], else run_deadline or run_canceled.
//   - only step has ended: an outcome_unknown gets reason step_deadline, whatever error the cut call came to; an
//     error that is an answer, such as a final 401, stays what it is.
//   - neither: a context error is somebody else's, outcome_unknown. A step that claims class canceled is not
//     believed, or it would be run again for ever without an attempt counted.
//
// In every case an outcome that the error itself proves, not_sent or rejected, is kept. A nil context has
// not ended; a nil err is nil even if both have, because a step that succeeded has succeeded.
func FromContext(run, step context.Context, err error) *Fault {
	f := From(err)
	switch {
	case f == nil:
		return nil
	case run != nil && run.Err() != nil:
		f.Class, f.Reason = Canceled, runReason(run)
		return f
	case f.Class == Canceled && f.Outcome.Proven():
		f.Class = Transient
	case f.Class == Canceled:
		f.Class = OutcomeUnknown
	}
	if step == nil || step.Err() == nil {
		return f
	}
	reason := ReasonStepDeadline
	if !errors.Is(step.Err(), context.DeadlineExceeded) {
		reason = ReasonCallCanceled
	}
	switch {
	case f.Reason == ReasonPanic: // the more useful half of the truth
	case f.Class == OutcomeUnknown:
		f.Reason = reason
	case f.Class == Transient && f.Outcome.Proven() && cutShort(err, f.Reason):
		f.Reason = reason
	}
	return f
}

// runReason tells by the cause why a run's context ended.
func runReason(run context.Context) Reason {
	if c := From(context.Cause(run)); c != nil {
		if class, _, _ := c.Reason.natural(); class == Canceled {
			return c.Reason
		}
	}
	if errors.Is(run.Err(), context.DeadlineExceeded) {
		return ReasonRunDeadline
	}
	return ReasonRunCanceled
}

// cutShort reports whether err, of reason r, is what a call comes to when its context ends: a timeout or a
// cancellation somewhere in it.
func cutShort(err error, r Reason) (cut bool) {
	if r == ReasonStatementTimeout {
		return true // PostgreSQL and SQLite report our own cancellation so
	}
	defer func() {
		if recover() != nil {
			cut = false // a method of err panicked; its own reason will do
		}
	}()
	left := maxNodes
	return anyNode(err, &left, func(err error) bool {
		_, ended := contextReason(err)
		return ended
	})
}

// anyNode reports whether is holds for a node of the tree of err.
func anyNode(err error, left *int, is func(error) bool) bool {
	for err != nil {
		if *left--; *left < 0 {
			return false
		}
		if is(err) {
			return true
		}
		switch x := err.(type) {
		case interface{ Unwrap() []error }:
			for _, branch := range x.Unwrap() {
				if anyNode(branch, left, is) {
					return true
				}
			}
			return false
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		default:
			return false
		}
	}
	return false
}

// contextReason recognises this one node as the end of some context or timer.
func contextReason(err error) (Reason, bool) {
	is, _ := err.(interface{ Is(error) bool })
	if err == context.Canceled || is != nil && is.Is(context.Canceled) {
		return ReasonCallCanceled, true
	}
	if x, ok := err.(interface{ Timeout() bool }); ok && x.Timeout() {
		return ReasonClientTimeout, true
	}
	if is != nil && is.Is(context.DeadlineExceeded) {
		return ReasonClientTimeout, true
	}
	return "", false
}
