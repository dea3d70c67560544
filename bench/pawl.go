package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

// Variants of Pawl.
const (
	claimed   = "claimed"              // started through a handle without a worker; a worker of another handle claims
	inProcess = "in process"           // started through the engine that runs the worker
	onceSteps = "once"                 // as claimed, with Once steps
	otherProc = "from another process" // the sampler's name for claimed
	pawlLease = 2 * time.Second        // in the workloads resume and batch
	readyName = "ready"                // a workflow that shows that the worker works; it is not counted
)

// closer is what both stores have.
type closer interface {
	pawl.Store
	Close() error
}

// pawlPeer is Pawl through its public API. The worker's engine and the starter each have a store handle of their own, so
// the starter cannot wake the worker otherwise than another process could.
type pawlPeer struct {
	s       Spec
	db      *sql.DB // for counting
	stores  []closer
	starter *pawl.Engine
	worker  *pawl.Engine
	stop    context.CancelFunc // ends Work; nil while it does not run
	stopped chan error

	steps10, job *pawl.Workflow[int, string]
	sleeper      *pawl.Workflow[time.Time, string]
	long         *pawl.Workflow[int, int]
	hang         *pawl.Workflow[int, int]
	ready        *pawl.Workflow[int, int]

	itemState
	bodies bodies
	began  chan time.Time // when a sampled body began
	at     func()         // called in step K+1 of long
	first  func()         // called in the first line of long
	holds  chan struct{}
}

