package pawl

import (
	"log/slog"
	"time"
)

// Run is what a body has of its run. Its methods do no I/O and write nothing; what is journalled is a function with a
// name. A Run serves one goroutine, the body's or that of a branch of a [Group].
type Run struct {
	x      *execution
	scope  string
	shield bool
	branch *branch // shared by all scopes of it
	bad    error   // a scope that cannot be used
}

// ID is the run's id.
func (r *Run) ID() RunID { return r.x.row.ID }

// StartedAt is when the run was first claimed, by the store's clock: the same on every execution.
func (r *Run) StartedAt() time.Time { return micros(r.x.row.Started) }

// Item is the run with names of its own for one item of a loop: its steps are journalled under id. It panics on "",
// which fails the run; any other bad id fails the steps named below it.
func (r *Run) Item(id string) *Run {
	if id == "" {
		panic(`pawl: Item(""): an item needs a stable id`) //nolint:forbidigo // a mistake in the body; it fails the run
	}
	scoped := *r
	scoped.scope = stepPath(r.scope, id)
	if err := checkName("Item", id); err != nil && scoped.bad == nil {
		scoped.bad = err
	}
	return &scoped
}

// WithoutCancel is the run whose steps run after a cancel request too: for compensation.
func (r *Run) WithoutCancel() *Run {
	shielded := *r
	shielded.shield = true
	return &shielded
}

// Finally has fn called when the body has returned or panicked, and not only waits: to clean up after a success, a failure or
// a cancel alike. Its steps run after a cancel request and past the run's deadline too, and are not counted against [Limits]; they may wait
// like any others, and the run ends after them. Functions are called in reverse order, each though another has failed. A body that succeeded
// fails by their first error; one that failed or was cancelled keeps its end.
//
// A run whose functions end after its [Deadline] has failed by it, though they are called to the end; and a cancel withdraws what they have asked
// a person ([AskFirst]) before it.
//
// Nothing is called for a run that is cancelled before it began, or whose end a person has decided: given up, accepted, or cancelled while a question
// was open.
func (r *Run) Finally(fn func(run *Run) error) {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	r.x.finals = append(r.x.finals, fn)
}

// Log is silent while finished steps are passed over and after suspension, so that each line appears about once.
func (r *Run) Log() *slog.Logger {
	if r.x.quiet() || r.branch.over.Load() {
		return slog.New(slog.DiscardHandler)
	}
	return r.x.logger()
}
