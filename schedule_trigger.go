package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/internal/payload"
)

// Trigger is a person's wish that a schedule is due.
type Trigger struct {
	Act
	// Key makes the wish one, however often it comes: the occurrence that was made under it is returned. Empty means none.
	Key string
	// At is an instant of the past; what has become of it already stays so. Zero means now.
	At time.Time
}

// TriggerSchedule decides about an instant of a person's choice, whether the timetable has it or not, as if it were due: the
// overlap policy holds, a pause does not. It returns what became of the instant, and whether it was this call. The engine
// must have the schedule in its code, or the workflow of one that is not from code.
func (e *Engine) TriggerSchedule(ctx context.Context, name string, t Trigger) (o Occurrence, isNew bool, err error) {
	if t.Key != "" {
		if err := checkName("Key", t.Key); err != nil {
			return o, false, err
		}
	}
	if !t.At.IsZero() && outside(t.At) {
		return o, false, fmt.Errorf("pawl: trigger %q at %v: want a time of the past, or zero for now", name, t.At)
	}
	if err := errors.Join(checkName("schedule name", name), checkName("By", t.By)); err != nil {
		return o, false, fmt.Errorf("trigger %q: %w", name, err)
	}
	if t.At.IsZero() { // what is due comes before it, and what waits for a run that has ended
		e.decideNow(ctx, name)
	}
	r := &round{e: e, begun: make(map[VersionID]int)}
	r.now, err = e.momentOf(ctx, t.At)
	if err != nil {
		return o, false, fmt.Errorf("trigger %q: %w", name, err)
	}
	p, err := e.inputAt(ctx, name, []int64{r.now})
	if err != nil {
		return o, false, fmt.Errorf("trigger %q: %w", name, err)
	}
	r.inputs = p
	err = e.onSchedule(ctx, name, "trigger schedule", t.Act, func(ctx context.Context, tx Txn, row *ScheduleRow, _ int64) (string, bool, error) {
		r.all, r.done, r.begun = nil, nil, make(map[VersionID]int)
		found, err := triggered(ctx, tx, name, t.Key, r.now)
		if err != nil || found != nil {
			if found != nil {
				o, isNew = occurrenceOf(found), false
			}
			return "", false, err
		}
		done, err := r.trigger(ctx, tx, row, t)
		if err == nil {
			o, isNew = occurrenceOf(done), true
		}
		return "", err == nil, err
	})
	if err == nil && isNew {
		r.after(ctx)
	}
	return o, isNew, err
}

// momentOf is the instant, or now, and checks that it is not to come.
func (e *Engine) momentOf(ctx context.Context, at time.Time) (instant int64, err error) {
	now := int64(0)
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		now, err = tx.Now(ctx)
		return err
	})
	switch {
	case err != nil || at.IsZero():
		return now, err
	case at.UnixMicro() > now:
		return 0, fmt.Errorf("%s is still to come: want a time of the past", at.Format(time.RFC3339))
	}
	return at.UnixMicro(), nil
}

