package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

var (
	errUnknown   = errors.New("nobody knows me")
	errTransient = fault.Rejected(errors.New("busy"))
	errCut       = error(fault.ReasonConnectionLost)
)

// one defines a workflow of one step "a" of that kind that answers, and starts a run of it under a worker.
func one(s *stage, k pawl.Kind, answers []error, opts ...any) pawl.RunID {
	s.t.Helper()
	s.table()
	w := flow("one", "v1", func(run *pawl.Run, in string) (string, error) { return s.do(run, k, "a", in, opts...) })
	s.on("a", func(_ context.Context, n int) (string, error) {
		if n <= len(answers) {
			return "A", answers[n-1]
		}
		return "A", answers[len(answers)-1]
	})
	s.spawn("b1", w)
	return begin(s, w, "x")
}

// C1 to C10, C16, C32, DESIGN 5.7: how often a step is tried, by what its attempts end with.
func TestC1_AttemptsByKindAndClass(t *testing.T) {
	quota := &fault.Fault{Class: fault.QuotaExhausted, Outcome: fault.OutcomeRejected, Err: errors.New("no money")}
	policy := &fault.Fault{Class: fault.ContentPolicy, Outcome: fault.OutcomeRejected, Err: errors.New("no")}
	rep, key, tx, once := fault.KindRepeatable, fault.KindKeyed, fault.KindTx, fault.KindOnce
	all := []pawl.Kind{rep, key, tx, once}
	for name, tc := range map[string]struct {
		answers []error // the last one repeats
		kinds   []pawl.Kind
		opts    []any
		tries   int
		end     pawl.RunState
	}{
		"denied":                      {[]error{fault.Denied(errUnknown)}, all, nil, 1, pawl.Failed},
		"invalid":                     {[]error{fault.Invalid(errUnknown)}, all, nil, 1, pawl.Failed},
		"content policy":              {[]error{policy}, all, nil, 1, pawl.Failed},
		"quota without a reset":       {[]error{quota}, all, nil, 1, pawl.Failed},
		"C8 denied on attempt 2":      {[]error{errTransient, fault.Denied(errUnknown)}, all, nil, 2, pawl.Failed},
		"C10 passes within budget":    {[]error{errTransient, errTransient, nil}, all, nil, 3, pawl.Succeeded},
		"C16 transient for ever":      {[]error{errTransient}, all, nil, 10, pawl.Failed},
		"own policy":                  {[]error{errTransient}, all, []any{pawl.Retry(pawl.RetryPolicy{Attempts: 2})}, 2, pawl.Failed},
		"unknown":                     {[]error{errUnknown}, []pawl.Kind{rep, key}, nil, 3, pawl.Failed},
		"unknown, paid":               {[]error{errUnknown}, []pawl.Kind{rep, key}, []any{pawl.Paid()}, 1, pawl.Failed},
		"unknown in a Tx":             {[]error{errUnknown}, []pawl.Kind{tx}, nil, 1, pawl.Failed},
		"unknown in Once":             {[]error{errUnknown}, []pawl.Kind{once}, nil, 1, pawl.Blocked},
		"unknown in Once, attempt 2":  {[]error{errTransient, errUnknown}, []pawl.Kind{once}, nil, 2, pawl.Blocked},
		"C28 Retry on Once":           {[]error{errUnknown}, []pawl.Kind{once}, []any{pawl.Retry(pawl.RetryPolicy{Attempts: 9})}, 1, pawl.Blocked},
		"cut connection":              {[]error{errCut}, []pawl.Kind{rep, key}, nil, 3, pawl.Failed},
		"cut connection, paid":        {[]error{errCut}, []pawl.Kind{rep, key}, []any{pawl.Paid()}, 3, pawl.Failed},
		"cut connection in Once":      {[]error{errCut}, []pawl.Kind{once}, nil, 1, pawl.Blocked},
		"EOF in Once":                 {[]error{io.ErrUnexpectedEOF}, []pawl.Kind{once}, nil, 1, pawl.Blocked},
		"a step that says canceled":   {[]error{fault.ErrRunCanceled}, []pawl.Kind{rep, key}, nil, 3, pawl.Failed},
		"context.Canceled of its own": {[]error{context.Canceled}, []pawl.Kind{once}, nil, 1, pawl.Blocked},
	} {
		for _, k := range tc.kinds {
			t.Run(fmt.Sprint(name, " ", k), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					began := time.Now()
					d := s.reach(one(s, k, tc.answers, tc.opts...), tc.end)
					if n := s.count("a"); n != tc.tries {
						t.Errorf("%d attempts, want %d", n, tc.tries)
					}
					if took := time.Since(began); tc.tries == 1 && took > 5*time.Second || took > 20*time.Minute {
						t.Errorf("took %v: a single attempt adds no delay, and retries end within the budget", took)
					}
					a := step(t, d, "a")
					if len(a.Attempts) < tc.tries {
						t.Errorf("%d attempts are on record, want %d (C13, C62): %+v", len(a.Attempts), tc.tries, a.Attempts)
					}
					if tc.end == pawl.Blocked {
						s.blocked(d.ID, pawl.AskUncertain)
					}
				})
			})
		}
	}
}

