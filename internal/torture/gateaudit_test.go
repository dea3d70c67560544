//go:build unix

package torture_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pawlrun/pawl"
)

// allGates is what the tables say of gates, in all runs.
type allGates struct {
	of    map[pawl.RunID][]pawl.GateRow
	byID  map[pawl.EntryID]*pawl.GateRow
	moves map[pawl.EntryID][]string // by the acts: "pending -> approved"
	ids   []pawl.EntryID
}

// gates checks A1 to A9 of the approvals, as far as tables, effects and what people know to have said can show them: each act
// has one approval in force, which a person gave to exactly that.
func (a *audit) gates(ctx context.Context, p *person) error {
	all := &allGates{of: map[pawl.RunID][]pawl.GateRow{}, byID: map[pawl.EntryID]*pawl.GateRow{}, moves: map[pawl.EntryID][]string{}}
	for _, d := range a.runs {
		gates, err := a.gatesOf(ctx, d.ID)
		if err != nil {
			return err
		}
		all.of[d.ID] = gates
		for i := range gates {
			all.byID[gates[i].ID] = &gates[i]
			all.ids = append(all.ids, gates[i].ID)
			a.gateStates[gates[i].State]++
		}
		a.replay(d, all)
	}
	p.gates.mu.Lock()
	defer p.gates.mu.Unlock()
	for _, d := range a.runs {
		gates := all.of[d.ID]
		for i := range gates {
			p.compareGate(&gates[i])
			a.gate(d, &gates[i], p.gates)
		}
	}
	for _, o := range a.effects.ops() {
		if isGated(verbOf(o.Step)) {
			for _, e := range a.effects.of(o) {
				a.permitted(&e, all.of[e.Run], p.gates)
			}
		}
	}
	a.permittedRows(all)
	a.heard(all, p.gates.heard)
	return nil
}

// move is an act that moved a gate.
type move struct {
	gate     pawl.EntryID
	from, to string
	rev      int
	by       string
}

// replay rebuilds the gates of a run from its acts alone, in the order of their revs, and compares (A9). Acts are listed by the
// store's clock, which may have been set back.
func (a *audit) replay(d *pawl.RunDetail, all *allGates) {
	var moves []move
	for _, act := range d.Audit {
		if act.Act != "gate" {
			continue
		}
		m := move{gate: act.Entry, by: act.By}
		if n, err := fmt.Sscanf(act.Detail, "%s -> %s rev=%d", &m.from, &m.to, &m.rev); err != nil || n != 3 {
			a.violate(d.ID, "the act %q cannot be read: %v", act.Detail, err)
		}
		moves = append(moves, m)
	}
	slices.SortStableFunc(moves, func(x, y move) int { return cmp.Compare(x.rev, y.rev) })
	rebuilt, revs := map[pawl.EntryID]string{}, map[pawl.EntryID]int{}
	for _, m := range moves {
		was, known := rebuilt[m.gate]
		if !known {
			was = "none"
		}
		if m.from != was || m.rev != revs[m.gate]+1 || m.by == "" {
			a.violate(d.ID, "an act moves gate %s from %s to %s at rev %d, and it was %s at %d", m.gate, m.from, m.to, m.rev, was, revs[m.gate])
		}
		rebuilt[m.gate], revs[m.gate] = m.to, m.rev
		all.moves[m.gate] = append(all.moves[m.gate], m.from+" -> "+m.to)
	}
	for _, g := range all.of[d.ID] {
		if rebuilt[g.ID] != string(g.State) || int64(revs[g.ID]) != g.Rev {
			a.violate(d.ID, "the acts say gate %s is %s at rev %d, it is %s at %d", g.ID, rebuilt[g.ID], revs[g.ID], g.State, g.Rev)
		}
		delete(rebuilt, g.ID)
	}
	for id := range rebuilt {
		a.violate(d.ID, "acts tell of gate %s, which is not there", id)
	}
}

