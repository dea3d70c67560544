package pawl_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// An item that waits, or works, when the run is cancelled or late is executed once more, so that it can compensate.
func TestCancelCompensatesItems(t *testing.T) {
	for _, how := range []string{"batch", "group", "deadline"} {
		t.Run(how, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				item := func(run *pawl.Run, id string) (string, error) {
					if _, err := s.keyed(run, "reserve", id); err != nil {
						return "", err
					}
					if err := pawl.Sleep(run, "nap", time.Hour); err != nil {
						if errors.Is(err, pawl.ErrSuspended) {
							return "", err
						}
						if _, err := s.rep(run.WithoutCancel(), "undo", id); err != nil {
							return "", err
						}
						return "", err
					}
					return id, nil
				}
				w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
					return "", inBranch(run, how, item)
				})
				s.spawn("b1", w)
				var o []pawl.StartOption
				if how == "deadline" {
					o = append(o, pawl.Deadline(20*time.Second))
				}
				id := begin(s, w, "x", o...)
				s.reach(id, pawl.Waiting)
				if how != "deadline" {
					if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
						t.Fatal(err)
					}
				}
				d := s.reach(id, pawl.Cancelled, pawl.Failed)
				t.Logf("%s %+v", d.State, d.Fault)
				s.want(map[string]int{"reserve": 1, "undo": 1})
			})
		})
	}
}

// The compensation of an item may wait itself, or be retried.
func TestItemCompensationThatWaits(t *testing.T) {
	for _, in := range []string{"batch", "group"} {
		for _, how := range []string{"sleep", "retry"} {
			t.Run(in+how, func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					s.on("undo", func(_ context.Context, n int) (string, error) {
						if how == "retry" && n < 6 {
							return "", fault.NotSent(errors.New("connection refused"))
						}
						return "undone", nil
					})
					item := func(run *pawl.Run, id string) (string, error) {
						_, err := pawl.Repeatable(run, "slow", id, func(ctx context.Context, id string) (string, error) { return id, sleep(ctx, time.Hour) })
						if errors.Is(err, fault.ErrRunCanceled) {
							if how == "sleep" {
								if err := pawl.Sleep(run.WithoutCancel(), "pause", 30*time.Second); err != nil {
									return "", err
								}
							}
							if _, err := s.keyed(run.WithoutCancel(), "undo", id); err != nil {
								return "", err
							}
							s.effect("compensated")
						}
						return id, err
					}
					w := flow("w", "v1", func(run *pawl.Run, _ string) (string, error) {
						return "", inBranch(run, in, item)
					})
					p := s.spawn("b1", w)
					id := begin(s, w, "x")
					time.Sleep(10 * time.Second) // bubble
					if _, err := p.Cancel(t.Context(), id, ann); err != nil {
						t.Fatal(err)
					}
					s.reach(id, pawl.Cancelled)
					t.Log("undo", s.count("undo"))
					s.want(map[string]int{"compensated": 1})
				})
			})
		}
	}
}

// The process dies in the middle of the compensation of an item.
func TestItemCompensationSurvivesACrash(t *testing.T) {
	for _, in := range []string{"batch", "group"} {
		t.Run(in, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				var p *proc
				s.on("undo1", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						p.die()
					}
					return "undone", nil
				})
				item := func(run *pawl.Run, id string) (string, error) {
					_, err := pawl.Repeatable(run, "slow", id, func(ctx context.Context, id string) (string, error) { return id, sleep(ctx, time.Hour) })
					if errors.Is(err, fault.ErrRunCanceled) {
						for _, u := range []string{"undo1", "undo2"} {
							if _, err := s.keyed(run.WithoutCancel(), u, id); err != nil {
								return "", err
							}
						}
					}
					return id, err
				}
				w := flow("w", "v1", func(run *pawl.Run, _ string) (string, error) {
					return "", inBranch(run, in, item)
				})
				p = s.spawn("b1", w)
				id := begin(s, w, "x")
				time.Sleep(10 * time.Second) // bubble
				if _, err := s.desk.Cancel(t.Context(), id, ann); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second) // bubble
				s.spawn("b1", w)
				s.reach(id, pawl.Cancelled)
				s.want(map[string]int{"undo1": 2, "undo2": 1})
			})
		})
	}
}

