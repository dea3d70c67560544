package pawl_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// bubbleStart is when a synctest bubble begins: 2000-01-01T00:00:00Z.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// input of the scheduled workflows of these tests: the instant.
func instant(at time.Time) string { return at.Format(time.RFC3339) }

// ledger is what became of a schedule's instants, oldest first.
func (s *stage) ledger(name string) (all []pawl.Occurrence) {
	s.t.Helper()
	after := pawl.Cursor("")
	for {
		page, next, err := s.desk.Occurrences(s.t.Context(), name, after, 1000)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, page...)
		if next == "" {
			slices.Reverse(all)
			return all
		}
		after = next
	}
}

// story is a ledger in short: "started skipped(previous_running) …".
func story(all []pawl.Occurrence) string {
	var words []string
	for _, o := range all {
		word := string(o.State)
		if o.Reason != "" {
			word += "(" + o.Reason + ")"
		}
		if o.Count > 0 {
			word += fmt.Sprintf("×%d", o.Count)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func tells(t *testing.T, all []pawl.Occurrence, want string) {
	t.Helper()
	if got := story(all); got != want {
		t.Errorf("the ledger says\n  %s\nwant\n  %s", got, want)
	}
}

func (s *stage) schedule(name string) *pawl.ScheduleDetail {
	s.t.Helper()
	d, err := s.desk.ShowSchedule(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// patient makes workers poll and renew their leases seldom, so that a day costs little.
func (s *stage) patient() { s.opts.Poll, s.opts.Lease = 10*time.Minute, 30*time.Minute }

// spawnFor has a worker for a while.
func (s *stage) spawnFor(d time.Duration, defs ...pawl.Definition) {
	s.t.Helper()
	p := s.spawn("b1", defs...)
	time.Sleep(d) // bubble
	p.stop()
}

// quick is a workflow whose step takes no time, and slow one whose step takes d.
func (s *stage) quick() *pawl.Workflow[string, string] {
	return flow("report", "v1", func(run *pawl.Run, in string) (string, error) { return s.rep(run, "write", in) })
}

func (s *stage) slow(d time.Duration) *pawl.Workflow[string, string] {
	s.on("write", func(ctx context.Context, n int) (string, error) {
		select {
		case <-time.After(d):
			return "", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	return s.quick()
}

// C53, C59: one run for each instant, with the instant as its input, however many workers there are.
func TestScheduleStartsOneRunAnInstant(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		for range 3 {
			s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant), w.Schedule("other", pawl.Every(2*time.Minute), instant))
		}
		time.Sleep(5*time.Minute + 30*time.Second) // bubble
		tells(t, s.ledger("minutely"), "started started started started started")
		tells(t, s.ledger("other"), "started started")
		for i, o := range s.ledger("minutely") {
			if want := bubbleStart.Add(time.Duration(i+1) * time.Minute); !o.At.Equal(want) {
				t.Errorf("occurrence %d is of %s, want %s", i, o.At, want)
			}
			d := s.reach(o.Run, pawl.Succeeded)
			if want := fmt.Sprintf("%q", instant(o.At)); string(d.Input) != want || d.Key != pawl.OccurrenceKey("minutely", o.At) {
				t.Errorf("run has input %s and key %q, want %s", d.Input, d.Key, want)
			}
		}
		d := s.schedule("minutely")
		if !d.Next.Equal(bubbleStart.Add(6*time.Minute)) || d.Started != 5 || len(d.Upcoming) != 10 {
			t.Errorf("got %+v", d)
		}
	})
}

// C54, C56, C58: while a run has not ended, instants are skipped, with the run that was in the way; then the next one starts.
func TestScheduleSkips(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.slow(150 * time.Second)
		told := map[pawl.OccurrenceState]int{}
		s.spawnWith(func(o *pawl.Options) { o.OnOccurrence = func(o pawl.Occurrence) { told[o.State]++ } },
			w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant))
		time.Sleep(6*time.Minute + 30*time.Second) // bubble
		all := s.ledger("minutely")
		tells(t, all, "started skipped(previous_running) skipped(previous_running) started skipped(previous_running) skipped(previous_running)")
		if all[1].Other != all[0].Run || all[4].Other != all[3].Run {
			t.Errorf("a skip does not name the run that was in the way: %+v", all)
		}
		// Whoever asks again for a skipped instant is told so: no run, no second record.
		for range 3 {
			o, isNew, err := s.procs[0].TriggerSchedule(t.Context(), "minutely", pawl.Trigger{Act: ann, At: all[1].At})
			if err != nil || isNew || o.State != pawl.OccurrenceSkipped || o.Run != "" {
				t.Errorf("got %+v, %v, %v, want the skip that there is", o, isNew, err)
			}
		}
		if n := len(s.ledger("minutely")); n != len(all) {
			t.Errorf("the ledger has %d rows, want %d", n, len(all))
		}
		if told[pawl.OccurrenceStarted] != 2 || told[pawl.OccurrenceSkipped] != 4 {
			t.Errorf("OnOccurrence was told %v", told)
		}
		runs, _, err := s.desk.Runs(t.Context(), pawl.RunQuery{})
		if err != nil || len(runs) != 2 {
			t.Errorf("there are %d runs, want 2: %v", len(runs), err)
		}
	})
}

// C54: a run that is queued or waits for days counts, and so does the retry of one by hand. C55: a skip is no failure.
func TestScheduleSkipsWhateverHasNotEnded(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var mended atomic.Bool
		w := flow("report", "v1", func(run *pawl.Run, in string) (string, error) {
			if !mended.Load() {
				return "", fmt.Errorf("broken")
			}
			return "", pawl.Sleep(run, "rest", 170*time.Second)
		})
		s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant))
		time.Sleep(61 * time.Second) // bubble
		first := s.ledger("minutely")[0]
		s.reach(first.Run, pawl.Failed)
		mended.Store(true)
		next := s.retry(first.Run)
		time.Sleep(3 * time.Minute) // bubble
		all := s.ledger("minutely")
		tells(t, all, "started skipped(previous_waiting) skipped(previous_waiting) started")
		if all[1].Other != next {
			t.Errorf("the skip names run %s, want the retry %s", all[1].Other, next)
		}
		runs, _, err := s.desk.Runs(t.Context(), pawl.RunQuery{States: []pawl.RunState{pawl.Failed}})
		if err != nil || len(runs) != 1 {
			t.Errorf("%d runs have failed, want the first one: %v", len(runs), err)
		}
	})
}

