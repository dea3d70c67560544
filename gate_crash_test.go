package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// C110, C111: a process that dies anywhere, before or after the decision, neither asks twice nor acts twice. Once may end as an
// open question; the others act at least once, under one claim.
func TestGateSurvivesAKill(t *testing.T) {
	points := []hooks.Point{hooks.Claimed, hooks.StepReached, hooks.IntentWritten, hooks.EffectBegin, hooks.EffectDone, hooks.ResultWritten,
		hooks.TxCommitting, hooks.BodyDone, hooks.CommitSending, hooks.Ended}
	for _, k := range gatedKinds[len(gatedKinds)-upTo(2, 4):] {
		for _, point := range points {
			for nth := 1; nth <= upTo(1, 3); nth++ {
				t.Run(fmt.Sprint(k, " ", point, " ", nth), func(t *testing.T) {
					scene(t, func(t *testing.T, s *stage) { s.killAt(k, point, nth) })
				})
			}
		}
	}
}

func (s *stage) killAt(k pawl.Kind, point hooks.Point, nth int) {
	s.t.Helper()
	s.table()
	w := paying(s, k)
	s.doomed(point, nth, w)
	id := begin(s, w, payout{"o1", 9900})
	time.Sleep(time.Minute) // bubble
	s.spawn("b1", w)
	g := s.gateOf(id)
	time.Sleep(time.Minute) // bubble
	s.want(map[string]int{"pay": 0})
	s.must(g, pawl.AnswerApprove, "ann")
	time.Sleep(2 * time.Minute) // bubble
	d := s.reach(id, pawl.Succeeded, pawl.Blocked)
	gates := s.gatesOf(id)
	if row := gates[g.ID]; len(gates) != 1 || row.State != pawl.GateClaimed || row.Ref != "pay" || row.Claimed == 0 {
		s.t.Errorf("the gates are %+v", gates)
	}
	if d.State == pawl.Blocked {
		if k != fault.KindOnce || s.gate(g.ID).State != "unknown" {
			s.t.Errorf("the run is blocked by %v, the gate is %s", d.Open, s.gate(g.ID).State)
		}
	} else {
		result(s.t, d, "pay(o1/9900)")
	}
	n := s.count("pay")
	if k == fault.KindOnce && n > 1 {
		s.t.Errorf("the effect was made %d times", n)
	}
	if k == fault.KindTx && s.rows("pay") != 1 {
		s.t.Errorf("the transaction was committed %d times", s.rows("pay"))
	}
	s.auditTells(id)
}

// The worker dies between the approval and the effect, and the approval is used by whoever comes next, once.
func TestApprovalOutlivesTheWorker(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := paying(s, fault.KindOnce)
		s.spawnProc(func(p *proc, o *pawl.Options) {
			o.Hooks.At = func(at hooks.Point, _, name string) {
				if at == hooks.StepReached && name == "pay" {
					p.die()
				}
			}
		}, w)
		id := begin(s, w, payout{"o1", 9900})
		g := s.gateOf(id)
		s.must(g, pawl.AnswerApprove, "ann")
		time.Sleep(time.Minute) // bubble
		if g := s.gate(g.ID); g.State != "approved" {
			t.Errorf("the gate is %s", g.State)
		}
		s.spawn("b1", w)
		s.spawn("b1", w)
		result(t, s.reach(id, pawl.Succeeded), "pay(o1/9900)")
		s.want(map[string]int{"pay": 1})
	})
}

// Rows 14 and 16: an unknown effect is asked about; the answer decides, under the same approval.
func TestUnknownEffectUnderAGate(t *testing.T) {
	for _, c := range []struct {
		choice pawl.Choice
		state  pawl.RunState
		gate   string
		count  int
	}{
		{pawl.AnswerHappened, pawl.Succeeded, "executed", 1},
		{pawl.AnswerDidNotHappen, pawl.Succeeded, "executed", 2},
		{pawl.AnswerGiveUp, pawl.Failed, "cancelled", 1},
	} {
		t.Run(string(c.choice), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := paying(s, fault.KindOnce, pawl.GrantTTL(time.Minute))
				s.on("pay", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						return "", errors.New("cut off")
					}
					return "told", nil
				})
				s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 9900})
				g := s.gateOf(id)
				s.must(g, pawl.AnswerApprove, "ann")
				en := s.blocked(id, pawl.AskUncertain)
				if g := s.gate(g.ID); g.State != "unknown" {
					t.Errorf("the gate is %s", g.State)
				}
				time.Sleep(5 * time.Minute) // bubble
				if _, err := s.say(g, pawl.AnswerRevoke, "ann"); !errors.Is(err, pawl.ErrConflict) {
					t.Errorf("a revocation after the effect began gave %v", err)
				}
				s.resolve(en, c.choice)
				s.reach(id, c.state)
				if g := s.gate(g.ID); g.State != c.gate {
					t.Errorf("the gate is %s, want %s", g.State, c.gate)
				}
				s.want(map[string]int{"pay": c.count})
			})
		})
	}
}

