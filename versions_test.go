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

// G4, C99, C100: a run is pinned to its version. If other workers live but none has it for a minute, the run is blocked
// by a visible entry, which clears itself when a worker with the version registers.
func TestG4_VersionGoneBlocksTheRunVisibly(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w1, w2 := flow("ship", "v1", chain(s, "a")), flow("ship", "v2", chain(s, "z"))
		id := begin(s, w1, "x")
		p2 := s.spawn("b2", w2)
		time.Sleep(30 * time.Second)
		if d := s.show(s.desk, id); d.State != pawl.Queued {
			t.Errorf("run is %s before the minute is over, want queued", d.State)
		}
		en := s.blocked(id, pawl.AskVersion)
		if !strings.Contains(en.Detail, "ship") || !strings.Contains(en.Detail, "v1") {
			t.Errorf("the entry %q does not name workflow and version", en.Detail)
		}
		s.want(map[string]int{"a": 0, "z": 0})
		p1 := s.spawn("b1", w1)
		d := s.reach(id, pawl.Succeeded)
		s.want(map[string]int{"a": 1, "z": 0})
		if len(d.Open) != 0 || d.Version != "v1" {
			t.Errorf("open entries %v, version %s: the entry must clear itself, the version stay", d.Open, d.Version)
		}
		p1.stop()
		p2.stop()
	})
}

// DESIGN 5.8: with no living worker at all nothing is blocked; the run is taken when one comes.
func TestNoWorkerAtAllBlocksNothing(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("ship", "v1", chain(s, "a"))
		id := begin(s, w, "x")
		time.Sleep(time.Hour)
		if d := s.show(s.desk, id); d.State != pawl.Queued {
			t.Errorf("run is %s, want queued", d.State)
		}
		s.spawn("b1", w)
		s.reach(id, pawl.Succeeded)
	})
}

// A version entry can be cancelled, and answered by "resume" only to ask again while nobody has the version.
func TestVersionEntryAnswers(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w1, w2 := flow("ship", "v1", chain(s, "a")), flow("ship", "v2", chain(s, "z"))
		id := begin(s, w1, "x")
		s.spawn("b2", w2)
		s.resolve(s.blocked(id, pawl.AskVersion), pawl.AnswerResume)
		time.Sleep(3 * time.Minute)
		s.resolve(s.blocked(id, pawl.AskVersion), pawl.AnswerCancel)
		s.reach(id, pawl.Cancelled)
		s.want(map[string]int{"a": 0, "z": 0})
	})
}

// C100, FR-030: a person moves a run after a plan that shows which steps are reused, run anew and unused.
func TestMoveShowsAndKeepsWhatIsFinished(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w1, w2 := parked(s, "v1", chain(s, "a", "old", "wait", "c")), parked(s, "v2", chain(s, "new", "a", "wait", "c"))
		p := s.spawn("b1", w1)
		id := begin(s, w1, "x")
		s.reach(id, pawl.Waiting)
		p.stop()
		p2 := s.spawn("b2", w2)
		plan, err := p2.Plan(t.Context(), id, pawl.PlanOptions{Mode: pawl.PlanMove, Version: "v2"})
		if err != nil || len(plan.Refusals) > 0 {
			t.Fatalf("plan %+v, %v", plan, err)
		}
		fates := map[string]pawl.Fate{}
		for _, st := range plan.Steps {
			fates[st.Name] = st.Fate
		}
		if fates["new"] != pawl.Rerun || fates["old"] != pawl.Unused {
			t.Errorf("the plan says %v: want new to run and old to be unused", fates)
		}
		if err := p2.Move(t.Context(), plan, ann); err != nil {
			t.Fatal(err)
		}
		d := s.reach(id, pawl.Blocked, pawl.Succeeded)
		s.want(map[string]int{"a": 1, "old": 1, "new": 1, "wait": 2, "c": 1})
		if d.Version != "v2" || !slices.ContainsFunc(d.Audit, func(a pawl.AuditEntry) bool { return a.Act == "move" && a.By == "ann" }) {
			t.Errorf("version %s, audit %+v: want v2 and the move on record (C112)", d.Version, d.Audit)
		}
	})
}

