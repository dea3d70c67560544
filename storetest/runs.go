package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var runRules = []rule{
	{"insert", "InsertRuns sets Created, and Due of a queued run that has none, to now", testInsert},
	{"insert_running", "a run may be inserted running; it has been claimed and started then", testInsertRunning},
	{"insert_many", "InsertRuns takes any number of runs", testInsertMany},
	{"insert_twice", "a run id is never used twice", testInsertTwice},
	{"fields", "every field of a run comes back as it was saved", testRunFields},
	{"payload", "payloads are kept byte for byte, NUL and invalid UTF-8 included", testRunPayload},
	{"result", "SaveRun writes the result only if SetResult says so", testResult},
	{"transitions", "SaveRun writes exactly the moves of the transition table", testRunTransitions},
	{"terminal", "a terminal run never changes, nor its result", testTerminal},
	{"not_found", "LockRun and Payload of a run that is not there give ErrNotFound, also for text that is no id", testRunNotFound},
	{"lineage", "one run of a lineage is live; a second is ErrLive; a fork with keys of its own runs beside", testLineage},
	{"key_race", "of concurrent claims of a product key one wins, and all others get its row", testKeyRace},
	{"key_rollback", "a key whose claim was rolled back is free", testKeyRollback},
	{"key_end", "the key row says how its lineage ended last", testKeyEnd},
	{"key_move", "a run gives the key that its lineage has to another one, with the hash of the first input, and no other key", testKeyMove},
}

func testInsert(t *testing.T, f *fixture) {
	before := f.now()
	row := f.runs(1)[0]
	after := f.now()
	if row.Created < before || row.Created > after || row.Due < before || row.Due > after {
		t.Errorf("created %d, due %d: want both between %d and %d", row.Created, row.Due, before, after)
	}
	if got := f.row(row.ID); got.Created != row.Created || got.Due != row.Due {
		t.Errorf("stored created %d, due %d; the row given back says %d, %d", got.Created, got.Due, row.Created, row.Due)
	}
	later := newRun()
	later.Due = before + time.Hour.Microseconds()
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{later}) })
	if got := f.row(later.ID).Due; got != later.Due {
		t.Errorf("due = %d, want the %d that was asked for", got, later.Due)
	}
}

func testInsertRunning(t *testing.T, f *fixture) {
	w := f.worker(time.Minute, v1)
	row := newRun()
	row.State, row.Epoch, row.Token, row.Owner = pawl.Running, 1, 5, w.ID
	rows := []pawl.RunRow{row}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) })
	got := f.row(row.ID)
	if got.State != pawl.Running || got.Epoch != 1 || got.Token != 5 || got.Owner != w.ID || got.Claimed == 0 || got.Started == 0 || got.Due != 0 {
		t.Errorf("the run came out as %+v", got)
	}
	if rows[0].Claimed != got.Claimed || rows[0].Started != got.Started {
		t.Error("the row given back lacks the times of claim and start")
	}
}

