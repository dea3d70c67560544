package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/payload"
)

// stepRun is one call of a step that has no final row yet.
type stepRun struct {
	x     *execution
	b     *branch
	run   *Run
	c     *stepCall
	path  string
	row   *StepRow // as stored, nil if there is none
	key   OpKey
	hash  []byte
	in    []byte // sealed input
	use   []byte // the stored input's JSON, if the callback must get that one
	grant *grant // the approval that the step acts under, if it needs one
	base  context.Context
	sent  time.Duration  // boot clock before the attempt's intent was sent
	http  *fault.Attempt // what the running attempt sends over HTTP
	held  fault.Outcome  // worst outcome of the attempts so far, for Keyed

	exits bool // the callback runs, or has ended the body's goroutine by runtime.Goexit
}

// step is the core of all verbs.
func (r *Run) step(c *stepCall) ([]byte, error) {
	path, b := r.path(c.name), r.branch
	if !b.mu.TryLock() {
		return nil, misuse(r.x, path, fault.ReasonNestedStep,
			"another step of this branch is running: steps do not nest, and a Run serves one goroutine (parallel branches need a Group)")
	}
	defer b.mu.Unlock()
	value, err := r.come(c, path)
	b.cut = b.cut || err != nil && errors.Is(err, fault.ErrSiblingFailed)
	return value, err
}

// come consults the journal and executes only what is not finished.
func (r *Run) come(c *stepCall, path string) ([]byte, error) {
	x, b := r.x, r.branch
	if err := b.enter(path); err != nil {
		return nil, err
	}
	json, hash, err := r.input(c, path)
	if err != nil {
		return nil, err
	}
	row, value, err, done := b.lookUp(r, c, path, hash)
	if done {
		return value, err
	}
	s := &c.run
	*s = stepRun{x: x, b: b, run: r, c: c, path: path, row: row, hash: hash, base: b.ctx}
	if r.shield {
		s.base = x.life()
	}
	if c.batch == nil || s.row == nil || s.base.Err() == nil { // items that were begun may have to compensate
		if err := s.admit(); err != nil {
			return s.abandonWait(err)
		}
	}
	switch {
	case c.wait != nil:
		return s.await()
	case c.batch != nil:
		return s.fanOut()
	}
	return s.act(json)
}

// act is the step call of a step with a callback.
func (s *stepRun) act(json []byte) (_ []byte, err error) {
	x, c, path := s.x, s.c, s.path
	if c.intent() && c.kind != fault.KindRepeatable {
		if s.in, err = x.e.seal(json); err != nil {
			return nil, misuse(x, path, fault.ReasonTooLarge, "input: "+err.Error())
		}
	}
	if c.intent() {
		s.key = x.row.opKey(x.w.space, path)
	}
	x.begins(path)
	defer x.ends(path)
	x.e.hooks.Reach(hooks.StepReached, string(x.row.ID), path)
	return s.carryOut()
}

// carryOut goes on where an earlier execution stopped. A step that acts under an approval gets it first, unless it is not
// known whether it has acted.
func (s *stepRun) carryOut() ([]byte, error) {
	if s.c.o.gated() && (s.row == nil || s.row.State != StepUncertain) {
		if err := s.permit(); err != nil {
			return nil, err
		}
	}
	if value, err, done := s.resume(); done {
		return value, err
	}
	if s.c.o.gated() && s.grant == nil {
		if err := s.permit(); err != nil {
			return nil, err
		}
	}
	return s.attempts()
}

// input checks the call and gives its input's JSON and hash.
func (r *Run) input(c *stepCall, path string) (json, hash []byte, err error) {
	if err := r.usable(c); err != nil {
		return nil, nil, misuse(r.x, path, fault.ReasonInvalidValue, err.Error())
	}
	if json, err = encode(c.in); err == nil {
		hash, err = hashOf(json)
	}
	if err != nil {
		return nil, nil, misuse(r.x, path, fault.ReasonInvalidValue, "input: "+err.Error())
	}
	return json, hash, nil
}

// misuse is an error in how a step is called. It is the same on every execution, so it needs no row.
func misuse(x *execution, path string, reason fault.Reason, text string) error {
	return &Error{Run: x.row.ID, Step: payload.Clean(path, 400), Fault: fault.Fault{Class: fault.InvalidRequest, Reason: reason,
		Outcome: fault.OutcomeRejected, Message: payload.Clean(text, 4096)}}
}

