package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var writeRules = []rule{
	{"all", "Write makes all changes, starts and inserts, with the times of one clock", testWriteAll},
	{"ends", "Write settles intents and ends runs, which lets go of their claims", testWriteEnds},
	{"fields", "a row that Write inserts is the one that InsertStep would have", testWriteFields},
	{"alike", "each row has its own values, wherever it is the first that differs from the others", testWriteAlike},
	{"start", "a run that Write starts is the one that InsertRuns would have, queued or running", testWriteStart},
	{"fence", "a claim that does not hold, or a run that is not running, fails all changes with ErrOneByOne", testWriteFence},
	{"lost", "a claim that has just written does not hold any more once its run was taken, changed, or ended", testWriteLost},
	{"guards", "a name that is taken, an intent that is settled, an end with an open step or another end decided: nothing is written", testWriteGuards},
	{"values", "a value that the database does not take fails all changes with ErrOneByOne", testWriteValues},
	{"patience", "Write does not wait for long for what somebody has locked: a run, or the row of a step", testWritePatience},
	{"key", "the end of a run is noted on its product key, but that of a fork with keys of its own is not", testWriteKey},
}

// held is a change for a claimed run.
func held(r pawl.RunRow) pawl.Change {
	return pawl.Change{Run: r.ID, Epoch: r.Epoch, Token: r.Token}
}

// claimed gives n running runs.
func (f *fixture) claimed(n int) []pawl.RunRow {
	f.t.Helper()
	w := f.worker(time.Minute, v1)
	f.runs(n)
	var rows []pawl.RunRow
	for _, c := range f.claim(w, n) {
		rows = append(rows, c.Row)
	}
	if len(rows) != n {
		f.t.Fatalf("claim gave %d runs, want %d", len(rows), n)
	}
	return rows
}

func result(run pawl.RunID, name, value string) *pawl.StepRow {
	return &pawl.StepRow{Run: run, Name: name, Kind: fault.KindRepeatable, State: pawl.StepSucceeded, Attempt: 1, Epoch: 1,
		Begun: pawl.AtWrite - 1000, Ended: pawl.AtWrite, InputHash: []byte{9}, Value: []byte(value), ValueSize: len(value)}
}

func intent(run pawl.RunID, name string) *pawl.StepRow {
	return &pawl.StepRow{Run: run, Name: name, Kind: fault.KindOnce, State: pawl.StepInFlight, Attempt: 1, Epoch: 1, Key: "k",
		Begun: pawl.AtWrite, Deadline: pawl.AtWrite + 60e6, FirstIntent: pawl.AtWrite, FirstTry: pawl.AtWrite, Settle: 7, Input: []byte("1")}
}

func testWriteAll(t *testing.T, f *fixture) {
	runs := f.claimed(3)
	born := newRun()
	a, b := result(runs[0].ID, "a", `"1"`), intent(runs[1].ID, "b")
	first, second := held(runs[0]), held(runs[1])
	first.Insert, second.Insert = []*pawl.StepRow{a}, []*pawl.StepRow{b}
	before := f.now()
	now, err := f.s.Write(f.ctx(), []pawl.Change{first, second, {Start: &born}})
	f.ok(err)
	if after := f.now(); now < before || now > after {
		t.Errorf("the clock was %d, then %d for the write, then %d", before, now, after)
	}
	if got := f.step(runs[0].ID, "a"); got == nil || got.Begun != now-1000 || got.Ended != now || string(got.Value) != `"1"` {
		t.Errorf("the result is %+v, want begun %d, ended %d", got, now-1000, now)
	}
	if got := f.step(runs[1].ID, "b"); got == nil || got.Deadline != now+60e6 || got.FirstIntent != now {
		t.Errorf("the intent is %+v, want deadline %d", got, now+60e6)
	}
	if got := f.row(born.ID); got.Created != now || got.Due != now || got.State != pawl.Queued {
		t.Errorf("the new run is %+v, want it created and due at %d", got, now)
	}
}

