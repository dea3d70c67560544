package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	riverTuned    = "tuned"   // fetches at most every 2 ms, polls every 20 ms
	riverDefault  = "default" // fetches at most every 100 ms, polls every second
	riverCooldown = 2 * time.Millisecond
	riverPoll     = 20 * time.Millisecond
)

// riverPeer is River with a driver D whose transactions are T. Its runs of ten steps are jobs with resumable steps, each
// of which is recorded in a transaction; it keeps no results.
type riverPeer[D riverdriver.Driver[T], T any] struct {
	s      Spec
	db     *sql.DB // for counting
	driver D
	begin  func(ctx context.Context, fn func(T) error) error
	shut   func() error
	client *river.Client[T] // works; nil before its start
	insert *river.Client[T]
	names  []string
	bodies bodies
	began  chan time.Time
	holds  chan struct{}
}

func openRiver(ctx context.Context, s Spec, t target) (peer, error) {
	db, err := openSQL(t, 2)
	if err != nil {
		return nil, err
	}
	if t.URL != "" {
		cfg, err := pgxpool.ParseConfig(t.URL)
		if err != nil {
			return nil, err
		}
		cfg.MaxConns = floorConns
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, err
		}
		p := &riverPeer[*riverpgxv5.Driver, pgx.Tx]{s: s, db: db, driver: riverpgxv5.New(pool)}
		p.begin = func(ctx context.Context, fn func(pgx.Tx) error) error { return pgx.BeginFunc(ctx, pool, fn) }
		p.shut = func() error { pool.Close(); return nil }
		return p, p.setUp(ctx)
	}
	own, err := openSQL(t, 1) // as its documentation advises
	if err != nil {
		return nil, err
	}
	p := &riverPeer[*riversqlite.Driver, *sql.Tx]{s: s, db: db, driver: riversqlite.New(own), shut: own.Close}
	p.begin = func(ctx context.Context, fn func(*sql.Tx) error) error {
		tx, err := own.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	return p, p.setUp(ctx)
}

func (p *riverPeer[D, T]) setUp(ctx context.Context) error {
	p.names, p.began, p.holds = stepNames(), make(chan time.Time, 1), make(chan struct{}, 1<<16)
	m, err := rivermigrate.New(p.driver, &rivermigrate.Config{Logger: riverLogger()})
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	p.insert, err = river.NewClient(p.driver, &river.Config{Logger: riverLogger(), SkipUnknownJobCheck: true})
	return err
}

func riverLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// riverSteps is the job of ten steps, riverJob that of the queue, riverHang one that does not end.
type riverSteps struct {
	I int `json:"i"`
}
type riverJob struct {
	I int `json:"i"`
}
type riverHang struct {
	I int `json:"i"`
}

func (riverSteps) Kind() string { return "steps" }
func (riverJob) Kind() string   { return "job" }
func (riverHang) Kind() string  { return "hang" }

func (p *riverPeer[D, T]) tenSteps(ctx context.Context, j *river.Job[riverSteps]) error {
	defer p.bodies.returned()
	for _, name := range p.names {
		var failed error
		river.ResumableStep(ctx, name, nil, func(ctx context.Context) error {
			failed = p.begin(ctx, func(tx T) error {
				_, err := river.ResumableSetStepTx[D](ctx, tx, j)
				return err
			})
			return failed
		})
		if failed != nil {
			return failed
		}
	}
	return nil
}

func (p *riverPeer[D, T]) oneJob(context.Context, *river.Job[riverJob]) error {
	if p.s.Workload == Latency {
		p.began <- time.Now()
	}
	p.bodies.returned()
	return nil
}

func (p *riverPeer[D, T]) hang(ctx context.Context, _ *river.Job[riverHang]) error {
	p.holds <- struct{}{}
	<-ctx.Done()
	return context.Cause(ctx)
}

