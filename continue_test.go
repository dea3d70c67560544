package pawl_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// ending is a workflow that sends its input and continues with one "x" less, down to "x".
func ending(s *stage, opts ...pawl.DefineOption) *pawl.Workflow[string, string] {
	return flow("chain", "v1", func(run *pawl.Run, in string) (string, error) {
		out, err := s.keyed(run, "send", in)
		if err != nil || in == "x" {
			return out, err
		}
		out, err = pawl.ContinueAs[string](run, in[1:])
		if err != nil {
			err = fmt.Errorf("the end of %s: %w", in, err)
		}
		return out, err
	}, opts...)
}

// follow gives a run and its successors, and checks that each names the next.
func (s *stage) follow(id pawl.RunID) (all []*pawl.RunDetail) {
	s.t.Helper()
	before := pawl.RunID("")
	for id != "" {
		d := s.show(s.desk, id)
		if d.Continues != before || before != "" && d.Lineage != id {
			s.t.Errorf("run %s continues %q in lineage %s, want %q and a lineage of its own", id, d.Continues, d.Lineage, before)
		}
		if d.Successor != "" && (d.State != pawl.Succeeded || d.Result != nil) {
			s.t.Errorf("a run that has continued is %s with result %s", d.State, d.Result)
		}
		all = append(all, d)
		before, id = id, d.Successor
	}
	return all
}

// ended waits for the end of a run's last successor.
func (s *stage) ended(h *pawl.Handle[string]) (string, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Hour) // bubble
	defer cancel()
	return h.Result(ctx)
}

// A run that continues twice is three runs with the same place in the queue; the first handle gets the last result. Steps of
// one name are executed in each of them, with a key of its own, also under a product key; limits begin anew.
func TestContinueAs(t *testing.T) {
	for name, opts := range map[string][]pawl.StartOption{"": nil, "key": {pawl.Key("thing:1")}} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := ending(s, pawl.Limit(pawl.Limits{Steps: 1}))
				p := s.spawn("b1", w)
				all := append([]pawl.StartOption{pawl.Queue("q"), pawl.Priority(3), pawl.Share("s"), pawl.Deadline(time.Hour)}, opts...)
				h, err := w.Start(t.Context(), p.Engine, "xxx", all...)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := s.ended(h); err != nil || got != "send(x)" {
					t.Errorf("result %q, %v; want that of the last run", got, err)
				}
				runs := s.follow(h.ID())
				if len(runs) != 3 || len(s.runsOf("chain")) != 3 {
					t.Fatalf("%d runs in the chain, %d in all; want 3", len(runs), len(s.runsOf("chain")))
				}
				s.want(map[string]int{"send": 3})
				if k := s.keys["send"]; k[0] == k[1] || k[1] == k[2] || k[0] == k[2] {
					t.Errorf("operation keys %q, want three", k)
				}
				result(t, runs[2], "send(x)")
				for _, d := range runs[1:] {
					if d.Workflow != "chain" || d.Version != "v1" || d.Queue != "q" || d.Priority != 3 || d.Share != "s" ||
						!d.Deadline.Equal(runs[0].Deadline) || d.Key != runs[0].Key || d.Parent != "" {
						t.Errorf("a successor is %+v, want it in the place of %+v", d.RunInfo, runs[0].RunInfo)
					}
				}
				if _, err := s.desk.Cancel(t.Context(), h.ID(), ann); !errors.Is(err, pawl.ErrTerminal) {
					t.Errorf("cancel of a run that has continued: %v", err)
				} else {
					mentions(t, err, string(runs[1].ID))
				}
				if p := s.plan(h.ID(), pawl.PlanOptions{Mode: pawl.PlanRetry}); len(p.Refusals) == 0 || !strings.Contains(p.Refusals[0], string(runs[1].ID)) {
					t.Errorf("a retry of it is refused with %q, want its successor named", p.Refusals)
				}
			})
		})
	}
}

