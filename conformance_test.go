package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// The experiments G1 to G12 of PEERS.md, with the outcome that is right. G13, that an idle claim does not get slower with
// history, is a matter of query plans and is tested in storetest; G14 needs schedules.

var kinds = []pawl.Kind{fault.KindRepeatable, fault.KindKeyed, fault.KindTx, fault.KindOnce}

// G1: S steps cost at most S+2 write commits from claim to terminal state.
func TestG1_StepsCostOneCommitEach(t *testing.T) {
	for _, mix := range append([][]pawl.Kind{kinds}, []pawl.Kind{kinds[0]}, []pawl.Kind{kinds[1]}, []pawl.Kind{kinds[2]}, []pawl.Kind{kinds[3]}) {
		for _, n := range []int{1, 21} {
			t.Run(fmt.Sprint(mix, n), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					s.table()
					w := flow("many", "v1", func(run *pawl.Run, in string) (string, error) {
						for i := range n {
							if _, err := s.do(run, mix[i%len(mix)], fmt.Sprint("step", i), in); err != nil {
								return "", err
							}
						}
						return "done", nil
					})
					p := s.spawnWith(func(o *pawl.Options) { o.Hooks.NoSweep = true }, w)
					d := s.reach(begin(s, w, "x"), pawl.Succeeded)
					if len(d.Steps) != n {
						t.Errorf("the journal has %d steps, want %d", len(d.Steps), n)
					}
					if got := int(p.store.commits.Load()); got > n+2 {
						t.Errorf("%d steps took %d commits, want at most %d: commits must grow by one per step", n, got, n+2)
					}
				})
			})
		}
	}
}

// crashIn starts a run of a, b and c, kills its worker while b is executed and lets another build go on.
func crashIn(s *stage, k pawl.Kind, opts ...any) (w *pawl.Workflow[string, string], id pawl.RunID) {
	s.table()
	w = flow("abc", "v1", func(run *pawl.Run, in string) (string, error) {
		a, err := s.rep(run, "a", in)
		if err != nil {
			return "", err
		}
		b, err := s.do(run, k, "b", a, opts...)
		if err != nil {
			return "", err
		}
		return s.rep(run, "c", b)
	})
	var p *proc
	s.on("b", func(_ context.Context, n int) (string, error) {
		switch {
		case n == 1 && k == fault.KindTx:
			p.kill()
		case n == 1:
			p.die()
		}
		return "B", nil
	})
	p = s.spawn("b1", w)
	id = begin(s, w, "x")
	for s.count("b") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	return w, id
}

// G2, G9, C38, C70, C71, C76, C79, C80, C85: a crash inside a step is followed by a resume at that step, and shows.
func TestG2_CrashInAStepResumesThere(t *testing.T) {
	for _, k := range []pawl.Kind{fault.KindRepeatable, fault.KindKeyed, fault.KindTx} {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w, id := crashIn(s, k)
				s.spawn("b1", w)
				d := s.reach(id, pawl.Succeeded)
				result(t, d, "c(B)")
				if k == fault.KindTx { // it carries the result before it, which goes with it (W16)
					if s.rows("b") != 1 || s.count("a") > 2 {
						t.Errorf("the transaction was committed %d times, a executed %d times; want 1 and at most 2 (C88)", s.rows("b"), s.count("a"))
					}
				} else {
					s.want(map[string]int{"a": 1, "b": 2, "c": 1})
				}
				if d.Lost != 1 {
					t.Errorf("the run shows %d lost workers, want 1: repetition must be visible (C73)", d.Lost)
				}
				if k == fault.KindKeyed {
					if got := states(step(t, d, "b")); got != "lost succeeded" {
						t.Errorf("attempts of b are %q, want \"lost succeeded\" (C62, C66)", got)
					}
					if s.keys["b"][0] != s.keys["b"][1] || len(s.keys["b"][0]) != 52 {
						t.Errorf("the keys are %q, want the same twice (C33, C38)", s.keys["b"])
					}
				}
			})
		})
	}
}

