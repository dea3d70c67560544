package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/pawlrun/pawl"
)

// LockTopic locks by a hash where there is no single writer: two topics of one hash wait for each other, and nothing worse.
func (t *txn) LockTopic(ctx context.Context, topic pawl.Topic) error {
	if t.s.d.LockTopic == "" {
		return nil
	}
	isolation := ""
	_, err := t.row(ctx, t.s.d.LockTopic, []any{topicLock(topic)}, []any{&isolation})
	if err == nil && isolation != "read committed" {
		err = fmt.Errorf("the transaction is %s, and would not see who awaits it since: begin it as READ COMMITTED", isolation)
	}
	if err != nil {
		return fmt.Errorf("lock event %q about %q: %w", topic.Event, topic.About, err)
	}
	return nil
}

func topicLock(topic pawl.Topic) int64 {
	sum := sha256.Sum256([]byte("pawl event\x00" + topic.Event + "\x00" + string(topic.About)))
	return int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // any bits will do
}

// The clock may have been set back, or ask for the same microsecond twice.
const insertEvent = `INSERT INTO pawl_events (about, name, at, given_id, hash, value)
VALUES ($1, $2, (SELECT CASE WHEN last >= now THEN last + 1 ELSE now END FROM (SELECT {now} AS now,
	coalesce((SELECT max(at) FROM pawl_events WHERE about = $1 AND name = $2), 0) AS last) AS n), $3, $4, $5) RETURNING at`

// AddEvent uses the primary key.
func (t *txn) AddEvent(ctx context.Context, ev *pawl.EventRow) error {
	_, err := t.row(ctx, insertEvent, []any{string(ev.Topic.About), ev.Topic.Event, str(ev.ID), ev.Hash, ev.Value}, []any{&ev.At})
	if err != nil {
		return fmt.Errorf("add event %q about %q: %w", ev.Topic.Event, ev.Topic.About, err)
	}
	return nil
}

const selectEventHash = `SELECT hash FROM pawl_events WHERE about = $1 AND name = $2 AND given_id = $3`

// EventHash uses pawl_events_given.
func (t *txn) EventHash(ctx context.Context, topic pawl.Topic, id string) (hash []byte, err error) {
	if _, err := t.row(ctx, selectEventHash, []any{string(topic.About), topic.Event, id}, []any{zero(&hash)}); err != nil {
		return nil, fmt.Errorf("look for event %q about %q: %w", topic.Event, topic.About, err)
	}
	return hash, nil
}

const (
	// The last event that the lineage has taken, the last that the run has which it goes on from, the last that any run of the
	// workflow has, and when the lineage began.
	selectTaken = `SELECT coalesce((SELECT max(at) FROM pawl_takings WHERE lineage = $1 AND about = $2 AND name = $3), 0),
	coalesce((SELECT max(at) FROM pawl_takings WHERE lineage = (SELECT CASE WHEN new_keys THEN id ELSE lineage END FROM pawl_runs{byid} WHERE id = $5)
		AND about = $2 AND name = $3), 0),
	coalesce((SELECT max(at) FROM pawl_takings WHERE key_name = $4 AND about = $2 AND name = $3), 0),
	(SELECT created FROM pawl_runs{byid} WHERE id = $1)`

	// The whole key is compared and not only its end, so that the planner has but one index for it; the event that is found
	// may be another topic's.
	selectNextEvent = `SELECT about, name, at, value FROM pawl_events WHERE (about, name, at) > ($1, $2, $3)
ORDER BY about, name, at LIMIT 1`
)

// NextEvent uses the primary keys and pawl_takings_workflow. The look begins behind what the run may not take, so it costs
// the same however many events there are.
func (t *txn) NextEvent(ctx context.Context, topic pawl.Topic, run *pawl.RunRow) (*pawl.EventRow, error) {
	var mine, before, others, created int64
	_, err := t.row(ctx, selectTaken, []any{string(taker(run)), string(topic.About), topic.Event, run.KeyName, str(run.Continues)},
		[]any{&mine, &before, &others, zero(&created)})
	ev, found := pawl.EventRow{}, false
	if err == nil {
		after := max(mine, before, min(others, max(created-1, 0)))
		found, err = t.row(ctx, selectNextEvent, []any{string(topic.About), topic.Event, after},
			[]any{&ev.Topic.About, &ev.Topic.Event, &ev.At, zero(&ev.Value)})
	}
	if err != nil {
		return nil, fmt.Errorf("look for event %q about %q: %w", topic.Event, topic.About, err)
	}
	if !found || ev.Topic != topic {
		return nil, nil
	}
	return &ev, nil
}

