package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// A claim on its way has a right to the slots that it has asked for: a start that comes meanwhile does not take them.
func TestSlotsAreABound(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var running, most atomic.Int64
		w := pawl.Define("busy", "v1", func(_ *pawl.Run, in int) (int, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Second) // bubble
			return in, nil
		})
		b.opts.Slots = 1
		s, e := b.spied(w)
		var mu sync.Mutex // guards all
		var all []*pawl.Handle[int]
		start := func() {
			mu.Lock()
			defer mu.Unlock()
			if len(all) == 5 {
				return
			}
			h, err := w.Start(t.Context(), e, len(all))
			if err != nil {
				t.Error(err)
			}
			all = append(all, h)
		}
		s.claim = func(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
			got, err := s.Store.Claim(ctx, c)
			if len(got) > 0 {
				start()
			}
			return got, err
		}
		stop := b.work(e)
		defer stop()
		time.Sleep(time.Second) // bubble
		b.startElsewhere(w, 0)
		time.Sleep(30 * time.Second) // bubble
		mu.Lock()
		defer mu.Unlock()
		if len(all) != 5 {
			t.Fatalf("%d runs were started during a claim", len(all))
		}
		for i, h := range all {
			if n, err := h.Result(t.Context()); err != nil || n != i {
				t.Errorf("run %d: %d, %v", i, n, err)
			}
		}
		if most.Load() != 1 {
			t.Errorf("%d runs were executed at once in one slot", most.Load())
		}
	})
}

// A run whose body has ended leaves its slot to the next one, which need not wait for the write of the end. Ends that do not get
// through do not pile up: twice as many runs as there are slots are the most that a worker has.
func TestEndsLeaveTheirSlots(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const slots, runs = 3, 20
		var began, running, most atomic.Int64
		var held atomic.Bool
		through := make(chan struct{})
		b.hooks.At = func(p hooks.Point, _, _ string) {
			if p == hooks.CommitSending && held.Load() {
				<-through
			}
		}
		w := pawl.Define("short", "v1", func(_ *pawl.Run, in int) (int, error) {
			began.Add(1)
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Second) // bubble
			return in, nil
		})
		b.opts.Slots, b.opts.Lease = slots, time.Hour
		e := b.engine(w)
		handles, err := w.StartMany(t.Context(), e, upward(runs), nil)
		if err != nil {
			t.Fatal(err)
		}
		held.Store(true)
		stop := b.work(e)
		time.Sleep(time.Minute) // bubble
		if n := began.Load(); n != 2*slots {
			t.Errorf("while no end gets through, %d runs began in %d slots; want %d", n, slots, 2*slots)
		}
		held.Store(false)
		close(through)
		time.Sleep(time.Minute) // bubble
		stop()
		for i, h := range handles {
			if n, err := h.Result(t.Context()); err != nil || n != i {
				t.Errorf("run %d: %d, %v", i, n, err)
			}
		}
		if most.Load() != slots {
			t.Errorf("%d bodies were executed at once in %d slots", most.Load(), slots)
		}
	})
}

// A run that its own worker claims again, because somebody has released it meanwhile, takes the place of its old execution: that
// one is told, and its end makes no room.
func TestClaimedAgainByTheSameWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var began, running atomic.Int64
		var held atomic.Bool
		through, told := make(chan struct{}), make(chan error, 1)
		b.hooks.At = func(p hooks.Point, _, _ string) {
			if p == hooks.CommitSending && held.Load() {
				<-through
			}
		}
		w := pawl.Define("long", "v1", func(run *pawl.Run, in int) (int, error) {
			first := began.Add(1) == 1
			running.Add(1)
			defer running.Add(-1)
			return pawl.Repeatable(run, "s", in, func(ctx context.Context, in int) (int, error) {
				if first {
					<-ctx.Done()
					told <- context.Cause(ctx)
				}
				time.Sleep(time.Minute) // bubble
				return in, nil
			})
		})
		b.opts.Slots, b.opts.Lease = 2, time.Hour
		s, e := b.spied(w)
		h, err := w.Start(t.Context(), e, 0)
		if err != nil {
			t.Fatal(err)
		}
		var worker atomic.Value
		s.claim = func(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
			worker.Store(c.Worker)
			return s.Store.Claim(ctx, c)
		}
		stop := b.work(e)
		time.Sleep(time.Second) // bubble
		if ok, err := s.ReleaseLost(t.Context(), worker.Load().(pawl.WorkerID), h.ID(), 1); err != nil || !ok {
			t.Fatalf("released: %t, %v", ok, err)
		}
		for i := range 5 {
			b.startElsewhere(w, i)
		}
		time.Sleep(5 * time.Second) // bubble
		select {
		case err := <-told:
			if !errors.Is(err, fault.ErrLeaseLost) {
				t.Errorf("the old execution is told %v", err)
			}
		default:
			t.Error("the old execution is not told that another one has its run")
		}
		held.Store(true)
		time.Sleep(70 * time.Second) // bubble: the old one has ended, and nothing that ends is written
		if n := running.Load(); n > 2 {
			t.Errorf("%d bodies are executed in 2 slots", n)
		}
		held.Store(false)
		close(through)
		time.Sleep(time.Hour) // bubble
		stop()
	})
}

