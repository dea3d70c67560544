package pawl

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlrun/pawl/internal/payload"
)

// Decision is what a person says to a gate.
type Decision struct {
	Gate   EntryID // its inbox entry
	Choice Choice  // AnswerApprove, AnswerReject, AnswerEdit, AnswerEditAndApprove or AnswerRevoke
	// Hash is that of what the person was shown, or at least its first 8 digits. To approve it is required; for AnswerEditAndApprove it
	// is that of the edited gate, see [Engine.Edited]. For the other acts it is compared if it is given.
	Hash    string
	Payload []byte // JSON, for the edits
	// By is the person, as the caller has authenticated them, and Groups are what the caller knows them to be a member of.
	// Neither may come from the request itself.
	By     string
	Groups []string
	Via    string // "console", "cli", "chat"; empty means "api"
	Reason string
	// Key makes an edit that is sent twice one edit. One is made for each form that is shown; empty for none.
	Key string
}

// minHash is how many digits of a hash name what was shown.
const minHash = 8

// Decide records a person's decision on a gate and lets the run go on. It returns the gate as it is then: the next generation
// after an edit.
//
// The same decision once more, by anybody, is no error and changes nothing. Otherwise: [ErrConflict] says who decided
// something else, and when; [ErrStale] that what was shown has changed; [ErrExpired] that it is too late (for a rejection
// that is no error: nothing will be done); [ErrNotAllowed] that this person may not decide. A refusal leaves an audit row, as every
// transition does.
func (e *Engine) Decide(ctx context.Context, d Decision) (*GateInfo, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("decide %s: %w", d.Gate, err)
	}
	if err := e.plainEdit(ctx, &d); err != nil {
		return nil, fmt.Errorf("%s %s: %w", d.Choice, d.Gate, err)
	}
	j := &judge{e: e, d: &d}
	err := e.update(ctx, func(ctx context.Context, tx Txn) error {
		*j = judge{e: e, d: &d, tx: tx}
		g, err := tx.Gate(ctx, d.Gate)
		if err != nil {
			return err
		}
		if j.run, err = tx.LockRun(ctx, g.Run); err != nil {
			return err
		}
		if j.g, err = tx.Gate(ctx, d.Gate); err != nil { // as it is under the lock
			return err
		}
		if j.now, err = tx.Now(ctx); err != nil {
			return err
		}
		return j.decide(ctx)
	})
	if err == nil {
		err = j.said
	}
	if err == nil || j.wrote {
		e.changed(j.g.Run, nil)
		e.nudge()
		e.hint(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", d.Choice, d.Gate, err)
	}
	return e.Gate(ctx, j.g.ID)
}

// check refuses a decision that names nothing or nobody.
func (d *Decision) check() error {
	if err := checkName("By", d.By); err != nil {
		return err
	}
	if d.Via == "" {
		d.Via = "api"
	}
	for _, n := range []struct{ what, value string }{{"Via", d.Via}, {"Key", cmpOr(d.Key, "none")}} {
		if err := checkName(n.what, n.value); err != nil {
			return err
		}
	}
	d.Hash, d.Reason = strings.ToLower(d.Hash), payload.Clean(d.Reason, 1000)
	return d.whole()
}

// whole refuses a decision that lacks what its choice needs.
func (d *Decision) whole() error {
	edits := d.Choice == AnswerEdit || d.Choice == AnswerEditAndApprove
	switch {
	case !slices.Contains([]Choice{AnswerApprove, AnswerReject, AnswerEdit, AnswerEditAndApprove, AnswerRevoke}, d.Choice):
		return fmt.Errorf("a gate is not answered with %q: want approve, reject, edit, edit_and_approve or revoke", d.Choice)
	case (d.Choice == AnswerApprove || d.Choice == AnswerEditAndApprove) && d.Hash == "":
		return errors.New("say what was shown: Hash is required to approve")
	case d.Hash != "" && len(d.Hash) < minHash:
		return fmt.Errorf("the hash %q is short: want at least %d digits", d.Hash, minHash)
	case edits && len(d.Payload) == 0:
		return errors.New("an edit needs the new payload")
	case !edits && len(d.Payload) > 0:
		return fmt.Errorf("a payload is for edits, not to %s", d.Choice)
	}
	return nil
}

// shown reports whether the hash that was sent is that of g.
func (d *Decision) shown(g *GateRow) bool {
	return strings.HasPrefix(hex.EncodeToString(g.Hash), d.Hash)
}

