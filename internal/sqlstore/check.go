package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/pawlrun/pawl"
)

// rule is one check: a query whose rows are (run or NULL, detail or NULL, microseconds or NULL).
type rule struct {
	level, name string
	query       string
	text        string // with the detail in place of %s
	advice      string
}

const (
	levelError = "error"
	levelWarn  = "warn"

	// perRule bounds the findings of one rule.
	perRule = " LIMIT 50"

	// patience is how long a run may wait for a worker before that is worth a word.
	patience = 5 * time.Minute
)

const lookCloser = "do not change rows by hand; keep a copy of the database and report it"

// The checks of steps read the whole table: no index is kept for what must never be there.
var rules = []rule{
	{levelError, "I2", `SELECT run, name, ended FROM pawl_steps WHERE state = 'failed' AND fault IS NULL`,
		"step %s failed without a stored error", lookCloser},
	{levelError, "I2", `SELECT run, item, ended FROM pawl_items WHERE (state = 'failed') <> (fault IS NOT NULL)`,
		"item %s has failed without a stored error, or is done with one", lookCloser},
	{levelError, "I2", `SELECT s.run, s.name, NULL FROM pawl_steps s JOIN pawl_items i ON i.run = s.run AND i.batch = s.batch AND i.item = s.item
		WHERE s.state = 'in_flight'`, "step %s is in flight, but its item has ended", lookCloser},
	{levelError, "I3", `SELECT i.run, i.item, NULL FROM pawl_items i WHERE NOT EXISTS (SELECT 1 FROM pawl_runs r WHERE r.id = i.run)`,
		"item %s is of a run that is not there", lookCloser},
	{levelError, "I3", `SELECT id, state, NULL FROM pawl_runs WHERE state = 'queued' AND (due IS NULL OR owner IS NOT NULL)`,
		"the run is %s, but has no due time, or an owner", lookCloser},
	{levelError, "I3", `SELECT id, state, NULL FROM pawl_runs WHERE state = 'running' AND (owner IS NULL OR due IS NOT NULL)`,
		"the run is %s, but has no owner, or a due time", lookCloser},
	{levelError, "I3", `SELECT r.id, CAST(r.owner AS TEXT), r.claimed FROM pawl_runs r
		WHERE r.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pawl_workers w WHERE w.id = r.owner)`,
		"its owner %s has no row, so that its lease can never expire", "any worker repairs this within a minute"},
	{levelError, "I3", `SELECT id, state, NULL FROM pawl_runs r WHERE state = 'waiting' AND (owner IS NOT NULL OR due IS NULL
		AND NOT EXISTS (SELECT 1 FROM pawl_steps s WHERE s.run = r.id AND s.state = 'waiting'))`,
		"the run is %s, but nothing will wake it", lookCloser},
	{levelError, "I3", `SELECT s.run, s.name, NULL FROM pawl_steps s WHERE s.kind = 'child' AND s.state = 'waiting' AND NOT EXISTS (
		SELECT 1 FROM pawl_calls c JOIN pawl_runs r ON r.id = c.child WHERE c.run = s.run AND c.step = s.name AND r.ended IS NULL)`,
		"step %s waits for a run that is not live", lookCloser},
	{levelError, "I3", `SELECT s.run, s.name, NULL FROM pawl_steps s WHERE s.state = 'waiting' AND s.kind = 'event'
		AND NOT EXISTS (SELECT 1 FROM pawl_awaits a WHERE a.run = s.run AND a.step = s.name)`,
		"step %s awaits an event that would not find it", lookCloser},
	{levelError, "I3", `SELECT a.run, a.step, NULL FROM pawl_awaits a WHERE NOT EXISTS
		(SELECT 1 FROM pawl_steps s WHERE s.run = a.run AND s.name = a.step AND s.state = 'waiting' AND s.kind = 'event')`,
		"an event would find step %s, which does not await it", lookCloser},
	{levelError, "I3", `SELECT id, state, NULL FROM pawl_runs r WHERE state = 'blocked' AND (owner IS NOT NULL OR due IS NOT NULL
		OR NOT EXISTS (SELECT 1 FROM pawl_inbox e WHERE e.run = r.id AND e.closed IS NULL))`,
		"the run is %s, but the inbox has no open entry for it", lookCloser},
	{levelError, "I3", `SELECT id, state, NULL FROM pawl_runs WHERE (state IN ('succeeded', 'failed', 'cancelled')) <> (ended IS NOT NULL)`,
		"the run is %s, and whether it has ended does not fit", lookCloser},
	{levelError, "I1", `SELECT s.run, s.name, NULL FROM pawl_steps s JOIN pawl_runs r ON r.id = s.run
		WHERE s.state IN ('in_flight', 'uncertain') AND r.ended IS NOT NULL`,
		"the run is finished, but nobody knows whether step %s happened", "find out, and treat the run's result with care"},
	{levelError, "I1", `SELECT s.run, s.name, NULL FROM pawl_steps s WHERE NOT EXISTS (SELECT 1 FROM pawl_runs r WHERE r.id = s.run)`,
		"step %s belongs to a run that is not there", lookCloser},
	{levelError, "I3", `SELECT CASE WHEN new_keys THEN id ELSE lineage END, CAST(count(*) AS TEXT), NULL FROM pawl_runs WHERE ended IS NULL
		GROUP BY CASE WHEN new_keys THEN id ELSE lineage END HAVING count(*) > 1`,
		"its lineage has %s live runs", "cancel all but one"},
	{levelError, "I3", `SELECT id, state, ended FROM pawl_runs
		WHERE (successor IS NOT NULL) <> (state = 'succeeded' AND next_hash IS NOT NULL)`,
		"the run is %s, and whether it has a successor does not fit", lookCloser},
	{levelError, "I3", `SELECT continues, CAST(count(*) AS TEXT), NULL FROM pawl_runs WHERE continues IS NOT NULL AND lineage = id
		GROUP BY continues HAVING count(*) > 1`,
		"the run has %s successors", "cancel all but one"},
	{levelError, "I3", `SELECT k.lineage, k.product_key, NULL FROM pawl_keys k
		WHERE k.end_state IS NULL AND NOT EXISTS (SELECT 1 FROM pawl_runs r WHERE r.id = k.lineage)`,
		"key %s names a run that is not there", lookCloser},
	{levelError, "gate", `SELECT g.run, g.step, NULL FROM pawl_gates g WHERE g.state = 'pending' AND (
		NOT EXISTS (SELECT 1 FROM pawl_steps s WHERE s.run = g.run AND s.name = g.step AND s.state = 'waiting')
		OR NOT EXISTS (SELECT 1 FROM pawl_inbox e WHERE e.id = g.id AND e.closed IS NULL))`,
		"gate %s is pending, but nothing waits for it, or the inbox does not ask", lookCloser},
	{levelError, "gate", `SELECT s.run, s.name, NULL FROM pawl_steps s WHERE s.kind = 'gate' AND s.state = 'waiting'
		AND NOT EXISTS (SELECT 1 FROM pawl_gates g WHERE g.run = s.run AND g.step = s.name AND g.state = 'pending')`,
		"step %s waits for a decision that nobody is asked for", lookCloser},
	{levelError, "gate", `SELECT g.run, g.step, NULL FROM pawl_gates g JOIN pawl_runs r ON r.id = g.run
		WHERE g.state IN ('pending', 'approved') AND r.ended IS NOT NULL`,
		"the run is finished, but its gate %s is open", lookCloser},
	{levelError, "gate", `SELECT g.run, g.step, NULL FROM pawl_gates g WHERE g.state = 'claimed'
		AND NOT EXISTS (SELECT 1 FROM pawl_steps s WHERE s.run = g.run AND s.name = g.ref)`,
		"gate %s is used by a step that the journal does not have", lookCloser},
	{levelError, "I6", `SELECT NULL, s.name, NULL FROM pawl_schedules s WHERE s.due IS NOT NULL AND s.due < s.upto`,
		"schedule %s is to be looked at for an instant that it has decided about", lookCloser},
	{levelError, "I6", `SELECT o.run, min(o.schedule), NULL FROM pawl_occurrences o WHERE o.run IS NOT NULL GROUP BY o.run HAVING count(*) > 1`,
		"the run stands for several instants of schedule %s", lookCloser},
	{levelError, "I6", `SELECT o.other, o.schedule, NULL FROM pawl_occurrences o WHERE o.state = 'buffered'
		AND NOT EXISTS (SELECT 1 FROM pawl_schedules s WHERE s.name = o.schedule AND s.buffered = o.at)`,
		"an instant of schedule %s is buffered, and nothing will start it", lookCloser},

	{levelWarn, "schedule", `SELECT NULL, s.name || ' of ' || s.workflow || ' ' || s.version, {now} - s.due FROM pawl_schedules s
		WHERE s.due < {now} - $1 ORDER BY s.due`,
		"schedule %s is due and nobody decides", "start a worker that has this version of the workflow and, if it is from code, the schedule"},
	{levelWarn, "schedule", `SELECT s.blocker, s.name || ' has started no run for ' || CAST(s.streak AS TEXT) || ' instants'
			|| coalesce(' (the last one: ' || (SELECT o.state || coalesce(', ' || o.reason, '') FROM pawl_occurrences o WHERE o.schedule = s.name
				AND o.at = (SELECT max(l.at) FROM pawl_occurrences l WHERE l.schedule = s.name)) || ')', ''), s.upto - s.changed
		FROM pawl_schedules s WHERE s.streak >= 3 AND s.paused_at IS NULL AND $1 > 0 ORDER BY s.name`,
		"schedule %s", "pawl schedules show lists its last instants with their reasons"},
	{levelWarn, "schedule", `SELECT NULL, s.name, s.upto - {now} FROM pawl_schedules s WHERE s.upto > {now} + $1 ORDER BY s.name`,
		"schedule %s has decided about instants that are still to come, because the database's clock was set back", "it goes on when that time comes; pawl schedules trigger starts a run before"},
	{levelWarn, "paused", `SELECT NULL, s.name || coalesce(' by ' || s.paused_by, ''), {now} - s.paused_at FROM pawl_schedules s
		WHERE s.paused_at < {now} - $1 ORDER BY s.name`,
		"schedule %s is paused", "pawl schedules resume lets it go on"},
	{levelWarn, "stuck", `SELECT r.id, r.workflow || ' version ' || r.version, {now} - r.due FROM pawl_runs r
		WHERE r.due IS NOT NULL AND r.due < {now} - $1
			AND NOT EXISTS (SELECT 1 FROM pawl_queues q WHERE q.name = r.queue AND q.special) ORDER BY r.due`,
		"a run of %s is due and nobody takes it", "start a worker that has this version; pawl work lists what a binary has"},
	{levelWarn, "paused", `SELECT NULL, q.name || coalesce(' by ' || q.paused_by, ''), {now} - q.paused_at FROM pawl_queues q
		WHERE q.paused_at < {now} - $1 ORDER BY q.name`,
		"queue %s is paused", "pawl queues resume lets its runs go on"},
	{levelWarn, "stuck", `SELECT r.id, CAST(w.id AS TEXT), {now} - w.seen FROM pawl_workers w JOIN pawl_runs r ON r.owner = w.id
		WHERE ` + expired + ` AND w.seen + w.lease < {now} - $1
			AND NOT EXISTS (SELECT 1 FROM pawl_queues q WHERE q.name = r.queue AND q.paused_at IS NOT NULL) ORDER BY w.seen`,
		"its worker %s is gone and nobody takes the run over", "start a worker that has the run's version"},
	{levelWarn, "stuck", `SELECT r.id, e.kind, {now} - e.opened FROM pawl_inbox e JOIN pawl_runs r ON r.id = e.run
		WHERE e.closed IS NULL AND r.state = 'blocked' AND e.opened < {now} - $1 ORDER BY e.id`,
		"the run waits for a person: %s", "answer it with pawl resolve"},
}

