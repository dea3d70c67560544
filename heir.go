package pawl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// after lists what came after a run in its lineage, oldest first: its retry or fork, that one's, and so on; not forks
// with keys of their own, which stand apart. It goes by parents, because the store's clock may have been set back.
func after(family []RunRow, id RunID) (later []RunRow) {
	for len(later) < len(family) {
		i := slices.IndexFunc(family, func(r RunRow) bool { return r.Parent == id && !r.NewKeys })
		if i < 0 {
			break
		}
		later = append(later, family[i])
		id = family[i].ID
	}
	return later
}

// heir inserts the new run with what it inherits.
func (e *Engine) heir(ctx context.Context, tx Txn, run *RunRow, p *Plan, rel Relation, a Act) (RunID, error) {
	input, _, err := tx.Payload(ctx, run.ID)
	if err != nil {
		return "", err
	}
	restored, err := tx.Restored(ctx)
	if err != nil {
		return "", err
	}
	if run.Created > restored {
		restored = 0
	}
	id := newRunID()
	heir := RunRow{ID: id, Lineage: run.Lineage, Parent: run.ID, Relation: rel, Workflow: run.Workflow, Version: run.Version,
		KeyName: run.KeyName, Key: run.Key, NewKeys: p.Options.NewKeys, Queue: run.Queue, Priority: run.Priority, Share: run.Share, State: Queued, Input: input,
		InputHash: run.InputHash, Builds: run.Builds, Restored: max(run.Restored, restored), TimeLimit: run.TimeLimit,
		Continues: run.Continues}
	keys := run.ownKeys()
	if p.Options.NewKeys {
		clear(keys)
	}
	for _, path := range p.Options.NewKey {
		keys[path] = id
	}
	heir.setOwnKeys(keys)
	heirs := []RunRow{heir}
	if err := schedule(ctx, tx, heirs); err != nil {
		return "", err
	}
	if err := tx.InsertRuns(ctx, heirs); err != nil {
		return "", err
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if err := inherit(ctx, tx, run.ID, id, s, &p.Options); err != nil {
			return "", fmt.Errorf("inherit step %q: %w", s.Name, err)
		}
	}
	if err := inheritItems(ctx, tx, run.ID, id, p); err != nil {
		return "", err
	}
	return id, tx.AddAudit(ctx, &AuditRow{Act: string(p.Options.Mode), By: a.By, Why: payload.Clean(a.Reason, 1000), Run: run.ID,
		Detail: fmt.Sprintf("new run %s%s", id, forkDetail(&p.Options))})
}

func forkDetail(o *PlanOptions) string {
	var parts []string
	for _, p := range []struct{ what, value string }{{"from", o.From}, {"repeat", strings.Join(o.Repeat, ", ")}, {"new key for", strings.Join(o.NewKey, ", ")}} {
		if p.value != "" {
			parts = append(parts, p.what+" "+p.value)
		}
	}
	if o.FromStart {
		parts = append(parts, "from the start")
	}
	if o.NewKeys {
		parts = append(parts, "new keys")
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

func inherit(ctx context.Context, tx Txn, from, id RunID, s *PlannedStep, o *PlanOptions) error {
	switch {
	case s.State == "":
		return nil
	case s.Fate == Reuse:
		return tx.InheritStep(ctx, from, id, s.Name, StepSucceeded)
	case s.Fate == Ask:
		if err := tx.InheritStep(ctx, from, id, s.Name, StepUncertain); err != nil {
			return err
		}
		if err := tx.OpenEntry(ctx, &EntryRow{Run: id, Step: s.Name, Kind: AskUncertain, Attempt: s.Attempt,
			Detail: fmt.Sprintf("inherited from run %s: attempt %d of %s %q may have happened", from, s.Attempt, s.Kind, s.Name)}); err != nil {
			return err
		}
		return inheritEvidence(ctx, tx, id, s.Name)
	case s.Kind == fault.KindKeyed && !o.NewKeys && !slices.Contains(o.NewKey, s.Name) && !slices.Contains(o.Repeat, s.Name):
		return tx.InheritStep(ctx, from, id, s.Name, StepRetrying) // it keeps the time of its key's first use
	}
	return nil
}

// inheritEvidence lets what a worker reported about an inherited attempt answer the question that was inherited with it.
func inheritEvidence(ctx context.Context, tx Txn, id RunID, step string) error {
	row, err := tx.Step(ctx, id, step)
	if err != nil || row == nil {
		return err
	}
	reports, err := tx.Evidence(ctx, row.Inherited)
	if err != nil {
		return err
	}
	for i := range reports {
		if ev := &reports[i]; !ev.about(row) || ev.Verdict == CannotTell {
			continue
		}
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		return settleUncertain(ctx, tx, run, row, &reports[i], now)
	}
	return nil
}