// A retry, and a fork, of a successor keep its operation keys, which are not those of the run before it.
func TestContinueKeepsKeysInItsLineage(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
			if _, err := s.keyed(run, "mark", in); err != nil {
				return "", err
			}
			if _, err := s.rep(run, "look", in); err != nil {
				return "", err
			}
			out, err := s.keyed(run, "send", in)
			if err != nil || in == "x" {
				return out, err
			}
			return pawl.ContinueAs[string](run, "x")
		})
		s.on("look", func(_ context.Context, n int) (string, error) {
			if n == 2 {
				return "", fault.Invalid(errors.New("no"))
			}
			return "ok", nil
		})
		s.spawn("b1", w)
		id := begin(s, w, "xx", pawl.Key("thing:1"))
		s.reach(id, pawl.Succeeded)
		next := s.show(s.desk, id).Successor
		s.reach(next, pawl.Failed)
		if again := begin(s, w, "xx", pawl.Key("thing:1")); again != next {
			t.Errorf("a start under the key found %s, want the successor %s", again, next)
		}
		h, err := w.Start(t.Context(), s.desk, "xx", pawl.Key("thing:1"), pawl.Again())
		if err != nil {
			t.Fatal(err)
		}
		result(t, s.reach(h.ID(), pawl.Succeeded), "send(x)")
		s.want(map[string]int{"mark": 2, "look": 3, "send": 2})
		if k := s.keys["send"]; k[0] == k[1] {
			t.Errorf("operation keys %q: the retry of the successor has the key of the first run", k)
		}
		fork, err := s.desk.Fork(t.Context(), s.plan(h.ID(), pawl.PlanOptions{Mode: pawl.PlanFork, FromStart: true}), ann)
		if err != nil {
			t.Fatal(err)
		}
		s.reach(fork, pawl.Succeeded)
		if k := s.keys["send"]; k[1] != k[2] {
			t.Errorf("operation keys %q: the fork has another than its parent", k)
		}
		if k := s.keys["mark"]; k[0] == k[1] || k[1] != k[2] {
			t.Errorf("operation keys %q, want one for each lineage", k)
		}
	})
}

// The product key goes on to the successor: a start under it finds the run that lives, with the first input. A fork of a run
// that has continued does not take it away.
func TestContinueMovesTheKey(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
			if in == "last" {
				return in, pawl.Sleep(run, "nap", 3*time.Minute)
			}
			if err := pawl.Sleep(run, "nap", 5*time.Second); err != nil {
				return "", err
			}
			return pawl.ContinueAs[string](run, "last")
		})
		s.spawn("b1", w)
		first := begin(s, w, "first", pawl.Key("thing:1"))
		s.reach(first, pawl.Succeeded)
		next := s.show(s.desk, first).Successor
		if got := begin(s, w, "first", pawl.Key("thing:1")); got != next {
			t.Errorf("the key finds %s, want the successor %s", got, next)
		}
		_, err := w.Start(t.Context(), s.desk, "last", pawl.Key("thing:1"))
		if !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("a start with the successor's input: %v, want a conflict", err)
		}
		for _, o := range []pawl.PlanOptions{{Mode: pawl.PlanFork, FromStart: true}, {Mode: pawl.PlanFork, FromStart: true, NewKeys: true}} {
			fork, err := s.desk.Fork(t.Context(), s.plan(first, o), ann)
			if err != nil {
				t.Fatal(err)
			}
			s.reach(fork, pawl.Succeeded)
			if d := s.show(s.desk, s.show(s.desk, fork).Successor); d.Key != "" || d.Continues != fork {
				t.Errorf("the successor of the fork is %+v, want one without the key", d.RunInfo)
			}
		}
		if got := begin(s, w, "first", pawl.Key("thing:1")); got != next {
			t.Errorf("after the forks the key finds %s, want %s", got, next)
		}
		result(t, s.reach(next, pawl.Succeeded), "last")
	})
}

