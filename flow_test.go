package pawl_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
)

// overlap counts how many runs execute at once, by what they are about.
type overlap struct {
	mu        sync.Mutex // guards all below
	now, most map[string]int
	order     []string
}

func newOverlap() *overlap { return &overlap{now: map[string]int{}, most: map[string]int{}} }

func (o *overlap) enter(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now[what]++
	o.most[what] = max(o.most[what], o.now[what])
	o.order = append(o.order, what)
}

func (o *overlap) leave(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now[what]--
}

// begun are the runs in the order in which they began.
func (o *overlap) begun() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.order...)
}

// lasting is a workflow whose runs do nothing for d in one step; a d of 0 stands for about a second.
func lasting(o *overlap, d time.Duration) *pawl.Workflow[string, string] {
	return flow("lasting", "v1", func(run *pawl.Run, in string) (string, error) {
		return pawl.Repeatable(run, "work", in, func(ctx context.Context, in string) (string, error) {
			o.enter(in)
			defer o.leave(in)
			select {
			case <-time.After(cmp.Or(d, time.Second+rand.N(time.Second/2))):
				return in, nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		})
	})
}

func (s *stage) many(w *pawl.Workflow[string, string], n int, in string, opts ...pawl.StartOption) (ids []pawl.RunID) {
	s.t.Helper()
	ins := make([]string, n)
	for i := range ins {
		ins[i] = in
	}
	hs, err := w.StartMany(s.t.Context(), s.desk, ins, nil, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range hs {
		ids = append(ids, h.ID())
	}
	return ids
}

func (s *stage) set(queue string, q pawl.QueueSettings) {
	s.t.Helper()
	if err := s.desk.SetQueue(s.t.Context(), queue, q, ann); err != nil {
		s.t.Fatal(err)
	}
}

// With work of high priority coming all the time, what has a low one begins when its head start is used up (FR-116).
func TestPriorityAges(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		o := newOverlap()
		w := lasting(o, 10*time.Second)
		s.spawnWith(func(o *pawl.Options) { o.Slots = 1 }, w)
		begin(s, w, "first", pawl.Priority(2))
		time.Sleep(time.Second) // bubble
		begun := time.Now()
		low := begin(s, w, "low")
		for range 30 { // twice what can be done, and always older than a minute
			begin(s, w, "high", pawl.Priority(2))
			begin(s, w, "high", pawl.Priority(2))
			time.Sleep(10 * time.Second) // bubble
		}
		d := s.reach(low, pawl.Succeeded)
		if waited := d.Started.Sub(begun); waited < time.Minute || waited > 4*time.Minute+20*time.Second {
			t.Errorf("the low run waited %v, want two minutes and the time for what was before it", waited)
		}
	})
}

// One tenant's backlog does not keep another one's run waiting for more than the runs that are running (FR-117).
func TestSharesTakeTurns(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		backlog := upTo(2_000, 100_000)
		const slots = 4
		o := newOverlap()
		w := lasting(o, 0) // each another time, so that slots become free one by one
		s.many(w, backlog, "a", pawl.Share("a"))
		s.spawnWith(func(o *pawl.Options) { o.Slots = slots }, w)
		time.Sleep(20*time.Second + 500*time.Millisecond) // bubble
		before := len(o.begun())
		if before < 3*slots {
			t.Fatalf("only %d runs of a have begun", before)
		}
		b := begin(s, w, "b", pawl.Share("b"))
		d := s.reach(b, pawl.Succeeded)
		all := o.begun()
		at := 0
		for i, what := range all {
			if what == "b" {
				at = i
			}
		}
		if at-before > slots {
			t.Errorf("%d runs of a began before b's, which waited %v; want one for each slot at most", at-before, d.Started.Sub(d.Created))
		}
	})
}