// inputAt makes the inputs of a schedule's runs.
func (e *Engine) inputAt(ctx context.Context, name string, instants []int64) (map[occasion]prepared, error) {
	var row *ScheduleRow
	err := e.store.View(ctx, func(ctx context.Context, tx Txn) (err error) {
		row, err = tx.Schedule(ctx, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if row.Coded && e.schedules[name] == nil {
		return nil, fmt.Errorf("its input is made by code that this program does not have: use the program that declares it: %w", ErrNotFound)
	}
	spec, err := row.spec()
	if err != nil {
		return nil, err
	}
	inputs := make(map[occasion]prepared)
	for _, at := range instants {
		p := e.inputOf(row, spec, at)
		if p.err != nil {
			return nil, fmt.Errorf("input for %s: %w", micros(at).Format(time.RFC3339), p.err)
		}
		inputs[occasion{name, at}] = p
	}
	return inputs, nil
}

// triggered finds what became of a trigger, or of the instant.
func triggered(ctx context.Context, tx Txn, name, key string, at int64) (*OccurrenceRow, error) {
	if key != "" {
		if found, err := tx.Triggered(ctx, name, key); err != nil || found != nil {
			return found, err
		}
	}
	rows, err := tx.Within(ctx, name, at, at, 2)
	if err != nil {
		return nil, err
	}
	var found *OccurrenceRow
	for i := range rows {
		if rows[i].Until == 0 { // its own row says more than a range
			return &rows[i], nil
		}
		spec, err := rows[i].spec()
		if err != nil {
			return nil, err
		}
		if spec.has(at) {
			found = &rows[i]
		}
	}
	return found, nil
}

// spec is whose timetable a range is of.
func (o *OccurrenceRow) spec() (*ScheduleSpec, error) {
	spec, err := (&ScheduleRow{Name: o.Schedule, Spec: o.Spec}).spec()
	if err != nil {
		return nil, fmt.Errorf("range from %s: %w", micros(o.At).Format(time.RFC3339), err)
	}
	return spec, nil
}

// trigger decides about r.now.
func (r *round) trigger(ctx context.Context, tx Txn, row *ScheduleRow, t Trigger) (*OccurrenceRow, error) {
	spec, err := row.spec()
	if err != nil {
		return nil, err
	}
	ledgers, err := knownOf(ctx, tx, []ScheduleRow{*row})
	if err != nil {
		return nil, err
	}
	j := &judgement{row: *row, spec: spec, streak: row.Streak}
	j.sort(ledgers[row.Name])
	j.start(r.now, OccurrenceStarted)
	j.row.Upto, j.row.Started = row.Upto, row.Started // they are about the timetable
	if row.Due == 0 {
		j.row.Upto = max(row.Upto, r.now) // no instant is left that this one could be ahead of
	}
	for i := range j.add {
		j.add[i].Key, j.add[i].By = t.Key, t.By
	}
	r.all = []*judgement{j}
	if err := r.record(ctx, tx); err != nil {
		return nil, err
	}
	j.row.Started = row.Started
	r.cancels = j.cancels()
	if slices.ContainsFunc(r.done, func(o OccurrenceRow) bool { return o.State.HasRun() }) {
		if err := tx.CloseOccurrences(ctx, j.ended); err != nil {
			return nil, err
		}
	}
	if err := tx.SaveSchedules(ctx, []ScheduleRow{j.row}); err != nil {
		return nil, err
	}
	for i := range r.done {
		if r.done[i].At == r.now {
			return &r.done[i], nil
		}
	}
	return nil, fmt.Errorf("the instant %s was decided meanwhile: %w", micros(r.now).Format(time.RFC3339), ErrConflict)
}

const (
	// mostBackfill is how many instants one call backfills at most, and ledgerPage how many rows of the ledger are read at once.
	mostBackfill = 1000
	ledgerPage   = 4 * mostBackfill
)

// BackfillSchedule starts runs for the instants of the timetable from from to to, both included, that have none because
// they were missed or paused, or were before the schedule was made. Those that have one, or were skipped, stay as they are.
// The overlap policy does not hold: all runs are queued at once. It returns what it has started, oldest first. It is refused
// for more than 1,000 instants, and for what is still to come.
func (e *Engine) BackfillSchedule(ctx context.Context, name string, from, to time.Time, a Act) ([]Occurrence, error) {
	if to.Before(from) || outside(from) || outside(to) {
		return nil, fmt.Errorf("pawl: backfill %q from %s to %s: want two times, the earlier one first", name, from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	if _, err := e.momentOf(ctx, to); err != nil {
		return nil, fmt.Errorf("backfill %q: %w", name, err)
	}
	spec, err := e.specOf(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("backfill %q: %w", name, err)
	}
	instants := spec.between(from, to)
	if len(instants) > mostBackfill {
		return nil, fmt.Errorf("backfill %q from %s to %s: there are more than %d instants: take it in parts", name, from.Format(time.RFC3339), to.Format(time.RFC3339), mostBackfill)
	}
	r := &round{e: e}
	if r.inputs, err = e.inputAt(ctx, name, instants); err != nil {
		return nil, fmt.Errorf("backfill %q: %w", name, err)
	}
	err = e.onSchedule(ctx, name, "backfill schedule", a, func(ctx context.Context, tx Txn, row *ScheduleRow, _ int64) (string, bool, error) {
		r.done, r.begun = nil, make(map[VersionID]int)
		err := r.backfill(ctx, tx, row, a, from, to)
		return fmt.Sprintf(": %d instants from %s to %s", len(r.done), from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339)), true, err
	})
	if err != nil {
		return nil, err
	}
	r.after(ctx)
	var all []Occurrence
	for i := range r.done {
		all = append(all, occurrenceOf(&r.done[i]))
	}
	return all, nil
}

func (e *Engine) specOf(ctx context.Context, name string) (spec *ScheduleSpec, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		row, err := tx.Schedule(ctx, name)
		if err == nil {
			spec, err = row.spec()
		}
		return err
	})
	return spec, err
}

// between are the schedule's instants in a range, at most one more than can be backfilled.
func (s *ScheduleSpec) between(from, to time.Time) (all []int64) {
	table := *s
	if table.Starts.Before(from) {
		table.Starts = from
	}
	if table.Ends.IsZero() || table.Ends.After(to) {
		table.Ends = to
	}
	for at := from.UnixMicro() - 1; len(all) <= mostBackfill; {
		if at = table.after(at); at == 0 {
			break
		}
		all = append(all, at)
	}
	return all
}

// backfill starts what may be started.
func (r *round) backfill(ctx context.Context, tx Txn, row *ScheduleRow, a Act, from, to time.Time) error {
	spec, err := row.spec()
	if err != nil {
		return err
	}
	limit := to.UnixMicro()
	if row.Due > 0 { // the rest is the worker's
		limit = min(limit, row.Upto)
	}
	l, err := readLedger(ctx, tx, row.Name, from.UnixMicro(), limit)
	if err != nil {
		return err
	}
	var add, started []OccurrenceRow
	for _, at := range spec.between(from, to) {
		if _, ready := r.inputs[occasion{row.Name, at}]; !ready || at > limit {
			continue
		}
		o := OccurrenceRow{Schedule: row.Name, At: at, Count: 1, State: OccurrenceBackfilled, Run: newRunID(), Open: true,
			Revision: row.Revision, By: payload.Clean(a.By, 200)}
		switch single := l.single[at]; {
		case single == nil:
			l.take(at)
			add = append(add, o)
		case single.State == OccurrenceMissed || single.State == OccurrencePaused:
			if err := moved(ctx, tx, &o, single.State); err != nil {
				return err
			}
			started = append(started, o)
		}
	}
	if err := l.shrink(ctx, tx); err != nil {
		return err
	}
	added, err := tx.AddOccurrences(ctx, add)
	if err != nil {
		return err
	}
	r.done = append(started, added...)
	slices.SortFunc(r.done, func(a, b OccurrenceRow) int { return int(a.At - b.At) })
	return r.e.startOccurrences(ctx, tx, slices.Clone(r.done), func(o *OccurrenceRow) (prepared, *ScheduleSpec) {
		return r.inputs[occasion{o.Schedule, o.At}], spec
	}, r.put, r.begun)
}

// moved moves an occurrence that was read under the schedule's lock.
func moved(ctx context.Context, tx Txn, o *OccurrenceRow, from OccurrenceState) error {
	ok, err := tx.MoveOccurrence(ctx, o, from)
	if err == nil && !ok {
		err = fmt.Errorf("instant %s changed under the schedule's lock", micros(o.At).Format(time.RFC3339))
	}
	return err
}

// ledgerRows is some rows of a schedule's ledger.
type ledgerRows struct {
	single map[int64]*OccurrenceRow
	ranges []*ledgerRange
}

// ledgerRange is a range, and the instants that get rows of their own.
type ledgerRange struct {
	row   *OccurrenceRow
	spec  *ScheduleSpec // whose instants it stands for; the schedule may have another timetable by now
	taken []int64
}

// readLedger reads what is in the ledger between two instants, both included.
func readLedger(ctx context.Context, tx Txn, name string, from, to int64) (*ledgerRows, error) {
	l := &ledgerRows{single: make(map[int64]*OccurrenceRow)}
	for seen := int64(0); from <= to; {
		rows, err := tx.Within(ctx, name, from, to, ledgerPage)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			row := &rows[i]
			switch {
			case row.Until == 0:
				l.single[row.At] = row
			case row.At > seen: // else it came with the page before, and covers the beginning of this one
				spec, err := row.spec()
				if err != nil {
					return nil, err
				}
				l.ranges, seen = append(l.ranges, &ledgerRange{row: row, spec: spec}), row.At
			}
		}
		if len(rows) < ledgerPage {
			break
		}
		from = rows[len(rows)-1].At + 1
	}
	return l, nil
}

// take notes that an instant gets a row of its own, if a range stands for it.
func (l *ledgerRows) take(at int64) {
	for _, r := range l.ranges {
		if r.row.At <= at && at <= r.row.Until && r.spec.has(at) {
			r.taken = append(r.taken, at)
		}
	}
}

// shrink takes the instants that get rows of their own out of the ranges. A range whose first instant gets one begins at
// the next that has none.
func (l *ledgerRows) shrink(ctx context.Context, tx Txn) (err error) {
	for _, r := range l.ranges {
		if len(r.taken) == 0 {
			continue
		}
		count, at := r.row.Count-len(r.taken), r.row.At
		for count > 0 && slices.Contains(r.taken, at) {
			if at, err = r.next(ctx, tx, at); err != nil {
				return err
			}
			if at == 0 { // by today's rules of the time zone it had fewer
				count = 0
			}
		}
		if err := tx.ShrinkOccurrence(ctx, r.row, at, max(count, 0)); err != nil {
			return err
		}
	}
	return nil
}

// next is the range's first instant after at that has no row yet, 0 if there is none.
func (r *ledgerRange) next(ctx context.Context, tx Txn, at int64) (int64, error) {
	for {
		if at = r.spec.after(at); at == 0 || at > r.row.Until {
			return 0, nil
		}
		rows, err := tx.Within(ctx, r.row.Schedule, at, at, 2)
		if err != nil || !slices.ContainsFunc(rows, func(o OccurrenceRow) bool { return o.At == at }) {
			return at, err
		}
	}
}