// G2, C66, C84: a paid step shows that it may have been paid twice.
func TestG2_CrashInAPaidStepShowsADoublePayment(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w, id := crashIn(s, fault.KindRepeatable, pawl.Paid())
		s.spawn("b1", w)
		d := s.reach(id, pawl.Succeeded)
		if b := step(t, d, "b"); !b.PaidTwice || states(b) != "lost succeeded" {
			t.Errorf("paid twice %v, attempts %q: an operator must recognise a duplicate paid call", b.PaidTwice, states(b))
		}
	})
}

// C90, C91, C92, C94, C95: a crash inside a Once step asks a person and sends nothing.
func TestC91_CrashInOnceIsNeverRetriedAutomatically(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w, id := crashIn(s, fault.KindOnce)
		s.spawn("b1", w)
		en := s.blocked(id, pawl.AskUncertain)
		if en.Step != "b" || en.Attempt != 1 || string(en.Input) != `"a(x)"` || en.OpKey != s.keys["b"][0] {
			t.Errorf("the inbox shows %+v, want step b, attempt 1, input and key", en)
		}
		time.Sleep(5 * time.Minute)
		s.want(map[string]int{"a": 1, "b": 1, "c": 0})
		d := s.show(s.desk, id)
		if got := states(step(t, d, "b")); d.State != pawl.Blocked || got != "lost" && got != "lost uncertain" {
			t.Errorf("run %s, attempts %q: want blocked with a lost attempt", d.State, got)
		}
		s.resolve(en, pawl.AnswerHappened)
		result(t, s.reach(id, pawl.Succeeded), "c(told)")
		s.want(map[string]int{"a": 1, "b": 1, "c": 1})
	})
}

// C75, C86: a crash at any named point re-executes no finished step, and the step in the window at most once more.
func TestC86_CrashAtEveryPoint(t *testing.T) {
	points := []hooks.Point{hooks.Claimed, hooks.StepReached, hooks.IntentWritten, hooks.EffectBegin, hooks.EffectDone,
		hooks.ResultWritten, hooks.TxCommitting, hooks.BodyDone, hooks.Ended, hooks.CommitSending}
	for _, point := range points {
		for nth := 1; nth <= 4; nth++ {
			t.Run(fmt.Sprint(point, nth), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) { crashAt(t, s, point, nth) })
			})
		}
	}
}

func crashAt(t *testing.T, s *stage, point hooks.Point, nth int) {
	s.table()
	w := flow("all", "v1", func(run *pawl.Run, in string) (v string, err error) {
		v = in
		for _, k := range kinds {
			if v, err = s.do(run, k, k.String(), v); err != nil {
				return "", err
			}
		}
		return s.tx(run, "last", v)
	})
	var seen atomic.Int32
	var hit atomic.Bool
	s.spawnProc(func(p *proc, o *pawl.Options) {
		o.Hooks.At = func(at hooks.Point, _, step string) {
			if at == point && int(seen.Add(1)) == nth {
				hit.Store(true)
				if at == hooks.TxCommitting || at == hooks.CommitSending || step == "tx" || step == "last" {
					p.kill()
					return
				}
				p.die()
			}
		}
	}, w)
	id := begin(s, w, "x")
	time.Sleep(10 * time.Second)
	s.spawn("b1", w)
	d := s.reach(id, pawl.Succeeded, pawl.Blocked)
	if d.State == pawl.Blocked {
		en := s.blocked(id, pawl.AskUncertain)
		if en.Step != "once" {
			t.Errorf("asked about %q, want only about the Once step", en.Step)
		}
		s.resolve(en, pawl.AnswerHappened)
		s.reach(id, pawl.Succeeded)
	}
	again := 0
	for _, k := range kinds {
		if k != fault.KindTx {
			again += max(0, s.count(k.String())-1) // a Tx that is rolled back has not happened, but what it carries goes with it (W16)
		}
	}
	if again > 1 || !hit.Load() && again > 0 {
		t.Errorf("%d effects were repeated, want at most the one in the window", again)
	}
	if s.rows("tx") != 1 || s.rows("last") != 1 || s.count("once") > 1 {
		t.Errorf("tx %d, last %d rows, once %d times, want one of each", s.rows("tx"), s.rows("last"), s.count("once"))
	}
}