// Check runs all rules on one snapshot, and looks at the settings.
func (s *Store) Check(ctx context.Context) ([]pawl.Finding, error) {
	var found []pawl.Finding
	err := s.View(ctx, func(ctx context.Context, tx pawl.Txn) error {
		found = nil
		for _, r := range rules {
			more, err := tx.(*txn).check(ctx, r)
			if err != nil {
				return fmt.Errorf("check %s: %w", r.name, err)
			}
			found = append(found, more...)
		}
		return nil
	})
	if err == nil && s.d.Settings != nil {
		var more []pawl.Finding
		more, err = s.d.Settings(ctx, s.read)
		found = append(found, more...)
	}
	if err != nil {
		return nil, fmt.Errorf("check the database: %w", err)
	}
	return found, nil
}

func (t *txn) check(ctx context.Context, r rule) ([]pawl.Finding, error) {
	var args []any
	if r.level == levelWarn {
		args = append(args, patience.Microseconds())
	}
	return list(ctx, t, func(rows pawl.Rows) (pawl.Finding, error) {
		f := pawl.Finding{Level: r.level, Rule: r.name, Advice: r.advice}
		var detail string
		var age int64
		err := rows.Scan(zero(&f.Run), zero(&detail), zero(&age))
		f.Text = fmt.Sprintf(r.text, detail)
		if r.level == levelWarn {
			f.Text += fmt.Sprintf(", for %s", (time.Duration(age) * time.Microsecond).Round(time.Second))
		}
		return f, err
	}, r.query+perRule, args...)
}
