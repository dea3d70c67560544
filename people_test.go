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
)

func mailer(s *stage, opts ...any) *pawl.Workflow[string, string] {
	return flow("mailer", "v1", func(run *pawl.Run, in string) (string, error) {
		v, err := s.mail(run, "mail", in, opts...)
		if err != nil {
			return "", err
		}
		return s.rep(run, "c", v)
	})
}

// lostRun has a Once step "mail" whose worker dies in the callback, then a step c.
func lostRun(s *stage, opts ...any) pawl.RunID {
	s.t.Helper()
	w := mailer(s, opts...)
	var p *proc
	s.on("mail", func(_ context.Context, n int) (string, error) {
		if n == 1 {
			p.die()
		}
		return "sent", nil
	})
	p = s.spawn("b1", w)
	id := begin(s, w, "x")
	for s.count("mail") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	s.spawn("b1", w)
	return id
}

// unknownRun is lostRun with an attempt that ended: its own process reported an error that nobody recognises.
func unknownRun(s *stage, opts ...any) pawl.RunID {
	s.t.Helper()
	w := mailer(s, opts...)
	s.on("mail", func(_ context.Context, n int) (string, error) {
		if n == 1 {
			return "", errors.New("connection fell over")
		}
		return "sent", nil
	})
	s.spawn("b1", w)
	return begin(s, w, "x")
}

func uncertain(s *stage) (pawl.RunID, pawl.Entry) {
	s.t.Helper()
	id := lostRun(s)
	return id, s.blocked(id, pawl.AskUncertain)
}

// C93: "happened" gives the step the result that the person told.
func TestC93_HappenedGivesTheResult(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, en := uncertain(s)
		s.resolve(en, pawl.AnswerHappened)
		result(t, s.reach(id, pawl.Succeeded), "c(told)")
		s.want(map[string]int{"mail": 1})
	})
}

// W5: "did not happen" is refused while the attempt may still act, and then only counts if the looking began later.
func TestW5_DidNotHappenCountsOnlyAfterTheAttemptIsOver(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, en := uncertain(s)
		early := time.Now()
		if en.Over || !en.OverAt.After(early) {
			t.Errorf("over %v at %v: the inbox must say until when it may still happen", en.Over, en.OverAt)
		}
		if err := s.answer(en, pawl.AnswerDidNotHappen, "ann"); !errors.Is(err, pawl.ErrTooEarly) {
			t.Errorf("got %v, want ErrTooEarly", err)
		}
		time.Sleep(en.OverAt.Sub(early) + time.Second)
		a := pawl.Answer{Entry: en.ID, Attempt: en.Attempt, Choice: pawl.AnswerDidNotHappen, By: "ann", Looked: early}
		if err := s.desk.Resolve(t.Context(), a); !errors.Is(err, pawl.ErrTooEarly) {
			t.Errorf("the looking began before the end of the attempt: got %v, want ErrTooEarly", err)
		}
		a.Looked = time.Time{}
		mentions(t, s.desk.Resolve(t.Context(), a), "Looked")
		s.want(map[string]int{"mail": 1})
		s.resolve(en, pawl.AnswerDidNotHappen)
		result(t, s.reach(id, pawl.Succeeded), "c(sent)")
		s.want(map[string]int{"mail": 2})
		if s.keys["mail"][0] != s.keys["mail"][1] {
			t.Errorf("keys %q: the second attempt has the same key", s.keys["mail"])
		}
	})
}

// C93, C95: "give up" ends the run as failed (gave_up), or as cancelled if that was asked.
func TestC93_GiveUpEndsTheRun(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		t.Run(fmt.Sprint("cancel ", cancel), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				id, en := uncertain(s)
				want := pawl.Failed
				if cancel {
					want = pawl.Cancelled
					if st, err := s.desk.Cancel(t.Context(), id, ann); err != nil || st != pawl.Blocked {
						t.Errorf("Cancel gave %s, %v: a run with an uncertain step waits for the answer", st, err)
					}
				}
				s.resolve(en, pawl.AnswerGiveUp)
				d := s.reach(id, want)
				if !cancel && (d.Fault == nil || d.Fault.Reason != fault.ReasonGaveUp) {
					t.Errorf("fault %+v, want reason gave_up", d.Fault)
				}
				if st := step(t, d, "mail"); st.State != pawl.StepGivenUp {
					t.Errorf("step is %s, want given_up", st.State)
				}
				s.want(map[string]int{"mail": 1, "c": 0})
			})
		})
	}
}

