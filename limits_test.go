package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

// A run that reaches a limit asks, and goes on for as much again when somebody says so. Nothing is done twice.
func TestLimitsAsk(t *testing.T) {
	loop := func(s *stage, cost int64, nap time.Duration) func(run *pawl.Run, in string) (string, error) {
		return func(run *pawl.Run, in string) (string, error) {
			for i := range 10 {
				err := pawl.RepeatableDo(run, fmt.Sprint("work", i), in, func(ctx context.Context, _ string) error {
					s.effect("work")
					pawl.Report(ctx, pawl.Usage{CostMicros: cost})
					time.Sleep(nap) // bubble
					return nil
				})
				if err != nil {
					return "", err
				}
			}
			return "done", nil
		}
	}
	for _, tt := range []struct {
		name   string
		limits pawl.Limits
		cost   int64
		nap    time.Duration
		at     []int // steps done at each question
		says   string
	}{
		{"steps", pawl.Limits{Steps: 4}, 0, 0, []int{4, 8}, "has 4 steps"},
		{"cost", pawl.Limits{CostMicros: 1000}, 300, 0, []int{4, 7}, "$0.001200"},
		{"elapsed", pawl.Limits{Elapsed: time.Minute}, 0, 15 * time.Second, []int{4, 8}, "1m0s ago"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("agent", "v1", loop(s, tt.cost, tt.nap), pawl.Limit(tt.limits))
				s.spawn("b1", w)
				id := begin(s, w, "x")
				for i, done := range tt.at {
					en := s.blocked(id, pawl.AskLimit)
					if n := s.count("work"); n != done {
						t.Errorf("question %d came after %d steps, want %d", i+1, n, done)
					}
					if i == 0 && !strings.Contains(en.Detail, tt.says) {
						t.Errorf("the entry says %q, want %q in it", en.Detail, tt.says)
					}
					if err := s.desk.Resume(t.Context(), id, pawl.Act{By: "ann"}); err != nil {
						t.Fatal(err)
					}
				}
				result(t, s.reach(id, pawl.Succeeded), "done")
				s.want(map[string]int{"work": 10})
			})
		})
	}
}

// What failed attempts have cost counts too, also after a restart.
func TestCostOfFailedAttemptsCounts(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("agent", "v1", func(run *pawl.Run, in string) (string, error) {
			if err := pawl.RepeatableDo(run, "ask", in, func(ctx context.Context, _ string) error {
				pawl.Report(ctx, pawl.Usage{CostMicros: 400})
				if s.effect("ask") < 3 {
					return fault.RetryAfter(errors.New("busy"), time.Minute) // parks: the next attempt is another execution's
				}
				return nil
			}); err != nil {
				return "", err
			}
			return s.rep(run, "next", in)
		}, pawl.Limit(pawl.Limits{CostMicros: 1100}))
		s.spawn("b1", w)
		id := begin(s, w, "x")
		en := s.blocked(id, pawl.AskLimit)
		if en.Step != "next" || s.count("ask") != 3 {
			t.Errorf("blocked at %q after %d attempts, want at next, after 3", en.Step, s.count("ask"))
		}
		if _, err := s.desk.Cancel(t.Context(), id, pawl.Act{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		s.reach(id, pawl.Cancelled)
	})
}

func TestLimitsAreChecked(t *testing.T) {
	defer func() {
		if p := fmt.Sprint(recover()); !strings.Contains(p, "no negative number") {
			t.Errorf("Define with a negative limit: %s", p)
		}
	}()
	flow("agent", "v1", func(*pawl.Run, string) (string, error) { return "", nil }, pawl.Limit(pawl.Limits{Steps: -1}))
}

// Finally cleans up after every end of a body, across suspensions and kills, and beyond limits.
func TestFinally(t *testing.T) {
	for name, tt := range map[string]struct {
		body   func(s *stage, run *pawl.Run) error
		undo   func(s *stage, run *pawl.Run) error
		cancel bool
		want   pawl.RunState
		says   string
	}{
		"success": {want: pawl.Succeeded},
		"failure": {body: func(*stage, *pawl.Run) error { return fault.Invalid(errors.New("first")) }, want: pawl.Failed, says: "first"},
		"panic":   {body: func(*stage, *pawl.Run) error { panic("boom") }, want: pawl.Failed, says: "boom"},
		"cancel":  {body: func(_ *stage, run *pawl.Run) error { return pawl.Sleep(run, "long", time.Hour) }, cancel: true, want: pawl.Cancelled},
		"limits": {body: func(s *stage, run *pawl.Run) error {
			_, err := s.rep(run, "one", "x")
			return err
		}, want: pawl.Succeeded},
		"its own failure": {undo: func(*stage, *pawl.Run) error { return fault.Invalid(errors.New("undo failed")) }, want: pawl.Failed, says: "undo failed"},
		"both": {body: func(*stage, *pawl.Run) error { return fault.Invalid(errors.New("first")) },
			undo: func(*stage, *pawl.Run) error { return fault.Invalid(errors.New("undo failed")) }, want: pawl.Failed, says: "first"},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := flow("job", "v1", func(run *pawl.Run, in string) (string, error) {
					if _, err := s.rep(run, "begin", in); err != nil {
						return "", err
					}
					run.Finally(func(run *pawl.Run) error {
						if _, err := s.rep(run, "undo", in); err != nil {
							return err
						}
						if err := pawl.Sleep(run, "pause", time.Minute); err != nil {
							return err
						}
						_, err := s.rep(run, "undone", in)
						if tt.undo != nil {
							return tt.undo(s, run)
						}
						return err
					})
					run.Finally(func(run *pawl.Run) error {
						_, err := s.rep(run, "first to go", in)
						return err
					})
					if tt.body != nil {
						return "out", tt.body(s, run)
					}
					return "out", nil
				}, pawl.Limit(pawl.Limits{Steps: 2}))
				s.spawn("b1", w)
				id := begin(s, w, "x")
				if tt.cancel {
					s.reach(id, pawl.Waiting)
					s.want(map[string]int{"undo": 0, "first to go": 0})
					if _, err := s.desk.Cancel(t.Context(), id, pawl.Act{By: "ann"}); err != nil {
						t.Fatal(err)
					}
				}
				d := s.reach(id, tt.want)
				s.want(map[string]int{"begin": 1, "undo": 1, "undone": 1, "first to go": 1})
				if tt.says != "" && !strings.Contains(d.Fault.Error(), tt.says) {
					t.Errorf("the run's fault is %v, want %q in it", d.Fault, tt.says)
				}
			})
		})
	}
}
