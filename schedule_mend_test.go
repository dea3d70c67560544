package pawl_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
)

// An instant that has come and is put off by the jitter is in the ledger whatever a person or code does meanwhile.
func TestScheduleJitterAccounts(t *testing.T) {
	acts := map[string]func(t *testing.T, s *stage, p *proc, w *pawl.Workflow[string, string]) pawl.OccurrenceState{
		"edit": func(t *testing.T, _ *stage, p *proc, _ *pawl.Workflow[string, string]) pawl.OccurrenceState {
			must(t, p.EditSchedule(t.Context(), "s00", func(x *pawl.ScheduleSpec) error { x.Priority = 3; return nil }, ann))
			return pawl.OccurrenceStarted
		},
		"edit of the times": func(t *testing.T, _ *stage, p *proc, _ *pawl.Workflow[string, string]) pawl.OccurrenceState {
			must(t, p.EditSchedule(t.Context(), "s00", func(x *pawl.ScheduleSpec) error { x.Jitter = 0; return nil }, ann))
			return pawl.OccurrenceMissed
		},
		"pause": func(t *testing.T, _ *stage, p *proc, _ *pawl.Workflow[string, string]) pawl.OccurrenceState {
			must(t, p.PauseSchedule(t.Context(), "s00", ann))
			must(t, p.ResumeSchedule(t.Context(), "s00", ann))
			return pawl.OccurrenceStarted
		},
		"delete": func(t *testing.T, _ *stage, p *proc, _ *pawl.Workflow[string, string]) pawl.OccurrenceState {
			must(t, p.DeleteSchedule(t.Context(), "s00", ann))
			return pawl.OccurrenceMissed
		},
		"code": func(_ *testing.T, s *stage, p *proc, w *pawl.Workflow[string, string]) pawl.OccurrenceState {
			p.stop()
			s.spawn("b2", w, w.Schedule("s00", pawl.Cron("0 * * * *", "UTC"), instant, pawl.Jitter(40*time.Minute), pawl.RunsIn("", 3)))
			return pawl.OccurrenceStarted
		},
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.patient()
				w := s.quick()
				p := s.spawn("b1", w, w.Schedule("s00", pawl.Cron("0 * * * *", "UTC"), instant, pawl.Jitter(40*time.Minute)))
				time.Sleep(time.Hour + 5*time.Second) // bubble
				if n := len(s.ledger("s00")); n != 0 {
					t.Fatalf("%d instants are decided, want none: choose a name that has a larger jitter", n)
				}
				want := act(t, s, p, w)
				time.Sleep(time.Hour) // bubble
				all := s.ledger("s00")
				if len(all) == 0 || !all[0].At.Equal(bubbleStart.Add(time.Hour)) || all[0].State != want {
					t.Errorf("the ledger is %s, want 01:00 in it, %s", story(all), want)
				}
			})
		})
	}
}

// A run that a person has started for an instant before it was decided is not in the way of that instant.
func TestScheduleTriggeredBefore(t *testing.T) {
	for _, p := range []pawl.OverlapPolicy{pawl.OverlapSkip, pawl.OverlapBuffer, pawl.OverlapCancel} {
		t.Run(string(p), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.opts.Poll, s.opts.Lease = time.Minute, 30*time.Minute
				w := s.slow(50 * time.Minute)
				e := s.spawn("b1", w, w.Schedule("s00", pawl.Cron("0 1 * * *", "UTC"), instant, pawl.Jitter(40*time.Minute), pawl.Overlap(p)))
				time.Sleep(time.Hour + 5*time.Second) // bubble
				o, _, err := e.TriggerSchedule(t.Context(), "s00", pawl.Trigger{Act: ann, At: bubbleStart.Add(time.Hour)})
				must(t, err)
				time.Sleep(100 * time.Minute) // bubble
				d := s.schedule("s00")
				if state := s.show(s.desk, o.Run).State; state != pawl.Succeeded || d.Streak != 0 || !d.Next.After(bubbleStart.Add(24*time.Hour)) {
					t.Errorf("the run is %s, the streak %d, the next at %s; want succeeded, 0 and tomorrow", state, d.Streak, d.Next)
				}
			})
		})
	}
}

