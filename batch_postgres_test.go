package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
)

// noted is the effect of a Tx step.
func noted(ctx context.Context, tx *sql.Tx, id string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO done (item) VALUES ($1)`, id)
	return err
}

// C41, FR-106, on PostgreSQL: workers that die in a batch leave one effect for each key and each transaction.
func TestBatchOnPostgres(t *testing.T) {
	t.Parallel()
	const n, limit = 300, 8
	s := openPostgres(t, pgtest.URL(t))
	if _, err := s.DB().ExecContext(t.Context(), `CREATE TABLE done (item TEXT)`); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	sent := map[pawl.OpKey]int{}
	items := numbered(n)
	w := pawl.Define("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
		res, err := pawl.Batch(run, "rows", items, self, func(run *pawl.Run, id string) (string, error) {
			if err := pawl.KeyedDo(run, "send", id, func(_ context.Context, key pawl.OpKey, id string) error {
				mu.Lock()
				defer mu.Unlock()
				if sent[key]++; id == "i0007" {
					return errors.New("no")
				}
				return nil
			}, pawl.Retry(pawl.RetryPolicy{Attempts: 1})); err != nil {
				return "", err
			}
			return id, pawl.TxDo(run, "note", id, noted)
		}, pawl.AtOnce(limit))
		return told(res, err)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var id pawl.RunID
	for k := range 3 {
		store := &mortal{Store: s}
		effects := 0
		die := func(at hooks.Point, _, _ string) {
			if at == hooks.EffectDone && k < 2 {
				mu.Lock()
				if effects++; effects == 80 {
					store.dead.Store(true)
				}
				mu.Unlock()
			}
			if store.dead.Load() && at != hooks.CommitSending && at != hooks.TxCommitting {
				<-ctx.Done()
			}
		}
		e, err := pawl.New(store, &pawl.Options{Lease: 2 * time.Second, Poll: 100 * time.Millisecond, Build: "b1",
			Logger: slog.New(slog.DiscardHandler), Hooks: &hooks.Hooks{At: die}}, w)
		if err != nil {
			t.Fatal(err)
		}
		workCtx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Work(workCtx) }()
		defer func() {
			store.dead.Store(false) // or it tries for long to report what it did
			stop()
			cancel()
			if err := <-done; err != nil {
				t.Log(err) // it was dead
			}
		}()
		if k == 0 {
			h, err := w.Start(t.Context(), e, "x")
			if err != nil {
				t.Fatal(err)
			}
			id = h.ID()
		}
		if k < 2 {
			eventually(t, "the worker dies", store.dead.Load)
			continue
		}
		if _, err := w.Handle(e, id).Result(t.Context()); err == nil || !strings.Contains(err.Error(), `first "i0007"`) {
			t.Errorf("the run ended with %v, want the error of the item that failed", err)
		}
		infos, err := e.Batches(t.Context(), id)
		if err != nil || len(infos) != 1 || infos[0].Done != n-1 || infos[0].Failed != 1 || infos[0].Left != 0 || infos[0].PerSecond <= 0 {
			t.Errorf("the batch is at %+v, %v", infos, err)
		}
		p, err := e.Plan(t.Context(), id, pawl.PlanOptions{Mode: pawl.PlanRetry})
		if err != nil || len(p.Steps) == 0 || !strings.Contains(p.Steps[0].Why, fmt.Sprintf("%d items are reused; 1 failed and 0 missing", n-1)) {
			t.Errorf("the plan is %+v, %v", p, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	again := 0
	for _, times := range sent {
		again += times - 1
	}
	var rows, distinct int
	if err := s.DB().QueryRowContext(t.Context(), `SELECT count(*), count(DISTINCT item) FROM done`).Scan(&rows, &distinct); err != nil {
		t.Fatal(err)
	}
	if len(sent) != n || again > 2*limit || rows != n-1 || distinct != n-1 {
		t.Errorf("%d keys were sent, %d times again, %d effects in transactions on %d items; want %d, at most %d, and one each of %d",
			len(sent), again, rows, distinct, n, 2*limit, n-1)
	}
}