// Row 13: a failed attempt is repeated under the same approval, also when the grant would have expired in the meantime.
func TestAttemptsShareTheApproval(t *testing.T) {
	for _, k := range gatedKinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				w := paying(s, k, pawl.GrantTTL(4*time.Second))
				s.on("pay", func(_ context.Context, n int) (string, error) {
					if n < 3 {
						return "", &fault.Fault{Class: fault.RateLimited, Outcome: fault.OutcomeRejected, Delay: 5 * time.Second}
					}
					return "paid", nil
				})
				s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 9900})
				g := s.gateOf(id)
				s.must(g, pawl.AnswerApprove, "ann")
				if k == fault.KindTx { // its claim is in the transaction that commits, so here the approval is not used in time
					d := s.reach(id, pawl.Failed)
					if d.Fault.Reason != fault.ReasonGateExpired || s.rows("pay") != 0 {
						t.Errorf("fault is %+v", d.Fault)
					}
					return
				}
				result(t, s.reach(id, pawl.Succeeded), "paid")
				s.want(map[string]int{"pay": 3})
				if g := s.gate(g.ID); g.State != "executed" {
					t.Errorf("the gate is %s", g.State)
				}
				s.auditTells(id)
			})
		})
	}
}

// Row 11: what is about to run is not what was approved. Nothing runs, the run is blocked, and it goes on by asking anew.
func TestAnotherPayloadNeedsAnotherApproval(t *testing.T) {
	for _, k := range gatedKinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				w := pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
					ok, err := pawl.Approve(run, "ok?", in)
					if err != nil {
						return "", err
					}
					in.Cents *= 10
					return s.pay(run, k, "pay", in, pawl.Under(ok))
				})
				s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 1})
				g := s.gateOf(id)
				s.must(g, pawl.AnswerApprove, "ann")
				en := s.blocked(id, pawl.AskInvalidated)
				if g := s.gate(g.ID); g.State != "invalidated" {
					t.Errorf("the gate is %s", g.State)
				}
				s.want(map[string]int{"pay": 0})
				s.resolve(en, pawl.AnswerResume)
				again := s.gateOf(id)
				if string(again.Payload) != `{"Cents":10,"No":"o1"}` || again.Generation != 2 || again.Kind != k || again.Supersedes != g.ID {
					t.Errorf("it asks about %s as %+v", again.Payload, again)
				}
				if _, err := s.say(again, pawl.AnswerApprove, "ann", func(d *pawl.Decision) { d.Hash = g.Hash }); !errors.Is(err, pawl.ErrStale) {
					t.Errorf("the old hash gave %v", err)
				}
				s.must(again, pawl.AnswerApprove, "ann")
				result(t, s.reach(id, pawl.Succeeded), "pay(o1/10)")
				s.want(map[string]int{"pay": 1})
				s.auditTells(id)
			})
		})
	}
}