// FR-074: a run whose worker is lost is in the way until it is recovered and has ended; then the schedule goes on.
func TestScheduleOutlivesItsWorker(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		var dead atomic.Pointer[proc]
		s.on("write", func(ctx context.Context, n int) (string, error) {
			if n == 1 {
				dead.Load().die()
			}
			return "", nil
		})
		w := s.quick()
		table := w.Schedule("often", pawl.Cron("*/5 * * * * *", "UTC"), instant)
		dead.Store(s.spawn("b1", w, table))
		time.Sleep(6 * time.Second) // bubble
		s.spawn("b1", w, table)
		time.Sleep(30 * time.Second) // bubble
		all := s.ledger("often")
		if all[0].State != pawl.OccurrenceStarted || all[1].State != pawl.OccurrenceSkipped || all[1].Other != all[0].Run ||
			all[len(all)-1].State != pawl.OccurrenceStarted {
			t.Errorf("the ledger says %s", story(all))
		}
		s.reach(all[0].Run, pawl.Succeeded)
		s.gapless(all, 5*time.Second)
	})
}

// gapless checks that no instant is missing.
func (s *stage) gapless(all []pawl.Occurrence, step time.Duration) {
	s.t.Helper()
	for i := 1; i < len(all); i++ {
		if got := all[i].At.Sub(all[i-1].At); got != step && all[i-1].Count == 0 {
			s.t.Errorf("between %s and %s are %v, want %v", all[i-1].At, all[i].At, got, step)
		}
	}
}

func TestScheduleOverlapPolicies(t *testing.T) {
	for _, c := range []struct {
		policy   pawl.OverlapPolicy
		want     string
		finished int
	}{
		{pawl.OverlapBuffer, "started started(buffered) skipped(buffer_full) buffered(previous_running) skipped(buffer_full)", 1},
		{pawl.OverlapAllow, "started started started started started", 3},
		{pawl.OverlapCancel, "started started(buffered) started(buffered) started(buffered) started(buffered)", 0},
	} {
		t.Run(string(c.policy), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := s.slow(150 * time.Second)
				s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant, pawl.Overlap(c.policy)))
				time.Sleep(5*time.Minute + 45*time.Second) // bubble
				all := s.ledger("minutely")
				tells(t, all, c.want)
				n := 0
				for _, o := range all {
					if o.Run == "" {
						continue
					}
					if d := s.show(s.desk, o.Run); d.State == pawl.Succeeded {
						n++
					}
				}
				if n != c.finished {
					t.Errorf("%d runs have succeeded, want %d", n, c.finished)
				}
			})
		})
	}
}

