package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl"
)

// A worker's row is written by upserts: it is a lease, not a journal, and its owner is the only writer.
const upsertWorker = `INSERT INTO pawl_workers (id, lease, expires, clock, seen, registered, hostname, machine, boot, pid_ns, pid,
	process_start, build) VALUES ($1, $2, {leasenow} + $2, {clock}, {now}, {now}, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO UPDATE SET lease = excluded.lease, expires = excluded.expires, clock = excluded.clock, seen = excluded.seen,
	left_at = NULL`

const insertVersion = `INSERT INTO pawl_worker_versions (worker, workflow, version) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

// Register adds the worker's row and what it has.
func (s *Store) Register(ctx context.Context, w pawl.WorkerRow, has []pawl.VersionID) error {
	err := s.renew(ctx, func(ctx context.Context, t *txn) error {
		_, err := t.exec(ctx, upsertWorker, string(w.ID), w.Lease.Microseconds(), said(w.Hostname), str(w.Machine), str(w.Boot),
			str(w.PIDNS), num(w.PID), str(w.ProcessStart), str(w.Build))
		for _, v := range has {
			if err == nil {
				_, err = t.exec(ctx, insertVersion, string(w.ID), v.Workflow, v.Version)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("register worker %s: %w", w.ID, err)
	}
	s.mu.Lock()
	s.has[w.ID] = slices.Clone(has)
	s.mu.Unlock()
	return s.lookAtQueues(ctx, workflows(has))
}

const renewLease = `UPDATE pawl_workers SET lease = $2, expires = {leasenow} + $2, clock = {clock}, seen = {now}, left_at = NULL
WHERE id = $1 RETURNING {now}, {server}, (` + selectLapse + `) - {leasenow}`

// Workers are few.
const selectLapse = `SELECT min(o.expires) FROM pawl_workers AS o WHERE o.id <> $1 AND o.clock = {clock} AND o.expires > {leasenow}`

const selectHeld = `SELECT id, epoch, cancel_at IS NOT NULL FROM pawl_runs{byowner} WHERE owner = $1`

// Heartbeat writes the worker's row, by its primary key, and reads runs by pawl_runs_owner.
func (s *Store) Heartbeat(ctx context.Context, w pawl.WorkerRow) (*pawl.Beat, error) {
	for range 2 {
		beat, err := s.beat(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("heartbeat of worker %s: %w", w.ID, err)
		}
		if beat != nil {
			return beat, nil
		}
		// Somebody has tidied the row away, and what the worker has with it.
		s.mu.Lock()
		has := s.has[w.ID]
		s.mu.Unlock()
		if err := s.Register(ctx, w, has); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("heartbeat of worker %s: its row is gone again", w.ID)
}

func (s *Store) beat(ctx context.Context, w pawl.WorkerRow) (*pawl.Beat, error) {
	s.mu.Lock()
	names := workflows(s.has[w.ID])
	s.mu.Unlock()
	var flows map[string]flow
	var beat *pawl.Beat
	err := s.renew(ctx, func(ctx context.Context, t *txn) error {
		var b pawl.Beat
		found, err := t.row(ctx, renewLease, []any{string(w.ID), w.Lease.Microseconds()}, []any{&b.Now, &b.Server, microsField{&b.Lapse}})
		if err != nil || !found {
			beat = nil
			return err
		}
		b.Runs, err = list(ctx, t, func(rows pawl.Rows) (h pawl.Held, err error) {
			err = rows.Scan(&h.Run, &h.Epoch, &h.Cancel)
			return h, err
		}, selectHeld, string(w.ID))
		beat = &b
		if err == nil { // a worker that is always busy looks for new queues only here
			flows, err = t.flows(ctx, names)
		}
		return err
	})
	if err == nil {
		s.learn(flows)
	}
	return beat, err
}

const endLease = `UPDATE pawl_workers SET expires = {leasenow} - 1, clock = {clock}, seen = {now}, left_at = {now} WHERE id = $1`

// Unregister uses the primary key.
func (s *Store) Unregister(ctx context.Context, id pawl.WorkerID) error {
	err := s.renew(ctx, func(ctx context.Context, t *txn) error {
		_, err := t.exec(ctx, endLease, string(id))
		return err
	})
	if err != nil {
		return fmt.Errorf("unregister worker %s: %w", id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.has, id)
	delete(s.backlogs, id)
	return nil
}

// A plain owner = $2 would make the planner prefer pawl_runs_owner, which it implies.
const releaseLost = `UPDATE pawl_runs{byid} SET state = 'queued', due = {now}, epoch = epoch + 1, token = NULL, owner = NULL
WHERE id = $1 AND (owner = $2) IS TRUE AND epoch = $3 AND state = 'running'`

// ReleaseLost uses the primary key.
func (s *Store) ReleaseLost(ctx context.Context, id pawl.WorkerID, run pawl.RunID, epoch int64) (bool, error) {
	var n int64
	err := s.renew(ctx, func(ctx context.Context, t *txn) (err error) {
		n, err = t.exec(ctx, releaseLost, string(run), string(id), epoch)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("release run %s: %w", run, err)
	}
	return n == 1, nil
}

// A version counts as there until grace after the lease of the last worker that had it.
const selectServed = `SELECT v.workflow, v.version, NOT ` + expired + ` FROM pawl_worker_versions v JOIN pawl_workers w ON w.id = v.worker
WHERE NOT ` + expired + ` OR w.seen + w.lease > {now} - $1`

// nextPair walks pawl_runs_claim from one (workflow, version) to the next, so that the look costs as many steps as there
// are versions with runs due, not as many as there are runs.
const nextPair = `SELECT workflow, version FROM pawl_runs WHERE due IS NOT NULL AND (workflow, version) > ($1, $2)
ORDER BY workflow, version LIMIT 1`

// A run that has been due for less than grace may have been started just before its first worker.
const selectStray = `SELECT id FROM pawl_runs{bydue} WHERE workflow = $1 AND version = $2 AND due <= {now} - $3
ORDER BY queue, share, priority, due, id LIMIT $4`

// CROSS, because SQLite keeps the order of such a join: from the few open entries to their runs.
const selectBack = `SELECT r.id FROM pawl_inbox e CROSS JOIN pawl_runs r WHERE r.id = e.run
	AND e.closed IS NULL AND e.kind = 'version' AND r.state = 'blocked' AND EXISTS (SELECT 1 FROM pawl_worker_versions v
	JOIN pawl_workers w ON w.id = v.worker
	WHERE v.workflow = r.workflow AND v.version = r.version AND NOT ` + expired + `)
