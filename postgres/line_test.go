package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
)

// shared is a store behind a proxy, on whose connection for shared writes all statements of the test are prepared.
func shared(t *testing.T) (*postgres.Store, *pgtest.Proxy) {
	t.Helper()
	url := pgtest.URL(t)
	open(t, url)
	proxy := pgtest.NewProxy(t, url)
	s, err := postgres.Open(t.Context(), proxy.Rewrite(t, url), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := <-sends(t, s, starts(newRun(), newRun())); err != nil {
		t.Fatal(err)
	}
	if err := <-sends(t, s, nobody()); !errors.Is(err, pawl.ErrOneByOne) {
		t.Fatalf("a write for a run that is not there: %v", err)
	}
	return s, proxy
}

func sends(t *testing.T, s *postgres.Store, changes []pawl.Change) chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.Write(t.Context(), changes)
		done <- err
	}()
	return done
}

func starts(rows ...pawl.RunRow) (all []pawl.Change) {
	for i := range rows {
		all = append(all, pawl.Change{Start: &rows[i]})
	}
	return all
}

// nobody holds the run that the change is for.
func nobody() []pawl.Change {
	var rows []*pawl.StepRow
	run := newRun().ID
	for _, name := range []string{"a", "b"} {
		rows = append(rows, &pawl.StepRow{Run: run, Name: name, Kind: fault.KindRepeatable, State: pawl.StepSucceeded, Attempt: 1, Epoch: 1,
			Begun: pawl.AtWrite, Ended: pawl.AtWrite, InputHash: []byte{1}, Value: []byte("1"), ValueSize: 1})
	}
	return []pawl.Change{{Run: run, Epoch: 1, Token: 1, Insert: rows}}
}

// still checks that a write has no answer yet.
func still(t *testing.T, done chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("a write that cannot have an answer: %v", err)
	case <-time.After(100 * time.Millisecond): // time to be answered on a connection of its own
	}
}

// A second shared write is sent behind the first one, on its connection, and each has its own answer.
func TestSharedWritesFollowEachOther(t *testing.T) {
	t.Parallel()
	s, proxy := shared(t)
	held := proxy.HoldCommit()
	first, second := newRun(), newRun()
	a := sends(t, s, starts(first))
	<-held
	b := sends(t, s, starts(second, newRun()))
	still(t, b)
	go proxy.ReleaseCommit(t)
	for name, done := range map[string]chan error{"first": a, "second": b} {
		if err := <-done; err != nil {
			t.Errorf("the %s: %v", name, err)
		}
	}
	if !there(t, s, first.ID) || !there(t, s, second.ID) {
		t.Error("a run is not there")
	}
}

// What is sent behind a write that fails, in the transaction that it leaves, is sent again.
func TestSharedWriteBehindOneThatFails(t *testing.T) {
	t.Parallel()
	s, proxy := shared(t)
	proxy.BlackHole(true)
	a := sends(t, s, nobody())
	still(t, a)
	row := newRun()
	b := sends(t, s, starts(row))
	still(t, b)
	proxy.BlackHole(false)
	if err := <-a; !errors.Is(err, pawl.ErrOneByOne) {
		t.Errorf("the first: %v, want ErrOneByOne", err)
	}
	if err := <-b; err != nil {
		t.Errorf("the second: %v", err)
	}
	if !there(t, s, row.ID) {
		t.Error("the second one's run is not there")
	}
	if err := <-sends(t, s, starts(newRun())); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// A connection that breaks leaves both writes without an answer: nobody knows what has become of either.
func TestSharedWritesLoseTheirConnection(t *testing.T) {
	t.Parallel()
	s, proxy := shared(t)
	held := proxy.HoldCommit()
	a := sends(t, s, starts(newRun()))
	<-held
	b := sends(t, s, starts(newRun()))
	still(t, b)
	proxy.CutAll()
	for name, done := range map[string]chan error{"first": a, "second": b} {
		if err := <-done; !errors.Is(err, pawl.ErrCommitUnknown) {
			t.Errorf("the %s: %v, want ErrCommitUnknown", name, err)
		}
	}
	if err := <-sends(t, s, starts(newRun())); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// Many at once, some of which fail: each has the answer that it would have alone.
func TestSharedWritesKeepTheirAnswers(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	failing, ends := context.WithCancel(t.Context())
	failed := make(chan int)
	go func() {
		n := 0
		for ; failing.Err() == nil; n++ {
			if _, err := s.Write(t.Context(), nobody()); !errors.Is(err, pawl.ErrOneByOne) {
				t.Errorf("a write for a run that is not there: %v", err)
			}
		}
		failed <- n
	}()
	for range 300 {
		row := newRun()
		if _, err := s.Write(t.Context(), starts(row)); err != nil {
			t.Errorf("a start: %v", err)
		} else if !there(t, s, row.ID) {
			t.Error("a run is not there")
		}
	}
	ends()
	if n := <-failed; n < 100 {
		t.Errorf("%d writes failed beside: the test shows little", n)
	}
}
