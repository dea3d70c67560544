package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// A1-A10: at every moment of random schedules of decisions, edits, deadlines, cancels, crashes, revocations and repetitions, for
// every kind of step, with Approve and Under as with AskFirst. A failing seed is a subtest of its own.
func TestGateInvariantsAtRandom(t *testing.T) {
	for _, k := range gatedKinds {
		for _, ask := range []bool{false, true} {
			for seed := range upTo(1, 60) {
				t.Run(fmt.Sprint(k, " ask ", ask, " seed ", seed), func(t *testing.T) {
					scene(t, func(t *testing.T, s *stage) {
						p := &play{stage: s, kind: k, rng: rand.New(rand.NewPCG(uint64(seed), 1)), finals: map[pawl.EntryID]pawl.GateRow{}}
						p.run(ask)
					})
				})
			}
		}
	}
}

// play is one random schedule over one run with a gate.
type play struct {
	*stage
	kind   pawl.Kind
	rng    *rand.Rand
	w      *pawl.Workflow[payout, string]
	id     pawl.RunID
	worker *proc
	finals map[pawl.EntryID]pawl.GateRow // what must not change any more
	made   atomic.Int64                  // effects that happened
	told   int64                         // answers "it did not happen"
	calm   atomic.Bool                   // effects succeed from now on
	log    []string
}

func (p *play) run(ask bool) {
	p.table()
	opts := []pawl.ApproveOption{}
	if p.rng.IntN(2) == 0 {
		opts = append(opts, pawl.Expires(time.Duration(1+p.rng.IntN(120))*time.Second))
	}
	if p.rng.IntN(2) == 0 {
		opts = append(opts, pawl.GrantTTL(time.Duration(1+p.rng.IntN(30))*time.Second))
	}
	wrong := p.rng.IntN(4) == 0 // acts on something else than what was approved
	p.w = pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
		if ask {
			return p.pay(run, p.kind, "pay", in, pawl.AskFirst(opts...))
		}
		ok, err := pawl.Approve(run, "ok?", in, opts...)
		if err != nil {
			return "", err
		}
		if wrong {
			ok.Payload.Cents++
		}
		return p.pay(run, p.kind, "pay", ok.Payload, pawl.Under(ok))
	})
	p.on("pay", p.effect)
	p.start()
	p.id = begin(p.stage, p.w, payout{"o1", 100})
	for range 12 + p.rng.IntN(12) {
		p.step()
		p.holds()
	}
	p.settle()
}

// start lets a worker work that may die at a random point.
func (p *play) start() {
	points := []hooks.Point{hooks.Claimed, hooks.StepReached, hooks.IntentWritten, hooks.EffectBegin, hooks.EffectDone, hooks.ResultWritten,
		hooks.BodyDone, hooks.CommitSending, hooks.TxCommitting, hooks.Ended}
	point, nth := points[p.rng.IntN(len(points))], int64(1+p.rng.IntN(4))
	if p.calm.Load() || p.rng.IntN(3) == 0 {
		nth = 1 << 40
	}
	var seen atomic.Int64
	p.worker = p.spawnProc(func(w *proc, o *pawl.Options) {
		o.Build = "b1"
		o.Hooks.FlushDelay = time.Hour // no other goroutine of a dead process holds what its body waits for: that would stop the clock
		o.Hooks.At = func(at hooks.Point, _, _ string) {
			if at != point || seen.Add(1) != nth {
				return
			}
			if at == hooks.CommitSending || at == hooks.TxCommitting || at == hooks.ResultWritten { // locks are held there
				w.kill()
				return
			}
			w.die()
		}
	}, p.w)
}

// effect looks whether it may happen (A2, A3, A6, A7), and then happens, or does not, or nobody knows.
func (p *play) effect(_ context.Context, n int) (string, error) {
	p.guard.Lock()
	in := p.ins["pay"][len(p.ins["pay"])-1]
	p.guard.Unlock()
	allowed := 0
	for id, g := range p.gatesOf(p.id) {
		info := p.gate(id)
		fits := strings.Contains(string(info.Payload), fmt.Sprintf(`"Cents":%s,`, strings.TrimPrefix(in, "o1/")))
		if fits && (g.State == pawl.GateClaimed && g.Ref == "pay" || p.kind == fault.KindTx && g.State == pawl.GateApproved) {
			allowed++
		}
	}
	if allowed != 1 {
		p.t.Errorf("an effect on %s began under %d gates: %+v\n%v", in, allowed, p.gatesOf(p.id), p.log)
	}
	switch {
	case p.calm.Load() || n%3 == 0:
	case n%3 == 1 && p.rngless(n):
		return "", &fault.Fault{Class: fault.RateLimited, Outcome: fault.OutcomeRejected, Delay: time.Second}
	default:
		p.made.Add(1)
		return "", errors.New("cut off")
	}
	p.made.Add(1)
	return "done", nil
}

// rngless is a coin that needs no lock.
func (p *play) rngless(n int) bool { return (len(p.ins)+n)%2 == 0 }

// step is one random act.
func (p *play) step() {
	note := func(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }
	switch r := p.rng.IntN(20); {
	case r < 10:
		p.decideSome(note)
	case r < 14:
		d := []time.Duration{time.Millisecond, time.Second, 4 * time.Second, 40 * time.Second}[p.rng.IntN(4)]
		note("wait %v", d)
		time.Sleep(d) // bubble
	case r < 16:
		note("crash")
		p.worker.kill()
		p.start()
	case r < 19:
		p.answerSome(note)
	case p.rng.IntN(3) == 0:
		note("cancel")
		if _, err := p.desk.Cancel(p.t.Context(), p.id, ann); err != nil && !errors.Is(err, pawl.ErrTerminal) {
			p.t.Errorf("cancel: %v", err)
		}
	}
}