// A rejected instant is no run of MaxRuns.
func TestScheduleMaxRunsRejected(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		s.spawn("b1", w, w.Schedule("m", pawl.Cron("* * * * *", "UTC"), func(at time.Time) string {
			if at.Minute() == 1 {
				panic("no")
			}
			return instant(at)
		}, pawl.MaxRuns(1)))
		time.Sleep(5*time.Minute + 10*time.Second) // bubble
		if n := s.schedule("m").Started; n != 1 {
			t.Errorf("%d runs are started, want 1: %s", n, story(s.ledger("m")))
		}
	})
}

// A range is backfilled in parts, the newest first.
func TestScheduleBackfillParts(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		p := s.afterGap(s.quick(), "* * * * *", 40*time.Hour)
		at := func(m int) time.Time { return bubbleStart.Add(time.Duration(m) * time.Minute) }
		for _, from := range []int{6, 1} {
			got, err := p.BackfillSchedule(t.Context(), "m", at(from), at(from+4), ann)
			if must(t, err); len(got) != 5 {
				t.Errorf("%d runs, want 5", len(got))
			}
		}
	})
}

// An edit that changes nothing makes no revision, and code is still followed.
func TestScheduleEmptyEdit(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		p := s.spawn("b1", w, w.Schedule("m", pawl.Cron("@yearly", "UTC"), instant))
		time.Sleep(10 * time.Second) // bubble
		must(t, p.EditSchedule(t.Context(), "m", func(*pawl.ScheduleSpec) error { return nil }, ann))
		if d := s.schedule("m"); d.Edited || d.Revision != 1 {
			t.Errorf("edited %v, revision %d", d.Edited, d.Revision)
		}
	})
}

// A backfill keeps to the bounds of the schedule, and has the instants before it was made.
func TestScheduleBackfillBounds(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		p := s.spawn("b1", w, w.Schedule("m", pawl.Cron("* * * * *", "UTC"), instant, pawl.Between(bubbleStart.Add(-2*time.Minute), bubbleStart.Add(7*time.Minute))))
		time.Sleep(20 * time.Minute) // bubble
		got, err := p.BackfillSchedule(t.Context(), "m", bubbleStart.Add(-time.Hour), bubbleStart.Add(20*time.Minute), ann)
		must(t, err)
		if len(got) < 2 || got[0].At.Before(bubbleStart.Add(-2*time.Minute)) || got[len(got)-1].At.After(bubbleStart.Add(7*time.Minute)) {
			t.Errorf("backfilled %s", story(got))
		}
	})
}

// A row for many missed instants is as old as the last of them.
func TestScheduleRangeIsKept(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		table := w.Schedule("m", pawl.Cron("0 * * * *", "UTC"), instant)
		s.spawnFor(time.Second, w, table)
		time.Sleep(401 * 24 * time.Hour) // bubble
		s.spawnWith(func(o *pawl.Options) { o.Retention = 30 * 24 * time.Hour }, w, table)
		time.Sleep(3 * time.Hour) // bubble
		if all := s.ledger("m"); all[0].Count < 9000 {
			t.Errorf("the row of all missed instants is gone: %.200s", story(all))
		}
	})
}

// A skip has a reason also when nothing runs, but another instant waits.
func TestScheduleSkipHasAReason(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.slow(90 * time.Second)
		a := s.spawn("b1", w, w.Schedule("m", pawl.Cron("* * * * *", "UTC"), instant, pawl.Overlap(pawl.OverlapBuffer)))
		time.Sleep(125 * time.Second) // bubble
		must(t, s.desk.PauseSchedule(t.Context(), "m", ann))
		time.Sleep(2 * time.Minute) // bubble
		a.stop()
		b := s.spawn("b2", w, w.Schedule("m", pawl.Cron("*/2 * * * *", "UTC"), instant))
		time.Sleep(time.Minute) // bubble
		o, _, err := b.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann})
		must(t, err)
		if o.State != pawl.OccurrenceSkipped || o.Reason != "buffer_full" {
			t.Errorf("%s (%s)", o.State, o.Reason)
		}
	})
}