// What is left of the items of a batch that has ended is nobody's, and no reason to ask.
func TestBatchLeavesNothingBehind(t *testing.T) {
	for _, how := range []string{"vanished", "sibling"} {
		t.Run(how, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				var short atomic.Bool
				w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
					list := []string{"a", "b"}
					if short.Load() && how == "vanished" {
						list = list[:1]
					}
					first := func(run *pawl.Run) error {
						_, err := pawl.Batch(run, "first", list, self, func(run *pawl.Run, id string) (string, error) {
							d := 20 * time.Second
							if id == "b" {
								d = time.Hour
							}
							return id, pawl.Sleep(run, "nap", d)
						})
						return err
					}
					if how == "vanished" {
						if err := first(run); err != nil {
							return "", err
						}
					} else {
						g := run.Group()
						g.Go(first)
						g.Go(func(run *pawl.Run) error {
							_, err := pawl.Repeatable(run, "quick", "", func(ctx context.Context, id string) (string, error) { return id, sleep(ctx, time.Second) })
							return errors.Join(err, errors.New("no"))
						})
						if err := g.Wait(); errors.Is(err, pawl.ErrSuspended) {
							return "", err
						}
					}
					_, err := pawl.Batch(run, "second", []string{"x", "y"}, self, func(run *pawl.Run, id string) (string, error) {
						return id, pawl.Sleep(run, "nap", 10*time.Second)
					})
					return "ok", err
				})
				s.spawn("b1", w)
				id := begin(s, w, "x")
				s.reach(id, pawl.Waiting)
				short.Store(true)
				time.Sleep(5 * time.Minute) // bubble
				d := s.show(s.desk, id)
				for _, en := range d.Entries {
					t.Logf("entry %s %s: %s", en.Kind, en.Step, en.Detail)
				}
				if d.State != pawl.Succeeded {
					t.Errorf("state %s %+v", d.State, d.Fault)
				}
			})
		})
	}
}

// A run that goes on as its successor is in the way of the next instant.
func TestScheduleFollowsAChain(t *testing.T) {
	for _, o := range []pawl.OverlapPolicy{pawl.OverlapSkip, pawl.OverlapBuffer, pawl.OverlapCancel} {
		t.Run(string(o), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				var live, most atomic.Int64
				w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
					if in != "next" {
						if _, err := s.rep(run, "a", in); err != nil {
							return "", err
						}
						return pawl.ContinueAs[string](run, "next")
					}
					_, err := pawl.Repeatable(run, "work", in, func(ctx context.Context, in string) (string, error) {
						most.Store(max(most.Load(), live.Add(1)))
						defer live.Add(-1)
						return in, sleep(ctx, 150*time.Second)
					})
					return "ok", err
				})
				s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant, pawl.Overlap(o)))
				time.Sleep(5*time.Minute + 30*time.Second) // bubble
				t.Logf("%s: %s; at once: %d", o, story(s.ledger("minutely")), most.Load())
				for _, r := range s.runsOf("w") {
					t.Log(r.ID, r.State, r.Continues, r.Successor)
				}
				if most.Load() > 1 {
					t.Errorf("%d runs of the schedule at once", most.Load())
				}
			})
		})
	}
}

// inBranch runs an item in a group, or as the only one of a batch.
func inBranch(run *pawl.Run, how string, item func(*pawl.Run, string) (string, error)) error {
	if how == "group" {
		g := run.Group()
		g.Go(func(run *pawl.Run) error { _, err := item(run, "a"); return err })
		return g.Wait()
	}
	_, err := pawl.Batch(run, "rows", []string{"a"}, self, item)
	return err
}

// A batch that goes on knows the first failure of before, as it was.
func TestBatchKeepsItsFirstFailure(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("w", "v1", func(run *pawl.Run, _ string) (string, error) {
			_, err := pawl.Batch(run, "rows", []string{"c", "b", "a"}, self, func(run *pawl.Run, id string) (string, error) {
				if id == "a" {
					return id, pawl.Sleep(run, "nap", 5*time.Second)
				}
				return id, errors.New("no " + id)
			})
			return "", err
		})
		s.spawn("b1", w)
		d := s.reach(begin(s, w, "x"), pawl.Failed)
		if d.Fault == nil || !strings.Contains(d.Fault.Message, "no b") {
			t.Errorf("the run has failed by %+v, want the failure of b", d.Fault)
		}
	})
}
