package pawl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/host"
)

const (
	suspectAfter = 2 // lost workers without a committed result
	blockedAfter = 5
)

// prepare reads the journal and settles what a former owner left behind, before the body starts.
func (x *execution) prepare() error {
	x.j = newJournal(make(map[string]*StepRow))
	if x.row.Epoch > 1 || x.row.Parent != "" {
		if err := x.loadJournal(); err != nil {
			return err
		}
		if hooks.Broken(hooks.W3) {
			maps.DeleteFunc(x.j.rows, func(_ string, row *StepRow) bool { return row.State == StepInFlight })
		}
	}
	x.quietN.Store(x.j.loaded > 0)
	left := false
	for row := range x.j.all() {
		left = left || row.State == StepInFlight
	}
	build := x.w.id.Build
	if left || x.from == Running || x.row.Lost >= suspectAfter || x.row.Builds != build {
		if err := x.takeOver(); err != nil {
			return err
		}
	}
	x.readInput()
	return x.countCost()
}

// loadJournal takes what is recorded, with the steps of items that may go on.
func (x *execution) loadJournal() (err error) {
	if x.j = x.early; x.j == nil {
		if x.j, err = x.e.readJournal(x.hold, x.row.ID); err != nil {
			return err
		}
	}
	x.early = nil
	x.j.loaded = len(x.j.rows)
	items := x.row.Parent != ""
	for _, row := range x.j.rows {
		items = items || row.Kind == fault.KindBatch && !row.State.Finished()
	}
	if !items {
		return nil
	}
	if err := x.e.readItems(x.hold, x.row.ID, x.j); err != nil {
		return err
	}
	for _, row := range x.j.rows { // what is left of those is nobody's
		if row.Kind == fault.KindBatch && row.State.Finished() {
			x.j.dropItems(row.Name, func(string) bool { return true })
		}
	}
	return nil
}

func (x *execution) readInput() {
	input, err := x.e.open(x.row.Input)
	if err == nil {
		err = x.def.checkInput(input)
	}
	if err != nil && x.blocked == nil {
		x.blocked = x.entry(AskDecode, "", fmt.Sprintf("the run's input does not decode: %v", err))
	}
	x.input = input
}

func hasBuild(builds, build string) bool {
	for b := range strings.SplitSeq(builds, ",") {
		if b == build {
			return true
		}
	}
	return false
}

// takeOver is one write under the fence: it marks effects that may have happened, charges the loss of a worker, and
// notes the build.
func (x *execution) takeOver() error {
	var marked []*StepRow
	var after RunRow
	var entries []EntryRow
	err := x.e.update(x.hold, func(ctx context.Context, tx Txn) error {
		run, err := x.e.fence(ctx, tx, x.write(nil, nil))
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if marked, err = x.markLeft(ctx, tx, now); err != nil {
			return err
		}
		if x.from == Running {
			run.LostTotal++
			charged, err := x.charge(ctx, tx, run)
			if err != nil {
				return err
			}
			if charged {
				run.Lost++
			}
		}
		if build := x.w.id.Build; !hasBuild(run.Builds, build) {
			run.Builds = strings.TrimPrefix(run.Builds+","+build, ",")
		}
		if entries, err = tx.Entries(ctx, run.ID, false); err != nil {
			return err
		}
		if err := x.suspicion(ctx, tx, run); err != nil {
			return err
		}
		after = *run
		return tx.SaveRun(ctx, run)
	})
	if err != nil {
		return err
	}
	x.j.entries = entries
	for _, row := range marked {
		x.j.put(row)
	}
	x.row.Lost, x.row.Builds = after.Lost, after.Builds
	return nil
}

// markLeft deals with intents of earlier claims. What the worker of a Once or Keyed attempt reported meanwhile settles it;
// without a report a Once attempt is uncertain. The other kinds are dealt with when the body comes by.
func (x *execution) markLeft(ctx context.Context, tx Txn, now int64) (marked []*StepRow, err error) {
	var reports []EvidenceRow
	for left := range x.j.all() {
		if left.State != StepInFlight || left.Kind != fault.KindOnce && left.Kind != fault.KindKeyed {
			continue
		}
		if reports == nil {
			if reports, err = tx.Evidence(ctx, x.row.ID); err != nil {
				return nil, err
			}
		}
		if left.Kind == fault.KindKeyed && !decided(reports, left) {
			continue // it is sent again under its key
		}
		row, err := x.markOne(ctx, tx, left.Name, reports, now)
		if err != nil {
			return nil, fmt.Errorf("step %q: %w", left.Name, err)
		}
		marked = append(marked, row)
	}
	return marked, nil
}

