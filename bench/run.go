package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// runJob does the measurement of one child.
func runJob(ctx context.Context, j job) (Result, error) {
	switch j.Workload {
	case Steps, Queue:
		return runLoad(ctx, j)
	case Backlog:
		r, err := runLoad(ctx, j)
		if err == nil {
			err = runIdle(ctx, j, &r)
		}
		return r, err
	case Latency:
		return runLatency(ctx, j)
	case Resume:
		return runResume(ctx, j)
	case Memory:
		return runMemory(ctx, j)
	case Waiting:
		return runWaiting(ctx, j)
	case Batch:
		return runBatch(ctx, j)
	}
	return Result{}, fmt.Errorf("there is no workload %q", j.Workload)
}

// load is one pass over a freshly opened peer.
type load struct {
	took    []time.Duration
	enqueue time.Duration
	ck      *clock
}

// pass opens the peer, executes n runs or jobs, and closes it.
func pass(ctx context.Context, j job, n int) (l load, err error) {
	l.ck = &clock{postmaster: j.Target.Postmaster}
	if j.Target.URL != "" {
		if l.ck.conn, err = pgx.Connect(ctx, j.Target.URL); err != nil {
			return l, err
		}
		defer func() { err = errors.Join(err, l.ck.conn.Close(ctx)) }()
	}
	p, err := open(ctx, j)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, p.close(ctx), l.ck.err) }()
	if j.Workload == Steps {
		s, ok := p.(stepper)
		if !ok {
			return l, errCannot
		}
		l.took, err = s.steps(ctx, l.ck, n, j.C)
		return l, err
	}
	q, ok := p.(queuer)
	if !ok {
		return l, errCannot
	}
	start := time.Now()
	if err := q.enqueue(ctx, n); err != nil {
		return l, fmt.Errorf("enqueue: %w", err)
	}
	l.enqueue = time.Since(start)
	return l, q.drain(ctx, l.ck, n, j.C)
}

// runLoad warms up, chooses N if nobody has, measures, and looks whether the work was done.
func runLoad(ctx context.Context, j job) (r Result, err error) {
	warm, n, err := warmUp(ctx, j)
	if err != nil {
		return r, fmt.Errorf("warm-up: %w", err)
	}
	if j.N == 0 {
		j.N = n
	}
	l, used, err := counted(ctx, j)
	for range 2 {
		took := l.ck.elapsed.Seconds()
		if err != nil || took > 0.8*j.Seconds || j.N >= mostRuns {
			break
		}
		warm += j.N // too short to say much: that was a longer warm-up
		j.N = min(mostRuns, int(1.1*float64(j.N)*j.Seconds/took)+1)
		l, used, err = counted(ctx, j)
	}
	if err != nil {
		return r, err
	}
	r.Spec = j.Spec
	unit := j.N
	if j.Workload == Steps {
		unit *= stepsPerRun
	}
	l.ck.report(&r, unit)
	r.Rate = float64(unit) / l.ck.elapsed.Seconds()
	r.P50, r.P99 = quantile(l.took, 0.5), quantile(l.took, 0.99)
	r.Commits, r.Syncs = float64(used.commits)/float64(unit), float64(used.syncs)/float64(unit)
	if l.enqueue > 0 {
		r.Enqueue = float64(j.N) / l.enqueue.Seconds()
	}
	return r, verifyLoad(ctx, j, warm+j.N)
}

// counted is a pass of j.N runs between two looks at the server's counters.
func counted(ctx context.Context, j job) (l load, used counters, err error) {
	l.ck = &clock{}
	if err := checkpoint(ctx, j.Target); err != nil {
		return l, used, err
	}
	before, err := readCounters(ctx, j.Target)
	if err != nil {
		return l, used, err
	}
	if l, err = pass(ctx, j, j.N); err != nil {
		return l, used, err
	}
	after, err := readCounters(ctx, j.Target)
	return l, after.minus(before), err
}

