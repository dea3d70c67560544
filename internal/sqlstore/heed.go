package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/pawlrun/pawl"
)

// A claim that heeds settings of queues is a transaction. It locks the rows of those queues first, in the order of their
// names, so that of all claims that would use the same slots, one comes after the other. Nobody who holds a run's row
// waits for a queue's. Slots in use are counted under the lock, from the runs that are owned; there is no number that
// could be wrong after a crash. Whatever is read costs in proportion to what may be taken, not to what waits.

const (
	lockQueues = `SELECT ` + queueColumns + ` FROM pawl_queues WHERE special AND name IN (%s) ORDER BY name{lock}`
	readQueues = `SELECT ` + queueColumns + ` FROM pawl_queues WHERE special AND name IN (%s) ORDER BY name`

	selectSlots = `SELECT queue, share, count(*) FROM pawl_runs{byslot} WHERE slotted AND owner IS NOT NULL AND queue = $1 GROUP BY queue, share`

	// walkShares goes from one share with runs in the index to the next one. It ends when it has passed $5 shares with due runs, or $6 in
	// all. A share's due runs may be of any priority that is in use.
	walkShares = `WITH RECURSIVE walk(share, ready, n) AS (
	SELECT (SELECT min(r.share) FROM pawl_runs AS r{bydue} WHERE r.workflow = $1 AND r.version = $2 AND r.queue = $3 AND r.share > $4
		AND r.due IS NOT NULL), 0, 1
	UNION ALL SELECT (SELECT min(r.share) FROM pawl_runs AS r{bydue} WHERE r.workflow = $1 AND r.version = $2 AND r.queue = $3
		AND r.share > w.share AND r.due IS NOT NULL), w.ready + CASE WHEN ` + shareDue + ` THEN 1 ELSE 0 END, w.n + 1
	FROM walk AS w WHERE w.share IS NOT NULL AND w.ready < $5 AND w.n < $6)
SELECT share, ` + shareDue + ` FROM walk AS w WHERE share IS NOT NULL`
	shareDue = `(` + dueOf + `0 AND r.due <= {now}) OR EXISTS (SELECT 1 FROM pawl_ways AS y
		WHERE y.workflow = $1 AND y.queue = $3 AND ` + dueOf + `y.priority AND r.due <= {now})))`
	dueOf = `EXISTS (SELECT 1 FROM pawl_runs AS r{bydue} WHERE r.workflow = $1 AND r.version = $2 AND r.queue = $3 AND r.share = w.share
		AND r.priority = `

	// walkMost bounds a walk through shares that have only runs for later. The next claim goes on from there.
	walkMost = 500

	heedArm = `SELECT id, due - CAST($%[5]d AS BIGINT) * 60000000 AS due, queue, share FROM (SELECT id, due, queue, share FROM pawl_runs{bydue}
	WHERE workflow = CAST($%[1]d AS TEXT) AND version = CAST($%[2]d AS TEXT) AND queue = CAST($%[3]d AS TEXT)
		AND share = CAST($%[4]d AS TEXT) AND priority = CAST($%[5]d AS BIGINT) AND due <= {now}%[8]s
		AND (CAST($%[6]d AS BIGINT) = 1 OR NOT EXISTS (SELECT 1 FROM pawl_queues AS q WHERE q.name = CAST($%[3]d AS TEXT) AND q.special))
	ORDER BY due, id LIMIT $%[7]d + 0{skip}) AS a%[7]d`

	// The build is the third parameter here.
	heedTake = `, slotted = slotted IS TRUE OR EXISTS (SELECT 1 FROM pawl_queues AS q WHERE q.name = queue AND q.special)
WHERE id IN (%s)
` + claimGives

	spendQueue = `UPDATE pawl_queues SET spent = $2, turn = $3 WHERE name = $1`

	mostArms = 64
)

// params gives n parameters for a list, from the given one on.
func params(from, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("$%d", from+i)
	}
	return strings.Join(all, ", ")
}

// padded repeats the last value until there is a power of two of them, so that there are few texts to prepare.
func padded[T any](values []T) []T {
	n := 1 << bits.Len(uint(len(values)-1))
	values = slices.Clone(values)
	for len(values) < n {
		values = append(values, values[len(values)-1])
	}
	return values
}

// place is where a worker's runs wait: a version's way.
type place struct {
	pawl.VersionID
	queue    string
	priority int64
}

