package pawl

import (
	"context"
	"fmt"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/payload"
)

// callContext is the context of one attempt. It has what belongs to that alone: what is left of an earlier one may still report.
type callContext struct {
	context.Context
	info   StepInfo
	report report
	http   fault.Attempt
}

// Value is part of [context.Context].
func (c *callContext) Value(key any) any {
	if key == (stepKey{}) {
		return &c.info
	}
	return c.Context.Value(key)
}

// call runs the callback and returns the sealed result, or the fault as it enters the journal: the one boundary at
// which an error is classified.
func (s *stepRun) call(row *StepRow) (value []byte, f *fault.Fault) {
	c := &callContext{Context: s.base, info: StepInfo{Run: row.Run, Lineage: s.x.row.Lineage, Workflow: s.x.row.Workflow,
		Version: s.x.row.Version, Step: row.Name, Kind: row.Kind, Key: s.key, Attempt: row.Attempt, foreign: s.c.db != nil, of: s},
		http: fault.Attempt{Kind: row.Kind, Key: string(s.key)}}
	c.info.report = &c.report
	s.http = &c.http
	if s.effect() {
		s.http.Late = s.late
	}
	ctx := fault.WithAttempt(c, s.http)
	if t := s.c.timeout(); t > 0 {
		left := t - (s.x.w.boot() - s.sent)
		if left <= 0 {
			return nil, &fault.Fault{Class: fault.Transient, Reason: fault.ReasonStepDeadline, Outcome: fault.OutcomeNotSent,
				Message: "the deadline passed before the attempt began"}
		}
		s.http.Until = time.Now().Add(left)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, left, fault.ReasonStepDeadline)
		defer cancel()
	}
	began := time.Now()
	defer func() {
		s.used(row, &c.report)
		if s.exits { // and with it the body
			row.Usage.Latency = time.Since(began)
			s.exit(ctx, row)
		}
	}()
	switch {
	case s.c.db != nil:
		return s.callForeign(ctx, row)
	case s.c.kind == fault.KindTx:
		return s.callTx(ctx, row)
	}
	at := attempt{intent: Intent{Key: s.key, Attempt: row.Attempt, Begun: micros(row.Begun)}}
	return s.guarded(ctx, row, at)
}

// guarded calls the user's code, with a panic as its fault, and makes the result storable.
func (s *stepRun) guarded(ctx context.Context, row *StepRow, at attempt) (value []byte, f *fault.Fault) {
	defer func() {
		if p := recover(); p != nil {
			s.exits = false
			value, f = nil, s.panicked(row, p)
		}
	}()
	s.x.e.hooks.Reach(hooks.EffectBegin, string(row.Run), row.Name)
	if s.c.kind == fault.KindTx {
		out, err := s.invokeApart(ctx, row, at)
		return s.judge(ctx, row, out, err)
	}
	s.exits = true
	out, err := s.invoke(ctx, row, at)
	s.exits = false
	return s.judge(ctx, row, out, err)
}

// invokeApart is invoke in a goroutine of its own, because runtime.Goexit would end the transaction's.
func (s *stepRun) invokeApart(ctx context.Context, row *StepRow, at attempt) (out any, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = fault.FromPanic(nil) // should invoke not return
		out, err = s.invoke(ctx, row, at)
	}()
	<-done
	return out, err
}

// invoke runs the callback. A panic is its error, also one with nil, which GODEBUG can allow. It does not return if the callback
// ends the goroutine.
func (s *stepRun) invoke(ctx context.Context, row *StepRow, at attempt) (out any, err error) {
	returned := false
	defer func() {
		if p := recover(); p != nil || !returned {
			err = s.panicked(row, p)
		}
	}()
	out, err = s.c.typed.exec(ctx, at, s.use)
	returned = true
	return out, err
}

// panicked is the error of a callback that has panicked with p, or ended its goroutine if that is nil.
func (s *stepRun) panicked(row *StepRow, p any) *fault.Fault {
	s.x.logger().Error("step panicked", "step", row.Name, "attempt", row.Attempt, "panic", fmt.Sprint(p))
	return fault.FromPanic(p)
}

// exit ends an attempt whose callback ends the body's goroutine by runtime.Goexit: what happened is recorded like a panic,
// and the run is released, to go on from its journal.
func (s *stepRun) exit(ctx context.Context, row *StepRow) {
	_, f := s.judge(ctx, row, nil, fault.FromPanic(nil))
	_, _ = s.fail(row, f)
	if !s.b.over.Load() {
		_ = s.b.release(0)
	}
}

// judge is what a callback has come to: the sealed result, or the fault.
func (s *stepRun) judge(ctx context.Context, row *StepRow, out any, err error) (value []byte, f *fault.Fault) {
	s.x.e.hooks.Reach(hooks.EffectDone, string(row.Run), row.Name)
	if err != nil {
		f := s.http.Judge(fault.FromContext(s.base, ctx, err), err)
		f.Err = nil // a method of it that panics is not called again
		return nil, f
	}
	if f := s.http.Verdict(); f != nil { // the client took for a result what was none
		return nil, f
	}
	json, err := encode(out)
	read := out
	if err == nil && !payload.Plain(s.c.outType) {
		read, err = s.c.typed.check(json)
	}
	if err == nil {
		value, err = s.x.e.seal(json)
	}
	if err != nil {
		return nil, fault.From(notStorable("the result", err))
	}
	s.c.read, s.c.of = read, json
	return value, nil
}

// late reports whether an effect must not begin any more: a machine that slept since the attempt began may have lost the
// run, and timers do not count that time.
func (s *stepRun) late() bool {
	t := s.c.timeout()
	return t > 0 && s.x.w.boot()-s.sent >= t || !s.x.w.trusted()
}

// used notes on the row what the attempt sent and used, by the step's own report and by the transport.
func (s *stepRun) used(row *StepRow, rep *report) {
	row.Usage, row.Sent = rep.usage(), nil
	defer func() { s.x.cost.Add(row.Usage.CostMicros) }()
	sends := s.http.Sends()
	if len(sends) == 0 {
		return
	}
	seen := s.http.Usage()
	if row.Usage.Provider == "" && row.Usage.Model == "" {
		row.Usage.Provider, row.Usage.Model = seen.Provider, seen.Model
	}
	if row.Usage.TokensIn+row.Usage.TokensOut == 0 {
		row.Usage.TokensIn, row.Usage.TokensOut = seen.InputTokens, seen.OutputTokens
	}
	if row.Usage.CostMicros == 0 {
		row.Usage.CostMicros = s.http.Estimate(s.x.e.o.prices())
	}
	if last := sends[len(sends)-1]; row.Usage.RequestID == "" {
		row.Usage.RequestID = last.RequestID
	}
	ev := s.http.Evidence()
	row.Sent = &ev
	if ev.Requests+ev.Replays > 1 && s.c.kind != fault.KindRepeatable {
		s.x.logger().Warn("the attempt sent more than one request: turn off the client's own retries", "step", row.Name,
			"attempt", row.Attempt, "requests", ev.Requests, "replays", ev.Replays)
	}
}