func (x *execution) markOne(ctx context.Context, tx Txn, name string, reports []EvidenceRow, now int64) (*StepRow, error) {
	row, err := tx.Step(ctx, x.row.ID, name)
	if err == nil && row == nil {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	w, err := tx.Worker(ctx, row.Worker)
	if err != nil {
		return nil, err
	}
	if w != nil && host.Dead(w.identity()) {
		row.Ended = now // known dead: the attempt is over, whatever the clock says
	}
	row.Epoch = x.row.Epoch
	return row, x.mark(ctx, tx, row, reports, now)
}

func (x *execution) mark(ctx context.Context, tx Txn, row *StepRow, reports []EvidenceRow, now int64) error {
	row.State, row.NextProbe = StepUncertain, 0
	if row.ProbeAfter > 0 {
		row.NextProbe = max(now, row.Begun+row.ProbeAfter)
	}
	row.heed(reports, now)
	ok, err := tx.MoveStep(ctx, row, row.Attempt)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("step %q changed under the run's lock", row.Name)
	}
	lost := lostAttempt(row)
	lost.Ended = now
	if row.State == StepSucceeded {
		return nil
	}
	if row.State == StepRetrying && row.Fault != nil {
		lost.Fault = *row.Fault
	}
	if err := tx.AddAttempt(ctx, lost); err != nil || row.State == StepRetrying {
		return err
	}
	return tx.OpenEntry(ctx, uncertainEntry(row, fmt.Sprintf("attempt %d of %s %q had begun when its worker was lost", row.Attempt, row.Kind, row.Name)))
}

// heed applies what has been reported about the row's attempt.
func (row *StepRow) heed(reports []EvidenceRow, now int64) {
	for i := range reports {
		ev := &reports[i]
		if !ev.about(row) {
			continue
		}
		row.Ended = ev.At
		switch ev.Verdict {
		case Happened:
			row.State, row.Value, row.ValueSize = StepSucceeded, ev.Value, len(ev.Value)
		case DidNotHappen:
			row.State, row.NextAt, row.Fault, row.Round, row.NextProbe = StepRetrying, now, ev.Fault, row.Attempt, 0
		case CannotTell: // only that it is over
		}
	}
}

// decided reports whether a report says how the row's attempt ended.
func decided(reports []EvidenceRow, row *StepRow) bool {
	return slices.ContainsFunc(reports, func(ev EvidenceRow) bool { return ev.about(row) && ev.Verdict != CannotTell })
}

// about reports whether the evidence speaks of the row's attempt. The worker must match, because an intent that never
// became durable leaves its number to another worker's attempt.
func (ev *EvidenceRow) about(row *StepRow) bool {
	if hooks.Broken(hooks.W10) {
		return ev.Step == row.Name
	}
	return ev.Step == row.Name && ev.Attempt == row.Attempt && (ev.Source != "worker" || ev.Worker == row.Worker)
}

// charge says whether the loss of the former owner counts against this run. Where the owner ran a suspect, only that
// one and the runs begun since are charged; where several workers were lost at once, none is.
func (x *execution) charge(ctx context.Context, tx Txn, run *RunRow) (bool, error) {
	owner, err := tx.Worker(ctx, x.lost)
	if err != nil || owner == nil {
		return false, err
	}
	switch {
	case owner.SuspectRun != "" && owner.SuspectRun != run.ID && x.before < owner.SuspectSince-micro(owner.Lease/3):
		return false, nil // it had been running quietly; what began together with the suspect may be the culprit
	case host.Dead(owner.identity()):
		return true, nil
	}
	return owner.Overlap == 0, nil
}

// suspicion blocks a run that keeps losing workers, and notes a suspect on this worker's row before it runs.
func (x *execution) suspicion(ctx context.Context, tx Txn, run *RunRow) error {
	w := x.w
	switch {
	case run.Lost >= blockedAfter:
		x.blocked = x.entry(AskCrashLoop, "", fmt.Sprintf("%d workers in a row were lost while they ran it", run.Lost))
	case run.Lost >= suspectAfter:
		if !w.trySuspect(run.ID) { // one at a time in a process; the other one waits its turn
			return errBusySuspect
		}
		return tx.MarkSuspect(ctx, w.id.ID, run.ID)
	}
	return nil
}

func (w *worker) trySuspect(id RunID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.suspect != "" && w.suspect != id {
		return false
	}
	w.suspect = id
	return true
}

