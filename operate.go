package pawl

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

func limited(n int) int {
	if n <= 0 {
		return 100
	}
	return min(n, 1000)
}

// Runs lists runs, newest first, a page at a time.
func (e *Engine) Runs(ctx context.Context, q RunQuery) ([]RunInfo, Cursor, error) {
	q.Limit = limited(q.Limit)
	rows, err := e.store.ListRuns(ctx, q)
	if err != nil {
		return nil, "", fmt.Errorf("list runs: %w", err)
	}
	infos := make([]RunInfo, len(rows))
	for i := range rows {
		infos[i] = infoOf(&rows[i])
	}
	if len(rows) < q.Limit {
		return infos, "", nil
	}
	return infos, Cursor(rows[len(rows)-1].ID), nil
}

func infoOf(r *RunRow) RunInfo {
	return RunInfo{ID: r.ID, Lineage: r.Lineage, Parent: r.Parent, Relation: r.Relation, Workflow: r.Workflow, Version: r.Version,
		Key: r.Key, Queue: r.Queue, Priority: r.Priority, Share: r.Share, State: r.State, Cancel: r.CancelAt > 0, Due: micros(r.Due), Created: micros(r.Created), Started: micros(r.Started),
		Ended: micros(r.Ended), Owner: r.Owner, Lost: r.LostTotal, Releases: r.Releases, Builds: r.Builds, Fault: r.Fault,
		CancelBy: r.CancelBy, CancelWhy: r.CancelWhy, Deadline: micros(r.Deadline), Successor: r.Successor, Continues: r.Continues}
}

func (e *Engine) info(ctx context.Context, id RunID) (info RunInfo, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		info = infoOf(run)
		entries, err := tx.Entries(ctx, id, true)
		for i := range entries {
			info.Open = append(info.Open, entries[i].Kind)
		}
		return err
	})
	if err != nil {
		return RunInfo{}, fmt.Errorf("run %s: %w", id, err)
	}
	return info, nil
}

