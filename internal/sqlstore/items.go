package sqlstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pawlrun/pawl"
)

const itemColumns = `run, batch, item, state, epoch, ended, inherited, input_hash, fault, octet_length(value)`

func itemDest(it *pawl.ItemRow) []any {
	return []any{&it.Run, &it.Batch, &it.Item, &it.State, &it.Epoch, &it.Ended, zero(&it.Inherited), zero(&it.InputHash),
		scanFault(&it.Fault), zero(&it.ValueSize), zero(&it.Value)}
}

const insertItem = `INSERT INTO pawl_items (run, batch, item, state, epoch, ended, input_hash, fault, value)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// AddItem adds a row. On PostgreSQL ErrStepExists leaves the transaction fit only for a rollback.
func (t *txn) AddItem(ctx context.Context, it *pawl.ItemRow) error {
	now, err := t.Now(ctx)
	if err != nil {
		return err
	}
	failure, err := faultText(it.Fault)
	if err == nil {
		_, err = t.exec(ctx, insertItem, string(it.Run), it.Batch, it.Item, string(it.State), it.Epoch, now, raw(it.InputHash),
			str(failure), raw(it.Value))
	}
	if err != nil && t.s.d.Classify(err) == SameRow {
		err = fmt.Errorf("%w: %w", pawl.ErrStepExists, err)
	}
	if err != nil {
		return fmt.Errorf("insert item %q of batch %q of run %s: %w", it.Item, it.Batch, it.Run, err)
	}
	it.Ended, it.ValueSize = now, len(it.Value)
	return nil
}

const selectItem = `SELECT ` + itemColumns + `, value FROM pawl_items WHERE run = $1 AND batch = $2 AND item = $3`

// Item uses the primary key.
func (t *txn) Item(ctx context.Context, run pawl.RunID, batch, item string) (*pawl.ItemRow, error) {
	var it pawl.ItemRow
	found, err := t.row(ctx, selectItem, []any{string(run), batch, item}, itemDest(&it))
	if err != nil {
		return nil, fmt.Errorf("read item %q of batch %q of run %s: %w", item, batch, run, err)
	}
	if !found {
		return nil, nil
	}
	return &it, nil
}

const selectItems = `SELECT ` + itemColumns + `, CASE WHEN $6 AND octet_length(value) <= 4096 THEN value END
FROM pawl_items WHERE run = $1 AND batch = $2 AND item > $3 AND ($4 = '' OR state = $4) ORDER BY item LIMIT $5`

// Items uses the primary key.
func (t *txn) Items(ctx context.Context, q pawl.ItemQuery) ([]pawl.ItemRow, error) {
	items, err := listOf(ctx, t, itemDest, selectItems, string(q.Run), q.Batch, q.After, string(q.State), int64(q.Limit), q.Values)
	if err != nil {
		return nil, fmt.Errorf("read items of batch %q of run %s: %w", q.Batch, q.Run, err)
	}
	return items, nil
}

const selectEndedItems = `SELECT string_agg(line, '` + lineSeparator + `') FROM (SELECT concat(item, '` + fieldSeparator + `', state, '` + fieldSeparator + `', {hex}input_hash{endhex}) AS line
FROM pawl_items WHERE run = $1 AND batch = $2 AND item > $3 ORDER BY item LIMIT $4) AS page`

// EndedItems uses the primary key.
func (t *txn) EndedItems(ctx context.Context, run pawl.RunID, batch, after string, limit int) ([]pawl.EndedItem, error) {
	lines, err := t.lines(ctx, selectEndedItems, string(run), batch, after, int64(limit))
	ended := make([]pawl.EndedItem, len(lines))
	for i, line := range lines {
		item, rest, _ := strings.Cut(line, fieldSeparator)
		state, hash, _ := strings.Cut(rest, fieldSeparator)
		ended[i].Item, ended[i].State = item, pawl.ItemState(state)
		if ended[i].InputHash, err = hex.DecodeString(hash); err != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read ended items of batch %q of run %s: %w", batch, run, err)
	}
	return ended, nil
}

const inheritItems = `INSERT INTO pawl_items (run, batch, item, state, epoch, ended, inherited, input_hash, fault, value)
SELECT CAST($2 AS {id}), batch, item, state, epoch, ended, coalesce(inherited, run), input_hash, fault, value
FROM pawl_items WHERE run = $1 AND batch = $3 AND state = 'done'`

// InheritItems uses the primary key.
func (t *txn) InheritItems(ctx context.Context, from, run pawl.RunID, batch string) (int64, error) {
	n, err := t.exec(ctx, inheritItems, string(from), string(run), batch)
	if err != nil {
		return 0, fmt.Errorf("inherit items of batch %q of run %s: %w", batch, from, err)
	}
	return n, nil
}

const selectItemCounts = `SELECT batch, count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'failed'),
	count(inherited), max(CASE WHEN inherited IS NULL THEN ended END)
FROM pawl_items WHERE run = $1 GROUP BY batch ORDER BY batch`

// ItemCounts reads the run's part of the primary key.
func (t *txn) ItemCounts(ctx context.Context, run pawl.RunID) ([]pawl.ItemCount, error) {
	counts, err := list(ctx, t, func(rows pawl.Rows) (c pawl.ItemCount, err error) {
		err = rows.Scan(&c.Batch, &c.Done, &c.Failed, &c.Reused, zero(&c.Last))
		return c, err
	}, selectItemCounts, string(run))
	if err != nil {
		return nil, fmt.Errorf("count items of run %s: %w", run, err)
	}
	return counts, nil
}

const selectItemUsage = `SELECT CAST(coalesce(sum(tokens_in), 0) AS BIGINT), CAST(coalesce(sum(tokens_out), 0) AS BIGINT),
	CAST(coalesce(sum(cost_micros), 0) AS BIGINT)
FROM pawl_steps WHERE run = $1 AND batch IS NOT NULL AND state = 'succeeded' AND inherited IS NULL`

// ItemUsage reads the run's part of the primary key.
func (t *txn) ItemUsage(ctx context.Context, run pawl.RunID) (u pawl.Usage, err error) {
	if _, err := t.row(ctx, selectItemUsage, []any{string(run)}, []any{&u.TokensIn, &u.TokensOut, &u.CostMicros}); err != nil {
		return u, fmt.Errorf("add up what items of run %s used: %w", run, err)
	}
	return u, nil
}