// A person who gives up while a worker has the run is heeded, also if that worker stops before the body comes to the step
// and the body would go on without it.
func TestGiveUpWhileTheBodyRuns(t *testing.T) {
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprint("stops ", stops), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("mailer", "v1", func(run *pawl.Run, in string) (string, error) {
					time.Sleep(10 * time.Second)
					if _, err := s.mail(run, "mail", in); err != nil {
						return "went on without", nil //nolint:nilerr // what this test is about
					}
					return "mailed", nil
				})
				var p *proc
				s.on("mail", func(context.Context, int) (string, error) {
					p.die()
					return "", nil
				})
				p = s.spawn("b1", w)
				id := begin(s, w, "x")
				for s.count("mail") == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				next := s.spawn("b1", w)
				for len(s.show(s.desk, id).Entries) == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				en := s.entry(s.desk, pawl.AskUncertain)
				s.resolve(en, pawl.AnswerGiveUp)
				if d := s.show(s.desk, id); d.State != pawl.Running {
					t.Fatalf("run is %s, so the test shows nothing", d.State)
				}
				if stops {
					next.stop()
				}
				if d := s.reach(id, pawl.Failed); d.Fault == nil || d.Fault.Reason != fault.ReasonGaveUp {
					t.Errorf("fault %+v, want gave_up", d.Fault)
				}
			})
		})
	}
}

// W10, C112: an answer names the attempt; the second answer is told who was first, and when; the same one is no error.
func TestC112_AnswersAreOnceOnly(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, en := uncertain(s)
		wrong := en
		wrong.Attempt = 2
		if err := s.answer(wrong, pawl.AnswerHappened, "ann"); !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("wrong attempt: got %v, want a conflict", err)
		}
		mentions(t, s.answer(en, pawl.AnswerResume, "ann"), "uncertain", "happened", "give_up")
		if err := s.answer(en, pawl.AnswerHappened, ""); err == nil {
			t.Error("an answer without a name was taken")
		}
		s.resolve(en, pawl.AnswerHappened)
		if err := s.answer(en, pawl.AnswerHappened, "ann"); err != nil {
			t.Errorf("the same answer again: got %v, want no error", err)
		}
		err := s.answer(en, pawl.AnswerGiveUp, "bob")
		mentions(t, err, "ann", "happened", time.Now().UTC().Format("2006-01-02"))
		if !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("second answer: got %v, want a conflict", err)
		}
		d := s.reach(id, pawl.Succeeded)
		if len(d.Audit) != 1 || d.Audit[0].By != "ann" || d.Audit[0].Act != "resolve" || d.Audit[0].Reason != "because" || d.Audit[0].Step != "mail" {
			t.Errorf("audit %+v, want one act of ann's", d.Audit)
		}
	})
}

// An answer that is no JSON, or too large, is refused and changes nothing.
func TestBadAnswerResultIsRefused(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, en := uncertain(s)
		for name, result := range map[string]string{"no JSON": "{", "too large": `"` + strings.Repeat("x", 2<<20) + `"`} {
			a := pawl.Answer{Entry: en.ID, Attempt: 1, Choice: pawl.AnswerHappened, By: "ann", Result: []byte(result)}
			if err := s.desk.Resolve(t.Context(), a); err == nil {
				t.Errorf("%s was taken", name)
			}
		}
		s.blocked(id, pawl.AskUncertain)
	})
}