// G3: while a process is inside a step, a second process does not start it.
func TestG3_TwoProcessesOneExecutes(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("charge", "v1", func(run *pawl.Run, in string) (string, error) { return s.keyed(run, "charge", in) })
		s.on("charge", func(ctx context.Context, _ int) (string, error) {
			time.Sleep(5 * time.Minute) // many leases
			return "charged", ctx.Err()
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(2 * time.Second)
		s.spawn("b1", w)
		result(t, s.reach(id, pawl.Succeeded), "charged")
		s.want(map[string]int{"charge": 1})
	})
}

// parked is a workflow whose step b waits for minutes, so that its run rests between two builds.
func parked(s *stage, version string, fn func(run *pawl.Run, in string) (string, error)) *pawl.Workflow[string, string] {
	s.on("wait", func(_ context.Context, n int) (string, error) {
		if n == 1 {
			return "", fault.RetryAfter(errors.New("later"), 3*time.Minute)
		}
		return "W", nil
	})
	return flow("deploy", version, fn)
}

// rebuilt runs the old body until its step "wait" is parked, then the new body under another build.
func rebuilt(s *stage, before, after func(run *pawl.Run, in string) (string, error)) pawl.RunID {
	s.t.Helper()
	w1, w2 := parked(s, "v1", before), parked(s, "v1", after)
	p := s.spawn("b1", w1)
	id := begin(s, w1, "x")
	s.reach(id, pawl.Waiting)
	p.stop()
	s.spawn("b2", w2)
	return id
}

func chain(s *stage, names ...string) func(run *pawl.Run, in string) (string, error) {
	return func(run *pawl.Run, in string) (string, error) {
		var got []string
		for _, n := range names {
			k := fault.KindKeyed
			if strings.HasPrefix(n, "mail") {
				k = fault.KindOnce
			}
			v, err := s.do(run, k, n, "in-"+n)
			if err != nil {
				return "", err
			}
			got = append(got, v)
		}
		return strings.Join(got, " "), nil
	}
}

// G5, G10, G12, C97: a step inserted before the resume point runs, nothing else repeats, and the run succeeds.
func TestG5_InsertedStepRunsAndNothingRepeats(t *testing.T) {
	for name, after := range map[string][]string{"front": {"new", "a", "b", "wait", "c"}, "middle": {"a", "new", "b", "wait", "c"}} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				id := rebuilt(s, chain(s, "a", "b", "wait", "c"), chain(s, after...))
				s.reach(id, pawl.Succeeded)
				s.want(map[string]int{"a": 1, "b": 1, "new": 1, "wait": 2, "c": 1})
			})
		})
	}
}

// G6, C96, C97: steps that change places keep their values.
func TestG6_ReorderedStepsKeepTheirValues(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := rebuilt(s, chain(s, "a", "b", "wait"), chain(s, "b", "a", "wait"))
		result(t, s.reach(id, pawl.Succeeded), "b(in-b) a(in-a) W")
		s.want(map[string]int{"a": 1, "b": 1})
	})
}

var errPlain = errors.New("plain sentinel")

