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

// Branches run side by side, in whatever order; their names are the run's.
func TestGroupRunsBranchesSideBySide(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		meet := make(chan struct{})
		for _, name := range []string{"a", "b"} {
			s.on(name, func(ctx context.Context, _ int) (string, error) {
				select {
				case meet <- struct{}{}:
				case <-meet:
				case <-ctx.Done():
				}
				return name, ctx.Err()
			})
		}
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			out := make([]string, 2)
			g := run.Group()
			for i, name := range []string{"a", "b"} {
				g.Go(func(run *pawl.Run) (err error) {
					out[i], err = s.rep(run, name, in)
					return err
				})
			}
			if err := g.Wait(); err != nil {
				return "", err
			}
			return s.rep(run, "join", strings.Join(out, "+"))
		})
		s.spawn("b1", w)
		result(t, s.reach(begin(s, w, "x"), pawl.Succeeded), "join(a+b)")
	})
}

// A branch that sleeps does not stop its siblings, and nothing of theirs is done again when it wakes (W12).
func TestGroupSuspendsBranchByBranch(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.table()
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.Go(func(run *pawl.Run) error {
				if err := pawl.Sleep(run, "nap", 5*time.Minute); err != nil {
					return err
				}
				_, err := s.mail(run, "woken", in)
				return err
			})
			for _, k := range kinds {
				g.Go(func(run *pawl.Run) error {
					for i := range 3 {
						if _, err := s.do(run, k, fmt.Sprintf("%s%d", k, i), in); err != nil {
							return err
						}
					}
					return nil
				})
			}
			if err := g.Wait(); err != nil {
				return "", err
			}
			return s.rep(run, "end", in)
		})
		s.spawnWith(func(o *pawl.Options) { o.Slots = 1 }, w)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Waiting)
		want := map[string]int{}
		for _, k := range kinds {
			for i := range 3 {
				want[fmt.Sprintf("%s%d", k, i)] = 1
			}
		}
		s.want(want)
		if st := step(t, d, "nap"); st.State != pawl.StepWaiting {
			t.Errorf("the nap is %s", st.State)
		}
		result(t, s.reach(id, pawl.Succeeded), "end(x)")
		want["woken"], want["end"] = 1, 1
		s.want(want)
	})
}

func failing(s *stage, compensate bool) *pawl.Workflow[string, string] {
	s.on("bad", func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New("no")) })
	s.on("slow", func(ctx context.Context, _ int) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	return flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
		g := run.Group()
		g.Go(func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Minute) })
		g.Go(func(run *pawl.Run) error {
			if _, err := s.rep(run, "slow", in); err != nil {
				return err
			}
			_, err := s.rep(run, "after slow", in)
			return err
		})
		g.Go(func(run *pawl.Run) error {
			if _, err := s.rep(run, "quick", in); err != nil {
				return err
			}
			_, err := s.rep(run, "bad", in)
			return err
		})
		err := g.Wait()
		if errors.Is(err, pawl.ErrSuspended) || !compensate {
			return "", err
		}
		return s.rep(run, "undo", fmt.Sprint(fault.ClassOf(err), errors.Is(err, fault.ErrSiblingFailed)))
	})
}

// When a branch fails its siblings are cut short, what they wait for is closed, and Wait gives the failure that began it.
// A body that goes on finds the same on every execution, wherever its worker dies.
func TestGroupFailure(t *testing.T) {
	points := []hooks.Point{"", hooks.StepReached, hooks.EffectBegin, hooks.EffectDone, hooks.ResultWritten, hooks.CommitSending, hooks.BodyDone, hooks.Ended}
	for _, point := range points {
		for nth := 1; nth <= upTo(1, 5); nth++ {
			if point == "" && nth > 1 {
				continue
			}
			t.Run(fmt.Sprint(point, nth), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					w := failing(s, true)
					s.doomed(point, nth, w)
					id := begin(s, w, "x")
					if point != "" {
						time.Sleep(20 * time.Second) // bubble
						s.spawn("b1", w)
					}
					d := s.reach(id, pawl.Succeeded)
					result(t, d, "undo(invalid_request false)")
					for name, reason := range map[string]fault.Reason{"nap": fault.ErrSiblingFailed, "slow": fault.ErrSiblingFailed, "bad": "rejected"} {
						for _, st := range d.Steps {
							if st.Name != name {
								continue
							}
							if st.State != pawl.StepFailed || reason != "rejected" && st.Fault.Reason != reason {
								t.Errorf("step %s is %s (%+v), want it failed: %s", name, st.State, st.Fault, reason)
							}
						}
					}
					if n := s.count("after slow"); n != 0 {
						t.Errorf("a step of a branch whose sibling had failed was executed %d times", n)
					}
				})
			})
		}
	}
}