// A result of the wrong type told by a person blocks the run with `decode`; it is never a failed step.
func TestToldResultOfTheWrongTypeBlocks(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, en := uncertain(s)
		if err := s.desk.Resolve(t.Context(), pawl.Answer{Entry: en.ID, Attempt: 1, Choice: pawl.AnswerHappened, By: "ann", Result: []byte(`{"a":1}`)}); err != nil {
			return // refusing it at once is better still
		}
		if got := s.blocked(id, pawl.AskDecode); got.Step != "mail" && !strings.Contains(got.Detail, "mail") {
			t.Errorf("entry %+v does not name the step", got)
		}
	})
}

// A probe is asked before a person is, and what it says counts by the rules of 5.6.
func TestProbe(t *testing.T) {
	type say struct {
		v   pawl.Verdict
		err error
	}
	never := errors.New("sent folder is away")
	for name, tc := range map[string]struct {
		ended  bool  // the attempt's own process reported its end
		says   []say // the last one repeats
		want   pawl.RunState
		out    string
		mails  int
		closed string // who closed the entry
	}{
		"happened":                           {false, []say{{pawl.Happened, nil}}, pawl.Succeeded, "c(probed)", 1, "probe"},
		"happened, with an error":            {false, []say{{pawl.Happened, never}}, pawl.Blocked, "", 1, ""},
		"cannot tell":                        {false, []say{{pawl.CannotTell, nil}}, pawl.Blocked, "", 1, ""},
		"did not happen, attempt over":       {true, []say{{pawl.DidNotHappen, nil}}, pawl.Succeeded, "c(sent)", 2, "probe"},
		"did not happen, said too early":     {false, []say{{pawl.DidNotHappen, nil}, {pawl.CannotTell, nil}}, pawl.Blocked, "", 1, ""},
		"did not happen, said again later":   {false, []say{{pawl.DidNotHappen, nil}}, pawl.Succeeded, "c(sent)", 2, "probe"},
		"too early no, then happened":        {false, []say{{pawl.DidNotHappen, nil}, {pawl.Happened, nil}}, pawl.Succeeded, "c(probed)", 1, "probe"},
		"an error, then happened":            {true, []say{{pawl.CannotTell, never}, {pawl.Happened, nil}}, pawl.Succeeded, "c(probed)", 1, "probe"},
		"an error for ever":                  {true, []say{{pawl.CannotTell, never}}, pawl.Blocked, "", 1, ""},
		"a verdict outside of the constants": {true, []say{{pawl.Verdict(9), nil}}, pawl.Blocked, "", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				asked := 0
				probe := pawl.Probe(time.Second, func(_ context.Context, it pawl.Intent, in string) (string, pawl.Verdict, error) {
					if in != "x" || it.Attempt != 1 || len(it.Key) != 52 || it.Begun.IsZero() {
						t.Errorf("the probe got %+v, %q; want the attempt's intent and input", it, in)
					}
					v := tc.says[min(asked, len(tc.says)-1)]
					asked++
					return "probed", v.v, v.err
				})
				set := map[bool]func(*stage, ...any) pawl.RunID{true: unknownRun, false: lostRun}[tc.ended]
				id := set(s, probe)
				time.Sleep(4 * time.Minute)
				d := s.show(s.desk, id)
				if d.State != tc.want || asked == 0 || asked > 5 {
					t.Fatalf("run is %s after %d probes, want %s after 1 to 5; %+v", d.State, asked, tc.want, d.Entries)
				}
				if tc.want == pawl.Succeeded {
					result(t, d, tc.out)
				}
				s.want(map[string]int{"mail": tc.mails})
				for _, en := range d.Entries {
					if en.By != tc.closed {
						t.Errorf("entry was closed by %q, want %q", en.By, tc.closed)
					}
				}
			})
		})
	}
}

// zombie is lostRun with a worker that comes back: the returned function lets its callback end, with the given error.
func zombie(s *stage) (id pawl.RunID, wake func(err error)) {
	s.t.Helper()
	ends := make(chan error, 1)
	var p *proc
	s.on("mail", func(_ context.Context, n int) (string, error) {
		if n > 1 {
			return "sent again", nil
		}
		p.kill()
		err := <-ends
		p.store.dead.Store(false)
		return "late", err
	})
	w := mailer(s)
	p = s.spawn("b1", w)
	id = begin(s, w, "x")
	for s.count("mail") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	s.spawn("b1", w)
	return id, func(err error) { ends <- err }
}

