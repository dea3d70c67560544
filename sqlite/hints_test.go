package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlrun/pawl/sqlite"
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
	own := int64(0)
	woken = heard(t, sqlite.Watch(t, path, func() int64 { own++; return own }))
	soon(t, woken, "the wake that listening begins with, beside commits of this process at all times")
	for range 3 {
		insert(t, other, 1)
		soon(t, woken, "a commit of another process beside own ones")
	}
}

// Commits of this process, which nobody can tell from others, wake it at a bounded rate.
func TestWatchIsCalmBesideOwnCommits(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "pawl.db"))
	woken := heard(t, s.Listen)
	soon(t, woken, "the wake that listening begins with")
	begun, n := time.Now(), 0
	for ; time.Since(begun) < 300*time.Millisecond; n++ {
		insert(t, s, 1)
	}
	if most := int(time.Since(begun)/(10*time.Millisecond)) + 2; len(woken) > most {
		t.Errorf("%d wakes by %d commits of this process in %v, want %d at most", len(woken), n, time.Since(begun), most)
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
