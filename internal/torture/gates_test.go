//go:build unix

package torture_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/pawlrun/pawl"
)

// Gates: verbs whose act needs a person's yes, and the people who decide.

// isGated reports whether a verb acts only under an approval.
func isGated(verb string) bool {
	switch verb {
	case "gonce", "gkeyed", "gtx", "gwrong", "askonce", "askkeyed":
		return true
	}
	return false
}

// askedAt is the payload that the verb at a place asks about. It differs from place to place: what was rejected once is not
// asked about again in the same run.
func askedAt(i int, last string) string { return fmt.Sprintf("%d:%s", i, last) }

// wrongly is what "gwrong" adds to what was approved.
const wrongly = "!"

// gated asks a person, and acts. Nothing comes of it for the next step, whether it was done or not.
func (w *world) gated(run *pawl.Run, verb, asked string) error {
	if strings.HasPrefix(verb, "ask") {
		return undenied(w.act(run, verb, asked, pawl.AskFirst(terms(verb)...)))
	}
	ok, err := pawl.Approve(run, "ok", asked, terms(verb)...)
	if err != nil {
		return undenied(err)
	}
	in := ok.Payload
	if verb == "gwrong" {
		in += wrongly
	}
	return undenied(w.act(run, verb, in, pawl.Under(ok)))
}

// undenied takes a no for an answer.
func undenied(err error) error {
	if _, no := errors.AsType[*pawl.Denied](err); no {
		return nil
	}
	return err
}

// terms of the questions: some wait as long as it takes, some are denied by time, some approvals are good for a while.
func terms(verb string) []pawl.ApproveOption {
	switch verb {
	case "gonce":
		return []pawl.ApproveOption{pawl.Expires(3 * lease), pawl.GrantTTL(lease)}
	case "gkeyed":
		return []pawl.ApproveOption{pawl.TwoPersons("staff")}
	case "gtx":
		return []pawl.ApproveOption{pawl.Expires(4 * lease)}
	case "askonce":
		return []pawl.ApproveOption{pawl.Expires(3 * lease), pawl.GrantTTL(2 * lease)}
	case "askkeyed":
		return []pawl.ApproveOption{pawl.Deciders("mia", "ben")}
	}
	return nil
}

// act is the step behind a gate.
func (w *world) act(run *pawl.Run, verb, in string, gate pawl.StepOption) (err error) {
	switch kindOf(verb) {
	case "Tx":
		_, err = pawl.Tx(run, verb, in, insert, policy, gate)
	case "Once":
		_, err = pawl.Once(run, verb, in, w.once, pawl.Timeout(timeout), pawl.Settle(settling), policy, gate)
	default:
		_, err = pawl.Keyed(run, verb, in, w.keyed, pawl.Timeout(timeout), policy, gate)
	}
	return err
}

// saying is one thing that a person says to a gate.
type saying struct {
	gate   pawl.EntryID
	choice pawl.Choice
	next   pawl.EntryID // the gate that was returned
}

// sayings are what people have said to gates. What counts is what the engine says it has heard; but an approval may also count
// though no answer came.
type sayings struct {
	mu    sync.Mutex // guards all
	left  map[pawl.EntryID]bool
	yes   map[pawl.RunID]map[string]bool // payloads that somebody has said yes to, or has tried to
	heard []saying
	runs  []pawl.RunID                  // that have asked
	past  map[pawl.EntryID]pawl.GateRow // gates in a final state, as they were first seen
	cards int
}

func newSayings() *sayings {
	return &sayings{left: map[pawl.EntryID]bool{}, yes: map[pawl.RunID]map[string]bool{}, past: map[pawl.EntryID]pawl.GateRow{}}
}

// isLeft reports whether nobody wants to decide on a gate.
func (s *sayings) isLeft(id pawl.EntryID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[id]
}

// approves notes that somebody is about to say yes to a payload.
func (s *sayings) approves(run pawl.RunID, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.yes[run] == nil {
		s.yes[run] = map[string]bool{}
		s.runs = append(s.runs, run)
	}
	s.yes[run][text(payload)] = true
}

// card is a key for a decision on a card that is shown once.
func (s *sayings) card() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cards++
	return fmt.Sprint("card-", s.cards)
}

// text is the string that a payload is.
func text(payload []byte) (s string) {
	if json.Unmarshal(payload, &s) != nil {
		return string(payload)
	}
	return s
}

