package sqlstore

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pawlrun/pawl"
)

const scheduleColumns = `name, workflow, version, coded, spec, input, overlap, code_hash, edited, revision, paused_at, paused_by, paused_why,
	created, changed, upto, due, started, buffered, blocker, streak`

func scanSchedule(rows pawl.Rows) (s pawl.ScheduleRow, err error) {
	err = rows.Scan(&s.Name, &s.Workflow, &s.Version, &s.Coded, zero(&s.Spec), zero(&s.Input), &s.Overlap, zero(&s.CodeHash), zero(&s.Edited),
		&s.Revision, zero(&s.PausedAt), zero(&s.PausedBy), zero(&s.PausedWhy), &s.Created, &s.Changed, &s.Upto, zero(&s.Due),
		&s.Started, zero(&s.Buffered), zero(&s.Blocker), &s.Streak)
	return s, err
}

const (
	selectSchedule  = `SELECT ` + scheduleColumns + ` FROM pawl_schedules WHERE name = $1`
	lockSchedule    = selectSchedule + `{lock}`
	selectSchedules = `SELECT ` + scheduleColumns + ` FROM pawl_schedules WHERE name > $1 ORDER BY name LIMIT $2`
)

// Schedule uses the primary key.
func (t *txn) Schedule(ctx context.Context, name string) (*pawl.ScheduleRow, error) {
	query := lockSchedule
	if t.readOnly {
		query = selectSchedule
	}
	found, err := list(ctx, t, scanSchedule, query, name)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("there is no schedule of that name: %w", pawl.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", name, err)
	}
	return &found[0], nil
}

// Schedules uses the primary key.
func (t *txn) Schedules(ctx context.Context, after string, limit int) ([]pawl.ScheduleRow, error) {
	all, err := list(ctx, t, scanSchedule, selectSchedules, after, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("read schedules: %w", err)
	}
	return all, nil
}

const insertSchedule = `INSERT INTO pawl_schedules (` + scheduleColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, {now}, {now}, $14, $15, $16, $17, $18, $19)
ON CONFLICT DO NOTHING RETURNING created, changed`

// InsertSchedule uses the primary key.
func (t *txn) InsertSchedule(ctx context.Context, s *pawl.ScheduleRow) (bool, error) {
	isNew, err := t.row(ctx, insertSchedule, []any{s.Name, s.Workflow, s.Version, s.Coded, string(s.Spec), raw(s.Input), string(s.Overlap), raw(s.CodeHash),
		truth(s.Edited), int64(s.Revision), num(s.PausedAt), said(s.PausedBy), said(s.PausedWhy), s.Upto, num(s.Due), int64(s.Started),
		num(s.Buffered), str(s.Blocker), int64(s.Streak)}, []any{&s.Created, &s.Changed})
	if err != nil {
		return false, fmt.Errorf("insert schedule %q: %w", s.Name, err)
	}
	return isNew, nil
}

const (
	// The values are cast because no column says which types they have.
	saveSchedules = `UPDATE pawl_schedules AS s SET version = v.column2, coded = v.column3, spec = v.column4, input = v.column5, overlap = v.column6,
	code_hash = v.column7, edited = v.column8, revision = v.column9, paused_at = v.column10, paused_by = v.column11, paused_why = v.column12,
	changed = v.column13, upto = v.column14, due = v.column15, started = v.column16, buffered = v.column17, blocker = v.column18, streak = v.column19
