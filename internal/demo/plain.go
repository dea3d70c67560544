package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// The plain job runner: a row per job, a worker that takes it and marks it when the function has returned, and a
// supervisor that puts the jobs of dead workers back on the queue.

const jobInsert = `INSERT INTO pawl_demo_jobs (ticket, status, attempt) VALUES ($1, 'queued', 0)`

func enqueue(ctx context.Context, db *sql.DB, ticket string) error {
	_, err := db.ExecContext(ctx, jobInsert, ticket)
	return err
}

const jobRequeue = `UPDATE pawl_demo_jobs SET status = 'queued' WHERE ticket = $1 AND status = 'running'`

// requeue puts a dead worker's job back.
func requeue(ctx context.Context, db *sql.DB, ticket string) error {
	_, err := db.ExecContext(ctx, jobRequeue, ticket)
	return err
}

const jobTake = `UPDATE pawl_demo_jobs SET status = 'running', attempt = attempt + 1 WHERE ticket = $1 AND status = 'queued'`

func take(ctx context.Context, db *sql.DB, ticket string) error {
	r, err := db.ExecContext(ctx, jobTake, ticket)
	if err != nil {
		return err
	}
	switch n, err := r.RowsAffected(); {
	case err != nil:
		return err
	case n != 1:
		return fmt.Errorf("job %s is not on the queue", ticket)
	}
	return nil
}

const jobDone = `UPDATE pawl_demo_jobs SET status = 'succeeded' WHERE ticket = $1 AND status = 'running'`

func markDone(ctx context.Context, db *sql.DB, ticket string) error {
	_, err := db.ExecContext(ctx, jobDone, ticket)
	return err
}

const jobSelect = `SELECT status FROM pawl_demo_jobs WHERE ticket = $1`

func jobStatus(ctx context.Context, db *sql.DB, ticket string) (status string, err error) {
	err = db.QueryRowContext(ctx, jobSelect, ticket).Scan(&status)
	return status, err
}

// plainJob is one try of the job, from the top: the five functions in order. reach is called at the crash points.
func plainJob(ctx context.Context, db *sql.DB, c *clerk, id string, reach func(crash)) error {
	if err := take(ctx, db, id); err != nil {
		return err
	}
	records, err := c.fetch(ctx, id)
	if err != nil {
		return err
	}
	s, err := c.score(ctx, records)
	if err != nil {
		return err
	}
	if err := plainRecord(ctx, db, c, s); err != nil {
		return err
	}
	reach(beforeNotify)
	reach(intentWritten) // there is no intent: this is the same line
	if _, err := c.notify(ctx, "", s); err != nil {
		return err
	}
	reach(effectDone)
	reach(journalled) // there is no journal
	if err := c.complete(ctx, "", id); err != nil {
		return err
	}
	reach(lastWrite)
	return markDone(ctx, db, id)
}

func plainRecord(ctx context.Context, db *sql.DB, c *clerk, s score) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := c.record(ctx, tx, s); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
