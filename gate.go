package pawl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// Approval is a person's yes to one payload. It is good for one step, see [Under], in the run that asked.
type Approval[P any] struct {
	Payload P // what was approved: as it was asked, or as a person edited it
	By      string
	At      time.Time
	grant   *grant
}

// grant is what a step needs to act under an approval.
type grant struct {
	gate EntryID
	run  RunID
	args []byte // what was approved, as stored …
	out  []byte // … and as the body got it
}

// Approve asks a person whether payload may go ahead, and suspends the run until there is an answer. The run holds no slot of
// a worker meanwhile. What comes back is the payload as it was approved, edits included: use that one, not what was asked.
//
// The error is *[Denied] if a person rejected it or, with [Expires], nobody decided in time; [ErrCancelled] if the run was
// cancelled. If a payload was rejected under this name in this run, in whatever scope, the same payload is not asked about again: the
// same rejection comes back. So let payloads say what they are about. A manual retry asks again, unless what was approved was done.
func Approve[P any](run *Run, name string, payload P, opts ...ApproveOption) (Approval[P], error) {
	c := newCall[P, P](name, fault.KindGate, payload, nil)
	a := &asked{action: name, form: c.inType}
	for _, o := range opts {
		o.approve(&a.terms)
	}
	c.waitAtGate(run, run.path(name), a)
	text, err := run.step(c)
	if err != nil {
		return Approval[P]{}, err
	}
	return approval[P](run, name, text)
}

// approval decodes the decision that is in the journal.
func approval[P any](run *Run, name string, text []byte) (out Approval[P], err error) {
	var v verdict
	if err = json.Unmarshal(text, &v); err == nil {
		err = decode(v.Payload, &out.Payload)
	}
	g := &grant{gate: v.Gate, run: run.x.row.ID}
	if err == nil {
		g.args, g.out, err = v.args(out.Payload)
	}
	if err != nil {
		return Approval[P]{}, run.branch.undecodable(run.path(name), err)
	}
	out.By, out.At, out.grant = v.By, v.At, g
	return out, nil
}

// args gives the payload as stored and as the body's type spells it.
func (v *verdict) args(out any) (stored, live []byte, err error) {
	if stored, err = spelled(v.Payload); err != nil {
		return nil, nil, err
	}
	if live, err = encode(out); err != nil {
		return nil, nil, err
	}
	live, err = spelled(live)
	return stored, live, err
}

// ApproveOption is an option of [Approve] and [AskFirst].
type ApproveOption interface{ approve(*gateTerms) }

type approveFunc func(*gateTerms)

func (f approveFunc) approve(t *gateTerms) { f(t) }

// gateTerms are the conditions of a decision. They are stored with the question, so later code changes only later ones.
type gateTerms struct {
	expires   time.Duration
	grantTTL  time.Duration
	deciders  []string
	two       bool
	requester string
	err       error
}

func (t *gateTerms) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Deciders says who may decide: people by name, or groups that the caller of [Engine.Decide] vouches for. Without it
// everybody may who can reach the engine.
func Deciders(names ...string) ApproveOption {
	return approveFunc(func(t *gateTerms) {
		if len(names) == 0 {
			t.fail(errors.New("Deciders(): want at least one name"))
		}
		for _, n := range names {
			if err := checkName("Deciders", n); err != nil {
				t.fail(err)
			}
		}
		t.deciders = slices.Clone(names)
	})
}

// Expires is how long a decision is waited for, counted from the question. After that it is denied, never approved. Zero
// means as long as it takes.
func Expires(d time.Duration) ApproveOption {
	return approveFunc(func(t *gateTerms) {
		if d < 0 {
			t.fail(fmt.Errorf("Expires(%v): want a positive duration", d))
		}
		t.expires = d
	})
}

// GrantTTL is how long an approval may stay unused before it expires. Once the step has begun it does not matter any more.
// Zero means for ever.
func GrantTTL(d time.Duration) ApproveOption {
	return approveFunc(func(t *gateTerms) {
		if d < 0 {
			t.fail(fmt.Errorf("GrantTTL(%v): want a positive duration", d))
		}
		t.grantTTL = d
	})
}

// TwoPersons demands another person to approve than the one who asked for it, if the program knows that one ("" if not), and
// than the one who edited it. Nobody may edit and approve in one act then.
func TwoPersons(requester string) ApproveOption {
	return approveFunc(func(t *gateTerms) { t.two, t.requester = true, requester })
}

// asked is a question that is to be put.
type asked struct {
	terms  gateTerms
	action string
	kind   Kind
	key    OpKey
	form   reflect.Type
	after  *GateRow // an invalidated gate that this one stands in for

	x    *execution
	in   any
	path string
}