func testInsertMany(t *testing.T, f *fixture) {
	rows := f.runs(777)
	for _, i := range []int{0, 63, 64, 500, 776} {
		if got := f.row(rows[i].ID); got.Created != rows[i].Created || got.Created == 0 {
			t.Errorf("run %d: created %d, the row given back says %d", i, got.Created, rows[i].Created)
		}
	}
	if n := f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_runs`); n != "777" {
		t.Errorf("%s rows, want 777", n)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, nil) })
}

func testInsertTwice(t *testing.T, f *fixture) {
	row := f.runs(1)[0]
	err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{row}) })
	if err == nil {
		t.Error("a second insert of the id gave no error")
	}
}

func testRunFields(t *testing.T, f *fixture) {
	f.broken = true // a successor of a run that has not ended
	w := f.worker(time.Minute, v1)
	id := newRunID()
	row := pawl.RunRow{ID: id, Lineage: newRunID(), Parent: newRunID(), Relation: pawl.Forked, Workflow: "w ü", Version: "v 1",
		KeyName: "k", Key: "ticket:1", NewKeys: true, OwnKeys: "a\nb", Queue: "q", State: pawl.Running, Epoch: 1 << 40, Token: -5,
		Owner: w.ID, Claimed: 12, Intended: pawl.Failed,
		Fault: &fault.Fault{Class: fault.Transient, Reason: "x", Message: "m\x00\xff"}, InputHash: []byte{0, 255}, CancelAt: 13,
		CancelBy: "me", CancelWhy: "why", Started: 15, Lost: 3, LostTotal: 4, Releases: 5, Builds: "a,b", Restored: 16,
		Deadline: 17, TimeLimit: 18, Called: true, Successor: newRunID(), Continues: newRunID(), NextHash: []byte{255, 0}}
	rows := []pawl.RunRow{row}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) })
	row.Created = rows[0].Created
	row.Fault = &fault.Fault{Class: fault.Transient, Reason: "x", Message: "m\uFFFD"} // as faults are stored
	if diff := cmp.Diff(*f.row(id), row); diff != "" {
		t.Errorf("inserted (-got +want):\n%s", diff)
	}
	row.Version, row.OwnKeys, row.Queue, row.Epoch, row.Token, row.Claimed = "v 2", "c", "p", 7, 8, 9
	row.Intended, row.Fault, row.CancelAt, row.CancelBy, row.CancelWhy = pawl.Succeeded, nil, 10, "you", "because"
	row.Started, row.Lost, row.LostTotal, row.Releases, row.Builds, row.Restored = 11, 12, 13, 14, "c", 15
	row.Called, row.Successor, row.NextHash = false, newRunID(), []byte{1}
	f.ok(f.change(id, func(r *pawl.RunRow) { *r = row }))
	if diff := cmp.Diff(*f.row(id), row); diff != "" {
		t.Errorf("saved (-got +want):\n%s", diff)
	}
}

var oddBytes = []byte("\x00\xff{\"a\":\u2028\"\xc3\x28\"}\r\n\x00")

func testRunPayload(t *testing.T, f *fixture) {
	for _, payload := range [][]byte{oddBytes, {}, nil, make([]byte, 1<<20)} {
		row := newRun()
		row.Input = payload
		f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{row}) })
		f.ok(f.change(row.ID, func(r *pawl.RunRow) { r.Result, r.SetResult = payload, true }))
		f.view(func(ctx context.Context, tx pawl.Txn) error {
			input, result, err := tx.Payload(ctx, row.ID)
			if !slices.Equal(input, payload) || !slices.Equal(result, payload) {
				t.Errorf("%d bytes came back as %d (input) and %d (result), or changed", len(payload), len(input), len(result))
			}
			return err
		})
	}
}

func testResult(t *testing.T, f *fixture) {
	id := f.runs(1)[0].ID
	f.ok(f.change(id, func(r *pawl.RunRow) { r.Result, r.SetResult = []byte("1"), true }))
	f.ok(f.change(id, func(r *pawl.RunRow) { r.Result = []byte("2") }))
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		_, result, err := tx.Payload(ctx, id)
		if string(result) != "1" {
			t.Errorf("the result is %q, want the one that was set, 1", result)
		}
		return err
	})
}

// inState makes a run that is in state.
func (f *fixture) inState(state pawl.RunState) pawl.RunID {
	f.t.Helper()
	row := newRun()
	switch state {
	case pawl.Running:
		row.State, row.Owner = pawl.Running, f.worker(time.Hour, nil).ID
	case pawl.Waiting:
		row.State, row.Due = pawl.Waiting, f.now()+time.Hour.Microseconds()
	case pawl.Queued:
	default:
		row.State = state
		if state.Terminal() {
			row.Ended = f.now()
		}
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		if state == pawl.Blocked {
			if err := tx.OpenEntry(ctx, &pawl.EntryRow{Run: row.ID, Kind: pawl.AskLimit}); err != nil {
				return err
			}
		}
		return tx.InsertRuns(ctx, []pawl.RunRow{row})
	})
	return row.ID
}

func testRunTransitions(t *testing.T, f *fixture) {
	f.broken = true // blocked runs without entries
	w := f.worker(time.Hour, v1)
	for _, from := range pawl.RunStates() {
		for _, to := range pawl.RunStates() {
			id := f.inState(from)
			err := f.change(id, func(r *pawl.RunRow) {
				if r.State = to; to == pawl.Running {
					r.Owner = w.ID
				}
			})
			allowed := from.CanBecome(to) || from == to && !from.Terminal()
			if allowed != (err == nil) {
				t.Errorf("from %s to %s: %v, the table says %t", from, to, err, allowed)
			}
			got, want := f.row(id).State, from
			if allowed {
				want = to
			}
			if got != want {
				t.Errorf("from %s to %s: the run is %s, want %s", from, to, got, want)
			}
		}
	}
}

func testTerminal(t *testing.T, f *fixture) {
	id := f.runs(1)[0].ID
	before := f.now()
	f.ok(f.change(id, func(r *pawl.RunRow) {
		r.State, r.Fault = pawl.Failed, &fault.Fault{Class: fault.Transient, Message: "first"}
		r.Result, r.SetResult = []byte("1"), true
	}))
	first := f.row(id)
	if first.Ended < before || first.Due != 0 || first.Owner != "" {
		t.Errorf("ended %d, due %d, owner %q: want an end by the store's clock and nothing else", first.Ended, first.Due, first.Owner)
	}
	for _, to := range pawl.RunStates() {
		err := f.change(id, func(r *pawl.RunRow) { r.State, r.Result, r.SetResult = to, []byte("2"), true })
		if !errors.Is(err, pawl.ErrTerminal) {
			t.Errorf("SaveRun as %s = %v, want ErrTerminal", to, err)
		}
	}
	if diff := cmp.Diff(f.row(id), first); diff != "" {
		t.Errorf("the terminal run changed (-got +want):\n%s", diff)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		_, result, err := tx.Payload(ctx, id)
		if string(result) != "1" {
			t.Errorf("the result is %q, want 1", result)
		}
		return err
	})
}

func testRunNotFound(t *testing.T, f *fixture) {
	for _, id := range []pawl.RunID{newRunID(), "", "no such run", "'; DROP TABLE pawl_runs; --"} {
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			if _, err := tx.LockRun(ctx, id); !errors.Is(err, pawl.ErrNotFound) {
				t.Errorf("LockRun(%q) = %v, want ErrNotFound", id, err)
			}
			if _, _, err := tx.Payload(ctx, id); !errors.Is(err, pawl.ErrNotFound) {
				t.Errorf("Payload(%q) = %v, want ErrNotFound", id, err)
			}
			return nil
		})
	}
}

func testLineage(t *testing.T, f *fixture) {
	first := f.runs(1)[0]
	next := func(change func(*pawl.RunRow)) (pawl.RunID, error) {
		row := newRun()
		row.Lineage, row.Parent, row.Relation = first.ID, first.ID, pawl.Retried
		if change != nil {
			change(&row)
		}
		return row.ID, f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{row}) })
	}
	if _, err := next(nil); !errors.Is(err, pawl.ErrLive) {
		t.Errorf("a second live run = %v, want ErrLive", err)
	}
	beside, err := next(func(r *pawl.RunRow) { r.NewKeys, r.Relation = true, pawl.Forked })
	f.ok(err)
	f.ok(f.change(first.ID, func(r *pawl.RunRow) { r.State = pawl.Cancelled }))
	second, err := next(nil)
	f.ok(err)
	if _, err := next(nil); !errors.Is(err, pawl.ErrLive) {
		t.Errorf("a second live retry = %v, want ErrLive", err)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		family, err := tx.Lineage(ctx, first.ID)
		var got []pawl.RunID
		for _, r := range family {
			got = append(got, r.ID)
		}
		if want := []pawl.RunID{first.ID, beside, second}; !slices.Equal(got, want) {
			t.Errorf("the lineage is %v, want %v, oldest first", got, want)
		}
		return err
	})
}

func testKeyRace(t *testing.T, f *fixture) {
	var wins atomic.Int32
	var winner atomic.Value
	var wg sync.WaitGroup
	got := make([]pawl.KeyRow, 8)
	for i := range got {
		wg.Go(func() {
			row := newRun()
			row.Key = "ticket:1"
			row.InputHash = []byte{byte(i)}
			err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
				key, won, err := tx.ClaimKey(ctx, pawl.KeyRow{KeyName: "refund", Key: row.Key, InputHash: row.InputHash, Lineage: row.ID})
				got[i] = key
				if err != nil || !won {
					return err
				}
				wins.Add(1)
				winner.Store(row.ID)
				return tx.InsertRuns(ctx, []pawl.RunRow{row})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := wins.Load(); n != 1 {
		t.Fatalf("%d claims won, want 1", n)
	}
	for i := range got {
		if got[i].Lineage != winner.Load().(pawl.RunID) || !slices.Equal(got[i].InputHash, got[0].InputHash) || got[i].Key != "ticket:1" {
			t.Errorf("claim %d got %+v, want the winner's row", i, got[i])
		}
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error { // the key is per key name
		id := f.rowID(ctx, tx)
		_, won, err := tx.ClaimKey(ctx, pawl.KeyRow{KeyName: "other", Key: "ticket:1", Lineage: id})
		if !won {
			t.Error("the same product key under another key name was taken")
		}
		return err
	})
}

// rowID inserts a run inside tx.
func (f *fixture) rowID(ctx context.Context, tx pawl.Txn) pawl.RunID {
	row := newRun()
	f.ok(tx.InsertRuns(ctx, []pawl.RunRow{row}))
	return row.ID
}

func testKeyRollback(t *testing.T, f *fixture) {
	key := pawl.KeyRow{KeyName: "refund", Key: "k", Lineage: newRunID()}
	err := f.s.Update(f.ctx(), func(ctx context.Context, tx pawl.Txn) error {
		if _, won, err := tx.ClaimKey(ctx, key); err != nil || !won {
			return fmt.Errorf("first claim: %t, %w", won, err)
		}
		return errTest
	})
	if !errors.Is(err, errTest) {
		t.Fatal(err)
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		key.Lineage = f.rowID(ctx, tx)
		_, won, err := tx.ClaimKey(ctx, key)
		if !won {
			t.Error("the key is not free after the rollback")
		}
		return err
	})
}

func testKeyEnd(t *testing.T, f *fixture) {
	row := newRun()
	row.Key = "k"
	key := pawl.KeyRow{KeyName: "refund", Key: "k", Lineage: row.ID, InputHash: []byte{9}}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		_, _, err := tx.ClaimKey(ctx, key)
		return errors.Join(err, tx.InsertRuns(ctx, []pawl.RunRow{row}))
	})
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		r, err := tx.LockRun(ctx, row.ID)
		if err != nil {
			return err
		}
		beside := *r
		beside.NewKeys, beside.State = true, pawl.Failed
		r.State = pawl.Cancelled
		if err := errors.Join(tx.EndKey(ctx, &beside), tx.SaveRun(ctx, r)); err != nil {
			return err
		}
		stored, _, err := tx.ClaimKey(ctx, key)
		if stored.End != "" {
			t.Errorf("a fork with keys of its own ended the key as %q", stored.End)
		}
		if err := errors.Join(err, tx.EndKey(ctx, r)); err != nil {
			return err
		}
		stored, won, err := tx.ClaimKey(ctx, key)
		if won || stored.End != pawl.Cancelled || stored.EndedAt != r.Ended || stored.Lineage != row.ID || !slices.Equal(stored.InputHash, key.InputHash) {
			t.Errorf("key row %+v (new: %t), want cancelled at %d", stored, won, r.Ended)
		}
		return err
	})
	f.update(func(ctx context.Context, tx pawl.Txn) error { // no key, or a key of another: nothing to do
		return errors.Join(tx.EndKey(ctx, &pawl.RunRow{ID: row.ID, State: pawl.Failed}),
			tx.EndKey(ctx, &pawl.RunRow{ID: row.ID, Lineage: pawl.RunID(uuid.NewString()), KeyName: "refund", Key: "k", State: pawl.Failed}))
	})
}

func testKeyMove(t *testing.T, f *fixture) {
	row, next := newRun(), newRun()
	row.Key, next.Key = "k", "k"
	key := pawl.KeyRow{KeyName: "refund", Key: "k", Lineage: row.ID, InputHash: []byte{9}}
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		_, _, err := tx.ClaimKey(ctx, key)
		return errors.Join(err, tx.InsertRuns(ctx, []pawl.RunRow{row, next}), tx.EndKey(ctx, &pawl.RunRow{KeyName: "refund", Key: "k", Lineage: row.ID, State: pawl.Failed, Ended: 1}))
	})
	move := func(from pawl.RunRow, want bool) {
		t.Helper()
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			got, err := tx.MoveKey(ctx, &from, next.ID)
			if got != want {
				t.Errorf("the key was moved: %t, want %t", got, want)
			}
			return err
		})
	}
	beside, stranger, keyless := row, row, row
	beside.NewKeys, stranger.Lineage, keyless.Key = true, newRunID(), ""
	move(beside, false)
	move(stranger, false)
	move(keyless, false)
	move(row, true)
	move(row, false)
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		stored, won, err := tx.ClaimKey(ctx, key)
		if won || stored.Lineage != next.ID || !slices.Equal(stored.InputHash, key.InputHash) || stored.End != "" || stored.EndedAt != 0 {
			t.Errorf("key row %+v (new: %t), want it live, of run %s, with the first hash", stored, won, next.ID)
		}
		return err
	})
}