func TestGroupFailureFailsTheRun(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := failing(s, false)
		s.spawn("b1", w)
		d := s.reach(begin(s, w, "x"), pawl.Failed)
		if d.Fault == nil || d.Fault.Class != fault.InvalidRequest {
			t.Errorf("fault is %+v", d.Fault)
		}
		if st := step(t, d, "nap"); st.State != pawl.StepFailed {
			t.Errorf("the nap is %s", st.State)
		}
	})
}

// CollectAll lets the branches end by themselves, sleeping ones too, and gives every error.
func TestGroupCollectAll(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		for _, name := range []string{"bad1", "bad2"} {
			s.on(name, func(context.Context, int) (string, error) { return "", fault.Invalid(errors.New(name)) })
		}
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.CollectAll()
			for _, name := range []string{"bad1", "good", "bad2"} {
				g.Go(func(run *pawl.Run) error {
					if err := pawl.Sleep(run.Item(name), "nap", time.Duration(len(name))*time.Minute); err != nil {
						return err
					}
					_, err := s.rep(run, name, in)
					return err
				})
			}
			err := g.Wait()
			if errors.Is(err, pawl.ErrSuspended) {
				return "", err
			}
			return fmt.Sprint(strings.Count(err.Error(), "bad1"), strings.Count(err.Error(), "bad2")), nil
		})
		s.spawn("b1", w)
		d := s.reach(begin(s, w, "x"), pawl.Succeeded)
		if out := string(d.Result); strings.Contains(out, "0") {
			t.Errorf("the joined error misses one: %s", out)
		}
		s.want(map[string]int{"bad1": 1, "good": 1, "bad2": 1})
	})
}

// A panic in a step is that step's failure, one in a branch the branch's; neither ends the worker or its siblings' process.
func TestGroupPanics(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("boom", func(context.Context, int) (string, error) { panic("in a step") })
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.CollectAll()
			g.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "boom", in, pawl.Retry(pawl.RetryPolicy{Attempts: 1}))
				return err
			})
			g.Go(func(*pawl.Run) error { panic("in a branch") })
			g.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "fine", in)
				return err
			})
			err := g.Wait()
			return fmt.Sprint(errors.Is(err, fault.ReasonPanic), strings.Count(err.Error(), "panic") > 1), nil
		})
		s.spawn("b1", w)
		d := s.reach(begin(s, w, "x"), pawl.Succeeded)
		if string(d.Result) != `"true true"` {
			t.Errorf("result %s", d.Result)
		}
		if st := step(t, d, "boom"); st.State != pawl.StepFailed || st.Fault.Reason != fault.ReasonPanic {
			t.Errorf("the step that panicked is %s (%+v)", st.State, st.Fault)
		}
		s.want(map[string]int{"fine": 1})
	})
}

