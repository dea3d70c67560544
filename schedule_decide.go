package pawl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/payload"
)

const (
	// decideBatch is how many schedules one transaction decides about, and decideInstants roughly how many instants.
	decideBatch    = 500
	decideInstants = 100_000
	// decidePause is how long what is due in other hands is left to them.
	decidePause = 100 * time.Millisecond
	// idleLooks is how many polls long a worker leaves schedules alone while none has an instant.
	idleLooks = 10
	// mostStrangers bounds what is remembered of schedules that another build has in its code.
	mostStrangers = 500
	// waryStreak is how many instants in a row without a run are worth a word.
	waryStreak = 3
)

// schedules decides about due instants until ctx ends. Any number of workers do so side by side: the ledger says what has
// been decided, and nobody is a leader.
func (w *worker) schedules(ctx context.Context) {
	if h := w.e.hooks; h != nil && h.NoSweep {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for try := 1; ; try++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.tables:
		}
		next, err := w.decideAll(ctx)
		switch {
		case err == nil:
			try = 0
		case try&(try-1) == 0: // not one line a try while a database is away
			w.e.log.Log(ctx, failure(ctx), "deciding about schedules failed", "worker", w.id.ID, "err", err)
		}
		timer.Reset(next)
	}
}

// decideAll decides about everything that is due, and says how long nothing else will be, at most one poll.
func (w *worker) decideAll(ctx context.Context) (next time.Duration, err error) {
	for next = w.e.o.poll(); ctx.Err() == nil; {
		now, due, err := w.e.store.NextSchedule(ctx, w.has)
		switch {
		case err != nil:
			return next, err
		case due == 0: // there is none, or none has an instant left
			return idleLooks * next, nil
		case due > now:
			return min(next, time.Duration(due-now)*time.Microsecond), nil
		}
		n, busy, err := w.e.decideSchedules(ctx, func(ctx context.Context, tx Txn) ([]ScheduleRow, error) {
			return tx.DueSchedules(ctx, w.has, w.strangers, decideBatch)
		}, &w.strangers)
		switch {
		case err != nil:
			return next, err
		case busy:
			return min(next, decidePause), nil
		case n == 0: // what is due is nobody's here, or has been asked to end
			return next, nil
		}
	}
	return next, nil
}

// occasion is an instant of a schedule.
type occasion struct {
	schedule string
	at       int64
}

// prepared is the input of the run of an occasion, or why there is none.
type prepared struct {
	def   *definition
	input []byte
	hash  []byte
	err   error
}

// round is one transaction's worth of decisions.
type round struct {
	e       *Engine
	now     int64 // nothing that is due later is decided about
	inputs  map[occasion]prepared
	all     []*judgement
	cancels []RunID
	begun   map[VersionID]int
	done    []OccurrenceRow
}

// decideSchedules decides about schedules that pick finds, and returns how many it has changed; busy says that others have locked
// all of them. What they start is known before they are locked, so that inputs are made outside of the transaction.
func (e *Engine) decideSchedules(ctx context.Context, pick func(context.Context, Txn) ([]ScheduleRow, error), strangers *[]string) (n int, busy bool, err error) {
	r := &round{e: e, inputs: make(map[occasion]prepared)}
	var rows []ScheduleRow
	var ledgers map[string]*known
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) (err error) {
		if rows, err = pick(ctx, tx); err != nil || len(rows) == 0 {
			return err
		}
		if r.now, err = tx.Now(ctx); err != nil {
			return err
		}
		ledgers, err = knownOf(ctx, tx, rows)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	var names []string
	for i := range rows {
		j, err := r.weigh(&rows[i], ledgers[rows[i].Name])
		switch {
		case errors.Is(err, errStranger):
			if len(*strangers) < mostStrangers {
				e.log.Warn("a schedule is due that this build does not have in its code", "schedule", rows[i].Name)
				*strangers = append(*strangers, rows[i].Name)
			}
			continue
		case err != nil:
			return 0, false, err
		}
		for _, at := range j.starts() {
			r.prepare(j, at)
		}
		names = append(names, rows[i].Name)
		if instants(r.all) > decideInstants {
			break
		}
	}
	if len(names) == 0 {
		return 0, false, nil
	}
	err = e.update(ctx, func(ctx context.Context, tx Txn) error { return r.write(ctx, tx, names) })
	if err != nil {
		return 0, false, fmt.Errorf("decide about %d schedules: %w", len(names), err)
	}
	r.after(ctx)
	return len(r.all), len(r.all)+len(r.cancels) == 0, nil
}

