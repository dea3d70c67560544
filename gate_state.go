package pawl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/payload"
)

// GateState is where an approval gate stands, as stored. From [GateClaimed] on, the rest is read off the step that acts
// under the gate, see [GateInfo].
type GateState string

// The states of a gate.
const (
	GatePending     GateState = "pending"     // a person is asked
	GateApproved    GateState = "approved"    // may be acted under, once
	GateClaimed     GateState = "claimed"     // a step acts, or has acted, under it
	GateRejected    GateState = "rejected"    // no
	GateExpired     GateState = "expired"     // nobody answered in time, or the approval was not used in time
	GateCancelled   GateState = "cancelled"   // the run was cancelled, or ended
	GateSuperseded  GateState = "superseded"  // edited: the next generation is asked about
	GateRevoked     GateState = "revoked"     // approved, and taken back before it was used
	GateInvalidated GateState = "invalidated" // what was to be done was not what was approved
)

// gateMoves is the transition table of gates. What it does not list cannot be written.
var gateMoves = map[GateState][]GateState{
	GatePending:     {GateApproved, GateRejected, GateExpired, GateCancelled, GateSuperseded},
	GateApproved:    {GateClaimed, GateExpired, GateCancelled, GateRevoked, GateInvalidated},
	GateClaimed:     nil,
	GateRejected:    nil,
	GateExpired:     nil,
	GateCancelled:   nil,
	GateSuperseded:  nil,
	GateRevoked:     nil,
	GateInvalidated: nil,
}

// GateStates lists all states in the order a gate meets them.
func GateStates() []GateState {
	return []GateState{GatePending, GateApproved, GateClaimed, GateRejected, GateExpired, GateCancelled, GateSuperseded, GateRevoked,
		GateInvalidated}
}

// Final reports whether the stored state never changes any more.
func (s GateState) Final() bool { return len(gateMoves[s]) == 0 }

// CanBecome reports whether the transition table has the move from s to next.
func (s GateState) CanBecome(next GateState) bool { return slices.Contains(gateMoves[s], next) }

// GateRow is one generation of a gate as stored. What is above State never changes.
type GateRow struct {
	ID         EntryID // also of its inbox entry
	Run        RunID
	Lineage    RunID
	Step       string // of the wait
	Generation int    // from 1, over the whole lineage
	Supersedes EntryID
	Version    string // of the workflow that asked
	Action     string // the name of what is approved
	Kind       Kind   // of the step that will act; 0 if it was not known
	Key        OpKey  // of that step
	Payload    []byte // as sealed: what is approved, and what will be done
	Form       []byte // JSON schema of the payload; nil if its type has none
	Hash       []byte // of all that was shown
	Same       []byte // of action, kind and payload alone
	Requested  int64
	Expires    int64 // 0 never
	GrantTTL   int64 // how long the approval may stay unused, in microseconds; 0 for ever
	Deciders   []string
	TwoPersons bool
	Requester  string
	EditedBy   string

	State        GateState
	Rev          int64 // grows with each transition
	By           string
	Via          string
	Why          string
	Decided      int64
	DecisionKey  string
	GrantExpires int64
	ClaimedBy    WorkerID
	Claimed      int64
	Ref          string // the step that acts under it
}

// Resolve replaces the row's relative times.
func (g *GateRow) Resolve(now int64) { resolve(now, &g.Expires) }

// live reports whether the gate may still lead to an effect that has not begun.
func (g *GateRow) live() bool { return g.State == GatePending || g.State == GateApproved }

// overdue reports whether its time is over, of the question or of an approval that nobody has used.
func (g *GateRow) overdue(now int64) bool {
	switch g.State {
	case GatePending:
		return g.Expires > 0 && now >= g.Expires
	case GateApproved:
		return g.GrantExpires > 0 && now >= g.GrantExpires
	default:
		return false
	}
}

// hashOf is the hash of all that a decision is about, with args as its arguments.
func (g *GateRow) hashOf(args []byte) []byte {
	return digestOf(struct {
		Job, Step  string
		Generation int
		Action     string
		Kind       string
		Key        OpKey
		Version    string
		Arguments  json.RawMessage
	}{string(g.Lineage), g.Step, g.Generation, g.Action, g.kindName(), g.Key, g.Version, args})
}

// sameOf is the hash by which a question is known that was answered before.
func (g *GateRow) sameOf(args []byte) []byte {
	return digestOf(struct {
		Action    string
		Kind      string
		Arguments json.RawMessage
	}{g.Action, g.kindName(), args})
}