// G7: what errors.Is says of a step's error is the same on the first execution and after a resume.
func TestG7_ErrorsReadTheSameBeforeAndAfterAResume(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var seen []string
		body := func(run *pawl.Run, _ string) (string, error) {
			_, err := s.rep(run, "a", "x")
			se, is := errors.AsType[*pawl.Error](err)
			f, isFault := errors.AsType[*fault.Fault](err)
			seen = append(seen, fmt.Sprint(errors.Is(err, fault.Reason("sold_out")), errors.Is(err, errPlain), is && se.Step == "a",
				isFault && f.Class == fault.InvalidRequest, fault.ClassOf(err), err))
			return s.rep(run, "wait", "x")
		}
		s.on("a", func(context.Context, int) (string, error) {
			return "", fault.Invalid(errors.Join(fault.Reason("sold_out"), errPlain))
		})
		s.reach(rebuilt(s, body, body), pawl.Succeeded)
		if len(seen) < 2 || seen[0] != seen[len(seen)-1] || !strings.HasPrefix(seen[0], "true false true true invalid_request") {
			t.Errorf("the body saw %q: want the reason to match, a plain sentinel never, and no difference", seen)
		}
		s.want(map[string]int{"a": 1})
	})
}

// G8, C26, C36, C82, C92: an error in b and a manual retry do not repeat a.
func TestG8_AfterAnErrorInBOnlyBIsRetried(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("ab", "v1", chain(s, "a", "b"))
		s.on("b", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", fault.Denied(errors.New("no key"))
			}
			return "B", nil
		})
		s.spawn("b1", w)
		first := s.reach(begin(s, w, "x"), pawl.Failed).ID
		d := s.reach(s.retry(first), pawl.Succeeded)
		result(t, d, "a(in-a) B")
		s.want(map[string]int{"a": 1, "b": 2})
		if s.keys["b"][0] != s.keys["b"][1] {
			t.Errorf("keys %q: a manual retry keeps the operation key (C36)", s.keys["b"])
		}
	})
}

// G11: attempt 2 of a step that ignores its timeout never runs while attempt 1 is alive.
func TestG11_AttemptsOfAStepNeverOverlap(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("stuck", "v1", func(run *pawl.Run, in string) (string, error) {
			return s.keyed(run, "a", in, pawl.Timeout(time.Second))
		})
		var alive, most atomic.Int32
		s.on("a", func(ctx context.Context, n int) (string, error) {
			most.Store(max(most.Load(), alive.Add(1)))
			defer alive.Add(-1)
			if n == 1 {
				time.Sleep(2 * time.Minute)
				return "", context.Cause(ctx)
			}
			return "A", nil
		})
		s.spawn("b1", w)
		s.spawn("b1", w)
		d := s.reach(begin(s, w, "x"), pawl.Succeeded)
		if most.Load() != 1 || s.count("a") != 2 {
			t.Errorf("%d attempts were alive at once, %d in all; want 1 and 2", most.Load(), s.count("a"))
		}
		if a := step(t, d, "a").Attempts[0]; a.Reason != fault.ReasonStepDeadline {
			t.Errorf("attempt 1 ended with reason %q, want %q", a.Reason, fault.ReasonStepDeadline)
		}
	})
}

// C77: what a step could depend on is durable before it starts (R1).
func TestC77_ResultsAreDurableBeforeTheNextStepStarts(t *testing.T) {
	for _, k := range kinds[:2] {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				var p *proc
				w := flow("durable", "v1", func(run *pawl.Run, _ string) (string, error) {
					a, err := s.rep(run, "a", "x")
					if err != nil {
						return "", err
					}
					return s.do(run, k, "b", a)
				})
				s.on("a", func(_ context.Context, n int) (string, error) { return fmt.Sprint("value ", n), nil })
				s.on("b", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						p.die()
					}
					return "B", nil
				})
				p = s.spawnWith(func(o *pawl.Options) { o.Hooks.FlushDelay = time.Hour }, w)
				id := begin(s, w, "x")
				time.Sleep(time.Second)
				s.spawn("b1", w)
				s.reach(id, pawl.Succeeded)
				if got := fmt.Sprint(s.ins["b"]); got != "[value 1 value 1]" {
					t.Errorf("b was given %s: after a crash it must get what it depended on before", got)
				}
				s.want(map[string]int{"a": 1})
			})
		})
	}
}