// A move is refused for what cannot be moved, and to what this binary does not have.
func TestMoveRefusals(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w1 := flow("ship", "v1", chain(s, "a"))
		id := begin(s, w1, "x")
		for version, want := range map[string]string{"v9": "v9", "nine": "nine", "": "version"} {
			p, err := s.desk.Plan(t.Context(), id, pawl.PlanOptions{Mode: pawl.PlanMove, Version: version})
			if err != nil || len(p.Refusals) == 0 || !strings.Contains(strings.Join(p.Refusals, " "), want) {
				t.Errorf("move to %q: %+v, %v; want a refusal that names it", version, p, err)
				continue
			}
			if err := s.desk.Move(t.Context(), p, ann); err == nil {
				t.Errorf("move to %q was carried out", version)
			}
		}
	})
}

// C101: a step that the new code of the same version does not visit is detected; each answer is acted on.
func TestC101_RemovedStepIsDetected(t *testing.T) {
	for name, tc := range map[string]struct {
		choice pawl.Choice
		want   pawl.RunState
	}{"accept": {pawl.AnswerAccept, pawl.Succeeded}, "resume": {pawl.AnswerResume, pawl.Blocked}, "cancel": {pawl.AnswerCancel, pawl.Cancelled}} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				id := rebuilt(s, chain(s, "a", "gone", "wait"), chain(s, "a", "wait"))
				en := s.blocked(id, pawl.AskDiverged)
				if en.Step != "gone" || !strings.Contains(en.Detail, "gone") {
					t.Errorf("entry %+v does not name the step", en)
				}
				s.resolve(en, tc.choice)
				d := s.reach(id, tc.want)
				if tc.want == pawl.Succeeded {
					result(t, d, "a(in-a) W")
				}
				if tc.choice == pawl.AnswerResume {
					s.procs[len(s.procs)-1].stop()
					time.Sleep(time.Second)
					if again := s.blocked(id, pawl.AskDiverged); again.ID == en.ID {
						t.Error("resumed under the same code: want a new question")
					} else {
						s.resolve(again, pawl.AnswerResume)
					}
					s.spawn("b3", flow("deploy", "v1", chain(s, "a", "gone", "wait")))
					result(t, s.reach(id, pawl.Succeeded), "a(in-a) gone(in-gone) W")
				}
				s.want(map[string]int{"a": 1, "gone": 1, "wait": 2})
			})
		})
	}
}

// A body that fails without coming by a step is blocked too, and "accept" ends it as it failed.
func TestDivergedFailureIsKept(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := rebuilt(s, chain(s, "gone", "wait"), func(run *pawl.Run, _ string) (string, error) {
			if _, err := s.keyed(run, "wait", "in-wait"); err != nil {
				return "", err
			}
			return "", fault.Invalid(fault.Reason("sold_out"))
		})
		s.resolve(s.blocked(id, pawl.AskDiverged), pawl.AnswerAccept)
		if d := s.reach(id, pawl.Failed); d.Fault == nil || d.Fault.Reason != "sold_out" {
			t.Errorf("fault %+v, want the one the body ended with", d.Fault)
		}
	})
}

// C101: a renamed effect is stopped before its callback; each answer is acted on.
func TestC101_RenamedEffectSendsNothing(t *testing.T) {
	for _, k := range []pawl.Kind{fault.KindOnce, fault.KindKeyed, fault.KindTx} {
		for _, choice := range []pawl.Choice{pawl.AnswerTakeResult, pawl.AnswerRunIt, pawl.AnswerCancel} {
			t.Run(fmt.Sprint(k, choice), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) { renamed(t, s, k, choice) })
			})
		}
	}
}

func renamed(t *testing.T, s *stage, k pawl.Kind, choice pawl.Choice) {
	s.table()
	named := func(name string) func(*pawl.Run, string) (string, error) {
		return func(run *pawl.Run, in string) (string, error) {
			v, err := s.do(run, k, name, in)
			if err != nil {
				return "", err
			}
			if _, err := s.rep(run, "wait", in); err != nil {
				return "", err
			}
			return v, nil
		}
	}
	id := rebuilt(s, named("old"), named("new"))
	en := s.blocked(id, pawl.AskRenamed)
	if en.Step != "new" || !strings.Contains(en.Detail, "old") {
		t.Errorf("entry %+v does not name both steps", en)
	}
	s.want(map[string]int{"old": 1, "new": 0})
	s.resolve(en, choice)
	switch choice {
	case pawl.AnswerTakeResult:
		d := s.reach(id, pawl.Succeeded)
		result(t, d, "old(x)")
		if got := step(t, d, "new").TakenFrom; got != "old" {
			t.Errorf("the step shows it was taken from %q, want old", got)
		}
		s.want(map[string]int{"old": 1, "new": 0})
	case pawl.AnswerRunIt:
		s.resolve(s.blocked(id, pawl.AskDiverged), pawl.AnswerAccept) // the old step is still not visited
		result(t, s.reach(id, pawl.Succeeded), "new(x)")
		s.want(map[string]int{"old": 1, "new": 1})
	case pawl.AnswerCancel:
		s.reach(id, pawl.Cancelled)
		s.want(map[string]int{"old": 1, "new": 0})
	default:
		t.Errorf("this test does not say what %q does", choice)
	}
}

