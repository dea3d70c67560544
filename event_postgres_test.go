package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
)

// counter is a PostgreSQL store with workers, on which transactions of senders and of waits see each other.
type counter struct {
	t    *testing.T
	s    *postgres.Store
	desk *pawl.Engine
}

func openCounter(t *testing.T) *counter {
	s := openPostgres(t, pgtest.URL(t))
	desk, err := pawl.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &counter{t, s, desk}
}

// work runs a worker until the test ends.
func (c *counter) work(at func(p hooks.Point, run, step string), defs ...pawl.Definition) {
	c.t.Helper()
	e, err := pawl.New(c.s, &pawl.Options{Poll: 50 * time.Millisecond, Drain: time.Second, Build: "b1", Hooks: &hooks.Hooks{At: at}}, defs...)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
}

func (c *counter) count(query string) (n int) {
	c.t.Helper()
	if err := c.s.DB().QueryRowContext(c.t.Context(), query).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// queues waits until n transactions wait for locks.
func (c *counter) queues(what string, n int) {
	c.t.Helper()
	eventually(c.t, what, func() bool {
		return c.count(`SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND database IS NOT DISTINCT FROM
			(SELECT oid FROM pg_database WHERE datname = current_database()) OR NOT granted AND locktype = 'transactionid'`) >= n
	})
}

func (c *counter) result(h *pawl.Handle[string], want string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	if got, err := h.Result(ctx); got != want || err != nil {
		c.t.Errorf("the run gave %q (%v), want %q", got, err, want)
	}
}

func (c *counter) begin(w *pawl.Workflow[string, string]) *pawl.Handle[string] {
	c.t.Helper()
	h, err := w.Start(c.t.Context(), c.desk, "o1")
	if err != nil {
		c.t.Fatal(err)
	}
	return h
}

func payment(limit ...pawl.WaitOption) *pawl.Workflow[string, string] {
	return flow("payment", "v1", func(run *pawl.Run, in string) (string, error) {
		v, err := pawl.Await(run, "pay", paid, pawl.Key(in), limit...)
		if errors.Is(err, fault.ReasonWaitTimeout) {
			v, err = pawl.Await(run, "again", paid, pawl.Key(in))
			v = "late " + v
		}
		return v, err
	})
}

// gate stops the first transaction of a run that is complete but not committed.
func gate() (at func(p hooks.Point, run, step string), reached, open chan struct{}) {
	reached, open = make(chan struct{}), make(chan struct{})
	var once sync.Once
	return func(p hooks.Point, run, _ string) {
		if p == hooks.CommitSending && run != "" {
			once.Do(func() {
				close(reached)
				<-open
			})
		}
	}, reached, open
}

// An event that is sent between a wait's look for one and its commit is delivered (FR-057 b).
func TestEventBetweenLookAndPark(t *testing.T) {
	t.Parallel()
	c := openCounter(t)
	w := payment()
	at, reached, open := gate()
	c.work(at, w)
	h := c.begin(w)
	<-reached
	sent := make(chan error, 1)
	go func() { sent <- paid.Send(t.Context(), c.desk, "o1", "A") }()
	c.queues("the send waits for the wait's transaction", 1)
	close(open)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	c.result(h, "A")
	if n := c.count(`SELECT count(*) FROM pawl_takings`); n != 1 {
		t.Errorf("the event was taken %d times", n)
	}
}

// A wait that begins while a sender's transaction is open waits for it, and finds the event if it commits.
func TestAwaitBesideAnOpenSend(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprint("commit ", commit), func(t *testing.T) {
			t.Parallel()
			c := openCounter(t)
			w := payment()
			tx, err := c.s.DB().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := paid.Send(t.Context(), pawl.InTx(c.desk, tx), "o1", "A"); err != nil {
				t.Fatal(err)
			}
			c.work(nil, w)
			h := c.begin(w)
			c.queues("the wait waits for the sender's transaction", 1)
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if !commit {
				eventually(t, "the wait is there", func() bool { return c.count(`SELECT count(*) FROM pawl_awaits`) == 1 })
				if err := paid.Send(t.Context(), c.desk, "o1", "B"); err != nil {
					t.Fatal(err)
				}
			}
			c.result(h, map[bool]string{true: "A", false: "B"}[commit])
		})
	}
}