// C13, C17, C62, C64: each attempt is kept with class, outcome, reason, delay and latency; the delays are bounded.
func TestC13_AttemptsAreOnRecord(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := one(s, fault.KindKeyed, nil, pawl.Retry(pawl.RetryPolicy{Attempts: 6, First: 100 * time.Millisecond, Max: time.Second}))
		s.on("a", func(_ context.Context, n int) (string, error) {
			time.Sleep(time.Duration(n) * 10 * time.Millisecond)
			return "A", errTransient
		})
		a := step(t, s.reach(id, pawl.Failed), "a")
		if len(a.Attempts) != 6 {
			t.Fatalf("%d attempts on record, want 6", len(a.Attempts))
		}
		for i, at := range a.Attempts {
			if at.Attempt != i+1 || at.State != "failed" || at.Class != fault.Transient || at.Outcome != fault.OutcomeRejected ||
				at.Reason != fault.ReasonRejected || !strings.Contains(at.Message, "busy") || at.Worker == "" || at.Begun.IsZero() ||
				at.Latency < time.Duration(i+1)*10*time.Millisecond || at.Latency > time.Second {
				t.Errorf("attempt %d is recorded as %+v", i+1, at)
			}
			most := min(100*time.Millisecond<<i, time.Second)
			if at.Wait < 0 || at.Wait > most || i == 5 && at.Wait != 0 {
				t.Errorf("the wait after attempt %d is %v, want at most %v and none after the last", i+1, at.Wait, most)
			}
			if i > 0 && at.Begun.Sub(a.Attempts[i-1].Ended) < a.Attempts[i-1].Wait-3*time.Millisecond {
				t.Errorf("attempt %d began %v after the one before, which was to wait %v", i+1, at.Begun.Sub(a.Attempts[i-1].Ended), a.Attempts[i-1].Wait)
			}
		}
	})
}

// C20, DESIGN 5.7: a told delay is waited for, jittered upwards only; over 5 s the run is waiting and the slot is free.
func TestC20_ToldDelayParksTheRun(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.opts.Slots = 1
				began := time.Now()
				id := one(s, k, []error{fault.RetryAfter(errors.New("slow down"), 3*time.Minute), nil})
				d := s.reach(id, pawl.Waiting)
				a := step(t, d, "a")
				if a.State != pawl.StepRetrying || a.NextAt.Before(began.Add(3*time.Minute)) || d.Due.Before(began.Add(3*time.Minute)) || d.Owner != "" {
					t.Errorf("step is %s, next at %v, run due %v: want a stored time not before %v, and no owner", a.State, a.NextAt, d.Due, began.Add(3*time.Minute))
				}
				other := flow("one", "v1", func(*pawl.Run, string) (string, error) { return "", nil })
				s.on("a", func(context.Context, int) (string, error) { return "A", nil })
				s.reach(begin(s, other, "y"), pawl.Succeeded) // the one slot is free
				if took := time.Since(began); took > time.Minute {
					t.Errorf("another run got the slot only after %v", took)
				}
				s.reach(id, pawl.Succeeded)
				if took := time.Since(began); took < 3*time.Minute || took > 5*time.Minute {
					t.Errorf("it went on after %v, want a little more than the told 3 min", took)
				}
			})
		})
	}
}

// C19, C20: a told delay over 24 h fails at once and is in the error; a told one does not use up the elapsed budget.
func TestToldDelays(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		d := s.reach(one(s, fault.KindOnce, []error{fault.RetryAfter(errors.New("come back"), 25*time.Hour)}), pawl.Failed)
		if s.count("a") != 1 || d.Fault.Delay != 25*time.Hour || d.Fault.Class != fault.RateLimited {
			t.Errorf("fault %+v after %d attempts, want the told 25 h in it after 1", d.Fault, s.count("a"))
		}
	})
}

func TestToldDelayDoesNotCountAsElapsed(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		later := fault.RetryAfter(errors.New("slow down"), 2*time.Minute)
		s.reach(one(s, fault.KindKeyed, []error{later, errTransient, nil}, pawl.Retry(pawl.RetryPolicy{Total: time.Minute})), pawl.Succeeded)
		s.want(map[string]int{"a": 3})
	})
}

