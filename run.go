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

// Log is silent while finished steps are passed over and after suspension, so that each line appears about once.
func (r *Run) Log() *slog.Logger {
	if r.x.quiet() || r.branch.over.Load() {
		return slog.New(slog.DiscardHandler)
	}
	return r.x.logger()
}
