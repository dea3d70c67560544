package sqlstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawlrun/pawl"
)

// runColumns are a run's columns but for input and result, in the order of runDest.
const runColumns = `id, lineage, parent, relation, workflow, version, key_name, product_key, new_keys, own_keys, queue, priority, share,
	state, due, epoch, token, owner, claimed, intended, fault, input_hash, cancel_at, cancel_by, cancel_why,
	created, started, ended, lost, lost_total, releases, builds, restored,
	deadline, time_limit, called, successor, continues, next_hash`

func runDest(r *pawl.RunRow) []any {
	return []any{&r.ID, &r.Lineage, zero(&r.Parent), &r.Relation, &r.Workflow, &r.Version, &r.KeyName, zero(&r.Key), &r.NewKeys,
		zero(&r.OwnKeys), &r.Queue, &r.Priority, &r.Share, &r.State, zero(&r.Due), &r.Epoch, zero(&r.Token), zero(&r.Owner), zero(&r.Claimed),
		zero(&r.Intended), scanFault(&r.Fault), zero(&r.InputHash), zero(&r.CancelAt), zero(&r.CancelBy), zero(&r.CancelWhy),
		&r.Created, zero(&r.Started), zero(&r.Ended), &r.Lost, &r.LostTotal, &r.Releases, zero(&r.Builds), zero(&r.Restored),
		zero(&r.Deadline), zero(&r.TimeLimit), zero(&r.Called), zero(&r.Successor), zero(&r.Continues), zero(&r.NextHash)}
}

const (
	selectRun = `SELECT ` + runColumns + ` FROM pawl_runs{byid} WHERE id = $1`
	lockRun   = selectRun + `{lock}`
)

// LockRun uses the primary key. At READ COMMITTED the row comes as it is once the lock has been given.
func (t *txn) LockRun(ctx context.Context, id pawl.RunID) (*pawl.RunRow, error) {
	query := lockRun
	if t.readOnly {
		query = selectRun
	}
	var r pawl.RunRow
	found := false
	var err error
	if isID(id) {
		found, err = t.row(ctx, query, []any{string(id)}, runDest(&r))
	}
	if err == nil && !found {
		err = pawl.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("lock run %s: %w", id, err)
	}
	return &r, nil
}

const selectPayload = `SELECT input, result FROM pawl_runs{byid} WHERE id = $1`

// Payload uses the primary key.
func (t *txn) Payload(ctx context.Context, id pawl.RunID) (input, result []byte, err error) {
	found := false
	if isID(id) {
		found, err = t.row(ctx, selectPayload, []any{string(id)}, []any{zero(&input), zero(&result)})
	}
	if err == nil && !found {
		err = pawl.ErrNotFound
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read payloads of run %s: %w", id, err)
	}
	return input, result, nil
}

// saveRun has the states from which the new one may be entered in place of %s, out of the transition table.
const saveRun = `UPDATE pawl_runs{byid} SET version = $2, own_keys = $3, queue = $4, state = CAST($5 AS TEXT),
	due = CASE WHEN CAST($5 AS TEXT) = 'queued' THEN coalesce($6, {now}) ELSE $6 END,
	epoch = $7, token = $8, owner = $9, claimed = $10, intended = $11, fault = $12, cancel_at = $13, cancel_by = $14,
	cancel_why = $15, started = $16, ended = CASE WHEN $17 THEN coalesce($18, {now}) END,
	lost = $19, lost_total = $20, releases = $21, builds = $22, restored = $23,
	result = CASE WHEN $24 THEN $25 ELSE result END, called = $26,
	successor = $27, next_hash = $28
WHERE id = $1 AND state IN (%s) RETURNING due, ended`

// SaveRun uses the primary key. What follows from the state is enforced here: a run that is not running has no owner,
// one that is neither queued nor waiting is not due, and only a terminal one has ended. Writing the state that is stored
// already is no move, and allowed but for terminal states.
func (t *txn) SaveRun(ctx context.Context, r *pawl.RunRow) error {
	var from []string
	for _, s := range pawl.RunStates() {
		if s.CanBecome(r.State) || s == r.State && !s.Terminal() {
			from = append(from, "'"+string(s)+"'")
		}
	}
	if len(from) == 0 {
		return fmt.Errorf("save run %s: no state may become %q", r.ID, r.State)
	}
	if r.State != pawl.Running {
		r.Owner, r.Token = "", 0
	}
	if r.State != pawl.Queued && r.State != pawl.Waiting {
		r.Due = 0
	}
	if !r.State.Terminal() {
		r.Ended = 0
	}
	failure, err := faultText(r.Fault)
	if err != nil {
		return fmt.Errorf("save run %s: %w", r.ID, err)
	}
	found, err := t.row(ctx, fmt.Sprintf(saveRun, strings.Join(from, ", ")), []any{
		string(r.ID), r.Version, str(r.OwnKeys), r.Queue, string(r.State), num(r.Due), r.Epoch, num(r.Token), str(r.Owner),
		num(r.Claimed), str(r.Intended), str(failure), num(r.CancelAt), said(r.CancelBy), said(r.CancelWhy), num(r.Started),
		r.State.Terminal(), num(r.Ended), int64(r.Lost), int64(r.LostTotal), int64(r.Releases), str(r.Builds), num(r.Restored),
		r.SetResult, raw(r.Result), truth(r.Called), str(r.Successor), raw(r.NextHash),
	}, []any{zero(&r.Due), zero(&r.Ended)})
	if err != nil {
		return fmt.Errorf("save run %s: %w", r.ID, err)
	}
	if !found {
		return t.whyNotSaved(ctx, r)
	}
	return nil
}

