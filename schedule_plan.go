package pawl

import "time"

// OccurrenceState is what became of an instant of a schedule.
type OccurrenceState string

// The states. Those with a run have one that was started; the others have a reason.
const (
	OccurrenceStarted    OccurrenceState = "started"    // on time, or when the run it was buffered behind had ended
	OccurrenceCaughtUp   OccurrenceState = "caught_up"  // late, because no worker was there
	OccurrenceBackfilled OccurrenceState = "backfilled" // a person asked for it
	OccurrenceBuffered   OccurrenceState = "buffered"   // waits for the end of a run
	OccurrenceSkipped    OccurrenceState = "skipped"    // an earlier run had not ended
	OccurrenceMissed     OccurrenceState = "missed"     // no worker was there
	OccurrencePaused     OccurrenceState = "paused"     // the schedule was paused
	OccurrenceRejected   OccurrenceState = "rejected"   // no run could be made of it
)

// HasRun reports whether a run was started for the instant.
func (s OccurrenceState) HasRun() bool {
	return s == OccurrenceStarted || s == OccurrenceCaughtUp || s == OccurrenceBackfilled
}

// The reasons of occurrences without a run, besides previous_queued, previous_running, previous_waiting and
// previous_blocked, which say in which state the run is that was in the way. Those of rejected ones are texts.
const (
	reasonPrevious   = "previous_"
	reasonBufferFull = "buffer_full"     // another instant waits already
	reasonSuperseded = "superseded"      // it waited, and a later one came
	reasonLater      = "later_one_runs"  // only the latest is caught up
	reasonWindow     = "outside_window"  // it was too old to be caught up
	reasonNoCatchUp  = "no_catch_up"     // the schedule catches up none
	reasonOver       = "over_limit"      // more were missed than are caught up
	reasonPaused     = "paused"          // by a person
	reasonEdited     = "schedule_edited" // it was due when the schedule was changed
	reasonDeleted    = "schedule_deleted"
)

const (
	// mostSingle is how many missed instants have a row each. More have one for all of them.
	mostSingle = 1000
	// mostInstants bounds the instants of a schedule that one decision looks at. Those left over are decided next.
	mostInstants = 50_000
)

// judgement is what a schedule's due instants come to. It is made from rows alone, so that it can be made before they are
// locked, to know for which instants inputs are needed, and again after that.
type judgement struct {
	row    ScheduleRow // as it will be
	spec   *ScheduleSpec
	add    []OccurrenceRow // to the ledger; those that start a run are marked Open
	move   []OccurrenceRow // buffered ones that start a run, or are given up
	busy   []OpenOccurrence
	ended  []OpenOccurrence
	ahead  map[int64]bool
	took   int   // instants looked at
	streak int   // of the row, before
	noted  int64 // the last due instant that has a row already; 0 if none, or if one before it is left over
	more   bool  // there are too many for one decision
}

// weigh decides about all instants that are due at now.
func weigh(row *ScheduleRow, spec *ScheduleSpec, ledger *known, now int64) *judgement {
	j := &judgement{row: *row, spec: spec, streak: row.Streak}
	j.sort(ledger)
	if row.PausedAt == 0 {
		j.unbuffer()
	}
	if j.full() { // it has no instants any more
		j.advance(now)
		return j
	}
	due, more := j.instants(now)
	if row.PausedAt > 0 {
		j.pause(due)
	} else {
		j.decide(due, more, now)
	}
	j.row.Upto = max(j.row.Upto, j.noted)
	j.more = more
	j.advance(now)
	return j
}

// sort tells the runs that are in the way from those that have ended.
func (j *judgement) sort(ledger *known) {
	j.ahead = ledger.ahead
	for _, o := range ledger.open {
		if o.Run != "" {
			j.busy = append(j.busy, o)
		} else {
			j.ended = append(j.ended, o)
		}
	}
}