// An instant that a person has triggered, and that was skipped, is not judged again when the timetable comes to it.
func TestScheduleAheadIsJudgedOnce(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.slow(90 * time.Minute)
		e := s.spawn("b1", w, w.Schedule("s00", pawl.Cron("0 * * * *", "UTC"), instant, pawl.Jitter(40*time.Minute)))
		time.Sleep(59 * time.Minute) // bubble
		_, _, err := e.TriggerSchedule(t.Context(), "s00", pawl.Trigger{Act: ann})
		must(t, err)
		time.Sleep(time.Minute + 5*time.Second) // bubble
		one := bubbleStart.Add(time.Hour)
		o, _, err := e.TriggerSchedule(t.Context(), "s00", pawl.Trigger{Act: ann, At: one})
		if must(t, err); o.State != pawl.OccurrenceSkipped {
			t.Fatalf("the instant was %s: choose a name that has a larger jitter", o.State)
		}
		time.Sleep(50 * time.Minute) // bubble
		if d := s.schedule("s00"); d.Streak != 1 || !d.Next.Equal(one.Add(time.Hour)) && d.Next.Before(one.Add(time.Hour)) {
			t.Errorf("a streak of %d, the next at %s; want 1, and an hour later: %s", d.Streak, d.Next, story(s.ledger("s00")))
		}
	})
}

// Instants of a newer timetable that are backfilled take nothing from a range that the former one has left.
func TestScheduleBackfillOtherRevision(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		p := s.afterGap(s.quick(), "*/2 * * * *", 40*time.Hour)
		missed := func() (n, odd int) {
			for _, o := range s.ledger("m") {
				switch {
				case o.State == pawl.OccurrenceMissed:
					n += o.Count
				case o.At.Minute()%2 == 1:
					odd++
				}
			}
			return n, odd
		}
		before, _ := missed()
		must(t, p.EditSchedule(t.Context(), "m", func(x *pawl.ScheduleSpec) error { x.When = pawl.Cron("* * * * *", "UTC"); return nil }, ann))
		got, err := p.BackfillSchedule(t.Context(), "m", bubbleStart.Add(time.Minute), bubbleStart.Add(10*time.Minute), ann)
		if must(t, err); len(got) != 10 {
			t.Errorf("%d runs, want 10", len(got))
		}
		if after, odd := missed(); before-after != 5 || odd != 5 || before < 1000 {
			t.Errorf("of %d missed instants %d are left, want 5 fewer; and %d of the new timetable, want 5", before, after, odd)
		}
	})
}

// A timetable that code changes while an instant is due decides about that one as it was.
func TestScheduleDeployWhileDue(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		s.spawnFor(time.Second, w, w.Schedule("m", pawl.Cron("0 * * * *", "UTC"), instant))
		time.Sleep(90 * time.Minute) // bubble
		s.spawn("b2", w, w.Schedule("m", pawl.Cron("15 * * * *", "UTC"), instant, pawl.RunsIn("", 3)))
		time.Sleep(time.Hour) // bubble
		if all := s.ledger("m"); len(all) != 2 || all[0].State != pawl.OccurrenceCaughtUp || all[1].At.Minute() != 15 {
			t.Errorf("the ledger is %s, want 01:00 caught up and 02:15 started", story(all))
		}
	})
}

// What waits for a run that has ended is started before what a person triggers.
func TestScheduleTriggerBehindABuffered(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.slow(3 * time.Hour)
		table := w.Schedule("m", pawl.Cron("0 * * * *", "UTC"), instant, pawl.Overlap(pawl.OverlapBuffer))
		s.spawnFor(125*time.Minute, w, table)
		all := s.ledger("m")
		if len(all) != 2 || all[1].State != pawl.OccurrenceBuffered {
			t.Fatalf("the ledger is %s", story(all))
		}
		s.spawn("b2", w) // it does not know the schedule
		_, err := s.desk.Cancel(t.Context(), all[0].Run, ann)
		must(t, err)
		time.Sleep(15 * time.Minute) // bubble
		o := s.opts
		o.Build = "b1"
		e, err := pawl.New(s.bench.store, &o, w, table)
		must(t, err)
		got, _, err := e.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann})
		must(t, err)
		if all = s.ledger("m"); all[1].State != pawl.OccurrenceStarted || got.State != pawl.OccurrenceBuffered {
			t.Errorf("the trigger is %s, the ledger %s; want what waited started, and the trigger waiting", got.State, story(all))
		}
	})
}

