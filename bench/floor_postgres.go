package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// floorSchemaPG has its columns in an order that needs no padding.
var floorSchemaPG = []string{
	`CREATE TABLE IF NOT EXISTS runs (id uuid PRIMARY KEY, created timestamptz NOT NULL, ended timestamptz, state smallint NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS steps (run uuid NOT NULL, at timestamptz NOT NULL, seq int NOT NULL, result bytea NOT NULL,
		PRIMARY KEY (run, seq))`,
}

// floorConns is as many connections as DBOS opens by default.
const floorConns = 20

// pgLedger sends each write as one statement in one round trip, and commits it.
type pgLedger struct {
	pool *pgxpool.Pool
	ears *pgx.Conn
}

// floorPool opens connections whose plans do not depend on when they were made: prepared on empty tables, statements
// would keep sequential scans.
func floorPool(ctx context.Context, t target) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(t.URL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = floorConns
	for name, value := range map[string]string{"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off",
		"enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"} {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func openPGLedger(ctx context.Context, t target) (*pgLedger, error) {
	pool, err := floorPool(ctx, t)
	if err != nil {
		return nil, err
	}
	return &pgLedger{pool: pool}, nil
}

func (l *pgLedger) close(ctx context.Context) error {
	var err error
	if l.ears != nil {
		err = l.ears.Close(ctx)
	}
	l.pool.Close()
	return err
}

func (l *pgLedger) exec(ctx context.Context, sql string, args ...any) error {
	_, err := l.pool.Exec(ctx, sql, args...)
	return err
}

const (
	pgInsertRun = `INSERT INTO runs (id, state, created) VALUES ($1, $2, now())`
	pgTell      = `WITH i AS (INSERT INTO runs (id, state, created) VALUES ($1, 0, now())) SELECT pg_notify('bench', '')`
	pgStep      = `INSERT INTO steps (run, seq, result, at) VALUES ($1, $2, $3, now())`
	pgFinish    = `UPDATE runs SET state = 2, ended = now() WHERE id = $1`
	pgLast      = `WITH s AS (INSERT INTO steps (run, seq, result, at) VALUES ($1, 0, $2, now()))
	UPDATE runs SET state = 2, ended = now() WHERE id = $1`
	pgClaim = `UPDATE runs SET state = 1 WHERE id = ANY (ARRAY(
	SELECT id FROM runs WHERE state = 0 ORDER BY id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED)) RETURNING id`
)

func (l *pgLedger) insert(ctx context.Context, id jobID, state int) error {
	return l.exec(ctx, pgInsertRun, id, state)
}
func (l *pgLedger) tell(ctx context.Context, id jobID) error { return l.exec(ctx, pgTell, id) }
func (l *pgLedger) step(ctx context.Context, id jobID, seq int) error {
	return l.exec(ctx, pgStep, id, seq, result)
}
func (l *pgLedger) finish(ctx context.Context, id jobID) error { return l.exec(ctx, pgFinish, id) }
func (l *pgLedger) last(ctx context.Context, id jobID) error {
	return l.exec(ctx, pgLast, id, result)
}

func (l *pgLedger) claim(ctx context.Context, n int) ([]jobID, error) {
	rows, err := l.pool.Query(ctx, pgClaim, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[jobID])
}

func (l *pgLedger) bulk(ctx context.Context, n int) error {
	_, err := l.pool.Exec(ctx, `INSERT INTO runs (id, state, created) SELECT id, 0, now() FROM unnest($1::uuid[]) id`, newIDs(n))
	return err
}

func newIDs(n int) []jobID {
	ids := make([]jobID, n)
	for i := range ids {
		ids[i] = newID()
	}
	return ids
}

// heard listens on a connection of its own from its first call on; the caller looks into the table once after that.
func (l *pgLedger) heard(ctx context.Context) error {
	if l.ears == nil {
		ears, err := pgx.ConnectConfig(ctx, l.pool.Config().ConnConfig)
		if err != nil {
			return err
		}
		l.ears = ears
		_, err = ears.Exec(ctx, `LISTEN bench`)
		return err
	}
	_, err := l.ears.WaitForNotification(ctx)
	return err
}

func (l *pgLedger) find(ctx context.Context) (id jobID, journal [][]byte, err error) {
	if err := l.pool.QueryRow(ctx, `SELECT id FROM runs WHERE state < 2`).Scan(&id); err != nil {
		return id, nil, fmt.Errorf("find the open run: %w", err)
	}
	rows, err := l.pool.Query(ctx, `SELECT result FROM steps WHERE run = $1 ORDER BY seq`, id)
	if err != nil {
		return id, nil, err
	}
	journal, err = pgx.CollectRows(rows, pgx.RowTo[[]byte])
	return id, journal, err
}

// pgBatch is the ledger of floor-batch: what waits is written by one of two committers in one implicit transaction and
// one round trip.
type pgBatch struct {
	*pgLedger
	*grouper
}

func openPGBatch(ctx context.Context, t target) (*pgBatch, error) {
	l, err := openPGLedger(ctx, t)
	if err != nil {
		return nil, err
	}
	b := &pgBatch{pgLedger: l}
	b.grouper = newGrouper(ctx, 2, b.commit)
	return b, nil
}

func (b *pgBatch) close(ctx context.Context) error {
	b.grouper.stop()
	return b.pgLedger.close(ctx)
}

func (b *pgBatch) insert(ctx context.Context, id jobID, _ int) error {
	return b.do(ctx, op{kind: opInsert, id: id})
}
func (b *pgBatch) step(ctx context.Context, id jobID, seq int) error {
	return b.do(ctx, op{kind: opStep, id: id, seq: seq})
}
func (b *pgBatch) finish(ctx context.Context, id jobID) error {
	return b.do(ctx, op{kind: opFinish, id: id})
}
func (b *pgBatch) last(ctx context.Context, id jobID) error {
	return b.do(ctx, op{kind: opLast, id: id})
}

const (
	pgInsertRuns = `INSERT INTO runs (id, state, created) SELECT id, 1, now() FROM unnest($1::uuid[]) id`
	pgSteps      = `INSERT INTO steps (run, seq, result, at)
	SELECT run, seq, result, now() FROM unnest($1::uuid[], $2::int[], $3::bytea[]) s (run, seq, result)`
	pgFinishes = `UPDATE runs SET state = 2, ended = now() WHERE id = ANY ($1::uuid[])`
)

func (b *pgBatch) commit(ctx context.Context, ops []*op) error {
	var fresh, over, runs []jobID
	var seqs []int32
	var results [][]byte
	for _, o := range ops {
		if o.kind == opInsert {
			fresh = append(fresh, o.id)
		}
		if o.kind == opStep || o.kind == opLast {
			runs, seqs, results = append(runs, o.id), append(seqs, int32(o.seq)), append(results, result)
		}
		if o.kind == opFinish || o.kind == opLast {
			over = append(over, o.id)
		}
	}
	var batch pgx.Batch
	if len(fresh) > 0 {
		batch.Queue(pgInsertRuns, fresh)
	}
	if len(runs) > 0 {
		batch.Queue(pgSteps, runs, seqs, results)
	}
	if len(over) > 0 {
		batch.Queue(pgFinishes, over)
	}
	if err := b.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("group commit: %w", err)
	}
	return nil
}
