package pawl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pawlrun/pawl/fault"
)

// Under makes the step act under an approval: it begins only if its input is what was approved, and the approval is still
// good. An approval is good for one step, for as many attempts as that takes. Such a step has an intent, whatever its kind; its
// intent, or for [Tx] the transaction itself, and the use of the approval are one commit.
//
// The error is *[Denied] if the approval was revoked, or stayed unused for longer than its [GrantTTL]. If the input or the
// workflow's version is another one, nothing is done: the run is blocked, and goes on by asking for approval of what is to be done now.
func Under[P any](a Approval[P]) StepOption {
	return anyOption(func(o *stepOptions) {
		if a.grant == nil {
			o.fail(errors.New("Under: the approval is not one that Approve returned"))
		}
		o.grant = a.grant
	})
}

// AskFirst makes the step ask before it acts, as [Approve] and [Under] do together: the question is about the step's name, kind,
// key and input, and is journalled as the step's name with "?" after it. The step gets the input as it was approved,
// edits included. The error is *[Denied] if it is not to be done.
func AskFirst(opts ...ApproveOption) StepOption {
	terms := &gateTerms{}
	for _, opt := range opts {
		opt.approve(terms)
	}
	return anyOption(func(o *stepOptions) {
		if terms.err != nil {
			o.fail(terms.err)
		}
		o.ask = terms
	})
}

// gated reports whether the step acts under an approval.
func (o *stepOptions) gated() bool { return o.grant != nil || o.ask != nil }

// question is the step call of the gate before a step that asks first.
func (c *stepCall) question(run *Run, path string, key OpKey, n int, terms *gateTerms, after *GateRow) *stepCall {
	q := &stepCall{name: c.name, kind: fault.KindGate, in: c.in, inType: c.inType, outType: c.inType, typed: inputOf{c.typed}}
	q.waitAtGate(run, gatePath(path, n), &asked{terms: *terms, action: c.name, kind: c.kind, key: key, form: c.inType, after: after})
	return q
}

// inputOf is the part of a gate's call that knows its types: its result is the input of the step that asks.
type inputOf struct{ typed }

func (i inputOf) check(json []byte) (any, error) { return i.checkIn(json) }

// passGates notes that the body has come by the questions of a step.
func (x *execution) passGates(path string) {
	for n := 1; ; n++ {
		row := x.j.row(gatePath(path, n))
		if row == nil || row.Kind != fault.KindGate {
			return
		}
		x.j.visit(row.Name)
	}
}

// permit finds the approval under which the step may act, or asks for one. An approval that does not cover what is to be done
// is invalidated, and another one is asked for when the run goes on.
func (s *stepRun) permit() error {
	x, o := s.x, &s.c.o
	held, terms := o.grant, o.ask
	var after *GateRow
	for n := 1; ; {
		if held == nil {
			var err error
			if held, err = s.askAt(n, terms, after); err != nil {
				return err
			}
			n++
		}
		g, err := x.gate(held.gate)
		if err != nil {
			x.logger().Error("gate could not be read", "step", s.path, "err", err)
			return s.b.later()
		}
		acts := g.State == GateClaimed
		why := s.differs(held, g, terms != nil)
		switch {
		case g.Run != x.row.ID, acts && g.Ref != s.path:
			return misuse(x, s.path, fault.ReasonGateUsed, "its approval is not its own: "+g.says()+". One approval is good for one step")
		case g.State == GateInvalidated:
			after, held = g, nil
			if terms == nil {
				terms = g.terms()
			}
			continue
		case g.State == GateApproved && why != "":
			return s.invalidate(g, why)
		}
		s.grant = held
		if terms != nil || acts {
			return s.take(held)
		}
		return nil
	}
}

// askAt goes to the step's n-th question.
func (s *stepRun) askAt(n int, terms *gateTerms, after *GateRow) (*grant, error) {
	x := s.x
	q := s.c.question(s.run, s.path, s.key, n, terms, after)
	path := gatePath(s.path, n)
	_, hash, err := s.run.input(q, path)
	if err != nil {
		return nil, err
	}
	x.j.visit(path)
	row := x.j.row(path)
	if row != nil && row.Orphaned {
		return nil, siblingFailed(x, s.path)
	}
	var text []byte
	if row != nil && row.State.Finished() {
		text, err = s.b.reuse(row, hash)
	} else {
		w := &stepRun{x: x, b: s.b, run: s.run, c: q, path: path, row: row, hash: hash, base: s.base}
		text, err = w.await()
	}
	if err != nil {
		return nil, err
	}
	return s.b.heldBy(path, text)
}

func (b *branch) heldBy(path string, text []byte) (*grant, error) {
	var v verdict
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, b.undecodable(path, err)
	}
	args, err := spelled(v.Payload)
	if err != nil {
		return nil, b.undecodable(path, err)
	}
	return &grant{gate: v.Gate, run: b.x.row.ID, args: args, out: args}, nil
}

// terms are those under which the gate was asked.
func (g *GateRow) terms() *gateTerms {
	t := &gateTerms{grantTTL: time.Duration(g.GrantTTL) * time.Microsecond, deciders: g.Deciders, two: g.TwoPersons, requester: g.Requester}
	if g.Expires > 0 {
		t.expires = max(time.Duration(g.Expires-g.Requested)*time.Microsecond, time.Microsecond)
	}
	return t
}

// gate reads a gate.
func (x *execution) gate(id EntryID) (g *GateRow, err error) {
	err = x.e.store.View(x.hold, func(ctx context.Context, tx Txn) error {
		g, err = tx.Gate(ctx, id)
		return err
	})
	return g, err
}

