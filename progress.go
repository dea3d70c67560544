package pawl

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// BatchInfo is how far a batch of a run is, by what is stored.
type BatchInfo struct {
	Name      string        `json:"name"`  // path of its step
	State     StepState     `json:"state"` // waiting while items are left; failed if some have failed and none is left
	Items     int           `json:"items"` // that it was called with last
	Done      int           `json:"done"`
	Failed    int           `json:"failed"`
	Left      int           `json:"left"`
	Reused    int           `json:"reused,omitempty"` // of the done ones, those that an earlier run of the lineage has executed
	Begun     time.Time     `json:"begun,omitzero"`
	Last      time.Time     `json:"last,omitzero"`       // when the last item ended
	PerSecond float64       `json:"per_second,omitzero"` // items that this run has executed, since the batch was begun, pauses included
	Wait      time.Duration `json:"eta_ns,omitempty"`    // for the rest at that rate, if a worker has the run
}

// Batches tells how far the batches of a run are. It only looks.
func (e *Engine) Batches(ctx context.Context, id RunID) (infos []BatchInfo, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		rows, err := allSteps(ctx, tx, id)
		if err == nil {
			infos, err = batchInfos(ctx, tx, run, rows)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("batches of run %s: %w", id, err)
	}
	return infos, nil
}

// showBatches adds the batches, and what their items used.
func showBatches(ctx context.Context, tx Txn, run *RunRow, rows []StepRow, d *RunDetail) (err error) {
	if d.Batches, err = batchInfos(ctx, tx, run, rows); err != nil || len(d.Batches) == 0 {
		return err
	}
	used, err := tx.ItemUsage(ctx, d.ID)
	d.Cost.add(used)
	return err
}

func batchInfos(ctx context.Context, tx Txn, run *RunRow, rows []StepRow) (infos []BatchInfo, err error) {
	var counts []ItemCount
	var now int64
	for i := range rows {
		row := &rows[i]
		if row.Kind != fault.KindBatch {
			continue
		}
		if infos == nil {
			if counts, err = tx.ItemCounts(ctx, run.ID); err != nil {
				return nil, err
			}
			if now, err = tx.Now(ctx); err != nil {
				return nil, err
			}
		}
		k := slices.IndexFunc(counts, func(c ItemCount) bool { return c.Batch == row.Name })
		if k < 0 {
			infos = append(infos, BatchInfo{Name: row.Name, State: row.State, Items: row.Items, Left: row.Items, Begun: micros(row.Begun)})
			continue
		}
		infos = append(infos, batchInfo(row, &counts[k], run, now))
	}
	return infos, nil
}

func batchInfo(row *StepRow, n *ItemCount, run *RunRow, now int64) BatchInfo {
	info := BatchInfo{Name: row.Name, State: row.State, Items: row.Items, Done: n.Done, Failed: n.Failed, Left: max(0, row.Items-n.Done-n.Failed),
		Reused: n.Reused, Begun: micros(row.Begun), Last: micros(n.Last)}
	until := n.Last
	if run.State == Running && info.Left > 0 {
		until = now
	}
	if took := until - row.Begun; took > 0 && row.Begun > 0 {
		info.PerSecond = float64(n.Done+n.Failed-n.Reused) * 1e6 / float64(took)
	}
	if run.State == Running && info.PerSecond > 0 {
		info.Wait = time.Duration(float64(info.Left) / info.PerSecond * float64(time.Second)).Round(time.Second)
	}
	return info
}