// A renamed Repeatable just runs again, and under the same build nothing is asked.
func TestRenamedRepeatableRuns(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		body := func(name string) func(*pawl.Run, string) (string, error) {
			return func(run *pawl.Run, in string) (string, error) {
				if _, err := s.rep(run, name, in); err != nil {
					return "", err
				}
				return s.rep(run, "wait", in)
			}
		}
		id := rebuilt(s, body("old"), body("new"))
		en := s.blocked(id, pawl.AskDiverged)
		s.want(map[string]int{"old": 1, "new": 1})
		s.resolve(en, pawl.AnswerAccept)
		s.reach(id, pawl.Succeeded)
	})
}

// DESIGN 5.6: "accept" of a diverged run is refused while a step is uncertain.
func TestDivergedWithAnUncertainStepIsAskedFirst(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w1 := flow("ship", "v1", func(run *pawl.Run, in string) (string, error) { return s.mail(run, "mail", in) })
		w2 := flow("ship", "v1", func(*pawl.Run, string) (string, error) { return "done", nil })
		var p *proc
		s.on("mail", func(context.Context, int) (string, error) { p.die(); return "", errDead })
		p = s.spawn("b1", w1)
		id := begin(s, w1, "x")
		time.Sleep(5 * time.Second)
		s.spawn("b2", w2)
		en := s.blocked(id, pawl.AskDiverged)
		if err := s.answer(en, pawl.AnswerAccept, "ann"); !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("accept gave %v, want a conflict that names the uncertain step", err)
		}
		s.resolve(s.blocked(id, pawl.AskUncertain), pawl.AnswerHappened)
		s.resolve(s.blocked(id, pawl.AskDiverged), pawl.AnswerAccept)
		result(t, s.reach(id, pawl.Succeeded), "done")
	})
}

// DESIGN 3, C80: a finished step whose input differs now returns its stored result, and the difference is shown.
func TestChangedInputOfAFinishedStepIsShown(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		body := func(in string) func(*pawl.Run, string) (string, error) {
			return func(run *pawl.Run, _ string) (string, error) {
				v, err := s.keyed(run, "a", in)
				if err != nil {
					return "", err
				}
				if _, err := s.rep(run, "wait", "x"); err != nil {
					return "", err
				}
				return v, nil
			}
		}
		d := s.reach(rebuilt(s, body("one"), body("two")), pawl.Succeeded)
		result(t, d, "a(one)")
		if !step(t, d, "a").InputDiffers {
			t.Error("the journal does not show that the step was called with another input")
		}
		s.want(map[string]int{"a": 1})
	})
}

// DESIGN 3: an unfinished Repeatable or Tx runs with the new input.
func TestUnfinishedRepeatableTakesTheNewInput(t *testing.T) {
	for _, k := range []pawl.Kind{fault.KindRepeatable, fault.KindTx} {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				body := func(in string) func(*pawl.Run, string) (string, error) {
					return func(run *pawl.Run, _ string) (string, error) { return s.do(run, k, "wait", in) }
				}
				s.reach(rebuilt(s, body("one"), body("two")), pawl.Succeeded)
				if got := fmt.Sprint(s.ins["wait"]); got != "[one two]" {
					t.Errorf("inputs %s, want the new one", got)
				}
			})
		})
	}
}

