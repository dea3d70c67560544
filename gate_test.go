package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

type payout struct {
	No    string
	Cents int64
}

// paying asks for approval and acts under it, with a step of the given kind.
func paying(s *stage, k pawl.Kind, opts ...pawl.ApproveOption) *pawl.Workflow[payout, string] {
	return pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
		ok, err := pawl.Approve(run, "ok?", in, opts...)
		if no, denied := errors.AsType[*pawl.Denied](err); denied {
			return no.State + " by " + no.By + ": " + no.Reason, nil
		}
		if err != nil {
			return "", err
		}
		return s.pay(run, k, "pay", ok.Payload, pawl.Under(ok))
	})
}

// pay is a step over a payout with a scripted effect.
func (s *stage) pay(run *pawl.Run, k pawl.Kind, name string, in payout, opts ...pawl.StepOption) (string, error) {
	var any []any
	for _, o := range opts {
		any = append(any, o)
	}
	text := func(o payout) string { return fmt.Sprintf("%s/%d", o.No, o.Cents) }
	switch k {
	case fault.KindRepeatable:
		return pawl.Repeatable(run, name, in, func(ctx context.Context, o payout) (string, error) {
			return s.act(ctx, name, "", text(o))
		}, optionsOf[pawl.RepeatableOption](any)...)
	case fault.KindKeyed:
		return pawl.Keyed(run, name, in, func(ctx context.Context, key pawl.OpKey, o payout) (string, error) {
			return s.act(ctx, name, key, text(o))
		}, optionsOf[pawl.KeyedOption](any)...)
	case fault.KindOnce:
		return pawl.Once(run, name, in, func(ctx context.Context, it pawl.Intent, o payout) (string, error) {
			return s.act(ctx, name, it.Key, text(o))
		}, optionsOf[pawl.OnceOption](any)...)
	default:
		return s.payTx(run, name, in, optionsOf[pawl.TxOption](any)...)
	}
}

// gateOf waits until the run asks, and returns the open question.
func (s *stage) gateOf(id pawl.RunID) *pawl.GateInfo {
	s.t.Helper()
	d := s.reach(id, pawl.Waiting)
	for _, en := range d.Entries {
		if en.Kind == pawl.AskGate && en.Closed.IsZero() {
			return s.gate(en.ID)
		}
	}
	s.t.Fatalf("the run waits for %v, want a gate", d.Open)
	return nil
}

func (s *stage) gate(id pawl.EntryID) *pawl.GateInfo {
	s.t.Helper()
	g, err := s.desk.Gate(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

func (s *stage) say(g *pawl.GateInfo, c pawl.Choice, by string, more ...func(*pawl.Decision)) (*pawl.GateInfo, error) {
	d := pawl.Decision{Gate: g.ID, Choice: c, Hash: g.Hash, By: by, Via: "cli", Reason: "because"}
	for _, m := range more {
		m(&d)
	}
	return s.desk.Decide(s.t.Context(), d)
}

func (s *stage) must(g *pawl.GateInfo, c pawl.Choice, by string, more ...func(*pawl.Decision)) *pawl.GateInfo {
	s.t.Helper()
	info, err := s.say(g, c, by, more...)
	if err != nil {
		s.t.Fatalf("%s: %v", c, err)
	}
	return info
}

func payload(text string) func(*pawl.Decision) {
	return func(d *pawl.Decision) { d.Payload, d.Hash = []byte(text), "" }
}

var gatedKinds = []pawl.Kind{fault.KindRepeatable, fault.KindKeyed, fault.KindTx, fault.KindOnce}

// acted are the states of a gate that was approved a moment ago: the run may be quick.
var acted = []string{"approved", "claimed", "executed"}

// C110, A2, A3, A10: nothing runs before the approval, what was approved runs once, and nobody holds a slot meanwhile.
func TestApprovedIsDoneOnce(t *testing.T) {
	for _, k := range gatedKinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				w := paying(s, k)
				s.spawnWith(func(o *pawl.Options) { o.Slots = 1 }, w)
				first, second := begin(s, w, payout{"o1", 9900}), begin(s, w, payout{"o2", 1})
				g := s.gateOf(first)
				if g.State != "pending" || string(g.Payload) != `{"Cents":9900,"No":"o1"}` || len(g.Hash) != 64 {
					t.Errorf("the gate is %+v, payload %s", g, g.Payload)
				}
				s.gateOf(second)
				time.Sleep(10 * time.Minute) // bubble
				s.want(map[string]int{"pay": 0})
				if got := s.must(g, pawl.AnswerApprove, "ann"); !slices.Contains(acted, got.State) {
					t.Errorf("after the approval the gate is %s", got.State)
				}
				result(t, s.reach(first, pawl.Succeeded), "pay(o1/9900)")
				if g = s.gate(g.ID); g.State != "executed" || g.Acts != "pay" || g.By != "ann" {
					t.Errorf("afterwards the gate is %+v", g)
				}
				s.want(map[string]int{"pay": 1})
				s.auditTells(first)
			})
		})
	}
}

