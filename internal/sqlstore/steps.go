package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// usageColumns are shared by steps and attempts.
const usageColumns = `provider, model, request_id, tokens_in, tokens_out, cost_micros, latency_us, sent`

func usageDest(u *pawl.Usage, sent **fault.Evidence) []any {
	return []any{zero(&u.Provider), zero(&u.Model), zero(&u.RequestID), zero(&u.TokensIn), zero(&u.TokensOut),
		zero(&u.CostMicros), microsField{&u.Latency}, scanSent(sent)}
}

// stepState are the columns of a step that a move may change but for its payloads and usage; with run, name and kind
// they are what InheritStep copies.
const (
	stepChanging = `state, attempt, epoch, op_key, paid, foreign_tx, worker, begun, ended, deadline, settle, first_intent,
	key_ttl, next_at, first_try, unknown, round, told, probe_after, next_probe, probes, use_stored, orphaned,
	inherited, taken_from, fault, input_hash, other_hash`
	stepColumns = `run, name, items, kind, ` + stepChanging + `, ` + usageColumns + `, octet_length(value)`
)

func stepDest(s *pawl.StepRow) []any {
	return append(append([]any{&s.Run, &s.Name, zero(&s.Items), kindField{&s.Kind}, &s.State, &s.Attempt, &s.Epoch, zero(&s.Key), zero(&s.Paid),
		zero(&s.Foreign), zero(&s.Worker), zero(&s.Begun), zero(&s.Ended), zero(&s.Deadline), zero(&s.Settle),
		zero(&s.FirstIntent), zero(&s.KeyTTL), zero(&s.NextAt), zero(&s.FirstTry), zero(&s.Unknown), zero(&s.Round),
		zero(&s.Told), zero(&s.ProbeAfter), zero(&s.NextProbe), zero(&s.Probes), zero(&s.UseStored), zero(&s.Orphaned), zero(&s.Inherited),
		zero(&s.TakenFrom), scanFault(&s.Fault), zero(&s.InputHash), zero(&s.OtherHash)}, usageDest(&s.Usage, &s.Sent)...),
		zero(&s.ValueSize), zero(&s.Value), zero(&s.Input))
}

func truth(b bool) any {
	if !b {
		return nil
	}
	return true
}

const selectStep = `SELECT ` + stepColumns + `, value, input FROM pawl_steps WHERE run = $1 AND name = $2`

// Step uses the primary key.
func (t *txn) Step(ctx context.Context, run pawl.RunID, name string) (*pawl.StepRow, error) {
	var s pawl.StepRow
	found, err := t.row(ctx, selectStep, []any{string(run), name}, stepDest(&s))
	if err != nil {
		return nil, fmt.Errorf("read step %q of run %s: %w", name, run, err)
	}
	if !found {
		return nil, nil
	}
	return &s, nil
}

// Values of more than 4 KiB are left out. No column of the page is read twice.
const (
	stepPage = `SELECT ` + stepColumns + `, CASE WHEN octet_length(value) <= 4096 THEN value END, NULL FROM pawl_steps`

	// An item's steps are known by their names, so that the rows need not be read to pass over them.
	selectClaimedSteps = stepPage + `
WHERE run {anyof}SELECT id FROM pawl_runs{byowner} WHERE owner = $1 AND token = $2 AND epoch > 1{end} AND name NOT LIKE '%//%'
ORDER BY run, name LIMIT $3`
)

// ClaimedSteps finds the runs by their owner, and their rows by the primary key.
func (t *txn) ClaimedSteps(ctx context.Context, worker pawl.WorkerID, token int64, limit int) ([]pawl.StepRow, error) {
	steps, err := listOf(ctx, t, stepDest, selectClaimedSteps, string(worker), token, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("read the journals of a claim: %w", err)
	}
	return steps, nil
}

const selectOpenSteps = `SELECT ` + stepColumns + `, value, input FROM pawl_steps
WHERE run = $1 AND state IN ` + openStates + ` ORDER BY name`

// OpenSteps reads the run's part of the primary key. An index over the state would cost every result more than this.
func (t *txn) OpenSteps(ctx context.Context, run pawl.RunID) ([]pawl.StepRow, error) {
	steps, err := listOf(ctx, t, stepDest, selectOpenSteps, string(run))
	if err != nil {
		return nil, fmt.Errorf("read open steps of run %s: %w", run, err)
	}
	return steps, nil
}

// A plain INSERT, never an upsert: of two writers of one step the second fails, and with it its transaction.
const insertStep = `INSERT INTO pawl_steps (run, name, batch, item, items, kind, ` + stepChanging + `, ` + usageColumns + `, value, input)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
	$26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44)`

// InsertStep adds a row. On PostgreSQL ErrStepExists leaves the transaction fit only for a rollback.
func (t *txn) InsertStep(ctx context.Context, s *pawl.StepRow) error {
	a := args{}
	err := putStep(s, &a)
	if err == nil {
		_, err = t.exec(ctx, insertStep, a.all...)
	}
	if err != nil && t.s.d.Classify(err) == SameRow {
		err = fmt.Errorf("%w: %w", pawl.ErrStepExists, err)
	}
	if err != nil {
		return fmt.Errorf("insert step %q of run %s: %w", s.Name, s.Run, err)
	}
	s.ValueSize = len(s.Value)
	return nil
}

