package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawlrun/pawl"
)

// due is how many of the waiting runs fall due at once.
const due = 1000

// waiter has runs that sleep.
type waiter interface {
	// sleep starts n runs that sleep until t, and returns when a worker has put all of them to sleep.
	sleep(ctx context.Context, n int, t time.Time) error
	// woken works until every sleeper that was due at t has gone on, and says how long after t the last one did.
	woken(ctx context.Context, t time.Time) (time.Duration, error)
	// jobs executes n jobs and says how long that took.
	jobs(ctx context.Context, n int) (time.Duration, error)
}

// runWaiting finds runs that sleep for long, and measures how soon 1,000 others go on that fall due at once, beside how long
// it takes to execute 1,000 jobs.
func runWaiting(ctx context.Context, j job) (r Result, err error) {
	p, err := openAs[interface {
		peer
		waiter
	}](ctx, j)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	if _, err := p.jobs(ctx, due); err != nil { // warm-up
		return r, fmt.Errorf("warm-up: %w", err)
	}
	took, err := p.jobs(ctx, due)
	if err != nil {
		return r, fmt.Errorf("jobs: %w", err)
	}
	at := time.Now().Add(time.Duration(4 * j.Seconds * float64(time.Second)))
	if err := p.sleep(ctx, due, at); err != nil {
		return r, err
	}
	if !time.Now().Before(at) {
		return r, fmt.Errorf("%d runs were due before all of them slept: give it more seconds", due)
	}
	late, err := p.woken(ctx, at)
	if err != nil {
		return r, err
	}
	return Result{Spec: j.Spec, Woken: millis(late), Jobs: millis(took)}, mustHave(ctx, p, tally{finished: 3 * due, open: j.Queued, steps: 3 * due})
}

// sleepFor is how long the runs sleep that are only there.
const sleepFor = 30 * 24 * time.Hour

func (p *pawlPeer) sleep(ctx context.Context, n int, t time.Time) error {
	p.bodies.expect(n)
	ins := make([]time.Time, n)
	for i := range ins {
		ins[i] = t
	}
	for len(ins) > 0 {
		part := min(len(ins), batchSize)
		if _, err := p.sleeper.StartMany(ctx, p.starter, ins[:part], nil); err != nil {
			return err
		}
		ins = ins[part:]
	}
	if p.stop == nil {
		p.work(ctx)
	}
	return p.bodies.wait(ctx, p.db, `SELECT EXISTS (SELECT 1 FROM pawl_runs WHERE workflow = 'sleeper' AND state NOT IN ('waiting', 'succeeded'))`)
}

func (p *pawlPeer) woken(ctx context.Context, t time.Time) (time.Duration, error) {
	p.bodies.expect(due)
	select {
	case <-p.bodies.all:
	case <-ctx.Done():
		return 0, fmt.Errorf("%d sleepers did not wake: %w", p.bodies.left.Load(), context.Cause(ctx))
	}
	late := time.Since(t)
	return late, p.bodies.wait(ctx, p.db, `SELECT EXISTS (SELECT 1 FROM pawl_runs WHERE workflow = 'sleeper' AND state NOT IN ('waiting', 'succeeded'))`)
}

func (p *pawlPeer) jobs(ctx context.Context, n int) (time.Duration, error) {
	p.bodies.expect(n)
	start := time.Now()
	if err := startMany(ctx, p.starter, p.job, n); err != nil {
		return 0, err
	}
	if p.stop == nil {
		p.work(ctx)
	}
	err := p.bodies.wait(ctx, p.db, `SELECT EXISTS (SELECT 1 FROM pawl_runs WHERE workflow = 'job' AND ended IS NULL)`)
	return time.Since(start), err
}

func (p *pawlPeer) defineSleeper() {
	p.sleeper = pawl.Define("sleeper", "v1", func(run *pawl.Run, t time.Time) (string, error) {
		defer p.bodies.returned()
		return "", pawl.SleepUntil(run, "sleep", t)
	})
}

// fillWaiting leaves runs behind that sleep.
func fillWaiting(ctx context.Context, j job) (err error) {
	p, err := openAs[interface {
		peer
		waiter
	}](ctx, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	return p.sleep(ctx, j.Queued, time.Now().Add(sleepFor))
}
