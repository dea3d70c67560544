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

// kid is a workflow of two steps, named after itself.
func kid(s *stage) *pawl.Workflow[string, string] {
	return flow("kid", "v1", func(run *pawl.Run, in string) (string, error) {
		a, err := s.rep(run, "ka", in)
		if err != nil {
			return "", err
		}
		return s.rep(run, "kb", a)
	})
}

// calling is a workflow that waits for one child between two steps.
func calling(s *stage, w *pawl.Workflow[string, string]) *pawl.Workflow[string, string] {
	return flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
		a, err := s.rep(run, "a", in)
		if err != nil {
			return "", err
		}
		c, err := pawl.Child(run, "kid", w, a)
		if err != nil {
			return "", err
		}
		return s.rep(run, "b", c)
	})
}

// runsOf lists the runs of a workflow, oldest first.
func (s *stage) runsOf(workflow string) []pawl.RunInfo {
	s.t.Helper()
	runs, _, err := s.desk.Runs(s.t.Context(), pawl.RunQuery{Workflow: workflow, Limit: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	for i, j := 0, len(runs)-1; i < j; i, j = i+1, j-1 {
		runs[i], runs[j] = runs[j], runs[i]
	}
	return runs
}

func TestChildGivesItsResult(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := kid(s)
		w := calling(s, k)
		s.spawnWith(func(o *pawl.Options) { o.Slots = 1 }, w, k)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Succeeded)
		result(t, d, "b(kb(ka(a(x))))")
		s.want(map[string]int{"a": 1, "b": 1, "ka": 1, "kb": 1})
		kids := s.runsOf("kid")
		if len(kids) != 1 || len(d.Children) != 1 || d.Children[0].Run != kids[0].ID || d.Children[0].State != pawl.Succeeded {
			t.Fatalf("children %+v, shown %+v", kids, d.Children)
		}
		if c := s.show(s.desk, kids[0].ID).Callers; len(c) != 1 || c[0].Run != id || c[0].Step != "kid" {
			t.Errorf("the child shows as callers %+v", c)
		}
	})
}

// A caller holds no slot while it waits: three deep on one slot does not stand still.
func TestChildrenNestOnOneSlot(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := kid(s)
		mid := flow("mid", "v1", func(run *pawl.Run, in string) (string, error) { return pawl.Child(run, "down", k, in) })
		top := flow("top", "v1", func(run *pawl.Run, in string) (string, error) { return pawl.Child(run, "down", mid, in) })
		s.spawnWith(func(o *pawl.Options) { o.Slots = 1 }, top, mid, k)
		first, second := begin(s, top, "x"), begin(s, top, "y")
		result(t, s.reach(first, pawl.Succeeded), "kb(ka(x))")
		result(t, s.reach(second, pawl.Succeeded), "kb(ka(y))")
	})
}

// Ten children, killed at each of twenty points: ten children in all.
func TestChildrenAreStartedOnce(t *testing.T) {
	for _, point := range []hooks.Point{hooks.Claimed, hooks.StepReached, hooks.CommitSending, hooks.Ended} {
		for nth := 1; nth <= upTo(11, 25); nth += 5 {
			t.Run(fmt.Sprint(point, nth), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					k := kid(s)
					w := flow("fan", "v1", func(run *pawl.Run, in string) (string, error) {
						var all []string
						for i := range 10 {
							out, err := pawl.Child(run.Item(fmt.Sprint(i)), "kid", k, fmt.Sprint(in, i))
							if err != nil {
								return "", err
							}
							all = append(all, out)
						}
						return strings.Join(all, " "), nil
					})
					s.doomed(point, nth, w, k)
					id := begin(s, w, "x")
					time.Sleep(time.Minute) // bubble
					s.spawn("b1", w, k)
					s.reach(id, pawl.Succeeded)
					if n := len(s.runsOf("kid")); n != 10 {
						t.Errorf("%d children, want 10", n)
					}
				})
			})
		}
	}
}