// DESIGN 5.6: the late report of a fenced worker settles the step, and never writes by itself.
func TestLateEvidenceSettles(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
		n    int
	}{"happened": {nil, "c(late)", 1}, "did not happen": {fault.Rejected(errors.New("refused")), "c(sent again)", 2}} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				id, wake := zombie(s)
				s.blocked(id, pawl.AskUncertain)
				wake(tc.err)
				d := s.reach(id, pawl.Succeeded)
				result(t, d, tc.want)
				s.want(map[string]int{"mail": tc.n})
				if len(d.Evidence) != 1 || d.Evidence[0].Source != "worker" || d.Evidence[0].Attempt != 1 {
					t.Errorf("evidence %+v, want the worker's report", d.Evidence)
				}
			})
		})
	}
}

// A late report that cannot tell settles nothing, but the attempt is over from then on.
func TestLateEvidenceWithoutAVerdictEndsTheAttempt(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, wake := zombie(s)
		s.blocked(id, pawl.AskUncertain)
		wake(errors.New("connection fell over"))
		time.Sleep(2 * time.Second)
		en := s.blocked(id, pawl.AskUncertain)
		inbox := s.entry(s.desk, pawl.AskUncertain)
		if !inbox.Over {
			t.Errorf("the inbox says it may still happen until %v", inbox.OverAt)
		}
		s.resolve(en, pawl.AnswerDidNotHappen)
		result(t, s.reach(id, pawl.Succeeded), "c(sent again)")
	})
}

// DESIGN 5.6, I5: evidence that contradicts an answer opens the entry "may have happened twice".
func TestEvidenceAgainstAnAnswer(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, wake := zombie(s)
		en := s.blocked(id, pawl.AskUncertain)
		time.Sleep(time.Until(en.OverAt) + time.Second) // the residual window: frozen for longer than all that
		s.resolve(en, pawl.AnswerDidNotHappen)
		s.reach(id, pawl.Succeeded)
		wake(nil)
		time.Sleep(2 * time.Second)
		twice := s.entry(s.desk, pawl.AskTwice)
		if twice.Run != id || twice.Step != "mail" || twice.Attempt != 1 {
			t.Errorf("entry %+v, want run, step and attempt 1", twice)
		}
		if d := s.show(s.desk, id); d.State != pawl.Succeeded || string(d.Result) != `"c(sent again)"` {
			t.Errorf("run is %s with %s: a terminal run never changes (C47, C50)", d.State, d.Result)
		}
		s.resolve(twice, pawl.AnswerAcknowledge)
	})
}

// A worker that cannot reach the database goes on trying to report, for as long as it lives: nobody else knows.
func TestReportOutlastsALongOutage(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var p *proc
		s.on("mail", func(context.Context, int) (string, error) {
			p.kill()
			go func() {
				time.Sleep(3 * time.Minute)
				p.store.dead.Store(false)
			}()
			time.Sleep(30 * time.Second) // another worker has taken the run over
			return "late", nil
		})
		w := mailer(s)
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		for s.count("mail") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		s.spawn("b1", w)
		s.blocked(id, pawl.AskUncertain)
		result(t, s.reach(id, pawl.Succeeded), "c(late)")
		s.want(map[string]int{"mail": 1})
	})
}

// The same where a retry inherited the question, was told that nothing happened, and has sent again.
func TestEvidenceAgainstAnHeir(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, wake := zombie(s)
		s.resolve(s.blocked(id, pawl.AskUncertain), pawl.AnswerGiveUp)
		s.reach(id, pawl.Failed)
		heir := s.retry(id)
		en := s.blocked(heir, pawl.AskUncertain)
		time.Sleep(max(0, time.Until(en.OverAt)) + time.Second)
		s.resolve(en, pawl.AnswerDidNotHappen)
		result(t, s.reach(heir, pawl.Succeeded), "c(sent again)")
		wake(nil)
		time.Sleep(2 * time.Second)
		s.want(map[string]int{"mail": 2})
		if twice := s.entry(s.desk, pawl.AskTwice); twice.Run != heir || twice.Step != "mail" {
			t.Errorf("entry %+v, want the retry and its step", twice)
		}
	})
}