// plainEdit gives an edited payload the spelling of the payload's type. Only a process that has the workflow knows the type; any
// other has the stored form.
func (e *Engine) plainEdit(ctx context.Context, d *Decision) error {
	if d.Choice != AnswerEdit && d.Choice != AnswerEditAndApprove {
		return nil
	}
	dry := &dryRun{result: d.Payload}
	err := e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		g, err := tx.Gate(ctx, d.Gate)
		if err != nil {
			return err
		}
		if d.Payload, err = spelled(d.Payload); err != nil {
			return fmt.Errorf("the payload is not JSON: %w", err)
		}
		if err := g.fits(d.Payload); err != nil {
			return fmt.Errorf("the payload does not fit what is asked: %w", err)
		}
		dry.result, dry.settles = d.Payload, g.Step
		return e.dryUpTo(ctx, tx, g.Run, dry)
	})
	switch {
	case err != nil:
		return err
	case dry.wrong != nil:
		return fmt.Errorf("the payload does not fit what is asked: %w", dry.wrong)
	case dry.fits == nil:
		return nil
	}
	plain, err := encode(dry.fits)
	if err == nil {
		d.Payload, err = spelled(plain)
	}
	return err
}

// judge applies one decision to a gate, under the run's lock.
type judge struct {
	e     *Engine
	d     *Decision
	tx    Txn
	run   *RunRow
	g     *GateRow // at the end the one to show
	now   int64
	said  error // a refusal, which is committed
	wrote bool  // the gate has changed
}

func (j *judge) decide(ctx context.Context) error {
	if j.g.overdue(j.now) {
		if err := j.expire(ctx); err != nil {
			return err
		}
	}
	again, refusal := j.weigh(ctx)
	if again {
		return nil
	}
	if refusal != nil {
		j.said = refusal
		return j.tx.AddAudit(ctx, &AuditRow{Act: "gate refused", By: j.d.By, Why: j.d.Reason, Run: j.g.Run, Step: j.g.Step, Entry: j.g.ID,
			Detail: payload.Clean(fmt.Sprintf("%s: %v", j.d.Choice, refusal), 1000)})
	}
	j.wrote = true
	switch j.d.Choice {
	case AnswerApprove:
		return j.approve(ctx)
	case AnswerReject:
		return j.reject(ctx)
	case AnswerRevoke:
		j.g.By, j.g.Via, j.g.Why, j.g.Decided = j.d.By, j.d.Via, j.d.Reason, j.now
		return j.g.moved(ctx, j.tx, GateRevoked, j.d.By, j.d.Reason)
	default:
		return j.edit(ctx)
	}
}

// expire ends a gate whose time is over, which nobody has noticed yet.
func (j *judge) expire(ctx context.Context) error {
	asked := j.g.State == GatePending
	j.wrote = true
	if err := j.g.expire(ctx, j.tx, j.now); err != nil || !asked {
		return err
	}
	return j.settle(ctx)
}

// weigh says whether the decision is one that has been made already, or why it cannot be.
func (j *judge) weigh(ctx context.Context) (again bool, refusal error) {
	g, d := j.g, j.d
	if d.Hash != "" && d.Choice != AnswerEditAndApprove && !d.shown(g) {
		return false, fmt.Errorf("it has changed since it was shown, look again: %w", ErrStale)
	}
	if j.again(ctx) {
		return true, nil
	}
	want := GatePending
	if d.Choice == AnswerRevoke {
		want = GateApproved
	}
	if g.State != want {
		return false, j.tooLate()
	}
	if err := j.allowed(); err != nil {
		return false, err
	}
	return false, j.intact()
}

// again reports whether the decision has been made already.
func (j *judge) again(ctx context.Context) (again bool) {
	switch g := j.g; j.d.Choice {
	case AnswerApprove:
		again = g.State == GateApproved || g.State == GateClaimed || g.State == GateInvalidated
	case AnswerReject:
		again = g.State == GateRejected || g.State == GateExpired
	case AnswerRevoke:
		again = g.State == GateRevoked || g.State == GateExpired
	case AnswerEdit, AnswerEditAndApprove:
		again = j.edited(ctx)
	default: // check has refused it
	}
	return again
}

// tooLate says why a gate in this state takes no such decision.
func (j *judge) tooLate() error {
	switch j.g.State {
	case GatePending:
		return fmt.Errorf("nobody has approved it: reject it instead: %w", ErrConflict)
	case GateExpired:
		return fmt.Errorf("%w: %s", ErrExpired, j.g.says())
	case GateSuperseded:
		return fmt.Errorf("%s, look again: %w", j.g.says(), ErrStale)
	default:
		return fmt.Errorf("%s: %w", j.g.says(), ErrConflict)
	}
}

// allowed says whether this person may decide.
func (j *judge) allowed() error {
	g, d := j.g, j.d
	ok := len(g.Deciders) == 0
	for _, name := range append([]string{d.By}, d.Groups...) {
		ok = ok || slices.Contains(g.Deciders, name)
	}
	switch {
	case !ok:
		return fmt.Errorf("%w: it is for %q, not for %s", ErrNotAllowed, g.Deciders, d.By)
	case !g.TwoPersons:
		return nil
	case d.Choice == AnswerEditAndApprove:
		return fmt.Errorf("%w: two persons are demanded, so %s may edit it and somebody else approves", ErrNotAllowed, d.By)
	case d.Choice == AnswerApprove && (d.By == g.EditedBy || d.By == g.Requester):
		return fmt.Errorf("%w: two persons are demanded, and %s has asked for it or edited it", ErrNotAllowed, d.By)
	}
	return nil
}