var errStranger = errors.New("the schedule is not in this program's code")

func instants(all []*judgement) (n int) {
	for _, j := range all {
		n += j.took
	}
	return n
}

// known is what a decision has to know of a schedule's ledger.
type known struct {
	open  []OpenOccurrence
	ahead map[int64]bool // instants that have a row although they are not decided about
}

// knownOf reads it for some schedules.
func knownOf(ctx context.Context, tx Txn, rows []ScheduleRow) (map[string]*known, error) {
	names, by := make([]string, len(rows)), make(map[string]*known, len(rows))
	for i := range rows {
		names[i], by[rows[i].Name] = rows[i].Name, &known{ahead: make(map[int64]bool)}
	}
	open, err := tx.OpenOccurrences(ctx, names)
	if err != nil {
		return nil, err
	}
	for _, o := range open {
		by[o.Schedule].open = append(by[o.Schedule].open, o)
	}
	ahead, err := tx.OccurrencesAhead(ctx, names)
	for i := range ahead {
		by[ahead[i].Schedule].ahead[ahead[i].At] = true
	}
	return by, err
}

// weigh makes a judgement and keeps it.
func (r *round) weigh(row *ScheduleRow, ledger *known) (*judgement, error) {
	if row.Coded && r.e.schedules[row.Name] == nil {
		return nil, errStranger
	}
	spec, err := row.spec()
	if err != nil {
		return nil, err
	}
	j := weigh(row, spec, ledger, r.now)
	r.all = append(r.all, j)
	return j, nil
}

// prepare makes the input of a run.
func (r *round) prepare(j *judgement, at int64) {
	o := occasion{j.row.Name, at}
	if _, done := r.inputs[o]; !done {
		r.inputs[o] = r.e.inputOf(&j.row, j.spec, at)
	}
}

// inputOf makes the input that the schedule has for an instant.
func (e *Engine) inputOf(row *ScheduleRow, spec *ScheduleSpec, at int64) (p prepared) {
	var in any
	if row.Coded {
		s := e.schedules[row.Name]
		if s == nil {
			return prepared{err: errStranger}
		}
		p.def = s.def
		in, p.err = callInput(s, spec.at(at))
	} else {
		if p.def = e.newest(row.Workflow, row.Version); p.def == nil {
			return prepared{err: fmt.Errorf("this program has no workflow %q %s", row.Workflow, row.Version)}
		}
		template, err := e.open(row.Input)
		if err == nil {
			template, err = fill(template, row.Name, spec.at(at))
		}
		if p.err = err; err == nil {
			in, p.err = p.def.reencode(template)
		}
	}
	if p.err == nil {
		p.input, p.hash, p.err = e.pack(in)
	}
	return p
}

func callInput(s *Schedule, at time.Time) (in any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the input function panicked: %v", p)
		}
	}()
	return s.input(at), nil
}

// newest is the definition of a workflow's version, or of the newest there is if version is "".
func (e *Engine) newest(workflow, version string) (found *definition) {
	for id, d := range e.defs {
		if id.Workflow != workflow || version != "" && id.Version != version {
			continue
		}
		if found == nil || newer(id.Version, found.Version) {
			found = d
		}
	}
	return found
}

// newer compares versions by the numbers in them.
func newer(a, b string) bool {
	for a != "" && b != "" {
		an, bn := leadingDigits(a), leadingDigits(b)
		x, y := a[:max(an, 1)], b[:max(bn, 1)]
		if an > 0 && bn > 0 {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if len(x) != len(y) {
				return len(x) > len(y)
			}
		}
		if x != y {
			return x > y
		}
		a, b = a[max(an, 1):], b[max(bn, 1):]
	}
	return len(a) > len(b)
}

func leadingDigits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}

// write makes the judgements again under the locks, and writes what they say: the ledger, the runs and what the schedules
// are then, in one transaction. A schedule that others have changed so that an input is not at hand is left alone.
func (r *round) write(ctx context.Context, tx Txn, names []string) error {
	r.all, r.cancels, r.begun, r.done = nil, nil, make(map[VersionID]int), nil
	rows, err := tx.LockSchedules(ctx, names)
	if err != nil || len(rows) == 0 {
		return err
	}
	ledgers, err := knownOf(ctx, tx, rows)
	if err != nil {
		return err
	}
	ended, err := r.weighAgain(rows, ledgers)
	if err != nil || len(r.all) == 0 {
		return err
	}
	if err := r.record(ctx, tx); err != nil {
		return err
	}
	if err := tx.CloseOccurrences(ctx, ended); err != nil {
		return err
	}
	save := make([]ScheduleRow, len(r.all))
	for i, j := range r.all {
		j.advance(r.now) // a rejected instant is no run of MaxRuns
		save[i] = j.row
	}
	if err := tx.SaveSchedules(ctx, save); err != nil {
		return err
	}
	r.e.hooks.Reach(hooks.ScheduleDeciding, "", names[0])
	return nil
}