FROM (VALUES %s) AS v WHERE s.name = v.column1 AND s.name IN (%s)`

	scheduleTuple = `(CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS BOOLEAN), CAST(? AS TEXT), CAST(? AS {bytes}), CAST(? AS TEXT),
	CAST(? AS {bytes}), CAST(? AS BOOLEAN), CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS TEXT), CAST(? AS TEXT),
	CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS {id}), CAST(? AS BIGINT))`
)

// SaveSchedules uses the primary key.
func (t *txn) SaveSchedules(ctx context.Context, all []pawl.ScheduleRow) error {
	for part := range powers(all) {
		var args []any
		for i := range part {
			s := &part[i]
			args = append(args, s.Name, s.Version, s.Coded, string(s.Spec), raw(s.Input), string(s.Overlap), raw(s.CodeHash), truth(s.Edited),
				int64(s.Revision), num(s.PausedAt), said(s.PausedBy), said(s.PausedWhy), s.Changed, s.Upto, num(s.Due), int64(s.Started),
				num(s.Buffered), str(s.Blocker), int64(s.Streak))
		}
		n, err := t.exec(ctx, saveText(len(part)), args...)
		if err == nil && int(n) != len(part) {
			err = pawl.ErrNotFound
		}
		if err != nil {
			return fmt.Errorf("save schedule %q and %d more: %w", part[0].Name, len(part)-1, err)
		}
	}
	return nil
}

// saveText has the names once more in a list, so that rows are looked up whatever is known of the table's size.
func saveText(n int) string {
	return fmt.Sprintf(saveSchedules, tuples(scheduleTuple, n), every(n, strings.Count(scheduleTuple, "?")))
}

// every is $1 and each step-th parameter after it, n of them.
func every(n, step int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = "$" + strconv.Itoa(1+i*step)
	}
	return strings.Join(all, ", ")
}

const deleteSchedule = `DELETE FROM pawl_schedules WHERE name = $1`

// DeleteSchedule uses the primary key.
func (t *txn) DeleteSchedule(ctx context.Context, name string) error {
	if _, err := t.exec(ctx, deleteSchedule, name); err != nil {
		return fmt.Errorf("delete schedule %q: %w", name, err)
	}
	return nil
}

const (
	// What waits for a run is ready when that has ended, or is to be asked to. A handful of schedules wait at a time.
	waitsReady = `FROM pawl_schedules AS s LEFT JOIN pawl_runs AS r ON r.id = s.blocker
WHERE s.workflow = %s AND s.version = %s AND s.buffered IS NOT NULL AND s.paused_at IS NULL
	AND (r.id IS NULL OR r.ended IS NOT NULL OR s.overlap = 'cancel_previous' AND r.cancel_at IS NULL)`

	// Subqueries, which are planned once for all versions. They read a probe of each index a version.
	selectNext = `SELECT {now}, min(coalesce(ready, due)) FROM (SELECT
	(SELECT min(due) FROM pawl_schedules WHERE workflow = v.column1 AND version = v.column2 AND due IS NOT NULL) AS due,
	(SELECT CAST(1 AS BIGINT) %s LIMIT 1) AS ready
FROM (VALUES %s) AS v) AS looks`
)

// versions are what a worker decides about: its own versions, and its workflows whatever the version.
func versions(has []pawl.VersionID) (all []pawl.VersionID) {
	all = append(all, has...)
	for _, name := range workflows(has) {
		all = append(all, pawl.VersionID{Workflow: name})
	}
	return all
}

func nextText(n int) string {
	return fmt.Sprintf(selectNext, fmt.Sprintf(waitsReady, "v.column1", "v.column2"), tuples("(CAST(? AS TEXT), CAST(? AS TEXT))", n))
}

// NextSchedule reads the low end of pawl_schedules_due for each version, and pawl_schedules_buffered.
func (s *Store) NextSchedule(ctx context.Context, has []pawl.VersionID) (now, due int64, err error) {
	all := versions(has)
	var args []any
	for _, v := range all {
		args = append(args, v.Workflow, v.Version)
	}
	if len(all) == 0 {
		return 0, 0, nil
	}
	if _, err := s.reader().row(ctx, nextText(len(all)), args, []any{&now, zero(&due)}); err != nil {
		return 0, 0, fmt.Errorf("look for due schedules: %w", err)
	}
	return now, due, nil
}

const (
	selectDueSchedules = `SELECT ` + scheduleColumns + ` FROM pawl_schedules WHERE workflow = $1 AND version = $2 AND due <= {now}%s
