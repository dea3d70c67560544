package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawlrun/pawl"
)

// What one call of Prune does at most. A run weighs one for each of its rows and one for each 4 KiB of its payloads, which
// is about what deleting it costs; a lineage that weighs more than a batch is a batch of its own.
const (
	pruneLook   = 1000
	pruneSize   = 100
	pruneWeight = 2000
)

// Prune reads first, and begins a transaction only if there is something to delete.
func (s *Store) Prune(ctx context.Context, p pawl.PruneTerms) (done pawl.Pruned, err error) {
	if p.After != "" && !isID(p.After) {
		return done, fmt.Errorf("prune: %q is not where a former call ended", p.After)
	}
	t := s.reader()
	due, err := t.pruneDue(ctx, p)
	if err != nil {
		return done, fmt.Errorf("look for what may be deleted: %w", err)
	}
	done.Next = due.next
	switch {
	case p.Dry:
		err = s.View(ctx, func(ctx context.Context, tx pawl.Txn) error { return tx.(*txn).pruneLineages(ctx, p, due, &done) })
	case len(due.lineages) > 0 || due.keys || due.acts:
		err = s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
			done = pawl.Pruned{Next: due.next}
			return tx.(*txn).prune(ctx, p, due, &done)
		})
	}
	if err == nil && !p.Dry && s.d.GiveBack != nil {
		var more bool
		more, err = s.giveBack(ctx)
		done.More = done.More || more
	}
	if err != nil {
		return pawl.Pruned{}, fmt.Errorf("prune: %w", err)
	}
	return done, nil
}

// prunable is what a look has found.
type prunable struct {
	lineages []string // whose first run may be old enough, in order
	next     pawl.RunID
	keys     bool // some may be forgotten
	acts     bool
}

const selectGone = `SELECT {now}, EXISTS (SELECT 1 FROM pawl_keys WHERE gone < {now} - $1),
	EXISTS (SELECT 1 FROM pawl_audit WHERE gone < {now} - $2)`

// No index is kept for old runs, because each run's end would have to write to it. The primary key is in the order in which
// runs were made, and a lineage has the id of its first run: so those that may be old enough are at its low end, up to the
// id that a run made at that time would have. A process whose clock was ahead has its
// runs deleted that much later.
const selectOldest = `SELECT id, lineage = id AND coalesce(ended < {now} - $1, FALSE) FROM pawl_runs WHERE id > $2 AND id < $3 ORDER BY id LIMIT $4`

// pruneDue looks at a page of the oldest runs by the primary key, and at the low end of pawl_keys_gone and pawl_audit_gone.
func (t *txn) pruneDue(ctx context.Context, p pawl.PruneTerms) (due prunable, err error) {
	var now int64
	if _, err := t.row(ctx, selectGone, []any{p.Keys.Microseconds(), p.Acts.Microseconds()}, []any{&now, &due.keys, &due.acts}); err != nil {
		return due, err
	}
	looked, last := 0, string(p.After)
	after := last
	if after == "" {
		after = idTemplate
	}
	err = t.rows(ctx, selectOldest, []any{p.Runs.Microseconds(), after, firstID(now - p.Runs.Microseconds()), int64(pruneLook)}, func(rows pawl.Rows) error {
		var id string
		var old bool
		if err := rows.Scan(&id, &old); err != nil {
			return err
		}
		if looked++; len(due.lineages) == pruneSize {
			return nil
		}
		last = id
		if old {
			due.lineages = append(due.lineages, id)
		}
		return nil
	})
	if looked == pruneLook || len(due.lineages) == pruneSize {
		due.next = pawl.RunID(last)
	}
	return due, err
}

// firstID is below every id of version 7 that is made at that time.
func firstID(micros int64) string {
	ms := max(micros, 0) / 1000
	return fmt.Sprintf("%08x-%04x-7000-8000-000000000000", ms>>16, ms&0xffff)
}

