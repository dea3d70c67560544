//go:build unix

package torture_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// tally is one line of the table.
type tally struct {
	intended  int // operations that a journal has
	performed int // effects that happened and were not absorbed
	requests  int // effects and what was absorbed
	doubled   int // effects beyond the first, of operations that must have one
	repeated  int // … of Repeatable operations, not counting those after an answer that was thrown away
	lost      int // operations that succeeded without an effect
	asked     int // answers that a person gave
}

// journalled is what the journals of a lineage's runs say of an operation.
type journalled struct {
	run   pawl.RunID // the newest that has it
	done  bool       // it succeeded
	value string
	state pawl.StepState
}

// row is what a transaction wrote.
type row struct{ input, ref string }

// place is where in a lineage's job a step stands. A job has one verb there, but a path shows it only together with it.
type place struct {
	lineage pawl.RunID
	i       int
}

// tidings is an event that a lineage was given.
type tidings struct {
	lineage pawl.RunID
	value   string
}

// audit compares all journals with all that the world has seen.
type audit struct {
	*rig
	runs    []*pawl.RunDetail // oldest first
	journal map[op]*journalled
	order   []op // keys of journal
	rows    map[op][]row
	results map[place]string // of the journals
	passed  map[place]bool   // a wait without a result stands there
	waits   map[string]int   // rows, by kind
	begun   map[pawl.RunID][]time.Time

	batches    []batchOf
	gateStates map[pawl.GateState]int
	pauses     []pause
	claimed    map[string]int     // claims, by queue
	used, most map[string]int     // at most: slots at once, begun in a second
	again      int                // items of batches that another worker has run again
	atOnce     int                // runs of the narrow queue that the world has seen at once
	limited    int                // runs with a deadline …
	missed     int                // … that have missed it
	orphaned   int                // children of callers that were cancelled
	taken      map[tidings]string // the step that was given an event
	repeats    map[pawl.RunID]int
	claims     map[pawl.RunID]int
	lines      map[string]*tally
}

// inspect checks every requirement once nothing works any more.
func (r *rig) inspect(t *testing.T, s *staff, p *person, o *ops) *audit {
	t.Helper()
	a := &audit{rig: r, journal: map[op]*journalled{}, rows: map[op][]row{}, results: map[place]string{}, passed: map[place]bool{}, waits: map[string]int{}, begun: map[pawl.RunID][]time.Time{}, gateStates: map[pawl.GateState]int{}, pauses: o.pauses,
		claimed: map[string]int{}, used: map[string]int{}, most: map[string]int{}, taken: map[tidings]string{},
		repeats: map[pawl.RunID]int{}, claims: map[pawl.RunID]int{}, lines: map[string]*tally{}}
	for _, kind := range kinds {
		a.lines[kind] = &tally{asked: p.asked[kind]}
	}
	if err := a.read(t.Context()); err != nil {
		t.Error(err)
		return a
	}
	found, err := r.store.Check(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		if f.Level == "error" {
			r.violate(f.Run, "invariant %s is broken: %s", f.Rule, f.Text)
		}
	}
	for _, d := range a.runs {
		if was, ok := s.past[d.ID]; ok && was != fingerprint(d) {
			r.violate(d.ID, "a finished run has changed\nfrom %s\nto   %s", was, fingerprint(d))
		}
		if !d.State.Terminal() {
			r.violate(d.ID, "the run is stranded: %s", d.State)
		}
	}
	for _, o := range a.order {
		a.operation(o, a.journal[o])
	}
	a.orphans()
	a.attempts()
	if err := a.epochs(t.Context()); err != nil {
		t.Error(err)
	}
	a.keys()
	for _, err := range []error{a.gates(t.Context(), p), a.queues(t.Context()), a.items(t.Context())} {
		if err != nil {
			t.Error(err)
		}
	}
	a.families()
	for _, d := range a.runs {
		if n := a.repeats[d.ID]; n >= max(1, a.claims[d.ID]) {
			r.violate(d.ID, "repeatable effects were repeated %d times, and workers began the run only %d times", n, a.claims[d.ID])
		}
	}
	return a
}