// kindName is "" where the step that will act is not known.
func (g *GateRow) kindName() string {
	if g.Kind == 0 {
		return ""
	}
	return g.Kind.String()
}

func digestOf(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // unreachable unless the arguments are no JSON, which has been checked
		text = fmt.Append(nil, err)
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

// spelled is the one spelling of a JSON text: without space, members sorted, nothing left out.
func spelled(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("more than one JSON value")
	}
	return json.Marshal(v)
}

// moved writes the gate's new state, guarded by the rev it was read at, with its act. Whoever calls it has the run's lock, so
// the guard holds unless something is wrong.
func (g *GateRow) moved(ctx context.Context, tx Txn, to GateState, by, why string) error {
	from := g.State
	if !from.CanBecome(to) {
		return fmt.Errorf("gate %s is %s and cannot become %s: %w", g.ID, from, to, ErrConflict)
	}
	g.State = to
	ok, err := tx.MoveGate(ctx, g)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("gate %s changed under the run's lock: %w", g.ID, ErrConflict)
	}
	return g.audit(ctx, tx, string(from), by, why)
}

// actGate is the act of every transition. Its detail is read by machines too: a gate's acts alone give its state.
const actGate = "gate"

// audit records a transition to the gate's state.
func (g *GateRow) audit(ctx context.Context, tx Txn, from, by, why string) error {
	detail := fmt.Sprintf("%s -> %s rev=%d generation=%d hash=%s", from, g.State, g.Rev, g.Generation, hex.EncodeToString(g.Hash))
	if g.Via != "" {
		detail += " via=" + g.Via
	}
	if g.Ref != "" {
		detail += " step=" + g.Ref
	}
	return tx.AddAudit(ctx, &AuditRow{Act: actGate, By: by, Why: payload.Clean(why, 1000), Run: g.Run, Step: g.Step, Entry: g.ID, Detail: detail})
}

// closeEntry takes the gate's question out of the inbox.
func (g *GateRow) closeEntry(ctx context.Context, tx Txn, c Choice) error {
	_, err := tx.CloseEntry(ctx, &EntryRow{ID: g.ID, Choice: c, By: g.By, Why: g.Why})
	return err
}

// expire ends a gate whose time is over, by itself.
func (g *GateRow) expire(ctx context.Context, tx Txn, now int64) error {
	asked := g.State == GatePending
	why := "the approval was not used in time"
	if asked {
		why = "nobody decided in time"
		g.By, g.Why, g.Decided = "pawl", why, now
	}
	if err := g.moved(ctx, tx, GateExpired, "pawl", why); err != nil || !asked {
		return err
	}
	return g.closeEntry(ctx, tx, AnswerExpire)
}

// closeGates cancels what a run has asked and what it was allowed and has not begun.
func closeGates(ctx context.Context, tx Txn, run *RunRow, why fault.Reason, now int64) error {
	gates, err := tx.Gates(ctx, run.ID)
	if err != nil {
		return err
	}
	for i := range gates {
		g := &gates[i]
		if !g.live() {
			continue
		}
		if g.State == GatePending {
			row, err := tx.Step(ctx, run.ID, g.Step)
			if err != nil {
				return err
			}
			if row != nil && row.State == StepWaiting {
				if err := closeWait(ctx, tx, row, why, now); err != nil {
					return err
				}
			}
		}
		if err := g.cancel(ctx, tx, cmpOr(run.CancelBy, "pawl"), cmpOr(run.CancelWhy, string(why)), now); err != nil {
			return err
		}
	}
	return nil
}

// cancel ends a gate that is pending, or approved and not used.
func (g *GateRow) cancel(ctx context.Context, tx Txn, by, why string, now int64) error {
	asked := g.State == GatePending
	if asked {
		g.By, g.Why, g.Decided = by, why, now
	}
	if err := g.moved(ctx, tx, GateCancelled, by, why); err != nil || !asked {
		return err
	}
	return g.closeEntry(ctx, tx, AnswerCancel)
}

// dropGate cancels the gate of a wait that has been closed.
func dropGate(ctx context.Context, tx Txn, row *StepRow, why fault.Reason, now int64) error {
	g, err := tx.LiveGate(ctx, row.Run, row.Name)
	if err != nil || g == nil {
		return err
	}
	return g.cancel(ctx, tx, "pawl", string(why), now)
}