func testWriteEnds(t *testing.T, f *fixture) {
	runs := f.claimed(3)
	b := stored(intent(runs[1].ID, "b"))
	f.insert(*b)
	done := *b
	done.State, done.Ended, done.Value, done.ValueSize = pawl.StepSucceeded, pawl.AtWrite, []byte("2"), 1
	done.Usage = pawl.Usage{Provider: "p", Model: "m", RequestID: "r", TokensIn: 1, TokensOut: 2, CostMicros: 3, Latency: time.Millisecond}
	done.Sent = &fault.Evidence{Requests: 1}
	first, second := held(runs[0]), held(runs[1])
	first.End = &pawl.RunEnd{State: pawl.Failed, Fault: &fault.Fault{Class: fault.Transient}, Row: &runs[0]}
	second.Settle = []*pawl.StepRow{&done}
	second.End = &pawl.RunEnd{State: pawl.Succeeded, Result: []byte("3"), Row: &runs[1]}
	now, err := f.s.Write(f.ctx(), []pawl.Change{first, second})
	f.ok(err)
	done.Resolve(now)
	if diff := cmp.Diff(*f.step(runs[1].ID, "b"), done); diff != "" {
		t.Errorf("the settled intent (-got +want):\n%s", diff)
	}
	f.ended(runs, now)
	third := held(runs[2])
	nap := pawl.StepRow{Run: runs[2].ID, Name: "nap", Kind: fault.KindTimer, State: pawl.StepWaiting, Attempt: 1, NextAt: 5}
	f.insert(nap)
	nap.State, nap.Ended = pawl.StepSucceeded, pawl.AtWrite
	third.Settle = []*pawl.StepRow{&nap}
	now, err = f.s.Write(f.ctx(), []pawl.Change{third})
	f.ok(err)
	nap.Resolve(now)
	if diff := cmp.Diff(*f.step(runs[2].ID, "nap"), nap); diff != "" {
		t.Errorf("the sleep that is over (-got +want):\n%s", diff)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		_, result, err := tx.Payload(ctx, runs[1].ID)
		if string(result) != "3" {
			t.Errorf("the result is %q, want 3", result)
		}
		return err
	})
}

// ended compares the runs of testWriteEnds.
func (f *fixture) ended(runs []pawl.RunRow, now int64) {
	t := f.t
	t.Helper()
	for i, want := range []pawl.RunState{pawl.Failed, pawl.Succeeded, pawl.Running} {
		got := f.row(runs[i].ID)
		if got.State != want {
			t.Errorf("run %d is %s, want %s", i, got.State, want)
		}
		if want != pawl.Running && (got.Ended != now || got.Epoch != runs[i].Epoch+1 || got.Owner != "" || got.Token != 0) {
			t.Errorf("the end of run %d is %+v, want ended %d and the claim gone", i, got, now)
		}
	}
	if got := f.row(runs[0].ID).Fault; got == nil || got.Class != fault.Transient {
		t.Errorf("the fault is %v", got)
	}
}

func testWriteFields(t *testing.T, f *fixture) {
	f.broken = true // rows in states that their run does not have
	run := f.claimed(1)[0]
	full := fullStep(run.ID)
	full.Usage.TokensIn = pawl.AtWrite + 5 // a number, not a time
	bare := pawl.StepRow{Run: run.ID, Name: "bare", Kind: fault.KindTx, State: pawl.StepRetrying, Attempt: 1}
	c := held(run)
	c.Insert = []*pawl.StepRow{&full, &bare}
	wanted := []pawl.StepRow{full, bare}
	_, err := f.s.Write(f.ctx(), []pawl.Change{c})
	f.ok(err)
	for _, want := range wanted {
		if diff := cmp.Diff(*f.step(run.ID, want.Name), want); diff != "" {
			t.Errorf("%q (-got +want):\n%s", want.Name, diff)
		}
	}
}