// C40: a retried caller goes on with the failed child, whose finished half is not done again.
func TestRetryGoesOnWithTheChild(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := kid(s)
		w := calling(s, k)
		s.on("kb", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", fault.Invalid(errors.New("no"))
			}
			return "B", nil
		})
		s.spawn("b1", w, k)
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Failed)
		child := s.runsOf("kid")[0].ID
		if d.Fault.Class != fault.InvalidRequest || !strings.Contains(d.Fault.Message, string(child)) {
			t.Errorf("the caller failed with %+v, want the child's fault and its id %s", d.Fault, child)
		}
		result(t, s.reach(s.retry(id), pawl.Succeeded), "b(B)")
		s.want(map[string]int{"a": 1, "ka": 1, "kb": 2, "b": 1})
		kids := s.runsOf("kid")
		if len(kids) != 2 || kids[1].Parent != child || kids[1].Relation != pawl.Retried {
			t.Errorf("the children are %+v, want a retry of %s", kids, child)
		}
	})
	t.Run("by hand", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			k := kid(s)
			w := calling(s, k)
			s.on("kb", func(_ context.Context, n int) (string, error) {
				if n == 1 {
					return "", fault.Invalid(errors.New("no"))
				}
				return "B", nil
			})
			s.spawn("b1", w, k)
			id := begin(s, w, "x")
			s.reach(id, pawl.Failed)
			s.reach(s.retry(s.runsOf("kid")[0].ID), pawl.Succeeded)
			s.reach(id, pawl.Failed)
			result(t, s.reach(s.retry(id), pawl.Succeeded), "b(B)")
			s.want(map[string]int{"ka": 1, "kb": 2})
			if n := len(s.runsOf("kid")); n != 2 {
				t.Errorf("%d runs of the child, want 2", n)
			}
		})
	})
}

// A cancel of the caller goes down, unless the child is detached; the caller compensates.
func TestCancelGoesDown(t *testing.T) {
	for name, opts := range map[string][]pawl.StartOption{"": nil, "detached": {pawl.Detached()}} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				k := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
				w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
					out, err := pawl.Child(run, "kid", k, in, opts...)
					if errors.Is(err, pawl.ErrCancelled) {
						if err := pawl.Sleep(run.WithoutCancel(), "pause", 2*time.Minute); err != nil {
							return "", err
						}
						if _, err := s.rep(run.WithoutCancel(), "undo", in); err != nil {
							return "", err
						}
					}
					return out, err
				})
				s.spawn("b1", w, k)
				id := begin(s, w, "x")
				s.reach(id, pawl.Waiting)
				child := s.show(s.desk, id).Children[0].Run
				s.reach(child, pawl.Waiting)
				if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second) // bubble
				want := pawl.Cancelled
				if opts != nil {
					want = pawl.Waiting
				}
				if got := s.show(s.desk, child).State; got != want {
					t.Errorf("the child is %s while the caller compensates, want %s", got, want)
				}
				s.reach(id, pawl.Cancelled)
				s.want(map[string]int{"undo": 1})
			})
		})
	}
}

// A cancelled child is an error that the caller can tell, and no cancel of the caller.
func TestCancelledChild(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
		w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
			_, err := pawl.Child(run, "kid", k, in)
			if !errors.Is(err, pawl.ErrCancelled) || !errors.Is(err, fault.ReasonRunCanceled) {
				return "", fmt.Errorf("got %w", err)
			}
			return s.rep(run, "b", in)
		})
		s.spawn("b1", w, k)
		id := begin(s, w, "x")
		child := s.reach(id, pawl.Waiting).Children[0].Run
		s.reach(child, pawl.Waiting)
		if _, err := s.desk.Cancel(t.Context(), child, ann); err != nil {
			t.Fatal(err)
		}
		result(t, s.reach(id, pawl.Succeeded), "b(x)")
	})
}

// Callers with one key wait for one child. It goes on while one of them waits, and its end is told to all.
func TestChildWithAKey(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", 10*time.Minute) })
		w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
			return pawl.Child(run, "kid", k, "in", pawl.Key("one"))
		})
		s.spawn("b1", w, k)
		first := begin(s, w, "x")
		s.reach(first, pawl.Waiting)
		second, third := begin(s, w, "y"), begin(s, w, "z")
		s.reach(second, pawl.Waiting)
		s.reach(third, pawl.Waiting)
		if _, err := s.desk.Cancel(t.Context(), first, ann); err != nil {
			t.Fatal(err)
		}
		s.reach(first, pawl.Cancelled)
		result(t, s.reach(second, pawl.Succeeded), "b(a(in))")
		result(t, s.reach(third, pawl.Succeeded), "b(a(in))")
		result(t, s.reach(begin(s, w, "late"), pawl.Succeeded), "b(a(in))")
		if n := len(s.runsOf("sleeper")); n != 1 {
			t.Errorf("%d children, want 1", n)
		}
	})
}

