package pawl_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// A schedule that has started all its runs has no instants any more, whatever a person does with it.
func TestScheduleFullHasNoInstants(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		p := s.spawn("b1", w, w.Schedule("m", pawl.Cron("* * * * * *", "UTC"), instant, pawl.MaxRuns(1)))
		time.Sleep(20 * time.Hour) // bubble: more than one decision takes
		must(t, p.EditSchedule(t.Context(), "m", func(x *pawl.ScheduleSpec) error { x.Priority = 1; return nil }, ann))
		_, _, err := p.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann})
		must(t, err)
		time.Sleep(time.Minute) // bubble
		tells(t, s.ledger("m"), "started started")
		if d := s.schedule("m"); d.Streak != 0 || !d.Next.IsZero() {
			t.Errorf("a streak of %d, next %s", d.Streak, d.Next)
		}
	})
}

// A person has the instant that is due and not decided about, whatever would become of it else.
func TestScheduleTriggerOfAnUndecidedInstant(t *testing.T) {
	for name, pause := range map[string]bool{"paused": true, "not caught up": false} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.patient()
				w := s.quick()
				table := w.Schedule("m", pawl.Cron("0 * * * *", "UTC"), instant, pawl.CatchUp(pawl.CatchUpNone, 0))
				s.spawnFor(65*time.Minute, w, table)
				if pause {
					must(t, s.desk.PauseSchedule(t.Context(), "m", ann))
				}
				time.Sleep(time.Hour) // bubble: nobody decides
				o := s.opts
				e, err := pawl.New(s.bench.store, &o, w, table)
				must(t, err)
				got, isNew, err := e.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann, At: bubbleStart.Add(2 * time.Hour)})
				if must(t, err); !isNew || got.State != pawl.OccurrenceStarted {
					t.Errorf("the instant is %s(%s), new %v", got.State, got.Reason, isNew)
				}
			})
		})
	}
}

// A range stands for the instants of its timetable, and for no other time.
func TestScheduleTriggerInsideARange(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		p := s.afterGap(s.quick(), "* * * * *", 40*time.Hour)
		for _, c := range []struct {
			at    time.Duration
			isNew bool
		}{{100 * time.Minute, false}, {100*time.Minute + 30*time.Second, true}} {
			o, isNew, err := p.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann, At: bubbleStart.Add(c.at)})
			if must(t, err); isNew != c.isNew || o.State.HasRun() != c.isNew {
				t.Errorf("%v: %s(%s), new %v", c.at, o.State, o.Reason, isNew)
			}
		}
		if all := s.ledger("m"); all[0].Count != 2399 {
			t.Errorf("the range counts %d instants, want 2399", all[0].Count)
		}
	})
}

// What code changes after a long time without workers is caught up first, in as many decisions as it takes.
func TestScheduleDeployAfterMany(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		s.spawnFor(time.Second, w, w.Schedule("m", pawl.Every(time.Second), instant))
		time.Sleep(20 * time.Hour) // bubble
		s.spawn("b2", w, w.Schedule("m", pawl.Cron("15 3 * * *", "UTC"), instant))
		time.Sleep(time.Minute) // bubble
		if text := story(s.ledger("m")); strings.Count(text, "started") != 1 || strings.Contains(text, "edited") {
			t.Errorf("the ledger is %s, want one run for all that was missed", text)
		}
	})
}

// A resume by a desk accounts for the time as a worker does.
func TestScheduleResumeByADesk(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		s.spawnFor(time.Minute+time.Second, w, w.Schedule("m", pawl.Cron("* * * * *", "UTC"), instant))
		time.Sleep(2 * time.Minute) // bubble
		must(t, s.desk.PauseSchedule(t.Context(), "m", ann))
		time.Sleep(time.Minute) // bubble
		must(t, s.desk.ResumeSchedule(t.Context(), "m", ann))
		tells(t, s.ledger("m"), "started missed(paused) missed(paused) paused(paused)")
	})
}

// Triggers of a schedule that is over do not read one another.
func TestScheduleTriggersOfTheEnded(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		p := s.spawn("b1", w, w.Schedule("m", pawl.OneOff(bubbleStart.Add(time.Minute)), instant, pawl.Overlap(pawl.OverlapAllow)))
		time.Sleep(2 * time.Minute) // bubble
		for range 5 {
			_, _, err := p.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann})
			must(t, err)
			time.Sleep(time.Second) // bubble
		}
		must(t, s.bench.store.View(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			ahead, err := tx.OccurrencesAhead(ctx, []string{"m"})
			if len(ahead) > 0 {
				t.Errorf("%d rows are read again and again", len(ahead))
			}
			return err
		}))
	})
}
