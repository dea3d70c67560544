package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

var checkRules = []rule{
	{"clean", "Check finds no error where all is well", testCheckClean},
	{"broken", "Check finds rows that break an invariant, and says which", testCheckBroken},
	{"stuck", "Check warns of runs that nobody takes", testCheckStuck},
}

func testCheckClean(t *testing.T, f *fixture) {
	for _, state := range pawl.RunStates() {
		f.inState(state)
	}
	run, _ := f.running(time.Minute)
	f.insert(newStep(run.ID, "a"))
}

// errorsFound counts the errors of a rule that name the run.
func (f *fixture) found(level, rule string, run pawl.RunID) (n int) {
	f.t.Helper()
	all, err := f.s.Check(f.ctx())
	f.ok(err)
	for _, x := range all {
		if x.Level == level && x.Rule == rule && x.Run == run {
			n++
			if x.Text == "" || x.Advice == "" {
				f.t.Errorf("finding without text or advice: %+v", x)
			}
		}
	}
	return n
}

func testCheckBroken(t *testing.T, f *fixture) {
	f.broken = true
	var open, orphan, blocked, keyless pawl.RunID

	row, _ := f.running(time.Minute)
	open = row.ID
	step := newStep(open, "a")
	step.State = pawl.StepUncertain
	f.insert(step)
	f.ok(f.change(open, func(r *pawl.RunRow) { r.State = pawl.Succeeded }))

	row, w := f.running(time.Minute)
	orphan = row.ID
	f.exec(`DELETE FROM pawl_workers WHERE id = $1`, string(w.ID))

	blocked = f.runs(1)[0].ID
	f.ok(f.change(blocked, func(r *pawl.RunRow) { r.State = pawl.Blocked }))

	keyless = newRunID()
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		_, _, err := tx.ClaimKey(ctx, pawl.KeyRow{KeyName: "refund", Key: "k", Lineage: keyless})
		return err
	})
	twice := f.runs(1)[0].ID
	for range 2 {
		next := newRun()
		next.Continues = twice
		f.insertRun(next)
	}
	unfinished := f.runs(1)[0].ID
	f.ok(f.change(unfinished, func(r *pawl.RunRow) { r.Successor = newRunID() }))
	asleep := f.inState(pawl.Waiting)
	f.ok(f.change(asleep, func(r *pawl.RunRow) { r.Due = 0 }))

	for _, c := range []struct {
		what, rule string
		run        pawl.RunID
	}{
		{"a terminal run with an uncertain step", "I1", open},
		{"a run whose owner has no row", "I3", orphan},
		{"a blocked run without an inbox entry", "I3", blocked},
		{"a key of a run that is not there", "I3", keyless},
		{"a waiting run that nothing wakes", "I3", asleep},
		{"a run with two successors", "I3", twice},
		{"a successor of a run that has not ended", "I3", unfinished},
	} {
		if n := f.found("error", c.rule, c.run); n != 1 {
			t.Errorf("%s: %d findings, want 1", c.what, n)
		}
	}
}

func testCheckStuck(t *testing.T, f *fixture) {
	due := f.runs(1)[0].ID
	if n := f.found("warn", "stuck", due); n != 0 {
		t.Errorf("a run that has just become due: %d findings, want 0", n)
	}
	blocked := f.inState(pawl.Blocked)
	f.advance(time.Hour)
	for _, id := range []pawl.RunID{due, blocked} {
		if n := f.found("warn", "stuck", id); n != 1 {
			t.Errorf("after an hour %d findings, want 1", n)
		}
	}
	run, _ := f.running(time.Second)
	f.advance(time.Hour)
	if n := f.found("warn", "stuck", run.ID); n != 1 {
		t.Errorf("a run of a worker gone for an hour: %d findings, want 1", n)
	}
}