// instants are those that are due and not in the ledger; more says that there are too many for one decision.
func (j *judgement) instants(now int64) (due []int64, more bool) {
	at := j.row.Upto
	j.noted = 0
	for len(due) < mostInstants {
		if at = j.spec.after(at); at == 0 || j.spec.look(at) > now {
			j.took = len(due)
			return due, false
		}
		if j.ahead[at] {
			j.noted = at
			continue
		}
		due = append(due, at)
	}
	j.took, j.noted = len(due), 0
	return due[:mostInstants-mostCatchUp], true // the newest of all may be among those left over
}

// decide is for a schedule that is not paused.
func (j *judgement) decide(due []int64, more bool, now int64) {
	late := 0
	for late < len(due) && now-j.spec.look(due[late]) > lateAfter(late == len(due)-1) {
		late++
	}
	caught, why := late, reasonNoCatchUp // from here on they are caught up
	switch j.spec.catchUp() {
	case CatchUpLatest:
		why = reasonLater
		if late > 0 && late == len(due) && !more {
			if now-due[late-1] <= micro(j.spec.window()) {
				caught--
			} else {
				why = reasonWindow
			}
		}
	case CatchUpAll:
		why = reasonOver
		if !more {
			caught = max(0, late-j.spec.CatchUpMost)
		}
	case CatchUpNone:
	}
	j.pass(due[:caught], OccurrenceMissed, why)
	for i, at := range due[caught:] {
		if j.full() {
			j.noted = 0
			return
		}
		state := OccurrenceStarted
		if caught+i < late {
			state = OccurrenceCaughtUp
		}
		j.start(at, state)
	}
}

// lateAfter is how late an instant may be decided about without being late, in microseconds: less if it is not the last one.
func lateAfter(last bool) int64 {
	if last {
		return micro(onTime)
	}
	return micro(onTimeBefore)
}

// full reports whether the schedule has started all the runs it may.
func (j *judgement) full() bool { return j.spec.MaxRuns > 0 && j.row.Started >= j.spec.MaxRuns }

// pause is for a schedule that is paused. What was due before that is missed.
func (j *judgement) pause(due []int64) {
	n := 0
	for n < len(due) && j.spec.look(due[n]) <= j.row.PausedAt {
		n++
	}
	j.pass(due[:n], OccurrenceMissed, reasonPaused)
	j.pass(due[n:], OccurrencePaused, reasonPaused)
}

// pass notes instants that have no run.
func (j *judgement) pass(due []int64, state OccurrenceState, why string) {
	if len(due) == 0 {
		return
	}
	j.row.Upto = due[len(due)-1]
	if state != OccurrencePaused {
		j.row.Streak += len(due)
	}
	if len(due) > mostSingle {
		row := j.occurrence(due[0], state, why)
		row.Until, row.Count, row.Spec = due[len(due)-1], len(due), j.row.Spec
		j.add = append(j.add, row)
		return
	}
	for _, at := range due {
		j.add = append(j.add, j.occurrence(at, state, why))
	}
}

func (j *judgement) occurrence(at int64, state OccurrenceState, why string) OccurrenceRow {
	return OccurrenceRow{Schedule: j.row.Name, At: at, Count: 1, State: state, Reason: why, Revision: j.row.Revision}
}

// start gives the instant a run, unless another one is in the way.
func (j *judgement) start(at int64, state OccurrenceState) {
	j.row.Upto = max(j.row.Upto, at)
	row := j.occurrence(at, state, "")
	policy := j.spec.overlap()
	if len(j.busy) == 0 && j.row.Buffered == 0 || policy == OverlapAllow {
		j.begin(&row)
		j.add = append(j.add, row)
		return
	}
	if len(j.busy) > 0 {
		last := j.busy[len(j.busy)-1]
		row.Other, row.Reason = last.Run, reasonPrevious+string(last.State)
	}
	switch {
	case policy == OverlapCancel && j.row.Buffered > 0:
		j.giveUp(reasonSuperseded)
		fallthrough
	case policy != OverlapSkip && j.row.Buffered == 0:
		row.State, j.row.Buffered, j.row.Blocker = OccurrenceBuffered, at, row.Other
	case policy != OverlapSkip:
		row.State, row.Reason = OccurrenceSkipped, reasonBufferFull
		j.row.Streak++
	default:
		row.State = OccurrenceSkipped
		j.row.Streak++
	}
	if row.State == OccurrenceSkipped && row.Reason == "" { // nothing runs, but another instant waits
		row.Reason = reasonBufferFull
	}
	j.add = append(j.add, row)
}