// intact says whether what is stored is what the hash is of.
func (j *judge) intact() error {
	plain, err := j.e.open(j.g.Payload)
	switch {
	case err != nil:
		return fmt.Errorf("the payload cannot be opened here: %w", err)
	case !slices.Equal(j.g.hashOf(plain), j.g.Hash):
		return errors.New("the stored payload is not the one that was asked about: reject it")
	case (j.d.Choice == AnswerEdit || j.d.Choice == AnswerEditAndApprove) && string(plain) == string(j.d.Payload):
		return errors.New("the payload is the same: approve it instead")
	}
	if j.d.Choice == AnswerEditAndApprove {
		if next, err := j.e.successor(j.g, j.d); err != nil {
			return err
		} else if !j.d.shown(next) {
			return fmt.Errorf("the hash is not that of the edited payload, look again: %w", ErrStale)
		}
	}
	return nil
}

func (j *judge) decided() {
	j.g.By, j.g.Via, j.g.Why, j.g.Decided, j.g.DecisionKey = j.d.By, j.d.Via, j.d.Reason, j.now, j.d.Key
}

func (j *judge) approve(ctx context.Context) error {
	j.decided()
	if j.g.GrantTTL > 0 {
		j.g.GrantExpires = j.now + j.g.GrantTTL
	}
	if err := j.g.moved(ctx, j.tx, GateApproved, j.d.By, j.d.Reason); err != nil {
		return err
	}
	return j.close(ctx, AnswerApprove)
}

func (j *judge) reject(ctx context.Context) error {
	j.decided()
	if err := j.g.moved(ctx, j.tx, GateRejected, j.d.By, j.d.Reason); err != nil {
		return err
	}
	return j.close(ctx, AnswerReject)
}

// close answers the question and ends the wait.
func (j *judge) close(ctx context.Context, c Choice) error {
	if err := j.g.closeEntry(ctx, j.tx, c); err != nil {
		return err
	}
	return j.settle(ctx)
}

// settle ends the wait as the gate has ended, and wakes the run.
func (j *judge) settle(ctx context.Context) error {
	row, err := j.tx.Step(ctx, j.g.Run, j.g.Step)
	if err != nil {
		return err
	}
	if row == nil || row.State != StepWaiting {
		return fmt.Errorf("step %q does not wait for gate %s: %w", j.g.Step, j.g.ID, ErrConflict)
	}
	if err := j.e.decide(row, j.g, j.now); err != nil {
		return err
	}
	ok, err := settleWait(ctx, j.tx, j.run, row, j.now)
	if err == nil && !ok {
		err = fmt.Errorf("step %q changed under the run's lock: %w", j.g.Step, ErrConflict)
	}
	return err
}

// successor is the next generation, with the payload of the edit.
func (e *Engine) successor(g *GateRow, d *Decision) (*GateRow, error) {
	sealed, err := e.seal(d.Payload)
	if err != nil {
		return nil, err
	}
	next := &GateRow{ID: EntryID(newRunID()), Run: g.Run, Lineage: g.Lineage, Step: g.Step, Generation: g.Generation + 1, Supersedes: g.ID,
		Version: g.Version, Action: g.Action, Kind: g.Kind, Key: g.Key, Payload: sealed, Form: g.Form, Expires: g.Expires,
		GrantTTL: g.GrantTTL, Deciders: g.Deciders, TwoPersons: g.TwoPersons, Requester: g.Requester, EditedBy: d.By, State: GatePending}
	next.Hash, next.Same = next.hashOf(d.Payload), next.sameOf(d.Payload)
	return next, nil
}

// edit replaces the question by one about the new payload, which may be approved at once.
func (j *judge) edit(ctx context.Context) error {
	next, err := j.e.successor(j.g, j.d)
	if err != nil {
		return err
	}
	j.decided()
	if err := j.g.moved(ctx, j.tx, GateSuperseded, j.d.By, j.d.Reason); err != nil {
		return err
	}
	if err := j.g.closeEntry(ctx, j.tx, AnswerEdit); err != nil {
		return err
	}
	if err := next.ask(ctx, j.tx, "none", j.d.By); err != nil {
		return err
	}
	j.g = next
	if j.d.Choice == AnswerEdit {
		return nil
	}
	return j.approve(ctx)
}

// edited finds the generation that this very edit has made already.
func (j *judge) edited(ctx context.Context) bool {
	if j.g.State != GateSuperseded || j.d.Key == "" || j.d.Key != j.g.DecisionKey {
		return false
	}
	gates, err := j.tx.Gates(ctx, j.g.Run)
	if err != nil {
		return false
	}
	i := slices.IndexFunc(gates, func(g GateRow) bool { return g.Supersedes == j.g.ID })
	if i < 0 {
		return false
	}
	j.g = &gates[i]
	return true
}
