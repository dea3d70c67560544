package sqlstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/pawlrun/pawl"
)

// The statements of a batch, each for all its rows: the values come as an array a column. {clock} of a statement is the time
// that the first one has read and left in a setting of the transaction, so that all have the same.
//
// A guard divides by zero if a row is missing, which undoes the batch: that is rare, and the rows are then written one by
// one. No lock is waited for: one run whose row somebody holds must not hold up the others. LATERAL and OFFSET 0 keep the
// look-up by primary key, and its place in the table the row; a plain join can flip to a scan. Nobody moves the rows
// meanwhile: the lock on the run keeps others away.
const (
	batchNow = `SELECT set_config('pawl.now', ({now})::text, true)::bigint`

	batchFence = `SELECT set_config('pawl.now', ({now})::text, true)::bigint, 1 / (count(*) = cardinality($1::uuid[]))::int FROM (
	SELECT r.id FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS v(id, epoch, token)
	CROSS JOIN LATERAL (SELECT id FROM pawl_runs WHERE id = v.id AND epoch = v.epoch AND token = v.token AND state = 'running'
		OFFSET 0{skip}) AS r) AS held`

	batchSettle = `WITH n AS MATERIALIZED (` + batchClock + `), done AS (UPDATE pawl_steps AS s SET state = 'succeeded', ended = n.now,
	value = v.value, provider = v.provider, model = v.model, request_id = v.request_id, tokens_in = v.tokens_in,
	tokens_out = v.tokens_out, cost_micros = v.cost_micros, latency_us = v.latency_us, sent = v.sent
FROM n, unnest($1::uuid[], $2::text[], $3::bigint[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[],
	$10::bigint[], $11::bigint[], $12::text[]) AS v(run, name, attempt, value, provider, model, request_id, tokens_in, tokens_out,
	cost_micros, latency_us, sent)
	CROSS JOIN LATERAL (SELECT ctid FROM pawl_steps WHERE run = v.run AND name = v.name AND attempt = v.attempt AND state = 'in_flight'
		OFFSET 0) AS at
WHERE s.ctid = at.ctid RETURNING 1)
SELECT 1 / (count(*) = cardinality($1::uuid[]))::int FROM done`

	batchEnd = `WITH n AS MATERIALIZED (` + batchClock + `), done AS (UPDATE pawl_runs AS r SET state = v.state, epoch = r.epoch + 1,
	token = NULL, owner = NULL, due = NULL, ended = n.now, fault = v.fault, result = v.result
FROM n, unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[]) AS v(id, state, fault, result)
	CROSS JOIN LATERAL (SELECT ctid FROM pawl_runs WHERE id = v.id AND intended IS NULL OFFSET 0) AS at
WHERE r.ctid = at.ctid
	AND (SELECT count(*) FROM pawl_steps AS s WHERE s.run = v.id AND s.state IN ` + openStates + `) = 0 RETURNING 1)
SELECT 1 / (count(*) = cardinality($1::uuid[]))::int FROM done`

	batchKeys = `UPDATE pawl_keys AS k SET end_state = v.state, ended = n.now
FROM (` + batchClock + `) AS n, unnest($1::text[], $2::text[], $3::uuid[], $4::text[]) AS v(product_key, key_name, lineage, state)
	CROSS JOIN LATERAL (SELECT ctid FROM pawl_keys WHERE product_key = v.product_key AND key_name = v.key_name AND lineage = v.lineage
		OFFSET 0) AS at
WHERE k.ctid = at.ctid`

	batchStart = `INSERT INTO pawl_runs (id, lineage, relation, workflow, version, key_name, new_keys, queue, state, due, epoch, token,
	owner, claimed, created, started, lost, lost_total, releases, builds, input_hash, input)
SELECT v.id, v.id, '', v.workflow, v.version, v.key_name, FALSE, v.queue, v.state, CASE WHEN v.owner IS NULL THEN n.now END, v.epoch,
	v.token, v.owner, CASE WHEN v.owner IS NOT NULL THEN n.now END, n.now, CASE WHEN v.owner IS NOT NULL THEN n.now END, 0, 0, 0,
	v.builds, v.input_hash, v.input
FROM (` + batchClock + `) AS n, unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
	$9::uuid[], $10::text[], $11::bytea[], $12::bytea[]) AS v(id, workflow, version, key_name, queue, state, epoch, token, owner,
	builds, input_hash, input)`

	batchClock = `SELECT current_setting('pawl.now')::bigint AS now`
)

