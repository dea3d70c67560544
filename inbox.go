package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/payload"
)

// Resolve answers an inbox entry. The entry must be open, and the answer must name the attempt it was shown:
// [ErrConflict] says who answered before, and when, or what has changed. The same answer by the same person twice is
// no error. "Did not happen" is refused with [ErrTooEarly] if the attempt was not over when the looking began. Every
// answer leaves an audit row.
func (e *Engine) Resolve(ctx context.Context, a Answer) error {
	if err := checkName("By", a.By); err != nil {
		return err
	}
	plain, err := e.sealResult(&a)
	if err != nil {
		return fmt.Errorf("resolve %s: %w", a.Entry, err)
	}
	if err := e.checkResult(ctx, &a, plain); err != nil {
		return fmt.Errorf("resolve %s: %w", a.Entry, err)
	}
	var run RunID
	err = e.update(ctx, func(ctx context.Context, tx Txn) error {
		en, err := tx.Entry(ctx, a.Entry)
		if err != nil {
			return err
		}
		run = en.Run
		row, err := lockInOrder(ctx, tx, en.Run)
		if err != nil {
			return err
		}
		if en, err = tx.Entry(ctx, a.Entry); err != nil { // as it is under the lock
			return err
		}
		if en.Closed > 0 {
			if en.Choice == a.Choice && en.By == a.By {
				return nil
			}
			return fmt.Errorf("%s answered %q at %s: %w", en.By, en.Choice, micros(en.Closed).Format(time.RFC3339), ErrConflict)
		}
		if err := en.takes(a.Choice); err != nil {
			return err
		}
		if en.Attempt != a.Attempt && !hooks.Broken(hooks.W10) {
			return fmt.Errorf("the entry is about attempt %d, the answer about attempt %d: look at it again: %w", en.Attempt, a.Attempt, ErrConflict)
		}
		return e.answer(ctx, tx, row, en, &a)
	})
	if errors.Is(err, errDeadNow) {
		err = errors.Join(err, e.noteDead(ctx, run))
	}
	if err != nil {
		return fmt.Errorf("resolve %s: %w", a.Entry, err)
	}
	e.changed(run, nil)
	e.nudge()
	e.hint(ctx)
	return nil
}

// takes refuses an answer that the entry does not have.
func (en *EntryRow) takes(c Choice) error {
	switch {
	case en.Kind == AskGate:
		return fmt.Errorf("it asks for a decision on %q: use Decide, or pawl approve, reject or edit", en.Step)
	case !slices.Contains(answers[en.Kind], c):
		return fmt.Errorf("a %s entry cannot be answered with %q: choose one of %q", en.Kind, c, answers[en.Kind])
	}
	return nil
}

// errDeadNow: the attempt's process has ended, but nobody can say whether it had when the looking began.
var errDeadNow = fmt.Errorf("%w until a moment ago, when its process was found to have ended: look again and answer again", ErrTooEarly)

