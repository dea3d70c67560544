package pawl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

func asking(s *stage, k pawl.Kind, opts ...pawl.ApproveOption) *pawl.Workflow[payout, string] {
	return pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) {
		out, err := s.pay(run, k, "pay", in, pawl.AskFirst(opts...))
		if no, denied := errors.AsType[*pawl.Denied](err); denied {
			return no.State, nil
		}
		return out, err
	})
}

// One call asks and acts, with the input as it was approved, edits included, and the question knows kind and key.
func TestAskFirst(t *testing.T) {
	for _, k := range gatedKinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				w := asking(s, k)
				p := s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 9900})
				g := s.gateOf(id)
				if g.Step != "pay?" || g.Action != "pay" || g.Kind != k || len(g.OpKey) != 52 && k != fault.KindTx {
					t.Errorf("it asks as %+v", g)
				}
				// The desk has no workflow and goes by the form; this process has it and decodes.
				d := pawl.Decision{Gate: g.ID, Choice: pawl.AnswerEdit, By: "eve", Payload: []byte(`{"No":"o1","Cents":true}`)}
				if _, err := p.Decide(t.Context(), d); err == nil {
					t.Error("a payload of another type was taken")
				}
				d.Payload = []byte(`{"No":"o1", "Cents":7}`)
				g, err := p.Decide(t.Context(), d)
				if err != nil {
					t.Fatal(err)
				}
				p.stop()
				s.must(g, pawl.AnswerApprove, "ann")
				s.spawn("b2", w)
				det := s.reach(id, pawl.Succeeded)
				result(t, det, "pay(o1/7)")
				if step(t, det, "pay").InputDiffers {
					t.Error("an edited input is shown as one that a later build changed")
				}
				s.want(map[string]int{"pay": 1})
				s.auditTells(id)
			})
		})
	}
}

func TestAskFirstDenied(t *testing.T) {
	for _, how := range []string{"rejected", "expired", "revoked"} {
		t.Run(how, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := asking(s, fault.KindOnce, pawl.Expires(10*time.Minute))
				p := s.spawn("b1", w)
				id := begin(s, w, payout{"o1", 1})
				g := s.gateOf(id)
				p.stop()
				switch how {
				case "rejected":
					s.must(g, pawl.AnswerReject, "ann")
				case "revoked":
					s.must(g, pawl.AnswerApprove, "ann")
					s.must(g, pawl.AnswerRevoke, "ann")
				case "expired":
					time.Sleep(10 * time.Minute) // bubble
				}
				s.spawn("b2", w)
				result(t, s.reach(id, pawl.Succeeded), how)
				s.want(map[string]int{"pay": 0})
				s.auditTells(id)
			})
		})
	}
}

// A body that stops asking, or asks under two approvals, is told.
func TestMisusedGates(t *testing.T) {
	for name, c := range map[string]struct {
		call  func(s *stage, run *pawl.Run, in payout) (string, error)
		needs string
	}{
		"no approval": {func(s *stage, run *pawl.Run, in payout) (string, error) {
			return s.pay(run, fault.KindOnce, "pay", in, pawl.Under(pawl.Approval[payout]{Payload: in}))
		}, "not one that Approve returned"},
		"negative": {func(s *stage, run *pawl.Run, in payout) (string, error) {
			return s.pay(run, fault.KindOnce, "pay", in, pawl.AskFirst(pawl.Expires(-1)))
		}, "positive"},
		"nobody": {func(s *stage, run *pawl.Run, in payout) (string, error) {
			_, err := pawl.Approve(run, "ok?", in, pawl.Deciders())
			return "", err
		}, "at least one name"},
		"grant": {func(s *stage, run *pawl.Run, in payout) (string, error) {
			_, err := pawl.Approve(run, "ok?", in, pawl.GrantTTL(-1))
			return "", err
		}, "positive"},
		"payload": {func(s *stage, run *pawl.Run, in payout) (string, error) {
			_, err := pawl.Approve(run, "ok?", func() {})
			return "", err
		}, "input"},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := pawl.Define("pay", "v1", func(run *pawl.Run, in payout) (string, error) { return c.call(s, run, in) })
				s.spawn("b1", w)
				d := s.reach(begin(s, w, payout{"o1", 1}), pawl.Failed)
				if d.Fault.Class != fault.InvalidRequest || !strings.Contains(d.Fault.Message, c.needs) {
					t.Errorf("fault is %+v, want one about %q", d.Fault, c.needs)
				}
			})
		})
	}
}

// A payload that is sealed is asked about, edited and done; a desk that cannot open it cannot approve it.
func TestSealedPayload(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := asking(s, fault.KindKeyed)
		codec := func(o *pawl.Options) { o.Codec = rot{} }
		p := s.spawnWith(codec, w)
		h, err := w.Start(t.Context(), p, payout{"o1", 1})
		if err != nil {
			t.Fatal(err)
		}
		g := s.gateOf(h.ID())
		if _, err := s.say(g, pawl.AnswerApprove, "ann"); err == nil {
			t.Error("a desk that cannot read the payload approved it")
		}
		if _, err := p.Decide(context.Background(), pawl.Decision{Gate: g.ID, Choice: pawl.AnswerApprove, Hash: g.Hash, By: "ann"}); err != nil {
			t.Fatal(err)
		}
		s.reach(h.ID(), pawl.Succeeded)
		s.want(map[string]int{"pay": 1})
	})
}

type rot struct{}

func (rot) Seal(json []byte) ([]byte, error)   { return rotate(json), nil }
func (rot) Open(stored []byte) ([]byte, error) { return rotate(stored), nil }

func rotate(in []byte) []byte {
	out := make([]byte, len(in))
	for i, c := range in {
		out[i] = c ^ 0x55
	}
	return out
}