// A run that is moved to another version while its gate waits may still be decided on; the claim is not for the new version.
func TestAnotherVersionNeedsAnotherApproval(t *testing.T) {
	for _, ask := range []bool{false, true} {
		t.Run(fmt.Sprint("AskFirst ", ask), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				body := func(run *pawl.Run, in payout) (string, error) {
					if ask {
						return s.pay(run, fault.KindOnce, "pay", in, pawl.AskFirst())
					}
					ok, err := pawl.Approve(run, "ok?", in)
					if err != nil {
						return "", err
					}
					return s.pay(run, fault.KindOnce, "pay", ok.Payload, pawl.Under(ok))
				}
				v1, v2 := pawl.Define("pay", "v1", body), pawl.Define("pay", "v2", body)
				p := s.spawn("b1", v1)
				id := begin(s, v1, payout{"o1", 1})
				g := s.gateOf(id)
				p.stop()
				q := s.spawn("b2", v2)
				plan, err := q.Plan(t.Context(), id, pawl.PlanOptions{Mode: pawl.PlanMove, Version: "v2"})
				if err != nil {
					t.Fatal(err)
				}
				if err := q.Move(t.Context(), plan, ann); err != nil {
					t.Fatal(err)
				}
				s.must(g, pawl.AnswerApprove, "ann")
				s.resolve(s.blocked(id, pawl.AskInvalidated), pawl.AnswerResume)
				again := s.gateOf(id)
				if again.Version != "v2" || again.Generation != 2 {
					t.Errorf("it asks as %+v", again)
				}
				s.must(again, pawl.AnswerApprove, "ann")
				result(t, s.reach(id, pawl.Succeeded), "pay(o1/1)")
				s.want(map[string]int{"pay": 1})
				s.auditTells(id)
			})
		})
	}
}

// An approval is good for one step.
func TestOneApprovalOneStep(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
			ok, err := pawl.Approve(run, "ok?", in)
			if err != nil {
				return "", err
			}
			if _, err := s.pay(run, fault.KindOnce, "pay", ok.Payload, pawl.Under(ok)); err != nil {
				return "", err
			}
			return s.pay(run, fault.KindOnce, "again", ok.Payload, pawl.Under(ok))
		})
		s.spawn("b1", w)
		id := begin(s, w, payout{"o1", 1})
		s.must(s.gateOf(id), pawl.AnswerApprove, "ann")
		d := s.reach(id, pawl.Failed)
		if d.Fault.Reason != fault.ReasonGateUsed {
			t.Errorf("fault is %+v", d.Fault)
		}
		s.want(map[string]int{"pay": 1, "again": 0})
	})
}

// Row 1: what was rejected in this run is not asked about again.
func TestRejectedIsNotAskedAgain(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
			text := ""
			for i := range 3 {
				asked := in
				asked.Cents += int64(i / 2)
				_, err := pawl.Approve(run.Item(fmt.Sprint(i)), "ok?", asked)
				no, denied := errors.AsType[*pawl.Denied](err)
				if !denied {
					return text, err
				}
				text += no.State + " "
			}
			return text, nil
		})
		s.spawn("b1", w)
		id := begin(s, w, payout{"o1", 1})
		s.must(s.gateOf(id), pawl.AnswerReject, "ann")
		g := s.gateOf(id)
		if g.Step != "2/ok?" {
			t.Errorf("it asks as %s", g.Step)
		}
		s.must(g, pawl.AnswerReject, "ann")
		result(t, s.reach(id, pawl.Succeeded), "rejected rejected rejected ")
		s.auditTells(id)
	})
}

// C82, C108: a manual retry inherits an approval only if what was approved was done.
func TestRetryAndGates(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
			first, err := pawl.Approve(run, "first?", in)
			if err != nil {
				return "", err
			}
			if _, err := s.pay(run, fault.KindOnce, "one", first.Payload, pawl.Under(first)); err != nil {
				return "", err
			}
			second, err := pawl.Approve(run, "second?", in)
			if err != nil {
				return "", err
			}
			return s.pay(run, fault.KindOnce, "two", second.Payload, pawl.Under(second))
		})
		s.on("two", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", fault.NotSent(fault.Invalid(errors.New("no")))
			}
			return "two", nil
		})
		s.spawn("b1", w)
		id := begin(s, w, payout{"o1", 1})
		s.must(s.gateOf(id), pawl.AnswerApprove, "ann")
		g := s.gateOf(id)
		s.must(g, pawl.AnswerApprove, "ann")
		s.reach(id, pawl.Failed)
		if g := s.gate(g.ID); g.State != "execution_failed" {
			t.Errorf("the gate is %s", g.State)
		}
		next := s.retry(id)
		g = s.gateOf(next)
		if g.Step != "second?" || g.Generation != 2 {
			t.Errorf("the retry asks %s, generation %d", g.Step, g.Generation)
		}
		s.must(g, pawl.AnswerApprove, "ann")
		d := s.reach(next, pawl.Succeeded)
		result(t, d, "two")
		if step(t, d, "first?").Reused == "" || step(t, d, "second?").Reused != "" {
			t.Error("the retry reused another gate than the one that was acted under")
		}
		s.want(map[string]int{"one": 1, "two": 2})
	})
}