// noteDead keeps, as evidence, that the processes of a run's uncertain attempts were found to have ended, where they
// are known to have: from now on a looking counts.
func (e *Engine) noteDead(ctx context.Context, id RunID) error {
	var dead []StepRow
	look := func(ctx context.Context, tx Txn) (err error) {
		dead, err = newlyDead(ctx, tx, id)
		return err
	}
	if err := e.store.View(ctx, look); err != nil || len(dead) == 0 {
		return err
	}
	return e.store.Update(ctx, func(ctx context.Context, tx Txn) error {
		if _, err := tx.LockRun(ctx, id); err != nil {
			return err
		}
		if err := look(ctx, tx); err != nil {
			return err
		}
		for i := range dead {
			row := &dead[i]
			run := RunID(cmpOr(string(row.Inherited), string(row.Run)))
			if err := tx.AddEvidence(ctx, &EvidenceRow{Run: run, Step: row.Name, Attempt: row.Attempt, Worker: row.Worker, Source: "worker",
				Fault: &fault.Fault{Class: fault.OutcomeUnknown, Reason: fault.ReasonWorkerLost, Outcome: fault.OutcomeMaybeExecuted,
					Message: "its process has ended"}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// newlyDead lists the uncertain steps whose processes are dead without that being on record.
func newlyDead(ctx context.Context, tx Txn, id RunID) (dead []StepRow, err error) {
	open, err := tx.OpenSteps(ctx, id)
	if err != nil {
		return nil, err
	}
	for i := range open {
		if open[i].State != StepUncertain {
			continue
		}
		_, _, gone, err := attemptOver(ctx, tx, &open[i])
		if err != nil {
			return nil, err
		}
		if gone {
			dead = append(dead, open[i])
		}
	}
	return dead, nil
}

// sealResult makes the stored form of the result that comes with "happened", and returns its JSON.
func (e *Engine) sealResult(a *Answer) (plain []byte, err error) {
	if a.Choice != AnswerHappened {
		return nil, nil
	}
	if len(a.Result) == 0 {
		a.Result = []byte("null")
	}
	if _, err := payload.Canonical(a.Result); err != nil {
		return nil, fmt.Errorf("the result is not JSON: %w", err)
	}
	plain = a.Result
	a.Result, err = e.seal(plain)
	return plain, err
}

// checkResult refuses a result that the step could not decode. Only a process that has the workflow can tell: it
// replays the body up to the step.
func (e *Engine) checkResult(ctx context.Context, a *Answer, plain []byte) error {
	if a.Choice != AnswerHappened {
		return nil
	}
	dry := &dryRun{result: plain}
	err := e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		en, err := tx.Entry(ctx, a.Entry)
		if err != nil {
			return err
		}
		dry.settles = en.Step
		return e.dryUpTo(ctx, tx, en.Run, dry)
	})
	if err == nil && dry.wrong != nil {
		err = fmt.Errorf("the result does not fit step %q: %w", dry.settles, dry.wrong)
	}
	return err
}

// dryUpTo replays the run's body, if this process has it, up to the step that dry settles.
func (e *Engine) dryUpTo(ctx context.Context, tx Txn, id RunID, dry *dryRun) error {
	run, err := tx.LockRun(ctx, id)
	if err != nil {
		return err
	}
	def := e.defs[VersionID{run.Workflow, run.Version}]
	if def == nil {
		return nil
	}
	rows, err := allSteps(ctx, tx, run.ID)
	if err != nil {
		return err
	}
	done := make(map[string]*StepRow)
	for i := range rows {
		if rows[i].State.Finished() {
			done[rows[i].Name] = &rows[i]
		}
	}
	if err := e.replay(ctx, tx, def, run, done, dry); err != nil {
		e.log.Info("what a person gave could not be checked against the step", "run", run.ID, "step", dry.settles, "err", err)
	}
	return nil
}

// answer applies a valid answer under the run's lock.
func (e *Engine) answer(ctx context.Context, tx Txn, run *RunRow, en *EntryRow, a *Answer) error {
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	if en.Kind == AskUncertain {
		if err := e.answerUncertain(ctx, tx, run, en, a, now); err != nil {
			return err
		}
	}
	if a.Choice == AnswerAccept {
		if err := noneUncertain(ctx, tx, run.ID); err != nil {
			return err
		}
	}
	if err := e.closeEntry(ctx, tx, en, a); err != nil {
		return err
	}
	switch a.Choice {
	case AnswerAcknowledge:
		return nil
	case AnswerCancel:
		return cancelNow(ctx, tx, run, a.By, a.Reason, now)
	case AnswerTakeResult:
		err = takeResult(ctx, tx, en)
	case AnswerResume:
		err = e.resumeEntry(ctx, tx, run, en)
	case AnswerAccept:
		return finish(ctx, tx, run, run.Intended, run.Fault, nil)
	default: // the row or the closed entry says it
	}
	if err != nil {
		return err
	}
	return wake(ctx, tx, run, now)
}

// closeEntry records the answer, once, with its audit row.
func (e *Engine) closeEntry(ctx context.Context, tx Txn, en *EntryRow, a *Answer) error {
	en.Choice, en.By, en.Why, en.Result = a.Choice, a.By, payload.Clean(a.Reason, 1000), nil
	if a.Choice == AnswerHappened {
		en.Result = a.Result
	}
	ok, err := tx.CloseEntry(ctx, en)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("answered meanwhile: %w", ErrConflict)
	}
	return tx.AddAudit(ctx, &AuditRow{Act: "resolve", By: a.By, Why: en.Why, Run: en.Run, Step: en.Step, Entry: en.ID,
		Detail: fmt.Sprintf("%s: %s (attempt %d)", en.Kind, a.Choice, en.Attempt)})
}

func (e *Engine) answerUncertain(ctx context.Context, tx Txn, run *RunRow, en *EntryRow, a *Answer, now int64) error {
	row, err := tx.Step(ctx, run.ID, en.Step)
	if err != nil {
		return err
	}
	if row == nil || row.State != StepUncertain || row.Attempt != a.Attempt {
		return fmt.Errorf("step %q is not uncertain at attempt %d any more: %w", en.Step, a.Attempt, ErrConflict)
	}
	row.NextProbe = 0
	switch a.Choice {
	case AnswerHappened:
		row.State, row.Value, row.ValueSize = StepSucceeded, a.Result, len(a.Result)
	case AnswerDidNotHappen:
		if err := lookedLater(ctx, tx, row, a.Looked); err != nil {
			return err
		}
		if err := notReported(ctx, tx, row); err != nil {
			return err
		}
		row.State, row.NextAt, row.Round, row.Unknown, row.FirstTry, row.Told = StepRetrying, now, row.Attempt, 0, 0, 0
		row.Fault = &fault.Fault{Class: fault.OutcomeUnknown, Reason: fault.ReasonWorkerLost, Outcome: fault.OutcomeRejected,
			Message: payload.Clean("did not happen, says "+a.By, 200)}
	case AnswerGiveUp:
		row.State = StepGivenUp
		run.Intended, run.Fault = Failed, &fault.Fault{Class: fault.InvalidRequest, Reason: fault.ReasonGaveUp,
			Outcome: fault.OutcomeMaybeExecuted, Message: payload.Clean(fmt.Sprintf("%s gave up step %q, which may have happened", a.By, en.Step), 500)}
		if run.CancelAt > 0 {
			run.Intended, run.Fault = Cancelled, nil
		}
	default: // unreachable unless the table of answers is wrong
		return fmt.Errorf("an uncertain step cannot be answered with %q", a.Choice)
	}
	ok, err := tx.MoveStep(ctx, row, a.Attempt)
	if err == nil && !ok {
		err = ErrConflict
	}
	return err
}

// notReported refuses "did not happen" where the attempt's own worker has reported that it did.
func notReported(ctx context.Context, tx Txn, row *StepRow) error {
	reports, err := tx.Evidence(ctx, RunID(cmpOr(string(row.Inherited), string(row.Run))))
	if err != nil {
		return err
	}
	for i := range reports {
		if ev := &reports[i]; ev.about(row) && ev.Verdict == Happened {
			return fmt.Errorf("step %q, attempt %d: its worker reported at %s that it happened: %w", row.Name, row.Attempt,
				micros(ev.At).Format(time.RFC3339), ErrConflict)
		}
	}
	return nil
}

// lookedLater refuses "did not happen" unless the attempt was over when the looking began: before that, a true answer
// may become false.
func lookedLater(ctx context.Context, tx Txn, row *StepRow, looked time.Time) error {
	at, now, dead, err := attemptOver(ctx, tx, row)
	if err != nil {
		return err
	}
	over := micros(at).Format(time.RFC3339)
	switch {
	case at > now:
		return fmt.Errorf("step %q, attempt %d: %w until %s: look again after that", row.Name, row.Attempt, ErrTooEarly, over)
	case looked.IsZero():
		return fmt.Errorf("step %q: say when the looking began (Answer.Looked): it counts only after %s", row.Name, over)
	case looked.UnixMicro() > now+1_000_000:
		return fmt.Errorf("step %q: the looking began at %s, which is in the future", row.Name, looked.UTC().Format(time.RFC3339))
	case dead:
		return fmt.Errorf("step %q, attempt %d: %w", row.Name, row.Attempt, errDeadNow)
	case looked.UnixMicro() >= at:
		return nil
	}
	return fmt.Errorf("step %q, attempt %d was over at %s, the looking began at %s: look again: %w", row.Name, row.Attempt, over,
		looked.UTC().Format(time.RFC3339), ErrTooEarly)
}

func noneUncertain(ctx context.Context, tx Txn, id RunID) error {
	open, err := tx.OpenSteps(ctx, id)
	if err != nil {
		return err
	}
	for i := range open {
		if open[i].State == StepUncertain {
			return fmt.Errorf("step %q is uncertain: answer that first: %w", open[i].Name, ErrConflict)
		}
	}
	return nil
}

// cancelNow ends a run whose body is not to be executed again.
func cancelNow(ctx context.Context, tx Txn, run *RunRow, by, why string, now int64) error {
	if run.CancelAt == 0 {
		run.CancelAt, run.CancelBy, run.CancelWhy = now, by, payload.Clean(why, 1000)
	}
	entries, err := tx.Entries(ctx, run.ID, true)
	if err != nil {
		return err
	}
	for i := range entries {
		en := &entries[i]
		if !en.Kind.blocksRun() {
			continue
		}
		en.Choice, en.By, en.Why = AnswerCancel, by, payload.Clean(why, 1000)
		if _, err := tx.CloseEntry(ctx, en); err != nil {
			return err
		}
	}
	return finish(ctx, tx, run, Cancelled, nil, nil)
}

// takeResult gives the renamed step the result of the row it looks like.
func takeResult(ctx context.Context, tx Txn, en *EntryRow) error {
	row, err := tx.Step(ctx, en.Run, en.Other)
	if err != nil {
		return err
	}
	if row == nil || row.State != StepSucceeded {
		return fmt.Errorf("step %q has no result to take: %w", en.Other, ErrConflict)
	}
	row.Name, row.TakenFrom, row.Usage, row.Sent = en.Step, en.Other, Usage{}, nil
	return tx.InsertStep(ctx, row)
}

// resumeEntry prepares a run to go on where it stopped.
func (e *Engine) resumeEntry(ctx context.Context, tx Txn, run *RunRow, en *EntryRow) error {
	switch en.Kind {
	case AskCrashLoop:
		run.Lost = 0
	case AskDiverged:
		run.Intended, run.Fault, run.NextHash = "", nil, nil
	case AskLimit, AskInputChanged:
		if en.Other != "" { // a limit of the run: the answer itself says how much more there is
			return nil
		}
		row, err := tx.Step(ctx, run.ID, en.Step)
		if err != nil || row == nil {
			return err
		}
		if en.Kind == AskInputChanged {
			row.UseStored = true
			return tx.MarkStep(ctx, row)
		}
		row.Round, row.Unknown, row.FirstTry, row.Told, row.NextAt = row.Attempt, 0, 0, 0, 0
		if ok, err := tx.MoveStep(ctx, row, row.Attempt); err != nil || !ok {
			return fmt.Errorf("step %q is not waiting for another round: %w", en.Step, errors.Join(err, ErrConflict))
		}
	default: // nothing to reset
	}
	return nil
}

// strayVersion blocks a due run whose version no worker has had for a while.
func (e *Engine) strayVersion(ctx context.Context, id RunID) error {
	return e.store.Update(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil || run.State != Queued && run.State != Waiting {
			return err
		}
		run.State, run.Due = Blocked, 0
		if err := tx.SaveRun(ctx, run); err != nil {
			return err
		}
		return tx.OpenEntry(ctx, &EntryRow{Run: id, Kind: AskVersion, Detail: fmt.Sprintf(
			"no worker has %s %s: start one, move the run to another version, or cancel it", run.Workflow, run.Version)})
	})
}

// versionBack closes a version question that a worker has answered by having the version.
func (e *Engine) versionBack(ctx context.Context, id RunID) error {
	return e.store.Update(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if err := closeKind(ctx, tx, id, AskVersion, AnswerResume, "pawl", "a worker has the version"); err != nil {
			return err
		}
		return wake(ctx, tx, run, now)
	})
}

func closeKind(ctx context.Context, tx Txn, id RunID, kind EntryKind, c Choice, by, why string) error {
	entries, err := tx.Entries(ctx, id, true)
	if err != nil {
		return err
	}
	for i := range entries {
		if en := &entries[i]; en.Kind == kind {
			en.Choice, en.By, en.Why = c, by, why
			if _, err := tx.CloseEntry(ctx, en); err != nil {
				return err
			}
		}
	}
	return nil
}
