package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
)

func (b *bench) row(id pawl.RunID) *pawl.RunRow {
	b.t.Helper()
	var run *pawl.RunRow
	err := b.store.View(b.t.Context(), func(ctx context.Context, tx pawl.Txn) (err error) {
		run, err = tx.LockRun(ctx, id)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return run
}

// The epoch grows with each claim and with each release, and a release clears the token (W4): a write of a claim that
// is over finds another epoch whenever it lands.
func TestEpochGrowsOnRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var claimed []int64
		w := pawl.Define("parks", "v1", func(run *pawl.Run, in int) (int, error) {
			claimed = append(claimed, b.row(run.ID()).Epoch)
			return pawl.Repeatable(run, "later", in, func(context.Context, int) (int, error) {
				if b.effect("later") == 1 {
					return 0, fault.RetryAfter(errors.New("busy"), time.Minute)
				}
				return 1, nil
			})
		})
		e := b.engine(w)
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		b.until(h.ID(), pawl.Waiting)
		parked := b.row(h.ID())
		if _, err := h.Result(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		ended := b.row(h.ID())
		got := []int64{claimed[0], parked.Epoch, claimed[1], ended.Epoch}
		for i := 1; i < len(got); i++ {
			if got[i] <= got[i-1] {
				t.Errorf("epochs at claim, park, claim and end are %v: each must be greater than the one before", got)
				break
			}
		}
		if parked.Token != 0 || ended.Token != 0 {
			t.Errorf("a released run keeps its claim token: %d, %d", parked.Token, ended.Token)
		}
	})
}

// A worker that cannot be sure of its lease starts no effect, though the intent is on record (W2), and says so: the
// step is tried again and nobody is asked.
func TestNoEffectWithoutTrust(t *testing.T) {
	for _, kinds := range []string{"o", "k", "p"} {
		inBubble(t, func(t *testing.T, b *bench) {
			w := pawl.Define("mixed", "v1", mixed(kinds))
			jump, began, claims := time.Duration(0), map[int]int{}, 0
			real := b.hooks.Boot
			b.hooks.Boot = func() time.Duration { return real() + jump }
			b.hooks.At = func(p hooks.Point, _, _ string) {
				switch {
				case p == hooks.Claimed:
					claims++
				case p == hooks.IntentWritten && claims == 1:
					jump += b.opts.Lease // the machine slept past the lease right here
				case p == hooks.EffectBegin:
					began[claims]++
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
			if began[1] != 0 || claims < 2 {
				t.Errorf("%q: the first of %d claims began %d effects after it had slept past its lease, want 0", kinds, claims, began[1])
			}
			if d := b.show(e, h.ID()); len(d.Entries) != 0 {
				t.Errorf("%q: a person was asked about an effect that was never begun: %+v", kinds, d.Entries)
			}
		})
	}
}

// lossy loses the reply to the first commit of a Tx step.
type lossy struct {
	pawl.Store
	lost bool
}

func (s *lossy) UpdateSQL(ctx context.Context, hold time.Duration, fn func(context.Context, pawl.Txn, *sql.Tx) error) error {
	err := s.Store.UpdateSQL(ctx, hold, fn)
	if err == nil && !s.lost {
		s.lost = true
		return fmt.Errorf("reply lost: %w", pawl.ErrCommitUnknown)
	}
	return err
}

// A Tx step whose COMMIT reply was lost is looked for under the fence before anything else: its callback does not run
// again if it has landed (W4).
func TestTxWithALostReplyRunsOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("tx", "v1", func(run *pawl.Run, in int) (int, error) {
			if _, err := pawl.Repeatable(run, "before", in, ok); err != nil {
				return 0, err
			}
			return pawl.Tx(run, "write", in, func(context.Context, *sql.Tx, int) (int, error) { return b.effect("write"), nil })
		})
		o := b.opts
		e, err := pawl.New(&lossy{Store: b.store}, &o, w)
		if err != nil {
			t.Fatal(err)
		}
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		if n, err := h.Result(t.Context()); err != nil || n != 1 {
			t.Errorf("got %d, %v", n, err)
		}
		stop()
		if n := b.count("write"); n != 1 {
			t.Errorf("the callback of a committed transaction ran %d times", n)
		}
	})
}

// "Did not happen" needs deadline, lease and the far end's settling time to have passed, where the attempt's process
// is not known to have ended (W5).
func TestOverOnlyAfterSettling(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("w", "v1", mixed("o"))
		e := b.engine(w)
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		far := pawl.WorkerRow{ID: "7d444840-9dc0-11d1-b245-5ffdce74fad2", Lease: 10 * time.Second, Machine: "elsewhere"}
		if err := b.store.Register(t.Context(), far, nil); err != nil {
			t.Fatal(err)
		}
		now := time.Now().UnixMicro()
		b.plant(h.ID(), pawl.StepRow{Name: "0/s", Kind: fault.KindOnce, State: pawl.StepInFlight, Worker: far.ID,
			Deadline: now + 5e6, Settle: 20e6})
		stop := b.work(e)
		b.until(h.ID(), pawl.Blocked)
		stop()
		en := b.entry(e, pawl.AskUncertain)
		if want := time.UnixMicro(now + 35e6); !en.OverAt.Equal(want) {
			t.Errorf("the attempt is over at %v, want deadline, lease and settle after: %v", en.OverAt, want)
		}
		time.Sleep(time.Until(time.UnixMicro(now + 34e6))) // bubble
		a := pawl.Answer{Entry: en.ID, Attempt: 1, Choice: pawl.AnswerDidNotHappen, Looked: time.Now(), By: "ann"}
		if err := e.Resolve(t.Context(), a); !errors.Is(err, pawl.ErrTooEarly) {
			t.Errorf("a second before the attempt was over: got %v, want ErrTooEarly", err)
		}
		time.Sleep(2 * time.Second) // bubble
		if err := e.Resolve(t.Context(), a); !errors.Is(err, pawl.ErrTooEarly) {
			t.Errorf("looked before the attempt was over, answered after: got %v, want ErrTooEarly", err)
		}
		a.Looked = time.Now()
		if err := e.Resolve(t.Context(), a); err != nil {
			t.Errorf("looked and answered after the attempt was over: %v", err)
		}
	})
}

