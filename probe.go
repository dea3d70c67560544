package pawl

import (
	"context"
	"fmt"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/host"
)

const (
	probeTimeout = 30 * time.Second
	maxProbes    = 5
	goneLease    = 10 * time.Minute // assumed lease of a worker whose row is gone
)

// identity is where the worker's process ran.
func (w *WorkerRow) identity() host.Identity {
	return host.Identity{Machine: w.Machine, Boot: w.Boot, PIDNS: w.PIDNS, PID: w.PID, Start: w.ProcessStart}
}

// overAt is when an attempt is over, by the store's clock: when its own process reported its end, at once if that
// process is known to be dead, else when deadline, lease and the far end's settling time have passed.
func overAt(row *StepRow, w *WorkerRow, now int64) (at int64, dead bool) {
	if row.Ended > 0 {
		return row.Ended, false
	}
	if hooks.Broken(hooks.W5) {
		return row.Begun, false
	}
	if w != nil && host.Dead(w.identity()) {
		return now, true
	}
	lease := micro(goneLease)
	if w != nil {
		lease = micro(w.Lease)
	}
	deadline := row.Deadline
	if deadline == 0 { // Keyed without a Timeout: from its begin, as if it had Once's
		deadline = row.Begun + micro(time.Minute)
	}
	return deadline + lease + row.Settle, false
}

// attemptOver reads what overAt needs.
func attemptOver(ctx context.Context, tx Txn, row *StepRow) (at, now int64, dead bool, err error) {
	if now, err = tx.Now(ctx); err != nil {
		return 0, 0, false, err
	}
	w, err := tx.Worker(ctx, row.Worker)
	if err != nil {
		return 0, 0, false, err
	}
	if at, dead = overAt(row, w, now); at <= now && !dead {
		return at, now, dead, nil
	}
	reports, err := tx.Evidence(ctx, RunID(cmpOr(string(row.Inherited), string(row.Run))))
	for i := range reports {
		if ev := &reports[i]; ev.Source == "worker" && ev.about(row) {
			return ev.At, now, false, err
		}
	}
	return at, now, dead, err
}

// uncertain asks the step's probe, if it has one and its time has come, and otherwise suspends the body.
func (s *stepRun) uncertain() (value []byte, err error, done bool) {
	x, row := s.x, s.row
	if s.c.o.probe == nil || row.NextProbe == 0 || row.NextProbe > x.w.now() {
		return nil, s.b.waitFor(row), true
	}
	if err := x.commit(nil, nil); err != nil {
		return nil, s.b.suspend(), true
	}
	var at, now int64
	if err := x.e.store.View(x.hold, func(ctx context.Context, tx Txn) (err error) {
		at, now, _, err = attemptOver(ctx, tx, row)
		return err
	}); err != nil {
		return nil, s.b.later(), true
	}
	value, verdict, perr := s.ask()
	switch {
	case x.hold.Err() != nil:
		return nil, s.b.suspend(), true
	case perr != nil:
		x.logger().Warn("probe failed", "step", s.path, "attempt", row.Attempt, "err", perr)
	case verdict == Happened:
		return s.probed(StepSucceeded, value, Happened)
	case verdict == DidNotHappen && now >= at:
		return s.probed(StepRetrying, nil, DidNotHappen)
	}
	next := int64(0)
	again := row.Probes+1 < maxProbes
	switch {
	case again && now < at: // too early to be sure: ask again when the attempt is over
		next = at
	case again && perr != nil:
		next = now + micro(min(max(s.c.o.probeAfter, time.Second), time.Minute))
	}
	row.Probes++
	row.NextProbe = next
	x.buffer(stepOp{row: row, mark: true})
	return nil, s.b.waitFor(row), true
}

// ask calls the probe with the stored input.
func (s *stepRun) ask() (value []byte, v Verdict, err error) {
	row := s.row
	ctx, cancel := context.WithTimeoutCause(s.base, probeTimeout, fault.ReasonStepDeadline)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			value, v, err = nil, CannotTell, fmt.Errorf("probe panicked: %v", p)
		}
	}()
	in, err := s.x.e.open(row.Input)
	if err != nil {
		return nil, CannotTell, err
	}
	json, v, err := s.c.o.probe(ctx, Intent{Key: row.Key, Attempt: row.Attempt, Begun: micros(row.Begun)}, in)
	if err != nil || v != Happened {
		return nil, v, err
	}
	value, err = s.x.e.seal(json)
	return value, v, err
}

// probed settles the step by the probe's verdict, which is kept as evidence.
func (s *stepRun) probed(state StepState, value []byte, v Verdict) ([]byte, error, bool) {
	x := s.x
	row := *s.row
	row.State, row.Value, row.ValueSize, row.NextProbe = state, value, len(value), 0
	row.Epoch = x.row.Epoch
	settled := false
	err := x.e.update(x.hold, func(ctx context.Context, tx Txn) error {
		settled = false
		if _, err := x.e.fence(ctx, tx, x.write(nil, nil)); err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		row.Ended = max(row.Ended, now)
		if state == StepRetrying {
			row.NextAt, row.Round = now, row.Attempt
		}
		if settled, err = tx.MoveStep(ctx, &row, row.Attempt); err != nil || !settled {
			return err
		}
		if err := tx.AddEvidence(ctx, &EvidenceRow{Run: row.Run, Step: row.Name, Attempt: row.Attempt, Worker: x.w.id.ID,
			Source: "probe", Verdict: v, Value: value}); err != nil {
			return err
		}
		return closeUncertain(ctx, tx, &row, choiceOf(v), "probe", "")
	})
	if err != nil || !settled { // answered in the meantime, or the database is away: look again
		x.logger().Warn("probe's verdict was not taken", "step", s.path, "settled", settled, "err", err)
		return nil, s.b.waitFor(s.row), true
	}
	x.logger().Info("probe settled an uncertain step", "step", s.path, "attempt", row.Attempt, "verdict", v)
	s.keep(&row)
	if state == StepRetrying {
		return nil, nil, false
	}
	json, err := x.e.open(value)
	return json, err, true
}

func choiceOf(v Verdict) Choice {
	if v == Happened {
		return AnswerHappened
	}
	return AnswerDidNotHappen
}

// closeUncertain closes the open question about the row's attempt, if there is one.
func closeUncertain(ctx context.Context, tx Txn, row *StepRow, c Choice, by, why string) error {
	entries, err := tx.Entries(ctx, row.Run, true)
	if err != nil {
		return err
	}
	for i := range entries {
		en := &entries[i]
		if en.Kind == AskUncertain && en.Step == row.Name {
			en.Choice, en.By, en.Why, en.Result = c, by, why, row.Value
			if _, err := tx.CloseEntry(ctx, en); err != nil {
				return err
			}
		}
	}
	return nil
}
