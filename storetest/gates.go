package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var gateRules = []rule{
	{"fields", "every field of a gate comes back", testGateFields},
	{"live", "a run has one live gate for a step, and one of each generation", testGateLive},
	{"moves", "a gate moves only from the rev it was read at, and only as the table allows", testGateMoves},
	{"lookups", "gates are found by id, run, step and lineage", testGateLookups},
	{"check", "Check finds gates that do not fit their steps and entries", testGateCheck},
}

// newGate is a pending gate that is not in the store yet.
func newGate(run pawl.RunRow, step string, generation int) *pawl.GateRow {
	return &pawl.GateRow{Run: run.ID, Lineage: run.Lineage, Step: step, Generation: generation, Version: "1", Action: "pay",
		Payload: []byte(`{}`), Hash: []byte{1}, Same: []byte{2}, State: pawl.GatePending}
}

// gate inserts a gate, with the step that waits for it and the inbox entry if it is pending.
func (f *fixture) gate(g *pawl.GateRow) *pawl.GateRow {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		if err := tx.InsertGate(ctx, g); err != nil || g.State != pawl.GatePending {
			return err
		}
		row, err := tx.Step(ctx, g.Run, g.Step)
		if err == nil && row == nil {
			row = &pawl.StepRow{Run: g.Run, Name: g.Step, Kind: fault.KindGate, State: pawl.StepWaiting, Attempt: 1}
			err = tx.InsertStep(ctx, row)
		}
		return errors.Join(err, tx.OpenEntry(ctx, &pawl.EntryRow{ID: g.ID, Run: g.Run, Step: g.Step, Kind: pawl.AskGate, Attempt: g.Generation}))
	})
	return g
}

// moveGate moves a gate, closes its entry, and reports whether it moved.
func (f *fixture) moveGate(g *pawl.GateRow, to pawl.GateState) (ok bool) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
		moved := *g
		moved.State = to
		if ok, err = tx.MoveGate(ctx, &moved); err != nil || !ok {
			return err
		}
		*g = moved
		if _, err := tx.CloseEntry(ctx, &pawl.EntryRow{ID: g.ID, Choice: pawl.AnswerEdit}); err != nil || to == pawl.GateSuperseded {
			return err
		}
		row, err := tx.Step(ctx, g.Run, g.Step)
		if err != nil || row == nil || row.State != pawl.StepWaiting {
			return err
		}
		row.State = pawl.StepSucceeded
		_, err = tx.MoveStep(ctx, row, row.Attempt)
		return err
	})
	return ok
}

func (f *fixture) readGate(id pawl.EntryID) (g *pawl.GateRow) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		g, err = tx.Gate(ctx, id)
		return err
	})
	return g
}

func testGateFields(t *testing.T, f *fixture) {
	run, w := f.running(time.Minute)
	want := newGate(run, "a", 3)
	want.Supersedes, want.Kind, want.Key, want.Form = pawl.EntryID(newRunID()), fault.KindOnce, "key", oddBytes
	want.Expires, want.GrantTTL, want.Deciders, want.TwoPersons = pawl.AtWrite+1000, 7, []string{"ann", "ü, \"x\""}, true
	want.Requester, want.EditedBy, want.Payload = "bob", "eve", oddBytes
	f.gate(want)
	if want.ID == "" || want.Rev != 1 || want.Requested == 0 || want.Expires != want.Requested+1000 {
		t.Errorf("the new gate has id %q, rev %d, requested %d, expires %d", want.ID, want.Rev, want.Requested, want.Expires)
	}
	if diff := cmp.Diff(f.readGate(want.ID), want); diff != "" {
		t.Errorf("gate (-got +want):\n%s", diff)
	}
	want.By, want.Via, want.Why, want.Decided, want.DecisionKey, want.GrantExpires = "ann", "cli", "why", 11, "card", 12
	f.moveGate(want, pawl.GateApproved)
	f.insert(newStep(run.ID, "b"))
	want.ClaimedBy, want.Claimed, want.Ref = w.ID, 13, "b"
	f.moveGate(want, pawl.GateClaimed)
	if diff := cmp.Diff(f.readGate(want.ID), want); diff != "" || want.Rev != 3 {
		t.Errorf("claimed gate (-got +want):\n%s", diff)
	}
	plain := f.gate(newGate(run, "c", 1))
	if diff := cmp.Diff(f.readGate(plain.ID), plain); diff != "" {
		t.Errorf("plain gate (-got +want):\n%s", diff)
	}
}