// An instant that is buffered behind a cancel that takes its time gives way to the next one.
func TestScheduleCancelTakesItsTime(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.on("write", func(context.Context, int) (string, error) { time.Sleep(150 * time.Second); return "", nil }) // bubble
		w := s.quick()
		s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant, pawl.Overlap(pawl.OverlapCancel)))
		time.Sleep(4*time.Minute + 5*time.Second) // bubble
		tells(t, s.ledger("minutely"), "started skipped(superseded) started(buffered) buffered(previous_running)")
		if err := s.desk.PauseSchedule(t.Context(), "minutely", ann); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute) // bubble
		tells(t, s.ledger("minutely"), "started skipped(superseded) started(buffered) buffered(previous_running) paused(paused) paused(paused) paused(paused)")
	})
}

// FR-067, FR-070: after a week without any worker one run is started, and the ledger says why there are no more.
func TestScheduleAfterAWeek(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		at := func(opts ...pawl.ScheduleOption) []pawl.Definition {
			return []pawl.Definition{w, w.Schedule("minutely", pawl.Cron("* * * * *", "Asia/Tokyo"), instant, opts...),
				w.Schedule("nightly", pawl.Cron("0 2 * * *", "UTC"), instant),
				w.Schedule("hourly-none", pawl.Cron("0 * * * *", "UTC"), instant, pawl.CatchUp(pawl.CatchUpNone, 0)),
				w.Schedule("weekly", pawl.Cron("0 0 * * 1", "UTC"), instant, pawl.CatchUp(pawl.CatchUpLatest, time.Hour)),
				w.Schedule("daily-all", pawl.Cron("0 3 * * *", "UTC"), instant, pawl.Overlap(pawl.OverlapAllow), pawl.CatchUpUpTo(3))}
		}
		s.spawnFor(time.Second, at()...)
		time.Sleep(7*24*time.Hour + 10*time.Hour + 20*time.Second) // bubble
		p := s.spawn("b1", at()...)
		time.Sleep(10 * time.Second) // bubble
		all := s.ledger("minutely")
		tells(t, all, "missed(later_one_runs)×10679 started")
		if first := bubbleStart.Add(time.Minute); !all[0].At.Equal(first) || !all[0].Until.Equal(first.Add(10678*time.Minute)) {
			t.Errorf("the range is from %s to %s", all[0].At, all[0].Until)
		}
		missed := strings.Repeat("missed(later_one_runs) ", 7)
		tells(t, s.ledger("nightly"), missed+"caught_up")
		if o := s.ledger("nightly")[7]; o.Late != "8h0m21s" {
			t.Errorf("the run is late by %q", o.Late)
		}
		if got := s.ledger("hourly-none"); len(got) != 178 || strings.Count(story(got), "missed(no_catch_up)") != 177 {
			t.Errorf("%d instants: %s", len(got), story(got)[:200])
		}
		tells(t, s.ledger("weekly"), "missed(outside_window)")
		tells(t, s.ledger("daily-all"), strings.Repeat("missed(over_limit) ", 5)+"caught_up caught_up caught_up")
		if n := p.store.commits.Load(); n > 40 {
			t.Errorf("%d transactions were committed", n)
		}
	})
}

// A schedule of every second that nobody looked at for days is brought up to date in parts.
func TestScheduleEverySecondForDays(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		table := w.Schedule("secondly", pawl.Every(time.Second), instant)
		s.spawnFor(1500*time.Millisecond, w, table)
		time.Sleep(48 * time.Hour) // bubble
		s.spawn("b1", w, table)
		time.Sleep(3500 * time.Millisecond) // bubble
		all := s.ledger("secondly")
		n := 0
		for _, o := range all {
			n += max(o.Count, 1)
		}
		next := s.schedule("secondly").Next
		if want := int(next.Sub(bubbleStart).Seconds()) - 1; n != want {
			t.Errorf("%d instants are in the ledger, want %d", n, want)
		}
		if len(all) > 100 {
			t.Errorf("the ledger has %d rows", len(all))
		}
	})
}