// FR-115: a denial is a value that the body sees, the same after a restart.
func TestDenialIsAValue(t *testing.T) {
	t.Run("case 1", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := paying(s, fault.KindOnce)
			p := s.spawn("b1", w)
			id := begin(s, w, payout{"o1", 9900})
			g := s.gateOf(id)
			p.stop()
			s.must(g, pawl.AnswerReject, "ann")
			s.spawn("b2", w)
			result(t, s.reach(id, pawl.Succeeded), "rejected by ann: because")
			s.want(map[string]int{"pay": 0})
			s.auditTells(id)
		})
	})
	t.Run("case 2", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
				_, err := pawl.Approve(run, "ok?", in)
				return "", err
			})
			s.spawn("b1", w)
			id := begin(s, w, payout{"o1", 9900})
			s.must(s.gateOf(id), pawl.AnswerReject, "ann")
			d := s.reach(id, pawl.Failed)
			if d.Fault == nil || d.Fault.Reason != fault.ReasonGateRejected || d.Fault.Class != fault.AccessDenied {
				t.Errorf("a body that returns the denial fails with %+v", d.Fault)
			}
			// A manual retry asks anew, with the next generation.
			next := s.retry(id)
			g := s.gateOf(next)
			if g.Generation != 2 || g.Supersedes == "" {
				t.Errorf("the retry asks with generation %d after %q", g.Generation, g.Supersedes)
			}
			s.must(g, pawl.AnswerReject, "ann")
			s.reach(next, pawl.Failed)
		})
	})
}

// A7, FR-112: an edit makes the next generation, the old buttons are dead, and the edited payload is what runs.
func TestEditedIsWhatRuns(t *testing.T) {
	for _, k := range gatedKinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				w := paying(s, k)
				s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 9900})
				old := s.gateOf(id)
				for _, bad := range []string{`{"No":"o1"}`, `{"No":"o1","Cents":"x"}`, `{"No":"o1","Cents":1,"More":2}`, `[]`, `{`, `{"No":"o1","Cents":9900}`} {
					if _, err := s.say(old, pawl.AnswerEdit, "eve", payload(bad)); err == nil {
						t.Errorf("payload %s was taken", bad)
					}
				}
				once := func(d *pawl.Decision) { d.Key = "card-1" }
				g := s.must(old, pawl.AnswerEdit, "eve", payload(`{"Cents": 5000, "No": "o1"}`), once)
				if g.Generation != 2 || g.ID == old.ID || g.State != "pending" || g.EditedBy != "eve" || string(g.Previous) != string(old.Payload) {
					t.Errorf("the edit made %+v after %s", g, g.Previous)
				}
				if again := s.must(old, pawl.AnswerEdit, "eve", payload(`{"Cents":5000,"No":"o1"}`), once); again.ID != g.ID {
					t.Error("the same edit twice made two generations")
				}
				if _, err := s.say(old, pawl.AnswerApprove, "ann"); !errors.Is(err, pawl.ErrStale) {
					t.Errorf("the old generation's approval gave %v, want ErrStale", err)
				}
				if _, err := s.say(g, pawl.AnswerApprove, "ann", func(d *pawl.Decision) { d.Hash = old.Hash }); !errors.Is(err, pawl.ErrStale) {
					t.Errorf("the old hash gave %v, want ErrStale", err)
				}
				s.want(map[string]int{"pay": 0})
				s.must(g, pawl.AnswerApprove, "ann", func(d *pawl.Decision) { d.Hash = d.Hash[:8] })
				result(t, s.reach(id, pawl.Succeeded), "pay(o1/5000)")
				s.auditTells(id)
			})
		})
	}
}

