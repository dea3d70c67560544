package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite"
	"github.com/jackc/pgx/v5"
)

const (
	dbosDirect = "direct" // RunWorkflow, in the process that executes it
	dbosOpen   = "open"   // a queue without a limit of workers, which is the default; polled every 10 ms
	dbosTuned  = "tuned"  // a queue polled every 10 ms, results every 5 ms
	dbosQueue  = "bench"
	dbosPoll   = 10 * time.Millisecond
	dbosResult = 5 * time.Millisecond
	dbosConns  = 8 // on SQLite, as many as DBOS opens itself
)

// dbosPeer is DBOS Transact with its own pool on PostgreSQL. On SQLite it gets a handle with synchronous=FULL, because by
// itself it would set NORMAL.
type dbosPeer struct {
	s    Spec
	t    target
	db   *sql.DB // for counting
	file *sql.DB // SQLite
	ctx  dbos.Context

	names  []string
	bodies bodies
	began  chan time.Time
	first  func()
	at     func()
}

func openDBOS(ctx context.Context, s Spec, t target) (peer, error) {
	p := &dbosPeer{s: s, t: t, names: stepNames(), began: make(chan time.Time, 1), first: func() {}}
	var err error
	if p.db, err = openSQL(t, 2); err != nil {
		return nil, err
	}
	cfg := dbos.Config{AppName: "pawl-bench", ApplicationVersion: "v1",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 4}))}
	if t.URL != "" {
		cfg.DatabaseURL = t.URL
	} else {
		if p.file, err = openSQL(t, dbosConns); err != nil {
			return nil, errors.Join(err, p.db.Close())
		}
		cfg.SQLiteSystemDB = p.file
	}
	if p.ctx, err = dbos.NewContext(ctx, cfg); err != nil {
		return nil, errors.Join(err, p.db.Close())
	}
	dbos.RegisterWorkflow(p.ctx, p.tenSteps, dbos.WithWorkflowName("steps"))
	dbos.RegisterWorkflow(p.ctx, p.oneJob, dbos.WithWorkflowName("job"))
	dbos.RegisterWorkflow(p.ctx, p.long, dbos.WithWorkflowName("long"))
	return p, nil
}

func dbosStep(context.Context) (string, error) { return payload, nil }

func (p *dbosPeer) tenSteps(ctx dbos.Context, _ int) (string, error) {
	defer p.bodies.returned()
	for _, name := range p.names {
		if _, err := dbos.RunAsStep(ctx, dbosStep, dbos.WithStepName(name)); err != nil {
			return "", err
		}
	}
	return "", nil
}

func (p *dbosPeer) oneJob(ctx dbos.Context, _ int) (string, error) {
	if p.s.Workload == Latency {
		p.began <- time.Now()
	}
	defer p.bodies.returned()
	_, err := dbos.RunAsStep(ctx, dbosStep, dbos.WithStepName("step"))
	return "", err
}

func (p *dbosPeer) long(ctx dbos.Context, k int) (int, error) {
	p.first()
	for i := range k {
		if _, err := dbos.RunAsStep(ctx, dbosStep, dbos.WithStepName("step-"+strconv.Itoa(i))); err != nil {
			return 0, err
		}
	}
	return dbos.RunAsStep(ctx, func(context.Context) (int, error) { p.at(); return k, nil }, dbos.WithStepName("last"))
}

// run launches the runtime.
func (p *dbosPeer) run() error { return dbos.Launch(p.ctx) }

func (p *dbosPeer) register() error {
	_, err := dbos.RegisterQueue(p.ctx, dbosQueue, dbos.WithQueueBasePollingInterval(dbosPoll))
	return err
}

func (p *dbosPeer) close(context.Context) error {
	err := dbos.Shutdown(p.ctx, 30*time.Second)
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
	}
	return errors.Join(err, p.db.Close())
}

const (
	dbosPending = `SELECT EXISTS (SELECT 1 FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED', 'DELAYED'))`
	dbosCount   = `SELECT count(CASE WHEN status = 'SUCCESS' THEN 1 END), count(CASE WHEN status <> 'SUCCESS' THEN 1 END),
	(SELECT count(*) FROM dbos.operation_outputs) FROM dbos.workflow_status`
)