// says tells in one sentence what has become of the gate, for whoever comes late.
func (g *GateRow) says() string {
	when := func(us int64) string { return micros(us).Format(time.RFC3339) }
	switch g.State {
	case GateApproved, GateClaimed:
		text := fmt.Sprintf("%s approved it at %s", g.By, when(g.Decided))
		if g.State == GateClaimed {
			text += fmt.Sprintf(", and step %q began to act under it at %s", g.Ref, when(g.Claimed))
		}
		return text
	case GateSuperseded:
		return fmt.Sprintf("%s edited it at %s", g.By, when(g.Decided))
	case GateExpired:
		if g.GrantExpires > 0 {
			return fmt.Sprintf("%s approved it at %s, and the approval expired at %s", g.By, when(g.Decided), when(g.GrantExpires))
		}
		return "it expired at " + when(g.Expires)
	case GatePending, GateRejected, GateCancelled, GateRevoked, GateInvalidated:
	}
	return fmt.Sprintf("it is %s, by %s at %s", g.State, cmpOr(g.By, "nobody"), when(g.Decided))
}

// verdict is what a gate's wait has as its result, and a denied step beside its fault.
type verdict struct {
	Gate    EntryID         `json:"gate"`
	State   GateState       `json:"state"`
	By      string          `json:"by,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	At      time.Time       `json:"at,omitzero"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// gateReasons say why a step was denied, by the state that its gate was in.
var gateReasons = map[GateState]fault.Reason{
	GateRejected:    fault.ReasonGateRejected,
	GateExpired:     fault.ReasonGateExpired,
	GateRevoked:     fault.ReasonGateRevoked,
	GateInvalidated: fault.ReasonGateInvalidated,
	GateClaimed:     fault.ReasonGateUsed,
}

// decide gives a row the end that the gate has, as a result or as a denial.
func (e *Engine) decide(row *StepRow, g *GateRow, now int64) error {
	v := verdict{Gate: g.ID, State: g.State, By: g.By, Reason: g.Why, At: micros(g.Decided)}
	if g.State == GateApproved {
		plain, err := e.open(g.Payload)
		if err != nil {
			return err
		}
		v.Payload = plain
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	row.Ended, row.NextAt = now, 0
	if g.State == GateApproved {
		row.State = StepSucceeded
	} else {
		row.State, row.Fault = StepFailed, g.denial()
	}
	row.Value, err = e.cover(text)
	row.ValueSize = len(row.Value)
	return err
}

// denial is the fault of a step that was not done because of the gate.
func (g *GateRow) denial() *fault.Fault {
	f := &fault.Fault{Class: fault.AccessDenied, Reason: gateReasons[g.State], Outcome: fault.OutcomeNotSent, Message: payload.Clean(g.says(), 500)}
	if g.State == GateCancelled || f.Reason == "" {
		f.Class, f.Reason = fault.Canceled, fault.ReasonRunCanceled
	}
	if g.Why != "" && g.State != GateExpired {
		f.Message += ": " + g.Why
	}
	return f
}

// Denied is the error of [Approve], and of a step under a gate, if a person said no, or nobody said yes in time. It is the
// same after a restart. It wraps an *[Error], so a body that returns it fails the run with its reason.
type Denied struct {
	State  string // "rejected"; "expired": unanswered, or not used in time; "revoked"
	By     string // who decided; "pawl" where time did
	Reason string
	err    *Error
}

// Error says who denied what.
func (d *Denied) Error() string { return d.err.Error() }

// Unwrap gives the stored error.
func (d *Denied) Unwrap() error { return d.err }

// failure is the error that a body gets for a row that ended without a result.
func (b *branch) failure(row *StepRow) error {
	x := b.x
	err := row.stored()
	se, ok := errors.AsType[*Error](err)
	if !ok || row.ValueSize == 0 || row.State != StepFailed || !isDenial(se.Fault.Reason) {
		return err
	}
	value := row.Value
	if value == nil {
		full, err := x.full(row.Name)
		if err != nil {
			x.logger().Error("stored decision could not be read", "step", row.Name, "err", err)
			return b.later()
		}
		value = full.Value
	}
	var v verdict
	text, oerr := b.opened(row.Name, value)
	if oerr == nil {
		oerr = json.Unmarshal(text, &v)
	}
	if oerr != nil {
		return oerr
	}
	return &Denied{State: string(v.State), By: v.By, Reason: v.Reason, err: se}
}

func isDenial(r fault.Reason) bool {
	for _, reason := range gateReasons {
		if r == reason {
			return true
		}
	}
	return false
}