// heeding is one look at the queues of a worker: what may be taken from where.
type heeding struct {
	t      *txn
	c      pawl.Claim
	now    int64
	places []place
	queues map[string]*allowed // those with something to heed
}

// allowed is what a queue's settings leave.
type allowed struct {
	pawl.QueueRow
	room    int            // runs that may begin
	running map[string]int // by share
	heads   []string       // shares whose turn it is, in order
	seen    string         // how far the shares were looked through
	limited bool
}

// left is how many more runs of a share may begin.
func (a *allowed) left(share string) int {
	if a.MaxPerShare == 0 {
		return a.room
	}
	return min(a.room, a.MaxPerShare-a.running[share])
}

// heed reads the settings, locked unless the transaction only reads, and what they leave of limit.
func (t *txn) heed(ctx context.Context, c pawl.Claim) (*heeding, error) {
	h := &heeding{t: t, c: c, queues: make(map[string]*allowed)}
	flows, err := t.flows(ctx, workflows(c.Has))
	if err != nil {
		return nil, err
	}
	var names []any
	for _, v := range c.Has {
		h.places = append(h.places, place{v, v.Workflow, 0})
		for _, w := range flows[v.Workflow].ways {
			h.places = append(h.places, place{v, w.queue, w.priority})
		}
	}
	for _, p := range h.places {
		if !slices.Contains(names, any(p.queue)) {
			names = append(names, p.queue)
		}
	}
	names = padded(names)
	query := lockQueues
	if t.readOnly {
		query = readQueues
	}
	found, err := list(ctx, t, scanQueue, fmt.Sprintf(query, params(1, len(names))), names...)
	if err != nil {
		return nil, fmt.Errorf("read queues: %w", err)
	}
	if h.now, err = t.Now(ctx); err != nil { // after the locks were waited for
		return nil, err
	}
	for i := range found {
		a := &allowed{QueueRow: found[i]}
		h.queues[a.Name] = a
		if err := h.allow(ctx, a); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// allow counts what is running in a queue.
func (h *heeding) allow(ctx context.Context, a *allowed) error {
	if a.limited = a.MaxRunning+a.MaxPerShare > 0; !a.limited {
		a.room = min(h.c.Limit, a.Room(0, h.now))
		return nil
	}
	a.running = make(map[string]int)
	total := 0
	err := h.t.rows(ctx, selectSlots, []any{a.Name}, func(rows pawl.Rows) error {
		var queue, share string
		var n int
		err := rows.Scan(&queue, &share, &n)
		a.running[share] = n
		total += n
		return err
	})
	if err != nil {
		return fmt.Errorf("count the slots of queue %q: %w", a.Name, err)
	}
	a.room = min(h.c.Limit, a.Room(total, h.now))
	return nil
}

// turns finds whose turn it is in a queue with shares: shares with due runs and slots left, from the one after the last
// turn on, at most as many as there is room.
func (h *heeding) turns(ctx context.Context, a *allowed) error {
	var versions []pawl.VersionID
	for _, p := range h.places {
		if p.queue == a.Name && !slices.Contains(versions, p.VersionID) {
			versions = append(versions, p.VersionID)
		}
	}
	after, before := make(map[string]bool), make(map[string]bool)
	far := ""
	for _, v := range versions {
		end, err := h.walk(ctx, a, v, string(a.Turn), "", after)
		if err != nil {
			return err
		}
		if far == "" || end != "" && end < far { // no further than the shortest walk has seen
			far = end
		}
	}
	if far == "" { // begin anew, with runs that have no share
		var err error
		if before[""], err = h.isDue(ctx, a); err != nil {
			return err
		}
		for _, v := range versions {
			if a.Turn == "" {
				break
			}
			if _, err := h.walk(ctx, a, v, "", string(a.Turn), before); err != nil {
				return err
			}
		}
	}
	maps.DeleteFunc(before, func(_ string, due bool) bool { return !due })
	a.heads = append(slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before))...)
	if len(after) == 0 {
		a.seen = far
	}
	return nil
}

// isDue reports whether a run of the queue that has no share may be taken.
func (h *heeding) isDue(ctx context.Context, a *allowed) (bool, error) {
	due, err := h.minDue(ctx, a)
	return due != nil && *due <= h.now && a.left("") > 0, err
}