// weighAgain keeps the judgements that change something, and returns what has ended of the schedules that start runs.
func (r *round) weighAgain(rows []ScheduleRow, ledgers map[string]*known) (ended []OpenOccurrence, err error) {
	var changed []*judgement
	for i := range rows {
		j, err := r.weigh(&rows[i], ledgers[rows[i].Name])
		switch {
		case errors.Is(err, errStranger):
			continue
		case err != nil:
			return nil, err
		}
		if !r.ready(j) {
			continue
		}
		r.cancels = append(r.cancels, j.cancels()...)
		if !j.changes(&rows[i]) {
			continue
		}
		changed = append(changed, j)
		if len(j.starts()) > 0 {
			ended = append(ended, j.ended...)
		}
	}
	r.all = changed
	return ended, nil
}

// ready reports whether all inputs are at hand.
func (r *round) ready(j *judgement) bool {
	return !slices.ContainsFunc(j.starts(), func(at int64) bool {
		_, ok := r.inputs[occasion{j.row.Name, at}]
		return !ok
	})
}

// record writes the ledger and starts the runs that it names.
func (r *round) record(ctx context.Context, tx Txn) error {
	var add, started []OccurrenceRow
	specs := make(map[string]*judgement, len(r.all))
	for _, j := range r.all {
		specs[j.row.Name] = j
		for i := range j.add {
			add = append(add, r.reject(j, j.add[i]))
		}
		for i := range j.move {
			row := r.reject(j, j.move[i])
			ok, err := tx.MoveOccurrence(ctx, &row, OccurrenceBuffered)
			if err != nil {
				return err
			}
			if ok {
				r.done = append(r.done, row)
			}
		}
	}
	added, err := tx.AddOccurrences(ctx, add) // what is in the ledger already stays as it is, and starts nothing
	if err != nil {
		return err
	}
	r.done = append(r.done, added...)
	for i := range r.done {
		if r.done[i].State.HasRun() {
			started = append(started, r.done[i])
		}
	}
	return r.e.startOccurrences(ctx, tx, started, func(o *OccurrenceRow) (prepared, *ScheduleSpec) {
		return r.inputs[occasion{o.Schedule, o.At}], specs[o.Schedule].spec
	}, func(o OccurrenceRow) { r.put(o) }, r.begun)
}

// put replaces what was noted of an occurrence.
func (r *round) put(o OccurrenceRow) {
	for i := range r.done {
		if r.done[i].Schedule == o.Schedule && r.done[i].At == o.At {
			r.done[i] = o
		}
	}
	if j := slices.IndexFunc(r.all, func(j *judgement) bool { return j.row.Name == o.Schedule }); o.State == OccurrenceRejected && j >= 0 {
		r.all[j].row.Started--
		r.all[j].row.Streak = r.all[j].streak + 1
	}
}

// reject turns an occurrence into one without a run if it has no input.
func (r *round) reject(j *judgement, o OccurrenceRow) OccurrenceRow {
	p, ok := r.inputs[occasion{o.Schedule, o.At}]
	if !o.State.HasRun() || !ok || p.err == nil {
		return o
	}
	j.row.Started--
	j.row.Streak = j.streak + 1
	return rejected(o, "input: "+p.err.Error())
}

func rejected(o OccurrenceRow, why string) OccurrenceRow {
	o.State, o.Reason, o.Run, o.Open = OccurrenceRejected, payload.Clean(why, 1000), "", false
	return o
}