// A slot is a lease: killed holders neither keep it for ever nor let another one in too early, also when a new worker
// starts at once (FR-118, FR-120), and a holder that comes back gives nothing free twice (FR-119).
func TestLimitHoldsOverKills(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		rounds := upTo(4, 60)
		o := newOverlap()
		w := lasting(o, 2*time.Second)
		s.set("lasting", pawl.QueueSettings{MaxRunning: 1})
		ids := s.many(w, rounds, "x")
		for range rounds {
			p := s.spawn("b1", w)
			time.Sleep(time.Duration(rand.IntN(4000)) * time.Millisecond) // bubble
			switch p := p; rand.IntN(3) {
			case 0:
				p.stop()
			case 1:
				p.kill()
			default: // frozen for longer than its lease
				p.kill()
				time.AfterFunc(10*time.Second, func() { p.store.dead.Store(false) })
			}
		}
		s.spawn("b1", w)
		for _, id := range ids {
			s.reach(id, pawl.Succeeded)
		}
		// A killed process's step goes on to its end here, which is before its lease is over.
		if n := o.most["x"]; n != 1 {
			t.Errorf("%d runs were executed at once, the limit is 1", n)
		}
	})
}

// A limit per share and one for the queue hold with several workers, and all slots are used.
func TestLimitsOfAQueue(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		o := newOverlap()
		w := lasting(o, 2*time.Second)
		s.set("lasting", pawl.QueueSettings{MaxRunning: 5, MaxPerShare: 2})
		for range 3 {
			s.spawn("b1", w)
		}
		begun := time.Now()
		var ids []pawl.RunID
		for _, k := range []string{"a", "b", "c"} {
			ids = append(ids, s.many(w, 10, k, pawl.Share(pawl.Key(k)))...)
		}
		for _, id := range ids {
			s.reach(id, pawl.Succeeded)
		}
		if got := fmt.Sprint(o.most); got != "map[a:2 b:2 c:2]" {
			t.Errorf("at most %s of a share were running at once, want 2", got)
		}
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("thirty runs of two seconds took %v, want five at a time", took)
		}
	})
}

// A pause is a row: it holds for new workers, and for starts that would begin at once (FR-128).
func TestPauseIsKept(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		o := newOverlap()
		w := lasting(o, 2*time.Second)
		p := s.spawn("b1", w)
		time.Sleep(time.Second) // bubble
		first, err := w.Start(t.Context(), p, "first")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // bubble
		if err := s.desk.PauseQueue(t.Context(), "lasting", ann); err != nil {
			t.Fatal(err)
		}
		var ids []pawl.RunID
		for _, e := range []*pawl.Engine{p.Engine, p.Engine, s.desk} {
			h, err := w.Start(t.Context(), e, "paused")
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, h.ID())
		}
		s.reach(first.ID(), pawl.Succeeded)
		p.kill()
		s.spawn("b2", w)
		time.Sleep(10 * time.Minute) // bubble
		if n := o.most["paused"]; n > 0 {
			t.Errorf("%d runs began in a paused queue", n)
		}
		queues, err := s.desk.Queues(t.Context())
		if err != nil || len(queues) != 1 || queues[0].PausedBy != "ann" || queues[0].Due != 3 || queues[0].Paused.IsZero() {
			t.Errorf("queues %+v, %v; want one, paused by ann, with three that wait", queues, err)
		}
		found, err := s.desk.Doctor(t.Context())
		if err != nil || !strings.Contains(fmt.Sprint(found), "queue lasting by ann is paused") {
			t.Errorf("the doctor says %v, %v; want that the queue is paused", found, err)
		}
		if err := s.desk.ResumeQueue(t.Context(), "lasting", ann); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			s.reach(id, pawl.Succeeded)
		}
	})
}

// A rate holds over the processes.
func TestRateOverProcesses(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		o := newOverlap()
		w := lasting(o, time.Millisecond)
		s.set("lasting", pawl.QueueSettings{Rate: 6, Per: time.Minute, Burst: 2})
		for range 3 {
			s.spawn("b1", w)
		}
		begun := time.Now()
		ids := s.many(w, 32, "x")
		for _, id := range ids {
			s.reach(id, pawl.Succeeded)
		}
		if took := time.Since(begun); took < 5*time.Minute-time.Second || took > 5*time.Minute+20*time.Second {
			t.Errorf("32 runs took %v, want two at once and six a minute", took)
		}
	})
}

// A run that another one retries has its place in the queue.
func TestRetryKeepsItsPlace(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("failing", "v1", func(_ *pawl.Run, _ string) (string, error) { return "", fmt.Errorf("no") })
		s.spawn("b1", w)
		id := begin(s, w, "x", pawl.Queue("slow"), pawl.Priority(-3), pawl.Share("ann"))
		s.reach(id, pawl.Failed)
		d := s.reach(s.retry(id), pawl.Failed)
		if d.Queue != "slow" || d.Priority != -3 || d.Share != "ann" {
			t.Errorf("the retry waits in %q at %d for %q, want the place of the first", d.Queue, d.Priority, d.Share)
		}
	})
}