// writeArrays is Write for a server: all statements go there together.
func (s *Store) writeArrays(ctx context.Context, changes []pawl.Change) (now int64, err error) {
	calls, err := s.batchCalls(changes, &now)
	if err != nil {
		return 0, err
	}
	err = s.again(ctx, func() error { return s.send(ctx, calls) })
	return now, err
}

// send runs the calls as one transaction.
func (s *Store) send(ctx context.Context, calls []Call) error {
	conn, give, err := s.take(ctx, s.write, false)
	if err != nil {
		return err
	}
	defer give()
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	settled := grace(ctx, cancel)
	err = s.d.Send(sendCtx, conn, calls)
	settled()
	if err == nil {
		return nil
	}
	s.discard(conn, err)
	return s.notCommitted(err)
}

func (s *Store) batchCalls(changes []pawl.Change, now *int64) ([]Call, error) {
	var b batch
	for i := range changes {
		if err := b.add(&changes[i]); err != nil {
			return nil, err
		}
	}
	clock := func(rows pawl.Rows) error { return rows.Scan(now) }
	calls := []Call{{Text: s.texts.get(batchNow), Row: clock}}
	if len(b.ids) > 0 {
		calls[0] = Call{s.texts.get(batchFence), []any{b.ids, b.epochs, b.tokens}, func(rows pawl.Rows) error {
			var held int64
			return rows.Scan(now, &held)
		}}
	}
	guard := func(rows pawl.Rows) error {
		var held int64
		return rows.Scan(&held)
	}
	add := func(t table, text string, row func(pawl.Rows) error) {
		if t.rows > 0 {
			calls = append(calls, Call{text, t.args(), row})
		}
	}
	add(b.starts, batchStart, nil)
	add(b.settles, batchSettle, guard)
	for _, sh := range b.order {
		add(*b.inserts[sh], s.shaped(sh, arrayInsert), nil)
	}
	add(b.ends, batchEnd, guard)
	add(b.keys, batchKeys, nil)
	return calls, nil
}

// batch sorts changes by statement.
type batch struct {
	ids     IDs
	epochs  []int64
	tokens  []int64
	starts  table
	settles table
	inserts map[shape]*table
	order   []shape // of inserts
	ends    table
	keys    table
}

func (b *batch) add(c *pawl.Change) error {
	if r := c.Start; r != nil {
		b.starts.add("utttttnNuTbb", string(r.ID), r.Workflow, r.Version, r.KeyName, r.Queue, string(r.State), r.Epoch, num(r.Token),
			str(r.Owner), str(r.Builds), raw(r.InputHash), raw(r.Input))
		return nil
	}
	b.ids, b.epochs, b.tokens = append(b.ids, string(c.Run)), append(b.epochs, c.Epoch), append(b.tokens, c.Token)
	for _, row := range c.Insert {
		values, err := stepValues(row)
		if err != nil {
			return err
		}
		b.insert(values)
	}
	for _, row := range c.Settle {
		b.settles.add("utnbTTTNNNNT", append([]any{string(row.Run), row.Name, int64(row.Attempt), raw(row.Value)},
			usageArgs(row.Usage, row.Sent)...)...)
	}
	if c.End == nil {
		return nil
	}
	failure, err := faultText(c.End.Fault)
	if err != nil {
		return err
	}
	b.ends.add("utTb", string(c.Run), string(c.End.State), failure, raw(c.End.Result))
	if r := c.End.Row; r.Key != "" && !r.NewKeys {
		b.keys.add("ttut", string(r.Key), r.KeyName, string(r.Lineage), string(c.End.State))
	}
	return nil
}

