package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
)

// Runs of these tests are started at once by the process that works on them, and their writes take long enough for those
// that come meanwhile to share the next one.

const (
	slowWrite = 10 * time.Millisecond
	crowdSize = 3
)

// counting is a workflow of a step for each letter of kinds, which counts its effects by the run's input.
func (b *bench) counting(kinds string) *pawl.Workflow[int, int] {
	return pawl.Define("counting", "v1", func(run *pawl.Run, in int) (sum int, err error) {
		for i, k := range kinds {
			r, n, name := run.Item(strconv.Itoa(i)), 0, fmt.Sprintf("%d/%d", in, i)
			switch k {
			case 'r':
				n, err = pawl.Repeatable(r, "s", in, func(context.Context, int) (int, error) { return b.effect(name), nil })
			case 'k':
				n, err = pawl.Keyed(r, "s", in, func(context.Context, pawl.OpKey, int) (int, error) { return b.effect(name), nil })
			case 'o':
				n, err = pawl.Once(r, "s", in, func(context.Context, pawl.Intent, int) (int, error) { return b.effect(name), nil })
			}
			if err != nil {
				return sum, err
			}
			sum += n
		}
		return sum, nil
	})
}

// crowd starts crowdSize runs at once and returns what became of the starts, by input.
func crowd(t *testing.T, e *pawl.Engine, w *pawl.Workflow[int, int]) ([]*pawl.Handle[int], []error) {
	t.Helper()
	all, errs := make([]*pawl.Handle[int], crowdSize), make([]error, crowdSize)
	var wg sync.WaitGroup
	for i := range crowdSize {
		wg.Go(func() { all[i], errs[i] = w.Start(t.Context(), e, i) })
	}
	wg.Wait()
	return all, errs
}

// once fails unless all runs end well, each with every effect made once and every result in its journal.
func (b *bench) once(e *pawl.Engine, all []*pawl.Handle[int], steps int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	for i, h := range all {
		if n, err := h.Result(ctx); err != nil || n != steps {
			b.t.Errorf("run %d gave %d, %v; want %d", i, n, err, steps)
		}
		d := b.show(e, h.ID())
		if d.State != pawl.Succeeded || len(d.Steps) != steps {
			b.t.Errorf("run %d is %s with %d steps, want %d", i, d.State, len(d.Steps), steps)
		}
		for _, st := range d.Steps {
			if st.State != pawl.StepSucceeded {
				b.t.Errorf("run %d, step %q is %s", i, st.Name, st.State)
			}
		}
		for k := range steps {
			if n := b.count(fmt.Sprintf("%d/%d", i, k)); n != 1 {
				b.t.Errorf("run %d made effect %d %d times", i, k, n)
			}
		}
	}
}

// starts reports whether the changes add runs.
func starts(changes []pawl.Change) bool {
	return slices.ContainsFunc(changes, func(c pawl.Change) bool { return c.Start != nil })
}

