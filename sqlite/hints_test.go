package sqlite_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// heard listens until the test is over and returns the channel of the wakes, all of them.
func heard(t *testing.T, listen func(context.Context, func()) error) chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	woken, done := make(chan struct{}, 1000), make(chan struct{})
	go func() {
		defer close(done)
		_ = listen(ctx, func() { woken <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return woken
}

func soon(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(20 * time.Second):
		t.Fatalf("still waiting: %s", what)
	}
}

// What another process commits is seen without a hint, also while this one commits.
func TestWatchSeesOtherProcesses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	here, other := open(t, path), open(t, path)
	woken := heard(t, here.Listen)
	soon(t, woken, "the wake that listening begins with")
	for range 3 {
		insert(t, other, 1)
		soon(t, woken, "a commit of another process")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() { // commits of this process at all times
		for ctx.Err() == nil {
			_ = here.Update(ctx, func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, []pawl.RunRow{newRun()}) })
		}
	})
	defer busy.Wait()
	defer cancel()
	for range 3 {
		insert(t, other, 1)
		soon(t, woken, "a commit of another process beside own ones")
	}
}

// Commits of this process wake it at a bounded rate.
func TestWatchIsCalmBesideOwnCommits(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "pawl.db"))
	woken := heard(t, s.Listen)
	soon(t, woken, "the wake that listening begins with")
	begun := time.Now()
	for time.Since(begun) < 300*time.Millisecond {
		insert(t, s, 1)
	}
	if n, most := len(woken), int(time.Since(begun)/(20*time.Millisecond))+1; n == 0 || n > most {
		t.Errorf("%d wakes by commits of this process, want 1 to %d", n, most)
	}
}

// A database in memory has no other process.
func TestMemoryIsNotWatched(t *testing.T) {
	t.Parallel()
	s := open(t, ":memory:")
	woken := heard(t, s.Listen)
	insert(t, s, 1)
	select {
	case <-woken:
		t.Error("a database in memory wakes")
	case <-time.After(60 * time.Millisecond): // a few looks
	}
}
