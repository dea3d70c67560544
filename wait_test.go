package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
	"github.com/pawlrun/pawl/internal/hooks"
)

func slept(s *stage, sleep func(run *pawl.Run) error) *pawl.Workflow[string, string] {
	return flow("sleeper", "v1", func(run *pawl.Run, in string) (string, error) {
		a, err := s.rep(run, "a", in)
		if err != nil {
			return "", err
		}
		if err := sleep(run); err != nil {
			return "", err
		}
		return s.rep(run, "b", a)
	})
}

// A sleeping run holds no slot, costs no claim until it is due, and wakes at the stored time.
func TestSleepFreesTheSlot(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", 10*time.Minute) })
		p := s.spawnWith(func(o *pawl.Options) { o.Slots = 1 }, w)
		began := time.Now()
		first, second := begin(s, w, "x"), begin(s, w, "y")
		for _, id := range []pawl.RunID{first, second} {
			d := s.reach(id, pawl.Waiting)
			if st := step(t, d, "nap"); st.State != pawl.StepWaiting || st.Kind != fault.KindTimer ||
				st.NextAt.Sub(began.Add(10*time.Minute)).Abs() > time.Minute {
				t.Errorf("the nap is %s, a %s until %v", st.State, st.Kind, st.NextAt)
			}
		}
		commits := p.store.commits.Load()
		for _, id := range []pawl.RunID{first, second} {
			d := s.reach(id, pawl.Succeeded)
			result(t, d, map[pawl.RunID]string{first: "b(a(x))", second: "b(a(y))"}[id])
			if slept := d.Ended.Sub(d.Created); slept < 10*time.Minute || slept > 10*time.Minute+5*time.Second {
				t.Errorf("slept %v, want ten minutes", slept)
			}
		}
		if n := p.store.commits.Load() - commits; n > 6 {
			t.Errorf("two sleeps cost %d commits after they had begun, want a claim, perhaps a result, and an end each", n)
		}
		s.want(map[string]int{"a": 2, "b": 2})
	})
}

// A process that dies anywhere around a sleep neither sleeps again nor forgets to wake.
func TestSleepSurvivesAKill(t *testing.T) {
	for _, point := range []hooks.Point{hooks.Claimed, hooks.StepReached, hooks.BodyDone, hooks.CommitSending, hooks.Ended} {
		for nth := 1; nth <= upTo(1, 3); nth++ {
			t.Run(fmt.Sprint(point, nth), func(t *testing.T) {
				scene(t, func(t *testing.T, s *stage) {
					w := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", 5*time.Minute) })
					s.doomed(point, nth, w)
					id := begin(s, w, "x")
					time.Sleep(time.Minute) // bubble
					s.spawn("b1", w)
					d := s.reach(id, pawl.Succeeded)
					result(t, d, "b(a(x))")
					if slept := d.Ended.Sub(d.Created); slept < 5*time.Minute || slept > 6*time.Minute+10*time.Second {
						t.Errorf("the run took %v, want five minutes, or one more where its worker died before the sleep began", slept)
					}
				})
			})
		}
	}
}