// usable refuses calls that could only fail later, when the crash has come.
func (r *Run) usable(c *stepCall) error {
	switch {
	case r.bad != nil:
		return r.bad
	case c.o.err != nil:
		return c.o.err
	case c.o.grant != nil && c.o.ask != nil:
		return errors.New("Under and AskFirst: a step acts under one approval, or asks for its own")
	case c.o.probe != nil && c.o.probeIn != c.inType:
		return fmt.Errorf("Probe takes %v, the step's input is %v", c.o.probeIn, c.inType)
	case c.o.probe != nil && c.o.probeOut != c.outType:
		return fmt.Errorf("Probe gives %v, the step's result is %v", c.o.probeOut, c.outType)
	}
	return payload.CheckName("step name", c.name)
}

// admit says whether new work of the run may begin at all.
func (s *stepRun) admit() error {
	x := s.x
	x.mu.Lock()
	spoiled := x.spoiled
	x.mu.Unlock()
	switch {
	case s.b.over.Load():
		return s.b.refuse()
	case spoiled != nil, x.stopped():
		return s.b.suspend()
	case x.dying(), x.w.stopping.Load():
		return s.b.release(0)
	case s.base.Err() == nil, s.row != nil && s.row.Foreign && s.row.State == StepInFlight: // that one is called off
	case s.b.orphaned():
		return s.orphaned()
	default:
		return s.cutOff("is cancelled, the step was not begun")
	}
	return nil
}

// resume deals with a row that an earlier execution left, and with the questions that come before a first attempt.
func (s *stepRun) resume() (value []byte, err error, done bool) {
	x, row := s.x, s.row
	if row == nil {
		err := s.first()
		return nil, err, err != nil
	}
	if row.Input == nil && (row.State == StepUncertain || row.UseStored) {
		full, err := x.full(row.Name)
		if err != nil {
			x.logger().Error("stored input could not be read", "step", row.Name, "err", err)
			return nil, s.b.later(), true
		}
		row.Input = full.Input
	}
	if s.inputChanged() {
		return nil, s.question(AskInputChanged, fmt.Sprintf("attempt %d of %s %q may have been sent with another input than the one it would have now", row.Attempt, row.Kind, s.path)), true
	}
	if err := s.adopt(row); err != nil {
		return nil, err, true
	}
	switch {
	case row.State == StepUncertain:
		return s.uncertain()
	case s.base.Err() != nil: // a transaction elsewhere, under cancel
		return s.callOff()
	case s.expired() && s.maybeSent():
		x.logger().Warn("the far end may have forgotten the key of an effect that may have happened", "step", s.path, "attempt", row.Attempt)
		s.markUncertain(row, nil)
		return s.uncertain()
	case row.State == StepRetrying && row.NextAt > x.w.now():
		err := s.wait(time.Duration(row.NextAt-x.w.now()) * time.Microsecond)
		return nil, err, err != nil
	}
	return nil, nil, false
}

// adopt takes over from the row what later attempts must keep: its key, the worst outcome so far, and its input if a
// person said so.
func (s *stepRun) adopt(row *StepRow) (err error) {
	if row.UseStored {
		if s.use, err = s.x.e.open(row.Input); err != nil {
			return s.b.undecodable(s.path, err)
		}
		s.hash, s.in = row.InputHash, row.Input
	}
	if row.Key != "" {
		s.key = row.Key
	}
	if row.Fault != nil {
		s.held = row.Fault.Outcome
	}
	return nil
}

// first asks what must be known before a step without a row begins.
func (s *stepRun) first() error {
	x := s.x
	if err := s.overLimit(); err != nil {
		return err
	}
	effect := s.c.kind == fault.KindOnce || s.c.kind == fault.KindKeyed
	switch {
	case effect && x.row.Restored > 0:
		row := s.next(nil)
		row.State = StepUncertain
		row.Begun, row.Deadline = AtWrite, AtWrite
		if row.ProbeAfter > 0 {
			row.NextProbe = AtWrite
		}
		op := stepOp{row: row, insert: true, entry: uncertainEntry(row,
			fmt.Sprintf("the database was restored from a backup; %s %q may have happened after the backup was made", row.Kind, row.Name))}
		s.keep(row)
		x.buffer(op)
		return s.b.waitFor(row)
	case s.c.kind == fault.KindRepeatable || s.c.kind.Waits() || s.b.side || !otherBuild(x.row.Builds, x.w.id.Build):
		return nil
	}
	old := x.j.lookalike(s.c.kind, s.path, s.hash)
	if old == nil || x.j.answered(AskRenamed, s.path) == AnswerRunIt {
		return nil
	}
	en := x.entry(AskRenamed, s.path, fmt.Sprintf("%s %q is new in this build and has the input of %q, which is finished and was not visited: renamed?", s.c.kind, s.path, old.Name))
	en.Other = old.Name
	return s.b.ask(en)
}

