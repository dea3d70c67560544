package pawl_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

// throttled is an answer that tells how long to wait.
func throttled(d time.Duration) error {
	return &fault.Fault{Class: fault.RateLimited, Reason: fault.ReasonThrottled, Outcome: fault.OutcomeRejected, Delay: d}
}

// asks is a workflow of one step in a lane.
func asks(kind func(run *pawl.Run, name, in string, opts ...any) (string, error)) *pawl.Workflow[string, string] {
	return flow("ask", "v1", func(run *pawl.Run, in string) (string, error) { return kind(run, "call", in, pawl.Lane("openai/a/m")) })
}

// When a provider says "wait", every step of the lane waits, in all runs and processes, without an attempt being spent, and
// they do not come back all at once. Other lanes go on (C20).
func TestLaneWaitsAsAWhole(t *testing.T) {
	for kind, do := range map[string]func(s *stage) func(run *pawl.Run, name, in string, opts ...any) (string, error){
		"repeatable": func(s *stage) func(run *pawl.Run, name, in string, opts ...any) (string, error) { return s.rep },
		"keyed":      func(s *stage) func(run *pawl.Run, name, in string, opts ...any) (string, error) { return s.keyed },
		"once":       func(s *stage) func(run *pawl.Run, name, in string, opts ...any) (string, error) { return s.mail },
	} {
		t.Run(kind, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				const told, others = 40 * time.Second, 12
				var mu sync.Mutex // guards times
				var times []time.Time
				s.on("call", func(_ context.Context, n int) (string, error) {
					mu.Lock()
					defer mu.Unlock()
					times = append(times, time.Now())
					if n == 1 {
						return "", throttled(told)
					}
					return "ok", nil
				})
				w := asks(do(s))
				s.spawn("b1", w)
				ids := []pawl.RunID{begin(s, w, "first")}
				s.reach(ids[0], pawl.Waiting)
				s.spawn("b1", w) // another process
				for range others {
					ids = append(ids, begin(s, w, "x"))
				}
				for _, id := range ids[1:] {
					d := s.reach(id, pawl.Waiting)
					if st := step(t, d, "call"); st.State != pawl.StepRetrying || st.Attempt != 0 || len(st.Attempts) != 0 || st.Fault == nil {
						t.Errorf("a step that waits for its lane is %s at attempt %d with %d attempts, fault %v; want retrying at none, and why",
							st.State, st.Attempt, len(st.Attempts), st.Fault)
					}
				}
				lanes, err := s.desk.Lanes(t.Context())
				if err != nil || len(lanes) != 1 || lanes[0].Name != "openai/a/m" || lanes[0].Why == "" {
					t.Errorf("lanes %+v, %v; want the one, with what it was told", lanes, err)
				}
				for i, id := range ids {
					d := s.reach(id, pawl.Succeeded)
					if want := map[bool]string{true: "failed succeeded", false: "succeeded"}[i == 0]; states(step(t, d, "call")) != want {
						t.Errorf("run %d has the attempts %q, want %q", i, states(step(t, d, "call")), want)
					}
				}
				together := 0
				for i, at := range times[1:] {
					if at.Sub(times[0]) < told {
						t.Errorf("call %d came %v after the lane was told to wait for %v", i+2, at.Sub(times[0]), told)
					}
					if at.Sub(times[0]) < told+time.Second {
						together++
					}
				}
				if together > others/2 {
					t.Errorf("%d of %d came within a second", together, others)
				}
			})
		})
	}
}

// A lane is held by the write that records the attempt: a worker that dies just after it does not take it along.
func TestLaneSurvivesAKill(t *testing.T) {
	for _, point := range []hooks.Point{hooks.EffectDone, hooks.CommitSending, hooks.ResultWritten, hooks.Ended} {
		t.Run(string(point), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				var first time.Time
				s.on("call", func(_ context.Context, n int) (string, error) {
					if n == 1 {
						first = time.Now()
						return "", throttled(time.Minute)
					}
					if point != hooks.EffectDone && point != hooks.CommitSending && time.Since(first) < time.Minute {
						t.Errorf("call %d came %v after the lane was told to wait for a minute", n, time.Since(first))
					}
					return "ok", nil
				})
				w := asks(s.rep)
				s.spawnProc(func(p *proc, o *pawl.Options) {
					o.Hooks.At = func(at hooks.Point, _, _ string) {
						if at == point && s.count("call") == 1 {
							if at == hooks.CommitSending {
								p.kill()
							} else {
								p.die()
							}
						}
					}
				}, w)
				id := begin(s, w, "x")
				time.Sleep(time.Second) // bubble
				s.spawn("b1", w)
				other := begin(s, w, "y")
				s.reach(id, pawl.Succeeded)
				s.reach(other, pawl.Succeeded)
				if n := s.count("call"); n != 3 {
					t.Errorf("the provider was called %d times, want 3", n)
				}
			})
		})
	}
}

// A short wait keeps the slot, and costs no write.
func TestLaneShortWait(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("call", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", throttled(time.Second)
			}
			return "ok", nil
		})
		w := asks(s.rep)
		s.spawn("b1", w)
		first, second := begin(s, w, "x"), begin(s, w, "y")
		for _, id := range []pawl.RunID{first, second} {
			d := s.reach(id, pawl.Succeeded)
			if n := d.Releases; n != 0 {
				t.Errorf("the run was released %d times", n)
			}
		}
		mentions(t, func() error {
			bad := flow("bad", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "call", in, pawl.Lane("")) })
			s.spawn("b1", bad)
			d := s.reach(begin(s, bad, "x"), pawl.Failed)
			return d.Fault
		}(), "Lane")
	})
}