func TestSleepTakesAnyTime(t *testing.T) {
	past := time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, sleep := range map[string]func(*pawl.Run) error{
		"nothing":      func(r *pawl.Run) error { return pawl.Sleep(r, "nap", 0) },
		"negative":     func(r *pawl.Run) error { return pawl.Sleep(r, "nap", math.MinInt64) },
		"a nanosecond": func(r *pawl.Run) error { return pawl.Sleep(r, "nap", 1) },
		"past":         func(r *pawl.Run) error { return pawl.SleepUntil(r, "nap", past) },
		"zero":         func(r *pawl.Run) error { return pawl.SleepUntil(r, "nap", time.Time{}) },
		"this year":    func(r *pawl.Run) error { return pawl.SleepUntil(r, "nap", r.StartedAt().Add(time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := slept(s, sleep)
				s.spawn("b1", w)
				result(t, s.reach(begin(s, w, "x"), pawl.Succeeded), "b(a(x))")
			})
		})
	}
	t.Run("far", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := slept(s, func(r *pawl.Run) error { return pawl.Sleep(r, "nap", math.MaxInt64) })
			s.spawn("b1", w)
			d := s.reach(begin(s, w, "x"), pawl.Waiting)
			if y := step(t, d, "nap").NextAt.Year(); y < 2290 {
				t.Errorf("the longest sleep ends in %d", y)
			}
		})
	})
	t.Run("too far", func(t *testing.T) {
		scene(t, func(t *testing.T, s *stage) {
			w := slept(s, func(r *pawl.Run) error {
				return pawl.SleepUntil(r, "nap", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))
			})
			s.spawn("b1", w)
			d := s.reach(begin(s, w, "x"), pawl.Failed)
			if d.Fault == nil || d.Fault.Class != fault.InvalidRequest {
				t.Errorf("fault is %+v", d.Fault)
			}
		})
	})
}

// A cancel wakes a sleeping run, so that it can compensate, and closes the sleep.
func TestCancelWakesASleeper(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("sleeper", "v1", func(run *pawl.Run, in string) (string, error) {
			err := pawl.Sleep(run, "nap", time.Hour)
			if errors.Is(err, fault.ErrRunCanceled) {
				if _, err := s.rep(run.WithoutCancel(), "undo", in); err != nil {
					return "", err
				}
			}
			return "", err
		})
		p := s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Waiting)
		if _, err := p.Cancel(t.Context(), id, pawl.Act{By: "ann"}); err != nil {
			t.Fatal(err)
		}
		d := s.reach(id, pawl.Cancelled)
		s.want(map[string]int{"undo": 1})
		if st := step(t, d, "nap"); st.State != pawl.StepFailed || st.Fault.Reason != fault.ReasonRunCanceled {
			t.Errorf("the nap is %s (%+v)", st.State, st.Fault)
		}
	})
}

// A retried run does not sleep through again what is over; a duration that new code changes does not move the time.
func TestSleepIsNotRepeated(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		nap := 5 * time.Minute
		w := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", nap) })
		s.on("b", func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", fault.Invalid(errors.New("no"))
			}
			return "B", nil
		})
		s.spawn("b1", w)
		id := begin(s, w, "x")
		s.reach(id, pawl.Waiting)
		nap = time.Hour
		d := s.reach(id, pawl.Failed)
		if !step(t, d, "nap").InputDiffers {
			t.Error("the changed duration is not shown")
		}
		if took := d.Ended.Sub(d.Created); took > 6*time.Minute {
			t.Errorf("the run took %v, want five minutes", took)
		}
		d = s.reach(s.retry(id), pawl.Succeeded)
		result(t, d, "B")
		if took := d.Ended.Sub(d.Created); took > time.Minute {
			t.Errorf("the retry took %v, want no sleep", took)
		}
	})
}

// Runs that fall due together are read together, and what they come to is written together.
func TestSleepersWakeTogether(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		const n = 80
		at := time.Now().Add(2 * time.Minute)
		w := flow("nap", "v1", func(run *pawl.Run, in string) (string, error) {
			return in, pawl.SleepUntil(run, "nap", at)
		})
		p := s.spawn("b1", w)
		var ids []pawl.RunID
		for range n {
			ids = append(ids, begin(s, w, "x"))
		}
		time.Sleep(time.Minute) // bubble
		for _, id := range ids {
			s.reach(id, pawl.Waiting)
		}
		commits, views := p.store.commits.Load(), p.store.views.Load()
		time.Sleep(2 * time.Minute) // bubble
		for _, id := range ids {
			s.reach(id, pawl.Succeeded)
		}
		commits, views = p.store.commits.Load()-commits, p.store.views.Load()-views
		t.Logf("%d sleepers woke with %d commits and %d looks", n, commits, views)
		if commits > n/8 || views > n/8 {
			t.Errorf("%d sleepers woke with %d commits and %d looks, want them to share", n, commits, views)
		}
	})
}