// begin marks an occurrence as one that starts a run, which is in the way of the next. Its id is not known yet.
func (j *judgement) begin(row *OccurrenceRow) {
	row.Run, row.Open = newRunID(), true
	j.busy = append(j.busy, OpenOccurrence{Schedule: row.Schedule, At: row.At, Run: row.Run, State: Queued})
	j.row.Started++
	j.row.Streak = 0
}

// unbuffer starts the instant that waits, if the runs that it waits for have ended.
func (j *judgement) unbuffer() {
	switch {
	case j.row.Buffered == 0:
	case len(j.busy) > 0:
		j.row.Blocker = j.busy[len(j.busy)-1].Run
	default:
		row := j.occurrence(j.row.Buffered, OccurrenceStarted, string(OccurrenceBuffered))
		j.row.Buffered, j.row.Blocker = 0, ""
		j.begin(&row)
		j.move = append(j.move, row)
	}
}

// giveUp skips the instant that waits.
func (j *judgement) giveUp(why string) {
	row := j.occurrence(j.row.Buffered, OccurrenceSkipped, why)
	row.Other = j.row.Blocker
	j.row.Buffered, j.row.Blocker = 0, ""
	j.row.Streak++
	for i := range j.add {
		if j.add[i].At == row.At { // buffered by this very decision
			row.Other = j.add[i].Other
			j.add[i] = row
			return
		}
	}
	j.move = append(j.move, row)
}

// advance says when the schedule is to be looked at next.
func (j *judgement) advance(now int64) {
	next := j.spec.after(j.row.Upto)
	switch {
	case j.more:
		j.row.Due = now
	case next == 0 || j.full():
		j.row.Due = 0
	default:
		j.row.Due = j.spec.look(next)
	}
}

// cancels are the runs that have to be asked to end.
func (j *judgement) cancels() (ids []RunID) {
	if j.spec.overlap() != OverlapCancel || j.row.Buffered == 0 || j.row.PausedAt > 0 {
		return nil
	}
	for _, o := range j.busy {
		if !o.Cancel {
			ids = append(ids, o.Run)
		}
	}
	return ids
}

// changes reports whether there is anything to write.
func (j *judgement) changes(was *ScheduleRow) bool {
	return len(j.add)+len(j.move) > 0 || j.row.Due != was.Due || j.row.Blocker != was.Blocker || j.row.Upto != was.Upto
}

// starts are the instants for which runs are to be made.
func (j *judgement) starts() (at []int64) {
	for _, rows := range [][]OccurrenceRow{j.add, j.move} {
		for i := range rows {
			if rows[i].State.HasRun() {
				at = append(at, rows[i].At)
			}
		}
	}
	return at
}

// account notes all instants that are due and undecided without deciding about them, because the schedule is about to
// change. With all it notes those too that have come and are put off by the jitter, which nobody looks at afterwards.
func account(row *ScheduleRow, spec *ScheduleSpec, ledger *known, now int64, why string, all bool) *judgement {
	j := &judgement{row: *row, spec: spec, ahead: ledger.ahead}
	if all {
		plain := *spec
		plain.Jitter, j.spec = 0, &plain
	}
	for more := true; more; {
		var due []int64
		due, more = j.instants(now)
		if row.PausedAt > 0 {
			j.pause(due)
		} else {
			j.pass(due, OccurrenceMissed, why)
		}
	}
	if all {
		j.row.Upto = max(j.row.Upto, now)
	}
	return j
}

// has reports whether the instant is one of the schedule's.
func (s *ScheduleSpec) has(at int64) bool { return s.after(at-1) == at }

// at is an instant in the timetable's zone.
func (s *ScheduleSpec) at(instant int64) time.Time {
	return time.UnixMicro(instant).In(s.When.Location())
}