// Show returns everything about one run. It only looks: it writes nothing and executes nothing.
func (e *Engine) Show(ctx context.Context, id RunID) (*RunDetail, error) {
	d := &RunDetail{}
	err := e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		*d = RunDetail{RunInfo: infoOf(run)}
		input, result, err := tx.Payload(ctx, id)
		if err != nil {
			return err
		}
		d.Input, d.Result = e.shown(input), nil
		if run.State == Succeeded && run.Successor == "" {
			d.Result = e.shown(result)
		}
		if err := e.showSteps(ctx, tx, run, d); err != nil {
			return err
		}
		if err := e.showPeople(ctx, tx, run, d); err != nil {
			return err
		}
		if err := showCalls(ctx, tx, d); err != nil {
			return err
		}
		family, err := tx.Lineage(ctx, run.Lineage)
		for i := range family {
			if family[i].ID != id {
				d.Family = append(d.Family, infoOf(&family[i]))
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("show run %s: %w", id, err)
	}
	return d, nil
}

// shown opens a payload for people; what this process cannot open is shown as such.
func (e *Engine) shown(stored []byte) []byte {
	json, err := e.open(stored)
	if err == nil {
		_, err = payload.Canonical(json)
	}
	if err != nil && len(stored) > 0 {
		return []byte(`"(sealed)"`)
	}
	return json
}

func (e *Engine) showSteps(ctx context.Context, tx Txn, run *RunRow, d *RunDetail) error {
	rows, err := allSteps(ctx, tx, d.ID)
	if err != nil {
		return err
	}
	if err := showBatches(ctx, tx, run, rows, d); err != nil {
		return err
	}
	attempts, err := tx.Attempts(ctx, d.ID)
	if err != nil {
		return err
	}
	open, err := tx.OpenSteps(ctx, d.ID)
	if err != nil {
		return err
	}
	inputs := make(map[string][]byte)
	for i := range open {
		inputs[open[i].Name] = open[i].Input
	}
	by := make(map[string][]AttemptRow)
	for _, a := range attempts {
		by[a.Step] = append(by[a.Step], a)
		d.Cost.add(a.Usage)
	}
	for i := range rows {
		row := &rows[i]
		if row.State == StepSucceeded && row.Inherited == "" {
			d.Cost.add(row.Usage)
		}
		s := StepDetail{Name: row.Name, Kind: row.Kind, State: row.State, Attempt: row.Attempt, Key: row.Key, Paid: row.Paid,
			Reused: row.Inherited, TakenFrom: row.TakenFrom, InputDiffers: len(row.OtherHash) > 0, Input: e.shown(inputs[row.Name]),
			Value: e.shown(row.Value), ValueSize: row.ValueSize, NextAt: micros(row.NextAt)}
		if row.State != StepSucceeded {
			s.Fault = row.Fault
		}
		s.Attempts = attemptsOf(row, by[row.Name])
		billed := 0
		for _, a := range s.Attempts {
			if a.State == "succeeded" || a.Outcome == fault.OutcomeMaybeExecuted {
				billed++
			}
		}
		s.PaidTwice = row.Paid && billed > 1
		d.Steps = append(d.Steps, s)
	}
	return nil
}

func (u *Usage) add(o Usage) {
	u.TokensIn += o.TokensIn
	u.TokensOut += o.TokensOut
	u.CostMicros += o.CostMicros
}

// attemptsOf joins the recorded attempts of a step with the one its row speaks of.
func attemptsOf(row *StepRow, lost []AttemptRow) []AttemptInfo {
	var all []AttemptInfo
	for _, a := range lost {
		state := "failed"
		if a.Fault.Reason == fault.ReasonWorkerLost {
			state = "lost"
		}
		all = append(all, AttemptInfo{Attempt: a.Attempt, State: state, Class: a.Fault.Class, Outcome: a.Fault.Outcome, Reason: a.Fault.Reason,
			Message: a.Fault.Message, Worker: a.Worker, Begun: micros(a.Begun), Ended: micros(a.Ended), Latency: a.Usage.Latency,
			Wait: time.Duration(a.Wait) * time.Microsecond, Usage: a.Usage, Sent: a.Sent})
	}
	for i := range all {
		if all[i].Attempt == row.Attempt {
			if row.State == StepSucceeded { // what was unknown about it has been answered
				all[i].State = string(row.State)
			}
			return all
		}
	}
	if row.State == StepSucceeded || row.State == StepInFlight || row.State == StepUncertain {
		all = append(all, AttemptInfo{Attempt: row.Attempt, State: string(row.State), Worker: row.Worker, Begun: micros(row.Begun),
			Ended: micros(row.Ended), Latency: row.latency(), Usage: row.Usage, Sent: row.Sent})
	}
	return all
}

func (e *Engine) showPeople(ctx context.Context, tx Txn, run *RunRow, d *RunDetail) error {
	entries, err := tx.Entries(ctx, run.ID, false)
	if err != nil {
		return err
	}
	for i := range entries {
		en, err := e.entryOf(ctx, tx, &entries[i], run)
		if err != nil {
			return err
		}
		d.Entries = append(d.Entries, en)
		if entries[i].Closed == 0 {
			d.Open = append(d.Open, entries[i].Kind)
		}
	}
	evidence, err := tx.Evidence(ctx, run.ID)
	if err != nil {
		return err
	}
	for i := range evidence {
		ev := &evidence[i]
		d.Evidence = append(d.Evidence, Evidence{Step: ev.Step, Attempt: ev.Attempt, At: micros(ev.At), Source: ev.Source,
			Verdict: ev.Verdict.String(), Value: e.shown(ev.Value), Fault: ev.Fault})
	}
	audit, err := tx.Audit(ctx, run.ID)
	for i := range audit {
		a := &audit[i]
		d.Audit = append(d.Audit, AuditEntry{At: micros(a.At), Act: a.Act, By: a.By, Reason: a.Why, Step: a.Step, Entry: a.Entry, Detail: a.Detail})
	}
	return err
}

// Inbox lists what people owe an answer to, oldest first, a page at a time.
func (e *Engine) Inbox(ctx context.Context, q InboxQuery) ([]Entry, Cursor, error) {
	q.Limit = limited(q.Limit)
	rows, err := e.store.ListInbox(ctx, q)
	if err != nil {
		return nil, "", fmt.Errorf("list inbox: %w", err)
	}
	entries := make([]Entry, len(rows))
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		for i := range rows {
			run, err := tx.LockRun(ctx, rows[i].Run)
			if err != nil {
				return err
			}
			if entries[i], err = e.entryOf(ctx, tx, &rows[i], run); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("read inbox: %w", err)
	}
	if len(rows) < q.Limit {
		return entries, "", nil
	}
	return entries, Cursor(rows[len(rows)-1].ID), nil
}

func (e *Engine) entryOf(ctx context.Context, tx Txn, row *EntryRow, run *RunRow) (Entry, error) {
	en := Entry{ID: row.ID, Run: row.Run, Workflow: run.Workflow, Version: run.Version, Key: run.Key, Step: row.Step, Kind: row.Kind,
		Attempt: row.Attempt, Opened: micros(row.Opened), Detail: row.Detail, Choices: row.Kind.Choices(), Closed: micros(row.Closed),
		Choice: row.Choice, By: row.By, Reason: row.Why}
	switch row.Kind {
	case AskUncertain:
	case AskGate:
		g, err := tx.Gate(ctx, row.ID)
		if err == nil {
			en.Input, en.Hash, en.Expires = e.shown(g.Payload), hex.EncodeToString(g.Hash), micros(g.Expires)
		}
		return en, err
	default:
		return en, nil
	}
	step, err := tx.Step(ctx, row.Run, row.Step)
	if err != nil || step == nil {
		return en, err
	}
	en.OpKey, en.Input, en.Begun = step.Key, e.shown(step.Input), micros(step.Begun)
	if row.Closed == 0 {
		at, now, _, err := attemptOver(ctx, tx, step)
		if err != nil {
			return en, err
		}
		en.OverAt, en.Over = micros(at), at <= now
	}
	return en, nil
}

// Cancel ends a run, or asks its worker to. A run that has not started, or whose body is not to be executed again, is
// cancelled at once. One that is running, waiting or queued is asked to: the contexts of its steps are cancelled and its
// body is executed to the end, so that steps under [Run.WithoutCancel] can compensate. One with an uncertain step waits
// for the answer. The state that is returned tells which: Cancelled, or what the run still is. [ErrTerminal] if it was
// finished before.
func (e *Engine) Cancel(ctx context.Context, id RunID, a Act) (state RunState, err error) {
	if err := checkName("By", a.By); err != nil {
		return "", err
	}
	err = e.update(ctx, func(ctx context.Context, tx Txn) error {
		run, err := lockInOrder(ctx, tx, id)
		if err != nil {
			return err
		}
		state = run.State
		switch {
		case run.State == Cancelled:
			return nil
		case run.Successor != "":
			return fmt.Errorf("it is %s, and goes on as run %s: %w", run.State, run.Successor, ErrTerminal)
		case run.State.Terminal():
			return fmt.Errorf("it is %s: %w", run.State, ErrTerminal)
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if run.CancelAt == 0 {
			run.CancelAt, run.CancelBy, run.CancelWhy = now, a.By, payload.Clean(a.Reason, 1000)
			if err := closeGates(ctx, tx, run, fault.ReasonRunCanceled, now); err != nil {
				return err
			}
		}
		if err := tx.AddAudit(ctx, &AuditRow{Act: "cancel", By: a.By, Why: payload.Clean(a.Reason, 1000), Run: id}); err != nil {
			return err
		}
		if err := cancelRun(ctx, tx, run, a, now); err != nil {
			return err
		}
		state = run.State
		return nil
	})
	if err != nil {
		return state, fmt.Errorf("cancel run %s: %w", id, err)
	}
	e.changed(id, nil)
	e.nudge()
	e.hint(ctx)
	return state, nil
}

func cancelRun(ctx context.Context, tx Txn, run *RunRow, a Act, now int64) error {
	switch run.State {
	case Running:
		return tx.SaveRun(ctx, run)
	case Blocked:
		entries, err := tx.Entries(ctx, run.ID, true)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(entries, func(en EntryRow) bool { return en.Kind == AskUncertain }) {
			if run.Intended != "" {
				run.Intended, run.Fault = Cancelled, nil
			}
			return tx.SaveRun(ctx, run)
		}
		return cancelNow(ctx, tx, run, a.By, a.Reason, now)
	default:
	}
	if run.Started == 0 {
		return finish(ctx, tx, run, Cancelled, nil, nil)
	}
	return wake(ctx, tx, run, now)
}

// Resume lets a blocked run go on at its first unfinished step: it answers "resume" to each of its open entries that
// takes it. A run with an uncertain step needs that answer instead, a finished one a retry.
func (e *Engine) Resume(ctx context.Context, id RunID, a Act) error {
	var open []EntryRow
	err := e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		run, err := tx.LockRun(ctx, id)
		if err != nil {
			return err
		}
		if run.State != Blocked {
			return fmt.Errorf("it is %s, not blocked: %w", run.State, ErrConflict)
		}
		open, err = tx.Entries(ctx, id, true)
		return err
	})
	if err != nil {
		return fmt.Errorf("resume run %s: %w", id, err)
	}
	resumed := false
	for i := range open {
		if !slices.Contains(answers[open[i].Kind], AnswerResume) {
			continue
		}
		if err := e.Resolve(ctx, Answer{Entry: open[i].ID, Attempt: open[i].Attempt, Choice: AnswerResume, By: a.By, Reason: a.Reason}); err != nil {
			return err
		}
		resumed = true
	}
	if !resumed {
		return fmt.Errorf("resume run %s: its open entries need answers of their own, see the inbox: %w", id, ErrConflict)
	}
	return nil
}

// Now is the store's clock.
func (e *Engine) Now(ctx context.Context) (now time.Time, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		us, err := tx.Now(ctx)
		now = micros(us)
		return err
	})
	return now, err
}

// latency is how long the step's last attempt took. A result that was the first to be written of its step has no other
// times.
func (row *StepRow) latency() time.Duration {
	if row.Usage.Latency == 0 && row.Begun > 0 && row.Ended > 0 {
		return time.Duration(row.Ended-row.Begun) * time.Microsecond
	}
	return row.Usage.Latency
}
