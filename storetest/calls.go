package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
)

var callRules = []rule{
	{"calls", "calls are found by the run that made them and by the run that is called; a step has one", testCalls},
	{"move", "MoveCalls leaves nobody waiting for the run, and changes no other call", testMoveCalls},
	{"end", "Write does not end a run that is called: somebody has to be told", testCalledEnd},
	{"times", "Write and InsertRuns put no start before its time, and count the deadline from the start", testStartTimes},
	{"kept", "a run stays as long as one that has called it", testCalledKept},
}

func testCalls(t *testing.T, f *fixture) {
	f.broken = true // calls without steps
	runs := f.runs(4)
	calls := []pawl.CallRow{{Run: runs[0].ID, Step: "a", Child: runs[3].ID, Started: true}, {Run: runs[0].ID, Step: "b", Child: runs[2].ID, Detached: true},
		{Run: runs[1].ID, Step: "a", Child: runs[3].ID}}
	for _, c := range []int{2, 1, 0} {
		f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.AddCall(ctx, calls[c]) })
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		made, err := tx.Calls(ctx, runs[0].ID)
		if diff := cmp.Diff(made, calls[:2]); diff != "" {
			t.Errorf("calls of the run (-got +want):\n%s", diff)
		}
		callers, err2 := tx.Callers(ctx, runs[3].ID)
		if diff := cmp.Diff(callers, []pawl.CallRow{calls[0], calls[2]}); diff != "" {
			t.Errorf("callers of the run (-got +want):\n%s", diff)
		}
		none, err3 := tx.Callers(ctx, runs[0].ID)
		if len(none) != 0 {
			t.Errorf("callers of a run that nobody calls: %+v", none)
		}
		return errors.Join(err, err2, err3)
	})
	if err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.AddCall(ctx, calls[0]) }); err == nil {
		t.Error("a second call of the step gave no error")
	}
}

func testMoveCalls(t *testing.T, f *fixture) {
	f.broken = true // calls without steps
	runs := f.runs(4)
	calls := []pawl.CallRow{{Run: runs[0].ID, Step: "a", Child: runs[2].ID, Started: true}, {Run: runs[1].ID, Step: "a", Child: runs[2].ID, Detached: true},
		{Run: runs[1].ID, Step: "b", Child: runs[0].ID}}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		for i := range calls {
			if err := tx.AddCall(ctx, calls[i]); err != nil {
				return err
			}
		}
		return tx.MoveCalls(ctx, runs[2].ID, runs[3].ID)
	})
	calls[0].Child, calls[1].Child = runs[3].ID, runs[3].ID
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		old, err := tx.Callers(ctx, runs[2].ID)
		if len(old) != 0 {
			t.Errorf("callers of the old run: %+v", old)
		}
		moved, err2 := tx.Callers(ctx, runs[3].ID)
		if diff := cmp.Diff(moved, calls[:2]); diff != "" {
			t.Errorf("callers of the new run (-got +want):\n%s", diff)
		}
		other, err3 := tx.Callers(ctx, runs[0].ID)
		if diff := cmp.Diff(other, calls[2:]); diff != "" {
			t.Errorf("callers of another run (-got +want):\n%s", diff)
		}
		return errors.Join(err, err2, err3)
	})
}

func testCalledEnd(t *testing.T, f *fixture) {
	runs := f.claimed(2)
	f.ok(f.change(runs[1].ID, func(r *pawl.RunRow) { r.Called = true }))
	bad := held(runs[1])
	bad.End = &pawl.RunEnd{State: pawl.Succeeded, Row: &runs[1]}
	f.refused("a called run ends", runs[0], bad)
}

func testStartTimes(t *testing.T, f *fixture) {
	now := f.now()
	hour := time.Hour.Microseconds()
	past, future := newRun(), newRun()
	past.Due, past.TimeLimit = now-hour, hour
	future.Due, future.TimeLimit = now+hour, hour
	_, err := f.s.Write(f.ctx(), []pawl.Change{{Start: &past}, {Start: &future}})
	f.ok(err)
	if got := f.row(past.ID); got.Due < now || got.Deadline != got.Due+hour || got.TimeLimit != hour {
		t.Errorf("due %d, deadline %d: want both from now, %d, on", got.Due, got.Deadline, now)
	}
	if got := f.row(future.ID); got.Due != now+hour || got.Deadline != now+2*hour {
		t.Errorf("due %d, deadline %d: want one and two hours after %d", got.Due, got.Deadline, now)
	}
	if got := f.claim(f.worker(time.Minute, v1), 10); ids(got) != string(past.ID) {
		t.Errorf("claimed %s, want only the one that is due", ids(got))
	}
}

func testCalledKept(t *testing.T, f *fixture) {
	f.broken = true // a call without a step
	child := f.finished(1)[0]
	f.advance(terms.Runs + time.Hour)
	caller := f.finished(1)[0]
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		return tx.AddCall(ctx, pawl.CallRow{Run: caller.ID, Step: "a", Child: child.ID})
	})
	f.pruneAll()
	if !f.there(child.ID) {
		t.Error("the run that is called is deleted before the one that has called it")
	}
	f.advance(terms.Runs + time.Hour)
	f.pruneAll()
	if f.there(child.ID) || f.there(caller.ID) {
		t.Error("both are old enough, and one is there")
	}
	if n := f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_calls`); n != "0" {
		t.Errorf("%s calls of runs that are deleted", n)
	}
}