ORDER BY due LIMIT $3`

	selectReady = `SELECT s.name `
)

// DueSchedules uses pawl_schedules_due and pawl_schedules_buffered.
func (t *txn) DueSchedules(ctx context.Context, has []pawl.VersionID, except []string, limit int) (all []pawl.ScheduleRow, err error) {
	not := ""
	if len(except) > 0 {
		not = " AND name NOT IN (" + params(4, len(except)) + ")"
	}
	for _, v := range versions(has) {
		if len(all) >= limit {
			break
		}
		args := []any{v.Workflow, v.Version, int64(limit - len(all))}
		for _, name := range except {
			args = append(args, name)
		}
		due, err := list(ctx, t, scanSchedule, fmt.Sprintf(selectDueSchedules, not), args...)
		if err != nil {
			return nil, fmt.Errorf("read due schedules of %s: %w", v.Workflow, err)
		}
		all = append(all, due...)
		ready, err := list(ctx, t, func(rows pawl.Rows) (name string, err error) { err = rows.Scan(&name); return name, err },
			selectReady+fmt.Sprintf(waitsReady, "$1", "$2")+" LIMIT 500", v.Workflow, v.Version)
		if err != nil {
			return nil, fmt.Errorf("read schedules of %s that wait: %w", v.Workflow, err)
		}
		if all, err = t.join(ctx, all, ready, except); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// join adds the schedules that are not there yet.
func (t *txn) join(ctx context.Context, all []pawl.ScheduleRow, names, except []string) ([]pawl.ScheduleRow, error) {
	has := make(map[string]bool)
	for i := range all {
		has[all[i].Name] = true
	}
	for _, name := range except {
		has[name] = true
	}
	for _, name := range names {
		if has[name] {
			continue
		}
		found, err := list(ctx, t, scanSchedule, selectSchedule, name)
		if err != nil {
			return nil, fmt.Errorf("read schedule %q: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

const lockSchedules = `SELECT ` + scheduleColumns + ` FROM pawl_schedules WHERE name IN (%s) ORDER BY name{skip}`

// LockSchedules uses the primary key.
func (t *txn) LockSchedules(ctx context.Context, names []string) (all []pawl.ScheduleRow, err error) {
	for part := range powers(names) {
		some, err := list(ctx, t, scanSchedule, fmt.Sprintf(lockSchedules, params(1, len(part))), asArgs(part)...)
		if err != nil {
			return nil, fmt.Errorf("lock %d schedules: %w", len(part), err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func asArgs(names []string) (args []any) {
	for _, name := range names {
		args = append(args, name)
	}
	return args
}

// powers cuts a list into parts whose sizes are powers of two, so that there are few statements to prepare.
func powers[T any](all []T) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		for len(all) > 0 {
			n := insertSize
			for n > len(all) {
				n /= 2
			}
			if !yield(all[:n:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// tuples is n copies of a tuple with a ? for each parameter.
func tuples(tuple string, n int) string {
	parts := strings.Split(tuple, "?")
	var b strings.Builder
	param := 0
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		for _, part := range parts[:len(parts)-1] {
			param++
			b.WriteString(part + "$" + strconv.Itoa(param))
		}
		b.WriteString(parts[len(parts)-1])
	}
	return b.String()
}

const occurrenceColumns = `schedule, at, until, count, spec, state, reason, run, other, revision, decided, trigger_key, by_whom, open`

func scanOccurrence(rows pawl.Rows) (o pawl.OccurrenceRow, err error) {
	err = rows.Scan(&o.Schedule, &o.At, zero(&o.Until), &o.Count, zero(&o.Spec), &o.State, zero(&o.Reason), zero(&o.Run), zero(&o.Other), &o.Revision,
		&o.Decided, zero(&o.Key), zero(&o.By), zero(&o.Open))
	return o, err
}

const (
	insertOccurrences = `INSERT INTO pawl_occurrences (` + occurrenceColumns + `) VALUES %s ON CONFLICT DO NOTHING RETURNING schedule, at, decided`

	occurrenceTuple = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, ?, ?, ?)`
)