// question suspends the body by a question about the whole run, to which this step has led.
func (s *stepRun) question(kind EntryKind, detail string) error {
	return s.b.ask(s.x.entry(kind, s.path, detail))
}

// keep makes row the step's in memory.
func (s *stepRun) keep(row *StepRow) {
	s.row = row
	s.x.j.put(row)
}

// inputChanged: an effect that may have been sent would be sent again with another input.
func (s *stepRun) inputChanged() bool {
	row := s.row
	effect := row.Kind == fault.KindOnce || row.Kind == fault.KindKeyed
	return effect && !row.UseStored && row.State != StepUncertain && s.maybeSent() && !slices.Equal(row.InputHash, s.hash)
}

// maybeSent: some attempt so far may have reached the far end.
func (s *stepRun) maybeSent() bool {
	row := s.row
	if row.State == StepInFlight || row.State == StepUncertain {
		return true
	}
	return row.Kind == fault.KindKeyed && (row.Fault == nil || !row.Fault.Outcome.Proven())
}

// expired: the far end may have forgotten the key.
func (s *stepRun) expired() bool {
	row := s.row
	return row != nil && row.Kind == fault.KindKeyed && row.FirstIntent > 0 && s.x.w.now() > row.FirstIntent+row.KeyTTL
}

// intent reports whether the step's row must be durable before its callback runs.
func (c *stepCall) intent() bool {
	return c.kind == fault.KindOnce || c.kind == fault.KindKeyed || c.o.paid || c.db != nil || c.kind == fault.KindRepeatable && c.o.gated()
}

func (c *stepCall) timeout() time.Duration {
	if c.o.timeout == 0 && c.kind == fault.KindOnce {
		return time.Minute
	}
	return c.o.timeout
}

// attempts tries the step until it has a result, an error for the body, or a reason to end this execution.
func (s *stepRun) attempts() ([]byte, error) {
	x := s.x
	x.quietN.Store(false)
	for {
		if s.row != nil && s.row.State == StepRetrying && s.expired() && s.maybeSent() { // the key ran out while it waited
			s.markUncertain(s.row, nil)
			return nil, s.b.waitFor(s.row)
		}
		if err := s.mayTry(); err != nil {
			return nil, err
		}
		row := s.next(s.row)
		if !s.ready(row) {
			return nil, s.b.suspend()
		}
		if row.State.Finished() { // its gate did not allow it
			return nil, s.b.failure(row)
		}
		began := time.Now()
		value, f := s.call(row)
		row.Usage.Latency = time.Since(began)
		if f == nil {
			s.succeed(row, value)
			return s.b.opened(row.Name, value)
		}
		if f.Err == errRefused { //nolint:errorlint // set by callTx itself
			if err := s.deny(row); err != nil || x.unstorable() != nil {
				return nil, s.b.suspend()
			}
			return nil, s.b.failure(row)
		}
		again, err := s.fail(row, f)
		if !again {
			return nil, err
		}
	}
}

// mayTry says whether the run's limits and the step's lane let an attempt begin now. A step without a row has been asked
// about limits before.
func (s *stepRun) mayTry() error {
	if s.row != nil {
		if err := s.overLimit(); err != nil {
			return err
		}
	}
	return s.inLane()
}

// ready makes durable what must be before the attempt begins, and says whether it may begin.
func (s *stepRun) ready(row *StepRow) bool {
	x := s.x
	if s.c.intent() || s.c.timeout() > 0 {
		s.sent = x.w.boot()
	}
	switch {
	case s.c.intent():
		// No evidence if this fails: an intent that never landed leaves its number to a later attempt.
		if err := s.writeIntent(row); err != nil {
			return false
		}
	case s.c.kind == fault.KindTx: // its transaction carries what came before it, if the run's lock is not needed for that
		return !x.looksFirst() || x.commit(nil, nil) == nil
	case hooks.Broken(hooks.R1):
		return true
	default:
		return s.commit() == nil
	}
	// A heartbeat after a long stillness renews the lease and finds that the run is not ours any more: both count.
	if s.effect() && !row.State.Finished() && (x.hold.Err() != nil || !x.w.trusted()) {
		s.neverBegan(row)
		x.lose(ErrLeaseLost)
		return false
	}
	return true
}

// effect reports whether the step does something outside that must not begin without a certain lease.
func (s *stepRun) effect() bool {
	return s.c.kind == fault.KindOnce || s.c.kind == fault.KindKeyed || s.c.o.paid || s.c.o.gated()
}

