package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl"
)

// One look at the low end of pawl_runs_claim for each way of each version that the worker has.
const (
	selectDue = `SELECT place.workflow, place.version, place.queue, place.priority, coalesce(q.special, FALSE),
	CASE WHEN q.special THEN NULL ELSE (` + minDue + `) - {now} END
FROM (SELECT workflow, version, workflow AS queue, 0 AS priority FROM pawl_worker_versions WHERE worker = $1
	UNION ALL SELECT v.workflow, v.version, y.queue, y.priority FROM pawl_worker_versions AS v JOIN pawl_ways AS y ON y.workflow = v.workflow
	WHERE v.worker = $1) AS place
LEFT JOIN pawl_queues AS q ON q.name = place.queue`
	minDue = `SELECT min(r.due) FROM pawl_runs AS r{bydue} WHERE r.workflow = place.workflow AND r.version = place.version AND r.queue = place.queue
	AND r.share = '' AND r.priority = place.priority AND r.due IS NOT NULL`
)

// Due is what a worker with free slots may sleep for. What a queue holds back by its settings is not due.
func (s *Store) Due(ctx context.Context, id pawl.WorkerID) (time.Duration, bool, error) {
	var next *int64
	var has []pawl.VersionID
	flows := make(map[string]flow)
	err := s.reader().rows(ctx, selectDue, []any{string(id)}, func(rows pawl.Rows) error {
		var v pawl.VersionID
		var w way
		var special bool
		var in *int64
		if err := rows.Scan(&v.Workflow, &v.Version, &w.queue, &w.priority, &special, &in); err != nil {
			return err
		}
		w.workflow = v.Workflow
		if !slices.Contains(has, v) {
			has = append(has, v)
		}
		f := flows[v.Workflow]
		f.special = f.special || special
		if !w.isDefault() && !slices.Contains(f.ways, w) {
			f.ways = append(f.ways, w)
		}
		flows[v.Workflow] = f
		next = sooner(next, in)
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("read when the next run is due: %w", err)
	}
	s.learn(flows)
	if isSpecial(flows) && (next == nil || *next > 0) {
		err := s.View(ctx, func(ctx context.Context, tx pawl.Txn) error {
			in, err := tx.(*txn).dueHeeding(ctx, has)
			next = sooner(next, in)
			return err
		})
		if err != nil {
			return 0, false, fmt.Errorf("read when a run may be due: %w", err)
		}
	}
	if next == nil {
		return 0, false, nil
	}
	return time.Duration(max(*next, 0)) * time.Microsecond, true, nil
}

func sooner(a, b *int64) *int64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

// dueHeeding is when something may be taken from the queues with settings, from now on; nil if that depends on others.
func (t *txn) dueHeeding(ctx context.Context, has []pawl.VersionID) (next *int64, err error) {
	h, err := t.heed(ctx, pawl.Claim{Has: has, Limit: 1})
	if err != nil {
		return nil, err
	}
	for _, a := range h.queues {
		if a.PausedAt != 0 {
			continue
		}
		if a.room <= 0 {
			if at := a.Next(h.now); at > h.now {
				next = sooner(next, new(at-h.now))
			}
			continue
		}
		due, err := h.minDue(ctx, a)
		if err != nil {
			return nil, err
		}
		if due != nil && a.left("") > 0 {
			next = sooner(next, new(*due-h.now))
		}
		if !a.Shared {
			continue
		}
		if err := h.turns(ctx, a); err != nil {
			return nil, err
		}
		if len(a.heads) > 0 || a.seen != "" {
			return new(int64), nil
		}
	}
	return next, nil
}