// FR-069: however often the program is started, the instant is the stored one.
func TestScheduleIsNotAboutStarts(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		for range upTo(60, 200) {
			s.spawnFor(20*time.Second, w, w.Schedule("weekly", pawl.Every(168*time.Hour), instant))
			time.Sleep(3 * time.Hour) // bubble
		}
		all := s.ledger("weekly")
		for _, o := range all {
			if !o.State.HasRun() || o.At.Unix()%(168*3600) != 0 {
				t.Errorf("got %+v", o)
			}
		}
		if want := upTo(60, 200) * 3 / 168; len(all) < want || len(all) > want+1 {
			t.Errorf("%d runs, want about %d", len(all), want)
		}
	})
}

// Jitter puts an instant off, always by the same; the instant is the key all the same.
func TestScheduleJitter(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		defs := []pawl.Definition{w}
		for i := range 20 {
			defs = append(defs, w.Schedule(fmt.Sprintf("s%02d", i), pawl.Cron("*/10 * * * *", "UTC"), instant, pawl.Jitter(8*time.Minute)))
		}
		s.spawn("b1", defs...)
		time.Sleep(29 * time.Minute) // bubble
		seen := map[time.Duration]bool{}
		for i := range 20 {
			all := s.ledger(fmt.Sprintf("s%02d", i))
			tells(t, all, "started started")
			for _, o := range all {
				if o.At.Minute()%10 != 0 {
					t.Errorf("the instant is %s", o.At)
				}
				seen[o.Decided.Sub(o.At).Truncate(10*time.Second)] = true
			}
		}
		if len(seen) < 15 {
			t.Errorf("the instants were put off by %v", seen)
		}
	})
}

// Bounds, a number of runs, and one-offs end a schedule.
func TestScheduleEnds(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		every := pawl.Cron("* * * * *", "UTC")
		s.spawn("b1", w,
			w.Schedule("bounded", every, instant, pawl.Between(bubbleStart.Add(2*time.Minute), bubbleStart.Add(4*time.Minute))),
			w.Schedule("thrice", every, instant, pawl.MaxRuns(3)),
			w.Schedule("once", pawl.OneOff(bubbleStart.Add(90*time.Second)), instant),
			w.Schedule("past", pawl.OneOff(bubbleStart.Add(-time.Hour)), instant))
		time.Sleep(10 * time.Minute) // bubble
		for name, want := range map[string]string{"bounded": "started started started", "thrice": "started started started", "once": "started", "past": ""} {
			tells(t, s.ledger(name), want)
			if d := s.schedule(name); !d.Next.IsZero() || len(d.Upcoming) != 0 {
				t.Errorf("%s has %v and %v to come", name, d.Next, d.Upcoming)
			}
		}
		if o := s.ledger("bounded"); len(o) == 3 && (!o[0].At.Equal(bubbleStart.Add(2*time.Minute)) || !o[2].At.Equal(bubbleStart.Add(4*time.Minute))) {
			t.Errorf("got %v", o)
		}
	})
}

// An input function that panics, or gives what cannot be stored, rejects the instant and nothing else.
func TestScheduleInputFails(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), func(at time.Time) string {
			if at.Minute() == 2 {
				panic("no such report")
			}
			return strings.Repeat("x", (at.Minute()-1)*300_000)
		}))
		time.Sleep(6*time.Minute + 5*time.Second) // bubble
		all := s.ledger("minutely")
		for i, want := range []pawl.OccurrenceState{"started", "rejected", "started", "started", "rejected", "rejected"} {
			if all[i].State != want {
				t.Errorf("occurrence %d is %s (%s), want %s", i, all[i].State, all[i].Reason, want)
			}
		}
		if !strings.Contains(all[1].Reason, "no such report") || !strings.Contains(all[5].Reason, "exceed") {
			t.Errorf("reasons: %q, %q", all[1].Reason, all[5].Reason)
		}
		if d := s.schedule("minutely"); d.Streak != 2 || d.Started != 3 {
			t.Errorf("streak %d, started %d, want 2 and 3", d.Streak, d.Started)
		}
	})
}
