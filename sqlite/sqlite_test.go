package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/sqlite"
	"time"
)

func TestSmoke(t *testing.T) {
	for _, p := range []string{filepath.Join(t.TempDir(), "a b?c.db"), ":memory:"} {
		s, err := sqlite.Open(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx := context.Background()
		id := pawl.RunID(uuid.Must(uuid.NewV7()).String())
		w := pawl.WorkerID(uuid.NewString())
		runs := []pawl.RunRow{{ID: id, Lineage: id, Workflow: "w", Version: "1", KeyName: "w", Queue: "w", State: pawl.Queued, Input: []byte("{}")}}
		err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			ns, err := tx.Namespace(ctx)
			t.Log(ns, err)
			return tx.InsertRuns(ctx, runs)
		})
		if err != nil {
			t.Fatal(err)
		}
		has := []pawl.VersionID{{Workflow: "w", Version: "1"}, {Workflow: "v", Version: "2"}}
		if err := s.Register(ctx, pawl.WorkerRow{ID: w, Lease: time.Second}, has); err != nil {
			t.Fatal(err)
		}
		t.Log(s.Due(ctx, w))
		c, err := s.Claim(ctx, pawl.Claim{Worker: w, Has: has, Limit: 10, Token: 7, Expired: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", c)
		b, err := s.Heartbeat(ctx, pawl.WorkerRow{ID: w, Lease: time.Second})
		t.Logf("%+v %v", b, err)
		err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			r, err := tx.LockRun(ctx, id)
			if err != nil {
				return err
			}
			step := &pawl.StepRow{Run: id, Name: "a", Kind: fault.KindOnce, State: pawl.StepInFlight, Attempt: 1, Input: []byte("1\x00\xff")}
			if err := tx.InsertStep(ctx, step); err != nil {
				return err
			}
			step.State, step.Value, step.Input = pawl.StepSucceeded, []byte("x"), nil
			ok, err := tx.MoveStep(ctx, step, 1)
			t.Log(ok, err)
			st, err := tx.Step(ctx, id, "a")
			t.Logf("%+v %v", st, err)
			e := &pawl.EntryRow{Run: id, Kind: pawl.AskLimit}
			t.Log(tx.OpenEntry(ctx, e), e)
			t.Log(tx.OpenEntry(ctx, e), e)
			r.State = pawl.Succeeded
			r.SetResult = true
			return tx.SaveRun(ctx, r)
		})
		t.Log(err)
		l, err := s.ListRuns(ctx, pawl.RunQuery{Key: "x"})
		t.Log(l, err)
		l, err = s.ListRuns(ctx, pawl.RunQuery{Lineage: id})
		t.Log(l, err)
		st, back, err := s.Stray(ctx, time.Second, 10)
		t.Log(st, back, err)
		t.Log(s.Tidy(ctx, time.Second))
		t.Log(s.FindRun(ctx, string(id)[:9]))
	}
}
