package pawl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawlrun/pawl/internal/payload"
)

// keepOccurrences is how long the ledger of schedules is kept where there is a retention.
const keepOccurrences = keepKeys

// reconcile stores what code declares. Of a schedule that it declares otherwise than before, the instants that are due are
// decided about first, as the ones that they were.
func (e *Engine) reconcile(ctx context.Context) error {
	for names := range chunks(slices.Sorted(maps.Keys(e.schedules)), decideBatch) {
		err := e.decideFully(ctx, func(ctx context.Context, tx Txn) ([]ScheduleRow, error) { return e.changing(ctx, tx, names) })
		if err != nil { // they are noted then
			e.log.Warn("what is due could not be decided about before code changes schedules", "err", err)
		}
		err = e.update(ctx, func(ctx context.Context, tx Txn) error {
			now, err := tx.Now(ctx)
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := e.reconcileOne(ctx, tx, e.schedules[name], now); err != nil {
					return fmt.Errorf("pawl: schedule %q: %w", name, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// changing are those of the schedules that are due and that code declares otherwise than before.
func (e *Engine) changing(ctx context.Context, tx Txn, names []string) (due []ScheduleRow, err error) {
	now, err := tx.Now(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		row, err := tx.Schedule(ctx, name)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		spec := &e.schedules[name].spec
		hash, err := spec.hash()
		if err != nil {
			return nil, err
		}
		follows := row.Coded && !row.Edited && row.Workflow == spec.Workflow
		if follows && row.Due > 0 && row.Due <= now && !bytes.Equal(row.CodeHash, hash) {
			due = append(due, *row)
		}
	}
	return due, nil
}

func (e *Engine) reconcileOne(ctx context.Context, tx Txn, s *Schedule, now int64) error {
	hash, err := s.spec.hash()
	if err != nil {
		return err
	}
	row := &ScheduleRow{Name: s.spec.Name, Coded: true, CodeHash: hash}
	if err := row.begin(&s.spec, now); err != nil {
		return err
	}
	if isNew, err := tx.InsertSchedule(ctx, row); err != nil || isNew {
		return err
	}
	if row, err = tx.Schedule(ctx, s.spec.Name); err != nil {
		return err
	}
	switch {
	case !row.Coded:
		return fmt.Errorf("one of that name was made by hand, for workflow %q: delete it, or choose another name: %w", row.Workflow, ErrConflict)
	case row.Workflow != s.spec.Workflow:
		return fmt.Errorf("one of that name is of workflow %q, and not of %q: delete it, or choose another name: %w", row.Workflow, s.spec.Workflow, ErrConflict)
	}
	differs := !bytes.Equal(row.CodeHash, hash)
	if differs && row.Edited {
		e.log.Warn("code declares a schedule otherwise than a person has edited it; the edit holds", "schedule", row.Name, "code", s.spec.When.String())
		differs = false
	}
	if !differs {
		if row.Version == s.spec.Version {
			return nil
		}
		row.Version = s.spec.Version
		return tx.SaveSchedules(ctx, []ScheduleRow{*row})
	}
	row.CodeHash = hash
	return e.revise(ctx, tx, row, &s.spec, now, Act{By: "code", Reason: "declared otherwise than before"})
}

// begin makes the row that of a new schedule.
func (r *ScheduleRow) begin(s *ScheduleSpec, now int64) (err error) {
	r.Workflow, r.Version, r.Overlap, r.Revision = s.Workflow, s.Version, s.overlap(), 1
	r.Upto = now
	r.Spec, err = s.encode()
	r.next(s)
	return err
}

// next says when the schedule is to be looked at.
func (r *ScheduleRow) next(s *ScheduleSpec) {
	r.Due = 0
	if at := s.after(r.Upto); at > 0 && (s.MaxRuns == 0 || r.Started < s.MaxRuns) {
		r.Due = s.look(at)
	}
}

// revise gives a locked schedule another spec. Instants that are due and undecided are noted first, as the former
// revision's; the new one has instants from now on only, and those that are put off by a jitter both have.
func (e *Engine) revise(ctx context.Context, tx Txn, row *ScheduleRow, to *ScheduleSpec, now int64, a Act) error {
	was, err := row.spec()
	if err != nil {
		return err
	}
	if err := e.accountFor(ctx, tx, row, now, reasonEdited, !was.sameTimes(to)); err != nil {
		return err
	}
	if row.Spec, err = to.encode(); err != nil {
		return err
	}
	row.Version, row.Overlap = to.Version, to.overlap()
	row.Revision++
	row.Changed = now
	row.next(to)
	if err := tx.SaveSchedules(ctx, []ScheduleRow{*row}); err != nil {
		return err
	}
	return tx.AddAudit(ctx, &AuditRow{Act: "edit schedule", By: a.By, Why: payload.Clean(a.Reason, 1000),
		Detail: fmt.Sprintf("%s: revision %d: %s", row.Name, row.Revision, to.When)})
}

// sameTimes reports whether both have the same instants, looked at at the same times.
func (s *ScheduleSpec) sameTimes(other *ScheduleSpec) bool {
	return s.When.String() == other.When.String() && s.Jitter == other.Jitter && s.Starts.Equal(other.Starts) && s.Ends.Equal(other.Ends)
}

// accountFor brings the ledger of a locked schedule up to now, see account.
func (e *Engine) accountFor(ctx context.Context, tx Txn, row *ScheduleRow, now int64, why string, all bool) error {
	if row.Due == 0 { // no instant is left
		row.Upto = max(row.Upto, now)
		return nil
	}
	spec, err := row.spec()
	if err != nil {
		return err
	}
	ledgers, err := knownOf(ctx, tx, []ScheduleRow{*row})
	if err != nil {
		return err
	}
	j := account(row, spec, ledgers[row.Name], now, why, all)
	*row = j.row
	_, err = tx.AddOccurrences(ctx, j.add)
	return err
}

// onSchedule lets change act on a locked schedule, and saves it with a record of the act. An act that changes nothing is
// not recorded.
func (e *Engine) onSchedule(ctx context.Context, name, act string, a Act, change func(ctx context.Context, tx Txn, row *ScheduleRow, now int64) (detail string, done bool, err error)) error {
	if err := checkName("schedule name", name); err != nil {
		return err
	}
	if err := checkName("By", a.By); err != nil {
		return err
	}
	err := e.update(ctx, func(ctx context.Context, tx Txn) error {
		row, err := tx.Schedule(ctx, name)
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		detail, done, err := change(ctx, tx, row, now)
		if err != nil || !done {
			return err
		}
		return tx.AddAudit(ctx, &AuditRow{Act: act, By: a.By, Why: payload.Clean(a.Reason, 1000), Detail: name + detail})
	})
	if err != nil {
		return fmt.Errorf("%s %q: %w", act, name, err)
	}
	e.lookAtSchedules()
	return nil
}

// CreateSchedule adds a schedule that is not from code. The engine must have its workflow. A name that is taken gives
// [ErrConflict].
func (e *Engine) CreateSchedule(ctx context.Context, s ScheduleSpec, a Act) error {
	row, err := e.newSchedule(&s)
	if err == nil {
		err = checkName("By", a.By)
	}
	if err != nil {
		return fmt.Errorf("create schedule %q: %w", s.Name, err)
	}
	err = e.update(ctx, func(ctx context.Context, tx Txn) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if err := row.begin(&s, now); err != nil {
			return err
		}
		if row.Due == 0 {
			return fmt.Errorf("it is over: %s has no instant after %s", s.When, micros(now).Format(time.RFC3339))
		}
		isNew, err := tx.InsertSchedule(ctx, row)
		if err == nil && !isNew {
			err = fmt.Errorf("there is one of that name: %w", ErrConflict)
		}
		if err != nil {
			return err
		}
		return tx.AddAudit(ctx, &AuditRow{Act: "create schedule", By: a.By, Why: payload.Clean(a.Reason, 1000), Detail: s.Name + ": " + s.When.String()})
	})
	if err != nil {
		return fmt.Errorf("create schedule %q: %w", s.Name, err)
	}
	e.lookAtSchedules()
	return nil
}

// newSchedule checks what a person wants to create.
func (e *Engine) newSchedule(s *ScheduleSpec) (*ScheduleRow, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	d := e.newest(s.Workflow, s.Version)
	if d == nil {
		return nil, fmt.Errorf("this program has no workflow %q %s: %w", s.Workflow, s.Version, ErrNotFound)
	}
	input, err := e.templateOf(d, s)
	return &ScheduleRow{Name: s.Name, Input: input}, err
}

// EditSchedule lets change alter what a schedule is, but for its name and workflow, as the next revision. It has instants
// from then on; those that were due before are the former revision's. A schedule from code stays as it is edited when
// code declares it otherwise.
func (e *Engine) EditSchedule(ctx context.Context, name string, change func(s *ScheduleSpec) error, a Act) error {
	e.decideNow(ctx, name)
	return e.onSchedule(ctx, name, "edit schedule", a, func(ctx context.Context, tx Txn, row *ScheduleRow, now int64) (string, bool, error) {
		spec, err := row.spec()
		if err != nil {
			return "", false, err
		}
		if !row.Coded {
			if spec.Input, err = e.open(row.Input); err != nil {
				return "", false, err
			}
		}
		was := *spec
		if err := change(spec); err != nil {
			return "", false, err
		}
		if err := spec.canFollow(&was, row.Coded); err != nil {
			return "", false, err
		}
		if same, err := spec.equal(&was); err != nil || same {
			return "", false, err
		}
		if !row.Coded {
			d := e.newest(spec.Workflow, spec.Version)
			if d == nil {
				return "", false, fmt.Errorf("this program has no workflow %q %s: %w", spec.Workflow, spec.Version, ErrNotFound)
			}
			if row.Input, err = e.templateOf(d, spec); err != nil {
				return "", false, err
			}
		}
		row.Edited = row.Coded
		return "", false, e.revise(ctx, tx, row, spec, now, a)
	})
}

// canFollow says what is wrong with a spec that an edit makes of another one.
func (s *ScheduleSpec) canFollow(was *ScheduleSpec, coded bool) error {
	switch {
	case s.Name != was.Name || s.Workflow != was.Workflow:
		return errors.New("a schedule keeps its name and its workflow: create another one")
	case coded && (len(s.Input) > 0 || s.Version != was.Version):
		return errors.New("its input and version are from code")
	}
	return s.Check()
}

// decideNow decides about a schedule's due instants before it is changed, if this program can. It is no matter if not:
// they are noted then.
func (e *Engine) decideNow(ctx context.Context, name string) {
	pick := func(ctx context.Context, tx Txn) ([]ScheduleRow, error) {
		row, err := tx.Schedule(ctx, name)
		if err != nil || !row.Coded && e.newest(row.Workflow, row.Version) == nil || row.Coded && e.schedules[name] == nil {
			return nil, err
		}
		return []ScheduleRow{*row}, nil
	}
	if err := e.decideFully(ctx, pick); err != nil && !errors.Is(err, ErrNotFound) {
		e.log.Debug("a schedule could not be decided about before it is changed", "schedule", name, "err", err)
	}
}

// decideFully decides about schedules until nothing of them is due any more: there may be more than one decision takes.
func (e *Engine) decideFully(ctx context.Context, pick func(context.Context, Txn) ([]ScheduleRow, error)) (err error) {
	for n := 1; err == nil && n > 0; {
		n, _, err = e.decideSchedules(ctx, pick, new([]string))
	}
	return err
}

// PauseSchedule lets the schedule start no runs, from the commit on and for all processes, until [Engine.ResumeSchedule].
// Its instants are noted as paused. Runs that were started go on. Pausing what is paused is no error, and keeps who did it
// first.
func (e *Engine) PauseSchedule(ctx context.Context, name string, a Act) error {
	return e.onSchedule(ctx, name, "pause schedule", a, func(ctx context.Context, tx Txn, row *ScheduleRow, now int64) (string, bool, error) {
		if row.PausedAt > 0 {
			return "", false, nil
		}
		row.PausedAt, row.PausedBy, row.PausedWhy, row.Changed = now, a.By, payload.Clean(a.Reason, 1000), now
		return "", true, tx.SaveSchedules(ctx, []ScheduleRow{*row})
	})
}

// ResumeSchedule ends a pause. No instant of the pause is caught up; [Engine.BackfillSchedule] does that. Resuming what is
// not paused is no error.
func (e *Engine) ResumeSchedule(ctx context.Context, name string, a Act) error {
	return e.onSchedule(ctx, name, "resume schedule", a, func(ctx context.Context, tx Txn, row *ScheduleRow, now int64) (string, bool, error) {
		if row.PausedAt == 0 {
			return "", false, nil
		}
		if err := e.accountFor(ctx, tx, row, now, reasonPaused, false); err != nil {
			return "", false, err
		}
		spec, err := row.spec()
		if err != nil {
			return "", false, err
		}
		row.PausedAt, row.PausedBy, row.PausedWhy, row.Changed = 0, "", "", now
		row.next(spec)
		return "", true, tx.SaveSchedules(ctx, []ScheduleRow{*row})
	})
}

// DeleteSchedule deletes a schedule. Its runs go on and its ledger stays; an instant that was buffered is skipped. What
// code declares comes back when a worker of that code starts: pause it instead.
func (e *Engine) DeleteSchedule(ctx context.Context, name string, a Act) error {
	e.decideNow(ctx, name)
	return e.onSchedule(ctx, name, "delete schedule", a, func(ctx context.Context, tx Txn, row *ScheduleRow, now int64) (string, bool, error) {
		if err := e.accountFor(ctx, tx, row, now, reasonDeleted, true); err != nil {
			return "", false, err
		}
		if row.Buffered > 0 {
			_, err := tx.MoveOccurrence(ctx, &OccurrenceRow{Schedule: name, At: row.Buffered, Count: 1, State: OccurrenceSkipped,
				Reason: reasonDeleted, Other: row.Blocker, Revision: row.Revision}, OccurrenceBuffered)
			if err != nil {
				return "", false, err
			}
		}
		return "", true, tx.DeleteSchedule(ctx, name)
	})
}

// pruneOccurrences deletes what the ledger's term is over for.
func (w *worker) pruneOccurrences(ctx context.Context) error {
	for {
		more, err := w.e.store.PruneOccurrences(ctx, keepOccurrences)
		if err != nil || !more {
			return err
		}
		if err := pause(ctx, prunePause); err != nil {
			return err
		}
	}
}
