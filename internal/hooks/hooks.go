// Package hooks lets this module's own tests and its demo reach into the engine: stop it at a named point, move the
// clock it trusts its lease by, hold back a flush. A user's program cannot import it, so a production engine has none.
package hooks

import "time"

// Point is a place in the protocol where a test may kill, freeze or observe the process.
type Point string

// The points, in the order a run meets them.
const (
	Claimed       Point = "claimed"        // the claim is committed, the journal not yet read
	StepReached   Point = "step.reached"   // the body called a step that is not finished
	IntentWritten Point = "intent.written" // the intent is durable, the callback has not begun
	EffectBegin   Point = "effect.begin"   // last line before the callback
	EffectDone    Point = "effect.done"    // the callback has returned, nothing about it is durable
	ResultWritten Point = "result.written" // the step's result or error is durable
	TxCommitting  Point = "tx.committing"  // the user's transaction is complete but not committed
	ForeignDone   Point = "foreign.done"   // a transaction in another database is committed, our journal not yet
	BodyDone      Point = "body.done"      // the body has returned, the terminal write is not sent
	Ended         Point = "ended"          // the terminal write is durable
	// What is due of schedules is decided about beside all runs. Step is the first schedule's name.
	ScheduleDeciding Point = "schedule.deciding" // the ledger and the runs are written but not committed
	ScheduleDecided  Point = "schedule.decided"  // they are durable

	CommitSending Point = "commit.sending" // a journal write is complete but not committed
)

// Hooks is what a test may set. The zero value and nil change nothing.
type Hooks struct {
	// At is called at each point with the run's id and the step's name ("" where there is none).
	// It may block, or never return.
	At func(p Point, run, step string)
	// FlushDelay replaces the 2 ms after which buffered results are written on their own.
	FlushDelay time.Duration
	// Boot replaces the clock by which a worker trusts its lease.
	Boot func() time.Duration
	// NoSweep stops the worker's periodic maintenance, for tests that count commits.
	NoSweep bool
}

// Store is what a test may ask of a store when it opens it. The zero value is a production store.
type Store struct {
	// Offset makes the store's clock add the number of microseconds kept in the one-row table pawl_test_clock, which
	// is created if missing, so that tests of any number of processes move time by updating it.
	Offset bool
	// WallLease makes a SQLite store measure leases by time.Now instead of the boot clock, so that synctest's clock
	// rules it. The store then does not watch its file either, over and over in days that pass in no time.
	WallLease bool
	// Wall is added to the wall clock of a SQLite store, as if the machine's had been set. It does not move leases.
	Wall func() time.Duration
}

// Reach calls At if there is one. It is safe on nil.
func (h *Hooks) Reach(p Point, run, step string) {
	if h != nil && h.At != nil {
		h.At(p, run, step)
	}
}