// Row 5: edit and approve in one act, for the hash of what was edited; two persons cannot be one.
func TestEditAndApprove(t *testing.T) {
	t.Run("case 1", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := paying(s, fault.KindKeyed)
			p := s.spawn("b1", w)
			id := begin(s, w, payout{"o1", 9900})
			old := s.gateOf(id)
			edit := payload(`{"No":"o1","Cents":5000}`)
			for _, hash := range []string{"", old.Hash} {
				if _, err := s.say(old, pawl.AnswerEditAndApprove, "eve", edit, func(d *pawl.Decision) { d.Hash = hash }); err == nil {
					t.Errorf("it was approved with the hash %q", hash)
				}
			}
			d := pawl.Decision{Gate: old.ID, By: "eve", Payload: []byte(`{"No":"o1","Cents":5000}`)}
			seen, err := p.Edited(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			g := s.must(old, pawl.AnswerEditAndApprove, "eve", edit, func(d *pawl.Decision) { d.Hash = seen.Hash })
			if !slices.Contains(acted, g.State) || g.Generation != 2 {
				t.Errorf("the gate is %+v", g)
			}
			result(t, s.reach(id, pawl.Succeeded), "pay(o1/5000)")
			s.auditTells(id)
		})
	})
	t.Run("case 2", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := paying(s, fault.KindKeyed, pawl.TwoPersons("bob"), pawl.Deciders("eve", "finance"))
			s.spawn("b1", w)
			id := begin(s, w, payout{"o1", 9900})
			g := s.gateOf(id)
			for by, c := range map[string]pawl.Choice{"mallory": pawl.AnswerReject, "finance2": pawl.AnswerApprove} {
				if _, err := s.say(g, c, by); !errors.Is(err, pawl.ErrNotAllowed) {
					t.Errorf("%s by %s gave %v, want ErrNotAllowed", c, by, err)
				}
			}
			finance := func(d *pawl.Decision) { d.Groups = []string{"finance"} }
			if _, err := s.say(g, pawl.AnswerApprove, "bob", finance); !errors.Is(err, pawl.ErrNotAllowed) {
				t.Errorf("the requester's own approval gave %v", err)
			}
			edit := payload(`{"No":"o1","Cents":5000}`)
			if _, err := s.say(g, pawl.AnswerEditAndApprove, "eve", edit, func(d *pawl.Decision) { d.Hash = g.Hash }); !errors.Is(err, pawl.ErrNotAllowed) {
				t.Errorf("an editor's own approval gave %v", err)
			}
			g = s.must(g, pawl.AnswerEdit, "eve", edit)
			if _, err := s.say(g, pawl.AnswerApprove, "eve"); !errors.Is(err, pawl.ErrNotAllowed) {
				t.Errorf("an editor's own approval gave %v", err)
			}
			s.must(g, pawl.AnswerApprove, "ann", finance)
			result(t, s.reach(id, pawl.Succeeded), "pay(o1/5000)")
			if n := len(s.acts(id, "gate refused")); n != 5 {
				t.Errorf("%d refusals are on record, want 5", n)
			}
		})
	})
}

// C112, A8: deciding again changes nothing and is no error; the opposite is told who and when.
func TestDecideAgain(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := paying(s, fault.KindOnce)
		s.spawn("b1", w)
		yes, no := begin(s, w, payout{"o1", 1}), begin(s, w, payout{"o2", 1})
		gy, gn := s.gateOf(yes), s.gateOf(no)
		for _, by := range []string{"ann", "ann", "bob"} {
			if g := s.must(gy, pawl.AnswerApprove, by); g.By != "ann" {
				t.Errorf("the decision is %s's", g.By)
			}
			if g := s.must(gn, pawl.AnswerReject, by); g.By != "ann" {
				t.Errorf("the decision is %s's", g.By)
			}
		}
		s.reach(yes, pawl.Succeeded)
		s.reach(no, pawl.Succeeded)
		s.must(gy, pawl.AnswerApprove, "bob")
		for _, c := range []struct {
			g      *pawl.GateInfo
			choice pawl.Choice
		}{{gy, pawl.AnswerReject}, {gn, pawl.AnswerApprove}, {gy, pawl.AnswerRevoke}, {gn, pawl.AnswerRevoke}} {
			_, err := s.say(c.g, c.choice, "bob")
			if !errors.Is(err, pawl.ErrConflict) {
				t.Errorf("%s gave %v, want ErrConflict", c.choice, err)
			}
			mentions(t, err, "ann", " at 20")
		}
		if _, err := s.desk.Decide(t.Context(), pawl.Decision{Gate: pawl.EntryID(yes), Choice: pawl.AnswerReject, By: "ann"}); !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("an unknown gate gave %v", err)
		}
		en := s.show(s.desk, no).Entries[0]
		mentions(t, s.desk.Resolve(t.Context(), pawl.Answer{Entry: en.ID, Attempt: 1, Choice: pawl.AnswerResume, By: "ann"}), "ann")
		s.want(map[string]int{"pay": 1})
	})
}

