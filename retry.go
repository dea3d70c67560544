package pawl

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// parkAfter is the longest wait that keeps a worker's slot.
const parkAfter = 5 * time.Second

// wait holds the step back for d: in this goroutine if it is short, else by giving the slot free.
func (s *stepRun) wait(d time.Duration) error {
	x := s.x
	if d > parkAfter {
		return s.b.waitFor(s.row)
	}
	cause := pause(s.base, d)
	switch {
	case cause == nil && !x.w.stopping.Load():
		return nil
	case x.hold.Err() != nil:
		return s.b.suspend()
	case cause == nil, x.dying():
		return s.b.release(0)
	case s.b.orphaned():
		return s.orphaned()
	}
	return s.cutOff("was cut off between two attempts")
}

// fail records a failed attempt and says whether to try again now. The error is what the body gets.
func (s *stepRun) fail(row *StepRow, f *fault.Fault) (again bool, err error) {
	x := s.x
	f.Err = nil
	if x.hold.Err() != nil {
		row.State, row.Fault = StepFailed, f
		if s.c.intent() {
			x.w.evidence(x, row)
		}
		return false, s.b.suspend()
	}
	d := s.decide(row, f)
	if d.Fault.Reason == fault.ReasonNotStorable {
		d.Action = fault.ActionFail // it happened; only the result is lost
	}
	f = &d.Fault
	f.Err = nil
	row.Fault = f
	lost := s.failed(row, d)
	if f.Class == fault.OutcomeUnknown {
		row.Unknown++
	}
	if row.Kind == fault.KindKeyed && s.held > f.Outcome { // a later refusal does not undo an earlier send
		worst := *f
		worst.Outcome = s.held
		row.Fault = &worst
	}
	s.held = max(s.held, f.Outcome)
	x.logger().Info("attempt failed", "step", row.Name, "attempt", row.Attempt, "class", f.Class, "reason", f.Reason,
		"outcome", f.Outcome, "then", d.Action, "why", d.Why, "wait", d.Wait)
	switch d.Action {
	case fault.ActionRetry, fault.ActionPark:
		return s.retry(row, lost, d)
	case fault.ActionUncertain:
		s.markUncertain(row, lost)
		return false, s.b.waitFor(s.row)
	case fault.ActionRequeue:
		return false, s.requeue(row, lost)
	case fault.ActionFail:
	}
	if x.def.blockOnExhausted && !f.Class.Terminal() && f.Class != fault.QuotaExhausted && f.Reason != fault.ReasonNotStorable {
		op := s.retryOp(row, lost, 0)
		x.buffer(op)
		return false, s.question(AskLimit, fmt.Sprintf("%s after %d attempts: %s", d.Why, row.Attempt, f.Error()))
	}
	op := s.move(row, StepFailed)
	op.lost, op.effects, op.lane = lost, s.c.intent(), s.hold(f, d)
	x.buffer(op)
	return false, row.stored()
}

// failed is the record of an attempt that ended with a fault.
func (s *stepRun) failed(row *StepRow, d fault.Decision) *AttemptRow {
	begun := row.Begun
	if !s.c.intent() {
		begun = AtWrite - micro(row.Usage.Latency)
	}
	return &AttemptRow{Run: row.Run, Step: row.Name, Attempt: row.Attempt, Worker: row.Worker, Begun: begun,
		Fault: d.Fault, Wait: micro(d.Wait), Usage: row.Usage, Sent: row.Sent}
}

func (s *stepRun) decide(row *StepRow, f *fault.Fault) fault.Decision {
	b := fault.Budget{Policy: s.c.o.policy, Attempt: row.Attempt - row.Round, UnknownAttempts: row.Unknown, Paid: s.c.o.paid,
		KeyExpired: s.expired(), Jitter: rand.Float64()}
	if f.Class == fault.OutcomeUnknown {
		b.UnknownAttempts++
	}
	if row.FirstTry > 0 {
		b.Elapsed = time.Duration(s.x.w.now()-row.FirstTry-row.Told) * time.Microsecond
	} else {
		b.Elapsed = row.Usage.Latency
	}
	d := fault.Decide(f, s.c.kind, b)
	if (d.Action == fault.ActionRetry || d.Action == fault.ActionPark) && d.Told && s.beyond(d.Wait) {
		d.Action, d.Wait, d.Why = fault.ActionFail, 0, "the told delay goes beyond the run's deadline"
	}
	if d.Action == fault.ActionFail && s.c.db != nil && f.Reason == fault.ReasonCommitUnknown {
		d.Action = fault.ActionUncertain // nobody could settle it
		d.Fault.Outcome = fault.OutcomeMaybeExecuted
	}
	return d
}

func (s *stepRun) retryOp(row *StepRow, lost *AttemptRow, wait time.Duration) stepOp {
	op := s.move(row, StepRetrying)
	row.NextAt = AtWrite + micro(wait)
	op.lost, op.effects = lost, s.c.intent()
	return op
}

func (s *stepRun) retry(row *StepRow, lost *AttemptRow, d fault.Decision) (again bool, err error) {
	if d.Told {
		row.Told += micro(d.Wait)
	}
	op := s.retryOp(row, lost, d.Wait)
	op.lane = s.hold(&d.Fault, d)
	written := s.x.buffer(op)
	if err := s.wait(d.Wait); err != nil {
		return false, err
	}
	if err := s.x.commit(nil, nil); err != nil || s.x.unstorable() != nil {
		return false, s.b.suspend()
	}
	*s.row = *written
	return true, nil
}

// requeue records that our own side ended the attempt. Nothing is counted.
func (s *stepRun) requeue(row *StepRow, lost *AttemptRow) error {
	x := s.x
	if !x.dying() && s.base.Err() != nil { // cancelled
		s.noteCut()
		op := s.move(row, StepFailed)
		op.lost = lost
		x.buffer(op)
		return row.stored()
	}
	if s.row != nil || s.c.intent() {
		row.Round++
		x.buffer(s.retryOp(row, lost, 0))
	}
	return s.b.release(0)
}

// markUncertain buffers the move to uncertain, with its inbox entry. lost is nil where the attempt's own process has
// not reported its end.
func (s *stepRun) markUncertain(row *StepRow, lost *AttemptRow) {
	reported, stored := lost != nil, s.row
	if !reported {
		lost = lostAttempt(row)
		copied := *row
		row = &copied
	}
	row.State, row.Epoch = StepUncertain, s.x.row.Epoch
	if s.c.o.probe != nil && row.ProbeAfter == 0 {
		row.ProbeAfter = max(1, micro(s.c.o.probeAfter))
	}
	if reported {
		row.Ended = AtWrite
	}
	row.NextProbe = 0
	if row.ProbeAfter > 0 {
		row.NextProbe = row.Begun + row.ProbeAfter
	}
	op := stepOp{row: row, attempt: stored.Attempt, lost: lost, effects: reported,
		entry: uncertainEntry(row, s.detail(row, reported))}
	s.keep(row)
	s.x.buffer(op)
}

func (s *stepRun) detail(row *StepRow, reported bool) string {
	if !reported || row.Fault == nil {
		return ""
	}
	text := fmt.Sprintf("attempt %d of %s %q ended with %s", row.Attempt, row.Kind, row.Name, row.Fault.Error())
	if row.Sent != nil {
		text = payload.Clean(text, 600) + ". " + row.Sent.String()
	}
	return payload.Clean(text, 1000)
}
