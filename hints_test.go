package pawl_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

// hinting is a store whose hints a test counts, delays and lets fail, and whose listener it wakes.
type hinting struct {
	pawl.Store
	n    atomic.Int64
	wake atomic.Pointer[func()]

	mu   sync.Mutex // guards both below
	err  error
	slow time.Duration
}

func (h *hinting) Hint(ctx context.Context) error {
	h.n.Add(1)
	h.mu.Lock()
	err, slow := h.err, h.slow
	h.mu.Unlock()
	select {
	case <-time.After(slow):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *hinting) set(slow time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slow, h.err = slow, err
}

func (h *hinting) Listen(ctx context.Context, wake func()) error {
	h.wake.Store(&wake)
	<-ctx.Done()
	return ctx.Err()
}

// hints gives a store that counts and an engine on it.
func (b *bench) hints(defs ...pawl.Definition) (*hinting, *pawl.Engine) {
	b.t.Helper()
	h := &hinting{Store: b.store}
	o := b.opts
	e, err := pawl.New(h, &o, defs...)
	if err != nil {
		b.t.Fatal(err)
	}
	return h, e
}

var nothing = pawl.Define("nothing", "v1", func(*pawl.Run, int) (int, error) { return 0, nil })

func startN(t *testing.T, c pawl.Client, n int) {
	t.Helper()
	for i := range n {
		if _, err := nothing.Start(t.Context(), c, i); err != nil {
			t.Error(err)
		}
	}
}

// want checks how many hints there were since the last call.
func (h *hinting) want(t *testing.T, after time.Duration, want int64, why string) {
	t.Helper()
	time.Sleep(after) // bubble
	if got := h.n.Swap(0); got != want {
		t.Errorf("%d hints, want %d: %s", got, want, why)
	}
}

func TestHints(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		h, e := b.hints()
		startN(t, e, 1)
		h.want(t, 0, 1, "a start sends one before it returns")
		h.want(t, time.Hour, 0, "nothing has happened")

		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { startN(t, e, 1) })
		}
		wg.Wait()
		h.want(t, time.Second, 2, "those who come together send one, and one follows for those that came since")

		run, err := nothing.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		h.want(t, time.Second, 1, "a start")
		if _, err := e.Cancel(t.Context(), run.ID(), pawl.Act{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		h.want(t, time.Second, 1, "a cancel, which may make a run due")

		tx, err := b.store.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		startN(t, pawl.InTx(e, tx), 1)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		h.want(t, time.Second, 0, "a start inside the caller's transaction sends none")
	})
}

func TestHintsThatFail(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		h, e := b.hints()
		h.set(0, errors.New("no hints today"))
		startN(t, e, 10)
		h.want(t, 900*time.Millisecond, 1, "after an error none goes out for a second")
		h.want(t, 200*time.Millisecond, 1, "then one for all that came since")
		h.set(0, nil)
		h.want(t, time.Hour, 0, "nothing has happened")

		h.set(time.Hour, nil)
		begun := time.Now()
		startN(t, e, 3)
		if took := time.Since(begun); took > 250*time.Millisecond {
			t.Errorf("three starts waited %v for a database that does not take hints", took)
		}
	})
}

// A hint is for others: where a worker of this process has room, it is woken, and that is all.
func TestHintsOnlyWhereNeeded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.opts.Slots, b.opts.Drain = 2, time.Minute
		goOn := make(chan struct{})
		waits := pawl.Define("waits", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Repeatable(run, "wait", in, func(context.Context, int) (int, error) { <-goOn; return in, nil })
		})
		other := pawl.Define("other", "v1", func(*pawl.Run, int) (int, error) { return 0, nil })
		start := func(e *pawl.Engine, w *pawl.Workflow[int, int]) {
			t.Helper()
			if _, err := w.Start(t.Context(), e, 1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		h, e := b.hints(waits)
		stop := b.work(e)
		synctest.Wait()
		start(e, waits)
		start(e, waits)
		h.want(t, time.Second, 0, "the worker here has room")
		start(e, waits)
		h.want(t, time.Second, 1, "the worker here is full")
		close(goOn)
		h.want(t, time.Minute, 0, "the ends of runs only free slots")
		start(e, other)
		h.want(t, time.Second, 1, "the worker here does not have the workflow")
		stop()
		start(e, waits)
		h.want(t, time.Second, 1, "the worker here has stopped")
	})
}