func (b *batch) insert(values []any) {
	sh := shapeOf(values)
	t := b.inserts[sh]
	if t == nil {
		if b.inserts == nil {
			b.inserts = make(map[shape]*table)
		}
		t = &table{}
		b.inserts[sh] = t
		b.order = append(b.order, sh)
	}
	if t.columns == nil {
		for _, at := range sh.columns() {
			t.columns = append(t.columns, newColumn(stepTypes[at]))
		}
	}
	row := values[:0]
	for i, v := range values {
		if v == nil {
			continue
		}
		if sh.late(i) {
			v = v.(int64) - pawl.AtWrite
		}
		row = append(row, v)
	}
	t.append(row)
}

// stepTypes are the types of the columns in stepNames: u for a UUID, t for text, n for a number, b for bytes, o for a
// boolean.
var stepTypes = func() []byte {
	types := make([]byte, len(stepNames))
	for i, name := range stepNames {
		switch name {
		case "run", "worker", "inherited":
			types[i] = 'u'
		case "name", "kind", "state", "op_key", "taken_from", "provider", "model", "request_id", "sent", "fault":
			types[i] = 't'
		case "paid", "foreign_tx", "use_stored":
			types[i] = 'o'
		case "input_hash", "other_hash", "value", "input":
			types[i] = 'b'
		default:
			types[i] = 'n'
		}
	}
	return types
}()

var arrayTypes = map[byte]string{'u': "uuid[]", 't': "text[]", 'n': "bigint[]", 'b': "bytea[]", 'o': "boolean[]"}

// arrayInsert takes relative times as what has to be added to the clock.
func arrayInsert(sh shape) string {
	var names, values, params []string
	for i, at := range sh.columns() {
		name := stepNames[at]
		value := "v." + name
		if sh.late(at) {
			value = "n.now + " + value
		}
		names, values = append(names, name), append(values, value)
		params = append(params, fmt.Sprintf("$%d::%s", i+1, arrayTypes[stepTypes[at]]))
	}
	list := strings.Join(names, ", ")
	return `INSERT INTO pawl_steps (` + list + `) SELECT ` + strings.Join(values, ", ") + ` FROM (` + batchClock + `) AS n, unnest(` +
		strings.Join(params, ", ") + `) AS v(` + list + `)`
}

// table is rows turned into an array for each column.
type table struct {
	rows    int
	columns []column
}

// add appends a row. Types says what its columns are, see newColumn.
func (t *table) add(types string, values ...any) {
	for i := len(t.columns); i < len(types); i++ {
		t.columns = append(t.columns, newColumn(types[i]))
	}
	t.append(values)
}

func (t *table) append(values []any) {
	t.rows++
	for i, v := range values {
		t.columns[i].add(v)
	}
}

func (t *table) args() []any {
	args := make([]any, len(t.columns))
	for i, c := range t.columns {
		args[i] = c.array()
	}
	return args
}

type column interface {
	add(v any)
	array() any
}

// newColumn makes a column of UUIDs (u), text (t), numbers (n), bytes (b) or booleans (o). UUIDs, bytes, T and N take NULL.
func newColumn(kind byte) column {
	switch kind {
	case 'u':
		return new(idColumn)
	case 't':
		return new(plain[string])
	case 'T':
		return new(nullable[string])
	case 'n':
		return new(plain[int64])
	case 'N':
		return new(nullable[int64])
	case 'b':
		return new(plain[[]byte])
	default:
		return new(plain[bool])
	}
}

type idColumn struct{ all IDs }

func (c *idColumn) add(v any) {
	s, _ := v.(string)
	c.all = append(c.all, s)
}
func (c *idColumn) array() any { return c.all }

type plain[T any] struct{ all []T }

func (c *plain[T]) add(v any) {
	t, _ := v.(T)
	c.all = append(c.all, t)
}
func (c *plain[T]) array() any { return c.all }

type nullable[T any] struct{ all []*T }

func (c *nullable[T]) add(v any) {
	if t, ok := v.(T); ok {
		c.all = append(c.all, &t)
	} else {
		c.all = append(c.all, nil)
	}
}
func (c *nullable[T]) array() any { return c.all }