// C46: wherever a process dies at the end of a run, it has one successor.
func TestContinueOnce(t *testing.T) {
	for _, point := range []hooks.Point{hooks.Claimed, hooks.BodyDone, hooks.CommitSending, hooks.Ended} {
		for nth := 1; nth <= upTo(3, 6); nth++ {
			t.Run(fmt.Sprint(point, nth), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					w := ending(s)
					s.doomed(point, nth, w)
					h, err := w.Start(t.Context(), s.desk, "xxx", pawl.Key("thing:1"))
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute) // bubble
					s.spawn("b1", w)
					if got, err := s.ended(h); err != nil || got != "send(x)" {
						t.Errorf("result %q, %v", got, err)
					}
					if n, all := len(s.follow(h.ID())), len(s.runsOf("chain")); n != 3 || all != 3 {
						t.Errorf("%d runs in the chain, %d in all; want 3", n, all)
					}
				})
			})
		}
	}
}

// C46: a lost answer to the COMMIT of the end makes no second successor.
func TestContinueWithLostReplies(t *testing.T) {
	for nth := 1; nth <= 4; nth++ {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("chain", "v1", func(run *pawl.Run, in string) (string, error) {
					if in == "x" {
						return in, nil
					}
					return pawl.ContinueAs[string](run, in[1:])
				})
				p := s.spawn("b1", w)
				p.store.deaf.Store(int64(nth))
				h, err := w.Start(t.Context(), s.desk, "xxxx")
				if err != nil {
					t.Fatal(err)
				}
				if got, err := s.ended(h); err != nil || got != "x" {
					t.Errorf("result %q, %v", got, err)
				}
				if n, all := len(s.follow(h.ID())), len(s.runsOf("chain")); n != 4 || all != 4 {
					t.Errorf("%d runs in the chain, %d in all; want 4", n, all)
				}
			})
		})
	}
}

// A caller gets what the last run of the chain comes to, and a retry of it goes on with that one.
func TestContinuedChild(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := ending(s)
		w := calling(s, k)
		s.on("a", func(context.Context, int) (string, error) { return "xxx", nil })
		s.on("send", func(_ context.Context, n int) (string, error) {
			if n == 3 {
				return "", fault.Invalid(errors.New("no"))
			}
			return fmt.Sprint("sent", n), nil
		})
		s.spawn("b1", w, k)
		id := begin(s, w, "in")
		d := s.reach(id, pawl.Failed)
		kids := s.runsOf("chain")
		if len(kids) != 3 || len(d.Children) != 1 || d.Children[0].Run != kids[2].ID || !strings.Contains(d.Fault.Message, string(kids[2].ID)) {
			t.Fatalf("children %+v of %d runs, fault %+v; want the last one's", d.Children, len(kids), d.Fault)
		}
		if c := s.show(s.desk, kids[0].ID).Callers; len(c) != 0 {
			t.Errorf("the first run is called by %+v", c)
		}
		result(t, s.reach(s.retry(id), pawl.Succeeded), "b(sent4)")
		s.want(map[string]int{"a": 1, "send": 4, "b": 1})
		if kids := s.runsOf("chain"); len(kids) != 4 || kids[3].Parent != kids[2].ID || kids[3].Continues != kids[1].ID {
			t.Errorf("the children are %+v, want a retry of the last", kids)
		}
	})
	// The child's retry by hand continues; the caller's retry finds what came of it.
	t.Run("by hand", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			k := ending(s)
			w := calling(s, k)
			s.on("a", func(context.Context, int) (string, error) { return "xxx", nil })
			s.on("send", func(_ context.Context, n int) (string, error) {
				if n == 2 || n == 4 {
					return "", fault.Invalid(errors.New("no"))
				}
				return fmt.Sprint("sent", n), nil
			})
			s.spawn("b1", w, k)
			id := begin(s, w, "in")
			s.reach(id, pawl.Failed)
			retry := s.retry(s.runsOf("chain")[1].ID)
			s.reach(retry, pawl.Succeeded)
			last := s.show(s.desk, retry).Successor
			s.reach(last, pawl.Failed)
			result(t, s.reach(s.retry(id), pawl.Succeeded), "b(sent5)")
			s.want(map[string]int{"send": 5})
			if kids := s.runsOf("chain"); len(kids) != 5 || kids[4].Parent != last {
				t.Errorf("the children are %+v, want a retry of the last, %s", kids, last)
			}
		})
	})
	// Found by its key while it lives, and after that.
	t.Run("key", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			k := ending(s)
			w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
				return pawl.Child(run, "kid", k, "xxx", pawl.Key("one"))
			})
			s.on("send", func(_ context.Context, n int) (string, error) {
				time.Sleep(10 * time.Second) // bubble
				return fmt.Sprint("sent", n), nil
			})
			s.spawn("b1", w, k)
			begin(s, k, "xxx", pawl.Key("one"))
			time.Sleep(15 * time.Second) // bubble: in the second run
			first := begin(s, w, "in")
			result(t, s.reach(first, pawl.Succeeded), "sent3")
			result(t, s.reach(begin(s, w, "late"), pawl.Succeeded), "sent3")
			s.want(map[string]int{"send": 3})
		})
	})
}

