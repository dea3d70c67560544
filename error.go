package pawl

import (
	"errors"
	"fmt"

	"github.com/pawlrun/pawl/fault"
)

// What a body meets.
var (
	// ErrSuspended: this execution of the body is over, the run goes on later. Return it; whatever else a suspended
	// body returns is ignored.
	ErrSuspended = errors.New("run is suspended: return this error, the run goes on later")
	// ErrCancelled: a person cancelled the run.
	ErrCancelled = errors.New("run is cancelled")
	// ErrDuplicate: the step's name is used twice in the run. It is an invalid_request fault.
	ErrDuplicate error = fault.ReasonDuplicateStep
)

// What callers and operators meet.
var (
	// ErrConflict: the same key with another input or of a deleted run, or an answer to something that has changed since it was shown.
	ErrConflict = errors.New("conflict")
	// ErrStale: what was shown no longer holds: look again, or make a new plan.
	ErrStale = errors.New("stale")
	// ErrLive: another run of the lineage is not finished.
	ErrLive = errors.New("another run of this lineage is live")
	// ErrNotFound: no such run, entry or workflow.
	ErrNotFound = errors.New("not found")
	// ErrTerminal: the run is finished and stays as it is.
	ErrTerminal = errors.New("run is already finished")
	// ErrExpired: the time for a decision, or for the use of an approval, is over.
	ErrExpired = errors.New("expired")
	// ErrNotAllowed: the gate does not let this person decide.
	ErrNotAllowed = errors.New("not allowed to decide")
	// ErrTooEarly: "did not happen" was said while the attempt might still act.
	ErrTooEarly = errors.New("the attempt may still happen")
)

// What a store reports.
var (
	// ErrCommitUnknown: the connection was lost while COMMIT was under way.
	ErrCommitUnknown = errors.New("commit may or may not have been applied")
	// ErrOneByOne: one of several changes does not hold, so none was made. Each has to be tried by itself.
	ErrOneByOne = errors.New("one of several changes does not hold")
	// ErrStepExists: a journal row of that name is there already.
	ErrStepExists = errors.New("step is in the journal already")
	// ErrLeaseLost: another worker may own the run now; what this one has not written is dropped.
	ErrLeaseLost error = fault.ErrLeaseLost
	// ErrSchema: the database's schema does not fit this build.
	ErrSchema = errors.New("database schema does not fit this build")
)

// Error is how a failed step or run reads, on its first execution and after any restart. Is and As reach its
// [fault.Fault] and [fault.Reason], never the live error.
type Error struct {
	Run   RunID
	Step  string // "" for the run itself
	Fault fault.Fault
}

// Error names the step and the fault.
func (e *Error) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("run %s: %s", e.Run, e.Fault.Error())
	}
	return fmt.Sprintf("step %s: %s", e.Step, e.Fault.Error())
}

// Unwrap gives the fault.
func (e *Error) Unwrap() error { return &e.Fault }

// Is reports whether target is [ErrCancelled] and the step was cut off, or not begun, because the run is cancelled.
func (e *Error) Is(target error) bool {
	return target == ErrCancelled && e.Fault.Reason == fault.ReasonRunCanceled
}