// A Tx step commits only if its claim still holds the run at the end (W1): what its callback wrote goes with it.
func TestTxIsFencedLast(t *testing.T) {
	t.Parallel()
	s := openPostgres(t, pgtest.URL(t))
	if _, err := s.DB().ExecContext(t.Context(), "CREATE TABLE written (n BIGINT)"); err != nil {
		t.Fatal(err)
	}
	w := pawl.Define("tx", "v1", func(run *pawl.Run, in int) (int, error) {
		return pawl.Tx(run, "write", in, func(ctx context.Context, tx *sql.Tx, _ int) (int, error) {
			if _, err := tx.ExecContext(ctx, "INSERT INTO written VALUES (1)"); err != nil {
				return 0, err
			}
			// The run changes hands while the callback runs.
			return 1, s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
				row, err := tx.LockRun(ctx, run.ID())
				if err != nil {
					return err
				}
				row.Epoch++
				return tx.SaveRun(ctx, row)
			})
		})
	})
	o := pawl.Options{Lease: 2 * time.Second, Drain: time.Second, Build: "b1", Hooks: &hooks.Hooks{NoSweep: true}}
	e, err := pawl.New(s, &o, w)
	if err != nil {
		t.Fatal(err)
	}
	h, err := w.Start(t.Context(), e, 1)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 100)
	o.Hooks.At = func(p hooks.Point, _, _ string) {
		if p == hooks.BodyDone {
			ended <- struct{}{}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	<-ended
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var n int
	if err := s.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM written").Scan(&n); err != nil || n != 0 {
		t.Errorf("a transaction whose claim was over committed %d rows, %v", n, err)
	}
	d, err := e.Show(t.Context(), h.ID())
	if err != nil || len(d.Steps) != 0 {
		t.Errorf("the journal has %+v, %v", d.Steps, err)
	}
}

// Many long Tx steps do not cost the worker its lease: heartbeats wait for one transaction at a time, and a step that has
// waited for its turn has its full third of the lease (5.11).
func TestLongTransactionsKeepTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const runs = 12
		var claims atomic.Int64
		b.hooks.At = func(p hooks.Point, _, _ string) {
			if p == hooks.Claimed {
				claims.Add(1)
			}
		}
		w := pawl.Define("books", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Tx(run, "book", in, func(ctx context.Context, _ *sql.Tx, in int) (int, error) {
				b.effect("book")
				time.Sleep(b.opts.Lease/3 - 10*time.Millisecond) // bubble
				return in, context.Cause(ctx)
			})
		})
		b.opts.Slots = runs
		e := b.engine(w)
		var all []*pawl.Handle[int]
		for i := range runs {
			h, err := w.Start(t.Context(), e, i)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, h)
		}
		stop := b.work(e)
		for i, h := range all {
			if got, err := h.Result(t.Context()); err != nil || got != i {
				t.Errorf("run %d: %d, %v", i, got, err)
			}
		}
		stop()
		if n := b.count("book"); n != runs || claims.Load() != runs {
			t.Errorf("%d transactions in %d claims, want %d in %d: the lease was lost meanwhile", n, claims.Load(), runs, runs)
		}
	})
}

// late is a store whose answer to a heartbeat comes late, and which then gives none.
type late struct {
	pawl.Store
	by    time.Duration
	beats int
}

func (s *late) Heartbeat(ctx context.Context, w pawl.WorkerRow) (*pawl.Beat, error) {
	s.beats++
	if s.beats > 2 {
		return nil, errors.New("the database is away")
	}
	beat, err := s.Store.Heartbeat(ctx, w)
	time.Sleep(s.by) // bubble
	return beat, err
}

// Trust in a lease is counted from when its renewal was sent (W2): the lease runs from some moment after that, and the
// answer may have taken most of it.
func TestTrustCountsFromTheSend(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const lease = 6 * time.Second
		slow := &late{Store: b.store, by: lease / 6}
		trust := lease - lease/6
		start := time.Now()
		var began []time.Duration
		w := pawl.Define("sends", "v1", func(run *pawl.Run, in int) (int, error) {
			for i := range 20 {
				if err := pawl.OnceDo(run.Item(fmt.Sprint(i)), "send", i, func(context.Context, pawl.Intent, int) error {
					began = append(began, time.Since(start))
					time.Sleep(time.Second / 2) // bubble
					return nil
				}); err != nil {
					return 0, err
				}
			}
			return 1, nil
		})
		o := b.opts
		e, err := pawl.New(slow, &o, w)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Start(t.Context(), e, 1); err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		time.Sleep(3 * lease) // bubble
		stop()
		// The second renewal, the last that was answered, was sent a third of the lease after the first one's answer.
		last := slow.by + lease/3
		if len(began) == 0 || began[len(began)-1] >= last+trust {
			t.Errorf("sends began at %v; none may begin later than %v after the last good renewal, which was sent at %v", began, trust, last)
		}
		if len(began) > 0 && began[len(began)-1] < last+slow.by {
			t.Errorf("the last send began at %v, so the test shows nothing", began[len(began)-1])
		}
	})
}