// waitAtGate makes c the step call of a gate.
func (c *stepCall) waitAtGate(run *Run, path string, a *asked) {
	a.x, a.in, a.path = run.x, c.in, path
	if a.terms.err != nil {
		c.o.fail(a.terms.err)
	}
	c.wait = &waitKind{begin: a.begin, late: a.late}
	if a.terms.expires > 0 {
		c.wait.until = AtWrite + max(micro(a.terms.expires), 1)
	}
}

// begin puts the question, in the transaction that records the wait.
func (a *asked) begin(ctx context.Context, tx Txn, row *StepRow, now int64) error {
	x := a.x
	plain, err := encode(a.in)
	if err == nil {
		plain, err = spelled(plain)
	}
	if err != nil {
		return fmt.Errorf("gate %q: %w: %w", a.path, errUnstorable, err)
	}
	sealed, err := x.e.seal(plain)
	if err != nil {
		return fmt.Errorf("gate %q: %w: %w", a.path, errUnstorable, err)
	}
	g := &GateRow{ID: EntryID(newRunID()), Run: row.Run, Lineage: x.row.Lineage, Step: row.Name, Generation: 1, Version: x.row.Version, Action: a.action,
		Kind: a.kind, Key: a.key, Payload: sealed, Form: formOf(a.form), State: GatePending, Expires: row.NextAt,
		GrantTTL: micro(a.terms.grantTTL), Deciders: a.terms.deciders, TwoPersons: a.terms.two, Requester: payload.Clean(a.terms.requester, 400)}
	g.Same = g.sameOf(plain)
	if no, err := rejectedBefore(ctx, tx, g); err != nil || no != nil {
		if err == nil {
			row.Begun = now
			err = x.e.decide(row, no, now)
		}
		return err
	}
	before := a.after
	if before == nil {
		if before, err = tx.LastGate(ctx, g.Lineage, g.Step); err != nil {
			return err
		}
	}
	if before != nil {
		g.Generation, g.Supersedes = before.Generation+1, before.ID
	}
	g.Hash = g.hashOf(plain)
	return g.ask(ctx, tx, "none", cmpOr(g.Requester, "pawl"))
}

// rejectedBefore finds the rejection, in the same run, of the same action with the same arguments.
func rejectedBefore(ctx context.Context, tx Txn, g *GateRow) (*GateRow, error) {
	gates, err := tx.Gates(ctx, g.Run)
	for i := range gates {
		if gates[i].State == GateRejected && slices.Equal(gates[i].Same, g.Same) {
			return &gates[i], nil
		}
	}
	return nil, err
}

// ask inserts the gate with its inbox entry and its act.
func (g *GateRow) ask(ctx context.Context, tx Txn, from, by string) error {
	if err := tx.InsertGate(ctx, g); err != nil {
		return err
	}
	what := fmt.Sprintf("may %q be done?", g.Action)
	if g.Kind != 0 {
		what = fmt.Sprintf("may %s %q be done?", g.Kind, g.Action)
	}
	if g.EditedBy != "" {
		what += " Edited by " + g.EditedBy + "."
	}
	entry := &EntryRow{ID: g.ID, Run: g.Run, Step: g.Step, Kind: AskGate, Attempt: g.Generation, Detail: payload.Clean(what, 1000)}
	if err := tx.OpenEntry(ctx, entry); err != nil {
		return err
	}
	if entry.ID != g.ID {
		return fmt.Errorf("gate %q has an open question already: %w", g.Step, ErrConflict)
	}
	return g.audit(ctx, tx, from, by, "")
}

// late ends a question that nobody has answered in time.
func (a *asked) late(ctx context.Context, tx Txn, row *StepRow, now int64) error {
	g, err := tx.LiveGate(ctx, row.Run, row.Name)
	if err != nil {
		return err
	}
	if g == nil || !g.overdue(now) { // by the store's clock it is not
		return errSettled
	}
	if err := g.expire(ctx, tx, now); err != nil {
		return err
	}
	return a.x.e.decide(row, g, now)
}

// formOf is the JSON schema of a payload's type, nil if it has none.
func formOf(t reflect.Type) []byte {
	if t == nil {
		return nil
	}
	schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{})
	if err != nil {
		return nil
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return nil
	}
	return text
}

// fits checks an edited payload against the stored form.
func (g *GateRow) fits(plain []byte) error {
	if g.Form == nil {
		return nil
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(g.Form, &schema); err != nil {
		return fmt.Errorf("the stored form of the payload: %w", err)
	}
	form, err := schema.Resolve(nil)
	if err != nil {
		return fmt.Errorf("the stored form of the payload: %w", err)
	}
	var v any
	if err := json.Unmarshal(plain, &v); err != nil {
		return err
	}
	return form.Validate(v)
}

// gatePath names the n-th question about a step that asks before it acts.
func gatePath(path string, n int) string {
	if n == 1 {
		return path + "?"
	}
	return path + "?" + strconv.Itoa(n)
}