func openPawl(ctx context.Context, s Spec, t target) (peer, error) {
	p := &pawlPeer{s: s, began: make(chan time.Time, 1), holds: make(chan struct{}, 1<<16), first: func() {}}
	p.define()
	var err error
	if p.db, err = openSQL(t, 2); err != nil {
		return nil, err
	}
	o := &pawl.Options{Slots: slots(s), Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if s.Workload == Resume || s.Workload == Batch {
		o.Lease = pawlLease
	}
	if p.worker, err = p.engine(ctx, t, o, p.steps10, p.job, p.sleeper, p.items, p.long, p.hang, p.ready); err == nil {
		p.starter, err = p.engine(ctx, t, o)
	}
	if err != nil {
		return nil, errors.Join(err, p.close(ctx))
	}
	return p, nil
}

// slots are as many as runs may execute at once. A caller that starts its next run when it has the result of the last
// one must find a free slot, which the last one may not have left yet: then there are some to spare, as by default.
func slots(s Spec) int {
	switch {
	case s.Variant != inProcess:
		return s.C
	case s.C < 100:
		return 0
	}
	return s.C + 100
}

// engine makes an engine on a store handle of its own.
func (p *pawlPeer) engine(ctx context.Context, t target, o *pawl.Options, defs ...pawl.Definition) (*pawl.Engine, error) {
	var store closer
	var err error
	if t.URL != "" {
		store, err = postgres.Open(ctx, t.URL, &postgres.Options{Migrate: true})
	} else {
		store, err = sqlite.Open(t.Path, nil)
	}
	if err != nil {
		return nil, err
	}
	p.stores = append(p.stores, store)
	return pawl.New(store, o, defs...)
}

func noop(context.Context, int) (string, error)                  { return payload, nil }
func noopOnce(context.Context, pawl.Intent, int) (string, error) { return payload, nil }

func (p *pawlPeer) define() {
	names := stepNames()
	once := p.s.Variant == onceSteps
	p.steps10 = pawl.Define("steps", "v1", func(run *pawl.Run, in int) (out string, err error) {
		defer p.bodies.returned()
		for i, name := range names {
			if once {
				out, err = pawl.Once(run, name, i, noopOnce)
			} else {
				out, err = pawl.Repeatable(run, name, i, noop)
			}
			if err != nil {
				return "", err
			}
		}
		return "", nil
	})
	p.job = pawl.Define("job", "v1", func(run *pawl.Run, in int) (string, error) {
		if p.s.Workload == Latency {
			p.began <- time.Now()
		}
		defer p.bodies.returned()
		_, err := pawl.Repeatable(run, "step", in, noop)
		return "", err
	})
	p.defineSleeper()
	p.defineItems()
	p.ready = pawl.Define(readyName, "v1", func(*pawl.Run, int) (int, error) { return 0, nil })
	p.long = pawl.Define("long", "v1", func(run *pawl.Run, k int) (int, error) {
		p.first()
		for i := range k {
			if _, err := pawl.Repeatable(run, "step-"+strconv.Itoa(i), i, noop); err != nil {
				return 0, err
			}
		}
		return pawl.Repeatable(run, "last", k, func(context.Context, int) (int, error) { p.at(); return k, nil })
	})
	p.hang = pawl.Define("hang", "v1", func(run *pawl.Run, in int) (int, error) {
		if _, err := pawl.Repeatable(run, "step", in, noop); err != nil {
			return 0, err
		}
		return pawl.Repeatable(run, "hang", in, func(ctx context.Context, in int) (int, error) {
			p.holds <- struct{}{}
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
	})
}

// work starts the worker.
func (p *pawlPeer) work(ctx context.Context) {
	ctx, p.stop = context.WithCancel(ctx)
	p.stopped = make(chan error, 1)
	go func() { p.stopped <- p.worker.Work(ctx) }()
}

func (p *pawlPeer) rest() error {
	if p.stop == nil {
		return nil
	}
	p.stop()
	p.stop = nil
	return <-p.stopped
}

// working starts the worker and returns when it has executed something.
func (p *pawlPeer) working(ctx context.Context) error {
	p.work(ctx)
	h, err := p.ready.Start(ctx, p.worker, 0)
	if err == nil {
		_, err = h.Result(ctx)
	}
	return err
}

func (p *pawlPeer) close(ctx context.Context) error {
	err := p.rest()
	for _, s := range p.stores {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, p.db.Close())
}

const (
	pawlPending = `SELECT EXISTS (SELECT 1 FROM pawl_runs WHERE ended IS NULL)`
	pawlCount   = `SELECT count(CASE WHEN state = 'succeeded' THEN 1 END), count(CASE WHEN state <> 'succeeded' THEN 1 END),
	(SELECT count(*) FROM pawl_steps WHERE state = 'succeeded') FROM pawl_runs WHERE workflow <> '` + readyName + `'`
)

func (p *pawlPeer) count(ctx context.Context) (tally, error) { return countRows(ctx, p.db, pawlCount) }

func (p *pawlPeer) steps(ctx context.Context, ck *clock, n, c int) ([]time.Duration, error) {
	p.bodies.expect(n)
	if p.s.Variant != inProcess {
		ck.begin(ctx)
		if err := startMany(ctx, p.starter, p.steps10, n); err != nil {
			return nil, err
		}
		p.work(ctx)
		err := p.bodies.wait(ctx, p.db, pawlPending)
		ck.end(ctx)
		return nil, err
	}
	if err := p.working(ctx); err != nil {
		return nil, err
	}
	ck.begin(ctx)
	took, err := eachOf(ctx, n, c, func(ctx context.Context, i int) error {
		h, err := p.steps10.Start(ctx, p.worker, i)
		if err == nil {
			_, err = h.Result(ctx)
		}
		return err
	})
	ck.end(ctx)
	return took, err
}

// startMany starts n runs, 1,000 in a transaction.
func startMany[Out any](ctx context.Context, e *pawl.Engine, w *pawl.Workflow[int, Out], n int) error {
	for _, part := range batches(n, batchSize) {
		if _, err := w.StartMany(ctx, e, make([]int, part), nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *pawlPeer) enqueue(ctx context.Context, n int) error {
	if p.s.Workload == Memory {
		return startMany(ctx, p.starter, p.hang, n)
	}
	return startMany(ctx, p.starter, p.job, n)
}

func (p *pawlPeer) drain(ctx context.Context, ck *clock, n, _ int) error {
	p.bodies.expect(n)
	ck.begin(ctx)
	p.work(ctx)
	err := p.bodies.wait(ctx, p.db, pawlPending)
	ck.end(ctx)
	return err
}

func (p *pawlPeer) sample(ctx context.Context, next func() bool) (picks, dones []time.Duration, err error) {
	from := p.worker
	if p.s.Variant == otherProc {
		from = p.starter
	}
	p.bodies.expect(1 << 30)
	if err := p.working(ctx); err != nil {
		return nil, nil, err
	}
	for i := 0; next(); i++ {
		t := time.Now()
		h, err := p.job.Start(ctx, from, i)
		if err != nil {
			return nil, nil, err
		}
		if _, err := h.Result(ctx); err != nil {
			return nil, nil, err
		}
		dones, picks = append(dones, time.Since(t)), append(picks, (<-p.began).Sub(t))
	}
	return picks, dones, nil
}

func (p *pawlPeer) strand(ctx context.Context, k int, ready func()) error {
	p.at = func() {
		ready()
		<-ctx.Done()
	}
	if _, err := p.long.Start(ctx, p.worker, k); err != nil {
		return err
	}
	return p.worker.Work(ctx)
}

func (p *pawlPeer) patience() time.Duration { return pawlLease + pawlLease/2 }

func (p *pawlPeer) resume(ctx context.Context, _ int) (recovery, replay time.Duration, err error) {
	var body time.Time
	reached := make(chan time.Time, 1)
	p.first = func() { body = time.Now() }
	p.at = func() { reached <- time.Now() }
	start := time.Now()
	p.work(ctx)
	select {
	case t := <-reached:
		return t.Sub(start), t.Sub(body), nil
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("the run was not resumed: %w", context.Cause(ctx))
	}
}

func (p *pawlPeer) idle(ctx context.Context, d time.Duration) error {
	p.work(ctx)
	select {
	case <-time.After(d):
		return p.rest()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pawlPeer) hold(ctx context.Context, running int, d time.Duration) error {
	p.work(ctx)
	return hold(ctx, p.holds, running, d)
}