ORDER BY e.id LIMIT $1`

func scanVersion(rows pawl.Rows) (v pawl.VersionID, err error) {
	err = rows.Scan(&v.Workflow, &v.Version)
	return v, err
}

func scanRunID(rows pawl.Rows) (id pawl.RunID, err error) {
	err = rows.Scan(&id)
	return id, err
}

// Stray reads only; the caller locks and looks again before it changes a run.
func (s *Store) Stray(ctx context.Context, grace time.Duration, limit int) (stray, back []pawl.RunID, err error) {
	err = s.View(ctx, func(ctx context.Context, tx pawl.Txn) error {
		t := tx.(*txn)
		stray, back = nil, nil
		served, alive, err := t.served(ctx, grace)
		if err != nil {
			return err
		}
		back, err = list(ctx, t, scanRunID, selectBack, int64(limit))
		if err != nil || !alive {
			return err
		}
		var at pawl.VersionID
		for len(stray) < limit {
			pairs, err := list(ctx, t, scanVersion, nextPair, at.Workflow, at.Version)
			if err != nil || len(pairs) == 0 {
				return err
			}
			if at = pairs[0]; served[at] {
				continue
			}
			ids, err := list(ctx, t, scanRunID, selectStray, at.Workflow, at.Version, grace.Microseconds(), int64(limit-len(stray)))
			if err != nil {
				return err
			}
			stray = append(stray, ids...)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look for runs without a worker: %w", err)
	}
	return stray, back, nil
}

// served lists the versions that workers have or had until lately, and whether any worker lives.
func (t *txn) served(ctx context.Context, grace time.Duration) (served map[pawl.VersionID]bool, alive bool, err error) {
	served = make(map[pawl.VersionID]bool)
	err = t.rows(ctx, selectServed, []any{grace.Microseconds()}, func(rows pawl.Rows) error {
		var v pawl.VersionID
		var live bool
		err := rows.Scan(&v.Workflow, &v.Version, &live)
		served[v] = true
		alive = alive || live
		return err
	})
	return served, alive, err
}

// Runs whose owner has no row would never be abandoned, so the owner gets a row with a lease that is over.
const adoptOwners = `INSERT INTO pawl_workers (id, lease, expires, clock, seen, registered)
SELECT DISTINCT r.owner, 0, {leasenow} - 1, {clock}, {now}, {now} FROM pawl_runs r
WHERE r.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pawl_workers w WHERE w.id = r.owner)
ON CONFLICT (id) DO NOTHING`

const deleteWorkers = `DELETE FROM pawl_workers AS w WHERE ` + expired + ` AND w.seen + w.lease < {now} - $1
	AND NOT EXISTS (SELECT 1 FROM pawl_runs r WHERE r.owner = w.id)`

const deleteVersions = `DELETE FROM pawl_worker_versions AS v WHERE NOT EXISTS (SELECT 1 FROM pawl_workers w WHERE w.id = v.worker)`

// Tidy reads runs by pawl_runs_owner.
func (s *Store) Tidy(ctx context.Context, keep time.Duration) error {
	err := s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
		t := tx.(*txn)
		if _, err := t.exec(ctx, adoptOwners); err != nil {
			return err
		}
		if _, err := t.exec(ctx, deleteWorkers, keep.Microseconds()); err != nil {
			return err
		}
		if _, err := t.exec(ctx, slotAll); err != nil {
			return err
		}
		if _, err := t.exec(ctx, deleteLanes, keep.Microseconds()); err != nil {
			return err
		}
		_, err := t.exec(ctx, deleteVersions)
		return err
	})
	if err != nil {
		return fmt.Errorf("tidy workers: %w", err)
	}
	return nil
}