// sql drops the schema's name, which SQLite does not have.
func (p *dbosPeer) sql(query string) string {
	if p.t.URL != "" {
		return query
	}
	return strings.ReplaceAll(query, "dbos.", "")
}

func (p *dbosPeer) count(ctx context.Context) (tally, error) {
	return countRows(ctx, p.db, p.sql(dbosCount))
}

func (p *dbosPeer) steps(ctx context.Context, ck *clock, n, c int) ([]time.Duration, error) {
	if err := p.run(); err != nil {
		return nil, err
	}
	p.bodies.expect(n)
	ck.begin(ctx)
	took, err := eachOf(ctx, n, c, func(_ context.Context, i int) error {
		h, err := dbos.RunWorkflow(p.ctx, p.tenSteps, i)
		if err == nil {
			_, err = h.GetResult()
		}
		return err
	})
	ck.end(ctx)
	return took, err
}

// enqueue puts 1,000 jobs into one transaction of the caller's.
func (p *dbosPeer) enqueue(ctx context.Context, n int) error {
	if err := p.register(); err != nil {
		return err
	}
	add := func(part int, tx any) error {
		for i := range part {
			if _, err := dbos.Enqueue[string](p.ctx, dbosQueue, "job", i, dbos.WithEnqueueTransaction(tx)); err != nil {
				return err
			}
		}
		return nil
	}
	inTx := p.inFile
	if p.file == nil {
		conn, err := pgx.Connect(ctx, p.t.URL)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }() // what it wrote is committed
		inTx = func(ctx context.Context, fn func(tx any) error) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return fn(tx) })
		}
	}
	for _, part := range batches(n, batchSize) {
		if err := inTx(ctx, func(tx any) error { return add(part, tx) }); err != nil {
			return err
		}
	}
	return nil
}

func (p *dbosPeer) inFile(ctx context.Context, fn func(tx any) error) error {
	tx, err := p.file.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (p *dbosPeer) drain(ctx context.Context, ck *clock, n, _ int) error {
	p.bodies.expect(n)
	ck.begin(ctx)
	if err := p.run(); err != nil {
		return err
	}
	err := p.bodies.wait(ctx, p.db, p.sql(dbosPending))
	ck.end(ctx)
	return err
}

func (p *dbosPeer) sample(ctx context.Context, next func() bool) (picks, dones []time.Duration, err error) {
	p.bodies.expect(1 << 30)
	if p.s.Variant != dbosDirect {
		if err := p.register(); err != nil {
			return nil, nil, err
		}
	}
	if err := p.run(); err != nil {
		return nil, nil, err
	}
	for i := 0; next(); i++ {
		var h dbos.WorkflowHandle[string]
		t := time.Now()
		if p.s.Variant == dbosDirect {
			h, err = dbos.RunWorkflow(p.ctx, p.oneJob, i)
		} else {
			h, err = dbos.Enqueue[string](p.ctx, dbosQueue, "job", i)
		}
		if err != nil {
			return nil, nil, err
		}
		if _, err := h.GetResult(dbos.WithHandlePollingInterval(dbosResult)); err != nil {
			return nil, nil, err
		}
		dones, picks = append(dones, time.Since(t)), append(picks, (<-p.began).Sub(t))
	}
	return picks, dones, ctx.Err()
}

func (p *dbosPeer) strand(ctx context.Context, k int, ready func()) error {
	p.at = func() {
		ready()
		<-ctx.Done()
	}
	if err := p.run(); err != nil {
		return err
	}
	if _, err := dbos.RunWorkflow(p.ctx, p.long, k); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (p *dbosPeer) patience() time.Duration { return 0 }

func (p *dbosPeer) resume(ctx context.Context, _ int) (recovery, replay time.Duration, err error) {
	var body time.Time
	reached := make(chan time.Time, 1)
	p.first = func() { body = time.Now() }
	p.at = func() { reached <- time.Now() }
	start := time.Now()
	if err := p.run(); err != nil {
		return 0, 0, err
	}
	select {
	case t := <-reached:
		return t.Sub(start), t.Sub(body), nil
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("the run was not resumed: %w", context.Cause(ctx))
	}
}
