package pawl_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
)

// A batch holds a few hundred bytes an item beside what it is called with, also when it goes on after a kill.
func TestBatchMemory(t *testing.T) {
	n := upTo(5_000, 100_000)
	s, err := sqlite.Open(filepath.Join(t.TempDir(), "pawl.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	items := make([]int, n)
	for i := range items {
		items[i] = i
	}
	var ran atomic.Int64
	w := pawl.Define("batched", "v1", func(run *pawl.Run, _ string) (string, error) {
		res, err := pawl.Batch(run, "rows", items, func(i int) string { return fmt.Sprintf("item-%08d", i) }, func(run *pawl.Run, i int) (int, error) {
			return pawl.Repeatable(run, "double", i, func(_ context.Context, i int) (int, error) {
				ran.Add(1)
				return 2 * i, nil
			})
		})
		if err != nil {
			return "", err
		}
		sum := 0
		for _, r := range res.All() {
			sum += r.Value
		}
		return fmt.Sprintf("%d items, sum %d", res.Done, sum), res.Err()
	})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var most int64
	check := func() {
		if now := heap() - before; now > most {
			most = now
		}
	}
	// work runs a worker until it has executed the items up to stop, and then is dead, or until the run has ended.
	work := func(id pawl.RunID, stop int64) pawl.RunID {
		store := &mortal{Store: s}
		looked := atomic.Int64{}
		died := make(chan struct{})
		e, err := pawl.New(store, &pawl.Options{Lease: 2 * time.Second, Poll: 50 * time.Millisecond, Build: "b1", Logger: slog.New(slog.DiscardHandler),
			Hooks: &hooks.Hooks{At: func(at hooks.Point, _, _ string) {
				if r := ran.Load(); at == hooks.EffectDone && r%int64(n/8) == 0 && looked.Swap(r) != r {
					check()
					if stop > 0 && r >= stop && store.dead.CompareAndSwap(false, true) {
						close(died)
					}
				}
			}}}, w)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Work(ctx) }()
		defer func() {
			store.dead.Store(false)
			cancel()
			if err := <-done; err != nil {
				t.Log(err) // it was dead
			}
		}()
		if id == "" {
			h, err := w.Start(t.Context(), e, "x")
			if err != nil {
				t.Fatal(err)
			}
			<-died
			return h.ID()
		}
		began := time.Now()
		got, err := w.Handle(e, id).Result(t.Context())
		if want := fmt.Sprintf("%d items, sum %d", n, n*(n-1)); err != nil || got != want {
			t.Errorf("result %q, %v; want %q", got, err, want)
		}
		t.Logf("the second part took %v", time.Since(began))
		return id
	}
	began := time.Now()
	id := work("", int64(n/2))
	t.Logf("the first part took %v", time.Since(began))
	work(id, 0)
	t.Logf("%d bytes an item, %d executions", most/int64(n), ran.Load())
	if most > int64(n)*300+20<<20 {
		t.Errorf("the heap grew by %d bytes, which is %d an item", most, most/int64(n))
	}
	if again := ran.Load() - int64(n); again > 16 {
		t.Errorf("%d items ran again, want those in flight at the kill", again)
	}
}