func testWriteAlike(t *testing.T, f *fixture) {
	f.broken = true // rows of a worker and an epoch that their run does not have
	run := f.claimed(1)[0]
	change := []func(*pawl.StepRow){
		func(*pawl.StepRow) {},
		func(row *pawl.StepRow) { row.Kind = fault.KindTx },
		func(row *pawl.StepRow) { row.Attempt = 7 },
		func(row *pawl.StepRow) { row.Epoch = 3 },
		func(row *pawl.StepRow) { row.Ended = pawl.AtWrite + 5 },
		func(row *pawl.StepRow) { row.Worker = "00000000-0000-4000-8000-000000000001" },
	}
	for first := range change {
		for second := range change {
			c := held(run)
			var wanted []pawl.StepRow
			for i, j := range []int{0, 0, first, second, 0} {
				row := result(run.ID, fmt.Sprint(first, second, i), `"1"`)
				row.Worker = "00000000-0000-4000-8000-000000000000"
				change[j](row)
				c.Insert, wanted = append(c.Insert, row), append(wanted, *row)
			}
			now, err := f.s.Write(f.ctx(), []pawl.Change{c})
			f.ok(err)
			for _, want := range wanted {
				want.Resolve(now)
				if diff := cmp.Diff(*f.step(run.ID, want.Name), want); diff != "" {
					t.Errorf("%q (-got +want):\n%s", want.Name, diff)
				}
			}
		}
	}
}

func testWriteStart(t *testing.T, f *fixture) {
	w := f.worker(time.Minute, v1)
	queued, running := newRun(), newRun()
	running.State, running.Epoch, running.Token, running.Owner, running.Builds = pawl.Running, 1, math.MaxInt64, w.ID, "b1"
	twins := []pawl.RunRow{queued, running}
	for i := range twins {
		twins[i].ID = newRunID()
		twins[i].Lineage = twins[i].ID
	}
	_, err := f.s.Write(f.ctx(), []pawl.Change{{Start: &queued}, {Start: &running}})
	f.ok(err)
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, twins) })
	for i, id := range []pawl.RunID{queued.ID, running.ID} {
		ignore := cmpopts.IgnoreFields(pawl.RunRow{}, "ID", "Lineage", "Created", "Due", "Claimed", "Started")
		got, want := f.row(id), f.row(twins[i].ID)
		if diff := cmp.Diff(got, want, ignore); diff != "" {
			t.Errorf("started (-got +want):\n%s", diff)
		}
		if (got.Due == 0) != (want.Due == 0) || (got.Claimed == 0) != (want.Claimed == 0) || (got.Started == 0) != (want.Started == 0) {
			t.Errorf("started at %+v, want the times that %+v has", got, want)
		}
	}
	if got := f.claim(f.worker(time.Minute, v1), 10); ids(got) != string(queued.ID)+" "+string(twins[0].ID) {
		t.Errorf("claimed %s, want the two queued ones", ids(got))
	}
}

// refused fails the test unless Write fails with ErrOneByOne and has written nothing, not even a change that holds.
func (f *fixture) refused(why string, good pawl.RunRow, bad pawl.Change) {
	f.t.Helper()
	c := held(good)
	c.Insert = []*pawl.StepRow{result(good.ID, "neighbour", "1")}
	for _, changes := range [][]pawl.Change{{c, bad}, {bad, c}} {
		if _, err := f.s.Write(f.ctx(), changes); !errors.Is(err, pawl.ErrOneByOne) {
			f.t.Errorf("%s: Write = %v, want ErrOneByOne", why, err)
		}
		if f.step(good.ID, "neighbour") != nil {
			f.t.Fatalf("%s: the neighbour's row was written", why)
		}
	}
}

