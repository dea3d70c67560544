package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var stepRules = []rule{
	{"insert_once", "a step is inserted plainly: the second insert fails with ErrStepExists and changes nothing", testStepOnce},
	{"fields", "every field of a step comes back as it was written", testStepFields},
	{"transitions", "MoveStep writes exactly the moves of the transition table", testStepTransitions},
	{"attempt", "MoveStep writes only over the attempt it names", testStepAttempt},
	{"payloads", "a row that was read without its payloads can be moved without losing them", testStepPayloads},
	{"bytes", "values and inputs are kept byte for byte", testStepBytes},
	{"pages", "Steps pages by name in byte order and leaves out large values and all inputs", testStepPages},
	{"claimed", "ClaimedSteps gives the rows of the runs that a claim took and that were taken before", testClaimedSteps},
	{"open", "OpenSteps gives the rows in flight, retrying and uncertain, with inputs", testOpenSteps},
	{"inherit", "InheritStep copies a row in the given state, without usage, with a new budget, and names the run that made it", testInherit},
	{"mark", "MarkStep writes six columns and nothing else", testMark},
	{"attempts", "a second record of an attempt is ignored", testAttempts},
}

func newStep(run pawl.RunID, name string) pawl.StepRow {
	return pawl.StepRow{Run: run, Name: name, Kind: fault.KindOnce, State: pawl.StepInFlight, Attempt: 1, Epoch: 1}
}

func (f *fixture) insert(row pawl.StepRow) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertStep(ctx, &row) })
}

func (f *fixture) step(run pawl.RunID, name string) (row *pawl.StepRow) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		row, err = tx.Step(ctx, run, name)
		return err
	})
	return row
}

func testStepOnce(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	first := newStep(run.ID, "a")
	first.State, first.Value = pawl.StepSucceeded, []byte("1")
	f.insert(first)
	second := first
	second.Value = []byte("2")
	err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertStep(ctx, &second) })
	if !errors.Is(err, pawl.ErrStepExists) {
		t.Errorf("second insert = %v, want ErrStepExists", err)
	}
	if got := f.step(run.ID, "a"); string(got.Value) != "1" {
		t.Errorf("the value is %q, want the first one", got.Value)
	}
	if got := f.step(run.ID, "b"); got != nil {
		t.Errorf("a step that is not there came back as %+v", got)
	}
}

// fullStep has every field set.
func fullStep(run pawl.RunID) pawl.StepRow {
	return pawl.StepRow{Run: run, Name: "ü/a", Kind: fault.KindKeyed, State: pawl.StepInFlight, Attempt: 2, Epoch: 3,
		InputHash: []byte{1}, Input: []byte("in"), Value: []byte("out"), ValueSize: 3,
		Fault: &fault.Fault{Class: fault.RateLimited, Delay: time.Second}, Key: "op", Paid: true, Foreign: true, Worker: newWorkerID(),
		Begun: 4, Ended: 5, Deadline: 6, Settle: 7, FirstIntent: 8, KeyTTL: 9, NextAt: 10, FirstTry: 11, Unknown: 12, Round: 13,
		Told: 14, ProbeAfter: 15, NextProbe: 16, Probes: 17, OtherHash: []byte{18}, UseStored: true, Inherited: newRunID(),
		TakenFrom: "x", Usage: pawl.Usage{Provider: "p", Model: "m", RequestID: "r", TokensIn: 19, TokensOut: 20, CostMicros: 21,
			Latency: 22 * time.Microsecond}}
}

func testStepFields(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	want := fullStep(run.ID)
	f.insert(want)
	if diff := cmp.Diff(*f.step(run.ID, want.Name), want); diff != "" {
		t.Errorf("inserted (-got +want):\n%s", diff)
	}
	next := pawl.StepRow{Run: run.ID, Name: want.Name, Kind: want.Kind, State: pawl.StepSucceeded, Attempt: 3, Epoch: 4,
		InputHash: []byte{2}, Input: []byte("in2"), Value: []byte("out2"), ValueSize: 4, Begun: 24, Ended: 25, Deadline: 26, Settle: 27,
		FirstIntent: 28, KeyTTL: 29, NextAt: 30, FirstTry: 31, Unknown: 32, Round: 33, Told: 34, ProbeAfter: 35, NextProbe: 36,
		Probes: 37, Usage: pawl.Usage{Provider: "p2", Model: "m2", RequestID: "r2", TokensIn: 39, TokensOut: 40, CostMicros: 41,
			Latency: 42 * time.Microsecond}}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		ok, err := tx.MoveStep(ctx, &next, 2)
		if err == nil && !ok {
			err = errors.New("the move was refused")
		}
		return err
	})
	if diff := cmp.Diff(*f.step(run.ID, want.Name), next); diff != "" {
		t.Errorf("moved (-got +want):\n%s", diff)
	}
}

