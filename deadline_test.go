package pawl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/fault"
)

func plain(s *stage) *pawl.Workflow[string, string] {
	return flow("plain", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "a", in) })
}

// At holds back a start on every path: alone and hosted by a worker, with a key, and many.
func TestAtDelaysAStart(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := plain(s)
		p := s.spawn("b1", w)
		time.Sleep(time.Second) // bubble
		at := time.Now().Add(10 * time.Minute)
		ids := []pawl.RunID{begin(s, w, "desk", pawl.At(at)), begin(s, w, "keyed", pawl.At(at), pawl.Key("k"))}
		h, err := w.Start(t.Context(), p.Engine, "hosted", pawl.At(at))
		if err != nil {
			t.Fatal(err)
		}
		many, err := w.StartMany(t.Context(), s.desk, []string{"m1", "m2"}, nil, pawl.At(at), pawl.Deadline(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, h.ID(), many[0].ID(), many[1].ID())
		time.Sleep(9 * time.Minute) // bubble
		s.want(map[string]int{"a": 0})
		for _, id := range ids {
			d := s.reach(id, pawl.Succeeded)
			if late := d.Started.Sub(at); late < 0 || late > 10*time.Second {
				t.Errorf("begun %v after the time", late)
			}
		}
		d := s.show(s.desk, many[1].ID())
		if got := d.Deadline.Sub(at); got.Abs() > time.Millisecond+time.Hour || got < time.Hour-time.Millisecond {
			t.Errorf("the deadline is %v after the start, want an hour", got)
		}
		result(t, s.reach(begin(s, w, "past", pawl.At(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))), pawl.Succeeded), "a(past)")
		_, err = w.Start(t.Context(), s.desk, "x", pawl.At(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)))
		mentions(t, err, "year 10000")
		_, err = w.Start(t.Context(), s.desk, "x", pawl.Deadline(-1))
		mentions(t, err, "Deadline", "positive")
	})
}

// A deadline wakes a run that waits, lets it compensate, and says what it waited for. A retry has as much time
// again.
func TestDeadlineWakesAWaiter(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		nap := time.Hour
		w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) {
			err := pawl.Sleep(run, "nap", nap)
			if errors.Is(err, fault.ReasonRunDeadline) {
				if err := pawl.Sleep(run.WithoutCancel(), "pause", 2*time.Minute); err != nil {
					return "", err
				}
				if _, err := s.rep(run.WithoutCancel(), "undo", in); err != nil {
					return "", err
				}
			}
			return "", err
		})
		s.spawn("b1", w)
		id := begin(s, w, "x", pawl.Deadline(10*time.Minute))
		d := s.reach(id, pawl.Failed)
		if d.Fault.Reason != fault.ReasonRunDeadline || d.Fault.Class != fault.Canceled || !strings.Contains(d.Fault.Message, `timer "nap"`) {
			t.Errorf("fault is %+v", d.Fault)
		}
		if took := d.Ended.Sub(d.Created); took < 12*time.Minute || took > 13*time.Minute {
			t.Errorf("ended after %v, want ten minutes and two", took)
		}
		s.want(map[string]int{"undo": 1})
		nap = time.Minute
		if d := s.reach(s.retry(id), pawl.Succeeded); d.Deadline.Sub(d.Created) != 10*time.Minute {
			t.Errorf("the retry has %v", d.Deadline.Sub(d.Created))
		}
	})
}

// A deadline ends the context of the step that is running, and of one that waits for its next attempt.
func TestDeadlineCutsASteps(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := plain(s)
		p := s.spawn("b1", w)
		time.Sleep(time.Second) // bubble
		s.on("a", func(ctx context.Context, _ int) (string, error) {
			<-ctx.Done()
			return "", context.Cause(ctx)
		})
		h, err := w.Start(t.Context(), p.Engine, "x", pawl.Deadline(time.Minute)) // begun at its start
		if err != nil {
			t.Fatal(err)
		}
		d := s.reach(h.ID(), pawl.Failed)
		if d.Fault.Reason != fault.ReasonRunDeadline || !strings.Contains(d.Fault.Message, `repeatable "a"`) {
			t.Errorf("fault is %+v", d.Fault)
		}
		if st := step(t, d, "a"); st.Fault.Reason != fault.ReasonRunDeadline {
			t.Errorf("the step failed with %+v", st.Fault)
		}
		s.on("a", func(context.Context, int) (string, error) {
			return "", &fault.Fault{Class: fault.RateLimited, Outcome: fault.OutcomeRejected, Delay: 30 * time.Minute}
		})
		d = s.reach(begin(s, w, "y", pawl.Deadline(10*time.Minute)), pawl.Failed)
		if took := d.Ended.Sub(d.Created); d.Fault.Class != fault.RateLimited || took > time.Minute {
			t.Errorf("a told delay beyond the deadline: failed after %v with %+v", took, d.Fault)
		}
	})
}

// A deadline does not answer for a person: the run ends when the effect is known.
func TestDeadlineWaitsForAnAnswer(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := flow("w", "v1", func(run *pawl.Run, in string) (string, error) { return s.mail(run, "mail", in) })
		s.on("mail", func(context.Context, int) (string, error) { return "", errors.New("what?") })
		s.spawn("b1", w)
		id := begin(s, w, "x", pawl.Deadline(5*time.Minute))
		en := s.blocked(id, pawl.AskUncertain)
		time.Sleep(10 * time.Minute) // bubble
		s.resolve(en, pawl.AnswerHappened)
		d := s.reach(id, pawl.Failed)
		if d.Fault.Reason != fault.ReasonRunDeadline {
			t.Errorf("fault is %+v", d.Fault)
		}
		s.want(map[string]int{"mail": 1})
	})
}

// The deadline of a caller ends its child too, and a run that nobody took in time ends when it is taken.
func TestDeadlineGoesDown(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		k := slept(s, func(run *pawl.Run) error { return pawl.Sleep(run, "nap", time.Hour) })
		w := calling(s, k)
		id := begin(s, w, "x", pawl.Deadline(5*time.Minute))
		never := begin(s, w, "y", pawl.Deadline(time.Second))
		time.Sleep(time.Minute) // bubble
		s.spawn("b1", w, k)
		d := s.reach(id, pawl.Failed)
		if d.Fault.Reason != fault.ReasonRunDeadline || !strings.Contains(d.Fault.Message, `child "kid"`) {
			t.Errorf("fault is %+v", d.Fault)
		}
		s.reach(d.Children[0].Run, pawl.Cancelled)
		if d := s.reach(never, pawl.Failed); d.Fault.Reason != fault.ReasonRunDeadline {
			t.Errorf("fault is %+v", d.Fault)
		}
		s.want(map[string]int{"a": 2, "b": 0})
	})
}