func (t *txn) whyNotSaved(ctx context.Context, r *pawl.RunRow) error {
	stored, err := t.LockRun(ctx, r.ID)
	switch {
	case err != nil:
		return fmt.Errorf("save run: %w", err)
	case stored.State.Terminal():
		return fmt.Errorf("save run %s as %s: it is %s: %w", r.ID, r.State, stored.State, pawl.ErrTerminal)
	default:
		return fmt.Errorf("save run %s: the transition table has no move from %s to %s", r.ID, stored.State, r.State)
	}
}

const insertRuns = `INSERT INTO pawl_runs (` + runColumns + `, input) VALUES %s RETURNING id, created, claimed, started, due`

// runTuple is one row of insertRuns, its parameters yet to be numbered. created is always now; due is now where a queued
// run has none, and a run that is inserted running has been claimed and started now.
const runTuple = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
	?, CASE WHEN ? THEN {now} ELSE ? END, ?, ?, ?, CASE WHEN ? THEN {now} ELSE ? END, ?, ?, ?, ?, ?, ?,
	{now}, CASE WHEN ? THEN {now} ELSE ? END, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

func runTuples(n int) string {
	var b strings.Builder
	param := 0
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		parts := strings.Split(runTuple, "?")
		for _, part := range parts[:len(parts)-1] {
			param++
			b.WriteString(part)
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(param))
		}
		b.WriteString(parts[len(parts)-1])
	}
	return b.String()
}

// insertSize is the most rows of one INSERT. Sizes are powers of two, so that there are few statements to prepare.
const insertSize = 64