func (t *txn) prune(ctx context.Context, p pawl.PruneTerms, due prunable, done *pawl.Pruned) error {
	if err := t.pruneLineages(ctx, p, due, done); err != nil {
		return err
	}
	for _, gone := range []struct {
		due  bool
		text string
		term time.Duration
		n    *int
	}{{due.keys, deleteKeys, p.Keys, &done.Keys}, {due.acts, deleteActs, p.Acts, &done.Acts}} {
		if !gone.due {
			continue
		}
		n, err := t.exec(ctx, gone.text, gone.term.Microseconds(), int64(pruneSize))
		if err != nil {
			return err
		}
		*gone.n = int(n)
		done.More = done.More || n >= pruneSize
	}
	return nil
}

const (
	// Of those that are equally old all go.
	deleteKeys = `DELETE FROM pawl_keys WHERE gone <= (SELECT max(gone) FROM
	(SELECT gone FROM pawl_keys WHERE gone < {now} - $1 ORDER BY gone LIMIT $2) AS old)`
	deleteActs = `DELETE FROM pawl_audit WHERE gone <= (SELECT max(gone) FROM
	(SELECT gone FROM pawl_audit WHERE gone < {now} - $1 ORDER BY gone LIMIT $2) AS old)`
)

// runsOf are the runs of lineages, by the primary key and pawl_runs_lineage.
const runsOf = `id {anyof}SELECT id FROM pawl_runs WHERE id IN ({ids})
	UNION ALL SELECT id FROM pawl_runs WHERE lineage IN ({ids}) AND lineage <> id{end}`

const (
	lockRuns = `SELECT id FROM pawl_runs WHERE ` + runsOf + ` ORDER BY id{skip}`

	// By the primary keys, pawl_inbox_open and pawl_calls_child. What a run has called is kept as long as the run, whose retry
	// goes on with it.
	selectFates = `SELECT r.id, r.lineage, r.product_key,
	coalesce(r.ended < {now} - {term}, FALSE)
		AND NOT EXISTS (SELECT 1 FROM pawl_inbox e WHERE e.run = r.id AND e.closed IS NULL)
		AND NOT EXISTS (SELECT 1 FROM pawl_steps s WHERE s.run = r.id AND s.deadline + coalesce(s.settle, 0) >= {now} - {term})
		AND NOT EXISTS (SELECT 1 FROM pawl_calls c WHERE c.child = r.id
			AND NOT coalesce((SELECT coalesce(p.ended < {now} - {term}, FALSE) FROM pawl_runs p WHERE p.id = c.run), TRUE)),
	1 + (coalesce(length(r.input), 0) + coalesce(length(r.result), 0)) / 4096
		+ (SELECT count(*) + coalesce(sum((coalesce(length(s.value), 0) + coalesce(length(s.input), 0)) / 4096), 0)
			FROM pawl_steps s WHERE s.run = r.id)
		+ (SELECT count(*) FROM pawl_attempts a WHERE a.run = r.id)
		+ (SELECT count(*) + coalesce(sum(coalesce(length(i.value), 0) / 4096), 0) FROM pawl_items i WHERE i.run = r.id)
FROM pawl_runs AS r{byid} WHERE ` + runsOf

	markKeys       = `UPDATE pawl_keys{bykey} SET gone = coalesce(ended, {now}) WHERE product_key IN ({ids}) AND lineage IN ({others})`
	markActs       = `UPDATE pawl_audit SET gone = at WHERE run IN ({ids})`
	deleteSteps    = `DELETE FROM pawl_steps{byrun} WHERE run IN ({ids})`
	deleteItems    = `DELETE FROM pawl_items WHERE run IN ({ids})`
	deleteAttempts = `DELETE FROM pawl_attempts WHERE run IN ({ids})`
	deleteEntries  = `DELETE FROM pawl_inbox WHERE run IN ({ids})`
	deleteCalls    = `DELETE FROM pawl_calls WHERE run IN ({ids})`
	deleteGates    = `DELETE FROM pawl_gates WHERE run IN ({ids})`
	deleteEvidence = `DELETE FROM pawl_evidence WHERE run IN ({ids})`
	deleteRuns     = `DELETE FROM pawl_runs{byid} WHERE id IN ({ids})`
)

