package sqlstore

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/payload"
)

// newID makes the id of a row that has none yet. Version 7, so that rows of one process sort by age.
func newID() (string, error) {
	id, err := uuid.NewV7()
	return id.String(), err
}

const entryColumns = `id, run, step, kind, attempt, opened, other, detail, closed, choice, by_whom, why, result`

func scanEntry(rows pawl.Rows) (e pawl.EntryRow, err error) {
	err = rows.Scan(&e.ID, &e.Run, &e.Step, &e.Kind, &e.Attempt, &e.Opened, zero(&e.Other), zero(&e.Detail), zero(&e.Closed), zero(&e.Choice),
		zero(&e.By), zero(&e.Why), zero(&e.Result))
	return e, err
}

const insertEntry = `INSERT INTO pawl_inbox (id, run, step, kind, attempt, opened, other, detail) VALUES ($1, $2, $3, $4, $5, {now}, $6, $7)
ON CONFLICT (run, step, kind) WHERE closed IS NULL DO NOTHING RETURNING opened`

const selectOpenEntry = `SELECT id, opened FROM pawl_inbox WHERE run = $1 AND step = $2 AND kind = $3 AND closed IS NULL`

// OpenEntry uses pawl_inbox_open. If an entry of the kind is open, e gets its id and time.
func (t *txn) OpenEntry(ctx context.Context, e *pawl.EntryRow) error {
	id, err := newID()
	if err != nil {
		return fmt.Errorf("open inbox entry: %w", err)
	}
	if e.ID != "" {
		id = string(e.ID)
	}
	for range 10 { // an answer may close the one that stood in the way between the two statements
		added, err := t.row(ctx, insertEntry, []any{id, string(e.Run), e.Step, string(e.Kind), int64(e.Attempt), str(e.Other),
			said(e.Detail)},
			[]any{&e.Opened})
		if err != nil {
			return fmt.Errorf("open %s entry for run %s: %w", e.Kind, e.Run, err)
		}
		if added {
			e.ID = pawl.EntryID(id)
			return nil
		}
		found, err := t.row(ctx, selectOpenEntry, []any{string(e.Run), e.Step, string(e.Kind)}, []any{&e.ID, &e.Opened})
		if err != nil {
			return fmt.Errorf("read %s entry of run %s: %w", e.Kind, e.Run, err)
		}
		if found {
			return nil
		}
	}
	return fmt.Errorf("open %s entry for run %s: one is open for the insert and not for the read", e.Kind, e.Run)
}

const closeEntry = `UPDATE pawl_inbox SET closed = {now}, choice = $2, by_whom = $3, why = $4, result = $5
WHERE id = $1 AND closed IS NULL RETURNING closed`

// CloseEntry uses the primary key.
func (t *txn) CloseEntry(ctx context.Context, e *pawl.EntryRow) (bool, error) {
	closed, err := t.row(ctx, closeEntry, []any{string(e.ID), str(e.Choice), said(e.By), said(e.Why), raw(e.Result)}, []any{&e.Closed})
	if err != nil {
		return false, fmt.Errorf("close inbox entry %s: %w", e.ID, err)
	}
	return closed, nil
}

const selectEntry = `SELECT ` + entryColumns + ` FROM pawl_inbox WHERE id = $1`

// Entry uses the primary key.
func (t *txn) Entry(ctx context.Context, id pawl.EntryID) (*pawl.EntryRow, error) {
	var found []pawl.EntryRow
	var err error
	if isID(id) {
		found, err = list(ctx, t, scanEntry, selectEntry, string(id))
	}
	if err == nil && len(found) == 0 {
		err = pawl.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read inbox entry %s: %w", id, err)
	}
	return &found[0], nil
}

const (
	selectEntries     = `SELECT ` + entryColumns + ` FROM pawl_inbox WHERE run = $1 ORDER BY opened, id`
	selectOpenEntries = `SELECT ` + entryColumns + ` FROM pawl_inbox WHERE run = $1 AND closed IS NULL ORDER BY opened, id`
)

// Entries uses pawl_inbox_run or pawl_inbox_open.
func (t *txn) Entries(ctx context.Context, run pawl.RunID, open bool) ([]pawl.EntryRow, error) {
	query := selectEntries
	if open {
		query = selectOpenEntries
	}
	all, err := list(ctx, t, scanEntry, query, string(run))
	if err != nil {
		return nil, fmt.Errorf("read inbox of run %s: %w", run, err)
	}
	return all, nil
}

const insertEvidence = `INSERT INTO pawl_evidence (run, id, step, attempt, at, worker, source, verdict, fault, value)
VALUES ($1, $2, $3, $4, CASE WHEN $5 THEN {now} ELSE $6 END, $7, $8, $9, $10, $11) RETURNING at`

// AddEvidence sets e.At to now where it is 0.
func (t *txn) AddEvidence(ctx context.Context, e *pawl.EvidenceRow) error {
	failure, err := faultText(e.Fault)
	if err != nil {
		return fmt.Errorf("record evidence: %w", err)
	}
	id, err := newID()
	if err != nil {
		return fmt.Errorf("record evidence: %w", err)
	}
	_, err = t.row(ctx, insertEvidence, []any{string(e.Run), id, e.Step, int64(e.Attempt), e.At == 0, num(e.At), str(e.Worker),
		e.Source, e.Verdict.String(), str(failure), raw(e.Value)}, []any{&e.At})
	if err != nil {
		return fmt.Errorf("record evidence on step %q of run %s: %w", e.Step, e.Run, err)
	}
	return nil
}