// Of an event and a time limit whose transactions meet, the one that has the run's row first wins, and the other finds what
// it has stored (FR-058).
func TestEventAndLimitMeet(t *testing.T) {
	t.Parallel()
	t.Run("the event is first", func(t *testing.T) {
		t.Parallel()
		c := openCounter(t)
		w := payment(pawl.Within(time.Hour))
		c.work(nil, w)
		h := c.begin(w)
		eventually(t, "the wait is there", func() bool { return c.count(`SELECT count(*) FROM pawl_runs WHERE state = 'waiting'`) == 1 })
		tx, err := c.s.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := paid.Send(t.Context(), pawl.InTx(c.desk, tx), "o1", "A"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.s.DB().ExecContext(t.Context(), `UPDATE pawl_test_clock SET offset_us = offset_us + 7200000000`); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		c.result(h, "A")
	})
	t.Run("the limit is first", func(t *testing.T) {
		t.Parallel()
		c := openCounter(t)
		w := payment(pawl.Within(time.Nanosecond))
		reached, open := make(chan struct{}), make(chan struct{})
		var ends atomic.Int32
		c.work(func(p hooks.Point, run, _ string) {
			if p == hooks.CommitSending && run != "" && ends.Add(1) == 3 { // the wait, its suspension, its end
				close(reached)
				<-open
			}
		}, w)
		h := c.begin(w)
		<-reached
		sent := make(chan error, 1)
		go func() { sent <- paid.Send(t.Context(), c.desk, "o1", "A") }()
		c.queues("the send waits for the transaction that ends the wait", 1)
		close(open)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		c.result(h, "late A")
		if n := c.count(`SELECT count(*) FROM pawl_steps WHERE state = 'failed'`); n != 1 {
			t.Errorf("%d waits failed, want the first", n)
		}
	})
}

// A transaction that would not see who has begun to await is refused.
func TestSendNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	c := openCounter(t)
	tx, err := c.s.DB().BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	mentions(t, paid.Send(t.Context(), pawl.InTx(c.desk, tx), "o1", "A"), "paid", "repeatable read", "READ COMMITTED")
}

// Senders and waits in any order, at once, on two workers: every run gets its events once and in order (FR-057), also from
// transactions that lock several topics in different orders.
func TestEventsInAnyOrder(t *testing.T) {
	t.Parallel()
	const runs, senders = 60, 6
	c := openCounter(t)
	w := flow("payment", "v1", func(run *pawl.Run, in string) (string, error) {
		var got []string
		for i := range 3 {
			v, err := pawl.Await(run, fmt.Sprint(i), paid, pawl.Key(in))
			if err != nil {
				return "", err
			}
			got = append(got, v)
		}
		return strings.Join(got, " "), nil
	})
	c.work(nil, w)
	c.work(nil, w)
	handles := make([]*pawl.Handle[string], runs)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range handles {
			h, err := w.Start(t.Context(), c.desk, fmt.Sprint("o", i))
			if err != nil {
				t.Error(err)
				return
			}
			handles[i] = h
		}
	})
	for k := range senders {
		wg.Go(func() {
			for round := range 3 {
				mine := rand.Perm(runs / senders)
				for len(mine) > 0 {
					n := min(len(mine), 1+rand.IntN(2))
					part := mine[:n]
					mine = mine[n:]
					if err := c.sendAll(part, k, senders, fmt.Sprint(round)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, h := range handles {
		c.result(h, "0 1 2")
	}
}

// sendAll sends to several topics in one transaction of the caller's, and again if the database breaks a deadlock by it.
func (c *counter) sendAll(part []int, k, senders int, v string) error {
	for {
		tx, err := c.s.DB().BeginTx(c.t.Context(), nil)
		if err != nil {
			return err
		}
		for _, i := range part {
			if err == nil {
				err = paid.Send(c.t.Context(), pawl.InTx(c.desk, tx), pawl.Key(fmt.Sprint("o", i*senders+k)), v)
			}
		}
		if err == nil {
			return tx.Commit()
		}
		if err := errors.Join(tx.Rollback()); err != nil {
			return err
		}
		if fault.From(err).Reason != fault.ReasonDeadlock {
			return err
		}
	}
}