// A stopping worker takes nothing, and what it gives back can be taken at once.
func TestHintsByADrain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.opts.Drain = time.Second
		begun := make(chan struct{}, 1)
		waits := pawl.Define("waits", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Repeatable(run, "wait", in, func(ctx context.Context, _ int) (int, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return 0, ctx.Err()
			})
		})
		h, e := b.hints(waits)
		stop := b.work(e)
		run, err := waits.Start(t.Context(), e, 1)
		if err != nil {
			t.Fatal(err)
		}
		<-begun
		time.Sleep(time.Second) // bubble: the hint, if the worker was not there yet
		h.n.Store(0)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		time.Sleep(b.opts.Drain / 2) // bubble
		if _, err := waits.Start(t.Context(), e, 2); err != nil {
			t.Fatal(err)
		}
		h.want(t, b.opts.Drain/4, 1, "the worker here is stopping")
		<-stopped
		h.want(t, 0, 1, "a run was released")
		if d := b.show(e, run.ID()); d.State != pawl.Queued {
			t.Errorf("the run is %s, want it queued", d.State)
		}
	})
}

// A thousand hints are one look at a time, and a worker without a free slot looks when it has one.
func TestHeard(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.opts.Slots, b.opts.Poll = 1, time.Hour
		begun, goOn := make(chan int, 1), make(chan struct{})
		waits := pawl.Define("waits", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Repeatable(run, "wait", in, func(context.Context, int) (int, error) { begun <- in; <-goOn; return in, nil })
		})
		store := &counting{hinting: hinting{Store: b.store}}
		o := b.opts
		worker, err := pawl.New(store, &o, waits)
		if err != nil {
			t.Fatal(err)
		}
		desk := b.engine()
		stop := b.work(worker)
		time.Sleep(time.Second) // bubble: the first looks
		start := func(in int) {
			t.Helper()
			if _, err := waits.Start(t.Context(), desk, in); err != nil {
				t.Fatal(err)
			}
		}
		hear := func(n int) {
			for range n {
				(*store.wake.Load())()
			}
			synctest.Wait()
		}
		store.looks.Store(0)
		held := make(chan struct{})
		store.held.Store(&held)
		hear(1)
		hear(1000)
		if n := store.looks.Load(); n != 1 {
			t.Errorf("%d looks at once, want one", n)
		}
		close(held)
		synctest.Wait()
		if n := store.looks.Load(); n != 2 {
			t.Errorf("%d looks for a hint and for the 1000 that came during its look, want two", n)
		}
		start(1)
		hear(1)
		if got := <-begun; got != 1 {
			t.Errorf("run %d was begun, want the first", got)
		}
		start(2)
		before := time.Now()
		store.looks.Store(0)
		hear(10)
		if n := store.looks.Load(); n != 0 {
			t.Errorf("%d looks of a worker that is full", n)
		}
		goOn <- struct{}{}
		if got := <-begun; got != 2 || time.Since(before) > time.Second {
			t.Errorf("run %d was begun after %v, want the second at once", got, time.Since(before))
		}
		goOn <- struct{}{}
		stop()
	})
}

// counting counts a worker's looks for due runs, and holds them up until a test closes what it put into held.
type counting struct {
	hinting
	looks atomic.Int64
	held  atomic.Pointer[chan struct{}]
}

func (c *counting) Due(ctx context.Context, id pawl.WorkerID) (time.Duration, bool, error) {
	c.looks.Add(1)
	if held := c.held.Load(); held != nil {
		<-*held
	}
	return c.Store.Due(ctx, id)
}