func testWriteFence(t *testing.T, f *fixture) {
	runs := f.claimed(2)
	for why, change := range map[string]func(c *pawl.Change){
		"an old epoch":     func(c *pawl.Change) { c.Epoch-- },
		"a later epoch":    func(c *pawl.Change) { c.Epoch++ },
		"another token":    func(c *pawl.Change) { c.Token++ },
		"an unknown run":   func(c *pawl.Change) { c.Run = newRunID() },
		"an end as well":   func(c *pawl.Change) { c.Token++; c.End = &pawl.RunEnd{State: pawl.Succeeded, Row: &runs[1]} },
		"nothing to write": func(c *pawl.Change) { c.Token, c.Insert = c.Token+1, nil },
	} {
		c := held(runs[1])
		c.Insert = []*pawl.StepRow{result(runs[1].ID, "mine", "1")}
		change(&c)
		f.refused(why, runs[0], c)
	}
	f.ok(f.change(runs[1].ID, func(r *pawl.RunRow) { r.State, r.Due = pawl.Waiting, 1 }))
	c := held(runs[1])
	c.Insert = []*pawl.StepRow{result(runs[1].ID, "mine", "1")}
	f.refused("a run that is not running", runs[0], c)
	if f.step(runs[1].ID, "mine") != nil {
		t.Error("a row was written without a claim")
	}
}

func testWriteLost(t *testing.T, f *fixture) {
	runs := f.claimed(5)
	write := func(run pawl.RunRow, name string, end *pawl.RunEnd) error {
		c := held(run)
		c.Insert, c.End = []*pawl.StepRow{result(run.ID, name, "1")}, end
		_, err := f.s.Write(f.ctx(), []pawl.Change{c})
		return err
	}
	for _, c := range []struct {
		why  string
		lose func(run pawl.RunRow)
	}{
		{"changed", func(run pawl.RunRow) {
			f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.State, r.Due = pawl.Waiting, 1 }))
		}},
		{"changed behind the store's back", func(run pawl.RunRow) {
			f.exec(`UPDATE pawl_runs SET epoch = epoch + 1 WHERE id = $1`, string(run.ID))
		}},
		{"ended", func(run pawl.RunRow) { f.ok(write(run, "last", &pawl.RunEnd{State: pawl.Succeeded, Row: &run})) }},
		{"taken", func(pawl.RunRow) {
			f.exec(`UPDATE pawl_workers SET expires = 1`)
			if got := f.claim(f.worker(time.Minute, v1), 10, expired); len(got) < 2 {
				t.Fatalf("%d runs were taken, want all that are left", len(got))
			}
		}},
	} {
		run := runs[0]
		f.ok(write(run, "before", nil))
		f.ok(write(run, "again", nil))
		c.lose(run)
		if err := write(run, "after", nil); !errors.Is(err, pawl.ErrOneByOne) {
			t.Errorf("%s: Write = %v, want ErrOneByOne", c.why, err)
		}
		if f.step(run.ID, "after") != nil {
			t.Errorf("%s: a row was written without a claim", c.why)
		}
		runs = runs[1:]
	}
	// What a transaction would have started does not hold after it has failed.
	born := newRun()
	born.State, born.Epoch, born.Token, born.Owner = pawl.Running, 1, 5, f.worker(time.Minute, v1).ID
	bad := held(runs[0])
	bad.Token++
	if _, err := f.s.Write(f.ctx(), []pawl.Change{{Start: &born}, bad}); !errors.Is(err, pawl.ErrOneByOne) {
		t.Errorf("Write = %v, want ErrOneByOne", err)
	}
	if err := write(born, "after", nil); !errors.Is(err, pawl.ErrOneByOne) || f.step(born.ID, "after") != nil {
		t.Errorf("Write for a run that was not started = %v, want ErrOneByOne", err)
	}
}