// A cancel of the caller reaches the successor that lives.
func TestCancelGoesDownTheChain(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := flow("kid", "v1", func(run *pawl.Run, in string) (string, error) {
			if in == "last" {
				return in, pawl.Sleep(run, "nap", time.Hour)
			}
			return pawl.ContinueAs[string](run, "last")
		})
		w := calling(s, k)
		s.spawn("b1", w, k)
		id := begin(s, w, "in")
		s.reach(id, pawl.Waiting)
		time.Sleep(10 * time.Second) // bubble
		kids := s.runsOf("kid")
		if len(kids) != 2 || kids[1].State != pawl.Waiting {
			t.Fatalf("children %+v", kids)
		}
		if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
			t.Fatal(err)
		}
		s.reach(id, pawl.Cancelled)
		s.reach(kids[1].ID, pawl.Cancelled)
	})
}

// A run that is cancelled, or late, when its body continues ends by that and has no successor; nor has one whose Finally fails.
func TestContinueThatDoesNotCount(t *testing.T) {
	none := func(t *testing.T, s *stage) {
		t.Helper()
		if n := len(s.runsOf("w")); n != 1 {
			t.Errorf("%d runs, want no successor", n)
		}
	}
	body := func(s *stage) *pawl.Workflow[string, string] {
		return flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
			if _, err := s.rep(run, "a", in); errors.Is(err, pawl.ErrSuspended) {
				return "", err
			}
			if in == "next" {
				return in, nil
			}
			return pawl.ContinueAs[string](run, "next")
		})
	}
	t.Run("cancel", func(t *testing.T) { // while the step runs, or after the body has returned
		for _, at := range []hooks.Point{hooks.EffectBegin, hooks.BodyDone} {
			t.Run(string(at), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					w := body(s)
					s.spawnWith(func(o *pawl.Options) {
						o.Hooks.At = func(p hooks.Point, run, _ string) {
							if p != at {
								return
							}
							if _, err := s.desk.Cancel(t.Context(), pawl.RunID(run), ann); err != nil {
								t.Error(err)
							}
						}
					}, w)
					s.reach(begin(s, w, "x"), pawl.Cancelled)
					none(t, s)
				})
			})
		}
	})
	t.Run("deadline", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := body(s)
			s.on("a", func(ctx context.Context, _ int) (string, error) {
				<-ctx.Done()
				return "", ctx.Err()
			})
			s.spawn("b1", w)
			if d := s.reach(begin(s, w, "x", pawl.Deadline(10*time.Second)), pawl.Failed); d.Fault.Reason != fault.ReasonRunDeadline {
				t.Errorf("fault %+v", d.Fault)
			}
			none(t, s)
		})
	})
	t.Run("finally", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
				if in == "next" {
					return in, nil
				}
				run.Finally(func(*pawl.Run) error { return errors.New("not clean") })
				return pawl.ContinueAs[string](run, "next")
			})
			s.spawn("b1", w)
			if d := s.reach(begin(s, w, "x"), pawl.Failed); !strings.Contains(d.Fault.Message, "not clean") {
				t.Errorf("fault %+v", d.Fault)
			}
			none(t, s)
		})
	})
	t.Run("swallowed", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
				_, _ = pawl.ContinueAs[string](run, "next")
				return s.rep(run, "a", in)
			})
			s.spawn("b1", w)
			result(t, s.reach(begin(s, w, "x"), pawl.Succeeded), "a(x)")
			none(t, s)
		})
	})
}