// moveStep has the states from which the new one may be entered in place of %s. Payloads are replaced but never erased:
// a row that was read without them can be written back.
const moveStep = `UPDATE pawl_steps SET state = $4, attempt = $5, epoch = $6, op_key = $7, paid = $8, foreign_tx = $9,
	worker = $10, begun = $11, ended = $12, deadline = $13, settle = $14, first_intent = $15, key_ttl = $16, next_at = $17,
	first_try = $18, unknown = $19, round = $20, told = $21, probe_after = $22, next_probe = $23, probes = $24,
	use_stored = $25, orphaned = $26, inherited = $27, taken_from = $28, fault = $29, input_hash = $30, other_hash = $31,
	provider = $32, model = $33, request_id = $34, tokens_in = $35, tokens_out = $36, cost_micros = $37, latency_us = $38,
	sent = $39, value = coalesce($40, value), input = coalesce($41, input)
WHERE run = $1 AND name = $2 AND attempt = $3 AND state IN (%s)`

// MoveStep uses the primary key.
func (t *txn) MoveStep(ctx context.Context, s *pawl.StepRow, attempt int) (bool, error) {
	var from []string
	for _, f := range pawl.StepStates() {
		if f.CanBecome(s.State) {
			from = append(from, "'"+string(f)+"'")
		}
	}
	if len(from) == 0 {
		return false, nil // a step only begins in that state
	}
	a := args{all: []any{string(s.Run), s.Name, int64(attempt)}}
	if err := putMoved(s, &a); err != nil {
		return false, fmt.Errorf("move step %q of run %s: %w", s.Name, s.Run, err)
	}
	n, err := t.exec(ctx, fmt.Sprintf(moveStep, strings.Join(from, ", ")), a.all...)
	if err != nil {
		return false, fmt.Errorf("move step %q of run %s: %w", s.Name, s.Run, err)
	}
	return n == 1, nil
}

// Column for column as stored, but for the state and for usage and cost, which belong to the run that paid them.
const inheritStep = `INSERT INTO pawl_steps (run, name, batch, item, items, kind, state, attempt, epoch, op_key, paid, foreign_tx, worker, begun,
	ended, deadline, settle, first_intent, key_ttl, round, probe_after, next_probe, probes,
	use_stored, inherited, taken_from, fault, input_hash, other_hash, value, input)
SELECT CAST($2 AS {id}), name, batch, item, items, kind, CAST($4 AS TEXT), attempt, epoch, op_key, paid, foreign_tx, worker, begun,
	ended, deadline, settle, first_intent, key_ttl, attempt, probe_after, next_probe, probes,
	use_stored, coalesce(inherited, run), taken_from, fault, input_hash, other_hash, value, input
FROM pawl_steps WHERE run = $1 AND name = $3`

// InheritStep uses the primary key. The attempts so far are a round of their own: the heir has the step's full budget.
func (t *txn) InheritStep(ctx context.Context, from, run pawl.RunID, name string, state pawl.StepState) error {
	n, err := t.exec(ctx, inheritStep, string(from), string(run), name, string(state))
	switch {
	case err != nil && t.s.d.Classify(err) == SameRow:
		err = fmt.Errorf("%w: %w", pawl.ErrStepExists, err)
	case err == nil && n == 0:
		err = pawl.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("inherit step %q of run %s: %w", name, from, err)
	}
	return nil
}

const markStep = `UPDATE pawl_steps SET other_hash = $3, use_stored = $4, orphaned = $5, next_probe = $6, probes = $7, items = $8
WHERE run = $1 AND name = $2`

// MarkStep uses the primary key.
func (t *txn) MarkStep(ctx context.Context, s *pawl.StepRow) error {
	n, err := t.exec(ctx, markStep, string(s.Run), s.Name, raw(s.OtherHash), truth(s.UseStored), truth(s.Orphaned), num(s.NextProbe), num(s.Probes),
		num(s.Items))
	if err == nil && n == 0 {
		err = pawl.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("mark step %q of run %s: %w", s.Name, s.Run, err)
	}
	return nil
}

const attemptColumns = `run, step, attempt, worker, begun, ended, wait, ` + usageColumns + `, fault`

func scanAttempt(rows pawl.Rows) (a pawl.AttemptRow, err error) {
	f := &a.Fault
	dest := append([]any{&a.Run, &a.Step, &a.Attempt, zero(&a.Worker), zero(&a.Begun), zero(&a.Ended), zero(&a.Wait)},
		usageDest(&a.Usage, &a.Sent)...)
	if err = rows.Scan(append(dest, scanFault(&f))...); err == nil && f != nil {
		a.Fault = *f
	}
	return a, err
}

const insertAttempt = `INSERT INTO pawl_attempts (` + attemptColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) ON CONFLICT (run, step, attempt) DO NOTHING`

// AddAttempt uses the primary key.
func (t *txn) AddAttempt(ctx context.Context, a *pawl.AttemptRow) error {
	failure, err := json.Marshal(a.Fault)
	if err == nil {
		v := args{all: []any{string(a.Run), a.Step, int64(a.Attempt), str(a.Worker), num(a.Begun), num(a.Ended), num(a.Wait)}}
		putUsage(&pawl.StepRow{Usage: a.Usage, Sent: a.Sent}, &v)
		_, err = t.exec(ctx, insertAttempt, append(v.all, string(failure))...)
	}
	if err != nil {
		return fmt.Errorf("record attempt %d of step %q of run %s: %w", a.Attempt, a.Step, a.Run, err)
	}
	return nil
}

const selectAttempts = `SELECT ` + attemptColumns + ` FROM pawl_attempts WHERE run = $1 ORDER BY step, attempt`

// Attempts reads the run's part of the primary key.
func (t *txn) Attempts(ctx context.Context, run pawl.RunID) ([]pawl.AttemptRow, error) {
	all, err := list(ctx, t, scanAttempt, selectAttempts, string(run))
	if err != nil {
		return nil, fmt.Errorf("read attempts of run %s: %w", run, err)
	}
	return all, nil
}
