package pawl

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Occurrence is a row of a schedule's ledger: one instant, or a range of more than 1,000 that were missed together.
type Occurrence struct {
	Schedule string          `json:"schedule"`
	At       time.Time       `json:"at"`
	Until    time.Time       `json:"until,omitzero"`  // the last instant of a range
	Count    int             `json:"count,omitempty"` // of a range: its instants that have no row of their own
	State    OccurrenceState `json:"state"`
	// Reason says why there is no run, or on what occasion there is one: previous_queued, previous_running,
	// previous_waiting, previous_blocked, buffer_full, superseded; later_one_runs, outside_window, no_catch_up, over_limit;
	// paused, schedule_edited, schedule_deleted; of a rejected one a sentence.
	Reason   string    `json:"reason,omitempty"`
	Run      RunID     `json:"run,omitempty"`      // that was started: the first of its lineage
	Other    RunID     `json:"previous,omitempty"` // that was in the way
	Revision int       `json:"revision"`           // of the schedule that had the instant
	Decided  time.Time `json:"decided"`
	Late     string    `json:"late,omitempty"` // how long after the instant, from a second on
	Key      string    `json:"key,omitempty"`  // under which a person made it
	By       string    `json:"by,omitempty"`
}

func occurrenceOf(r *OccurrenceRow) Occurrence {
	o := Occurrence{Schedule: r.Schedule, At: micros(r.At), Until: micros(r.Until), State: r.State, Reason: r.Reason, Run: r.Run,
		Other: r.Other, Revision: r.Revision, Decided: micros(r.Decided), Key: r.Key, By: r.By}
	if r.Until > 0 {
		o.Count = r.Count
	}
	if late := time.Duration(r.Decided-max(r.At, r.Until)) * time.Microsecond; late >= time.Second && r.Decided > 0 {
		o.Late = late.Truncate(time.Second).String()
	}
	return o
}

// ScheduleInfo is a schedule as people see it.
type ScheduleInfo struct {
	Name     string `json:"name"`
	Workflow string `json:"workflow"`
	Version  string `json:"version,omitempty"` // of the runs; "" the newest that the worker has
	ScheduleSpec
	Coded     bool      `json:"from_code,omitempty"` // declared by a program
	Edited    bool      `json:"edited,omitempty"`    // … and changed by a person since
	Template  string    `json:"input,omitempty"`     // of one that is not from code
	Revision  int       `json:"revision"`
	Paused    time.Time `json:"paused,omitzero"` // since when; zero if it is not
	PausedBy  string    `json:"paused_by,omitempty"`
	PausedWhy string    `json:"paused_reason,omitempty"`
	Created   time.Time `json:"created"`
	Changed   time.Time `json:"changed"`
	Next      time.Time `json:"next,omitzero"` // the first instant that is not decided; zero if none is left
	Started   int       `json:"started"`       // runs started by its timetable
	Buffered  time.Time `json:"buffered,omitzero"`
	Waits     RunID     `json:"waits_for,omitempty"` // what the buffered instant waits for
	Streak    int       `json:"streak,omitempty"`    // instants without a run since the last one that had one
}

// ScheduleDetail is a schedule with its next instants and the newest of its ledger.
type ScheduleDetail struct {
	ScheduleInfo
	Upcoming []time.Time  `json:"upcoming"` // ten at most
	Ledger   []Occurrence `json:"ledger"`   // the ten newest, newest first
}

const shownInstants = 10

func (e *Engine) scheduleInfo(r *ScheduleRow) (ScheduleInfo, error) {
	spec, err := r.spec()
	if err != nil {
		return ScheduleInfo{}, err
	}
	info := ScheduleInfo{Name: r.Name, Workflow: r.Workflow, Version: r.Version, ScheduleSpec: *spec, Coded: r.Coded, Edited: r.Edited, Revision: r.Revision,
		Paused: micros(r.PausedAt), PausedBy: r.PausedBy, PausedWhy: r.PausedWhy, Created: micros(r.Created), Changed: micros(r.Changed),
		Started: r.Started, Buffered: micros(r.Buffered), Waits: r.Blocker, Streak: r.Streak}
	if !r.Coded {
		info.Template = string(e.shown(r.Input))
	}
	if r.Due > 0 {
		info.Next = micros(spec.after(r.Upto))
	}
	return info, nil
}

// Schedules lists schedules by name, a page at a time; "" begins, and ends.
func (e *Engine) Schedules(ctx context.Context, after Cursor, limit int) (all []ScheduleInfo, next Cursor, err error) {
	limit = limited(limit)
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		all, next = nil, ""
		rows, err := tx.Schedules(ctx, string(after), limit)
		for i := range rows {
			info, err := e.scheduleInfo(&rows[i])
			if err != nil {
				return err
			}
			all = append(all, info)
		}
		if len(rows) == limit {
			next = Cursor(rows[limit-1].Name)
		}
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list schedules: %w", err)
	}
	return all, next, nil
}

// ShowSchedule returns everything about one schedule. It only looks.
func (e *Engine) ShowSchedule(ctx context.Context, name string) (d *ScheduleDetail, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		d = &ScheduleDetail{Upcoming: []time.Time{}, Ledger: []Occurrence{}}
		row, err := tx.Schedule(ctx, name)
		if err != nil {
			return err
		}
		if d.ScheduleInfo, err = e.scheduleInfo(row); err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if row.Due > 0 {
			d.Upcoming = d.Instants(micros(max(now, row.Upto)), shownInstants)
		}
		rows, err := tx.Occurrences(ctx, name, forever, shownInstants)
		for i := range rows {
			d.Ledger = append(d.Ledger, occurrenceOf(&rows[i]))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("show schedule %q: %w", name, err)
	}
	return d, nil
}

// forever is after every stored instant.
const forever int64 = 1 << 62

// Instants are the first n instants after a time, or fewer if there are no more. A schedule that is paused, or has reached
// its MaxRuns, has them all the same.
func (s *ScheduleSpec) Instants(after time.Time, n int) []time.Time {
	all := []time.Time{}
	for at := after.UnixMicro(); len(all) < n; {
		if at = s.after(at); at == 0 {
			break
		}
		all = append(all, micros(at))
	}
	return all
}

// Occurrences returns a schedule's ledger, newest first, a page at a time. That of a deleted schedule is still there.
func (e *Engine) Occurrences(ctx context.Context, name string, after Cursor, limit int) (all []Occurrence, next Cursor, err error) {
	limit = limited(limit)
	before := forever
	if after != "" {
		if before, err = strconv.ParseInt(string(after), 10, 64); err != nil {
			return nil, "", fmt.Errorf("occurrences of %q: %q is not where a page ended", name, after)
		}
	}
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		all, next = nil, ""
		rows, err := tx.Occurrences(ctx, name, before, limit)
		for i := range rows {
			all = append(all, occurrenceOf(&rows[i]))
		}
		if len(rows) == limit {
			next = Cursor(strconv.FormatInt(rows[limit-1].At, 10))
		}
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("occurrences of %q: %w", name, err)
	}
	return all, next, nil
}