// differs says in what the step that is about to run is not the one that was approved; "" if it is.
func (s *stepRun) differs(held *grant, g *GateRow, stored bool) string {
	args := held.args
	if live, err := encode(s.c.in); !stored {
		if err == nil {
			live, err = spelled(live)
		}
		if err != nil || !bytes.Equal(live, held.out) {
			return "its input is not the payload that was approved"
		}
	}
	now := *g
	now.Version = s.x.row.Version
	if g.Kind != 0 {
		now.Action, now.Kind, now.Key = s.c.name, s.c.kind, s.key
	}
	switch {
	case bytes.Equal(now.hashOf(args), g.Hash):
		return ""
	case now.Version != g.Version:
		return fmt.Sprintf("it was approved for version %s, the run is at %s", g.Version, now.Version)
	}
	return "its name, kind, key or input is not what was approved"
}

// take makes the payload that was approved the step's input.
func (s *stepRun) take(held *grant) (err error) {
	s.use = held.args
	if s.hash, err = hashOf(held.args); err == nil && s.in != nil {
		s.in, err = s.x.e.seal(held.args)
	}
	if err != nil {
		return misuse(s.x, s.path, fault.ReasonInvalidValue, "input: "+err.Error())
	}
	return nil
}

// invalidate ends an approval of something else than what is to be done, and blocks the run by a question.
func (s *stepRun) invalidate(g *GateRow, why string) error {
	x := s.x
	if err := x.commit(nil, nil); err != nil {
		return s.b.suspend()
	}
	err := x.e.update(x.hold, func(ctx context.Context, tx Txn) error {
		if _, err := x.e.fence(ctx, tx, x.write(nil, nil)); err != nil {
			return err
		}
		g, err := tx.Gate(ctx, g.ID)
		if err != nil || g.State != GateApproved {
			return err
		}
		return g.moved(ctx, tx, GateInvalidated, "pawl", why)
	})
	if err != nil {
		x.logger().Warn("gate could not be invalidated", "step", s.path, "err", err)
		return s.b.later()
	}
	return s.question(AskInvalidated, fmt.Sprintf(
		"step %q was not begun: %s. Resume the run to ask for approval of what is to be done now, or cancel it", s.path, why))
}

// claim takes the gate for the step's next attempt, in the transaction of its intent. It comes back if it may not be acted under.
func (s *stepRun) claim(ctx context.Context, tx Txn, now int64) (refused *GateRow, err error) {
	g, err := tx.Gate(ctx, s.grant.gate)
	if err != nil {
		return nil, err
	}
	switch {
	case g.State == GateClaimed && g.Ref == s.path && g.Run == s.x.row.ID: // an attempt of it has begun before
		return nil, nil
	case g.State != GateApproved:
		return g, nil
	case g.overdue(now):
		return g, g.expire(ctx, tx, now)
	}
	g.ClaimedBy, g.Claimed, g.Ref = s.x.w.id.ID, now, s.path
	return nil, g.moved(ctx, tx, GateClaimed, "worker "+string(s.x.w.id.ID), "")
}

// claimOp is [stepOp.also] of an intent under a gate: it claims the gate, or makes the row a denial.
func (s *stepRun) claimOp(ctx context.Context, tx Txn, row *StepRow, now int64) error {
	refused, err := s.claim(ctx, tx, now)
	if err != nil || refused == nil {
		return err
	}
	return s.x.e.decide(row, refused, now)
}

// errRefused rolls back the transaction of a Tx step that may not act under its gate.
var errRefused = errors.New("the gate does not allow it")

// mayBegin looks at the gate before the callback of a Tx step; the claim at its end decides.
func (s *stepRun) mayBegin(ctx context.Context, tx Txn) error {
	if s.grant == nil {
		return nil
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	g, err := tx.Gate(ctx, s.grant.gate)
	if err == nil && (g.State != GateApproved || g.overdue(now)) {
		err = errRefused
	}
	return err
}

// mayCommit claims the gate in the transaction of a Tx step, whose fence is locked.
func (s *stepRun) mayCommit(ctx context.Context, tx Txn, now int64) error {
	if s.grant == nil {
		return nil
	}
	refused, err := s.claim(ctx, tx, now)
	if err == nil && refused != nil {
		err = errRefused
	}
	return err
}

// deny records that a Tx step was not done because of its gate.
func (s *stepRun) deny(row *StepRow) error {
	op := stepOp{row: row, insert: s.row == nil, also: func(ctx context.Context, tx Txn, row *StepRow, now int64) error {
		g, err := tx.Gate(ctx, s.grant.gate)
		if err != nil {
			return err
		}
		switch {
		case g.overdue(now):
			err = g.expire(ctx, tx, now)
		case g.State == GateApproved: // unreachable unless the store's clock was set back
			err = ErrLeaseLost
		}
		if err != nil {
			return err
		}
		row.Begun = now
		return s.x.e.decide(row, g, now)
	}}
	if s.row != nil {
		op.attempt = s.row.Attempt
	}
	if err := s.x.commit([]stepOp{op}, nil); err != nil {
		return err
	}
	s.keep(row)
	return nil
}

// askedHash is the input hash by which a finished step is compared: where a person may have edited the input, what was asked
// is compared, not what was done.
func (x *execution) askedHash(c *stepCall, path string, row *StepRow, hash []byte) []byte {
	if q := x.j.row(gatePath(path, 1)); c.o.ask != nil && q != nil && bytes.Equal(q.InputHash, hash) {
		return row.InputHash
	}
	return hash
}

// openGate is the number of the question before the step that has no answer yet; 0 if all that were asked are answered.
func (x *execution) openGate(path string) int {
	for n := 1; ; n++ {
		row := x.j.row(gatePath(path, n))
		if row == nil {
			if n == 1 {
				return n
			}
			return 0
		}
		if !row.State.Finished() {
			return n
		}
	}
}