// DESIGN 3: a new field at its zero value changes no input hash.
func TestNewFieldAtZeroIsNoChange(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		type before struct{ Amount int }
		type after struct {
			Amount int
			Note   string
			Tags   []string
		}
		pay := func(context.Context, pawl.OpKey) (string, error) { return s.act(t.Context(), "wait", "", "") }
		w1 := parked(s, "v1", func(run *pawl.Run, _ string) (string, error) {
			return pawl.Keyed(run, "wait", before{1}, func(ctx context.Context, k pawl.OpKey, _ before) (string, error) { return pay(ctx, k) })
		})
		w2 := flow("deploy", "v1", func(run *pawl.Run, _ string) (string, error) {
			return pawl.Keyed(run, "wait", after{Amount: 1}, func(ctx context.Context, k pawl.OpKey, _ after) (string, error) { return pay(ctx, k) })
		})
		p := s.spawn("b1", w1)
		id := begin(s, w1, "x")
		s.reach(id, pawl.Waiting)
		p.stop()
		s.spawn("b2", w2)
		if d := s.reach(id, pawl.Succeeded); step(t, d, "wait").InputDiffers {
			t.Error("a new field at its zero value counts as another input")
		}
	})
}

// Manual retry, fork and restore: what is shown first, and what becomes of each step.

// ended is a failed run of a (Repeatable), tx, key, mail (all done) and last, which was denied.
func ended(s *stage) pawl.RunID {
	s.t.Helper()
	s.table()
	w := flow("order", "v1", func(run *pawl.Run, in string) (v string, err error) {
		for _, st := range []struct {
			k    pawl.Kind
			name string
		}{{fault.KindRepeatable, "a"}, {fault.KindTx, "tx"}, {fault.KindKeyed, "key"}, {fault.KindOnce, "mail"}, {fault.KindKeyed, "last"}} {
			time.Sleep(time.Millisecond) // no two steps begin in one microsecond
			if v, err = s.do(run, st.k, st.name, in); err != nil {
				return "", err
			}
		}
		return v, nil
	})
	s.on("last", func(_ context.Context, n int) (string, error) {
		if n == 1 {
			return "", fault.Denied(errors.New("no"))
		}
		return "L", nil
	})
	p := s.spawn("b1", w)
	s.desk = p.Engine // a plan replays the body
	return s.reach(begin(s, w, "x"), pawl.Failed).ID
}

func fates(p *pawl.Plan) string {
	var all []string
	for _, st := range p.Steps {
		all = append(all, st.Name+":"+string(st.Fate))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// C36, C107, C108, C109: a manual retry is a linked run that continues; the original stays as it was.
func TestC109_RetryLeavesTheOriginalAlone(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := ended(s)
		before := fmt.Sprintf("%+v", *s.show(s.desk, id))
		plan := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry})
		if got := fates(plan); got != "a:reuse key:reuse last:rerun mail:reuse tx:reuse" {
			t.Errorf("plan %q: a retry reuses what is finished and runs the rest", got)
		}
		next, err := s.desk.Retry(t.Context(), plan, ann)
		if err != nil {
			t.Fatal(err)
		}
		d := s.reach(next, pawl.Succeeded)
		s.want(map[string]int{"a": 1, "tx": 1, "key": 1, "mail": 1, "last": 2})
		if d.Parent != id || d.Lineage != id || d.Relation != pawl.Retried || step(t, d, "mail").Reused != id {
			t.Errorf("the new run is not linked: %+v", d.RunInfo)
		}
		after := s.show(s.desk, id)
		if len(after.Audit) != 1 || after.Audit[0].Act != "retry" || after.Audit[0].By != "ann" || len(after.Family) != 1 {
			t.Errorf("audit %+v, family %d: want the retry on record", after.Audit, len(after.Family))
		}
		after.Audit, after.Family = nil, nil
		if got := fmt.Sprintf("%+v", *after); len(got) != len(before) {
			t.Errorf("the original changed:\n%s\n%s", before, got)
		}
		if _, err := s.desk.Retry(t.Context(), plan, ann); err == nil {
			t.Error("the plan was carried out twice")
		}
	})
}

// W6: of two retries at once one wins, and the other is told the id of the live run.
func TestW6_OneLiveRunPerLineage(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := ended(s)
		s.on("last", func(context.Context, int) (string, error) { time.Sleep(time.Minute); return "L", nil })
		p1, p2 := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry}), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true, Repeat: []string{"mail"}})
		next, err := s.desk.Retry(t.Context(), p1, ann)
		if err != nil {
			t.Fatal(err)
		}
		_, err1 := s.desk.Retry(t.Context(), p1, ann)
		_, err2 := s.desk.Fork(t.Context(), p2, ann)
		_, err3 := s.desk.Retry(t.Context(), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry}), ann)
		for _, err := range []error{err1, err2, err3} {
			mentions(t, err, string(next))
			if !errors.Is(err, pawl.ErrLive) {
				t.Errorf("got %v, want ErrLive: the loser is told the other's id", err)
			}
		}
		s.reach(next, pawl.Succeeded)
	})
}