// unsuspect takes the note about a suspect run off this worker, which has survived it: it would go on to excuse others.
// If that fails, the worker runs no other suspect.
func (w *worker) unsuspect(ctx context.Context, id RunID) {
	w.mu.Lock()
	mine := w.suspect == id
	w.mu.Unlock()
	if !mine {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := w.e.update(ctx, func(ctx context.Context, tx Txn) error { return tx.MarkSuspect(ctx, w.id.ID, "") })
	if err != nil {
		w.e.log.Warn("the note about a suspect run stays on the worker", "run", id, "err", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.suspect = ""
}

// errBusySuspect releases a suspect run because this process executes one already.
var errBusySuspect = fmt.Errorf("another run that has lost workers is running here")

// evidenceTimeout is how long a worker that has stopped goes on trying to report.
const evidenceTimeout = 30 * time.Second

// evidence reports, in the background, how an attempt ended whose result this worker may not write any more. It tries
// for as long as the worker lives: nobody else knows.
func (w *worker) evidence(x *execution, row *StepRow) {
	ev := EvidenceRow{Run: row.Run, Step: row.Name, Attempt: row.Attempt, Worker: w.id.ID, Source: "worker"}
	switch {
	case row.State == StepSucceeded:
		ev.Verdict, ev.Value = Happened, row.Value
	case row.Fault != nil && row.Fault.Outcome.Proven():
		ev.Verdict, ev.Fault = DidNotHappen, row.Fault
	default:
		ev.Fault = row.Fault
	}
	ctx := w.reports
	w.cleanup.Go(func() {
		for try := 0; ; try++ {
			err := w.e.report(ctx, ev)
			if err == nil {
				x.logger().Warn("an attempt ended after the run was lost; reported as evidence", "step", ev.Step, "attempt", ev.Attempt, "verdict", ev.Verdict)
				return
			}
			if errors.Is(err, ErrNotFound) { // its lineage is deleted, and with it all that it could settle
				x.logger().Warn("an attempt ended after its run was deleted", "step", ev.Step, "attempt", ev.Attempt, "verdict", ev.Verdict)
				return
			}
			if pause(ctx, backoff(try, 100*time.Millisecond, 2*time.Second)) != nil {
				x.logger().Error("evidence was lost", "step", ev.Step, "attempt", ev.Attempt, "verdict", ev.Verdict, "err", err)
				return
			}
		}
	})
}

// report stores evidence and lets it settle the step if that is uncertain at this very attempt, in its run or in the
// run of the lineage that inherited the question. Evidence that contradicts an answer, or that an attempt happened
// which a later one repeated, opens an inbox entry.
func (e *Engine) report(ctx context.Context, ev EvidenceRow) error {
	return e.store.Update(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, ev.Run)
		if err != nil {
			return err
		}
		if err := tx.AddEvidence(ctx, &ev); err != nil {
			return err
		}
		if err := settleByEvidence(ctx, tx, run, run, &ev); err != nil {
			return err
		}
		family, err := tx.Lineage(ctx, run.Lineage)
		if err != nil {
			return err
		}
		later := after(family, run.ID)
		slices.SortFunc(later, func(a, b RunRow) int { return strings.Compare(string(a.ID), string(b.ID)) }) // the order of locks
		for i := range later {
			heir, err := tx.LockRun(ctx, later[i].ID)
			if err != nil {
				return err
			}
			if err := settleByEvidence(ctx, tx, heir, run, &ev); err != nil {
				return err
			}
		}
		return nil
	})
}

// settleByEvidence applies evidence about an attempt of run origin to a row of run: its own, or that of a later run which
// inherited the attempt, and may have repeated it since.
func settleByEvidence(ctx context.Context, tx Txn, run, origin *RunRow, ev *EvidenceRow) error {
	row, err := tx.Step(ctx, run.ID, ev.Step)
	if err != nil || row == nil {
		return err
	}
	same, repeated := relate(row, run, origin, ev)
	switch {
	case same && row.State == StepUncertain,
		same && row.State == StepRetrying && ev.Verdict == Happened: // answered wrongly, and not begun again yet
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		return settleUncertain(ctx, tx, run, row, ev, now)
	case same && row.State == StepInFlight: // whoever holds the run finds the evidence when it marks the row
	case repeated && ev.Verdict == Happened && row.Kind == fault.KindOnce:
		return tx.OpenEntry(ctx, &EntryRow{Run: run.ID, Step: row.Name, Kind: AskTwice, Attempt: ev.Attempt,
			Detail: fmt.Sprintf("attempt %d of %s %q in run %s happened after all, by a late report of its worker, and another was allowed in the meantime: it may have happened twice", ev.Attempt, row.Kind, row.Name, origin.ID)})
	}
	return nil
}

// relate says whether a row of run is about the very attempt of run origin that the evidence is of, or about a repetition.
func relate(row *StepRow, run, origin *RunRow, ev *EvidenceRow) (same, repeated bool) {
	inherited := RunID("")
	if run.ID != origin.ID {
		inherited = origin.ID
	}
	switch row.Inherited {
	case inherited:
		return ev.about(row), row.Attempt > ev.Attempt
	case "": // the later run has begun the step anew, perhaps under another key
		return false, run.opKey("", ev.Step) == origin.opKey("", ev.Step)
	}
	return false, false
}

func settleUncertain(ctx context.Context, tx Txn, run *RunRow, row *StepRow, ev *EvidenceRow, now int64) error {
	row.Ended = now // its process has reported the end
	row.NextProbe = 0
	choice := AnswerHappened
	switch ev.Verdict {
	case Happened:
		row.State, row.Value, row.ValueSize = StepSucceeded, ev.Value, len(ev.Value)
	case DidNotHappen:
		row.State, row.NextAt, row.Fault, row.Round = StepRetrying, now, ev.Fault, row.Attempt
		choice = AnswerDidNotHappen
	default:
		return nil // it only says that the attempt is over; the evidence row tells when
	}
	attempt := ev.Attempt
	if hooks.Broken(hooks.W10) {
		attempt = row.Attempt
	}
	ok, err := tx.MoveStep(ctx, row, attempt)
	if err != nil || !ok {
		return err
	}
	if err := closeUncertain(ctx, tx, row, choice, "worker "+string(ev.Worker), "late report"); err != nil {
		return err
	}
	return wake(ctx, tx, run, now)
}