// C95, W7: late evidence about a step that was given up is kept, and the terminal run stays as it is.
func TestC50_LateEvidenceChangesNoTerminalRun(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, wake := zombie(s)
		s.resolve(s.blocked(id, pawl.AskUncertain), pawl.AnswerGiveUp)
		s.reach(id, pawl.Failed)
		wake(nil)
		time.Sleep(2 * time.Second)
		if d := s.show(s.desk, id); d.State != pawl.Failed || len(d.Evidence) != 1 {
			t.Errorf("run is %s with evidence %+v, want failed and the report kept", d.State, d.Evidence)
		}
		plan := s.plan(id, pawl.PlanOptions{Mode: pawl.PlanRetry})
		if len(plan.Steps) == 0 || plan.Steps[0].Fate != pawl.Ask {
			t.Errorf("plan %+v: a given-up step is asked about (C91)", plan.Steps)
		}
	})
}

// Cancel in every state the run may be in.
func TestCancelByState(t *testing.T) {
	for name, tc := range map[string]struct {
		work bool
		mail effect
		at   pawl.RunState
		want pawl.RunState // what Cancel answers
		undo int
	}{
		"queued":  {false, nil, pawl.Queued, pawl.Cancelled, 0},
		"running": {true, func(ctx context.Context, _ int) (string, error) { <-ctx.Done(); return "", fault.NotSent(ctx.Err()) }, pawl.Running, pawl.Running, 1},
		"waiting": {true, func(context.Context, int) (string, error) {
			return "", fault.RetryAfter(errors.New("busy"), time.Hour)
		}, pawl.Waiting, pawl.Queued, 1},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("mailer", "v1", func(run *pawl.Run, in string) (string, error) {
					if _, err := s.rep(run, "a", in); err != nil {
						return "", err
					}
					v, err := s.mail(run, "mail", in)
					if err != nil {
						_, uerr := s.keyed(run.WithoutCancel(), "undo", in)
						return "", errors.Join(err, uerr)
					}
					return v, nil
				})
				s.on("mail", tc.mail)
				if tc.work {
					s.spawn("b1", w)
				}
				id := begin(s, w, "x")
				time.Sleep(4 * time.Second)
				s.reach(id, tc.at)
				if st, err := s.desk.Cancel(t.Context(), id, ann); err != nil || st != tc.want {
					t.Errorf("Cancel gave %s, %v; want %s", st, err, tc.want)
				}
				d := s.reach(id, pawl.Cancelled)
				s.want(map[string]int{"undo": tc.undo})
				if d.CancelBy != "ann" || d.CancelWhy != "because" || len(d.Audit) != 1 {
					t.Errorf("cancelled by %q, %q, audit %+v: want it attributed (C112)", d.CancelBy, d.CancelWhy, d.Audit)
				}
				if st, err := s.desk.Cancel(t.Context(), id, ann); err != nil || st != pawl.Cancelled {
					t.Errorf("second Cancel gave %s, %v", st, err)
				}
			})
		})
	}
}

// I1, FR-017: of cancel and completion the first commit wins, and the loser is told.
func TestCancelAfterCompletionIsTold(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("quick", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "a", in) })
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Succeeded)
		if _, err := s.desk.Cancel(t.Context(), id, ann); !errors.Is(err, pawl.ErrTerminal) {
			t.Errorf("got %v, want ErrTerminal", err)
		}
		if d := s.show(s.desk, id); d.State != pawl.Succeeded || d.Cancel {
			t.Errorf("run is %s, cancel %v: a terminal run never changes", d.State, d.Cancel)
		}
	})
}