// DESIGN 5.9: a stale plan is refused.
func TestStalePlanIsRefused(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := ended(s)
		plan := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry})
		plan.Options.NewKey = []string{"last"}
		if _, err := s.desk.Retry(t.Context(), plan, ann); !errors.Is(err, pawl.ErrStale) {
			t.Errorf("another plan than was shown: got %v, want ErrStale", err)
		}
		if _, err := s.desk.Retry(t.Context(), nil, ann); err == nil {
			t.Error("a nil plan was carried out")
		}
		if _, err := s.desk.Retry(t.Context(), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry}), pawl.Act{}); err == nil {
			t.Error("a retry without a name was carried out")
		}
		s.want(map[string]int{"last": 1})
	})
}

// A fork with keys of its own stands for itself: starting again with the product key means the run that has it.
func TestAgainPassesOverAForkWithItsOwnKeys(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("charges", "v1", func(run *pawl.Run, in string) (string, error) { return s.keyed(run, "charge", in) })
		s.on("charge", func(_ context.Context, n int) (string, error) {
			if n <= 2 {
				return "", fault.Invalid(errors.New("bad"))
			}
			return "charged", nil
		})
		s.spawn("b1", w)
		id := begin(s, w, "x", pawl.Key("order:1"))
		s.reach(id, pawl.Failed)
		fork, err := s.desk.Fork(t.Context(), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true, NewKeys: true}), ann)
		if err != nil {
			t.Fatal(err)
		}
		s.reach(fork, pawl.Failed)
		again := begin(s, w, "x", pawl.Key("order:1"), pawl.Again())
		if d := s.reach(again, pawl.Succeeded); d.Parent != id {
			t.Errorf("the new run retries %s, want %s", d.Parent, id)
		}
		if keys := s.keys["charge"]; len(keys) != 3 || keys[1] == keys[0] || keys[2] != keys[0] {
			t.Errorf("keys %q: want the fork's to differ", keys)
		}
	})
}

// A fork may give a step a new operation key; a retry of the fork goes on with that one, or the effect would happen under
// a third.
func TestRetryKeepsTheForksKey(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("charges", "v1", func(run *pawl.Run, in string) (string, error) {
			if _, err := s.keyed(run, "charge", in); err != nil {
				return "", err
			}
			return s.rep(run, "last", in)
		})
		s.on("charge", func(_ context.Context, n int) (string, error) {
			if n == 2 { // the fork's
				return "", fault.MaybeExecuted(fault.Invalid(errors.New("the answer made no sense")))
			}
			return "charged", nil
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Succeeded)
		fork, err := s.desk.Fork(t.Context(), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true, NewKey: []string{"charge"}}), ann)
		if err != nil {
			t.Fatal(err)
		}
		s.reach(fork, pawl.Failed)
		plan := s.plan(fork, pawl.PlanOptions{Mode: pawl.PlanRetry})
		again := s.retry(fork)
		s.reach(again, pawl.Succeeded)
		keys := s.keys["charge"]
		if len(keys) != 3 || keys[1] == keys[0] || keys[2] != keys[1] {
			t.Errorf("keys %q: want a new one for the fork and the fork's for its retry", keys)
		}
		if plan.Steps[0].Key != keys[2] {
			t.Errorf("the plan showed key %q, and %q was used", plan.Steps[0].Key, keys[2])
		}
	})
}

// C107, DESIGN 5.9: a fork re-executes; each Once that happened must be named first.
func TestForkNeedsRepeatForEachOnce(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := ended(s)
		plan := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true})
		if got := fates(plan); !strings.Contains(got, "mail:refused") || len(plan.Refusals) != 1 || !strings.Contains(plan.Refusals[0], "mail") {
			t.Errorf("plan %q, refusals %q: want mail to be refused by name", got, plan.Refusals)
		}
		if _, err := s.desk.Fork(t.Context(), plan, ann); err == nil {
			t.Fatal("a refused fork was carried out")
		}
		plan = s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true, Repeat: []string{"mail"}})
		next, err := s.desk.Fork(t.Context(), plan, ann)
		if err != nil {
			t.Fatal(err)
		}
		d := s.reach(next, pawl.Succeeded)
		s.want(map[string]int{"a": 2, "tx": 2, "key": 2, "mail": 2, "last": 2})
		if d.Relation != pawl.Forked || s.keys["key"][0] != s.keys["key"][1] || s.keys["mail"][0] != s.keys["mail"][1] {
			t.Errorf("relation %q, keys %q: a fork keeps the keys unless told otherwise", d.Relation, s.keys["key"])
		}
		if _, err := s.desk.Plan(t.Context(), id, pawl.PlanOptions{Mode: "again"}); err == nil {
			t.Error("an unknown mode was planned")
		}
	})
}