// decideSome sends one decision on one of the gates, up to five times (A8).
func (p *play) decideSome(note func(string, ...any)) {
	var ids []pawl.EntryID
	for id := range p.gatesOf(p.id) {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		time.Sleep(time.Second) // bubble
		return
	}
	slices.Sort(ids)
	g := p.gate(ids[p.rng.IntN(len(ids))])
	choices := []pawl.Choice{pawl.AnswerApprove, pawl.AnswerApprove, pawl.AnswerApprove, pawl.AnswerReject, pawl.AnswerEdit, pawl.AnswerEdit,
		pawl.AnswerEditAndApprove, pawl.AnswerRevoke}
	d := pawl.Decision{Gate: g.ID, Choice: choices[p.rng.IntN(len(choices))], Hash: g.Hash, By: "ann", Key: fmt.Sprint("card-", p.rng.IntN(1000))}
	if d.Choice == pawl.AnswerEdit || d.Choice == pawl.AnswerEditAndApprove {
		d.Payload, d.Hash = fmt.Appendf(nil, `{"No":"o1","Cents":%d}`, 200+p.rng.IntN(1000)), ""
		if seen, err := p.desk.Edited(p.t.Context(), d); err != nil {
			p.t.Errorf("edited: %v", err)
		} else if d.Choice == pawl.AnswerEditAndApprove {
			d.Hash = seen.Hash
		}
	}
	var first *pawl.GateInfo
	for i := range 1 + p.rng.IntN(5) {
		got, err := p.desk.Decide(p.t.Context(), d)
		note("%s %s: %v", d.Choice, d.Gate, err)
		if err != nil && !errors.Is(err, pawl.ErrConflict) && !errors.Is(err, pawl.ErrStale) && !errors.Is(err, pawl.ErrExpired) {
			p.t.Errorf("%s: %v", d.Choice, err)
		}
		if i > 0 && (first == nil) != (err != nil) && !errors.Is(err, pawl.ErrExpired) {
			p.t.Errorf("%s said twice: first %+v, then %v", d.Choice, first, err)
		}
		if first != nil && got != nil && (got.ID != first.ID || got.By != first.By || !got.Decided.Equal(first.Decided)) {
			p.t.Errorf("%s said twice made %+v of %+v", d.Choice, got, first)
		}
		if i == 0 {
			first = got
		}
	}
}

// answerSome answers one open question that is not a gate's.
func (p *play) answerSome(note func(string, ...any)) {
	for _, en := range p.show(p.desk, p.id).Entries {
		if !en.Closed.IsZero() || en.Kind == pawl.AskGate {
			continue
		}
		c := en.Choices[p.rng.IntN(len(en.Choices))]
		err := p.answer(en, c, "ann")
		note("%s %s: %v", en.Kind, c, err)
		if err == nil && c == pawl.AnswerDidNotHappen {
			p.told++
		}
		return
	}
}

// holds checks what must hold at any moment.
func (p *play) holds() {
	p.t.Helper()
	p.check() // A4, A10
	gates := p.gatesOf(p.id)
	live := 0
	for id, g := range gates {
		if was, final := p.finals[id]; final && (was.State != g.State || was.Rev != g.Rev || was.By != g.By) { // A5
			p.t.Errorf("gate %s was %s, and is %s\n%v", id, was.State, g.State, p.log)
		}
		if g.State.Final() {
			p.finals[id] = g
		} else {
			live++
		}
	}
	if live > 1 {
		p.t.Errorf("%d gates are open\n%v", live, p.log)
	}
	if len(gates) > 0 {
		p.auditTells(p.id) // A9
	}
	most := int64(1 << 40)
	if p.kind == fault.KindOnce { // A1
		most = 1 + p.told
	}
	if n := p.made.Load(); n > most {
		p.t.Errorf("the effect happened %d times, %d were told not to have\n%v", n, p.told, p.log)
	}
	if n := p.rows("pay"); n > 1 {
		p.t.Errorf("%d transactions were committed\n%v", n, p.log)
	}
}

// settle brings the run to its end.
func (p *play) settle() {
	p.t.Helper()
	p.calm.Store(true)
	p.worker.kill()
	p.start()
	for range 40 {
		time.Sleep(90 * time.Second) // bubble
		d := p.show(p.desk, p.id)
		if d.State.Terminal() {
			p.holds()
			return
		}
		for _, en := range d.Entries {
			switch {
			case !en.Closed.IsZero():
			case en.Kind == pawl.AskGate:
				_, err := p.say(p.gate(en.ID), pawl.AnswerApprove, "ann")
				if err != nil && !errors.Is(err, pawl.ErrExpired) {
					p.t.Errorf("approve: %v", err)
				}
			case en.Kind == pawl.AskUncertain:
				_ = p.answer(en, pawl.AnswerHappened, "ann")
			default:
				_ = p.answer(en, pawl.AnswerResume, "ann")
			}
		}
		p.holds()
	}
	p.t.Errorf("the run never ended: %+v\n%v", p.show(p.desk, p.id).RunInfo, p.log)
}