// AddOccurrences uses the primary key.
func (t *txn) AddOccurrences(ctx context.Context, all []pawl.OccurrenceRow) (added []pawl.OccurrenceRow, err error) {
	type key struct {
		schedule string
		at       int64
	}
	for part := range powers(all) {
		var args []any
		for i := range part {
			o := &part[i]
			args = append(args, o.Schedule, o.At, num(o.Until), int64(o.Count), said(string(o.Spec)), string(o.State), said(o.Reason), str(o.Run), str(o.Other),
				int64(o.Revision), str(o.Key), said(o.By), truth(o.Open))
		}
		isNew := make(map[key]int64)
		err := t.rows(ctx, fmt.Sprintf(insertOccurrences, tuples(occurrenceTuple, len(part))), args, func(rows pawl.Rows) error {
			var k key
			var decided int64
			err := rows.Scan(&k.schedule, &k.at, &decided)
			isNew[k] = decided
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("add %d occurrences of schedule %q and others: %w", len(part), part[0].Schedule, err)
		}
		for i := range part {
			if decided := isNew[key{part[i].Schedule, part[i].At}]; decided > 0 {
				part[i].Decided = decided
				added = append(added, part[i])
			}
		}
	}
	return added, nil
}

const moveOccurrence = `UPDATE pawl_occurrences SET state = $3, reason = $4, run = $5, other = coalesce($6, other), decided = {now}, by_whom = coalesce($7, by_whom),
	open = $8, revision = $9 WHERE schedule = $1 AND at = $2 AND state = $10 AND until IS NULL RETURNING decided`

// MoveOccurrence uses the primary key.
func (t *txn) MoveOccurrence(ctx context.Context, o *pawl.OccurrenceRow, from pawl.OccurrenceState) (bool, error) {
	moved, err := t.row(ctx, moveOccurrence, []any{o.Schedule, o.At, string(o.State), said(o.Reason), str(o.Run), str(o.Other), said(o.By),
		truth(o.Open), int64(o.Revision), string(from)}, []any{&o.Decided})
	if err != nil {
		return false, fmt.Errorf("change occurrence of schedule %q: %w", o.Schedule, err)
	}
	return moved, nil
}

const (
	shrinkOccurrence = `UPDATE pawl_occurrences SET at = $3, count = $4 WHERE schedule = $1 AND at = $2 AND until IS NOT NULL`
	deleteOccurrence = `DELETE FROM pawl_occurrences WHERE schedule = $1 AND at = $2 AND until IS NOT NULL`
)

// ShrinkOccurrence uses the primary key.
func (t *txn) ShrinkOccurrence(ctx context.Context, o *pawl.OccurrenceRow, at int64, count int) (err error) {
	if count == 0 {
		_, err = t.exec(ctx, deleteOccurrence, o.Schedule, o.At)
	} else {
		_, err = t.exec(ctx, shrinkOccurrence, o.Schedule, o.At, at, int64(count))
	}
	if err != nil {
		return fmt.Errorf("shrink a range of schedule %q: %w", o.Schedule, err)
	}
	return nil
}

const (
	selectOccurrences = `SELECT ` + occurrenceColumns + ` FROM pawl_occurrences WHERE schedule = $1 AND at < $2 ORDER BY at DESC LIMIT $3`

	// The whole key is compared, so that the planner has but one index for it. Ranges do not overlap: the one that covers $2 is
	// the first that ends no earlier.
	selectWithin = `SELECT ` + occurrenceColumns + ` FROM pawl_occurrences WHERE (schedule, at) >= ($1, $2) AND (schedule, at) <= ($1, $3)
UNION ALL SELECT ` + occurrenceColumns + ` FROM (SELECT ` + occurrenceColumns + ` FROM pawl_occurrences
	WHERE schedule = $1 AND until >= $2 ORDER BY until LIMIT 1) AS covers WHERE at < $2
ORDER BY at LIMIT $4`

	selectTriggered = `SELECT ` + occurrenceColumns + ` FROM pawl_occurrences WHERE schedule = $1 AND trigger_key = $2`
)

// Occurrences uses the primary key.
func (t *txn) Occurrences(ctx context.Context, schedule string, before int64, limit int) ([]pawl.OccurrenceRow, error) {
	all, err := list(ctx, t, scanOccurrence, selectOccurrences, schedule, before, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("read occurrences of schedule %q: %w", schedule, err)
	}
	return all, nil
}

// Within uses the primary key and pawl_occurrences_range.
func (t *txn) Within(ctx context.Context, schedule string, from, to int64, limit int) ([]pawl.OccurrenceRow, error) {
	all, err := list(ctx, t, scanOccurrence, selectWithin, schedule, from, to, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("read occurrences of schedule %q: %w", schedule, err)
	}
	return all, nil
}

// Triggered uses pawl_occurrences_trigger.
func (t *txn) Triggered(ctx context.Context, schedule, key string) (*pawl.OccurrenceRow, error) {
	all, err := list(ctx, t, scanOccurrence, selectTriggered, schedule, key)
	if err != nil {
		return nil, fmt.Errorf("read trigger %q of schedule %q: %w", key, schedule, err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return &all[0], nil
}

const (
	// A sub-select for each row is a look-up for each, where a join might read all live runs. The live run is the first of the
	// lineage, or else a later one; a fork with keys of its own is none.
	selectOpenOccurrences = `SELECT o.schedule, o.at, coalesce(
	(SELECT ` + liveRun + ` FROM pawl_runs AS r{byid} WHERE r.id = o.run),
	(SELECT min(` + liveRun + `) FROM pawl_runs AS r WHERE r.lineage = o.run AND r.lineage <> r.id AND NOT r.new_keys))
FROM pawl_occurrences AS o WHERE o.open AND o.schedule IN (%s) ORDER BY o.schedule, o.at`

	// With "ended IS NULL" as a condition, planners would read all of pawl_runs_live.
	liveRun = `CASE WHEN r.ended IS NULL THEN CAST(r.id AS TEXT) || ' ' || r.state || CASE WHEN r.cancel_at IS NULL THEN '' ELSE ' cancel' END END`

	closeOccurrences = `UPDATE pawl_occurrences AS o SET open = NULL FROM (VALUES %s) AS v
WHERE o.schedule = v.column1 AND o.at = v.column2 AND o.schedule IN (%s) AND o.open`
)

const handOccurrence = `UPDATE pawl_occurrences SET run = $2 WHERE open AND run = $1`

// HandOccurrence looks through the open occurrences, of which there are about as many as runs of schedules that have not ended.
func (t *txn) HandOccurrence(ctx context.Context, lineage, run pawl.RunID) error {
	if _, err := t.exec(ctx, handOccurrence, string(lineage), string(run)); err != nil {
		return fmt.Errorf("hand on the occurrence of run %s: %w", lineage, err)
	}
	return nil
}

// OpenOccurrences uses pawl_occurrences_open, the primary key of runs and pawl_runs_lineage.
func (t *txn) OpenOccurrences(ctx context.Context, names []string) (all []pawl.OpenOccurrence, err error) {
	for part := range powers(names) {
		some, err := list(ctx, t, func(rows pawl.Rows) (o pawl.OpenOccurrence, err error) {
			var live string
			err = rows.Scan(&o.Schedule, &o.At, zero(&live))
			if words := strings.Fields(live); len(words) > 1 {
				o.Run, o.State, o.Cancel = pawl.RunID(words[0]), pawl.RunState(words[1]), len(words) > 2
			}
			return o, err
		}, fmt.Sprintf(selectOpenOccurrences, params(1, len(part))), asArgs(part)...)
		if err != nil {
			return nil, fmt.Errorf("read open occurrences of %d schedules: %w", len(part), err)
		}
		all = append(all, some...)
	}
	return all, nil
}

const (
	// A sub-select for each schedule reads one entry of the primary key.
	selectAhead = `SELECT s.name, (SELECT min(o.at) FROM pawl_occurrences AS o WHERE o.schedule = s.name AND o.at > s.upto)
FROM pawl_schedules AS s WHERE s.name IN (%s) ORDER BY s.name`

	// mostAhead bounds what one schedule can have ahead. What is beyond it is left in the ledger all the same.
	mostAhead = 50_000
)

// OccurrencesAhead uses the primary keys. Hardly ever has a schedule any.
func (t *txn) OccurrencesAhead(ctx context.Context, names []string) (all []pawl.OccurrenceRow, err error) {
	for part := range powers(names) {
		first := make(map[string]int64)
		err := t.rows(ctx, fmt.Sprintf(selectAhead, params(1, len(part))), asArgs(part), func(rows pawl.Rows) error {
			var name string
			var at int64
			err := rows.Scan(&name, zero(&at))
			if at > 0 {
				first[name] = at
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read what %d schedules have ahead: %w", len(part), err)
		}
		for _, name := range part {
			at, has := first[name]
			if !has {
				continue
			}
			rows, err := t.Within(ctx, name, at, math.MaxInt64, mostAhead)
			if err != nil {
				return nil, err
			}
			all = append(all, rows...)
		}
	}
	return all, nil
}

// CloseOccurrences uses pawl_occurrences_open.
func (t *txn) CloseOccurrences(ctx context.Context, all []pawl.OpenOccurrence) error {
	for part := range powers(all) {
		var args []any
		for i := range part {
			args = append(args, part[i].Schedule, part[i].At)
		}
		_, err := t.exec(ctx, closeText(len(part)), args...)
		if err != nil {
			return fmt.Errorf("close %d occurrences: %w", len(part), err)
		}
	}
	return nil
}

func closeText(n int) string {
	return fmt.Sprintf(closeOccurrences, tuples(`(CAST(? AS TEXT), CAST(? AS BIGINT))`, n), every(n, 2))
}

const insertKeys = `INSERT INTO pawl_keys (key_name, product_key, input_hash, lineage) VALUES %s
ON CONFLICT (product_key, key_name) DO NOTHING RETURNING product_key`

// ClaimKeys uses the primary key.
func (t *txn) ClaimKeys(ctx context.Context, keys []pawl.KeyRow) (free []pawl.Key, err error) {
	for part := range powers(keys) {
		var args []any
		for i := range part {
			args = append(args, part[i].KeyName, string(part[i].Key), raw(part[i].InputHash), string(part[i].Lineage))
		}
		some, err := list(ctx, t, func(rows pawl.Rows) (k pawl.Key, err error) {
			err = rows.Scan(&k)
			return k, err
		}, fmt.Sprintf(insertKeys, tuples(`(?, ?, ?, ?)`, len(part))), args...)
		if err != nil {
			return nil, fmt.Errorf("claim %d keys: %w", len(part), err)
		}
		free = append(free, some...)
	}
	return free, nil
}

const (
	// An open one stays: its run may be in the way of the next. It is the last of its schedule that has a run.
	selectOldOccurrences = `SELECT EXISTS (SELECT 1 FROM pawl_occurrences WHERE open IS NULL AND at < {now} - $1 AND coalesce(until, at) < {now} - $1)`

	// Of those that are equally old all go. A range is as old as its last instant.
	deleteOccurrences = `DELETE FROM pawl_occurrences WHERE open IS NULL AND coalesce(until, at) < {now} - $1 AND at <= (SELECT max(at) FROM
	(SELECT at FROM pawl_occurrences WHERE open IS NULL AND at < {now} - $1 AND coalesce(until, at) < {now} - $1 ORDER BY at LIMIT $2) AS old)`

	pruneOccurrences = 500
)

// PruneOccurrences reads the low end of pawl_occurrences_age, and begins a transaction only if something is old enough.
func (s *Store) PruneOccurrences(ctx context.Context, keep time.Duration) (more bool, err error) {
	_, err = s.reader().row(ctx, selectOldOccurrences, []any{keep.Microseconds()}, []any{&more})
	if err == nil && more {
		err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			_, err := tx.(*txn).exec(ctx, deleteOccurrences, keep.Microseconds(), int64(pruneOccurrences))
			return err
		})
	}
	if err != nil {
		return false, fmt.Errorf("prune the ledger of schedules: %w", err)
	}
	return more, nil
}
