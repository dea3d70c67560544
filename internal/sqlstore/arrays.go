package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/pawlrun/pawl"
)

// Batch is a statement whose parameters are arrays in the server's binary form, a value for each row.
type Batch struct {
	Text string
	Args [][]byte
}

// The statements of a batch, each for all its rows. batchClock is the time that the first one has read and left in a setting of
// the transaction, so that all have the same.
//
// A guard divides by zero if a row is missing, which undoes the batch: that is rare, and the rows are then written one by
// one. No lock is waited for: one run whose row somebody holds must not hold up the others. LATERAL and OFFSET 0 keep the
// look-up by primary key, and its place in the table the row; a plain join can flip to a scan. Nobody moves the rows
// meanwhile: the lock on the run keeps others away.
var (
	batchFence = form{"uNn", "id epoch token", `SELECT set_config('pawl.now', ({now})::text, true)::bigint, 1 / (count(*) = cardinality($1::uuid[]))::int FROM (
	SELECT r.id FROM {rows} AS v
	CROSS JOIN LATERAL (SELECT id FROM pawl_runs WHERE id = v.id AND epoch = v.epoch AND token = v.token AND state = 'running'
		OFFSET 0{skip}) AS r) AS held`}

	batchSettle = form{"utNbTTTNNNnT", "run name attempt value " + usageNames,
		`WITH n AS MATERIALIZED (` + batchClock + `), done AS (UPDATE pawl_steps AS s SET state = 'succeeded', ended = n.now,
	value = v.value, provider = v.provider, model = v.model, request_id = v.request_id, tokens_in = v.tokens_in,
	tokens_out = v.tokens_out, cost_micros = v.cost_micros, latency_us = v.latency_us, sent = v.sent
FROM n, {rows} AS v
	CROSS JOIN LATERAL (SELECT ctid FROM pawl_steps WHERE run = v.run AND name = v.name AND attempt = v.attempt AND state IN ('in_flight', 'waiting')
		OFFSET 0) AS at
WHERE s.ctid = at.ctid RETURNING 1)
SELECT 1 / (count(*) = cardinality($1::uuid[]))::int FROM done`}

	batchEnd = form{"uTTb", "id state fault result",
		`WITH n AS MATERIALIZED (` + batchClock + `), done AS (UPDATE pawl_runs AS r SET state = v.state, epoch = r.epoch + 1,
	token = NULL, owner = NULL, due = NULL, ended = n.now, fault = v.fault, result = v.result
FROM n, {rows} AS v
	CROSS JOIN LATERAL (SELECT ctid FROM pawl_runs WHERE id = v.id AND intended IS NULL AND called IS NULL OFFSET 0) AS at
WHERE r.ctid = at.ctid
	AND (SELECT count(*) FROM pawl_steps AS s WHERE s.run = v.id AND s.state IN ` + openStates + `) = 0 RETURNING 1)
SELECT 1 / (count(*) = cardinality($1::uuid[]))::int FROM done`}

	batchKeys = form{"ttuT", "product_key key_name lineage state", `UPDATE pawl_keys AS k SET end_state = v.state, ended = n.now
FROM (` + batchClock + `) AS n, {rows} AS v
	CROSS JOIN LATERAL (SELECT ctid FROM pawl_keys WHERE product_key = v.product_key AND key_name = v.key_name AND lineage = v.lineage
		OFFSET 0) AS at
WHERE k.ctid = at.ctid`}

	batchStart = form{startTypes, startNames, insertStarts + `(SELECT now / ` + freeQueues + ` AS now FROM (` + batchClock + `) AS c) AS n, {rows} AS v`}

	batchItems = form{"uTtTNbTb", "run batch item state epoch input_hash fault value",
		`INSERT INTO pawl_items (run, batch, item, state, epoch, ended, input_hash, fault, value)
SELECT v.run, v.batch, v.item, v.state, v.epoch, n.now, v.input_hash, v.fault, v.value
FROM (` + batchClock + `) AS n, {rows} AS v`}

	// aloneStart needs no transaction around it. The comment is for whoever reads along, see pgtest.
	aloneStart = form{startTypes, startNames, `/* commits */ WITH n AS MATERIALIZED (SELECT {now} / ` + freeQueues + ` AS now), done AS (` +
		insertStarts + `n, {rows} AS v)
SELECT now FROM n`}
)

