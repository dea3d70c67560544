package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pawlrun/pawl"
)

// way is where runs of a workflow wait besides the queue of its name at priority 0, which needs no row.
type way struct {
	workflow, queue string
	priority        int64
}

func (w way) isDefault() bool { return w.queue == w.workflow && w.priority == 0 }

// start is what of a new run decides where it waits.
type start struct {
	way
	shared bool
}

func waysOf(runs []pawl.RunRow) (all []start) {
	for i := range runs {
		all = addStart(all, &runs[i])
	}
	return all
}

func addStart(all []start, r *pawl.RunRow) []start {
	st := start{way{r.Workflow, r.Queue, int64(r.Priority)}, r.Share != ""}
	if st.isDefault() && !st.shared || slices.Contains(all, st) {
		return all
	}
	return append(all, st)
}

const (
	insertWay = `INSERT INTO pawl_ways (workflow, queue, priority) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

	// A queue becomes shared once and for all.
	shareQueue = `INSERT INTO pawl_queues (name, special, shared) VALUES ($1, TRUE, TRUE)
ON CONFLICT (name) DO UPDATE SET special = TRUE, shared = TRUE WHERE NOT pawl_queues.shared`
)

// addWays records where runs wait, unless it is known to be on record. What is recorded is known once it is committed.
func (t *txn) addWays(ctx context.Context, starts []start) error {
	starts = slices.DeleteFunc(starts, t.s.isKnown)
	slices.SortFunc(starts, func(a, b start) int { // two transactions that both do this must not wait for each other
		return strings.Compare(a.queue+"\x00"+a.workflow+"\x00"+strconv.FormatInt(a.priority, 10), b.queue+"\x00"+b.workflow+"\x00"+strconv.FormatInt(b.priority, 10))
	})
	for _, st := range starts {
		var err error
		if !st.isDefault() {
			_, err = t.exec(ctx, insertWay, st.workflow, st.queue, st.priority)
		}
		if err == nil && st.shared {
			_, err = t.exec(ctx, shareQueue, st.queue)
		}
		if err != nil {
			return fmt.Errorf("note that %s waits in queue %q: %w", st.workflow, st.queue, err)
		}
	}
	t.added = append(t.added, starts...)
	return nil
}

func (s *Store) isKnown(st start) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[st]
}

// committed notes what a committed transaction has changed about queues.
func (s *Store) committed(t *txn) {
	if len(t.added) == 0 && !t.queues {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range t.added {
		s.known[st] = true
	}
	clear(s.flows) // the next claim looks
}

// ensureWays records where the runs that are to be started wait.
func (s *Store) ensureWays(ctx context.Context, changes []pawl.Change) error {
	var starts []start
	for i := range changes {
		if r := changes[i].Start; r != nil {
			starts = addStart(starts, r)
		}
	}
	if !slices.ContainsFunc(starts, func(st start) bool { return !s.isKnown(st) }) {
		return nil
	}
	return s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error { return tx.(*txn).addWays(ctx, slices.Clone(starts)) })
}

// flow is where the runs of a workflow wait, as this process has seen it last.
type flow struct {
	ways    []way
	special bool // one of its queues has something that claims have to heed
}

// Both tables are small: queues and priorities are few.
const selectWays = `SELECT w.workflow, w.queue, w.priority, coalesce(q.special, FALSE)
FROM pawl_ways AS w LEFT JOIN pawl_queues AS q ON q.name = w.queue
UNION ALL SELECT '', name, 0, special FROM pawl_queues WHERE special`

// flows reads where the runs of the workflows wait.
func (t *txn) flows(ctx context.Context, names []string) (map[string]flow, error) {
	special := make(map[string]bool)
	ways := make(map[string][]way)
	err := t.rows(ctx, selectWays, nil, func(rows pawl.Rows) error {
		var w way
		var is bool
		err := rows.Scan(&w.workflow, &w.queue, &w.priority, &is)
		if w.workflow != "" {
			ways[w.workflow] = append(ways[w.workflow], w)
		}
		special[w.queue] = is
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read where runs wait: %w", err)
	}
	all := make(map[string]flow, len(names))
	for _, name := range names {
		f := flow{ways[name], special[name]}
		for _, w := range f.ways {
			f.special = f.special || special[w.queue]
		}
		all[name] = f
	}
	return all, nil
}

func workflows(has []pawl.VersionID) (names []string) {
	for _, v := range has {
		if !slices.Contains(names, v.Workflow) {
			names = append(names, v.Workflow)
		}
	}
	return names
}

// lookAtQueues refreshes what this process knows.
func (s *Store) lookAtQueues(ctx context.Context, names []string) error {
	found, err := s.reader().flows(ctx, names)
	if err == nil {
		s.learn(found)
	}
	return err
}

func (s *Store) learn(found map[string]flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range found {
		s.flows[name] = f
		for _, w := range f.ways {
			s.known[start{w, false}] = true
		}
	}
}

// flowsOf gives what is known of the workflows.
func (s *Store) flowsOf(ctx context.Context, has []pawl.VersionID) (map[string]flow, error) {
	names := workflows(has)
	for range 2 {
		s.mu.Lock()
		all := make(map[string]flow, len(names))
		for _, name := range names {
			if f, ok := s.flows[name]; ok {
				all[name] = f
			}
		}
		s.mu.Unlock()
		if len(all) == len(names) {
			return all, nil
		}
		if err := s.lookAtQueues(ctx, names); err != nil {
			return nil, err
		}
	}
	return s.reader().flows(ctx, names) // somebody changes settings all the time
}

const countSpecial = `SELECT count(*) FROM pawl_queues WHERE name = $1 AND special`

const queueColumns = `name, shared, paused_at, paused_by, paused_why, max_running, max_per_share, rate, rate_per, burst, spent, turn, changed`

func scanQueue(rows pawl.Rows) (q pawl.QueueRow, err error) {
	err = rows.Scan(&q.Name, &q.Shared, zero(&q.PausedAt), zero(&q.PausedBy), zero(&q.PausedWhy), zero(&q.MaxRunning), zero(&q.MaxPerShare),
		zero(&q.Rate), zero(&q.RatePer), zero(&q.Burst), zero(&q.Spent), zero(&q.Turn), zero(&q.Changed))
	return q, err
}

const (
	insertQueue  = `INSERT INTO pawl_queues (name, special, shared) VALUES ($1, FALSE, FALSE) ON CONFLICT DO NOTHING`
	selectQueue  = `SELECT ` + queueColumns + ` FROM pawl_queues WHERE name = $1`
	lockQueue    = selectQueue + `{lock}`
	selectQueues = `SELECT ` + queueColumns + ` FROM pawl_queues ORDER BY name`
)

// Queue uses the primary key.
func (t *txn) Queue(ctx context.Context, name string) (*pawl.QueueRow, error) {
	query := lockQueue
	if t.readOnly {
		query = selectQueue
	} else if _, err := t.exec(ctx, insertQueue, name); err != nil { // so that there is a row to lock
		return nil, fmt.Errorf("add queue %q: %w", name, err)
	}
	found, err := list(ctx, t, scanQueue, query, name)
	if err != nil {
		return nil, fmt.Errorf("read queue %q: %w", name, err)
	}
	if len(found) == 0 {
		return &pawl.QueueRow{Name: name}, nil
	}
	return &found[0], nil
}

// Queues reads the whole table, which has a row for each queue with settings.
func (t *txn) Queues(ctx context.Context) ([]pawl.QueueRow, error) {
	all, err := list(ctx, t, scanQueue, selectQueues)
	if err != nil {
		return nil, fmt.Errorf("read queues: %w", err)
	}
	return all, nil
}

const (
	upsertQueue = `INSERT INTO pawl_queues (name, special, shared, paused_at, paused_by, paused_why, max_running, max_per_share, rate,
	rate_per, burst, changed) VALUES ($1, $2, FALSE, $3, $4, $5, $6, $7, $8, $9, $10, {now})
ON CONFLICT (name) DO UPDATE SET special = excluded.special OR pawl_queues.shared, paused_at = excluded.paused_at,
	paused_by = excluded.paused_by, paused_why = excluded.paused_why, max_running = excluded.max_running,
	max_per_share = excluded.max_per_share, rate = excluded.rate, rate_per = excluded.rate_per, burst = excluded.burst,
	changed = excluded.changed`

	// Of one queue, and of all that have limits: what was claimed while nobody had to count.
	slotQueue = `UPDATE pawl_runs SET slotted = TRUE WHERE owner IS NOT NULL AND slotted IS NOT TRUE AND queue = $1`
	slotAll   = `UPDATE pawl_runs SET slotted = TRUE WHERE owner IS NOT NULL AND slotted IS NOT TRUE
	AND queue IN (SELECT name FROM pawl_queues WHERE max_running IS NOT NULL OR max_per_share IS NOT NULL)`
)

// SaveQueue uses the primary key, and reads running runs by pawl_runs_owner.
func (t *txn) SaveQueue(ctx context.Context, q *pawl.QueueRow) error {
	special := q.PausedAt != 0 || q.MaxRunning != 0 || q.MaxPerShare != 0 || q.Rate != 0
	_, err := t.exec(ctx, upsertQueue, q.Name, special, num(q.PausedAt), said(q.PausedBy), said(q.PausedWhy), num(q.MaxRunning),
		num(q.MaxPerShare), num(q.Rate), num(q.RatePer), num(q.Burst))
	if err == nil && q.MaxRunning+q.MaxPerShare > 0 {
		_, err = t.exec(ctx, slotQueue, q.Name)
	}
	if err != nil {
		return fmt.Errorf("save queue %q: %w", q.Name, err)
	}
	t.queues = true
	return nil
}

const (
	// nextPlace walks pawl_runs_claim from one (workflow, version, queue) to the next.
	nextPlace = `SELECT workflow, version, queue FROM pawl_runs{bydue} WHERE due IS NOT NULL AND (workflow, version, queue) > ($1, $2, $3)
ORDER BY workflow, version, queue LIMIT 1`

	countPlace = `SELECT coalesce(sum(CASE WHEN due <= {now} THEN 1 ELSE 0 END), 0), count(*), min(due)
FROM (SELECT due FROM pawl_runs{bydue} WHERE workflow = $1 AND version = $2 AND queue = $3 AND due IS NOT NULL LIMIT $4 + 0) AS waits`

	countRunning = `SELECT queue, count(*) FROM pawl_runs{byowner} WHERE owner IS NOT NULL GROUP BY queue`

	mostPlaces = 1000
)

// Backlog costs as many look-ups as there are workflow versions and queues with runs due, and reads up to most entries of
// the index for each.
func (t *txn) Backlog(ctx context.Context, most int) (map[string]pawl.Backlog, error) {
	all := make(map[string]pawl.Backlog)
	at := []any{"", "", ""}
	for range mostPlaces {
		var workflow, version, queue string
		found, err := t.row(ctx, nextPlace, at, []any{&workflow, &version, &queue})
		if err != nil {
			return nil, fmt.Errorf("find queues: %w", err)
		}
		if !found {
			break
		}
		at = []any{workflow, version, queue}
		var due, total int
		var oldest int64
		if _, err := t.row(ctx, countPlace, append(slices.Clone(at), int64(most)+1), []any{&due, &total, zero(&oldest)}); err != nil {
			return nil, fmt.Errorf("count queue %q: %w", queue, err)
		}
		b := all[queue]
		b.Due, b.Later, b.More = b.Due+due, b.Later+total-due, b.More || total > most
		if due > 0 && (b.Oldest == 0 || oldest < b.Oldest) {
			b.Oldest = oldest
		}
		all[queue] = b
	}
	err := t.rows(ctx, countRunning, nil, func(rows pawl.Rows) error {
		var queue string
		var n int
		err := rows.Scan(&queue, &n)
		b := all[queue]
		b.Running = n
		all[queue] = b
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count running runs: %w", err)
	}
	return all, nil
}

const (
	holdLane = `INSERT INTO pawl_lanes (name, until, why) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET until = excluded.until, why = excluded.why WHERE pawl_lanes.until < excluded.until`
	selectLane  = `SELECT until FROM pawl_lanes WHERE name = $1 AND until > {now}`
	selectLanes = `SELECT name, until, why FROM pawl_lanes WHERE until > {now} ORDER BY name LIMIT 1000`
	deleteLanes = `DELETE FROM pawl_lanes WHERE until < {now} - $1`
)

// HoldLane uses the primary key. It is no journal: the latest time counts, whoever knows it.
func (t *txn) HoldLane(ctx context.Context, l pawl.LaneRow) error {
	if _, err := t.exec(ctx, holdLane, l.Name, l.Until, said(l.Why)); err != nil {
		return fmt.Errorf("hold lane %q: %w", l.Name, err)
	}
	return nil
}

// Lane uses the primary key.
func (t *txn) Lane(ctx context.Context, name string) (until int64, err error) {
	if _, err := t.row(ctx, selectLane, []any{name}, []any{&until}); err != nil {
		return 0, fmt.Errorf("read lane %q: %w", name, err)
	}
	return until, nil
}

// Lanes reads the whole table, from which the sweep deletes what is over.
func (t *txn) Lanes(ctx context.Context) ([]pawl.LaneRow, error) {
	all, err := list(ctx, t, func(rows pawl.Rows) (l pawl.LaneRow, err error) {
		err = rows.Scan(&l.Name, &l.Until, zero(&l.Why))
		return l, err
	}, selectLanes)
	if err != nil {
		return nil, fmt.Errorf("read lanes: %w", err)
	}
	return all, nil
}
