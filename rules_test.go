package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
)

// spy wraps a store: it counts write transactions and journal pages, and can lose replies.
type spy struct {
	pawl.Store
	commits, claims, pages atomic.Int64
	update                 func(ctx context.Context, fn func(context.Context, pawl.Txn) error) error // then Write leaves all to it
	write                  func(ctx context.Context, changes []pawl.Change) (int64, error)
	claim                  func(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error)
}

func (s *spy) Update(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
	s.commits.Add(1)
	if s.update != nil {
		return s.update(ctx, fn)
	}
	return s.Store.Update(ctx, fn)
}

func (s *spy) Write(ctx context.Context, changes []pawl.Change) (int64, error) {
	switch {
	case s.update != nil:
		return 0, pawl.ErrOneByOne
	case s.write != nil:
		return s.write(ctx, changes)
	}
	s.commits.Add(1)
	return s.Store.Write(ctx, changes)
}

func (s *spy) UpdateSQL(ctx context.Context, hold time.Duration, fn func(context.Context, pawl.Txn, *sql.Tx) error) error {
	s.commits.Add(1)
	return s.Store.UpdateSQL(ctx, hold, fn)
}

func (s *spy) Claim(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
	if s.claim != nil {
		return s.claim(ctx, c)
	}
	got, err := s.Store.Claim(ctx, c)
	if len(got) > 0 {
		s.claims.Add(1)
	}
	return got, err
}

func (s *spy) View(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
	return s.Store.View(ctx, func(ctx context.Context, tx pawl.Txn) error { return fn(ctx, &spyTx{tx, s}) })
}

type spyTx struct {
	pawl.Txn
	s *spy
}

func (t *spyTx) Steps(ctx context.Context, run pawl.RunID, after string, limit int) ([]pawl.StepRow, error) {
	t.s.pages.Add(1)
	return t.Txn.Steps(ctx, run, after, limit)
}

func (b *bench) spied(defs ...pawl.Definition) (*spy, *pawl.Engine) {
	b.t.Helper()
	s := &spy{Store: b.store}
	o := b.opts
	e, err := pawl.New(s, &o, defs...)
	if err != nil {
		b.t.Fatal(err)
	}
	return s, e
}

func ok(context.Context, int) (int, error)                   { return 1, nil }
func okKeyed(context.Context, pawl.OpKey, int) (int, error)  { return 1, nil }
func okOnce(context.Context, pawl.Intent, int) (int, error)  { return 1, nil }
func okTx(_ context.Context, tx *sql.Tx, _ int) (int, error) { return 1, nil }
func mixed(kinds string) func(*pawl.Run, int) (int, error) {
	return func(run *pawl.Run, in int) (n int, err error) {
		for i, k := range kinds {
			r, m := run.Item(fmt.Sprint(i)), 0
			switch k {
			case 'r':
				m, err = pawl.Repeatable(r, "s", in, ok)
			case 'p':
				m, err = pawl.Repeatable(r, "s", in, ok, pawl.Paid())
			case 'k':
				m, err = pawl.Keyed(r, "s", in, okKeyed)
			case 't':
				m, err = pawl.Tx(r, "s", in, okTx)
			case 'o':
				m, err = pawl.Once(r, "s", in, okOnce)
			}
			if err != nil {
				return n, err
			}
			n += m
		}
		return n, nil
	}
}

// A run of S steps costs at most S+2 write commits from claim to terminal state, whatever the kinds (W16).
func TestCommitBudget(t *testing.T) {
	for _, kinds := range []string{"", "r", "o", "otot", "rrrrr", "ooooo", "kkkkk", "ttttt", "ppppp", "rkotp", "oktrpotkrp"} {
		inBubble(t, func(t *testing.T, b *bench) {
			w := pawl.Define("mixed", "v1", mixed(kinds))
			b.hooks.FlushDelay, b.hooks.NoSweep = time.Hour, true
			s, e := b.spied(w)
			h, err := w.Start(t.Context(), e, 1)
			if err != nil {
				t.Fatal(err)
			}
			s.commits.Store(0)
			stop := b.work(e)
			if n, err := h.Result(t.Context()); err != nil || n != len(kinds) {
				t.Fatalf("got %d, %v", n, err)
			}
			stop()
			if got, most := s.commits.Load()+s.claims.Load(), int64(len(kinds)+2); got > most {
				t.Errorf("%q: a run of %d steps cost %d write commits, at most %d are allowed", kinds, len(kinds), got, most)
			}
		})
	}
}

// Resuming a run with 5,000 finished steps costs one claim and five pages (5.13).
func TestResumeReadsPages(t *testing.T) {
	const steps = 5000
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("long", "v1", mixed(""))
		_, e := b.spied(w)
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		err = b.store.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			for i := range steps {
				row := &pawl.StepRow{Run: h.ID(), Name: fmt.Sprintf("old-%04d", i), Kind: 1, State: pawl.StepSucceeded, Attempt: 1,
					Value: []byte("1"), ValueSize: 1, Inherited: "x", Begun: 1, Ended: 1}
				if err := tx.InsertStep(ctx, row); err != nil {
					return err
				}
			}
			run, err := tx.LockRun(ctx, h.ID())
			run.Epoch = 7
			return errors.Join(err, tx.SaveRun(ctx, run))
		})
		if err != nil {
			t.Fatal(err)
		}
		s, e := b.spied(w)
		stop := b.work(e)
		if _, err := h.Result(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		if s.claims.Load() != 1 || s.pages.Load() != 5 {
			t.Errorf("resume of %d steps: %d claims and %d pages, want 1 and 5", steps, s.claims.Load(), s.pages.Load())
		}
	})
}