func TestQuotaWithAToldResetIsWaitedFor(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		quota := &fault.Fault{Class: fault.QuotaExhausted, Outcome: fault.OutcomeRejected, Delay: 3 * time.Minute, Err: errors.New("spent")}
		id := one(s, fault.KindKeyed, []error{quota, nil})
		s.reach(id, pawl.Waiting)
		s.reach(id, pawl.Succeeded)
		s.want(map[string]int{"a": 2})
	})
}

// C24: the count of attempts is durable: neither a parked wait nor a lost worker resets it.
func TestC24_AttemptsSurviveParkingAndCrashes(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				w := flow("one", "v1", func(run *pawl.Run, in string) (string, error) {
					return s.do(run, k, "a", in, pawl.Retry(pawl.RetryPolicy{Attempts: 3}))
				})
				s.on("a", func(context.Context, int) (string, error) {
					return "", fault.RetryAfter(errors.New("busy"), 30*time.Second)
				})
				p := s.spawn("b1", w)
				id := begin(s, w, "x")
				s.reach(id, pawl.Waiting)
				p.kill()
				s.spawn("b1", w)
				d := s.reach(id, pawl.Failed)
				if got := step(t, d, "a").Attempts; s.count("a") != 3 || len(got) != 3 {
					t.Errorf("%d executions, %d on record, want 3 in all", s.count("a"), len(got))
				}
			})
		})
	}
}

// A lost worker is not an error of the step's: it does not use up its attempts.
func TestLostWorkersAreCountedApart(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("one", "v1", func(run *pawl.Run, in string) (string, error) {
			return s.keyed(run, "a", in, pawl.Retry(pawl.RetryPolicy{Attempts: 2}))
		})
		var p *proc
		s.on("a", func(_ context.Context, n int) (string, error) {
			switch n {
			case 1:
				p.die()
			case 2:
				return "", errTransient
			}
			return "A", nil
		})
		p = s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(5 * time.Second)
		s.spawn("b1", w)
		d := s.reach(id, pawl.Succeeded)
		if got := states(step(t, d, "a")); got != "lost failed succeeded" {
			t.Errorf("attempts %q, want lost failed succeeded", got)
		}
	})
}

// BlockOnExhausted: exhausted attempts ask a person; a resume begins to count anew.
func TestBlockOnExhausted(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.table()
				w := flow("one", "v1", func(run *pawl.Run, in string) (string, error) {
					return s.do(run, k, "a", in, pawl.Retry(pawl.RetryPolicy{Attempts: 2}))
				}, pawl.BlockOnExhausted())
				s.on("a", func(_ context.Context, n int) (string, error) {
					if n == 4 {
						return "A", nil
					}
					return "", errTransient
				})
				s.spawn("b1", w)
				id := begin(s, w, "x")
				en := s.blocked(id, pawl.AskLimit)
				if en.Step != "a" || !strings.Contains(en.Detail, "busy") {
					t.Errorf("entry %+v does not say which step and why", en)
				}
				s.want(map[string]int{"a": 2})
				s.resolve(en, pawl.AnswerResume)
				d := s.reach(id, pawl.Succeeded)
				s.want(map[string]int{"a": 4})
				if got := states(step(t, d, "a")); got != "failed failed failed succeeded" {
					t.Errorf("attempts %q", got)
				}
			})
		})
	}
}

func TestLimitCanBeCancelled(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("one", "v1", func(run *pawl.Run, in string) (string, error) { return s.keyed(run, "a", in) }, pawl.BlockOnExhausted())
		s.on("a", func(context.Context, int) (string, error) { return "", errUnknown })
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.resolve(s.blocked(id, pawl.AskLimit), pawl.AnswerCancel)
		s.reach(id, pawl.Cancelled)
	})
}

// C65, I8: what attempts report is kept with each of them and summed once.
func TestI8_CostIsTheSumOfAllAttempts(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		id := one(s, fault.KindKeyed, nil)
		s.on("a", func(ctx context.Context, n int) (string, error) {
			pawl.Report(ctx, pawl.Usage{Provider: "acme", TokensIn: 10, CostMicros: 100})
			pawl.Report(ctx, pawl.Usage{RequestID: fmt.Sprint("req-", n), TokensOut: 1, CostMicros: 1})
			if n < 3 {
				return "", errTransient
			}
			return "A", nil
		})
		d := s.reach(id, pawl.Succeeded)
		if d.Cost.CostMicros != 303 || d.Cost.TokensIn != 30 || d.Cost.TokensOut != 3 {
			t.Errorf("cost %+v, want 303 micros, 30 and 3 tokens", d.Cost)
		}
		for i, at := range step(t, d, "a").Attempts {
			if at.Usage.CostMicros != 101 || at.Usage.RequestID != fmt.Sprint("req-", i+1) || at.Usage.Provider != "acme" {
				t.Errorf("attempt %d has usage %+v", i+1, at.Usage)
			}
		}
	})
}

