package pawl_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
)

// plant puts journal rows into a run that no worker holds, as an earlier claim would have left them.
func (b *bench) plant(id pawl.RunID, rows ...pawl.StepRow) {
	b.t.Helper()
	err := b.store.Update(b.t.Context(), func(ctx context.Context, tx pawl.Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		for i := range rows {
			row := &rows[i]
			row.Run, row.Begun, row.Attempt = id, now, max(row.Attempt, 1)
			if row.State == pawl.StepUncertain {
				row.Ended = now
				if err := tx.OpenEntry(ctx, &pawl.EntryRow{Run: id, Step: row.Name, Kind: pawl.AskUncertain, Attempt: row.Attempt, Detail: "planted"}); err != nil {
					return err
				}
			}
			if err := tx.InsertStep(ctx, row); err != nil {
				return err
			}
		}
		run.Epoch, run.Started = 3, now
		return tx.SaveRun(ctx, run)
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// A terminal write commits only if no effect of the run is open. Otherwise the run is blocked with its intended end
// kept, and ends so when the question is answered (W8, C95).
func TestTerminalNeedsClosedRows(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("w", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Keyed(run, "save", in, okKeyed)
		})
		e := b.engine(w)
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		b.plant(h.ID(), pawl.StepRow{Name: "save", Kind: fault.KindKeyed, State: pawl.StepInFlight, KeyTTL: 1 << 40, FirstIntent: 1})
		if _, err := e.Cancel(t.Context(), h.ID(), pawl.Act{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		b.until(h.ID(), pawl.Blocked)
		stop()
		en := b.entry(e, pawl.AskUncertain)
		if err := e.Resolve(t.Context(), pawl.Answer{Entry: en.ID, Attempt: en.Attempt, Choice: pawl.AnswerHappened, Result: []byte("1"), By: "ann"}); err != nil {
			t.Fatal(err)
		}
		if d := b.show(e, h.ID()); d.State != pawl.Cancelled {
			t.Errorf("after the answer the run is %s, want its intended end, cancelled", d.State)
		}
	})
}

// Two people who settle two steps at once leave the run queued, never blocked with an empty inbox (W9).
func TestTwoSettlers(t *testing.T) {
	for range 5 {
		inBubble(t, func(t *testing.T, b *bench) {
			w := pawl.Define("w", "v1", mixed("oo"))
			e := b.engine(w)
			h, err := w.Start(t.Context(), e, 1)
			if err != nil {
				t.Fatal(err)
			}
			uncertain := pawl.StepRow{Kind: fault.KindOnce, State: pawl.StepUncertain}
			one, two := uncertain, uncertain
			one.Name, two.Name = "0/s", "1/s"
			b.plant(h.ID(), one, two)
			stop := b.work(e)
			b.until(h.ID(), pawl.Blocked)
			stop()
			all, _, err := e.Inbox(t.Context(), pawl.InboxQuery{})
			if err != nil || len(all) != 2 {
				t.Fatalf("inbox: %v, %v", all, err)
			}
			var wg sync.WaitGroup
			for _, en := range all {
				wg.Go(func() {
					err := e.Resolve(t.Context(), pawl.Answer{Entry: en.ID, Attempt: 1, Choice: pawl.AnswerHappened, Result: []byte("1"), By: "ann"})
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if d := b.show(e, h.ID()); d.State != pawl.Queued {
				t.Errorf("both steps are settled and the run is %s, want queued", d.State)
			}
			stop = b.work(e)
			if n, err := h.Result(t.Context()); err != nil || n != 2 {
				t.Errorf("got %d, %v", n, err)
			}
			stop()
		})
	}
}

// Evidence that settles a step while its run suspends must not leave the run blocked with nothing to answer (W9).
func TestSettledWhileSuspending(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("w", "v1", func(run *pawl.Run, in int) (int, error) {
			n, err := pawl.Once(run, "mail", in, okOnce)
			if errors.Is(err, pawl.ErrSuspended) {
				all, _, lerr := b.engine().Inbox(t.Context(), pawl.InboxQuery{})
				if lerr != nil || len(all) != 1 {
					t.Errorf("inbox: %v, %v", all, lerr)
					return 0, err
				}
				a := pawl.Answer{Entry: all[0].ID, Attempt: 1, Choice: pawl.AnswerHappened, Result: []byte("5"), By: "ann"}
				if rerr := b.engine().Resolve(t.Context(), a); rerr != nil {
					t.Error(rerr)
				}
			}
			return n, err
		})
		e := b.engine(w)
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		b.plant(h.ID(), pawl.StepRow{Name: "mail", Kind: fault.KindOnce, State: pawl.StepUncertain})
		stop := b.work(e)
		if n, err := h.Result(t.Context()); err != nil || n != 5 {
			t.Errorf("got %d, %v", n, err)
		}
		stop()
	})
}

// If the server's clock steps against the worker's own, expired leases are left alone for one lease (W13).
func TestClockStepTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, path: filepath.Join(t.TempDir(), "pawl.db"), effects: map[string]int{}}
		b.hooks = &hooks.Hooks{Boot: bubbleClock()}
		b.opts = pawl.Options{Lease: 6 * time.Second, Build: "b1", Hooks: b.hooks, Drain: time.Second}
		s, err := sqlite.Open(b.path, &sqlite.Options{Hooks: &hooks.Store{WallLease: true, Offset: true}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		b.store = s
		release := make(chan struct{})
		w := pawl.Define("w", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Repeatable(run, "slow", in, func(context.Context, int) (int, error) {
				n := b.effect("slow")
				<-release
				return n, nil
			})
		})
		e1, e2 := b.engine(w), b.engine(w)
		h, err := w.Start(t.Context(), e1, 1)
		if err != nil {
			t.Fatal(err)
		}
		stop1 := b.work(e1)
		time.Sleep(time.Second)
		stop2 := b.work(e2)
		time.Sleep(5 * time.Second) // both have renewed
		if _, err := s.DB().ExecContext(t.Context(), "UPDATE pawl_test_clock SET offset_us = offset_us + 3600000000"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		close(release)
		if _, err := h.Result(t.Context()); err != nil {
			t.Error(err)
		}
		stop1()
		stop2()
		if n := b.count("slow"); n != 1 {
			t.Errorf("a step of the store's clock by an hour made a second worker take a run that is alive: executed %d times", n)
		}
	})
}
