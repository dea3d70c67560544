package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

var floorSchemaLite = []string{
	`CREATE TABLE IF NOT EXISTS runs (id BLOB PRIMARY KEY, state INTEGER NOT NULL, created INTEGER NOT NULL, ended INTEGER)`,
	`CREATE TABLE IF NOT EXISTS steps (run BLOB NOT NULL, seq INTEGER NOT NULL, result BLOB NOT NULL, at INTEGER NOT NULL,
		PRIMARY KEY (run, seq))`,
}

// liteLedger writes with prepared statements through one connection, each a transaction of its own.
type liteLedger struct {
	db   *sql.DB
	told chan struct{} // capacity 1; a file cannot tell another process anything

	insertRun, addStep, finishRun, claimRuns *sql.Stmt
}

func openLiteLedger(ctx context.Context, t target) (*liteLedger, error) {
	db, err := openSQL(t, 1)
	if err != nil {
		return nil, err
	}
	l := &liteLedger{db: db, told: make(chan struct{}, 1)}
	for text, stmt := range map[string]**sql.Stmt{
		`INSERT INTO runs (id, state, created) VALUES (?, ?, ?)`:                                                       &l.insertRun,
		`INSERT INTO steps (run, seq, result, at) VALUES (?, ?, ?, ?)`:                                                 &l.addStep,
		`UPDATE runs SET state = 2, ended = ? WHERE id = ?`:                                                            &l.finishRun,
		`UPDATE runs SET state = 1 WHERE id IN (SELECT id FROM runs WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id`: &l.claimRuns,
	} {
		if *stmt, err = db.PrepareContext(ctx, text); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return l, nil
}

func (l *liteLedger) close(context.Context) error { return l.db.Close() }

func now() int64 { return time.Now().UnixMicro() }

func (l *liteLedger) insert(ctx context.Context, id jobID, state int) error {
	_, err := l.insertRun.ExecContext(ctx, id[:], state, now())
	return err
}

func (l *liteLedger) tell(ctx context.Context, id jobID) error {
	if err := l.insert(ctx, id, floorQueued); err != nil {
		return err
	}
	select {
	case l.told <- struct{}{}:
	default:
	}
	return nil
}

func (l *liteLedger) heard(ctx context.Context) error {
	select {
	case <-l.told:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *liteLedger) step(ctx context.Context, id jobID, seq int) error {
	_, err := l.addStep.ExecContext(ctx, id[:], seq, result, now())
	return err
}

func (l *liteLedger) finish(ctx context.Context, id jobID) error {
	_, err := l.finishRun.ExecContext(ctx, now(), id[:])
	return err
}

func (l *liteLedger) last(ctx context.Context, id jobID) error {
	return l.write(ctx, []*op{{kind: opLast, id: id}})
}

// write is one transaction.
func (l *liteLedger) write(ctx context.Context, ops []*op) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	insert, step, finish := tx.StmtContext(ctx, l.insertRun), tx.StmtContext(ctx, l.addStep), tx.StmtContext(ctx, l.finishRun)
	t := now()
	for _, o := range ops {
		if o.kind == opInsert {
			_, err = insert.ExecContext(ctx, o.id[:], floorRunning, t)
		}
		if o.kind == opStep || o.kind == opLast {
			_, err = step.ExecContext(ctx, o.id[:], o.seq, result, t)
		}
		if err == nil && (o.kind == opFinish || o.kind == opLast) {
			_, err = finish.ExecContext(ctx, t, o.id[:])
		}
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (l *liteLedger) claim(ctx context.Context, n int) (ids []jobID, err error) {
	rows, err := l.claimRuns.QueryContext(ctx, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, jobID(id))
	}
	return ids, rows.Err()
}

func (l *liteLedger) bulk(ctx context.Context, n int) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	insert := tx.StmtContext(ctx, l.insertRun)
	for range n {
		id := newID()
		if _, err := insert.ExecContext(ctx, id[:], floorQueued, now()); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (l *liteLedger) find(ctx context.Context) (id jobID, journal [][]byte, err error) {
	var raw []byte
	if err := l.db.QueryRowContext(ctx, `SELECT id FROM runs WHERE state < 2`).Scan(&raw); err != nil {
		return id, nil, fmt.Errorf("find the open run: %w", err)
	}
	rows, err := l.db.QueryContext(ctx, `SELECT result FROM steps WHERE run = ? ORDER BY seq`, raw)
	if err != nil {
		return id, nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var text []byte
		if err := rows.Scan(&text); err != nil {
			return id, nil, err
		}
		journal = append(journal, text)
	}
	return jobID(raw), journal, rows.Err()
}

// liteBatch is the ledger of floor-batch: one committer writes all that waits in one transaction.
type liteBatch struct {
	*liteLedger
	*grouper
}

func openLiteBatch(ctx context.Context, t target) (*liteBatch, error) {
	l, err := openLiteLedger(ctx, t)
	if err != nil {
		return nil, err
	}
	return &liteBatch{l, newGrouper(ctx, 1, l.write)}, nil
}

func (b *liteBatch) close(ctx context.Context) error {
	b.grouper.stop()
	return b.liteLedger.close(ctx)
}

func (b *liteBatch) insert(ctx context.Context, id jobID, _ int) error {
	return b.do(ctx, op{kind: opInsert, id: id})
}
func (b *liteBatch) step(ctx context.Context, id jobID, seq int) error {
	return b.do(ctx, op{kind: opStep, id: id, seq: seq})
}
func (b *liteBatch) finish(ctx context.Context, id jobID) error {
	return b.do(ctx, op{kind: opFinish, id: id})
}
func (b *liteBatch) last(ctx context.Context, id jobID) error {
	return b.do(ctx, op{kind: opLast, id: id})
}