// taker is who takes an event: the lineage. A fork with keys of its own stands for itself.
func taker(run *pawl.RunRow) pawl.RunID {
	if run.NewKeys {
		return run.ID
	}
	return run.Lineage
}

const insertTaking = `INSERT INTO pawl_takings (about, name, lineage, at, key_name) VALUES ($1, $2, $3, $4, $5)`

// TakeEvent adds a row. The primary key keeps a lineage from taking an event twice.
func (t *txn) TakeEvent(ctx context.Context, ev *pawl.EventRow, run *pawl.RunRow) error {
	if _, err := t.exec(ctx, insertTaking, string(ev.Topic.About), ev.Topic.Event, string(taker(run)), ev.At, run.KeyName); err != nil {
		return fmt.Errorf("take event %q about %q for run %s: %w", ev.Topic.Event, ev.Topic.About, run.ID, err)
	}
	return nil
}

const insertAwait = `INSERT INTO pawl_awaits (run, step, about, name) VALUES ($1, $2, $3, $4)`

// OpenAwait adds a row.
func (t *txn) OpenAwait(ctx context.Context, topic pawl.Topic, run pawl.RunID, step string) error {
	if _, err := t.exec(ctx, insertAwait, string(run), step, string(topic.About), topic.Event); err != nil {
		return fmt.Errorf("await event %q about %q in run %s: %w", topic.Event, topic.About, run, err)
	}
	return nil
}

const deleteAwait = `DELETE FROM pawl_awaits WHERE run = $1 AND step = $2`

// CloseAwait uses the primary key.
func (t *txn) CloseAwait(ctx context.Context, run pawl.RunID, step string) error {
	if _, err := t.exec(ctx, deleteAwait, string(run), step); err != nil {
		return fmt.Errorf("end the wait of step %q of run %s: %w", step, run, err)
	}
	return nil
}

const selectAwaits = `SELECT run, step FROM pawl_awaits WHERE about = $1 AND name = $2 AND (run, step) > ($3, $4)
ORDER BY run, step LIMIT $5`

func scanAwait(rows pawl.Rows) (a pawl.AwaitRow, err error) {
	err = rows.Scan(&a.Run, &a.Step)
	return a, err
}

// Awaits uses pawl_awaits_topic.
func (t *txn) Awaits(ctx context.Context, topic pawl.Topic, after pawl.AwaitRow, limit int) ([]pawl.AwaitRow, error) {
	if after.Run == "" {
		after.Run = idTemplate
	}
	all, err := list(ctx, t, scanAwait, selectAwaits, string(topic.About), topic.Event, string(after.Run), after.Step, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("read who awaits event %q about %q: %w", topic.Event, topic.About, err)
	}
	return all, nil
}

// A taking that is older than every event that is left can stop nobody from taking one.
const usedUp = `at < {now} - $1 AND at < coalesce((SELECT min(at) FROM pawl_events), {now})`

const (
	selectOldEvents = `SELECT EXISTS (SELECT 1 FROM pawl_events WHERE at < {now} - $1), EXISTS (SELECT 1 FROM pawl_takings WHERE ` + usedUp + `)`

	// Of those that are equally old all go.
	deleteEvents = `DELETE FROM pawl_events WHERE at <= (SELECT max(at) FROM
	(SELECT at FROM pawl_events WHERE at < {now} - $1 ORDER BY at LIMIT $2) AS old)`
	deleteTakings = `DELETE FROM pawl_takings WHERE at <= (SELECT max(at) FROM
	(SELECT at FROM pawl_takings WHERE ` + usedUp + ` ORDER BY at LIMIT $2) AS old)`
)

// What one call deletes at most. An event may have a payload.
const (
	pruneEvents  = 100
	pruneTakings = 1000
)

// PruneEvents reads the low ends of pawl_events_age and pawl_takings_age, and begins a transaction only if something is
// old enough.
func (s *Store) PruneEvents(ctx context.Context, keep time.Duration) (more bool, err error) {
	var events, takings bool
	_, err = s.reader().row(ctx, selectOldEvents, []any{keep.Microseconds()}, []any{&events, &takings})
	if err == nil && (events || takings) {
		more = true
		err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			t := tx.(*txn)
			if _, err := t.exec(ctx, deleteEvents, keep.Microseconds(), int64(pruneEvents)); err != nil {
				return err
			}
			_, err := t.exec(ctx, deleteTakings, keep.Microseconds(), int64(pruneTakings))
			return err
		})
	}
	if err == nil && more && s.d.GiveBack != nil {
		_, err = s.giveBack(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("prune events: %w", err)
	}
	return more, nil
}