// While it is not known whether a step happened, or what has become of one, the run does not end, and its successor has not
// begun. A cancel, or giving up, ends it without one.
func TestContinueIsHeldBack(t *testing.T) {
	for choice, want := range map[pawl.Choice]pawl.RunState{pawl.AnswerHappened: pawl.Succeeded, pawl.AnswerGiveUp: pawl.Failed, "": pawl.Cancelled} {
		t.Run(cmp.Or(string(choice), "cancel"), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
					if in == "next" {
						return "end", nil
					}
					g := run.Group()
					g.Go(func(run *pawl.Run) error {
						_, err := s.mail(run, "mail", in)
						return err
					})
					g.Go(func(run *pawl.Run) error {
						if err := pawl.Sleep(run, "nap", 5*time.Second); err != nil {
							return err
						}
						return errors.New("no")
					})
					if err := g.Wait(); errors.Is(err, pawl.ErrSuspended) {
						return "", err
					}
					return pawl.ContinueAs[string](run, "next")
				})
				s.on("mail", func(context.Context, int) (string, error) { return "", errors.New("connection lost") })
				s.spawn("b1", w)
				h, err := w.Start(t.Context(), s.desk, "x")
				if err != nil {
					t.Fatal(err)
				}
				id := h.ID()
				time.Sleep(30 * time.Second) // bubble: the body has ended
				en := s.blocked(id, pawl.AskUncertain)
				if n := len(s.runsOf("w")); n != 1 {
					t.Fatalf("%d runs while a step is uncertain, want 1", n)
				}
				if choice == "" {
					if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
						t.Fatal(err)
					}
					s.resolve(en, pawl.AnswerHappened)
				} else {
					s.resolve(en, choice)
				}
				if d := s.reach(id, want); (d.Successor != "") != (want == pawl.Succeeded) || len(s.runsOf("w")) != 1 && want != pawl.Succeeded {
					t.Errorf("the run is %s, with successor %q", d.State, d.Successor)
				}
				if want == pawl.Succeeded {
					if got, err := s.ended(h); err != nil || got != "end" {
						t.Errorf("result %q, %v", got, err)
					}
				}
			})
		})
	}
}

// A body that ends without coming by what it once ran is asked about. Accepted, it continues; resumed, what it comes to then counts.
func TestContinueOfADivergedRun(t *testing.T) {
	for choice, runs := range map[pawl.Choice]int{pawl.AnswerAccept: 2, pawl.AnswerResume: 1, pawl.AnswerCancel: 1} {
		t.Run(string(choice), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				mended := false
				w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
					switch {
					case in == "next":
						return "end", nil
					case s.count("a") == 0 || mended:
						if _, err := s.rep(run, "a", in); err != nil {
							return "", err
						}
						if err := pawl.Sleep(run, "nap", 5*time.Second); err != nil {
							return "", err
						}
						_, err := s.keyed(run, "send", in) // so that the end is written alone
						return "mended", err
					}
					return pawl.ContinueAs[string](run, "next")
				})
				s.spawn("b1", w)
				h, err := w.Start(t.Context(), s.desk, "x")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second) // bubble
				en := s.blocked(h.ID(), pawl.AskDiverged)
				mended = true
				s.resolve(en, choice)
				got, err := s.ended(h)
				want := map[pawl.Choice]string{pawl.AnswerAccept: "end", pawl.AnswerResume: "mended"}[choice]
				if got != want || (err != nil) != (choice == pawl.AnswerCancel) {
					t.Errorf("result %q, %v; want %q", got, err, want)
				}
				if n := len(s.runsOf("w")); n != runs {
					t.Errorf("%d runs, want %d", n, runs)
				}
			})
		})
	}
}