const selectMinDue = `SELECT min(due) FROM pawl_runs{bydue} WHERE workflow = $1 AND version = $2 AND queue = $3 AND share = '' AND priority = $4
	AND due IS NOT NULL`

// minDue is when the first run of the queue that has no share is due; nil if there is none.
func (h *heeding) minDue(ctx context.Context, a *allowed) (first *int64, err error) {
	for _, p := range h.places {
		if p.queue != a.Name {
			continue
		}
		var due *int64
		if _, err := h.t.row(ctx, selectMinDue, []any{p.Workflow, p.Version, p.queue, p.priority}, []any{&due}); err != nil {
			return nil, fmt.Errorf("look at queue %q: %w", a.Name, err)
		}
		first = sooner(first, due)
	}
	return first, nil
}

// walk adds shares of a version after from, up to and with to unless it is "", to found. It returns where it gave up; "" at the end.
func (h *heeding) walk(ctx context.Context, a *allowed, v pawl.VersionID, from, to string, found map[string]bool) (end string, err error) {
	got, steps := 0, 0
	for got < a.room && steps < walkMost {
		n, last := 0, from
		args := []any{v.Workflow, v.Version, a.Name, from, int64(a.room - got), int64(walkMost)}
		err := h.t.rows(ctx, walkShares, args, func(rows pawl.Rows) error {
			var share string
			var due bool
			err := rows.Scan(&share, &due)
			n++
			last = max(last, share)
			if due && a.left(share) > 0 && (to == "" || share <= to) {
				found[share] = true
				got++
			}
			return err
		})
		if err != nil {
			return "", fmt.Errorf("look through the shares of queue %q: %w", a.Name, err)
		}
		steps += n
		if last == from || to != "" && last >= to {
			return "", nil
		}
		from = last
	}
	return from, nil
}

// candidate is a run that may be taken.
type candidate struct {
	id    string
	rank  int64 // since when it has been due, less its head start
	queue string
	share string
	lost  bool
}

// arm is one look-up: the due runs of a place and share, up to a number.
type arm struct {
	place
	share  string
	limit  int
	heeded bool
}

func (h *heeding) arms() (all []arm) {
	for _, p := range h.places {
		a := h.queues[p.queue]
		switch {
		case a == nil:
			all = append(all, arm{p, "", h.c.Limit, false})
		case a.room <= 0:
		case !a.Shared:
			all = append(all, arm{p, "", a.room, true})
		default:
			for _, share := range a.heads[:min(len(a.heads), a.room)] {
				each := min((a.room+len(a.heads)-1)/min(len(a.heads), a.room), a.left(share))
				all = append(all, arm{p, share, each, true})
			}
		}
	}
	return all
}

// candidates locks what may be taken.
func (h *heeding) candidates(ctx context.Context) (all []candidate, err error) {
	guard := notSuspect
	if h.c.Suspect {
		guard = ""
	}
	for part := range slices.Chunk(h.arms(), mostArms) {
		var args []any
		for i, a := range padded(part) {
			heeded := int64(0)
			if a.heeded {
				heeded = 1
			}
			if i >= len(part) {
				a.limit = 0
			}
			args = append(args, a.Workflow, a.Version, a.queue, a.share, a.priority, heeded, int64(a.limit))
		}
		if all, err = h.collect(ctx, all, heedText(len(args)/heedParams, guard), args, false); err != nil {
			return nil, err
		}
	}
	if !h.c.Expired {
		return all, nil
	}
	pairs := len(h.c.Has)
	query := `SELECT id, due, '', '' FROM (` + fmt.Sprintf(claimLost, anyPair(pairs, 4), guard, "$2") + `) AS due`
	args := []any{string(h.c.Worker), h.c.Clock, int64(h.c.Limit)}
	for _, v := range h.c.Has {
		args = append(args, v.Workflow, v.Version)
	}
	return h.collect(ctx, all, query, args, true)
}

const heedParams = 7 // of an arm

func heedText(arms int, guard string) string {
	var b strings.Builder
	for i := range arms {
		if i > 0 {
			b.WriteString("\nUNION ALL ")
		}
		n := i * heedParams
		fmt.Fprintf(&b, heedArm, n+1, n+2, n+3, n+4, n+5, n+6, n+7, guard)
	}
	return b.String()
}

func heedTakeText(runs int) string {
	return strings.Replace(claimSet, "$4", "$3", 1) + fmt.Sprintf(heedTake, params(4, runs))
}