// A body that ignores the cancel request and succeeds has succeeded.
func TestCancelOfABodyThatSucceeds(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("stubborn", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "a", in) })
		s.on("a", func(context.Context, int) (string, error) { time.Sleep(20 * time.Second); return "A", nil })
		s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(4 * time.Second)
		if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
			t.Fatal(err)
		}
		if d := s.reach(id, pawl.Succeeded, pawl.Cancelled); d.State == pawl.Succeeded && string(d.Result) != `"A"` {
			t.Errorf("result %s", d.Result)
		}
	})
}

// C67, FR-093, DESIGN 5.7: five lost workers block the run; it can be resumed and cancelled; others go on.
func TestCrashLoop(t *testing.T) {
	for _, choice := range []pawl.Choice{pawl.AnswerResume, pawl.AnswerCancel} {
		t.Run(string(choice), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("killer", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "a", in) })
				var p atomic.Pointer[proc]
				s.on("a", func(_ context.Context, n int) (string, error) {
					if n <= 5 {
						time.Sleep(time.Second) // p is set
						p.Load().die()
					}
					return "A", nil
				})
				id := begin(s, w, "x")
				for i := 1; i <= 5; i++ {
					p.Store(s.spawn("b1", w))
					for n := 0; s.count("a") < i; n++ {
						if n > 1000 {
							t.Fatalf("the run was not taken a %dth time: %+v", i, s.show(s.desk, id).RunInfo)
						}
						time.Sleep(100 * time.Millisecond)
					}
					time.Sleep(15 * time.Second) // not a mass expiry
				}
				s.spawn("b1", w)
				en := s.blocked(id, pawl.AskCrashLoop)
				s.want(map[string]int{"a": 5})
				s.reach(begin(s, flow("killer", "v1", nil2), "y"), pawl.Succeeded)
				s.resolve(en, choice)
				if choice == pawl.AnswerCancel {
					s.reach(id, pawl.Cancelled)
					return
				}
				result(t, s.reach(id, pawl.Succeeded), "A")
			})
		})
	}
}

// A worker that has survived a suspect run is not marked by it any more.
func TestSurvivedSuspectIsForgotten(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("killer", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "a", in) })
		marks := func() (n int) {
			if err := s.bench.store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM pawl_workers WHERE suspect_run IS NOT NULL`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		var p atomic.Pointer[proc]
		s.on("a", func(_ context.Context, n int) (string, error) {
			if n <= 2 {
				time.Sleep(time.Second) // p is set
				p.Load().die()
				return "", errDead
			}
			if got := marks(); got != 1 {
				t.Errorf("%d workers are marked while one runs a suspect, want 1", got)
			}
			return "A", nil
		})
		id := begin(s, w, "x")
		for i := 1; i <= 2; i++ {
			p.Store(s.spawn("b1", w))
			for s.count("a") < i {
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(15 * time.Second) // not a mass expiry
		}
		s.spawn("b1", w)
		s.reach(id, pawl.Succeeded)
		time.Sleep(time.Second)
		if got := marks(); got != 0 {
			t.Errorf("%d workers are marked after the suspect has succeeded, want 0", got)
		}
	})
}

func nil2(*pawl.Run, string) (string, error) { return "", nil }

// C106: looking at a run, the inbox or a plan writes nothing.
func TestC106_LookingWritesNothing(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id, _ := uncertain(s)
		m := &mortal{Store: s.bench.store}
		e, err := pawl.New(m, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.show(e, id)
		_, _, err1 := e.Runs(t.Context(), pawl.RunQuery{})
		_, _, err2 := e.Inbox(t.Context(), pawl.InboxQuery{All: true})
		_, err3 := e.Plan(t.Context(), id, pawl.PlanOptions{Mode: pawl.PlanRetry})
		if err := errors.Join(err1, err2, err3); err != nil || m.commits.Load() != 0 {
			t.Errorf("%d write transactions, %v; want none", m.commits.Load(), err)
		}
		s.want(map[string]int{"mail": 1})
	})
}