func testStepTransitions(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	for _, from := range pawl.StepStates() {
		for _, to := range pawl.StepStates() {
			row := newStep(run.ID, string(from)+" to "+string(to))
			row.State, row.Fault = from, &fault.Fault{Class: fault.Transient}
			f.insert(row)
			row.State = to
			moved := false
			err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) (err error) {
				moved, err = tx.MoveStep(ctx, &row, 1)
				return err
			})
			f.ok(err)
			if moved != from.CanBecome(to) {
				t.Errorf("%s: moved %t, the table says %t", row.Name, moved, from.CanBecome(to))
			}
			want := from
			if moved {
				want = to
			}
			if got := f.step(run.ID, row.Name).State; got != want {
				t.Errorf("%s: the step is %s, want %s", row.Name, got, want)
			}
		}
	}
}

func testStepAttempt(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	row := newStep(run.ID, "a")
	row.Attempt = 2
	f.insert(row)
	row.State, row.Attempt = pawl.StepSucceeded, 3
	for _, c := range []struct {
		attempt int
		want    bool
	}{{1, false}, {3, false}, {2, true}} {
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			got, err := tx.MoveStep(ctx, &row, c.attempt)
			if got != c.want {
				t.Errorf("a move over attempt %d of a row at 2: %t, want %t", c.attempt, got, c.want)
			}
			return err
		})
	}
	if got := f.step(run.ID, "a").Attempt; got != 3 {
		t.Errorf("the stored attempt is %d, want 3", got)
	}
}

func testStepPayloads(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	row := newStep(run.ID, "a")
	row.Input = []byte("in")
	f.insert(row)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		page, err := tx.Steps(ctx, run.ID, "", 10)
		if err != nil {
			return err
		}
		page[0].State, page[0].Value = pawl.StepSucceeded, []byte("out")
		_, err = tx.MoveStep(ctx, &page[0], 1)
		return err
	})
	if got := f.step(run.ID, "a"); string(got.Input) != "in" || string(got.Value) != "out" {
		t.Errorf("input %q, value %q: want in, out", got.Input, got.Value)
	}
}

func testStepBytes(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	row := newStep(run.ID, "a")
	row.State, row.Value, row.Input = pawl.StepSucceeded, oddBytes, oddBytes
	f.insert(row)
	if got := f.step(run.ID, "a"); !slices.Equal(got.Value, oddBytes) || !slices.Equal(got.Input, oddBytes) || got.ValueSize != len(oddBytes) {
		t.Errorf("value %q, input %q, size %d", got.Value, got.Input, got.ValueSize)
	}
}

func testStepPages(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	other, _ := f.running(time.Minute)
	names := []string{"Z", "a", "B", "a/b", "a b", "ä", "é", "~", "10", "9", "a%2Fb", "日本"}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		for i, name := range names {
			row := newStep(run.ID, name)
			row.State, row.Input, row.Value = pawl.StepSucceeded, []byte("in"), make([]byte, 4090+i)
			if err := tx.InsertStep(ctx, &row); err != nil {
				return err
			}
		}
		row := newStep(other.ID, "a")
		return tx.InsertStep(ctx, &row)
	})
	var got []string
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		for after := ""; ; {
			page, err := tx.Steps(ctx, run.ID, after, 5)
			if err != nil || len(page) == 0 {
				return err
			}
			if len(page) > 5 {
				return fmt.Errorf("a page of 5 has %d rows", len(page))
			}
			for _, s := range page {
				got = append(got, s.Name)
				if s.Input != nil || s.ValueSize < 4090 || (s.Value != nil) != (s.ValueSize <= 4096) || s.Value != nil && len(s.Value) != s.ValueSize {
					t.Errorf("step %q: input %d bytes, value %d bytes, size %d", s.Name, len(s.Input), len(s.Value), s.ValueSize)
				}
			}
			after = page[len(page)-1].Name
		}
	})
	want := slices.Clone(names)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("names in pages: %q\nwant byte order: %q", got, want)
	}
}

func testClaimedSteps(t *testing.T, f *fixture) {
	runs := f.claimed(3) // as it was before
	var w pawl.WorkerRow
	for i := range runs {
		f.ok(f.change(runs[i].ID, func(r *pawl.RunRow) { r.State, r.Owner, r.Token, r.Due = pawl.Queued, "", 0, 1 }))
		for _, name := range []string{"b", "a"} {
			f.insert(*stored(result(runs[i].ID, name, strconv.Itoa(i))))
		}
	}
	f.insert(*stored(result(runs[1].ID, "c//i/s", "of an item")))
	large := stored(result(runs[1].ID, "c", strings.Repeat("x", 5000)))
	f.insert(*large)
	f.runs(1)
	w = f.worker(time.Minute, v1)
	claimed := map[pawl.RunID]bool{}
	for i, n := range []int{2, 9} { // the second claim is another one
		for _, c := range f.claim(w, n, func(c *pawl.Claim) { c.Token = int64(i + 1) }) {
			claimed[c.Row.ID] = i == 0
		}
	}
	if len(claimed) != 4 {
		t.Fatalf("%d runs were claimed", len(claimed))
	}
	slices.SortFunc(runs, func(a, b pawl.RunRow) int { return strings.Compare(string(a.ID), string(b.ID)) })
	var want []string
	for i := range runs {
		if !claimed[runs[i].ID] {
			continue
		}
		for _, name := range []string{"a", "b", "c"} {
			if name != "c" || runs[i].ID == large.Run {
				want = append(want, string(runs[i].ID)+" "+name)
			}
		}
	}
	page := func(limit int) (got []string) {
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			rows, err := tx.ClaimedSteps(ctx, w.ID, 1, limit)
			for i := range rows {
				got = append(got, string(rows[i].Run)+" "+rows[i].Name)
				if (rows[i].Value == nil) != (rows[i].ValueSize > 4096) {
					t.Errorf("step %s: a value of %d bytes of %d", rows[i].Name, len(rows[i].Value), rows[i].ValueSize)
				}
			}
			return err
		})
		return got
	}
	if diff := cmp.Diff(page(99), want); diff != "" {
		t.Errorf("rows (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(page(3), want[:3]); diff != "" {
		t.Errorf("the first three (-got +want):\n%s", diff)
	}
}

