package pawl

import (
	"context"
	"fmt"
	"time"

	"github.com/pawlrun/pawl/internal/payload"
)

const (
	// minRetention keeps a lineage for as long as somebody may be waiting for its result, or about to retry it.
	minRetention = time.Hour

	keepKeys = 400 * 24 * time.Hour
	keepActs = 3 * 366 * 24 * time.Hour

	// prunePause lets others write between two batches.
	prunePause = 50 * time.Millisecond
)

func checkRetention(d time.Duration) error {
	if d < minRetention {
		return fmt.Errorf("want %v or more", minRetention)
	}
	return nil
}

func pruneTerms(runs time.Duration, after RunID) PruneTerms {
	return PruneTerms{Runs: runs, Keys: keepKeys, Acts: keepActs, After: after}
}

// prune does what Options.Retention asks for, batch after batch until nothing is left. The page that had nothing to delete
// is the last one of a sweep, and the next sweep goes on behind it: so the old runs that are not finished, however many,
// cost a page each time.
func (w *worker) prune(ctx context.Context) error {
	var sum Pruned
	defer func() {
		if sum.Lineages > 0 {
			w.e.log.Info("deleted what retention is over for", "lineages", sum.Lineages, "runs", sum.Runs)
		}
	}()
	for {
		got, err := w.e.store.Prune(ctx, pruneTerms(w.e.o.Retention, w.pruned))
		if err != nil {
			return err
		}
		w.pruned = got.Next
		sum.add(got)
		if !got.More {
			return nil
		}
		if err := pause(ctx, prunePause); err != nil {
			return err
		}
	}
}

func (p *Pruned) add(o Pruned) {
	p.Lineages += o.Lineages
	p.Runs += o.Runs
	p.Keys += o.Keys
	p.Acts += o.Acts
}

// Prune deletes, now, what [Options.Retention] would delete if it were olderThan, at least an hour. It reports each batch
// to progress, if that is not nil, and returns the sum. The act is recorded before anything is deleted.
func (e *Engine) Prune(ctx context.Context, olderThan time.Duration, a Act, progress func(Pruned)) (sum Pruned, err error) {
	if err := checkRetention(olderThan); err != nil {
		return sum, fmt.Errorf("prune what is older than %v: %w", olderThan, err)
	}
	if err := checkName("By", a.By); err != nil {
		return sum, err
	}
	if err := e.update(ctx, func(ctx context.Context, tx Txn) error {
		return tx.AddAudit(ctx, &AuditRow{Act: "prune", By: a.By, Why: payload.Clean(a.Reason, 1000), Detail: "older than " + olderThan.String()})
	}); err != nil {
		return sum, err
	}
	terms := pruneTerms(olderThan, "")
	for {
		got, err := e.store.Prune(ctx, terms)
		if err != nil {
			return sum, fmt.Errorf("prune: %w", err)
		}
		sum.add(got)
		if progress != nil {
			progress(got)
		}
		if terms.After = got.Next; !got.More && got.Next == "" {
			return sum, nil
		}
		if got.More {
			if err := pause(ctx, prunePause); err != nil {
				return sum, err
			}
		}
	}
}

// Prunable counts what [Engine.Prune] would delete, and stops at most lineages; Pruned.More says that there are more. It
// writes nothing.
func (e *Engine) Prunable(ctx context.Context, olderThan time.Duration, most int) (sum Pruned, err error) {
	if err := checkRetention(olderThan); err != nil {
		return sum, fmt.Errorf("look for what is older than %v: %w", olderThan, err)
	}
	terms := pruneTerms(olderThan, "")
	terms.Dry = true
	for {
		got, err := e.store.Prune(ctx, terms)
		if err != nil {
			return sum, fmt.Errorf("look for what may be deleted: %w", err)
		}
		sum.add(got)
		if terms.After = got.Next; got.Next == "" {
			return sum, nil
		}
		if sum.Lineages >= most {
			sum.More = true
			return sum, nil
		}
	}
}