// read collects journals and rows.
func (a *audit) read(ctx context.Context) error {
	infos, err := a.list(ctx, nil)
	if err != nil {
		return err
	}
	for i := len(infos) - 1; i >= 0; i-- {
		d, err := a.control.Show(ctx, infos[i].ID)
		if err != nil {
			return err
		}
		a.runs = append(a.runs, d)
		for k := range d.Steps {
			a.enter(d, &d.Steps[k])
		}
	}
	claims, err := os.ReadFile(filepath.Join(a.dir, "claims.log"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(claims)) {
		var id pawl.RunID
		var at int64
		if _, err := fmt.Sscan(line, &id, &at); err == nil { // but for one whose writer was killed
			a.claims[id]++
			a.begun[id] = append(a.begun[id], time.Unix(0, at))
		}
	}
	for _, db := range []*sql.DB{a.own(), a.other} {
		if err := a.readRows(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

func (a *audit) readRows(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, `SELECT lineage, step, input, ref FROM torture_rows`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var o op
		var r row
		if err := rows.Scan(&o.Lineage, &o.Step, &r.input, &r.ref); err != nil {
			return err
		}
		a.rows[o] = append(a.rows[o], r)
	}
	return rows.Err()
}

// enter adds a journal row. Later runs of a lineage come later.
func (a *audit) enter(d *pawl.RunDetail, st *pawl.StepDetail) {
	if st.Kind == fault.KindBatch {
		a.waits[st.Kind.String()]++
		a.passed[place{d.Lineage, index(st.Name)}] = true
		a.batches = append(a.batches, batchOf{d, st.Name})
		return
	}
	if st.Kind.Waits() {
		a.waited(d, st)
		return
	}
	o := op{d.Lineage, st.Name}
	j := a.journal[o]
	if j == nil {
		j = &journalled{}
		a.journal[o] = j
		a.order = append(a.order, o)
	}
	j.run, j.state = d.ID, st.State
	if st.State != pawl.StepSucceeded {
		if j.done {
			a.violate(d.ID, "step %q has succeeded in an earlier run of the lineage and is %s now", st.Name, st.State)
		}
		return
	}
	var value string
	if err := json.Unmarshal(st.Value, &value); err != nil {
		a.violate(d.ID, "the value of step %q does not decode: %v", st.Name, err)
	}
	if j.done && j.value != value {
		a.violate(d.ID, "step %q had the value %q in an earlier run of the lineage and has %q now", st.Name, j.value, value)
	}
	j.done, j.value = true, value
	if !strings.Contains(st.Name, "/"+wayB+"/") && !isGated(verbOf(st.Name)) {
		a.results[place{d.Lineage, index(st.Name)}] = value
	}
}

// waited notes what the next step has to be called with after a wait: a child's result, else what came before.
func (a *audit) waited(d *pawl.RunDetail, st *pawl.StepDetail) {
	a.waits[st.Kind.String()]++
	if st.Kind == fault.KindEvent && st.State == pawl.StepSucceeded {
		at := tidings{d.Lineage, string(st.Value)}
		if other, ok := a.taken[at]; ok && other != st.Name {
			a.violate(d.ID, "event %s was given to step %q and to step %q", st.Value, other, st.Name)
		}
		a.taken[at] = st.Name
	}
	at := place{d.Lineage, index(st.Name)}
	if st.State != pawl.StepSucceeded || st.Kind != fault.KindChild {
		a.passed[at] = a.passed[at] || !isChild(verbOf(st.Name)) && !strings.Contains(st.Name, "/"+wayB+"/")
		return
	}
	var value string
	if err := json.Unmarshal(st.Value, &value); err != nil {
		a.violate(d.ID, "the value of step %q does not decode: %v", st.Name, err)
	}
	if was, ok := a.results[at]; ok && was != value {
		a.violate(d.ID, "step %q had the value %q in an earlier run of the lineage and has %q now", st.Name, was, value)
	}
	a.results[at] = value
}

// before is the result that the step at a place is called with.
func (a *audit) before(at place) string {
	for at.i--; a.passed[at]; at.i-- {
	}
	return a.results[at]
}

// index is the number that Item gave to a step's path; -1 if it has none.
func index(step string) int {
	number, _, _ := strings.Cut(step, "/")
	i, err := strconv.Atoi(number)
	if err != nil {
		return -1 // unreachable unless paths are not what Item makes
	}
	return i
}

// operation checks what became of one operation.
func (a *audit) operation(o op, j *journalled) {
	kind := kindOf(o.Step)
	line := a.lines[kind]
	line.intended++
	var refs, inputs []string
	fresh := 0
	for _, e := range a.effects.of(o) {
		refs, inputs = append(refs, e.Ref), append(inputs, e.Input)
		if e.Fresh {
			fresh++
		}
	}
	for _, r := range a.rows[o] {
		fresh++
		refs, inputs = append(refs, r.ref), append(inputs, r.input)
	}
	line.requests += len(refs)
	line.performed += fresh
	switch {
	case fresh > 1 && kind == "Repeatable":
		line.repeated += a.repeated(o)
	case fresh > 1:
		line.doubled += fresh - 1
		a.violate(j.run, "%s step %q of lineage %s happened %d times", kind, o.Step, o.Lineage, fresh)
	case fresh == 0 && j.done:
		line.lost++
		a.violate(j.run, "%s step %q succeeded, and nothing happened", kind, o.Step)
	case fresh > 0 && !j.done && j.state != pawl.StepGivenUp && kind != "Repeatable" && kind != "Keyed":
		a.violate(j.run, "%s step %q is %s, and its effect happened", kind, o.Step, j.state)
	}
	if j.done && fresh > 0 && !slices.Contains(refs, j.value) {
		a.violate(j.run, "step %q has the value %q, the world said %q", o.Step, j.value, refs)
	}
	a.chain(o, j, inputs)
}

// repeated counts the effects of a Repeatable operation beyond the first of a run and those that follow an answer that was
// thrown away, and charges them to the run: each needs a worker that began the run anew, and each of those repeats one
// step at most.
func (a *audit) repeated(o op) (n int) {
	byRun := map[pawl.RunID]int{}
	for _, e := range a.effects.of(o) {
		if !e.Lost {
			byRun[e.Run]++
		}
	}
	for run, answered := range byRun {
		again := max(0, answered-1)
		a.repeats[run] += again
		n += again
	}
	return n
}

// chain: what a step was called with is what the journal has of the step before, for good.
func (a *audit) chain(o op, j *journalled, inputs []string) {
	if isGated(verbOf(o.Step)) {
		return // it was called with what was approved, see permitted
	}
	want := a.before(place{o.Lineage, index(o.Step)})
	for _, in := range inputs {
		if in != want {
			a.violate(j.run, "step %q was called with %q, and the step before has the result %q", o.Step, in, want)
		}
	}
}

// orphans are effects that no journal knows of. Only a plain Repeatable may have one: it has no intent.
func (a *audit) orphans() {
	for _, o := range a.effects.ops() {
		if v := verbOf(o.Step); a.journal[o] == nil && !isItem(o.Step) && (kindOf(o.Step) != "Repeatable" || v == "paid") {
			a.violate(o.Lineage, "step %q had an effect, and has no journal row", o.Step)
		}
	}
	for o := range a.rows {
		if a.journal[o] == nil {
			a.violate(o.Lineage, "step %q wrote a row, and has no journal row", o.Step)
		}
	}
}

// attempts: an attempt that has an intent is one call at most, of the worker whose intent it was. What a journal has as a
// paid step's result is what its own attempt was told, not what a former holder of the run was told.
func (a *audit) attempts() {
	type call struct {
		run     pawl.RunID
		step    string
		attempt int
	}
	calls, refs := map[call]int{}, map[call]string{}
	for _, o := range a.effects.ops() {
		if kindOf(o.Step) == "Repeatable" && verbOf(o.Step) != "paid" {
			continue // it has no intent, so that an attempt's number is used again
		}
		for _, e := range a.effects.of(o) {
			c := call{e.Run, o.Step, e.Attempt}
			if calls[c]++; calls[c] == 2 {
				a.violate(e.Run, "attempt %d of step %q was made twice", e.Attempt, o.Step)
			}
			if refs[c] = e.Ref; isItem(o.Step) { // its journal is not shown
				delete(calls, c)
			}
		}
	}
	for _, d := range a.runs {
		for i := range d.Steps {
			st := &d.Steps[i]
			for n := range st.Attempt {
				delete(calls, call{d.ID, st.Name, n + 1})
			}
			ref, called := refs[call{d.ID, st.Name, st.Attempt}]
			if value := fmt.Sprintf("%q", ref); st.State == pawl.StepSucceeded && called && verbOf(st.Name) == "paid" && value != string(st.Value) {
				a.violate(d.ID, "attempt %d of step %q was told %s, and the journal has %s", st.Attempt, st.Name, value, st.Value)
			}
		}
	}
	for c := range calls {
		a.violate(c.run, "attempt %d of step %q was made, and the journal has not so many", c.attempt, c.step)
	}
}

// epochs: each claim of a run, and each release, has an epoch of its own, so there are no fewer than claims.
func (a *audit) epochs(ctx context.Context) error {
	rows, err := a.own().QueryContext(ctx, `SELECT id, epoch FROM pawl_runs`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id pawl.RunID
		var epoch int
		if err := rows.Scan(&id, &epoch); err != nil {
			return err
		}
		if a.claims[id] > epoch {
			a.violate(id, "the run was claimed %d times, and its epoch is %d", a.claims[id], epoch)
		}
	}
	return rows.Err()
}

// keys: an operation has one key in all its runs and attempts, and shares it with no other.
func (a *audit) keys() {
	of, owner := map[op]pawl.OpKey{}, map[pawl.OpKey]op{}
	for _, o := range a.effects.ops() {
		for _, e := range a.effects.of(o) {
			if e.Key == "" {
				continue
			}
			if k, ok := of[o]; ok && k != e.Key {
				a.violate(e.Run, "step %q was sent under the keys %s and %s", o.Step, k, e.Key)
			}
			if p, ok := owner[e.Key]; ok && p != o {
				a.violate(e.Run, "step %q and step %q of lineage %s share the key %s", o.Step, p.Step, p.Lineage, e.Key)
			}
			of[o], owner[e.Key] = e.Key, o
		}
	}
}

// losses is how often a run was taken over from a worker that was lost.
func (a *audit) losses() (n int) {
	for _, d := range a.runs {
		n += d.Lost
	}
	return n
}

// table is what docs/torture.md shows.
func (a *audit) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s %-13s %9s %10s %9s %8s %9s %5s %6s\n", "store", "kind", "intended", "performed", "requests", "doubled", "repeated", "lost", "asked")
	for _, kind := range kinds {
		l := a.lines[kind]
		fmt.Fprintf(&b, "%-9s %-13s %9d %10d %9d %8d %9d %5d %6d\n", a.kind, kind, l.intended, l.performed, l.requests, l.doubled, l.repeated, l.lost, l.asked)
	}
	g := &a.ledger
	states := map[pawl.RunState]int{}
	for _, d := range a.runs {
		states[d.State]++
	}
	fmt.Fprintf(&b, "%s: %d kills, %d of them at a point of the protocol; %d freezes, %d at a point; %d workers ended without a database\n",
		a.kind, g.kills.Load()+g.suicides.Load(), g.suicides.Load(), g.stops.Load()+g.selfStops.Load(), g.selfStops.Load(), g.exits.Load())
	if a.kind == "postgres" {
		fmt.Fprintf(&b, "%s: %d cuts of all connections, %d at a COMMIT, %d at a claim's; %d COMMITs held back, %d claims', %d of them for long; %d black holes, %d delays\n",
			a.kind, g.cuts.Load(), g.cutCommits.Load(), g.claimsLost.Load(), g.holds.Load(), g.claimsHeld.Load(), g.oldCommits.Load(), g.holes.Load(), g.delays.Load())
	}
	b.WriteString(g.report(a.kind, a.parts))
	fmt.Fprintf(&b, "%s: %d runs (%d succeeded, %d failed, %d cancelled) were taken over %d times; %d starts under a used key, %d refused; %d cancels; %d retries by hand, %d lost to another\n",
		a.kind, len(a.runs), states[pawl.Succeeded], states[pawl.Failed], states[pawl.Cancelled], a.losses(),
		g.reused.Load(), g.refused.Load(), g.cancels.Load(), g.retries.Load(), g.retryLosers.Load())
	fmt.Fprintf(&b, "%s: %d timers, %d events awaited (%d sent), %d children, %d batches (%d items run again)\n",
		a.kind, a.waits["timer"], a.waits["event"], g.sent.Load(), a.waits["child"], a.waits["batch"], a.again)
	b.WriteString(a.gateLine())
	b.WriteString(a.queueLine())
	fmt.Fprintf(&b, "%s: %d answers (%d gave up, %d about crash loops, %d about what may have happened twice), %d too early, %d too late; %d looks at finished runs\n",
		a.kind, g.answers.Load(), g.gaveUp.Load(), g.loops.Load(), g.twice.Load(), g.tooEarly.Load(), g.answerLosers.Load(), g.samples.Load())
	return b.String()
}

// explain prints what is known about the runs that broke a requirement.
func (a *audit) explain(t *testing.T) {
	t.Helper()
	shown := map[pawl.RunID]bool{}
	for i, v := range a.broken {
		if i >= 20 {
			t.Errorf("and %d more", len(a.broken)-i)
			break
		}
		t.Errorf("%s: run %s: %s", a.kind, v.run, v.text)
		if v.run == "" || shown[v.run] || len(shown) >= 5 {
			continue
		}
		shown[v.run] = true
		d, err := a.control.Show(t.Context(), v.run)
		if err != nil {
			t.Log(err)
			continue
		}
		raw, _ := json.MarshalIndent(d, "", " ")
		t.Logf("journal:\n%s", raw)
		for _, o := range a.effects.ops() {
			for _, e := range a.effects.of(o) {
				if o.Lineage == d.Lineage {
					t.Logf("effect: %+v", e)
				}
			}
		}
	}
}
