package sqlstore

import (
	"context"
	"fmt"

	"github.com/pawlrun/pawl"
)

const callColumns = `run, step, child, started, detached`

func scanCall(rows pawl.Rows) (c pawl.CallRow, err error) {
	err = rows.Scan(&c.Run, &c.Step, &c.Child, &c.Started, &c.Detached)
	return c, err
}

const insertCall = `INSERT INTO pawl_calls (` + callColumns + `) VALUES ($1, $2, $3, $4, $5)`

// AddCall uses the primary key.
func (t *txn) AddCall(ctx context.Context, c pawl.CallRow) error {
	if _, err := t.exec(ctx, insertCall, string(c.Run), c.Step, string(c.Child), c.Started, c.Detached); err != nil {
		return fmt.Errorf("add call of step %q of run %s: %w", c.Step, c.Run, err)
	}
	return nil
}

const selectCalls = `SELECT ` + callColumns + ` FROM pawl_calls WHERE run = $1 ORDER BY step`

// Calls reads the run's part of the primary key.
func (t *txn) Calls(ctx context.Context, run pawl.RunID) ([]pawl.CallRow, error) {
	calls, err := list(ctx, t, scanCall, selectCalls, string(run))
	if err != nil {
		return nil, fmt.Errorf("read calls of run %s: %w", run, err)
	}
	return calls, nil
}

const selectCallers = `SELECT ` + callColumns + ` FROM pawl_calls WHERE child = $1 ORDER BY run, step`

// Callers uses pawl_calls_child.
func (t *txn) Callers(ctx context.Context, child pawl.RunID) ([]pawl.CallRow, error) {
	calls, err := list(ctx, t, scanCall, selectCallers, string(child))
	if err != nil {
		return nil, fmt.Errorf("read callers of run %s: %w", child, err)
	}
	return calls, nil
}

const moveCalls = `UPDATE pawl_calls SET child = $2 WHERE child = $1`

// MoveCalls uses pawl_calls_child.
func (t *txn) MoveCalls(ctx context.Context, child, to pawl.RunID) error {
	if _, err := t.exec(ctx, moveCalls, string(child), string(to)); err != nil {
		return fmt.Errorf("move calls of run %s to run %s: %w", child, to, err)
	}
	return nil
}