// work makes a client with w workers and starts it.
func (p *riverPeer[D, T]) work(ctx context.Context, w int) (err error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(p.tenSteps))
	river.AddWorker(workers, river.WorkFunc(p.oneJob))
	river.AddWorker(workers, river.WorkFunc(p.hang))
	cfg := &river.Config{Logger: riverLogger(), Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: w}}}
	if p.s.Variant != riverDefault {
		cfg.FetchCooldown, cfg.FetchPollInterval = riverCooldown, riverPoll
	}
	if p.client, err = river.NewClient(p.driver, cfg); err != nil {
		return err
	}
	return p.client.Start(ctx)
}

func (p *riverPeer[D, T]) close(ctx context.Context) (err error) {
	if p.client != nil {
		err = p.client.Stop(ctx)
	}
	return errors.Join(err, p.shut(), p.db.Close())
}

const (
	riverPending = `SELECT EXISTS (SELECT 1 FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))`
	riverCount   = `SELECT count(CASE WHEN state = 'completed' THEN 1 END), count(CASE WHEN state <> 'completed' THEN 1 END), -1 FROM river_job`
)

func (p *riverPeer[D, T]) count(ctx context.Context) (tally, error) {
	return countRows(ctx, p.db, riverCount)
}

func (p *riverPeer[D, T]) insertMany(ctx context.Context, n int, args river.JobArgs) error {
	for _, part := range batches(n, batchSize) {
		params := make([]river.InsertManyParams, part)
		for i := range params {
			params[i] = river.InsertManyParams{Args: args}
		}
		if _, err := p.insert.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	return nil
}

func (p *riverPeer[D, T]) steps(ctx context.Context, ck *clock, n, c int) ([]time.Duration, error) {
	p.bodies.expect(n)
	ck.begin(ctx)
	if err := p.insertMany(ctx, n, riverSteps{}); err != nil {
		return nil, err
	}
	if err := p.work(ctx, c); err != nil {
		return nil, err
	}
	err := p.bodies.wait(ctx, p.db, riverPending)
	ck.end(ctx)
	return nil, err
}

func (p *riverPeer[D, T]) enqueue(ctx context.Context, n int) error {
	if p.s.Workload == Memory {
		return p.insertMany(ctx, n, riverHang{})
	}
	return p.insertMany(ctx, n, riverJob{})
}

func (p *riverPeer[D, T]) drain(ctx context.Context, ck *clock, n, w int) error {
	p.bodies.expect(n)
	ck.begin(ctx)
	if err := p.work(ctx, w); err != nil {
		return err
	}
	err := p.bodies.wait(ctx, p.db, riverPending)
	ck.end(ctx)
	return err
}

func (p *riverPeer[D, T]) sample(ctx context.Context, next func() bool) (picks, dones []time.Duration, err error) {
	p.bodies.expect(1 << 30)
	if err := p.work(ctx, max(p.s.C, 1)); err != nil {
		return nil, nil, err
	}
	events, cancel := p.client.Subscribe(river.EventKindJobCompleted)
	defer cancel()
	for next() {
		t := time.Now()
		if _, err := p.insert.Insert(ctx, riverJob{}, nil); err != nil {
			return nil, nil, err
		}
		select {
		case <-events:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
		dones, picks = append(dones, time.Since(t)), append(picks, (<-p.began).Sub(t))
	}
	return picks, dones, nil
}

func (p *riverPeer[D, T]) idle(ctx context.Context, d time.Duration) error {
	if err := p.work(ctx, p.s.C); err != nil {
		return err
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *riverPeer[D, T]) hold(ctx context.Context, running int, d time.Duration) error {
	if err := p.work(ctx, running); err != nil {
		return err
	}
	return hold(ctx, p.holds, running, d)
}

// hold waits until running bodies hang, and then for d.
func hold(ctx context.Context, holds chan struct{}, running int, d time.Duration) error {
	for i := range running {
		select {
		case <-holds:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d runs began: %w", i, running, context.Cause(ctx))
		}
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}