// What cannot be is refused by name.
func TestBadQueues(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := lasting(newOverlap(), 0)
		start := func(o pawl.StartOption) error {
			_, err := w.Start(t.Context(), s.desk, "x", o)
			return err
		}
		mentions(t, start(pawl.Priority(101)), "Priority(101)", "-100 to 100")
		mentions(t, start(pawl.Share("a\nb")), "Share")
		mentions(t, s.desk.SetQueue(t.Context(), "q", pawl.QueueSettings{MaxRunning: -1}, ann), `queue "q"`, "negative")
		mentions(t, s.desk.SetQueue(t.Context(), "q", pawl.QueueSettings{Burst: 1}, ann), "needs a Rate")
		mentions(t, s.desk.SetQueue(t.Context(), "", pawl.QueueSettings{}, ann), "queue")
		mentions(t, s.desk.PauseQueue(t.Context(), "q", pawl.Act{}), "By")
	})
}

// A pause is read by the claim itself: it holds from its commit on, also in a process that knows nothing of it (FR-128).
func TestPauseHoldsForOtherProcesses(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	here, there := openPostgres(t, url), openPostgres(t, url)
	w := pawl.Define("paused", "v1", func(*pawl.Run, int) (int, error) { return 0, nil })
	desk, err := pawl.New(here, nil)
	if err != nil {
		t.Fatal(err)
	}
	has := []pawl.VersionID{pawl.NameOf(w)}
	rival := pawl.WorkerRow{ID: "7d444840-9dc0-11d1-b245-5ffdce74fad2", Lease: time.Minute}
	if err := there.Register(t.Context(), rival, has); err != nil {
		t.Fatal(err)
	}
	claim := func() int {
		got, err := there.Claim(t.Context(), pawl.Claim{Worker: rival.ID, Has: has, Limit: 10, Token: 5})
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	claim() // it knows of no settings
	for _, change := range []func(context.Context, string, pawl.Act) error{desk.PauseQueue, func(ctx context.Context, name string, a pawl.Act) error {
		if err := desk.SetQueue(ctx, name, pawl.QueueSettings{MaxRunning: 1}, a); err != nil {
			return err
		}
		return desk.ResumeQueue(ctx, name, a)
	}} {
		if err := change(t.Context(), "paused", ann); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := w.Start(t.Context(), desk, 1); err != nil {
				t.Fatal(err)
			}
		}
		if n := claim(); n > 0 {
			t.Errorf("%d runs were claimed from a queue that has settings, by a process that does not know them", n)
		}
	}
	if _, _, err := there.Due(t.Context(), rival.ID); err != nil { // now it has looked
		t.Fatal(err)
	}
	if n := claim(); n != 1 {
		t.Errorf("%d runs were claimed, the limit is 1", n)
	}
}

// Workers of three processes race for the one slot, on real transactions.
func TestOneSlotOnPostgres(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	var running, most, done atomic.Int64
	w := pawl.Define("single", "v1", func(run *pawl.Run, in int) (int, error) {
		return pawl.Repeatable(run, "work", in, func(context.Context, int) (int, error) {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(2 * time.Millisecond) //nolint:forbidigo // the work that must not overlap
			running.Add(-1)
			done.Add(1)
			return in, nil
		})
	})
	ctx, cancel := context.WithCancel(t.Context())
	var all []*pawl.Engine
	var wg sync.WaitGroup
	for range 3 {
		e, err := pawl.New(openPostgres(t, url), &pawl.Options{Poll: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler), Hooks: &hooks.Hooks{NoSweep: true}, Build: "b1"}, w)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	if err := all[0].SetQueue(t.Context(), "single", pawl.QueueSettings{MaxRunning: 1}, ann); err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		wg.Go(func() {
			if err := e.Work(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	const runs = 60
	for i := range runs {
		if _, err := w.Start(t.Context(), all[i%3], i); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all runs are done", func() bool { return done.Load() == runs })
	cancel()
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d runs were executed at once, the limit is 1", most.Load())
	}
}
