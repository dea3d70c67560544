package pawl

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Doctor checks what rows at rest can show: the invariants, what is stuck, unsafe settings of the database, and whether
// what [Options.Retention] is over for is being deleted.
func (e *Engine) Doctor(ctx context.Context) ([]Finding, error) {
	found, err := e.store.Check(ctx)
	if err != nil {
		return nil, fmt.Errorf("check the store: %w", err)
	}
	if e.o.Retention == 0 {
		return found, nil
	}
	old, err := e.Prunable(ctx, e.o.Retention+overdue, manyOverdue)
	if err != nil || old.Lineages == 0 {
		return found, err
	}
	least := ""
	if old.More {
		least = "at least "
	}
	return append(found, Finding{Level: "warn", Rule: "retention",
		Text:   fmt.Sprintf("%s%d finished lineages (%d runs) are older than the retention of %v and still here", least, old.Lineages, old.Runs, e.o.Retention),
		Advice: "a worker with this retention deletes them in the background; pawl prune does it by hand"}), nil
}

const (
	overdue     = 10 * time.Minute // after which workers should have deleted what they may
	manyOverdue = 1000             // are not counted further
)

// restoredEpochs is added to each open run's epoch after a restore, far above any that the lost history can have given
// out, so that workers of the former database are refused.
const restoredEpochs = 1 << 32

// AfterRestore tells the engine that the database was restored from a backup, or lost commits in a failover. What was
// sent after the backup is not in it, so every Once and Keyed step of an open run that is not known to be finished
// becomes uncertain, now or when its run, or a retry of a run that had ended, comes by. Claims and leases of the former database end. It reports each run it
// has dealt with to progress, if that is not nil, and returns their number. No worker should run meanwhile.
func (e *Engine) AfterRestore(ctx context.Context, a Act, progress func(RunID)) (n int, err error) {
	if err := checkName("By", a.By); err != nil {
		return 0, err
	}
	if err := e.update(ctx, func(ctx context.Context, tx Txn) error { return tx.SetRestored(ctx) }); err != nil {
		return 0, err
	}
	q := RunQuery{States: []RunState{Queued, Running, Waiting, Blocked}, Limit: 500}
	for {
		rows, err := e.store.ListRuns(ctx, q)
		if err != nil {
			return n, fmt.Errorf("list open runs: %w", err)
		}
		for i := range rows {
			if err := e.restored(ctx, rows[i].ID, a); err != nil {
				return n, fmt.Errorf("run %s: %w", rows[i].ID, err)
			}
			n++
			if progress != nil {
				progress(rows[i].ID)
			}
		}
		if len(rows) < q.Limit {
			return n, nil
		}
		q.After = Cursor(rows[len(rows)-1].ID)
	}
}

func (e *Engine) restored(ctx context.Context, id RunID, a Act) error {
	return e.update(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil || run.State.Terminal() {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		open, err := tx.OpenSteps(ctx, id)
		if err != nil {
			return err
		}
		for i := range open {
			row := &open[i]
			if row.State == StepUncertain || !slices.Contains([]Kind{fault.KindOnce, fault.KindKeyed}, row.Kind) {
				continue
			}
			row.State, row.Ended, row.NextProbe = StepUncertain, 0, 0
			row.Deadline = max(row.Deadline, now)
			if row.ProbeAfter > 0 {
				row.NextProbe = now
			}
			if ok, err := tx.MoveStep(ctx, row, row.Attempt); err != nil || !ok {
				return fmt.Errorf("mark step %q: %w", row.Name, err)
			}
			if err := tx.OpenEntry(ctx, uncertainEntry(row, fmt.Sprintf(
				"the database was restored from a backup; attempt %d of %s %q, or a later one, may have happened", row.Attempt, row.Kind, row.Name))); err != nil {
				return err
			}
		}
		run.Epoch += restoredEpochs
		run.Token, run.Owner, run.Restored = 0, "", now
		if run.State == Running {
			run.State, run.Due = Queued, now
		}
		if err := tx.AddAudit(ctx, &AuditRow{Act: "after-restore", By: a.By, Why: payload.Clean(a.Reason, 1000), Run: id}); err != nil {
			return err
		}
		return tx.SaveRun(ctx, run)
	})
}