// InsertRuns adds the runs with few statements. Created, Started, Claimed and Due are set in runs.
func (t *txn) InsertRuns(ctx context.Context, runs []pawl.RunRow) error {
	if err := t.addWays(ctx, waysOf(runs)); err != nil {
		return err
	}
	for len(runs) > 0 {
		n := insertSize
		for n > len(runs) {
			n /= 2
		}
		if err := t.insertRuns(ctx, runs[:n]); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

func (t *txn) insertRuns(ctx context.Context, runs []pawl.RunRow) error {
	var args []any
	byID := make(map[pawl.RunID]*pawl.RunRow, len(runs))
	for i := range runs {
		r := &runs[i]
		byID[r.ID] = r
		failure, err := faultText(r.Fault)
		if err != nil {
			return fmt.Errorf("insert run %s: %w", r.ID, err)
		}
		begun := r.State == pawl.Running
		if !begun {
			r.Owner, r.Token = "", 0
		}
		args = append(args, string(r.ID), string(r.Lineage), str(r.Parent), string(r.Relation), r.Workflow, r.Version, r.KeyName,
			str(r.Key), r.NewKeys, str(r.OwnKeys), r.Queue, int64(r.Priority), string(r.Share),
			string(r.State), r.State == pawl.Queued && r.Due == 0, num(r.Due), r.Epoch, num(r.Token), str(r.Owner),
			begun && r.Claimed == 0, num(r.Claimed), str(r.Intended), str(failure), raw(r.InputHash), num(r.CancelAt),
			said(r.CancelBy), said(r.CancelWhy),
			begun && r.Started == 0, num(r.Started), num(r.Ended), int64(r.Lost), int64(r.LostTotal), int64(r.Releases),
			str(r.Builds), num(r.Restored), num(r.Deadline), num(r.TimeLimit), truth(r.Called),
			str(r.Successor), str(r.Continues), raw(r.NextHash), raw(r.Input))
	}
	err := t.rows(ctx, fmt.Sprintf(insertRuns, runTuples(len(runs))), args, func(rows pawl.Rows) error {
		var stored pawl.RunRow
		if err := rows.Scan(&stored.ID, &stored.Created, zero(&stored.Claimed), zero(&stored.Started), zero(&stored.Due)); err != nil {
			return err
		}
		if r := byID[stored.ID]; r != nil {
			r.Created, r.Claimed, r.Started, r.Due = stored.Created, stored.Claimed, stored.Started, stored.Due
		}
		return nil
	})
	switch t.s.d.Classify(err) {
	case SameMark:
		return fmt.Errorf("insert run %s: %w: %w", ids(runs), pawl.ErrLive, err)
	case SameRow:
		return fmt.Errorf("insert run %s: a run of that id is there already: %w", ids(runs), err)
	case Other, Aborted, Locked, Unusable, Refused, Invalid: // nothing that a caller could tell apart
	}
	if err != nil {
		return fmt.Errorf("insert run %s: %w", ids(runs), err)
	}
	return nil
}

func ids(runs []pawl.RunRow) string {
	if len(runs) == 1 {
		return string(runs[0].ID)
	}
	return fmt.Sprintf("%s and %d more", runs[0].ID, len(runs)-1)
}

// The first run of a lineage is found by the primary key, the others by pawl_runs_lineage.
const selectLineage = `SELECT ` + runColumns + ` FROM pawl_runs WHERE id = $1
UNION ALL SELECT ` + runColumns + ` FROM pawl_runs WHERE lineage = $1 AND lineage <> id
ORDER BY created, id`

// Lineage returns the runs of a lineage, oldest first.
func (t *txn) Lineage(ctx context.Context, lineage pawl.RunID) ([]pawl.RunRow, error) {
	if !isID(lineage) {
		return nil, nil
	}
	runs, err := listOf(ctx, t, runDest, selectLineage, string(lineage))
	if err != nil {
		return nil, fmt.Errorf("read lineage %s: %w", lineage, err)
	}
	return runs, nil
}

const insertKey = `INSERT INTO pawl_keys (key_name, product_key, input_hash, lineage) VALUES ($1, $2, $3, $4)
ON CONFLICT (product_key, key_name) DO NOTHING`

const selectKey = `SELECT input_hash, lineage, end_state, ended FROM pawl_keys WHERE key_name = $1 AND product_key = $2`

// ClaimKey uses the primary key. The insert waits for another transaction that inserts the same key; if that one rolls
// back, or the row is deleted between the two statements, it is tried again.
func (t *txn) ClaimKey(ctx context.Context, key pawl.KeyRow) (pawl.KeyRow, bool, error) {
	stored := pawl.KeyRow{KeyName: key.KeyName, Key: key.Key}
	for range 10 {
		n, err := t.exec(ctx, insertKey, key.KeyName, string(key.Key), raw(key.InputHash), string(key.Lineage))
		if err != nil {
			return stored, false, fmt.Errorf("claim key %q: %w", key.Key, err)
		}
		if n == 1 {
			return key, true, nil
		}
		found, err := t.row(ctx, selectKey, []any{key.KeyName, string(key.Key)},
			[]any{zero(&stored.InputHash), &stored.Lineage, zero(&stored.End), zero(&stored.EndedAt)})
		if err != nil {
			return stored, false, fmt.Errorf("read key %q: %w", key.Key, err)
		}
		if found {
			return stored, false, nil
		}
	}
	return stored, false, fmt.Errorf("claim key %q: its row is there for the insert and not for the read; the transaction's snapshot is older than the row", key.Key)
}

const endKey = `UPDATE pawl_keys SET end_state = $4, ended = coalesce($5, {now})
WHERE key_name = $1 AND product_key = $2 AND lineage = $3`

// EndKey uses the primary key. A fork with keys of its own says nothing about the product key.
func (t *txn) EndKey(ctx context.Context, r *pawl.RunRow) error {
	if r.Key == "" || r.NewKeys {
		return nil
	}
	if _, err := t.exec(ctx, endKey, r.KeyName, string(r.Key), string(r.Lineage), str(r.State), num(r.Ended)); err != nil {
		return fmt.Errorf("end key %q: %w", r.Key, err)
	}
	return nil
}

const moveKey = `UPDATE pawl_keys SET lineage = $4, end_state = NULL, ended = NULL
WHERE key_name = $1 AND product_key = $2 AND lineage = $3`

// MoveKey uses the primary key.
func (t *txn) MoveKey(ctx context.Context, r *pawl.RunRow, to pawl.RunID) (bool, error) {
	if r.Key == "" || r.NewKeys {
		return false, nil
	}
	n, err := t.exec(ctx, moveKey, r.KeyName, string(r.Key), string(r.Lineage), string(to))
	if err != nil {
		return false, fmt.Errorf("move key %q to run %s: %w", r.Key, to, err)
	}
	return n == 1, nil
}