// Whoever waits for a run that is executed in the same process is told how it ends, and does not ask the store meanwhile.
func TestResultOfARunThatIsHere(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.opts.Poll = time.Hour
		slow := pawl.Define("slow", "v1", func(run *pawl.Run, in int) (int, error) {
			return pawl.Repeatable(run, "wait", in, func(context.Context, int) (int, error) { time.Sleep(time.Minute); return in, nil }) // bubble
		})
		store := &viewed{Store: b.store}
		o := b.opts
		e, err := pawl.New(store, &o, slow)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(e)
		ask := func(n int) (views int64) {
			t.Helper()
			run, err := slow.Start(t.Context(), e, 7)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // bubble: it is begun
			before := store.views.Load()
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					if out, err := run.Result(t.Context()); out != 7 || err != nil {
						t.Errorf("result %d, %v", out, err)
					}
				})
			}
			time.Sleep(2 * time.Minute) // bubble
			wg.Wait()
			return store.views.Load() - before
		}
		if alone, asked := ask(0), ask(10); asked != alone {
			t.Errorf("%d reads while ten wait for the result, %d while nobody does", asked, alone)
		}
		stop()
	})
}

// A lost worker's run is found within a sixth of a lease after that has ended, however long a poll is.
func TestLostWorkerIsFoundBetweenPolls(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.opts.Poll = 24 * time.Hour
		var second time.Time
		s.on("a", func(ctx context.Context, n int) (string, error) {
			if n == 1 {
				return "", sleep(ctx, time.Hour)
			}
			second = time.Now()
			return "A", nil
		})
		w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "a", in) })
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(time.Minute) // bubble
		s.spawn("b1", w)
		time.Sleep(2 * time.Minute) // bubble: it has looked often, in vain
		p.kill()
		died := time.Now()
		s.reach(id, pawl.Succeeded)
		if took, most := second.Sub(died), s.opts.Lease+s.opts.Lease/6+100*time.Millisecond; took > most {
			t.Errorf("the run went on after %v, want %v at most", took, most)
		}
	})
}

// viewed counts how often a store is read.
type viewed struct {
	pawl.Store
	views atomic.Int64
}

func (v *viewed) View(ctx context.Context, f func(context.Context, pawl.Txn) error) error {
	v.views.Add(1)
	return v.Store.View(ctx, f)
}

// A store that cannot listen leaves a worker to its polls.
type noListen struct{ pawl.Store }

func (noListen) Listen(context.Context, func()) error { return errors.ErrUnsupported }

func TestWithoutHints(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		o := b.opts
		worker, err := pawl.New(noListen{b.store}, &o, nothing)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.work(worker)
		time.Sleep(time.Minute) // bubble
		run, err := nothing.Start(t.Context(), b.engine(), 1)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := run.Result(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 2*b.opts.Poll+time.Second {
			t.Errorf("the run took %v with a poll every %v", took, b.opts.Poll)
		}
		stop()
	})
}

// A run that one process starts is begun by an idle worker of another one, long before that one's next poll.
func TestStartReachesOtherProcesses(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "pawl.db")
		reaches(t, func() pawl.Store {
			s, err := sqlite.Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}, time.Hour)
	})
	for _, c := range []struct {
		name string
		off  bool
		poll time.Duration
	}{{"postgres", false, time.Hour}, {"postgres, not listening", true, 50 * time.Millisecond}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.URL(t)
			reaches(t, func() pawl.Store {
				s, err := postgres.Open(t.Context(), url, &postgres.Options{Migrate: true, NoListen: c.off})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}, c.poll)
		})
	}
}

// reaches starts runs through one store and works through another one.
func reaches(t *testing.T, open func() pawl.Store, poll time.Duration) {
	t.Helper()
	here, there := open(), open()
	for _, s := range []pawl.Store{here, there} {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	worker, err := pawl.New(here, &pawl.Options{Poll: poll, Build: "b1"}, nothing)
	if err != nil {
		t.Fatal(err)
	}
	desk, err := pawl.New(there, &pawl.Options{Build: "b1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	done := make(chan error, 1)
	work, stop := context.WithCancel(ctx)
	go func() { done <- worker.Work(work) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		cancel()
	}()
	for i := range 5 {
		run, err := nothing.Start(ctx, desk, i)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Result(ctx); err != nil {
			t.Fatalf("run %d was not executed: %v", i, err)
		}
	}
}