// What a group must not be used for is a clear error and never an effect.
func TestGroupMisuse(t *testing.T) {
	for name, tt := range map[string]struct {
		body func(s *stage, run *pawl.Run) error
		want string
	}{
		"outer run": {func(s *stage, run *pawl.Run) error {
			g := run.Group()
			g.Go(func(*pawl.Run) error {
				_, err := s.rep(run, "effect", "x")
				return err
			})
			return g.Wait()
		}, "closed while its Group is open"},
		"outer run beside": {func(s *stage, run *pawl.Run) error {
			g := run.Group()
			_, err := s.rep(run, "effect", "x")
			return errors.Join(err, g.Wait())
		}, "closed while its Group is open"},
		"two groups": {func(s *stage, run *pawl.Run) error {
			g, h := run.Group(), run.Group()
			h.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "effect", "x")
				return err
			})
			return errors.Join(h.Wait(), g.Wait())
		}, "has an open Group already"},
		"Wait twice": {func(_ *stage, run *pawl.Run) error {
			g := run.Group()
			_ = g.Wait()
			return g.Wait()
		}, "was called before"},
		"never Wait": {func(_ *stage, run *pawl.Run) error {
			run.Group().Go(func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
			return nil
		}, "returned while a Group of it was open"},
		"branch never waits": {func(_ *stage, run *pawl.Run) error {
			g := run.Group()
			g.Go(func(run *pawl.Run) error {
				run.Group()
				return nil
			})
			return g.Wait()
		}, "returned while a Group of it was open"},
		"one name twice": {func(s *stage, run *pawl.Run) error {
			g := run.Group()
			for range 2 {
				g.Go(func(run *pawl.Run) error { return pawl.Sleep(run, "same", 0) })
			}
			return g.Wait()
		}, "the name is used twice"},
		"a branch's run after its end": {func(s *stage, run *pawl.Run) error {
			var kept *pawl.Run
			g := run.Group()
			g.Go(func(run *pawl.Run) error {
				kept = run
				return nil
			})
			if err := g.Wait(); err != nil {
				return err
			}
			_, err := s.rep(kept, "effect", "x")
			return err
		}, "has returned"},
		"one run in two goroutines": {func(s *stage, run *pawl.Run) error {
			in, out := make(chan struct{}), make(chan error)
			s.on("hold", func(context.Context, int) (string, error) {
				close(in)
				return "", <-out
			})
			go func() {
				<-in
				_, err := s.rep(run, "effect", "x")
				out <- fault.Invalid(err)
			}()
			_, err := s.rep(run, "hold", "x")
			return err
		}, "need a Group"},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("fan", "v1", func(run *pawl.Run, _ string) (string, error) { return "", tt.body(s, run) })
				s.spawn("b1", w)
				d := s.reach(begin(s, w, "x"), pawl.Failed)
				if d.Fault == nil || !strings.Contains(d.Fault.Error(), tt.want) {
					t.Errorf("fault %v, want one that says %q", d.Fault, tt.want)
				}
				s.want(map[string]int{"effect": 0})
			})
		})
	}
}

// A suspended body begins nothing more, by whatever way; a branch that loops on refused calls is ended.
func TestGroupAfterSuspension(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			_ = pawl.Sleep(run, "nap", time.Minute) // swallowed
			g := run.Group()
			g.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "inner", in)
				return err
			})
			g.Go(func(run *pawl.Run) error {
				for i := 0; ; i++ {
					if _, err := s.rep(run.Item(fmt.Sprint(i)), "loop", in); err == nil {
						return nil
					}
				}
			})
			_ = g.Wait()
			return s.rep(run, "after", in)
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Waiting)
		time.Sleep(10 * time.Second) // bubble
		s.want(map[string]int{"inner": 0, "after": 0, "loop": 0})
		s.reach(id, pawl.Succeeded)
		s.want(map[string]int{"inner": 1, "after": 1, "loop": 1})
	})
}

// SetLimit bounds how many branches run; those that sleep do not count.
func TestGroupLimit(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var now, most atomic.Int64
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.SetLimit(3)
			for i := range 10 {
				g.Go(func(run *pawl.Run) error {
					run = run.Item(fmt.Sprint(i))
					if i%2 == 0 {
						if err := pawl.Sleep(run, "nap", time.Minute); err != nil {
							return err
						}
					}
					return pawl.RepeatableDo(run, "work", i, func(context.Context, int) error {
						n := now.Add(1)
						defer now.Add(-1)
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						time.Sleep(time.Second) // bubble
						return nil
					})
				})
			}
			return "", g.Wait()
		})
		s.spawn("b1", w)
		s.reach(begin(s, w, "x"), pawl.Succeeded)
		if most.Load() != 3 {
			t.Errorf("%d branches worked at once, the limit is 3", most.Load())
		}
	})
}