const selectEvidence = `SELECT run, step, attempt, at, worker, source, verdict, fault, value FROM pawl_evidence
WHERE run = $1 ORDER BY at, id`

func scanEvidence(rows pawl.Rows) (e pawl.EvidenceRow, err error) {
	var verdict string
	err = rows.Scan(&e.Run, &e.Step, &e.Attempt, &e.At, zero(&e.Worker), &e.Source, &verdict, scanFault(&e.Fault), zero(&e.Value))
	for _, v := range []pawl.Verdict{pawl.Happened, pawl.DidNotHappen} { // everything else cannot tell
		if v.String() == verdict {
			e.Verdict = v
		}
	}
	return e, err
}

// Evidence reads the run's part of the primary key.
func (t *txn) Evidence(ctx context.Context, run pawl.RunID) ([]pawl.EvidenceRow, error) {
	all, err := list(ctx, t, scanEvidence, selectEvidence, string(run))
	if err != nil {
		return nil, fmt.Errorf("read evidence of run %s: %w", run, err)
	}
	return all, nil
}

const auditColumns = `id, at, act, by_whom, why, run, step, entry, detail`

const insertAudit = `INSERT INTO pawl_audit (` + auditColumns + `, gone)
VALUES ($1, CASE WHEN $2 THEN {now} ELSE $3 END, $4, $5, $6, $7, $8, $9, $10, CASE WHEN $11 THEN {now} END) RETURNING at`

// AddAudit sets a.ID and a.At where they are empty.
func (t *txn) AddAudit(ctx context.Context, a *pawl.AuditRow) error {
	id, err := newID()
	if err != nil {
		return fmt.Errorf("record act: %w", err)
	}
	if a.ID == "" {
		a.ID = id
	}
	_, err = t.row(ctx, insertAudit, []any{a.ID, a.At == 0, num(a.At), a.Act, payload.Clean(a.By, 400), said(a.Why), str(a.Run), str(a.Step),
		str(a.Entry), said(a.Detail), a.Run == ""}, []any{&a.At})
	if err != nil {
		return fmt.Errorf("record act %q: %w", a.Act, err)
	}
	return nil
}

const selectAudit = `SELECT ` + auditColumns + ` FROM pawl_audit WHERE run = $1 ORDER BY at, id`

func scanAudit(rows pawl.Rows) (a pawl.AuditRow, err error) {
	err = rows.Scan(&a.ID, &a.At, &a.Act, &a.By, zero(&a.Why), zero(&a.Run), zero(&a.Step), zero(&a.Entry), zero(&a.Detail))
	return a, err
}

// Audit uses pawl_audit_run.
func (t *txn) Audit(ctx context.Context, run pawl.RunID) ([]pawl.AuditRow, error) {
	all, err := list(ctx, t, scanAudit, selectAudit, string(run))
	if err != nil {
		return nil, fmt.Errorf("read audit trail of run %s: %w", run, err)
	}
	return all, nil
}

// A lease of another clock, or one that has passed by this clock, is over.
const expired = `(w.clock <> {clock} OR w.expires < {leasenow})`

// Overlap counts the other workers whose lease ran out, without their having left, within one lease of this one's.
const selectWorker = `SELECT id, lease, expires, NOT ` + expired + `, registered, hostname, machine, boot, pid_ns, pid, process_start,
	build, suspect_run, suspect_since,
	(SELECT count(*) FROM pawl_workers o WHERE o.id <> w.id AND o.left_at IS NULL AND (o.clock <> {clock} OR o.expires < {leasenow})
		AND o.clock = w.clock AND o.expires BETWEEN w.expires - w.lease AND w.expires + w.lease)
FROM pawl_workers w WHERE id = $1`

// Worker uses the primary key; the table is small.
func (t *txn) Worker(ctx context.Context, id pawl.WorkerID) (*pawl.WorkerRow, error) {
	var w pawl.WorkerRow
	found, err := t.row(ctx, selectWorker, []any{string(id)}, []any{&w.ID, microsField{&w.Lease}, &w.Expires, &w.Alive, &w.Registered,
		zero(&w.Hostname), zero(&w.Machine), zero(&w.Boot), zero(&w.PIDNS), zero(&w.PID), zero(&w.ProcessStart), zero(&w.Build),
		zero(&w.SuspectRun), zero(&w.SuspectSince), &w.Overlap})
	if err != nil {
		return nil, fmt.Errorf("read worker %s: %w", id, err)
	}
	if !found {
		return nil, nil
	}
	return &w, nil
}

const markSuspect = `UPDATE pawl_workers SET suspect_run = $2, suspect_since = CASE WHEN $3 THEN {now} END WHERE id = $1`

// MarkSuspect uses the primary key. A worker whose row is gone has nothing to be noted on.
func (t *txn) MarkSuspect(ctx context.Context, id pawl.WorkerID, run pawl.RunID) error {
	if _, err := t.exec(ctx, markSuspect, string(id), str(run), run != ""); err != nil {
		return fmt.Errorf("mark worker %s: %w", id, err)
	}
	return nil
}

// A lease that is over is not renewed here: others may have taken the worker's runs since.
const extendLease = `UPDATE pawl_workers AS w SET expires = {leasenow} + w.lease, seen = {now} WHERE id = $1 AND NOT ` + expired

// ExtendLease uses the primary key.
func (t *txn) ExtendLease(ctx context.Context, id pawl.WorkerID) (bool, error) {
	n, err := t.exec(ctx, extendLease, string(id))
	if err != nil {
		return false, fmt.Errorf("extend the lease of worker %s: %w", id, err)
	}
	return n == 1, nil
}