const (
	batchClock = `SELECT current_setting('pawl.now')::bigint AS now`
	usageNames = "provider model request_id tokens_in tokens_out cost_micros latency_us sent"

	startTypes   = "uTTTTTNnUTbbNNNT"
	startNames   = "id workflow version key_name queue state epoch token owner builds input_hash input due time_limit priority share"
	insertStarts = `INSERT INTO pawl_runs (id, lineage, relation, workflow, version, key_name, new_keys, queue, state, due, epoch, token,
	owner, claimed, created, started, lost, lost_total, releases, builds, input_hash, input, deadline, time_limit, priority, share)
SELECT v.id, v.id, '', v.workflow, v.version, v.key_name, FALSE, v.queue, v.state,
	CASE WHEN v.owner IS NULL THEN greatest(v.due, n.now) END, v.epoch,
	v.token, v.owner, CASE WHEN v.owner IS NOT NULL THEN n.now END, n.now, CASE WHEN v.owner IS NOT NULL THEN n.now END, 0, 0, 0,
	v.builds, v.input_hash, v.input, greatest(v.due, n.now) + v.time_limit, v.time_limit,
	coalesce(v.priority, 0), coalesce(v.share, '')
FROM `
	// A run that is inserted as its worker's own passes over nobody: its queue must have nothing that claims have to heed.
	freeQueues = `(NOT EXISTS (SELECT 1 FROM {rows queue owner} AS b
	CROSS JOIN LATERAL (SELECT 1 FROM pawl_queues AS q WHERE q.name = b.queue AND q.special OFFSET 0) AS held WHERE b.owner IS NOT NULL))::int`

	// aloneInsert is the row that one run adds to its journal. The fence is a part of it, which adds nothing to what was not
	// locked; an end must be a statement after its lock.
	aloneInsert = `/* commits */ WITH n AS MATERIALIZED (SELECT {now} AS now FROM pawl_runs WHERE id = $1::uuid AND epoch = $2::bigint
	AND token = $3::bigint AND state = 'running'{skip})
INSERT INTO pawl_steps (%s) SELECT %s FROM n RETURNING (SELECT now FROM n)`
)