// neverBegan reports, for an intent that is on record, that its effect was not begun.
func (s *stepRun) neverBegan(row *StepRow) {
	row.Fault = &fault.Fault{Class: fault.Canceled, Reason: fault.ReasonLeaseLost, Outcome: fault.OutcomeNotSent,
		Message: "the lease was not certain any more when the attempt was to begin"}
	s.x.w.evidence(s.x, row)
}

// next is the row of the attempt after prev.
func (s *stepRun) next(prev *StepRow) *StepRow {
	row := &StepRow{}
	if prev != nil {
		*row = *prev
	}
	if prev != nil && prev.State == StepInFlight {
		row.Round++ // its worker was lost, which is not an error of the step's
	}
	o := &s.c.o
	row.Run, row.Name, row.Kind, row.Epoch = s.x.row.ID, s.path, s.c.kind, s.x.row.Epoch
	row.Attempt++
	row.InputHash, row.Input = s.hash, s.in
	row.Paid, row.Foreign, row.Worker = o.paid, s.c.db != nil, s.x.w.id.ID
	if s.c.intent() {
		row.Key = s.key
	}
	row.Settle, row.KeyTTL = 0, 0
	if s.c.intent() {
		row.Settle = micro(orDefault(o.settle, time.Minute))
	}
	if s.c.kind == fault.KindKeyed {
		row.KeyTTL = micro(orDefault(o.keyTTL, 24*time.Hour))
	}
	row.ProbeAfter, row.NextProbe, row.Probes = 0, 0, 0
	if o.probe != nil {
		row.ProbeAfter = max(1, micro(o.probeAfter))
	}
	row.Ended, row.Deadline, row.NextAt = 0, 0, 0
	row.Value, row.ValueSize, row.Fault, row.Usage, row.Sent, row.Inherited = nil, 0, nil, Usage{}, nil, ""
	return row
}

func micro(d time.Duration) int64 { return d.Microseconds() }

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// writeIntent makes the row durable before the effect, with everything it depends on.
func (s *stepRun) writeIntent(row *StepRow) error {
	prev, timeout := s.row, micro(s.c.timeout())
	row.State, row.Begun = StepInFlight, AtWrite
	if timeout > 0 {
		row.Deadline = AtWrite + timeout
	}
	if row.FirstIntent == 0 {
		row.FirstIntent = AtWrite
	}
	if row.FirstTry == 0 {
		row.FirstTry = AtWrite
	}
	op := stepOp{row: row, insert: prev == nil}
	if s.grant != nil {
		op.also = s.claimOp
	}
	if prev != nil {
		op.attempt = prev.Attempt
		if prev.State == StepInFlight {
			op.lost = lostAttempt(prev)
		}
	}
	if err := s.commit(op); err != nil {
		return err
	}
	s.keep(row)
	s.x.e.hooks.Reach(hooks.IntentWritten, string(row.Run), row.Name)
	return nil
}

// lostAttempt is the record of an attempt whose worker was lost.
func lostAttempt(row *StepRow) *AttemptRow {
	return &AttemptRow{Run: row.Run, Step: row.Name, Attempt: row.Attempt, Worker: row.Worker, Begun: row.Begun,
		Fault: fault.Fault{Class: fault.OutcomeUnknown, Reason: fault.ReasonWorkerLost, Outcome: fault.OutcomeMaybeExecuted}}
}

// succeed hands the result to the body. It rides with the run's next write.
func (s *stepRun) succeed(row *StepRow, value []byte) {
	if s.c.kind == fault.KindTx && s.c.db == nil {
		return // durable already
	}
	op := s.move(row, StepSucceeded)
	row.Value, row.ValueSize = value, len(value)
	op.effects = s.c.intent()
	if op.insert {
		row.Usage.Latency = 0 // it is what lies between begin and end
	}
	op.given = true
	s.x.hand(op)
}

// move is the write that ends row's attempt in state.
func (s *stepRun) move(row *StepRow, state StepState) stepOp {
	prev := s.row
	row.State, row.Ended = state, AtWrite
	if row.Begun == 0 || !s.c.intent() {
		row.Begun = AtWrite - micro(row.Usage.Latency)
	}
	if row.FirstTry == 0 && state != StepSucceeded {
		row.FirstTry = row.Begun
	}
	op := stepOp{row: row, insert: prev == nil}
	if prev != nil {
		op.attempt = prev.Attempt
	}
	s.keep(row)
	return op
}

// hashOf is the input hash: SHA-256 of the canonical JSON.
func hashOf(json []byte) ([]byte, error) {
	h, err := payload.Hash(json)
	if err != nil {
		return nil, err
	}
	return h[:], nil
}