// C33, C34, C36: the operation key is the same for all attempts, a resume and a manual retry; it is fixed for ever.
func TestC36_OneKeyPerOperation(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.opts.Namespace = "golden"
		s.desk = s.engine()
		w := flow("pay", "v1", func(run *pawl.Run, in string) (string, error) { return s.keyed(run.Item("a/b"), "charge", in) }, pawl.KeyName("payments"))
		var p *proc
		s.on("charge", func(_ context.Context, n int) (string, error) {
			switch n {
			case 1, 3:
				return "", errTransient
			case 2:
				p.die()
			case 4:
				return "", fault.Denied(errUnknown)
			}
			return "paid", nil
		})
		p = s.spawn("b1", w)
		id := begin(s, w, "x", pawl.Key("order:1"))
		time.Sleep(5 * time.Second)
		s.spawn("b1", w)
		s.reach(id, pawl.Failed)
		s.reach(s.retry(id), pawl.Succeeded)
		const golden = "x6jrwpyha7psx5yugswy475i644ue2uzofw6sbm2vnftsuxh2uxq"
		if keys := slices.Compact(slices.Clone(s.keys["charge"])); len(s.keys["charge"]) != 5 || len(keys) != 1 || keys[0] != golden {
			t.Errorf("keys %q, want five times %q", s.keys["charge"], golden)
		}
	})
}

// DESIGN 3: after KeyTTL a Keyed step that may have been sent is treated as Once; one that was proven not sent is not.
func TestKeyTTLExpiredIsAsOnce(t *testing.T) {
	for name, first := range map[string]error{"lost": nil, "unknown": errCut, "refused": fault.RetryAfter(errors.New("busy"), 2*time.Minute)} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("one", "v1", func(run *pawl.Run, in string) (string, error) {
					return s.keyed(run, "a", in, pawl.KeyTTL(time.Millisecond), pawl.Retry(pawl.RetryPolicy{First: 20 * time.Minute, Max: 20 * time.Minute, Total: 9 * time.Hour}))
				})
				var p *proc
				s.on("a", func(_ context.Context, n int) (string, error) {
					if n == 1 && first == nil {
						p.die()
					}
					if n == 1 {
						return "", first
					}
					return "A", nil
				})
				p = s.spawn("b1", w)
				id := begin(s, w, "x")
				time.Sleep(2 * time.Minute)
				s.spawn("b1", w)
				if name == "refused" {
					s.reach(id, pawl.Succeeded)
					return
				}
				s.blocked(id, pawl.AskUncertain)
				s.want(map[string]int{"a": 1})
			})
		})
	}
}

// DESIGN 3: nor is it sent again after KeyTTL by a short wait inside one execution.
func TestKeyTTLExpiresDuringAShortWait(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var first time.Time
		id := one(s, fault.KindKeyed, nil, pawl.KeyTTL(200*time.Millisecond), pawl.Retry(pawl.RetryPolicy{First: 5 * time.Second, Max: 5 * time.Second}))
		s.on("a", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				first = time.Now()
			}
			if late := time.Since(first); late > 250*time.Millisecond {
				t.Errorf("attempt %d was sent %v after the first, the far end forgot the key after 200 ms", n, late)
			}
			return "", errCut
		})
		s.reach(id, pawl.Blocked, pawl.Failed)
	})
}

// C39, DESIGN 3: an unfinished effect is not sent with another input; resumed, it is sent with the stored one.
func TestC39_InputChangedOfAnUnfinishedEffect(t *testing.T) {
	for name, choice := range map[string]pawl.Choice{"resume": pawl.AnswerResume, "cancel": pawl.AnswerCancel} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				pay := func(amount string) *pawl.Workflow[string, string] {
					return flow("pay", "v1", func(run *pawl.Run, _ string) (string, error) { return s.keyed(run, "charge", amount) })
				}
				w := pay("10")
				var p *proc
				s.on("charge", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						p.die()
					}
					return "paid", nil
				})
				p = s.spawn("b1", w)
				id := begin(s, w, "x")
				time.Sleep(5 * time.Second)
				s.spawn("b2", pay("20"))
				en := s.blocked(id, pawl.AskInputChanged)
				s.want(map[string]int{"charge": 1})
				s.resolve(en, choice)
				if choice == pawl.AnswerCancel {
					d := s.reach(id, pawl.Cancelled, pawl.Blocked) // blocked: the lost attempt may have happened
					if d.State == pawl.Blocked {
						s.blocked(id, pawl.AskUncertain)
					}
					s.want(map[string]int{"charge": 1})
					return
				}
				s.reach(id, pawl.Succeeded)
				if got := fmt.Sprint(s.ins["charge"]); got != "[10 10]" {
					t.Errorf("the effect was sent with %s, want the stored input again", got)
				}
			})
		})
	}
}