func testOpenSteps(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	var want []string
	for _, state := range pawl.StepStates() {
		row := newStep(run.ID, string(state))
		row.State, row.Input = state, []byte("in "+string(state))
		row.Fault = &fault.Fault{Class: fault.Transient}
		f.insert(row)
		if !state.Finished() {
			want = append(want, row.Name)
		}
	}
	slices.Sort(want)
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		open, err := tx.OpenSteps(ctx, run.ID)
		var got []string
		for _, s := range open {
			got = append(got, s.Name)
			if string(s.Input) != "in "+s.Name {
				t.Errorf("step %q came with input %q", s.Name, s.Input)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("open steps %v, want %v", got, want)
		}
		return err
	})
}

func testInherit(t *testing.T, f *fixture) {
	first, _ := f.running(time.Minute)
	second, _ := f.running(time.Minute)
	third, _ := f.running(time.Minute)
	row := fullStep(first.ID)
	row.Inherited = ""
	f.insert(row)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		return errors.Join(tx.InheritStep(ctx, first.ID, second.ID, row.Name, pawl.StepUncertain),
			tx.InheritStep(ctx, second.ID, third.ID, row.Name, pawl.StepSucceeded))
	})
	want := row
	want.Run, want.State, want.Inherited, want.Usage = third.ID, pawl.StepSucceeded, first.ID, pawl.Usage{}
	want.Round, want.Unknown, want.FirstTry, want.Told, want.NextAt = want.Attempt, 0, 0, 0, 0
	if diff := cmp.Diff(*f.step(third.ID, row.Name), want); diff != "" {
		t.Errorf("inherited twice (-got +want):\n%s", diff)
	}
	if got := f.step(second.ID, row.Name).State; got != pawl.StepUncertain {
		t.Errorf("the copy is %s, want uncertain", got)
	}
	for _, c := range []struct {
		name string
		want error
	}{{row.Name, pawl.ErrStepExists}, {"nothing", pawl.ErrNotFound}} {
		err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
			return tx.InheritStep(ctx, first.ID, second.ID, c.name, pawl.StepSucceeded)
		})
		if !errors.Is(err, c.want) {
			t.Errorf("InheritStep(%q) = %v, want %v", c.name, err, c.want)
		}
	}
}

func testMark(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	row := fullStep(run.ID)
	f.insert(row)
	other := pawl.StepRow{Run: run.ID, Name: row.Name, State: pawl.StepFailed, Attempt: 99, OtherHash: []byte("o"), Orphaned: true, NextProbe: 51, Probes: 52}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.MarkStep(ctx, &other) })
	row.OtherHash, row.UseStored, row.Orphaned, row.NextProbe, row.Probes = other.OtherHash, false, true, 51, 52
	if diff := cmp.Diff(*f.step(run.ID, row.Name), row); diff != "" {
		t.Errorf("marked (-got +want):\n%s", diff)
	}
}

func testAttempts(t *testing.T, f *fixture) {
	run, _ := f.running(time.Minute)
	a := pawl.AttemptRow{Run: run.ID, Step: "a", Attempt: 1, Worker: newWorkerID(), Begun: 1, Ended: 2, Wait: 3,
		Fault: fault.Fault{Class: fault.Transient, Message: strings.Repeat("x\x00\xff", 5000)}, Usage: fullStep(run.ID).Usage}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		second := a
		second.Begun = 99
		third := pawl.AttemptRow{Run: run.ID, Step: "a", Attempt: 2, Fault: fault.Fault{Class: fault.Canceled}}
		return errors.Join(tx.AddAttempt(ctx, &a), tx.AddAttempt(ctx, &third), tx.AddAttempt(ctx, &second))
	})
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		got, err := tx.Attempts(ctx, run.ID)
		if len(got) != 2 || got[0].Attempt != 1 || got[1].Attempt != 2 || got[1].Fault.Class != fault.Canceled {
			t.Fatalf("attempts %+v, want 1 and 2", got)
		}
		if diff := cmp.Diff(got[0], a, cmpopts.IgnoreFields(fault.Fault{}, "Message")); diff != "" {
			t.Errorf("attempt (-got +want):\n%s", diff)
		}
		return err
	})
}