func testWriteGuards(t *testing.T, f *fixture) {
	runs := f.claimed(2)
	run := runs[1]
	f.insert(*stored(result(run.ID, "taken", "1")))
	c := held(run)
	c.Insert = []*pawl.StepRow{result(run.ID, "taken", "2")}
	f.refused("a name that is taken", runs[0], c)

	c.Insert = nil
	c.Settle = []*pawl.StepRow{result(run.ID, "taken", "2")}
	f.refused("a step that is finished", runs[0], c)
	f.insert(*stored(intent(run.ID, "open")))
	late := result(run.ID, "open", "2")
	late.Attempt = 2
	c.Settle = []*pawl.StepRow{late}
	f.refused("another attempt", runs[0], c)

	c.Settle = nil
	c.End = &pawl.RunEnd{State: pawl.Succeeded, Row: &run}
	f.refused("an end with an open step", runs[0], c)
	c.Settle = []*pawl.StepRow{result(run.ID, "open", "2")}
	f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.Intended = pawl.Failed }))
	f.refused("an end when another is decided", runs[0], c)
	f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.Intended = "" }))
	if _, err := f.s.Write(f.ctx(), []pawl.Change{c}); err != nil {
		t.Errorf("the end that settles its last step: %v", err)
	}
	if got := f.row(run.ID).State; got != pawl.Succeeded {
		t.Errorf("the run is %s", got)
	}
}

func stored(row *pawl.StepRow) *pawl.StepRow {
	row.Resolve(1)
	return row
}

func testWriteValues(_ *testing.T, f *fixture) {
	runs := f.claimed(2)
	c := held(runs[1])
	bad := result(runs[1].ID, "bad", "1")
	bad.State = "nonsense"
	c.Insert = []*pawl.StepRow{bad}
	f.refused("a state that there is not", runs[0], c)
}

func testWritePatience(t *testing.T, f *fixture) {
	if f.s.Name() == "sqlite" {
		return // there is one write lock for all: whoever has it is waited for
	}
	runs := f.claimed(2)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		if _, err := tx.LockRun(ctx, runs[1].ID); err != nil {
			return err
		}
		c := held(runs[1])
		c.Insert = []*pawl.StepRow{result(runs[1].ID, "mine", "1")}
		f.refused("a run that is locked", runs[0], c)
		return nil
	})
	c := held(runs[1])
	c.Insert = []*pawl.StepRow{result(runs[1].ID, "mine", "1")}
	undone := errors.New("undone")
	err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { // as a Tx step does, whose fence comes last
		if err := tx.InsertStep(ctx, stored(result(runs[1].ID, "mine", "2"))); err != nil {
			return err
		}
		f.refused("a row that somebody is adding", runs[0], c)
		return undone
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	if _, err := f.s.Write(f.ctx(), []pawl.Change{c}); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func testWriteKey(t *testing.T, f *fixture) {
	w := f.worker(time.Minute, v1)
	for _, fork := range []bool{false, true} {
		run := newRun()
		run.Key, run.NewKeys = pawl.Key("k"+string(run.ID)), fork
		key := pawl.KeyRow{KeyName: run.KeyName, Key: run.Key, Lineage: run.Lineage}
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			if _, _, err := tx.ClaimKey(ctx, key); err != nil {
				return err
			}
			return tx.InsertRuns(ctx, []pawl.RunRow{run})
		})
		row := f.claim(w, 1)[0].Row
		c := held(row)
		c.End = &pawl.RunEnd{State: pawl.Cancelled, Row: &row}
		now, err := f.s.Write(f.ctx(), []pawl.Change{c})
		f.ok(err)
		want := pawl.KeyRow{KeyName: run.KeyName, Key: run.Key, Lineage: run.Lineage, End: pawl.Cancelled, EndedAt: now}
		if fork {
			want = key
		}
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			got, _, err := tx.ClaimKey(ctx, key)
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("fork %t: the key (-got +want):\n%s", fork, diff)
			}
			return err
		})
	}
}
