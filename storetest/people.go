package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var peopleRules = []rule{
	{"entry_once", "one entry of a kind is open for a run and step; a second OpenEntry finds it", testEntryOnce},
	{"entry_kinds", "every kind of entry can be stored", testEntryKinds},
	{"entry_close", "an entry is answered once; the loser is told", testEntryClose},
	{"entry_fields", "every field of an entry comes back, whatever people wrote", testEntryFields},
	{"evidence", "evidence is kept in order, with run, step and attempt, also after the run's end", testEvidence},
	{"audit", "acts of people are kept in order", testAudit},
}

func testEntryOnce(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	open := func(step string, kind pawl.EntryKind, attempt int) *pawl.EntryRow {
		e := &pawl.EntryRow{Run: run.ID, Step: step, Kind: kind, Attempt: attempt}
		f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.OpenEntry(ctx, e) })
		return e
	}
	first := open("a", pawl.AskUncertain, 1)
	if first.ID == "" || first.Opened == 0 {
		t.Errorf("the new entry has id %q, opened %d", first.ID, first.Opened)
	}
	if again := open("a", pawl.AskUncertain, 2); again.ID != first.ID || again.Opened != first.Opened {
		t.Errorf("a second OpenEntry made %s, want to find %s", again.ID, first.ID)
	}
	for _, other := range []*pawl.EntryRow{open("b", pawl.AskUncertain, 1), open("a", pawl.AskTwice, 1), open("", pawl.AskUncertain, 0)} {
		if other.ID == first.ID {
			t.Errorf("an entry of kind %s for step %q found that of another", other.Kind, other.Step)
		}
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		_, err := tx.CloseEntry(ctx, &pawl.EntryRow{ID: first.ID, Choice: pawl.AnswerHappened, By: "me"})
		return err
	})
	if next := open("a", pawl.AskUncertain, 2); next.ID == first.ID {
		t.Error("after the answer OpenEntry found the closed entry")
	}
}

func testEntryKinds(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	for _, kind := range pawl.EntryKinds() {
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			return tx.OpenEntry(ctx, &pawl.EntryRow{Run: run.ID, Kind: kind})
		})
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		all, err := tx.Entries(ctx, run.ID, true)
		var got []pawl.EntryKind
		for _, e := range all {
			got = append(got, e.Kind)
		}
		if !slices.Equal(got, pawl.EntryKinds()) {
			t.Errorf("open entries %v, want %v, oldest first", got, pawl.EntryKinds())
		}
		return err
	})
}

func testEntryClose(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	e := &pawl.EntryRow{Run: run.ID, Kind: pawl.AskLimit}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.OpenEntry(ctx, e) })
	var got []bool
	for _, by := range []string{"first", "second"} {
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			ok, err := tx.CloseEntry(ctx, &pawl.EntryRow{ID: e.ID, Choice: pawl.AnswerResume, By: by})
			got = append(got, ok)
			return err
		})
	}
	if !slices.Equal(got, []bool{true, false}) {
		t.Errorf("closing twice gave %v, want true, false", got)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		stored, err := tx.Entry(ctx, e.ID)
		if err == nil && (stored.By != "first" || stored.Closed == 0) {
			t.Errorf("closed at %d by %q, want the first answer", stored.Closed, stored.By)
		}
		open, err2 := tx.Entries(ctx, run.ID, true)
		if len(open) != 0 {
			t.Errorf("%d entries are open, want none", len(open))
		}
		return errors.Join(err, err2)
	})
}

func testEntryFields(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	want := pawl.EntryRow{Run: run.ID, Step: "a", Kind: pawl.AskRenamed, Attempt: 3, Other: "b", Detail: "what\nhappened"}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		if err := tx.OpenEntry(ctx, &want); err != nil {
			return err
		}
		want.Choice, want.By, want.Why, want.Result = pawl.AnswerTakeResult, "ü", "why", oddBytes
		_, err := tx.CloseEntry(ctx, &want)
		return err
	})
	nasty := pawl.EntryRow{Run: run.ID, Kind: pawl.AskLimit, Detail: strings.Repeat("\x00\xff", 10000)}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.OpenEntry(ctx, &nasty) })
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		got, err := tx.Entry(ctx, want.ID)
		if err == nil {
			if diff := cmp.Diff(*got, want); diff != "" {
				t.Errorf("entry (-got +want):\n%s", diff)
			}
		}
		for _, id := range []pawl.EntryID{pawl.EntryID(newRunID()), "", "nonsense"} {
			if _, err := tx.Entry(ctx, id); !errors.Is(err, pawl.ErrNotFound) {
				t.Errorf("Entry(%q) = %v, want ErrNotFound", id, err)
			}
		}
		return err
	})
}

func testEvidence(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.State = pawl.Cancelled }))
	want := []pawl.EvidenceRow{
		{Run: run.ID, Step: "a", Attempt: 1, Worker: newWorkerID(), Source: "worker", Verdict: pawl.Happened, Value: oddBytes},
		{Run: run.ID, Step: "a", Attempt: 1, Source: "probe", Verdict: pawl.DidNotHappen, Fault: &fault.Fault{Class: fault.Transient}},
		{Run: run.ID, Step: "b", Attempt: 2, Source: "probe", Verdict: pawl.CannotTell},
	}
	f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
		for i := range want {
			err = errors.Join(err, tx.AddEvidence(ctx, &want[i]))
		}
		return err
	})
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		got, err := tx.Evidence(ctx, run.ID)
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("evidence (-got +want):\n%s", diff)
		}
		return err
	})
	if want[0].At == 0 {
		t.Error("the time of the report is not set")
	}
}

func testAudit(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	want := []pawl.AuditRow{
		{Act: "resolve", By: "me", Why: "because", Run: run.ID, Step: "a", Entry: pawl.EntryID(newRunID()), Detail: "did not happen"},
		{Act: "cancel", By: "you", Run: run.ID},
	}
	f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
		for i := range want {
			err = errors.Join(err, tx.AddAudit(ctx, &want[i]))
		}
		return errors.Join(err, tx.AddAudit(ctx, &pawl.AuditRow{Act: "of no run", By: "me"}))
	})
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		got, err := tx.Audit(ctx, run.ID)
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("audit trail (-got +want):\n%s", diff)
		}
		return err
	})
	if want[0].ID == "" || want[0].At == 0 {
		t.Error("id and time of the act are not set")
	}
}
