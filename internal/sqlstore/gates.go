package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

const (
	gateFixed = `id, run, lineage, step, generation, supersedes, version, action, kind, op_key, hash, same, requested, expires,
	grant_ttl, deciders, two_persons, requester, edited_by`
	gateChanging = `state, by_whom, via, why, decided, decision_key, grant_expires, claimed_by, claimed, ref`
	gateColumns  = gateFixed + `, ` + gateChanging + `, rev`
)

func scanGate(rows pawl.Rows) (g pawl.GateRow, err error) {
	var kind, deciders string
	err = rows.Scan(&g.ID, &g.Run, &g.Lineage, &g.Step, &g.Generation, zero(&g.Supersedes), &g.Version, &g.Action, zero(&kind), zero(&g.Key),
		zero(&g.Hash), zero(&g.Same), &g.Requested, zero(&g.Expires), zero(&g.GrantTTL), zero(&deciders), zero(&g.TwoPersons), zero(&g.Requester),
		zero(&g.EditedBy), &g.State, zero(&g.By), zero(&g.Via), zero(&g.Why), zero(&g.Decided), zero(&g.DecisionKey), zero(&g.GrantExpires),
		zero(&g.ClaimedBy), zero(&g.Claimed), zero(&g.Ref), &g.Rev, zero(&g.Payload), zero(&g.Form))
	if err == nil && kind != "" {
		err = g.Kind.UnmarshalText([]byte(kind))
	}
	if err == nil && deciders != "" {
		err = json.Unmarshal([]byte(deciders), &g.Deciders)
	}
	return g, err
}

const insertGate = `INSERT INTO pawl_gates (id, run, lineage, step, generation, supersedes, version, action, kind, op_key, hash, same,
	requested, expires, grant_ttl, deciders, two_persons, requester, edited_by, state, rev, payload, form)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, 1, $21, $22)`

// InsertGate lets pawl_gates_live and pawl_gates_step refuse a second one.
func (t *txn) InsertGate(ctx context.Context, g *pawl.GateRow) error {
	var deciders []byte
	err := error(nil)
	if len(g.Deciders) > 0 {
		deciders, err = json.Marshal(g.Deciders)
	}
	if err == nil && g.ID == "" {
		var id string
		id, err = newID()
		g.ID = pawl.EntryID(id)
	}
	if err == nil {
		g.Requested, err = t.Now(ctx)
	}
	if err != nil {
		return fmt.Errorf("insert gate: %w", err)
	}
	kind := ""
	if g.Kind != fault.Kind(0) {
		kind = g.Kind.String()
	}
	g.Resolve(g.Requested)
	_, err = t.exec(ctx, insertGate, string(g.ID), string(g.Run), string(g.Lineage), g.Step, int64(g.Generation), str(g.Supersedes),
		g.Version, g.Action, str(kind), str(g.Key), g.Hash, g.Same, g.Requested, num(g.Expires), num(g.GrantTTL), str(string(deciders)),
		truth(g.TwoPersons), said(g.Requester), said(g.EditedBy), string(g.State), raw(g.Payload), raw(g.Form))
	if err != nil {
		return fmt.Errorf("insert gate %q of run %s: %w", g.Step, g.Run, err)
	}
	g.Rev = 1
	return nil
}

// moveGate has the states from which the new one may be entered in place of %s.
const moveGate = `UPDATE pawl_gates SET rev = rev + 1, state = $3, by_whom = $4, via = $5, why = $6, decided = $7, decision_key = $8,
	grant_expires = $9, claimed_by = $10, claimed = $11, ref = $12
WHERE id = $1 AND rev = $2 AND state IN (%s)`

// MoveGate uses the primary key.
func (t *txn) MoveGate(ctx context.Context, g *pawl.GateRow) (bool, error) {
	var from []string
	for _, s := range pawl.GateStates() {
		if s.CanBecome(g.State) {
			from = append(from, "'"+string(s)+"'")
		}
	}
	if len(from) == 0 {
		return false, nil // a gate only begins in that state
	}
	n, err := t.exec(ctx, fmt.Sprintf(moveGate, strings.Join(from, ", ")), string(g.ID), g.Rev, string(g.State), said(g.By), said(g.Via),
		said(g.Why), num(g.Decided), str(g.DecisionKey), num(g.GrantExpires), str(g.ClaimedBy), num(g.Claimed), str(g.Ref))
	if err != nil {
		return false, fmt.Errorf("move gate %s: %w", g.ID, err)
	}
	if n == 1 {
		g.Rev++
	}
	return n == 1, nil
}

const selectGate = `SELECT ` + gateColumns + `, payload, form FROM pawl_gates WHERE id = $1`

// Gate uses the primary key.
func (t *txn) Gate(ctx context.Context, id pawl.EntryID) (*pawl.GateRow, error) {
	var g *pawl.GateRow
	var err error
	if isID(id) {
		g, err = t.gate(ctx, selectGate, string(id))
	}
	if err == nil && g == nil {
		err = pawl.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read gate %s: %w", id, err)
	}
	return g, nil
}

// gate reads the one row that the query gives; nil if it gives none.
func (t *txn) gate(ctx context.Context, query string, args ...any) (*pawl.GateRow, error) {
	found, err := list(ctx, t, scanGate, query, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

const selectGates = `SELECT ` + gateColumns + `, NULL, NULL FROM pawl_gates WHERE run = $1 ORDER BY requested, id`

// Gates uses pawl_gates_step.
func (t *txn) Gates(ctx context.Context, run pawl.RunID) ([]pawl.GateRow, error) {
	all, err := list(ctx, t, scanGate, selectGates, string(run))
	if err != nil {
		return nil, fmt.Errorf("read gates of run %s: %w", run, err)
	}
	return all, nil
}

const selectLiveGate = `SELECT ` + gateColumns + `, payload, form FROM pawl_gates
WHERE run = $1 AND step = $2 AND state IN ('pending', 'approved', 'claimed')`

// LiveGate uses pawl_gates_live.
func (t *txn) LiveGate(ctx context.Context, run pawl.RunID, step string) (*pawl.GateRow, error) {
	g, err := t.gate(ctx, selectLiveGate, string(run), step)
	if err != nil {
		return nil, fmt.Errorf("read gate %q of run %s: %w", step, run, err)
	}
	return g, nil
}

const selectLastGate = `SELECT ` + gateColumns + `, payload, form FROM pawl_gates
WHERE lineage = $1 AND step = $2 ORDER BY generation DESC LIMIT 1`

// LastGate uses pawl_gates_lineage.
func (t *txn) LastGate(ctx context.Context, lineage pawl.RunID, step string) (*pawl.GateRow, error) {
	g, err := t.gate(ctx, selectLastGate, string(lineage), step)
	if err != nil {
		return nil, fmt.Errorf("read the last gate %q of lineage %s: %w", step, lineage, err)
	}
	return g, nil
}