// gate checks one gate of a finished run against the journal (A4), and that a person said yes to what was approved.
func (a *audit) gate(d *pawl.RunDetail, g *pawl.GateRow, said *sayings) {
	payload := text(g.Payload)
	if !g.State.Final() {
		a.violate(d.ID, "gate %s of step %q is still %s", g.ID, g.Step, g.State)
	}
	want := askedAt(index(g.Step), a.before(place{d.Lineage, index(g.Step)}))
	if again := verbOf(g.Step) == "gwrong?"; g.EditedBy == "" && payload != want && !(again && strings.HasPrefix(payload, want)) {
		a.violate(d.ID, "gate %s of step %q asks about %q, and the step before makes it %q", g.ID, g.Step, payload, want)
	}
	if g.State == pawl.GateClaimed && !said.yes[d.ID][payload] {
		a.violate(d.ID, "step %q has acted under gate %s on %q, to which nobody has said yes", g.Ref, g.ID, payload)
	}
	if a.parts.clock {
		// what follows compares times that were taken before and after the clock was set
	} else if g.Claimed > 0 && g.GrantExpires > 0 && g.Claimed >= g.GrantExpires {
		a.violate(d.ID, "step %q has used the approval %s at %d, which had expired at %d", g.Ref, g.ID, g.Claimed, g.GrantExpires)
	} else if g.Expires > 0 && g.GrantExpires > 0 && g.Decided >= g.Expires {
		a.violate(d.ID, "gate %s was approved at %d, after it had expired at %d", g.ID, g.Decided, g.Expires)
	}
	i := slices.IndexFunc(d.Steps, func(st pawl.StepDetail) bool { return st.Name == g.Ref })
	if g.State == pawl.GateClaimed && (i < 0 || d.Steps[i].Attempt < 1 || d.Steps[i].Reused != "") {
		a.violate(d.ID, "gate %s is used by step %q, which has not begun in this run", g.ID, g.Ref)
	}
	if g.State != pawl.GateClaimed && g.Ref != "" {
		a.violate(d.ID, "gate %s is %s, and step %q acts under it", g.ID, g.State, g.Ref)
	}
}

// permitted: an effect has one approval in force, of exactly this, claimed before it (A2, A3, A6, A7).
func (a *audit) permitted(e *effect, gates []pawl.GateRow, said *sayings) {
	n := 0
	for i := range gates {
		if g := &gates[i]; g.State == pawl.GateClaimed && g.Ref == e.Step {
			if n++; text(g.Payload) != e.Input {
				a.violate(e.Run, "step %q has acted on %q, and %q was approved", e.Step, e.Input, text(g.Payload))
			}
			if !a.parts.clock && e.At.UnixMicro() < g.Claimed {
				a.violate(e.Run, "step %q has acted at %d, before it had the approval at %d", e.Step, e.At.UnixMicro(), g.Claimed)
			}
		}
	}
	if n != 1 {
		a.violate(e.Run, "step %q has acted on %q under %d approvals", e.Step, e.Input, n)
	}
	if !said.yes[e.Run][e.Input] {
		a.violate(e.Run, "step %q has acted on %q, to which nobody has said yes", e.Step, e.Input)
	}
}

// permittedRows is permitted for transactions, which write no run.
func (a *audit) permittedRows(all *allGates) {
	for o, rows := range a.rows {
		if !isGated(verbOf(o.Step)) {
			continue
		}
		n := 0
		for _, d := range a.runs {
			for _, g := range all.of[d.ID] {
				if d.Lineage == o.Lineage && g.State == pawl.GateClaimed && g.Ref == o.Step && text(g.Payload) == rows[0].input {
					n++
				}
			}
		}
		if n != 1 {
			a.violate(o.Lineage, "step %q has written a row for %q under %d approvals", o.Step, rows[0].input, n)
		}
	}
}

// heard: what the engine says it has heard holds, and what excludes it does not (A8).
func (a *audit) heard(all *allGates, said []saying) {
	next := map[pawl.EntryID][]pawl.EntryID{}
	for _, id := range all.ids {
		if g := all.byID[id]; g.Supersedes != "" && g.EditedBy != "" {
			next[g.Supersedes] = append(next[g.Supersedes], id)
		}
	}
	for _, s := range said {
		g := all.byID[s.gate]
		if g == nil {
			a.violate("", "a decision on gate %s was heard, which is not there", s.gate)
			continue
		}
		var ok bool
		switch s.choice {
		case pawl.AnswerApprove:
			ok = slices.Contains(all.moves[s.gate], "pending -> approved")
		case pawl.AnswerReject:
			ok = g.State == pawl.GateRejected || g.State == pawl.GateExpired
		case pawl.AnswerRevoke:
			ok = g.State == pawl.GateRevoked || g.State == pawl.GateExpired
		default:
			ok = g.State == pawl.GateSuperseded && len(next[s.gate]) == 1 && next[s.gate][0] == s.next
		}
		if !ok {
			a.violate(g.Run, "%s of gate %s was heard (gate %s), and it is %s: %v, next %v", s.choice, s.gate, s.next, g.State, all.moves[s.gate], next[s.gate])
		}
	}
}

// gateLine is the gates' line of the table.
func (a *audit) gateLine() string {
	var states []string
	n := 0
	for _, s := range pawl.GateStates() {
		if k := a.gateStates[s]; k > 0 {
			states = append(states, fmt.Sprintf("%d %s", k, s))
			n += k
		}
	}
	g := &a.ledger
	return fmt.Sprintf("%s: %d gates (%s); %d decisions heard, %d too late or refused, %d left to time\n",
		a.kind, n, strings.Join(states, ", "), g.decisions.Load(), g.decidedLate.Load(), g.left.Load())
}