// After a shared transaction of which nobody knows whether it was committed, each of its runs is looked at alone, under its
// lock: nothing is written twice, nothing is lost, and a copy of the transaction that lands late changes nothing.
func TestSharedWriteWithAnUnknownEnd(t *testing.T) {
	const kinds = "rokro"
	shared := 0
	for _, end := range []string{"landed", "late"} {
		for nth := range 8 {
			inBubble(t, func(t *testing.T, b *bench) {
				w := b.counting(kinds)
				s, e := b.spied(w)
				b.hooks.NoSweep = true
				var n atomic.Int64
				var failed []pawl.Change
				s.write = func(ctx context.Context, changes []pawl.Change) (int64, error) {
					time.Sleep(slowWrite) // bubble
					if starts(changes) || n.Add(1) != int64(nth)+1 {
						return s.Store.Write(ctx, changes)
					}
					failed = slices.Clone(changes)
					if end == "landed" {
						if _, err := s.Store.Write(ctx, changes); err != nil {
							t.Error(err)
						}
					}
					return 0, fmt.Errorf("cut: %w", pawl.ErrCommitUnknown)
				}
				stop := b.work(e)
				time.Sleep(time.Second) // bubble
				all, errs := crowd(t, e, w)
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				b.once(e, all, len(kinds))
				if got := s.commits.Load(); got != int64(len(failed)) {
					t.Errorf("%s, write %d: its %d runs were looked at in %d transactions", end, nth, len(failed), got)
				}
				shared = max(shared, len(failed))
				if end == "late" && len(failed) > 0 {
					before := b.shown(e, all)
					if _, err := b.store.Write(t.Context(), failed); !errors.Is(err, pawl.ErrOneByOne) {
						t.Errorf("write %d: the late copy: %v, want ErrOneByOne", nth, err)
					}
					if after := b.shown(e, all); after != before {
						t.Errorf("write %d: the late copy changed the runs:\n%s\n%s", nth, before, after)
					}
				}
				stop()
			})
		}
	}
	if shared < 2 {
		t.Errorf("at most %d run was in a transaction: none was shared", shared)
	}
}

func (b *bench) shown(e *pawl.Engine, all []*pawl.Handle[int]) (text string) {
	b.t.Helper()
	for _, h := range all {
		text += fmt.Sprintf("%+v\n", b.show(e, h.ID()))
	}
	return text
}

// A run that was taken over does not hold up those with which it shares a transaction, a start among them: they are
// written one by one, and what the lost run was about to write is dropped.
func TestSharedWriteWithALostRun(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const kinds = "rr"
		w := b.counting(kinds)
		s, e := b.spied(w)
		gate, hold := make(chan struct{}), make(chan struct{})
		var holds atomic.Bool
		b.hooks.NoSweep, b.hooks.FlushDelay = true, time.Hour
		b.hooks.At = func(p hooks.Point, _, _ string) {
			if p == hooks.BodyDone {
				<-gate
			}
		}
		const rival = pawl.WorkerID("7d444840-9dc0-11d1-b245-5ffdce74fad2")
		if err := b.store.Register(t.Context(), pawl.WorkerRow{ID: rival, Lease: time.Hour}, nil); err != nil {
			t.Fatal(err)
		}
		taken, refused := pawl.RunID(""), 0
		s.write = func(ctx context.Context, changes []pawl.Change) (int64, error) {
			if holds.CompareAndSwap(true, false) {
				<-hold
			}
			if i := slices.IndexFunc(changes, func(c pawl.Change) bool { return c.Start == nil }); i >= 0 && starts(changes) && taken == "" {
				taken = changes[i].Run
				b.save(taken, func(run *pawl.RunRow) { run.Epoch, run.Owner = run.Epoch+1, rival })
			}
			now, err := s.Store.Write(ctx, changes)
			if errors.Is(err, pawl.ErrOneByOne) {
				refused += len(changes)
			}
			return now, err
		}
		stop := b.work(e)
		time.Sleep(time.Second) // bubble
		all, errs := crowd(t, e, w)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		// While a fourth one is being written, the ends of these three come, and a fifth one.
		all = append(all, nil, nil)
		errs = make([]error, len(all))
		var wg sync.WaitGroup
		start := func(i int) {
			wg.Go(func() { all[i], errs[i] = w.Start(t.Context(), e, i) })
			synctest.Wait()
		}
		holds.Store(true)
		start(crowdSize)
		close(gate)
		start(crowdSize + 1)
		close(hold)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if taken == "" || refused < 2 {
			t.Fatalf("run %q was taken over, %d changes were refused: want two or more", taken, refused)
		}
		for i, h := range all {
			if h.ID() == taken {
				if d := b.show(e, taken); d.State != pawl.Running || d.Owner != rival || len(d.Steps) != 0 {
					t.Errorf("the lost run is %s at %s with %d steps, want none of this worker's", d.State, d.Owner, len(d.Steps))
				}
				continue
			}
			if n, err := h.Result(t.Context()); err != nil || n != len(kinds) {
				t.Errorf("run %d, a neighbour of the lost one: %d, %v", i, n, err)
			}
		}
		time.Sleep(100 * time.Millisecond)                                             // bubble
		if got := s.commits.Load(); got != int64(refused) && got != int64(refused)-1 { // the lost run may know it before
			t.Errorf("%d changes that were refused together were tried in %d transactions", refused, got)
		}
		b.save(taken, func(run *pawl.RunRow) { run.State, run.Owner, run.Token, run.Due = pawl.Queued, "", 0, run.Created })
		b.until(taken, pawl.Succeeded)
		d := b.show(e, taken)
		if i := slices.IndexFunc(all, func(h *pawl.Handle[int]) bool { return h.ID() == taken }); len(d.Steps) != len(kinds) || b.count(fmt.Sprintf("%d/0", i)) != 2 {
			t.Errorf("run %d has %d steps and made its first effect %d times, want that again, because its result was dropped",
				i, len(d.Steps), b.count(fmt.Sprintf("%d/0", i)))
		}
		stop()
	})
}