func (h *heeding) collect(ctx context.Context, all []candidate, query string, args []any, lost bool) ([]candidate, error) {
	err := h.t.rows(ctx, query, args, func(rows pawl.Rows) error {
		c := candidate{lost: lost}
		err := rows.Scan(&c.id, &c.rank, &c.queue, &c.share)
		all = append(all, c)
		return err
	})
	return all, err
}

// choose decides which of the candidates are taken: by age over all, and within a queue no more than it has room for. A queue
// with shares takes part with the age of its oldest; which of its runs it is, the turns decide.
func (h *heeding) choose(all []candidate) (chosen []candidate) {
	byQueue := make(map[string][]candidate)
	for _, c := range all {
		if h.queues[c.queue] == nil || c.lost {
			chosen = append(chosen, c)
		} else {
			byQueue[c.queue] = append(byQueue[c.queue], c)
		}
	}
	byRank := func(a, b candidate) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.id, b.id)) }
	slices.SortFunc(chosen, byRank)
	for name, of := range byQueue {
		a := h.queues[name]
		slices.SortFunc(of, byRank)
		if a.Shared {
			of = a.inTurn(of)
		}
		chosen = append(chosen, of[:min(len(of), a.room)]...)
	}
	slices.SortStableFunc(chosen, func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) })
	return chosen[:min(len(chosen), h.c.Limit)]
}

// inTurn gives one run of each share after the other, in the order of their turns, all with the rank of the oldest.
func (a *allowed) inTurn(of []candidate) (ordered []candidate) {
	byShare := make(map[string][]candidate)
	for _, c := range of {
		byShare[c.share] = append(byShare[c.share], c)
	}
	for round := 0; len(ordered) < len(of); round++ {
		before := len(ordered)
		for _, share := range a.heads {
			if round < min(len(byShare[share]), a.left(share)) {
				c := byShare[share][round]
				c.rank = of[0].rank
				ordered = append(ordered, c)
			}
		}
		if len(ordered) == before {
			break
		}
	}
	return ordered
}

// claimHeeding is the claim where a queue has settings to heed.
func (s *Store) claimHeeding(ctx context.Context, c pawl.Claim) (taken []pawl.Claimed, err error) {
	err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) (err error) {
		taken, err = tx.(*txn).claimHeeding(ctx, c)
		return err
	})
	return taken, err
}

func (t *txn) claimHeeding(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
	if err := t.keepSteady(ctx); err != nil {
		return nil, err
	}
	h, err := t.heed(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, a := range h.queues {
		if a.Shared && a.room > 0 {
			if err := h.turns(ctx, a); err != nil {
				return nil, err
			}
		}
	}
	all, err := h.candidates(ctx)
	if err != nil {
		return nil, err
	}
	chosen := h.choose(all)
	taken := make([]pawl.Claimed, 0, len(chosen))
	for part := range slices.Chunk(chosen, mostArms) {
		args := []any{string(c.Worker), c.Token, str(c.Build)}
		for _, p := range padded(part) {
			args = append(args, p.id)
		}
		if err := t.rows(ctx, heedTakeText(len(args)-3), args, collect(&taken, claimedDest, 0)); err != nil {
			return nil, err
		}
	}
	for i := range taken {
		if a := h.queues[taken[i].Row.Queue]; a != nil {
			taken[i].Slot = a.limited
		}
	}
	return taken, h.spend(ctx, chosen)
}

// spend notes what was taken of rates, and whose turn it was.
func (h *heeding) spend(ctx context.Context, chosen []candidate) error {
	for _, name := range slices.Sorted(maps.Keys(h.queues)) {
		a := h.queues[name]
		spent, turn, n := a.QueueRow.Spent, string(a.Turn), 0
		for _, c := range chosen {
			if c.queue == name && !c.lost {
				turn = c.share
				n++
			}
		}
		if n == 0 && a.seen != "" {
			turn = a.seen // shares with nothing due are not looked at again and again
		}
		if a.Rate > 0 && n > 0 {
			a.Spend(n, h.now)
		}
		if !a.Shared {
			turn = ""
		}
		if a.QueueRow.Spent == spent && turn == string(a.Turn) {
			continue
		}
		if _, err := h.t.exec(ctx, spendQueue, name, num(a.QueueRow.Spent), str(turn)); err != nil {
			return fmt.Errorf("note what was taken from queue %q: %w", name, err)
		}
	}
	return nil
}