// Where a run cannot be continued, or not with that, ContinueAs says so.
func TestContinueAsRefuses(t *testing.T) {
	on := func(run *pawl.Run) error { _, err := pawl.ContinueAs[string](run, "next"); return err }
	for name, c := range map[string]struct {
		body func(s *stage, run *pawl.Run) error
		says string
	}{
		"branch": {func(_ *stage, run *pawl.Run) error {
			g := run.Group()
			g.Go(on)
			return g.Wait()
		}, "only the body"},
		"outer run in a branch": {func(_ *stage, run *pawl.Run) error {
			g := run.Group()
			g.Go(func(*pawl.Run) error { return on(run) })
			return g.Wait()
		}, "Group is open"},
		"item": {func(_ *stage, run *pawl.Run) error {
			_, err := pawl.Batch(run, "b", []string{"i"}, func(s string) string { return s }, func(run *pawl.Run, _ string) (int, error) { return 0, on(run) })
			return err
		}, "only the body"},
		"finally": {func(_ *stage, run *pawl.Run) error {
			run.Finally(on)
			return nil
		}, "only the body"},
		"outer run in finally": {func(_ *stage, run *pawl.Run) error {
			run.Finally(func(*pawl.Run) error { return on(run) })
			return nil
		}, "only the body"},
		"its error in finally": {func(_ *stage, run *pawl.Run) error {
			err := on(run)
			run.Finally(func(*pawl.Run) error { return err })
			return nil
		}, "the body has to return"},
		"step": {func(_ *stage, run *pawl.Run) error {
			_, err := pawl.Repeatable(run, "a", 0, func(context.Context, int) (int, error) { return 0, fault.Invalid(on(run)) })
			return err
		}, "a step of this Run is running"},
		"type": {func(_ *stage, run *pawl.Run) error {
			_, err := pawl.ContinueAs[string](run, 7)
			return err
		}, `the input is int, workflow "w" takes string`},
		"size": {func(_ *stage, run *pawl.Run) error {
			_, err := pawl.ContinueAs[string](run, strings.Repeat("x", 2<<20))
			return err
		}, "exceed the limit"},
		"text": {func(_ *stage, run *pawl.Run) error {
			_, err := pawl.ContinueAs[string](run, "\xff")
			return err
		}, "input: "},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) { return "", c.body(s, run) })
				s.spawn("b1", w)
				d := s.reach(begin(s, w, "x"), pawl.Failed)
				if d.Fault.Class != fault.InvalidRequest || !strings.Contains(d.Fault.Message, c.says) {
					t.Errorf("fault %+v, want one that says %q", d.Fault, c.says)
				}
				if n := len(s.runsOf("w")); n != 1 {
					t.Errorf("%d runs, want 1", n)
				}
			})
		})
	}
}

// A successor goes on with the events behind those that its predecessor took, also if all happens at one time.
func TestContinueGoesOnWithEvents(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		ev := pawl.DefineEvent[int]("tick")
		var mu sync.Mutex
		var got []int
		w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
			n, err := pawl.Await(run, "ev", ev, pawl.Key("k"))
			if err != nil {
				return "", err
			}
			mu.Lock()
			got = append(got, n)
			mu.Unlock()
			if in == "x" {
				return "end", nil
			}
			return pawl.ContinueAs[string](run, in[1:])
		})
		p := s.spawn("b1", w)
		id := begin(s, w, "xxx")
		s.reach(id, pawl.Waiting)
		for i := range 3 {
			must(t, ev.Send(t.Context(), p.Engine, pawl.Key("k"), i))
			if i < 1 {
				time.Sleep(20 * time.Second) // bubble
			}
		}
		time.Sleep(5 * time.Minute) // bubble
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(got) != "[0 1 2]" {
			t.Errorf("the chain took %v", got)
		}
	})
}