// A backfill finds what was missed behind more rows than are read at once.
func TestScheduleBackfillBehindManyRows(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		p := s.afterGap(s.quick(), "* * * * *", 20*time.Minute+time.Second)
		many := make([]pawl.OccurrenceRow, 4500)
		for i := range many {
			many[i] = pawl.OccurrenceRow{Schedule: "m", At: bubbleStart.Add(90*time.Second).UnixMicro() + int64(i), Count: 1,
				State: pawl.OccurrenceSkipped, Reason: "previous_running", Revision: 1}
		}
		must(t, s.bench.store.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
			_, err := tx.AddOccurrences(ctx, many)
			return err
		}))
		got, err := p.BackfillSchedule(t.Context(), "m", bubbleStart.Add(time.Minute), bubbleStart.Add(10*time.Minute), ann)
		if must(t, err); len(got) != 10 {
			t.Errorf("%d runs, want 10", len(got))
		}
	})
}

// The database's clock jumps back and forth. No instant comes twice or is left out, and none is made up for by many runs.
func TestScheduleClockJumps(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		var off atomic.Int64
		store, err := sqlite.Open(s.path, &sqlite.Options{Hooks: &hooks.Store{WallLease: true, Wall: func() time.Duration { return time.Duration(off.Load()) }}})
		must(t, err)
		defer func() { must(t, store.Close()) }()
		w := s.quick()
		o := s.opts
		e, err := pawl.New(store, &o, w, w.Schedule("m", pawl.Cron("* * * * *", "UTC"), instant))
		must(t, err)
		stop := s.work(e)
		after := func(d, jump time.Duration) []pawl.Occurrence {
			off.Add(int64(jump))
			time.Sleep(d) // bubble
			return s.ledger("m")
		}
		before := after(10*time.Minute+5*time.Second, 0)
		if all := after(29*time.Minute, -30*time.Minute); len(before) != 10 || len(all) != 10 {
			t.Errorf("%d instants in 10 minutes, and %d while the clock was behind", len(before), len(all))
		}
		all := after(5*time.Minute, 0)
		s.gapless(all, time.Minute)
		if len(all) != 14 {
			t.Errorf("%d instants when the clock is where it was and four minutes further, want 14", len(all))
		}
		all = after(5*time.Minute, 3*time.Hour)
		stop()
		runs := 0
		for _, o := range all {
			if o.State.HasRun() {
				runs++
			}
		}
		s.gapless(all, time.Minute)
		if len(all) < 195 || runs < 18 || runs > 20 {
			t.Errorf("%d instants and %d runs after the clock jumped ahead, want some 199 and 19", len(all), runs)
		}
	})
}

// What was due before a pause is missed, what comes in it is paused; only the missed ones count as a streak.
func TestSchedulePauseBeforeTheDecision(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		table := w.Schedule("m", pawl.Cron("* * * * *", "UTC"), instant)
		s.spawnFor(time.Second, w, table)
		time.Sleep(150 * time.Second) // bubble
		must(t, s.desk.PauseSchedule(t.Context(), "m", ann))
		time.Sleep(2 * time.Minute) // bubble
		s.spawn("b1", w, table)
		time.Sleep(5 * time.Second) // bubble
		tells(t, s.ledger("m"), "missed(paused) missed(paused) paused(paused) paused(paused)")
		if n := s.schedule("m").Streak; n != 2 {
			t.Errorf("a streak of %d, want 2", n)
		}
	})
}