// A run may wait and have a question in the inbox at once; either may be settled first.
func TestGroupWaitsAndAsks(t *testing.T) {
	for _, first := range []string{"answer", "timer"} {
		t.Run(first, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.on("mail", func(context.Context, int) (string, error) { return "", errors.New("cut") })
				w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
					g := run.Group()
					g.Go(func(run *pawl.Run) error {
						_, err := s.mail(run, "mail", in)
						return err
					})
					g.Go(func(run *pawl.Run) error {
						if err := pawl.Sleep(run, "nap", 5*time.Minute); err != nil {
							return err
						}
						_, err := s.rep(run, "woken", in)
						return err
					})
					return "done", g.Wait()
				})
				s.spawn("b1", w)
				id := begin(s, w, "x")
				d := s.reach(id, pawl.Waiting)
				if len(d.Open) != 1 || d.Open[0] != pawl.AskUncertain {
					t.Fatalf("open entries %v", d.Open)
				}
				en := s.entry(s.desk, pawl.AskUncertain)
				if first == "timer" {
					s.reach(id, pawl.Blocked)
					s.want(map[string]int{"mail": 1, "woken": 1})
				}
				s.resolve(en, pawl.AnswerHappened)
				s.reach(id, pawl.Succeeded)
				s.want(map[string]int{"mail": 1, "woken": 1})
			})
		})
	}
}

// A cancel reaches every branch, and the body compensates after the group.
func TestGroupCancel(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("slow", func(ctx context.Context, _ int) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		})
		w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
			g := run.Group()
			g.Go(func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
			g.Go(func(run *pawl.Run) error {
				_, err := s.rep(run, "slow", in)
				return err
			})
			err := g.Wait()
			if errors.Is(err, fault.ErrRunCanceled) {
				if _, err := s.rep(run.WithoutCancel(), "undo", in); err != nil {
					return "", err
				}
			}
			return "", err
		})
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		time.Sleep(time.Second) // bubble
		if _, err := p.Cancel(t.Context(), id, pawl.Act{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		d := s.reach(id, pawl.Cancelled)
		s.want(map[string]int{"slow": 1, "undo": 1})
		if st := step(t, d, "nap"); st.State != pawl.StepFailed {
			t.Errorf("the nap is %s", st.State)
		}
	})
}

// Branches of all kinds, killed everywhere: each effect as often as its kind allows.
func TestGroupSurvivesAKill(t *testing.T) {
	for _, point := range []hooks.Point{hooks.IntentWritten, hooks.EffectBegin, hooks.EffectDone, hooks.ResultWritten, hooks.TxCommitting, hooks.CommitSending, hooks.BodyDone} {
		for nth := 1; nth <= upTo(1, 4); nth++ {
			t.Run(fmt.Sprint(point, nth), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					s.table()
					w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
						g := run.Group()
						for _, k := range kinds {
							g.Go(func(run *pawl.Run) error {
								if err := pawl.Sleep(run, k.String()+" nap", 10*time.Second); err != nil {
									return err
								}
								for i := range 2 {
									if _, err := s.do(run, k, fmt.Sprintf("%s%d", k, i), in); err != nil {
										return err
									}
								}
								return nil
							})
						}
						return "done", g.Wait()
					})
					s.doomed(point, nth, w)
					id := begin(s, w, "x")
					time.Sleep(30 * time.Second) // bubble
					s.spawn("b1", w)
					for {
						d := s.reach(id, pawl.Succeeded, pawl.Blocked)
						if d.State == pawl.Succeeded {
							break
						}
						s.resolve(s.entry(s.desk, pawl.AskUncertain), pawl.AnswerHappened)
					}
					for i := range 2 {
						if n := s.count(fmt.Sprint("once", i)); n > 1 {
							t.Errorf("once%d happened %d times", i, n)
						}
						if n := s.rows(fmt.Sprint("tx", i)); n != 1 {
							t.Errorf("tx%d is there %d times", i, n)
						}
						for _, k := range []string{"repeatable", "keyed"} {
							if n := s.count(fmt.Sprintf("%s%d", k, i)); n < 1 || n > 2 {
								t.Errorf("%s%d was executed %d times, with one kill", k, i, n)
							}
						}
					}
				})
			})
		}
	}
}