func (b *bench) save(id pawl.RunID, change func(*pawl.RunRow)) {
	b.t.Helper()
	err := b.store.Update(b.t.Context(), func(ctx context.Context, tx pawl.Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		change(run)
		return tx.SaveRun(ctx, run)
	})
	if err != nil {
		b.t.Error(err)
	}
}

// While the database takes no writes, those of runs that are under way wait for it, and a start fails at once.
func TestSharedWritesWaitForTheDatabase(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const kinds = "rokro"
		w := b.counting(kinds)
		s, e := b.spied(w)
		down := errors.New("the database is away")
		var away atomic.Bool
		s.write = func(ctx context.Context, changes []pawl.Change) (int64, error) {
			time.Sleep(slowWrite) // bubble
			if away.Load() {
				return 0, down
			}
			return s.Store.Write(ctx, changes)
		}
		stop := b.work(e)
		time.Sleep(time.Second) // bubble
		all, errs := crowd(t, e, w)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		away.Store(true)
		begun := time.Now()
		if _, err := w.Start(t.Context(), e, crowdSize); !errors.Is(err, down) || errors.Is(err, pawl.ErrCommitUnknown) {
			t.Errorf("a start while the database is away: %v, want that it is away", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("a start while the database is away took %v", took)
		}
		time.Sleep(2 * b.opts.Lease) // bubble
		for i, h := range all {
			if d := b.show(e, h.ID()); d.State != pawl.Running {
				t.Errorf("run %d is %s while nothing can be written", i, d.State)
			}
		}
		away.Store(false)
		back := time.Now()
		b.once(e, all, len(kinds))
		if took := time.Since(back); took > 2*time.Second {
			t.Errorf("the runs took %v after the database was back", took)
		}
		if got, _, err := e.Runs(t.Context(), pawl.RunQuery{}); err != nil || len(got) != crowdSize {
			t.Errorf("there are %d runs, %v; want %d: the start that failed made none", len(got), err, crowdSize)
		}
		stop()
	})
}