// startElsewhere starts a run through an engine that does not work.
func (b *bench) startElsewhere(w *pawl.Workflow[int, int], in int) *pawl.Handle[int] {
	b.t.Helper()
	e, err := pawl.New(b.store, &pawl.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	h, err := w.Start(b.t.Context(), e, in)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

// Who started a run learns its end also if another process took it over and the execution here hangs.
func TestResultOfARunThatWasTakenOver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		free := make(chan struct{})
		w := pawl.Define("stuck", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Repeatable(run, "wait", in, func(context.Context, int) (int, error) {
				<-free // it does not look at its context
				return in, nil
			})
		})
		_, e := b.spied(w)
		stop := b.work(e)
		time.Sleep(time.Second) // bubble
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // bubble
		b.save(h.ID(), func(run *pawl.RunRow) {
			run.State, run.Epoch, run.Result, run.SetResult = pawl.Succeeded, run.Epoch+1, []byte("7"), true
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if n, err := h.Result(ctx); err != nil || n != 7 {
			t.Errorf("the result is %d, %v; want the 7 of the other process", n, err)
		}
		close(free)
		stop()
	})
}

// Failed attempts are recorded with the times that they had, whatever their kind.
func TestTimesOfFailedAttempts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		tries := make(map[string]int)
		fails := func(name string) error {
			time.Sleep(time.Second) // bubble
			if tries[name]++; tries[name] < 3 {
				return fault.NotSent(&fault.Fault{Class: fault.Transient, Reason: fault.ReasonUnavailable, Err: errors.New("away")})
			}
			return nil
		}
		w := pawl.Define("fails", "v1", func(run *pawl.Run, in int) (int, error) {
			return in, errors.Join(
				pawl.RepeatableDo(run, "repeatable", in, func(context.Context, int) error { return fails("repeatable") }),
				pawl.KeyedDo(run, "keyed", in, func(context.Context, pawl.OpKey, int) error { return fails("keyed") }),
				pawl.TxDo(run, "tx", in, func(context.Context, *sql.Tx, int) error { return fails("tx") }))
		})
		_, e := b.spied(w)
		stop := b.work(e)
		defer stop()
		begun := time.Now()
		h, err := w.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Result(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, step := range b.show(e, h.ID()).Steps {
			last := begun
			if len(step.Attempts) != 3 {
				t.Errorf("%s has %d attempts, want 3", step.Name, len(step.Attempts))
			}
			for _, a := range step.Attempts {
				if took := a.Ended.Sub(a.Begun); a.Begun.Before(last) || took < time.Second || took > 3*time.Second { // a result is written with what follows it
					t.Errorf("attempt %d of %s lasted from %v to %v; it took a second, after %v", a.Attempt, step.Name, a.Begun, a.Ended, last)
				}
				last = a.Begun
			}
		}
	})
}

// Who starts a run that another engine works on learns its end soon: it looks after 2 ms, 4, 8 and so on, and not at once.
func TestResultOfAShortRunElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		w := pawl.Define("short", "v1", func(_ *pawl.Run, in int) (int, error) {
			time.Sleep(5 * time.Millisecond) // bubble
			return in, nil
		})
		b.opts.Poll = time.Millisecond
		stop := b.work(b.engine(w))
		defer stop()
		time.Sleep(time.Second) // bubble
		begun := time.Now()
		h := b.startElsewhere(w, 7)
		n, err := h.Result(t.Context())
		if took := time.Since(begun); err != nil || n != 7 || took >= 10*time.Millisecond {
			t.Errorf("%d, %v, after %v; want 7 within 10 ms", n, err, took)
		}
	})
}