// A run that would wait for itself, or for one that waits for it, fails instead of standing still.
func TestChildCircle(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var mid, top *pawl.Workflow[string, string]
		mid = flow("mid", "v1", func(run *pawl.Run, in string) (string, error) { return pawl.Child(run, "up", top, in, pawl.Key("top")) })
		top = flow("top", "v1", func(run *pawl.Run, in string) (string, error) { return pawl.Child(run, "down", mid, in) })
		s.spawn("b1", top, mid)
		d := s.reach(begin(s, top, "x", pawl.Key("top")), pawl.Failed)
		if d.Fault.Reason != fault.ReasonKeyConflict {
			t.Errorf("fault is %+v", d.Fault)
		}
	})
}

func TestChildRefusesBadCalls(t *testing.T) {
	for name, call := range map[string]func(run *pawl.Run, k *pawl.Workflow[string, string]) error{
		"deadline": func(run *pawl.Run, k *pawl.Workflow[string, string]) error {
			_, err := pawl.Child(run, "kid", k, "x", pawl.Deadline(0))
			return err
		},
		"again": func(run *pawl.Run, k *pawl.Workflow[string, string]) error {
			_, err := pawl.Child(run, "kid", k, "x", pawl.Again())
			return err
		},
		"key": func(run *pawl.Run, k *pawl.Workflow[string, string]) error {
			_, err := pawl.Child(run, "kid", k, "x", pawl.Key(""))
			return err
		},
		"workflow": func(run *pawl.Run, _ *pawl.Workflow[string, string]) error {
			_, err := pawl.Child[string, string](run, "kid", nil, "x")
			return err
		},
		"size": func(run *pawl.Run, k *pawl.Workflow[string, string]) error {
			_, err := pawl.Child(run, "kid", k, strings.Repeat("x", 2<<20))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				k := kid(s)
				w := flow("caller", "v1", func(run *pawl.Run, _ string) (string, error) { return "", call(run, k) })
				s.spawn("b1", w, k)
				d := s.reach(begin(s, w, "x"), pawl.Failed)
				if d.Fault.Class != fault.InvalidRequest {
					t.Errorf("fault is %+v", d.Fault)
				}
				if n := len(s.runsOf("kid")); n != 0 {
					t.Errorf("%d children, want none", n)
				}
			})
		})
	}
	scene(t, func(t *testing.T, s *stage) {
		_, err := kid(s).Start(t.Context(), s.desk, "x", pawl.Detached())
		mentions(t, err, "Detached")
	})
}

// A caller may find a run that a worker is executing already; that one's end has to tell it all the same.
func TestChildThatIsRunningAlready(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := kid(s)
		w := flow("caller", "v1", func(run *pawl.Run, in string) (string, error) {
			return pawl.Child(run, "kid", k, in, pawl.Key("one"))
		})
		s.on("kb", func(context.Context, int) (string, error) {
			time.Sleep(time.Minute) // bubble
			return "B", nil
		})
		s.spawn("b1", w, k)
		child := begin(s, k, "x", pawl.Key("one"))
		s.reach(child, pawl.Running)
		time.Sleep(10 * time.Second) // bubble
		id := begin(s, w, "x")
		d := s.reach(id, pawl.Waiting)
		if c := d.Children; len(c) != 1 || c[0].Run != child || !c[0].Found {
			t.Errorf("children %+v, want to have found %s", c, child)
		}
		result(t, s.reach(id, pawl.Succeeded), "B")
	})
}

// A cancel that comes between a wait and the end of the body's execution is not overlooked.
func TestCancelWhileTheBodyLetsGo(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
		var seen atomic.Bool
		s.spawnWith(func(o *pawl.Options) {
			o.Hooks.At = func(at hooks.Point, run, _ string) {
				if at != hooks.BodyDone || seen.Swap(true) {
					return
				}
				if _, err := s.desk.Cancel(t.Context(), pawl.RunID(run), ann); err != nil {
					t.Error(err)
				}
				time.Sleep(5 * time.Second) // bubble
			}
		}, w)
		s.reach(begin(s, w, "x"), pawl.Cancelled)
	})
}
