package pawl

import (
	"context"
	"fmt"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// runEnd is how an execution lets go of its run. Exactly one of finish, suspend, release and block is meant.
type runEnd struct {
	finish  RunState      // a terminal state
	suspend []waitOn      // what the body waits for
	release bool          // graceful: goes on elsewhere, no attempt is spent
	cancels bool          // a suspended body that has seen the end of its context, by a cancel request or the deadline
	delay   time.Duration // of a release
	alone   bool          // gates have to be looked at with it
	block   *EntryRow

	fault  *fault.Fault // of a failed finish, or of the failure a block holds back
	result []byte       // of a succeeded finish, or of the success a block holds back
	next   []byte       // not nil: the result is the input of the run's successor, and has this hash
	intend RunState     // what a block holds back
}

// waitOn is a step, at an attempt, that a suspended body waits for.
type waitOn struct {
	step    string
	attempt int
	items   bool // a batch: what its items wait for is what counts
}

// apply writes the end. The run's row is locked and is this claim's.
func (end *runEnd) apply(ctx context.Context, tx Txn, run *RunRow, now int64) error {
	letGo(run)
	switch {
	case run.Intended != "": // a person gave up a step, or cancelled after that, while the body ran
		return finish(ctx, tx, run, run.Intended, run.Fault, nil)
	case end.next != nil && run.CancelAt > 0:
		return finish(ctx, tx, run, Cancelled, nil, nil)
	case end.finish != "":
		run.NextHash = end.next
		return finish(ctx, tx, run, end.finish, end.fault, end.result)
	case end.block != nil && run.CancelAt > 0:
		return finish(ctx, tx, run, Cancelled, nil, nil)
	case end.block != nil:
		run.State, run.Intended, run.Fault = Blocked, end.intend, end.fault
		if end.intend == Succeeded {
			run.Result, run.SetResult, run.NextHash = end.result, true, end.next
		}
		if err := tx.SaveRun(ctx, run); err != nil {
			return err
		}
		return tx.OpenEntry(ctx, end.block)
	case end.release:
		run.State, run.Due = Queued, now+micro(end.delay)
		run.Releases++
		return tx.SaveRun(ctx, run)
	default:
		return settle(ctx, tx, run, now, end)
	}
}

// letGo ends the claim. The epoch grows, so that a write of the old claim that is still on its way finds another one.
func letGo(run *RunRow) {
	if !hooks.Broken(hooks.W4) {
		run.Epoch++
	}
	run.Token = 0
	run.Owner = ""
	run.Due = 0
}

// finish writes a terminal state if every effect of the run is known. Otherwise what is open becomes uncertain, and
// the run is blocked with its intended end kept. The run's row must be locked, and this must be a statement of its own
// after the lock, so that it sees what was committed while the lock was waited for.
func finish(ctx context.Context, tx Txn, run *RunRow, state RunState, f *fault.Fault, result []byte) error {
	open, err := tx.OpenSteps(ctx, run.ID)
	if err != nil {
		return err
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	why := fault.ReasonRunEnded
	if state == Cancelled {
		why = fault.ReasonRunCanceled
	}
	if err := closeGates(ctx, tx, run, why, now); err != nil {
		return err
	}
	unknown, err := closeSteps(ctx, tx, open, why, now)
	if err != nil {
		return err
	}
	run.Fault, run.Due = f, 0
	if state == Succeeded && result != nil {
		run.Result, run.SetResult = result, true
	}
	if unknown && !hooks.Broken(hooks.W8) {
		run.State, run.Intended = Blocked, state
		return tx.SaveRun(ctx, run)
	}
	run.State, run.Intended = state, ""
	if state != Succeeded {
		run.NextHash = nil
	}
	if run.NextHash != nil {
		return succeed(ctx, tx, run)
	}
	if err := tx.SaveRun(ctx, run); err != nil {
		return err
	}
	if !run.NewKeys { // such a fork does not speak for the product key
		if err := tx.EndKey(ctx, run); err != nil {
			return err
		}
	}
	return settleCallers(ctx, tx, run, now)
}

// closeSteps ends the open steps, and reports whether something is asked about one.
func closeSteps(ctx context.Context, tx Txn, open []StepRow, why fault.Reason, now int64) (unknown bool, err error) {
	for i := range open {
		if err := closeStep(ctx, tx, &open[i], why, now); err != nil {
			return false, err
		}
		unknown = unknown || open[i].State == StepUncertain
	}
	return unknown, nil
}

// closeStep ends an open step at the run's end, or asks about it. A gate's wait has been ended with the gate.
func closeStep(ctx context.Context, tx Txn, row *StepRow, why fault.Reason, now int64) error {
	if row.State == StepWaiting && row.Kind != fault.KindGate {
		return closeWait(ctx, tx, row, why, now)
	}
	if row.State == StepInFlight {
		if err := closeInFlight(ctx, tx, row); err != nil {
			return err
		}
	}
	if row.State == StepUncertain {
		return tx.OpenEntry(ctx, uncertainEntry(row, ""))
	}
	return nil
}

// closeInFlight ends an intent at the run's end: as failed where a repetition would have been harmless, else as its worker
// has reported, or as uncertain.
func closeInFlight(ctx context.Context, tx Txn, row *StepRow) error {
	if row.Kind == fault.KindRepeatable {
		row.State = StepFailed
		row.Fault = &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonRunCanceled, Outcome: fault.OutcomeMaybeExecuted}
	} else {
		reports, err := tx.Evidence(ctx, row.Run)
		if err != nil {
			return err
		}
		row.State, row.NextProbe = StepUncertain, 0
		row.heed(reports, row.Begun)
	}
	ok, err := tx.MoveStep(ctx, row, row.Attempt)
	if err == nil && !ok {
		err = fmt.Errorf("step %q changed under the run's lock", row.Name)
	}
	return err
}

// uncertainEntry asks whether the row's attempt happened.
func uncertainEntry(row *StepRow, detail string) *EntryRow {
	if detail == "" {
		detail = fmt.Sprintf("attempt %d of %s %q began and nobody knows whether its effect happened", row.Attempt, row.Kind, row.Name)
	}
	return &EntryRow{Run: row.Run, Step: row.Name, Kind: AskUncertain, Attempt: row.Attempt, Detail: detail}
}

// settle decides where a run that nobody holds goes, from its open rows as they are under the lock: work is ready,
// then queued; else a time is known, then waiting; else blocked. What the body waits for and has been settled in the
// meantime is work that is ready, and so is a cancel request that it has not seen.
func settle(ctx context.Context, tx Txn, run *RunRow, now int64, end *runEnd) error {
	w, err := look(ctx, tx, run.ID, now, end.suspend)
	if err != nil {
		return err
	}
	unseen := int64(0) // when the body has to be told of a cancel or of its deadline, and goes on to its compensation
	switch {
	case end.cancels || w.asked && !w.waits: // a question is waited for, not what a cancel would end
	case run.CancelAt > 0:
		unseen = now
	default:
		unseen = run.Deadline
	}
	switch {
	case w.ready, unseen > 0 && unseen <= now:
		run.State, run.Due = Queued, now
	case w.due > 0 || w.waits:
		run.State, run.Due = Waiting, sooner(w.due, unseen)
	default:
		run.State, run.Due = Blocked, 0
	}
	return tx.SaveRun(ctx, run)
}

// sooner is the earlier of two times, of which 0 is never.
func sooner(a, b int64) int64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// unseen reports whether the step has been settled since the body began to wait for it, and that is to be overlooked: see
// [hooks.W9]. row is nil if the step is not open any more.
func (o waitOn) unseen(row *StepRow) bool {
	return hooks.Broken(hooks.W9) && (row == nil || row.Attempt != o.attempt || row.State == StepRetrying && row.Round == row.Attempt)
}

// outlook is what the steps that a body waits for have come to.
type outlook struct {
	ready bool  // one of them, or nothing, is waited for
	waits bool  // one waits for something that will wake the run
	asked bool  // a person is asked about one
	due   int64 // when the first may go on by itself; 0 never
}

func look(ctx context.Context, tx Txn, id RunID, now int64, on []waitOn) (w outlook, err error) {
	open, err := tx.OpenSteps(ctx, id)
	if err != nil {
		return w, err
	}
	rows := make(map[string]*StepRow, len(open))
	for i := range open {
		rows[open[i].Name] = &open[i]
	}
	w.ready = len(on) == 0
	for _, o := range on {
		row := rows[o.step]
		if o.items || o.unseen(row) {
			continue
		}
		if row != nil && row.State == StepUncertain && row.Attempt == o.attempt {
			if err := tx.OpenEntry(ctx, uncertainEntry(row, "")); err != nil {
				return w, err
			}
		}
		w.add(o, row, now)
	}
	return w, nil
}

// add counts a step that is waited for, at an attempt. row is nil if it is not open any more.
func (w *outlook) add(o waitOn, row *StepRow, now int64) {
	switch {
	case row == nil || row.Attempt != o.attempt:
		w.ready = true
	case row.State == StepUncertain:
		w.asked, w.due = true, sooner(w.due, row.NextProbe)
	case row.State == StepWaiting && (row.NextAt == 0 || row.NextAt > now):
		w.waits, w.due = true, sooner(w.due, row.NextAt)
	case row.State == StepRetrying && row.NextAt > now:
		w.due = sooner(w.due, row.NextAt)
	default:
		w.ready = true
	}
}

// wake recomputes a run after a person, evidence or a cancel has changed one of its rows or entries. The run's row is
// locked. A run that a worker holds is left to it: it looks again when it suspends.
func wake(ctx context.Context, tx Txn, run *RunRow, now int64) error {
	if run.State == Running || run.State.Terminal() {
		return tx.SaveRun(ctx, run)
	}
	entries, err := tx.Entries(ctx, run.ID, true)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Kind.blocksRun() {
			run.State, run.Due = Blocked, 0
			return tx.SaveRun(ctx, run)
		}
	}
	if run.Intended != "" {
		return finish(ctx, tx, run, run.Intended, run.Fault, nil)
	}
	run.State, run.Due = Queued, now
	return tx.SaveRun(ctx, run)
}