func testGateLive(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	first := f.gate(newGate(run, "a", 1))
	insert := func(g *pawl.GateRow) error {
		return f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertGate(ctx, g) })
	}
	if err := insert(newGate(run, "a", 2)); err == nil {
		t.Error("a step got a second live gate")
	}
	f.moveGate(first, pawl.GateSuperseded)
	if err := insert(newGate(run, "a", 1)); err == nil {
		t.Error("a step got two gates of one generation")
	}
	f.gate(newGate(run, "a", 2))
	f.gate(newGate(run, "b", 1))
}

func testGateMoves(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	f.insert(newStep(run.ID, "x"))
	for _, from := range pawl.GateStates() {
		for _, to := range pawl.GateStates() {
			g := newGate(run, string(from)+">"+string(to), 1)
			g.State, g.Ref = from, "x"
			f.gate(g)
			g.Ref = "x"
			stale := *g
			if got := f.moveGate(g, to); got != from.CanBecome(to) {
				t.Errorf("from %s to %s: moved %v, the table says %v", from, to, got, !got)
			}
			if f.moveGate(&stale, to) && from.CanBecome(to) {
				t.Errorf("from %s to %s: moved twice from one rev", from, to)
			}
		}
	}
	f.broken = true // claimed gates were inserted without a step of their own
}

func testGateLookups(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	one := f.gate(newGate(run, "a", 1))
	f.moveGate(one, pawl.GateSuperseded)
	f.advance(time.Second)
	two := f.gate(newGate(run, "a", 2))
	other, _ := f.running(time.Minute)
	f.gate(newGate(other, "a", 7))
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		gates, err := tx.Gates(ctx, run.ID)
		var ids []pawl.EntryID
		for _, g := range gates {
			ids = append(ids, g.ID)
			if g.Payload != nil || g.Form != nil {
				t.Error("a list of gates has payloads")
			}
		}
		if want := []pawl.EntryID{one.ID, two.ID}; !slices.Equal(ids, want) {
			t.Errorf("the run's gates are %v, want %v", ids, want)
		}
		live, err2 := tx.LiveGate(ctx, run.ID, "a")
		last, err3 := tx.LastGate(ctx, run.Lineage, "a")
		if live == nil || last == nil || live.ID != two.ID || last.ID != two.ID {
			t.Errorf("live %+v, last %+v, want %s", live, last, two.ID)
		}
		none, err4 := tx.LiveGate(ctx, run.ID, "b")
		never, err5 := tx.LastGate(ctx, run.Lineage, "b")
		if none != nil || never != nil {
			t.Error("a step without gates has one")
		}
		for _, id := range []pawl.EntryID{pawl.EntryID(newRunID()), "", "nonsense"} {
			if _, err := tx.Gate(ctx, id); !errors.Is(err, pawl.ErrNotFound) {
				t.Errorf("Gate(%q) = %v, want ErrNotFound", id, err)
			}
		}
		return errors.Join(err, err2, err3, err4, err5)
	})
}

func testGateCheck(t *testing.T, f *fixture) {
	f.broken = true
	alone, _ := f.running(time.Minute)
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertGate(ctx, newGate(alone, "a", 1)) })
	unasked, _ := f.running(time.Minute)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		return tx.InsertStep(ctx, &pawl.StepRow{Run: unasked.ID, Name: "a", Kind: fault.KindGate, State: pawl.StepWaiting, Attempt: 1})
	})
	ended, _ := f.running(time.Minute)
	approved := newGate(ended, "a", 1)
	approved.State = pawl.GateApproved
	f.gate(approved)
	f.ok(f.change(ended.ID, func(r *pawl.RunRow) { r.State = pawl.Succeeded }))
	unused, _ := f.running(time.Minute)
	claimed := newGate(unused, "a", 1)
	claimed.State = pawl.GateClaimed
	f.gate(claimed)
	for what, run := range map[string]pawl.RunID{"a gate without a question": alone.ID, "a wait without a gate": unasked.ID,
		"an open gate of a finished run": ended.ID, "a used gate without its step": unused.ID} {
		if n := f.found("error", "gate", run); n != 1 {
			t.Errorf("%s: %d findings, want 1", what, n)
		}
	}
}