// writeArrays is Write for a server: all statements go there together.
func (s *Store) writeArrays(ctx context.Context, changes []pawl.Change) (now int64, err error) {
	b := batches.Get().(*batch)
	defer b.free()
	for i := range changes {
		if err := b.add(&changes[i]); err != nil {
			return 0, err
		}
	}
	statements := s.statements(b)
	var clock string
	var locked error
	err = s.again(ctx, func() error {
		var err error
		clock, err = s.sentBatch(ctx, statements)
		if s.d.Classify(err) == Locked {
			locked, err = err, nil
		}
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case locked != nil:
		return 0, fmt.Errorf("%w: %w", pawl.ErrOneByOne, locked)
	case clock == "": // a statement that is alone found no row to lock, and so wrote nothing
		return 0, pawl.ErrOneByOne
	}
	return strconv.ParseInt(clock, 10, 64)
}

// sentBatch is sent for a batch.
func (s *Store) sentBatch(ctx context.Context, statements []Batch) (string, error) {
	var untaken error
	take := func() (conn *sql.Conn, give func(), err error) {
		conn, give, untaken = s.take(ctx, s.hot, false)
		return conn, give, untaken
	}
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	settled := grace(ctx, cancel)
	clock, err := s.d.SendBatch(sendCtx, take, statements)
	settled()
	if err == nil || untaken != nil {
		return clock, err
	}
	return "", s.notCommitted(err)
}

// sent gives send a connection, and a context that ends only some time after ctx has: what is on its way may be committed.
func (s *Store) sent(ctx context.Context, send func(ctx context.Context, conn *sql.Conn) error) error {
	conn, give, err := s.take(ctx, s.hot, false)
	if err != nil {
		return err
	}
	defer give()
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	settled := grace(ctx, cancel)
	err = send(sendCtx, conn)
	settled()
	if err == nil {
		return nil
	}
	s.discard(conn, err)
	return s.notCommitted(err)
}

// statements are those of the batch, and stand on its memory.
func (s *Store) statements(b *batch) []Batch {
	switch {
	case b.claims.rows == 0:
		return []Batch{s.formed(&aloneStart, &b.starts)}
	case b.claims.rows == 1 && len(b.order) == 1 && b.inserts[b.order[0]].rows == 1 && b.starts.rows+b.settles.rows+b.items.rows+b.ends.rows == 0:
		sh := b.order[0]
		return []Batch{{s.shaped(shapeText{shape: sh}, fenced), append(b.claims.values(), b.inserts[sh].values()...)}}
	}
	all := []Batch{s.formed(&batchFence, &b.claims)}
	add := func(f *form, t *table) {
		if t.rows > 0 {
			all = append(all, s.formed(f, t))
		}
	}
	add(&batchStart, &b.starts)
	add(&batchSettle, &b.settles)
	for _, sh := range b.order {
		t := b.inserts[sh]
		text := shapeText{shape: sh, as: arrays}
		if t.even() {
			text.as = evenArrays
		}
		all = append(all, Batch{s.shaped(text, func(sh shape) string { return arrayInsert(sh).sql(text.as == evenArrays) }), t.args()})
	}
	add(&batchItems, &b.items)
	add(&batchEnd, &b.ends)
	add(&batchKeys, &b.keys)
	return all
}

// formed is the statement for the rows of t.
func (s *Store) formed(f *form, t *table) Batch {
	key := formText{f, t.even()}
	if q, ok := s.forms.Load(key); ok {
		return Batch{q.(string), t.args()}
	}
	q := s.texts.r.Replace(f.sql(key.even))
	s.forms.Store(key, q)
	return Batch{q, t.args()}
}

// batch sorts changes by statement.
type batch struct {
	claims  table
	starts  table
	settles table
	inserts map[shape]*table
	order   []shape // of inserts
	items   table
	ends    table
	keys    table
	shaper  shaper
}

// batches are empty, with the room that others have left.
var batches = sync.Pool{New: func() any { return &batch{inserts: make(map[shape]*table)} }}

const keptShapes = 30

// free gives the batch back when nobody needs its statements any more.
func (b *batch) free() {
	for _, t := range [...]*table{&b.claims, &b.starts, &b.settles, &b.items, &b.ends, &b.keys} {
		t.reset()
	}
	for _, sh := range b.order {
		b.inserts[sh].reset()
	}
	b.order = b.order[:0]
	if len(b.inserts) > keptShapes {
		clear(b.inserts)
	}
	batches.Put(b)
}

func (b *batch) add(c *pawl.Change) error {
	if r := c.Start; r != nil {
		b.starts.begin(startTypes)
		for _, v := range [...]string{string(r.ID), r.Workflow, r.Version, r.KeyName, r.Queue, string(r.State)} {
			b.starts.text(v)
		}
		b.starts.must(r.Epoch)
		b.starts.num(r.Token)
		b.starts.text(string(r.Owner))
		b.starts.text(r.Builds)
		b.starts.data(r.InputHash)
		b.starts.data(r.Input)
		b.starts.num(r.Due)
		b.starts.num(r.TimeLimit)
		b.starts.num(int64(r.Priority))
		b.starts.text(string(r.Share))
		return nil
	}
	b.claims.begin(batchFence.types)
	b.claims.text(string(c.Run))
	b.claims.must(c.Epoch)
	b.claims.must(c.Token)
	for _, row := range c.Insert {
		if err := b.insert(row); err != nil {
			return err
		}
	}
	for _, row := range c.Settle {
		b.settles.begin(batchSettle.types)
		b.settles.text(string(row.Run))
		b.settles.text(row.Name)
		b.settles.must(int64(row.Attempt))
		b.settles.data(row.Value)
		putUsage(row, &b.settles)
	}
	for _, it := range c.Items {
		failure, err := faultText(it.Fault)
		if err != nil {
			return err
		}
		b.items.begin(batchItems.types)
		for _, v := range [...]string{string(it.Run), it.Batch, it.Item, string(it.State)} {
			b.items.text(v)
		}
		b.items.must(it.Epoch)
		b.items.data(it.InputHash)
		b.items.text(failure)
		b.items.data(it.Value)
	}
	if c.End == nil {
		return nil
	}
	failure, err := faultText(c.End.Fault)
	if err != nil {
		return err
	}
	b.ends.begin(batchEnd.types)
	b.ends.text(string(c.Run))
	b.ends.text(string(c.End.State))
	b.ends.text(failure)
	b.ends.data(c.End.Result)
	if r := c.End.Row; r.Key != "" && !r.NewKeys {
		b.keys.begin(batchKeys.types)
		for _, v := range [...]string{string(r.Key), r.KeyName, string(r.Lineage), string(c.End.State)} {
			b.keys.text(v)
		}
	}
	return nil
}

func (b *batch) insert(row *pawl.StepRow) error {
	b.shaper = shaper{}
	if err := putStep(row, &b.shaper); err != nil {
		return err
	}
	sh := b.shaper.shape
	t := b.inserts[sh]
	if t == nil {
		t = &table{set: sh.set, types: sh.types()}
		b.inserts[sh] = t
	}
	if t.rows == 0 {
		b.order = append(b.order, sh)
	}
	t.begin(t.types)
	return putStep(row, t)
}

// fenced inserts a row of a shape by a statement that is alone, after the parameters of its fence.
func fenced(sh shape) string {
	list, values := insertInto(sh, func(i int, of string) string { return fmt.Sprintf("$%d::%s", i+4, of) })
	return fmt.Sprintf(aloneInsert, list, values)
}

// arrayInsert inserts rows of a shape in a transaction that has a fence for all.
func arrayInsert(sh shape) *form {
	list, values := insertInto(sh, func(i int, _ string) string { return "v." + stepNames[sh.columns()[i]] })
	return &form{sh.types(), strings.ReplaceAll(list, ",", ""), `INSERT INTO pawl_steps (` + list + `) SELECT ` + values + ` FROM (` + batchClock + `) AS n, {rows} AS v`}
}

// insertInto lists the columns of a shape and their values. value gives the i-th, of is its type; relative times are what has to
// be added to the clock.
func insertInto(sh shape, value func(i int, of string) string) (list, values string) {
	var names, all []string
	for i, at := range sh.columns() {
		v := value(i, typeOf(stepTypes[at]).name)
		if sh.late(at) {
			v = "n.now + " + v
		}
		names, all = append(names, stepNames[at]), append(all, v)
	}
	return strings.Join(names, ", "), strings.Join(all, ", ")
}