// DESIGN 5.9: from a step on; and with keys of its own beside a live origin.
func TestForkFromAStepAndWithNewKeys(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := ended(s)
		if p := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, From: "nope"}); len(p.Refusals) == 0 || !strings.Contains(p.Refusals[0], "nope") {
			t.Errorf("refusals %q, want one that names the step", p.Refusals)
		}
		next, err := s.desk.Fork(t.Context(), s.plan(id, pawl.PlanOptions{Mode: pawl.PlanFork, From: "last", NewKeys: true}), ann)
		if err != nil {
			t.Fatal(err)
		}
		s.reach(next, pawl.Succeeded)
		s.want(map[string]int{"a": 1, "key": 1, "mail": 1, "last": 2})
		if s.keys["last"][0] == s.keys["last"][1] {
			t.Errorf("keys %q: want new ones", s.keys["last"])
		}
	})
}

// W7, C91: a given-up step and a Once that failed maybe executed are inherited as uncertain, with their question.
func TestW7_DoubtIsInherited(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, en := uncertain(s)
		s.resolve(en, pawl.AnswerGiveUp)
		s.reach(id, pawl.Failed)
		next := s.retry(id)
		again := s.blocked(next, pawl.AskUncertain)
		s.want(map[string]int{"mail": 1})
		if again.Attempt != 1 || !strings.Contains(again.Detail, string(id)) {
			t.Errorf("entry %+v does not say where the doubt comes from", again)
		}
		time.Sleep(time.Until(again.OverAt) + 5*time.Minute)
		s.resolve(again, pawl.AnswerDidNotHappen)
		result(t, s.reach(next, pawl.Succeeded), "c(sent)")
		s.want(map[string]int{"mail": 2})
	})
}

// The same for a retry of a run that had ended in the backup: it may have been retried since.
func TestAfterRestoreARetryAsksToo(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("deploy", "v1", chain(s, "a", "mail"))
		s.on("a", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", fault.Invalid(errors.New("bad"))
			}
			return "A", nil
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Failed)
		if _, err := s.desk.AfterRestore(t.Context(), ann, nil); err != nil {
			t.Fatal(err)
		}
		next := s.retry(id)
		if en := s.blocked(next, pawl.AskUncertain); !strings.Contains(en.Detail, "restored") {
			t.Errorf("asked %q", en.Detail)
		}
		s.want(map[string]int{"mail": 0})
		time.Sleep(time.Minute)
		later := begin(s, w, "y")
		s.reach(later, pawl.Succeeded)
	})
}

// DESIGN 5.1: after a restore every Once and Keyed step not known finished is uncertain before anything is sent.
func TestAfterRestoreNothingIsSentUnasked(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w1 := parked(s, "v1", chain(s, "a", "wait", "mail", "c"))
		p := s.spawn("b1", w1)
		id := begin(s, w1, "x")
		s.reach(id, pawl.Waiting)
		p.stop()
		if n, err := s.desk.AfterRestore(t.Context(), ann, nil); err != nil || n != 1 {
			t.Fatalf("AfterRestore: %d, %v", n, err)
		}
		s.spawn("b1", w1)
		for _, name := range []string{"wait", "mail", "c"} {
			en := s.blocked(id, pawl.AskUncertain)
			if en.Step != name || !strings.Contains(en.Detail, "restored") {
				t.Errorf("asked about %q (%s), want %q", en.Step, en.Detail, name)
			}
			s.resolve(en, pawl.AnswerHappened)
			time.Sleep(10 * time.Second)
		}
		result(t, s.reach(id, pawl.Succeeded), "a(in-a) told told told")
		s.want(map[string]int{"a": 1, "wait": 1, "mail": 0, "c": 0})
	})
}