// In a pause no run is cancelled for one that will not be started before its end.
func TestSchedulePauseCancelsNone(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.slow(30 * time.Minute)
		p := s.spawn("b1", w, w.Schedule("m", pawl.Cron("@yearly", "UTC"), instant, pawl.Overlap(pawl.OverlapCancel)))
		time.Sleep(5 * time.Second) // bubble
		must(t, p.PauseSchedule(t.Context(), "m", ann))
		first, _, err := p.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann})
		must(t, err)
		time.Sleep(5 * time.Second) // bubble
		second, _, err := p.TriggerSchedule(t.Context(), "m", pawl.Trigger{Act: ann})
		must(t, err)
		time.Sleep(5 * time.Minute) // bubble
		if state := s.show(s.desk, first.Run).State; state != pawl.Running || second.State != pawl.OccurrenceBuffered {
			t.Errorf("in the pause the first run is %s, the second instant %s; want running and buffered", state, second.State)
		}
		must(t, p.ResumeSchedule(t.Context(), "m", ann))
		time.Sleep(5 * time.Second) // bubble
		if state := s.show(s.desk, first.Run).State; state != pawl.Cancelled {
			t.Errorf("after the pause the first run is %s, want cancelled", state)
		}
		tells(t, s.ledger("m"), "started started(buffered)")
	})
}

// An instant that waits for several runs names one that has not ended.
func TestScheduleWaitsForTheLast(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		s.on("write", func(ctx context.Context, n int) (string, error) {
			select {
			case <-time.After(time.Duration(31-10*n) * time.Minute):
				return "", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		})
		p := s.spawn("b1", w, w.Schedule("m", pawl.Cron("*/5 * * * *", "UTC"), instant, pawl.Overlap(pawl.OverlapAllow)))
		time.Sleep(11 * time.Minute) // bubble: the first ends after 26 minutes, the second after 21
		must(t, p.EditSchedule(t.Context(), "m", func(x *pawl.ScheduleSpec) error { x.Overlap = pawl.OverlapBuffer; return nil }, ann))
		time.Sleep(12 * time.Minute) // bubble
		all := s.ledger("m")
		if d := s.schedule("m"); d.Waits != all[0].Run {
			t.Errorf("after 23 minutes it waits for %s, want the run of the first instant: %s", d.Waits, story(all))
		}
	})
}

// An instant that the jitter puts off is left to its time by what a person starts meanwhile.
func TestScheduleJitterKeepsItsInstant(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		p := s.spawn("b1", w, w.Schedule("s00", pawl.Cron("0 * * * *", "UTC"), instant, pawl.Jitter(40*time.Minute)))
		time.Sleep(time.Hour + 5*time.Second) // bubble
		_, _, err := p.TriggerSchedule(t.Context(), "s00", pawl.Trigger{Act: ann})
		must(t, err)
		got, err := p.BackfillSchedule(t.Context(), "s00", bubbleStart.Add(30*time.Minute), bubbleStart.Add(time.Hour), ann)
		if must(t, err); len(got) != 0 {
			t.Errorf("backfilled %s", story(got))
		}
		time.Sleep(50 * time.Minute) // bubble
		all := s.ledger("s00")
		tells(t, all, "started started")
		if !all[0].At.Equal(bubbleStart.Add(time.Hour)) {
			t.Errorf("the first instant is %s, want 01:00", all[0].At)
		}
	})
}

// A schedule that was over and goes on has no instants of the time between.
func TestScheduleGoesOnAfterItsEnd(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		p := s.spawn("b1", w, w.Schedule("m", pawl.Cron("*/10 * * * *", "UTC"), instant, pawl.Between(time.Time{}, bubbleStart.Add(15*time.Minute))))
		time.Sleep(62 * time.Minute) // bubble
		must(t, p.EditSchedule(t.Context(), "m", func(x *pawl.ScheduleSpec) error { x.Ends = time.Time{}; return nil }, ann))
		time.Sleep(10 * time.Minute) // bubble
		all := s.ledger("m")
		tells(t, all, "started started")
		if !all[1].At.Equal(bubbleStart.Add(70 * time.Minute)) {
			t.Errorf("the second instant is %s, want 01:10", all[1].At)
		}
	})
}

// afterGap is a worker of schedule m, whose instants of a while were missed: none was there since the schedule was made.
func (s *stage) afterGap(w *pawl.Workflow[string, string], expr string, gap time.Duration) *proc {
	s.t.Helper()
	table := w.Schedule("m", pawl.Cron(expr, "UTC"), instant)
	s.spawnFor(time.Second, w, table)
	time.Sleep(gap) // bubble
	p := s.spawn("b1", w, table)
	time.Sleep(10 * time.Second) // bubble
	return p
}