// A start whose COMMIT got no answer says so. If the run is there it belongs to this worker, who does not know it: a
// heartbeat gives it back, and it is executed, once.
func TestStartWithAnUnknownEnd(t *testing.T) {
	const kinds = "rok"
	for _, end := range []string{"landed", "lost", "late"} {
		inBubble(t, func(t *testing.T, b *bench) {
			w := b.counting(kinds)
			s, e := b.spied(w)
			s.write = func(ctx context.Context, changes []pawl.Change) (int64, error) {
				time.Sleep(slowWrite) // bubble
				if !starts(changes) {
					return s.Store.Write(ctx, changes)
				}
				changes = slices.Clone(changes) // one is written later
				for i := range changes {
					row := *changes[i].Start // as sent: the caller goes on with its own
					changes[i].Start = &row
				}
				land := func() {
					if _, err := s.Store.Write(context.WithoutCancel(ctx), changes); err != nil {
						t.Error(err)
					}
				}
				switch end {
				case "landed":
					land()
				case "late":
					time.AfterFunc(time.Second, land)
				}
				return 0, fmt.Errorf("cut: %w", pawl.ErrCommitUnknown)
			}
			stop := b.work(e)
			time.Sleep(time.Second) // bubble
			_, errs := crowd(t, e, w)
			for i, err := range errs {
				if !errors.Is(err, pawl.ErrCommitUnknown) {
					t.Errorf("%s: start %d: %v, want ErrCommitUnknown", end, i, err)
				}
			}
			time.Sleep(b.opts.Lease) // bubble
			got, _, err := e.Runs(t.Context(), pawl.RunQuery{})
			if err != nil {
				t.Fatal(err)
			}
			want, effects := crowdSize, 1
			if end == "lost" {
				want, effects = 0, 0
			}
			if len(got) != want {
				t.Errorf("%s: there are %d runs, want %d", end, len(got), want)
			}
			for _, r := range got {
				if r.State != pawl.Succeeded {
					t.Errorf("%s: a run is %s one lease after its start", end, r.State)
				}
			}
			for i := range crowdSize {
				for k := range len(kinds) {
					if n := b.count(fmt.Sprintf("%d/%d", i, k)); n != effects {
						t.Errorf("%s: effect %d of run %d was made %d times, want %d", end, k, i, n, effects)
					}
				}
			}
			stop()
		})
	}
}

// A worker that stops while a run is being started as its own waits for the start, and leaves the run to others.
func TestWorkerStopsWhileARunIsStarted(t *testing.T) {
	const kinds = "rok"
	for _, end := range []string{"landed", "unknown", "lost"} {
		inBubble(t, func(t *testing.T, b *bench) {
			w := b.counting(kinds)
			s, e := b.spied(w)
			sending, stopped := make(chan struct{}), make(chan struct{})
			s.write = func(ctx context.Context, changes []pawl.Change) (int64, error) {
				if starts(changes) {
					close(sending)
					<-stopped
					time.Sleep(time.Second) // bubble
				}
				if end == "lost" && starts(changes) {
					return 0, errors.New("no")
				}
				now, err := s.Store.Write(ctx, changes)
				if end == "unknown" && starts(changes) && err == nil {
					return 0, fmt.Errorf("cut: %w", pawl.ErrCommitUnknown)
				}
				return now, err
			}
			stop := b.work(e)
			time.Sleep(time.Second) // bubble
			result := make(chan error, 1)
			go func() {
				_, err := w.Start(t.Context(), e, 0)
				result <- err
			}()
			<-sending
			close(stopped)
			stop()
			err := <-result
			switch {
			case end == "landed" && err != nil, end == "unknown" && !errors.Is(err, pawl.ErrCommitUnknown), end == "lost" && err == nil:
				t.Errorf("%s: Start: %v", end, err)
			}
			if n := b.count("0/0"); n != 0 {
				t.Errorf("%s: a step was begun while the worker stopped", end)
			}
			next := b.engine(w)
			stop = b.work(next)
			time.Sleep(b.opts.Lease) // bubble
			got, _, err := next.Runs(t.Context(), pawl.RunQuery{})
			if err != nil {
				t.Fatal(err)
			}
			want := 1
			if end == "lost" {
				want = 0
			}
			if len(got) != want || want == 1 && got[0].State != pawl.Succeeded {
				t.Errorf("%s: the next worker left %+v, want %d run that has succeeded", end, got, want)
			}
			for k := range len(kinds) {
				if n := b.count(fmt.Sprintf("0/%d", k)); n != want {
					t.Errorf("%s: effect %d was made %d times, want %d", end, k, n, want)
				}
			}
			stop()
		})
	}
}