// decide looks at a gate and decides. mood says how.
func (p *person) decide(ctx context.Context, id pawl.EntryID, mood int) {
	g, err := p.control.Gate(ctx, id)
	if err != nil || g.State != string(pawl.GatePending) {
		return
	}
	who := "mia"
	if g.EditedBy == who {
		who = "ben"
	}
	yes := pawl.Decision{Gate: id, Choice: pawl.AnswerApprove, Hash: g.Hash[:12], By: who, Key: p.gates.card()}
	no := pawl.Decision{Gate: id, Choice: pawl.AnswerReject, By: "ben", Reason: "not today", Key: p.gates.card()}
	edit := pawl.Decision{Gate: id, Choice: pawl.AnswerEdit, By: "mia", Key: p.gates.card()}
	edit.Payload, _ = json.Marshal(text(g.Payload) + "+" + edit.Key) // a string always encodes
	switch {
	case mood < 8:
		wrong := yes
		wrong.Hash = strings.Repeat("0", 12)
		if _, err := p.control.Decide(ctx, wrong); err == nil {
			p.violate(g.Run, "gate %s was approved under a hash that is not its own", id)
		}
		p.say(ctx, g, yes)
	case mood < 16: // two at once, of whom one is heard
		p.atOnce(func() { p.say(ctx, g, yes) }, func() { p.say(ctx, g, no) })
	case mood < 26:
		p.say(ctx, g, no)
	case mood < 40 && g.EditedBy == "":
		p.twice(ctx, g, edit)
	case mood < 46 && g.EditedBy == "":
		edit.Choice = pawl.AnswerEditAndApprove
		if next, err := p.control.Edited(ctx, edit); err == nil {
			edit.Hash = next.Hash
			p.twice(ctx, g, edit)
		}
	case mood < 56:
		if p.say(ctx, g, yes) != nil {
			p.say(ctx, g, pawl.Decision{Gate: id, Choice: pawl.AnswerRevoke, By: "ben", Reason: "on second thoughts"})
		}
	case mood < 66 && !g.Expires.IsZero():
		p.gates.mu.Lock()
		p.gates.left[id] = true
		p.gates.mu.Unlock()
		p.ledger.left.Add(1)
	case mood < 80:
		p.twice(ctx, g, yes)
	default:
		p.say(ctx, g, yes)
	}
}

func (p *person) atOnce(all ...func()) {
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(f)
	}
	wg.Wait()
}

// twice is a double click.
func (p *person) twice(ctx context.Context, g *pawl.GateInfo, d pawl.Decision) {
	var got [2]*pawl.GateInfo
	var refused [2]bool
	p.atOnce(func() { got[0], refused[0] = p.tell(ctx, g, d) }, func() { got[1], refused[1] = p.tell(ctx, g, d) })
	if edits := d.Choice != pawl.AnswerApprove; edits && (got[0] != nil && refused[1] || got[1] != nil && refused[0]) {
		p.violate(g.Run, "%s of gate %s, said twice, was heard once and refused once", d.Choice, g.ID)
	}
	if a, b := got[0], got[1]; a != nil && b != nil && (a.ID != b.ID || a.By != b.By && a.By != "" && b.By != "" || a.Generation != b.Generation) {
		p.violate(g.Run, "%s of gate %s, said twice, has made gates %s (generation %d) and %s (%d)", d.Choice, g.ID, a.ID, a.Generation, b.ID, b.Generation)
	}
}

// say sends a decision and notes it; nil if it was not heard, or nobody knows.
func (p *person) say(ctx context.Context, g *pawl.GateInfo, d pawl.Decision) *pawl.GateInfo {
	got, _ := p.tell(ctx, g, d)
	return got
}

// tell is say; it also reports whether the decision was refused.
func (p *person) tell(ctx context.Context, g *pawl.GateInfo, d pawl.Decision) (_ *pawl.GateInfo, refused bool) {
	switch d.Choice {
	case pawl.AnswerApprove:
		p.gates.approves(g.Run, g.Payload)
	case pawl.AnswerEditAndApprove:
		p.gates.approves(g.Run, d.Payload)
	default:
	}
	got, err := p.control.Decide(ctx, d)
	switch {
	case err == nil:
		p.ledger.decisions.Add(1)
	case errors.Is(err, pawl.ErrConflict), errors.Is(err, pawl.ErrStale), errors.Is(err, pawl.ErrExpired), errors.Is(err, pawl.ErrNotAllowed):
		p.ledger.decidedLate.Add(1)
		return nil, true
	default: // the database is away, or its answer was lost
		return nil, false
	}
	p.gates.mu.Lock()
	defer p.gates.mu.Unlock()
	p.gates.heard = append(p.gates.heard, saying{d.Gate, d.Choice, got.ID})
	return got, false
}

// recheck looks whether gates that are decided for good are still what they were (A5).
func (p *person) recheck(ctx context.Context) {
	p.gates.mu.Lock()
	var run pawl.RunID
	if n := len(p.gates.runs); n > 0 {
		run = p.gates.runs[p.rnd.IntN(n)]
	}
	p.gates.mu.Unlock()
	if run == "" {
		return
	}
	gates, err := p.gatesOf(ctx, run)
	if err != nil {
		return
	}
	p.gates.mu.Lock()
	defer p.gates.mu.Unlock()
	for i := range gates {
		p.compareGate(&gates[i])
	}
}

// compareGate compares a gate with what it was when it was first seen in a final state. p.gates is locked.
func (p *person) compareGate(g *pawl.GateRow) {
	was, final := p.gates.past[g.ID]
	if final && (was.State != g.State || was.Rev != g.Rev || was.By != g.By || was.Ref != g.Ref || was.Decided != g.Decided) {
		p.violate(g.Run, "gate %s of step %q was %s by %s, for good, and is %s by %s", g.ID, g.Step, was.State, was.By, g.State, g.By)
	}
	if g.State.Final() && !final {
		p.gates.past[g.ID] = *g
	}
}

func (r *rig) gatesOf(ctx context.Context, run pawl.RunID) (gates []pawl.GateRow, err error) {
	err = r.store.View(ctx, func(ctx context.Context, tx pawl.Txn) error {
		if gates, err = tx.Gates(ctx, run); err != nil {
			return err
		}
		for i := range gates { // the list has no payloads
			g, err := tx.Gate(ctx, gates[i].ID)
			if err != nil {
				return err
			}
			gates[i] = *g
		}
		return nil
	})
	return gates, err
}