// startOccurrences inserts the runs of occurrences that are in the ledger. A run that somebody has started under the key
// of one is its run. One whose key stands for something else is rejected. What differs from the rows is given to put.
func (e *Engine) startOccurrences(ctx context.Context, tx Txn, rows []OccurrenceRow, input func(*OccurrenceRow) (prepared, *ScheduleSpec),
	put func(OccurrenceRow), begun map[VersionID]int) error {
	if len(rows) == 0 {
		return nil
	}
	runs := make([]RunRow, len(rows))
	keys := make([]KeyRow, len(rows))
	for i := range rows {
		p, spec := input(&rows[i])
		d := p.def
		runs[i] = RunRow{ID: rows[i].Run, Lineage: rows[i].Run, Workflow: d.Workflow, Version: d.Version, KeyName: d.keyName,
			Key: OccurrenceKey(rows[i].Schedule, micros(rows[i].At)), Queue: cmpOr(spec.Queue, d.Workflow), Priority: spec.Priority,
			Share: spec.Share, State: Queued, Input: p.input, InputHash: p.hash, TimeLimit: micro(spec.Deadline)}
		keys[i] = KeyRow{KeyName: runs[i].KeyName, Key: runs[i].Key, InputHash: p.hash, Lineage: rows[i].Run}
	}
	free, err := tx.ClaimKeys(ctx, keys)
	if err != nil {
		return err
	}
	var fresh []RunRow
	isFree := make(map[Key]bool, len(free))
	for _, k := range free {
		isFree[k] = true
	}
	for i := range runs {
		if isFree[runs[i].Key] {
			fresh = append(fresh, runs[i])
			begun[VersionID{runs[i].Workflow, runs[i].Version}]++
			continue
		}
		mine, err := e.adopt(ctx, tx, &runs[i], rows[i], put)
		if err != nil {
			return err
		}
		if mine {
			fresh = append(fresh, runs[i])
		}
	}
	if err := schedule(ctx, tx, fresh); err != nil {
		return err
	}
	return tx.InsertRuns(ctx, fresh)
}

// adopt is for an occurrence whose key was taken. It reports whether it is not any more.
func (e *Engine) adopt(ctx context.Context, tx Txn, run *RunRow, o OccurrenceRow, put func(OccurrenceRow)) (mine bool, err error) {
	from := o.State
	found, err := e.byKey(ctx, tx, run, false)
	switch {
	case errors.Is(err, ErrConflict):
		o = rejected(o, err.Error())
	case err != nil:
		return false, err
	case found.id == "":
		return true, nil
	default:
		there, err := tx.LockRun(ctx, found.id)
		if err != nil {
			return false, err
		}
		o.Run = there.Lineage
	}
	put(o)
	_, err = tx.MoveOccurrence(ctx, &o, from)
	return false, err
}

// after tells everybody what the transaction has done.
func (r *round) after(ctx context.Context) {
	e := r.e
	if len(r.all) > 0 {
		e.hooks.Reach(hooks.ScheduleDecided, "", r.all[0].row.Name)
	}
	for v, n := range r.begun {
		e.offer(ctx, v, n)
	}
	if len(r.cancels) > 0 { // one that was only queued has ended then
		defer e.lookAtSchedules()
	}
	for _, id := range r.cancels {
		_, err := e.Cancel(ctx, id, Act{By: "schedule", Reason: "the next instant of its schedule is due"})
		if err != nil && !errors.Is(err, ErrTerminal) && !errors.Is(err, ErrNotFound) {
			e.log.Warn("a run whose schedule is due again could not be cancelled", "run", id, "err", err)
		}
	}
	for i := range r.done {
		e.tell(&r.done[i])
	}
	for _, j := range r.all {
		if n := j.row.Streak; n >= waryStreak && n&(n-1) == 0 { // not one line an instant
			e.log.Warn("a schedule has started no run for a while", "schedule", j.row.Name, "instants", n)
		}
	}
}

// tell hands an occurrence to the program.
func (e *Engine) tell(o *OccurrenceRow) {
	if e.o.OnOccurrence != nil {
		e.o.OnOccurrence(occurrenceOf(o))
	}
}

// lookAtSchedules makes this process's workers look at schedules now.
func (e *Engine) lookAtSchedules() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.workers {
		select {
		case w.tables <- struct{}{}:
		default:
		}
	}
}

// templateOf checks the input of a schedule that is not from code, and makes its stored form.
func (e *Engine) templateOf(d *definition, s *ScheduleSpec) ([]byte, error) {
	doc := s.Input
	if len(doc) == 0 {
		doc = []byte("null")
	}
	if !json.Valid(doc) {
		return nil, errors.New("its input is no JSON")
	}
	filled, err := fill(doc, s.Name, time.Unix(0, 0).In(s.When.Location()))
	if err == nil {
		_, err = d.reencode(filled)
	}
	if err != nil {
		return nil, fmt.Errorf("its input does not fit workflow %q: %w", d.Workflow, err)
	}
	return e.seal(doc)
}