// withIDs puts pruneSize parameters in place of {ids}, and those that follow in place of {others} or, the first of them, {term}.
func withIDs(text string) string {
	var lists [2]strings.Builder
	for i := range 2 * pruneSize {
		if i%pruneSize > 0 {
			lists[i/pruneSize].WriteString(", ")
		}
		lists[i/pruneSize].WriteString("$" + strconv.Itoa(i+1))
	}
	return strings.NewReplacer("{ids}", lists[0].String(), "{others}", lists[1].String(), "{term}", "$"+strconv.Itoa(pruneSize+1)).Replace(text)
}

// asList gives parameters for {ids}: at least one and at most pruneSize values, the last one again and again.
func asList(values []string) []any {
	args := make([]any, pruneSize)
	for i := range args {
		args[i] = values[min(i, len(values)-1)]
	}
	return args
}

// family is the runs of a lineage, and what decides whether they go.
type family struct {
	runs   []string
	keys   []string
	keep   bool
	weight int64
}

// pruneLineages deletes those of the lineages that may go, as many as a batch has room for. It locks all their runs first
// and looks at them after that: a retry or an answer locks a run of the lineage too, so it has been seen, or it comes too late.
func (t *txn) pruneLineages(ctx context.Context, p pawl.PruneTerms, due prunable, done *pawl.Pruned) error {
	if len(due.lineages) == 0 {
		return nil
	}
	families, err := t.families(ctx, p, due.lineages)
	if err != nil {
		return err
	}
	var lineages, runs, keys []string
	weight := int64(0)
	for i, id := range due.lineages {
		f := families[id]
		if f == nil || f.keep {
			continue
		}
		if weight += f.weight; weight > pruneWeight && len(lineages) > 0 {
			done.Next = pawl.RunID(due.lineages[i-1])
			break
		}
		lineages, runs, keys = append(lineages, id), append(runs, f.runs...), append(keys, f.keys...)
	}
	done.Lineages, done.Runs = len(lineages), len(runs)
	done.More = len(lineages) > 0 && done.Next != ""
	if t.readOnly || len(lineages) == 0 {
		return nil
	}
	return t.deleteLineages(ctx, lineages, runs, keys)
}

// deleteLineages takes the runs and keys of at most pruneSize lineages. Their key rows and acts stay, marked.
func (t *txn) deleteLineages(ctx context.Context, lineages, runs, keys []string) error {
	for part := range slices.Chunk(keys, pruneSize) {
		if _, err := t.exec(ctx, withIDs(markKeys), append(asList(part), asList(lineages)...)...); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(runs, pruneSize) {
		for _, text := range []string{deleteSteps, deleteItems, deleteAttempts, deleteGates, deleteEntries, deleteEvidence, deleteCalls, markActs, deleteRuns} {
			if _, err := t.exec(ctx, withIDs(text), asList(part)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// families reads the runs of the lineages, locked unless the transaction only reads.
func (t *txn) families(ctx context.Context, p pawl.PruneTerms, lineages []string) (map[string]*family, error) {
	ours := make(map[string]bool)
	if !t.readOnly {
		err := t.rows(ctx, withIDs(lockRuns), asList(lineages), func(rows pawl.Rows) error {
			var id string
			err := rows.Scan(&id)
			ours[id] = true
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	families := make(map[string]*family)
	err := t.rows(ctx, withIDs(selectFates), append(asList(lineages), p.Runs.Microseconds()), func(rows pawl.Rows) error {
		var id, lineage, key string
		var old bool
		var weight int64
		if err := rows.Scan(&id, &lineage, zero(&key), &old, &weight); err != nil {
			return err
		}
		f := families[lineage]
		if f == nil {
			f = &family{}
			families[lineage] = f
		}
		f.runs = append(f.runs, id)
		f.weight += weight
		f.keep = f.keep || !old || !t.readOnly && !ours[id]
		if key != "" && !slices.Contains(f.keys, key) {
			f.keys = append(f.keys, key)
		}
		return nil
	})
	return families, err
}

// giveBack lets the file shrink by a bounded part, and reports whether it did.
func (s *Store) giveBack(ctx context.Context) (bool, error) {
	statement, err := s.d.GiveBack(ctx, s.read)
	if err != nil || statement == "" {
		return false, err
	}
	return true, s.Update(ctx, func(ctx context.Context, tx pawl.Txn) error {
		return tx.(*txn).rows(ctx, statement, nil, func(pawl.Rows) error { return nil })
	})
}