func verifyLoad(ctx context.Context, j job, runs int) (err error) {
	p, err := open(ctx, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	want := tally{finished: runs + j.Finished, steps: runs + j.Finished}
	if j.Workload == Steps {
		want.steps = runs * stepsPerRun
	}
	return mustHave(ctx, p, want)
}

// warmUp executes runs until that took long enough to foretell the rate, and says how many they were and how many the
// measurement needs.
func warmUp(ctx context.Context, j job) (total, n int, err error) {
	least := max(j.C, 10)
	m := least
	for try := 0; ; try++ {
		l, err := pass(ctx, j, m)
		if err != nil {
			return total, 0, err
		}
		total += m
		took := l.ck.elapsed.Seconds()
		rate := float64(m) / took
		n = max(least, int(rate*j.Seconds), min(2*least, int(rate*4*j.Seconds))) // two runs a caller, if that is not too slow
		if took > j.Seconds/6 || try == 2 {
			return total, min(n, mostRuns), nil
		}
		m = min(mostRuns, max(m, int(rate*j.Seconds/4)))
	}
}

// mostRuns bounds what one measurement executes.
const mostRuns = 600_000

func checkpoint(ctx context.Context, t target) error { return maintain(ctx, t, `CHECKPOINT`) }
func vacuum(ctx context.Context, t target) error     { return maintain(ctx, t, `VACUUM ANALYZE`) }

// maintain runs a statement that SQLite has no need of.
func maintain(ctx context.Context, t target, sql string) error {
	if t.URL == "" {
		return nil
	}
	conn, err := pgx.Connect(ctx, t.URL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// runIdle takes the difference of a long and a short idle phase, so that start and stop of a worker do not count. One
// round is enough: an idle worker does the same in each.
func runIdle(ctx context.Context, j job, r *Result) error {
	if j.Target.URL == "" || j.Round > 1 {
		return nil
	}
	if err := vacuum(ctx, j.Target); err != nil { // or an autovacuum might be counted
		return err
	}
	var at [2]counters
	phases := [2]time.Duration{time.Duration(6 * j.Seconds * float64(time.Second)), time.Duration(16 * j.Seconds * float64(time.Second))}
	for i, d := range phases {
		p, err := open(ctx, j)
		if err != nil {
			return err
		}
		id, ok := p.(idler)
		if !ok {
			return p.close(ctx)
		}
		before, err := readCountersNow(ctx, j.Target)
		if err == nil {
			err = id.idle(ctx, d)
		}
		if err = errors.Join(err, p.close(ctx)); err != nil {
			return err
		}
		after, err := readCounters(ctx, j.Target)
		if err != nil {
			return err
		}
		at[i] = after.minus(before)
	}
	d, s := at[1].minus(at[0]), (phases[1] - phases[0]).Seconds()
	r.IdleCommits, r.IdleBuffers = float64(d.commits)/s, float64(d.buffers)/s
	return nil
}

// runLatency enqueues one job at a time, at moments that have no beat in common with anybody's poll.
func runLatency(ctx context.Context, j job) (r Result, err error) {
	if j.N == 0 {
		j.N = 200
	}
	p, err := openAs[interface {
		peer
		sampler
	}](ctx, j)
	if err != nil {
		return r, err
	}
	taken, deadline := 0, time.Now().Add(time.Duration(6*j.Seconds*float64(time.Second)))
	picks, dones, err := p.sample(ctx, func() bool {
		time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
		taken++
		return taken <= j.N+latencyWarm && (time.Now().Before(deadline) || taken <= fewSamples+latencyWarm)
	})
	if err == nil {
		err = mustHave(ctx, p, tally{finished: len(picks), steps: len(picks)})
	}
	if err = errors.Join(err, p.close(ctx)); err != nil {
		return r, err
	}
	picks, dones = picks[latencyWarm:], dones[latencyWarm:]
	j.N = len(picks)
	return Result{Spec: j.Spec, P50: quantile(picks, 0.5), P99: quantile(picks, 0.99), Done50: quantile(dones, 0.5)}, nil
}

const (
	latencyWarm = 5  // samples that are thrown away
	fewSamples  = 10 // that are taken of a slow peer too, although the time is up
)

func runResume(ctx context.Context, j job) (r Result, err error) {
	if err := killed(ctx, j); err != nil {
		return r, err
	}
	p, err := openAs[interface {
		peer
		resumer
	}](ctx, j)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	select {
	case <-time.After(p.patience()):
	case <-ctx.Done():
		return r, context.Cause(ctx)
	}
	got, err := p.count(ctx)
	if err != nil {
		return r, err
	}
	if got.open != 1 || got.steps < j.K {
		return r, fmt.Errorf("the killed process left %+v, want an open run with %d steps", got, j.K)
	}
	recovery, replay, err := p.resume(ctx, j.K)
	r = Result{Spec: j.Spec, Recovery: millis(recovery), Replay: millis(replay)}
	return r, err
}

func runMemory(ctx context.Context, j job) (r Result, err error) {
	p, err := openAs[interface {
		peer
		holder
	}](ctx, j)
	if err != nil {
		return r, err
	}
	if err := p.hold(ctx, j.C, time.Duration(2*j.Seconds*float64(time.Second))); err != nil {
		return r, err
	}
	// The runs never end, so the peer is not closed: the process ends.
	return Result{Spec: j.Spec}, nil
}

// fillIn leaves behind what a measurement finds.
func fillIn(ctx context.Context, j job) (err error) {
	if j.Workload == Waiting {
		return fillWaiting(ctx, j)
	}
	p, err := openAs[interface {
		peer
		queuer
	}](ctx, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	if j.Workload == Memory {
		return p.enqueue(ctx, j.Queued+j.C)
	}
	if err := p.enqueue(ctx, 1); err != nil {
		return err
	}
	if err := p.drain(ctx, &clock{}, 1, 1); err != nil {
		return err
	}
	return fillFinished(ctx, j)
}