// FR-110: nobody answers. All processes may be down when the time is over; a late answer is told.
func TestUnansweredIsDenied(t *testing.T) {
	for name, late := range map[string]func(t *testing.T, s *stage, g *pawl.GateInfo){
		"by itself": func(*testing.T, *stage, *pawl.GateInfo) {},
		"late approval": func(t *testing.T, s *stage, g *pawl.GateInfo) {
			_, err := s.say(g, pawl.AnswerApprove, "ann")
			if !errors.Is(err, pawl.ErrExpired) {
				t.Errorf("the late approval gave %v, want ErrExpired", err)
			}
		},
		"late edit": func(t *testing.T, s *stage, g *pawl.GateInfo) {
			if _, err := s.say(g, pawl.AnswerEdit, "ann", payload(`{"No":"x","Cents":1}`)); !errors.Is(err, pawl.ErrExpired) {
				t.Errorf("the late edit gave %v, want ErrExpired", err)
			}
		},
		"late rejection": func(t *testing.T, s *stage, g *pawl.GateInfo) {
			if g := s.must(g, pawl.AnswerReject, "ann"); g.State != "expired" {
				t.Errorf("the gate is %s", g.State)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := paying(s, fault.KindOnce, pawl.Expires(72*time.Hour))
				p := s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 1})
				g := s.gateOf(id)
				p.stop()
				time.Sleep(time.Until(g.Expires) + time.Millisecond) // bubble
				if now := s.gate(g.ID); now.State != "expired" {
					t.Errorf("a look shows %s", now.State)
				}
				late(t, s, g)
				s.spawn("b2", w)
				result(t, s.reach(id, pawl.Succeeded), "expired by pawl: nobody decided in time")
				s.want(map[string]int{"pay": 0})
				s.auditTells(id)
			})
		})
	}
	t.Run("case 1", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) { // a millisecond before is in time
			w := paying(s, fault.KindOnce, pawl.Expires(10*time.Minute))
			s.spawn("b1", w)
			id := begin(s, w, payout{"o1", 1})
			g := s.gateOf(id)
			time.Sleep(time.Until(g.Expires) - time.Millisecond) // bubble
			s.must(g, pawl.AnswerApprove, "ann")
			result(t, s.reach(id, pawl.Succeeded), "pay(o1/1)")
		})
	})
}

// Rows 7 and 9: an approval that was revoked, or not used in time, is never acted under. The step is denied, also later.
func TestApprovalTakenBack(t *testing.T) {
	for _, k := range gatedKinds {
		for _, how := range []string{"revoked", "expired"} {
			t.Run(fmt.Sprint(k, how), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					s.table()
					w := paying(s, k, pawl.GrantTTL(time.Hour))
					p := s.spawn("b1", w)
					id := begin(s, w, payout{"o1", 1})
					g := s.gateOf(id)
					p.stop()
					s.must(g, pawl.AnswerApprove, "ann")
					by := "ann"
					if how == "revoked" {
						by = "bob"
						s.must(g, pawl.AnswerRevoke, by)
						s.must(g, pawl.AnswerRevoke, "ann")
					} else {
						time.Sleep(time.Hour + time.Second) // bubble
					}
					s.spawn("b2", w)
					d := s.reach(id, pawl.Failed)
					if d.Fault.Reason != fault.Reason("gate_"+how) || !strings.Contains(d.Fault.Message, by) {
						t.Errorf("fault is %+v", d.Fault)
					}
					if st := step(t, d, "pay"); st.State != pawl.StepFailed {
						t.Errorf("the step is %s", st.State)
					}
					s.want(map[string]int{"pay": 0})
					if g := s.gate(g.ID); g.State != how {
						t.Errorf("the gate is %s", g.State)
					}
					s.auditTells(id)
				})
			})
		}
	}
}

// Row 8: a cancel closes the gate, also one that is approved and not used.
func TestCancelClosesGates(t *testing.T) {
	for _, approved := range []bool{false, true} {
		t.Run(fmt.Sprint("approved ", approved), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := paying(s, fault.KindOnce)
				p := s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 1})
				g := s.gateOf(id)
				p.stop()
				if approved {
					s.must(g, pawl.AnswerApprove, "ann")
				}
				if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
					t.Fatal(err)
				}
				if g := s.gate(g.ID); g.State != "cancelled" {
					t.Errorf("the gate is %s", g.State)
				}
				if _, err := s.say(g, pawl.AnswerApprove, "ann"); !errors.Is(err, pawl.ErrConflict) {
					t.Errorf("an approval after the cancel gave %v", err)
				}
				s.spawn("b2", w)
				d := s.reach(id, pawl.Cancelled)
				if len(d.Open) > 0 {
					t.Errorf("the inbox has %v", d.Open)
				}
				s.want(map[string]int{"pay": 0})
				s.auditTells(id)
			})
		})
	}
	t.Run("case 1", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) { // an end without the use of the approval
			w := pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
				_, err := pawl.Approve(run, "ok?", in)
				return "unused", err
			})
			s.spawn("b1", w)
			id := begin(s, w, payout{"o1", 1})
			g := s.gateOf(id)
			s.must(g, pawl.AnswerApprove, "ann")
			s.reach(id, pawl.Succeeded)
			if g := s.gate(g.ID); g.State != "cancelled" {
				t.Errorf("after the run's end the gate is %s", g.State)
			}
			s.auditTells(id)
		})
	})
}
