package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// peer is one system, opened on a database. What else it can do it says by the interfaces below.
type peer interface {
	// close ends all connections and goroutines.
	close(ctx context.Context) error
	// count reads how many runs are finished, how many are not, and how many step rows there are; steps is -1 where the
	// system keeps none.
	count(ctx context.Context) (tally, error)
}

type tally struct{ finished, open, steps int }

// stepper executes n runs of ten steps each, c at once, and calls begin and end of ck around them: from the first start
// to the last row that says that a run is finished. It returns how long each run took, where it knows.
type stepper interface {
	steps(ctx context.Context, ck *clock, n, c int) ([]time.Duration, error)
}

// queuer has a queue of jobs of one step.
type queuer interface {
	// enqueue adds n jobs in as few transactions as is usual.
	enqueue(ctx context.Context, n int) error
	// drain executes all n jobs that wait, w at once, from the start of its workers to the last finished row.
	drain(ctx context.Context, ck *clock, n, w int) error
}

// sampler enqueues jobs one at a time to a worker that waits for them. It calls next before each, until that says no.
type sampler interface {
	sample(ctx context.Context, next func() bool) (picks, dones []time.Duration, err error)
}

// resumer can be killed.
type resumer interface {
	// strand makes k steps of one run, calls ready inside step k+1 and stays there.
	strand(ctx context.Context, k int, ready func()) error
	// patience is how long after the kill a new process finds the run free.
	patience() time.Duration
	// resume starts a worker, which passes over k steps. recovery is from the worker's start to the first line of step
	// k+1, replay from the first line of the body.
	resume(ctx context.Context, k int) (recovery, replay time.Duration, err error)
}

// idler has a worker that finds nothing to do.
type idler interface {
	idle(ctx context.Context, d time.Duration) error
}

// cloner fills the database with finished jobs by copying one in SQL.
type cloner interface {
	clone(ctx context.Context, n int) error
}

// holder executes running jobs that do not end, while others wait.
type holder interface {
	hold(ctx context.Context, running int, d time.Duration) error
}

// opener makes a peer on an empty or a prepared database. w is how many runs its worker may execute at once, where a
// worker is part of it from the beginning.
type opener func(ctx context.Context, s Spec, t target) (peer, error)

func openers() map[string]opener {
	return map[string]opener{
		"floor":       openFloor,
		"floor-batch": openBatch,
		"dbos":        openDBOS,
		"river":       openRiver,
		"pawl":        openPawl,
	}
}

func open(ctx context.Context, j job) (peer, error) {
	o, ok := openers()[j.Peer]
	if !ok {
		return nil, fmt.Errorf("there is no peer %q", j.Peer)
	}
	p, err := o(ctx, j.Spec, j.Target)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", j.name(), err)
	}
	return p, nil
}

// errCannot is what a workload says of a peer that does not have what it needs.
var errCannot = errors.New("this peer cannot do that")

// mustHave compares what is in the database with what was done.
func mustHave(ctx context.Context, p peer, want tally) error {
	got, err := p.count(ctx)
	if err != nil {
		return fmt.Errorf("count rows: %w", err)
	}
	if got.steps < 0 {
		want.steps = got.steps
	}
	if got != want {
		return fmt.Errorf("the work was not done: got %+v, want %+v", got, want)
	}
	return nil
}

// payload is the result of every step: 100 bytes as JSON.
var payload = strings.Repeat("x", 98)

// stepNames are those of the steps of a run.
func stepNames() []string {
	names := make([]string, stepsPerRun)
	for i := range names {
		names[i] = "step-" + strconv.Itoa(i)
	}
	return names
}

// quantile of durations in milliseconds; 0 if there are none.
func quantile(ds []time.Duration, q float64) float64 {
	if len(ds) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(ds))
	return millis(s[min(len(s)-1, int(q*float64(len(s))))])
}

// eachOf calls fn for 0 … n-1 from c goroutines and returns how long each call took. The first error ends it.
func eachOf(ctx context.Context, n, c int, fn func(ctx context.Context, i int) error) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([]time.Duration, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(c, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				t := time.Now()
				if err := fn(ctx, i); err != nil {
					cancel(err)
					return
				}
				took[i] = time.Since(t)
			}
		})
	}
	wg.Wait()
	return took, context.Cause(ctx)
}

// until calls done every half millisecond or so until it says true.
func until(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// bodies counts the bodies that have returned, so that the database is asked about the end only near the end.
type bodies struct {
	left atomic.Int64
	all  chan struct{}
}

// expect must be called before the first of n bodies can return.
func (b *bodies) expect(n int) {
	b.all = make(chan struct{})
	b.left.Store(int64(n))
}

func (b *bodies) returned() {
	if b.left.Add(-1) == 0 {
		close(b.all)
	}
}

// wait blocks until all bodies have returned and pending, a query, says false.
func (b *bodies) wait(ctx context.Context, db *sql.DB, pending string) error {
	select {
	case <-b.all:
	case <-ctx.Done():
		return fmt.Errorf("%d bodies are missing: %w", b.left.Load(), context.Cause(ctx))
	}
	return until(ctx, func() (bool, error) {
		var more bool
		err := db.QueryRowContext(ctx, pending).Scan(&more)
		return !more, err
	})
}

// batches cuts n into parts of size at most.
func batches(n, size int) (parts []int) {
	for ; n > 0; n -= size {
		parts = append(parts, min(n, size))
	}
	return parts
}