// Everything a step could depend on is durable before it starts (R1), and an intent before its callback (C77, C90).
func TestOrderRule(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const kinds = "rkotprokt"
		w := pawl.Define("mixed", "v1", mixed(kinds))
		b.hooks.FlushDelay = time.Hour
		b.hooks.At = func(p hooks.Point, run, step string) {
			if p != hooks.EffectBegin {
				return
			}
			var i int
			_, _ = fmt.Sscanf(step, "%d/s", &i)
			if kinds[i] == 't' {
				return // its transaction carries what came before it
			}
			d, err := b.engine().Show(context.WithoutCancel(t.Context()), pawl.RunID(run))
			if err != nil {
				t.Error(err)
				return
			}
			have := map[string]pawl.StepState{}
			for _, s := range d.Steps {
				have[s.Name] = s.State
			}
			for j := range i {
				if got := have[fmt.Sprintf("%d/s", j)]; got != pawl.StepSucceeded {
					t.Errorf("step %d starts while the result of step %d is not durable (%q)", i, j, got)
				}
			}
			if kinds[i] != 'r' && have[step] != pawl.StepInFlight {
				t.Errorf("the callback of step %d runs before its intent is durable (%q)", i, have[step])
			}
		}
		e := b.engine(w)
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		if _, err := h.Result(t.Context()); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// A claim whose reply is lost is not renewed for ever: ownership is what the worker holds in memory (W2).
func TestLostClaimReply(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("mixed", "v1", mixed("ro"))
		s, e := b.spied(w)
		lost := false
		s.claim = func(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
			got, err := s.Store.Claim(ctx, c)
			if len(got) > 0 && !lost {
				lost = true
				return nil, fmt.Errorf("reply lost: %w", pawl.ErrCommitUnknown)
			}
			return got, err
		}
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		stop := b.work(e)
		if _, err := h.Result(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > b.opts.Lease {
			t.Errorf("a run whose claim's reply was lost waited %v: the worker should release it at its next heartbeat", took)
		}
		stop()
		if !lost {
			t.Error("no reply was lost")
		}
	})
}

// A write whose COMMIT reply was lost is sent again, and the old one, landing later, changes nothing (W4).
func TestDelayedCommit(t *testing.T) {
	for nth := range 6 {
		inBubble(t, func(t *testing.T, b *bench) {
			w := pawl.Define("mixed", "v1", mixed("oko"))
			s, e := b.spied(w)
			h, err := w.Start(t.Context(), e, 1)
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var held func(context.Context, pawl.Txn) error
			n := 0
			s.update = func(ctx context.Context, fn func(context.Context, pawl.Txn) error) error {
				mu.Lock()
				n++
				hold := n == nth+1
				if hold {
					held = fn
				}
				mu.Unlock()
				if hold {
					return fmt.Errorf("cut: %w", pawl.ErrCommitUnknown)
				}
				return s.Store.Update(ctx, fn)
			}
			stop := b.work(e)
			if got, err := h.Result(t.Context()); err != nil || got != 3 {
				t.Errorf("write %d: got %d, %v", nth, got, err)
			}
			stop()
			before := fmt.Sprintf("%+v", b.show(e, h.ID()))
			if held == nil {
				return // the run needs fewer writes
			}
			if err := b.store.Update(t.Context(), held); err == nil {
				t.Errorf("write %d: the delayed copy was accepted after the run had ended", nth)
			}
			if after := fmt.Sprintf("%+v", b.show(e, h.ID())); after != before {
				t.Errorf("write %d: the delayed copy changed the run:\n%s\n%s", nth, before, after)
			}
		})
	}
}

// A write with the right epoch but another claim's token is refused (W14): after a failover that lost a claim, the
// epoch is given out twice.
func TestTokenFences(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		sent := 0
		w := pawl.Define("mail", "v1", func(run *pawl.Run, in int) (int, error) {
			if _, err := pawl.Repeatable(run, "first", in, ok); err != nil {
				return 0, err
			}
			err := b.store.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
				row, err := tx.LockRun(ctx, run.ID())
				if err != nil {
					return err
				}
				if sent == 0 && row.LostTotal == 0 {
					row.Token++
					row.LostTotal = 1
				}
				return tx.SaveRun(ctx, row)
			})
			if err != nil {
				t.Error(err)
			}
			return pawl.Once(run, "mail", in, func(context.Context, pawl.Intent, int) (int, error) {
				sent++
				return sent, nil
			})
		})
		e := b.engine(w)
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		time.Sleep(time.Second)
		if sent != 0 {
			t.Error("a worker whose claim token is not the stored one sent the mail")
		}
		if d := b.show(e, h.ID()); len(d.Steps) > 1 {
			t.Errorf("a worker whose claim token is not the stored one wrote %+v", d.Steps)
		}
		stop()
	})
}
