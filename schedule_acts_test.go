package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/sqlite"
)

// C57, FR-066, FR-068: ten processes decide side by side and die wherever they can, inside the transaction and after it; each
// instant has one row and one run, and the next one is stored.
func TestScheduleDecidersDie(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("replies lost %v", lost), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				w := s.quick()
				rnd := rand.New(rand.NewPCG(1, 2))
				defs := []pawl.Definition{w, w.Schedule("a", pawl.Every(5*time.Second), instant, pawl.Overlap(pawl.OverlapAllow)),
					w.Schedule("b", pawl.Cron("*/7 * * * * *", "UTC"), instant), w.Schedule("c", pawl.Every(11*time.Second), instant, pawl.Overlap(pawl.OverlapBuffer))}
				s.on("write", func(context.Context, int) (string, error) { time.Sleep(3 * time.Second); return "", nil }) // bubble
				spawn := func() {
					var passed atomic.Int64
					at := []hooks.Point{hooks.ScheduleDeciding, hooks.ScheduleDecided, hooks.Claimed}[rnd.IntN(3)]
					most := int64(rnd.IntN(4)) // how often it passes the point
					p := s.spawnProc(func(p *proc, o *pawl.Options) {
						o.Hooks.At = func(pt hooks.Point, _, _ string) {
							if pt != at || passed.Add(1) <= most {
								return
							}
							if pt == hooks.ScheduleDeciding {
								p.kill()
								return
							}
							p.die()
						}
					}, defs...)
					if lost {
						p.store.deaf.Store(int64(3 + rnd.IntN(4)))
					}
				}
				for range upTo(6, 30) {
					for range 2 {
						spawn()
					}
					time.Sleep(17 * time.Second) // bubble
				}
				s.spawn("b1", defs...)
				time.Sleep(90 * time.Second) // bubble
				for name, step := range map[string]time.Duration{"a": 5 * time.Second, "c": 11 * time.Second} {
					s.gapless(s.ledger(name), step)
				}
				for _, name := range []string{"a", "b", "c"} {
					all := s.ledger(name)
					runs := map[pawl.RunID]bool{}
					for _, o := range all {
						if o.Run != "" && runs[o.Run] {
							t.Errorf("run %s stands twice in the ledger of %s", o.Run, name)
						}
						runs[o.Run] = true
						if o.State.HasRun() != (o.Run != "") || !o.State.HasRun() && o.Reason == "" {
							t.Errorf("an instant with neither a run nor a reason: %+v", o)
						}
						if o.Run != "" {
							if d := s.show(s.desk, o.Run); d.Key != pawl.OccurrenceKey(name, o.At) {
								t.Errorf("run of %s has key %s", o.At, d.Key)
							}
						}
					}
					if d := s.schedule(name); !d.Next.After(time.Now().Add(-time.Second)) {
						t.Errorf("the next instant of %s is %s, now it is %s", name, d.Next, time.Now())
					}
				}
				all, _, err := s.desk.Runs(t.Context(), pawl.RunQuery{Limit: 1000})
				if n := len(s.withRuns("a", "b", "c")); err != nil || len(all) != n {
					t.Errorf("there are %d runs, and %d in the ledger: %v", len(all), n, err)
				}
			})
		})
	}
}

// withRuns are the runs in ledgers.
func (s *stage) withRuns(names ...string) (ids []pawl.RunID) {
	s.t.Helper()
	for _, name := range names {
		for _, o := range s.ledger(name) {
			if o.Run != "" {
				ids = append(ids, o.Run)
			}
		}
	}
	return ids
}

// C53: whoever starts the run of an instant, by whatever way, it is one run.
func TestScheduleAdoptsARun(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		at := bubbleStart.Add(time.Minute)
		mine := begin(s, w, instant(at), pawl.OccurrenceKey("minutely", at))
		begin(s, w, "another input", pawl.OccurrenceKey("minutely", at.Add(time.Minute)))
		s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant))
		time.Sleep(3*time.Minute + 5*time.Second) // bubble
		all := s.ledger("minutely")
		if len(all) != 3 || all[0].Run != mine || all[1].State != pawl.OccurrenceRejected || !strings.Contains(all[1].Reason, "another input") || all[2].State != pawl.OccurrenceStarted {
			t.Errorf("got %s: %+v", story(all), all)
		}
		if d := s.schedule("minutely"); d.Started != 2 {
			t.Errorf("%d runs are counted, want 2", d.Started)
		}
	})
}

// A pause holds for all, its instants are noted, none is caught up, and a person can have them.
func TestSchedulePauseAndBackfill(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		p := s.spawn("b1", w, w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant))
		time.Sleep(90 * time.Second) // bubble
		must(t, s.desk.PauseSchedule(t.Context(), "minutely", ann))
		must(t, s.desk.PauseSchedule(t.Context(), "minutely", pawl.Act{By: "bob", Reason: "too"}))
		time.Sleep(3 * time.Minute) // bubble
		if d := s.schedule("minutely"); d.PausedBy != "ann" || d.PausedWhy != "because" || d.Paused.IsZero() {
			t.Errorf("got %+v", d.ScheduleInfo)
		}
		must(t, s.desk.ResumeSchedule(t.Context(), "minutely", ann))
		must(t, s.desk.ResumeSchedule(t.Context(), "minutely", ann))
		time.Sleep(time.Minute) // bubble
		tells(t, s.ledger("minutely"), "started paused(paused) paused(paused) paused(paused) started")

		got, err := p.BackfillSchedule(t.Context(), "minutely", bubbleStart.Add(-2*time.Minute), bubbleStart.Add(3*time.Minute), ann)
		must(t, err)
		if story(got) != "backfilled backfilled backfilled backfilled backfilled" { // -2, -1, 0, 2, 3
			t.Errorf("backfilled %s", story(got))
		}
		again, err := p.BackfillSchedule(t.Context(), "minutely", bubbleStart.Add(-2*time.Minute), bubbleStart.Add(3*time.Minute), ann)
		if err != nil || len(again) != 0 {
			t.Errorf("a second time %s, %v", story(again), err)
		}
		tells(t, s.ledger("minutely"), "backfilled backfilled backfilled started backfilled backfilled paused(paused) started")
		for _, o := range s.ledger("minutely") {
			if o.Run != "" {
				if d := s.reach(o.Run, pawl.Succeeded); string(d.Input) != fmt.Sprintf("%q", instant(o.At)) {
					t.Errorf("run of %s has input %s", o.At, d.Input)
				}
			}
		}
		for _, c := range []struct {
			from, to time.Duration
			says     string
		}{{0, -time.Minute, "earlier one first"}, {0, time.Hour, "still to come"}, {-100 * time.Hour, 0, "more than 1000 instants"}} {
			_, err := p.BackfillSchedule(t.Context(), "minutely", bubbleStart.Add(c.from), bubbleStart.Add(c.to), ann)
			mentions(t, err, "minutely", c.says)
		}
		_, err = s.desk.BackfillSchedule(t.Context(), "minutely", bubbleStart, bubbleStart.Add(time.Minute), ann)
		mentions(t, err, "minutely", "this program does not have")
	})
}

// Instants of a range of missed ones can be had one by one; the range says how many are left.
func TestScheduleBackfillsOutOfARange(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		table := w.Schedule("minutely", pawl.Cron("* * * * *", "UTC"), instant)
		s.spawnFor(time.Second, w, table)
		time.Sleep(30 * time.Hour) // bubble
		p := s.spawn("b1", w, table)
		time.Sleep(5 * time.Second) // bubble
		tells(t, s.ledger("minutely"), "missed(later_one_runs)×1799 started")
		for _, part := range [][2]int{{1, 3}, {5, 5}, {1799, 1799}, {2, 6}} {
			_, err := p.BackfillSchedule(t.Context(), "minutely", bubbleStart.Add(time.Duration(part[0])*time.Minute), bubbleStart.Add(time.Duration(part[1])*time.Minute), ann)
			must(t, err)
		}
		all := s.ledger("minutely")
		tells(t, all, strings.Repeat("backfilled ", 6)+"missed(later_one_runs)×1792 backfilled started")
		if !all[6].At.Equal(bubbleStart.Add(7 * time.Minute)) {
			t.Errorf("the range begins at %s", all[6].At)
		}
		o, isNew, err := p.TriggerSchedule(t.Context(), "minutely", pawl.Trigger{Act: ann, At: bubbleStart.Add(100 * time.Minute)})
		if err != nil || isNew || o.State != pawl.OccurrenceMissed {
			t.Errorf("got %+v, %v, %v, want the range", o, isNew, err)
		}
	})
}

// A trigger is idempotent under its key, and the overlap policy holds for it.
func TestScheduleTrigger(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.slow(20 * time.Second)
		p := s.spawn("b1", w, w.Schedule("yearly", pawl.Cron("@yearly", "UTC"), instant))
		time.Sleep(time.Second) // bubble
		first, isNew, err := p.TriggerSchedule(t.Context(), "yearly", pawl.Trigger{Act: ann, Key: "k1"})
		if err != nil || !isNew || first.Run == "" || first.By != "ann" || first.Key != "k1" {
			t.Fatalf("got %+v, %v, %v", first, isNew, err)
		}
		time.Sleep(time.Second) // bubble
		for range 3 {
			o, isNew, err := p.TriggerSchedule(t.Context(), "yearly", pawl.Trigger{Act: ann, Key: "k1"})
			if err != nil || isNew || o.Run != first.Run {
				t.Errorf("the same key gives %+v, %v, %v", o, isNew, err)
			}
		}
		o, isNew, err := p.TriggerSchedule(t.Context(), "yearly", pawl.Trigger{Act: ann, Key: "k2"})
		if err != nil || !isNew || o.State != pawl.OccurrenceSkipped || o.Reason != "previous_running" || o.Other != first.Run {
			t.Errorf("beside a run, got %+v, %v, %v", o, isNew, err)
		}
		time.Sleep(time.Minute) // bubble
		must(t, s.desk.PauseSchedule(t.Context(), "yearly", ann))
		if o, _, err := p.TriggerSchedule(t.Context(), "yearly", pawl.Trigger{Act: ann}); err != nil || o.State != pawl.OccurrenceStarted {
			t.Errorf("while it is paused, got %+v, %v", o, err)
		}
		if d := s.schedule("yearly"); d.Started != 0 {
			t.Errorf("%d runs of the timetable are counted, want none", d.Started)
		}
		_, _, err = p.TriggerSchedule(t.Context(), "yearly", pawl.Trigger{Act: ann, At: time.Now().Add(time.Hour)})
		mentions(t, err, "yearly", "still to come")
		_, _, err = s.desk.TriggerSchedule(t.Context(), "yearly", pawl.Trigger{Act: ann})
		mentions(t, err, "yearly", "code that this program does not have")
		_, _, err = p.TriggerSchedule(t.Context(), "none", pawl.Trigger{Act: ann})
		if !errors.Is(err, pawl.ErrNotFound) {
			t.Errorf("an unknown schedule gives %v", err)
		}
	})
}

// What an operator paused or edited stays so when the program starts again; what code changed is taken over, from then on.
func TestScheduleReconcile(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		w := s.quick()
		two := flow("report", "v2", func(run *pawl.Run, in string) (string, error) { return "two", nil })
		every := func(w *pawl.Workflow[string, string], d time.Duration) []pawl.Definition {
			return []pawl.Definition{w, w.Schedule("s", pawl.Every(d), instant)}
		}
		s.spawnFor(61*time.Second, every(w, time.Minute)...)
		must(t, s.desk.PauseSchedule(t.Context(), "s", ann))
		s.spawnFor(61*time.Second, every(w, time.Minute)...)
		if d := s.schedule("s"); d.Paused.IsZero() || d.Revision != 1 {
			t.Errorf("a restart has undone the pause: %+v", d.ScheduleInfo)
		}
		must(t, s.desk.ResumeSchedule(t.Context(), "s", ann))
		s.spawnFor(5*time.Minute, every(w, 3*time.Minute)...)
		if d := s.schedule("s"); d.Revision != 2 || d.When.String() != "every 3m0s" {
			t.Errorf("the code's change was not taken over: %+v", d.ScheduleInfo)
		}
		for _, o := range s.ledger("s") {
			if want := 1 + min(1, int(o.At.Sub(bubbleStart)/(150*time.Second))); o.Revision != want {
				t.Errorf("instant %s belongs to revision %d, want %d", o.At, o.Revision, want)
			}
		}
		must(t, s.desk.EditSchedule(t.Context(), "s", func(sp *pawl.ScheduleSpec) error { sp.When = pawl.Every(time.Hour); return nil }, ann))
		s.spawnFor(5*time.Second, every(two, 7*time.Minute)...)
		d := s.schedule("s")
		if d.When.String() != "every 1h0m0s" || !d.Edited || d.Version != "v2" || d.Revision != 3 {
			t.Errorf("a restart has undone the edit, or not followed the version: %+v", d.ScheduleInfo)
		}
		must(t, s.desk.DeleteSchedule(t.Context(), "s", ann))
		n := len(s.ledger("s"))
		s.spawnFor(5*time.Second, every(two, 7*time.Minute)...)
		if d := s.schedule("s"); d.When.String() != "every 7m0s" || d.Edited || len(s.ledger("s")) != n {
			t.Errorf("after a deletion code does not make it anew: %+v", d.ScheduleInfo)
		}
		other := flow("other", "v1", func(run *pawl.Run, in string) (string, error) { return "", nil })
		o := s.opts
		e, err := pawl.New(s.bench.store, &o, other.Schedule("s", pawl.Every(time.Minute), instant))
		must(t, err)
		err = e.Work(t.Context())
		mentions(t, err, `"s"`, `"report"`, `"other"`, "choose another name")
	})
}

// An edit, of the zone for instance, makes no instant of the past: those that were due are the former revision's.
func TestScheduleEditMakesNoPast(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		w := s.quick()
		table := w.Schedule("daily", pawl.Cron("0 1 * * *", "UTC"), instant)
		s.spawn("b1", w, table)
		time.Sleep(time.Hour + time.Minute) // bubble
		must(t, s.desk.EditSchedule(t.Context(), "daily", func(sp *pawl.ScheduleSpec) error {
			sp.When = pawl.Cron("0 1 * * *", "Etc/GMT+2") // in two hours
			return nil
		}, ann))
		time.Sleep(2 * time.Hour) // bubble
		all := s.ledger("daily")
		tells(t, all, "started started")
		if all[1].At.Hour() != 3 || all[1].Revision != 2 || all[0].Revision != 1 {
			t.Errorf("got %+v", all)
		}
		for _, change := range []func(sp *pawl.ScheduleSpec){
			func(sp *pawl.ScheduleSpec) { sp.Name = "other" },
			func(sp *pawl.ScheduleSpec) { sp.Overlap = "sometimes" },
			func(sp *pawl.ScheduleSpec) { sp.Version = "v9" },
		} {
			err := s.desk.EditSchedule(t.Context(), "daily", func(sp *pawl.ScheduleSpec) error { change(sp); return nil }, ann)
			mentions(t, err, "daily")
		}
		if d := s.schedule("daily"); d.Revision != 2 {
			t.Errorf("revision is %d", d.Revision)
		}
	})
}

// A schedule made by hand fills its input from a template, and runs the newest version that the worker has.
func TestScheduleByHand(t *testing.T) {
	scene(t, func(t *testing.T, s *stage) {
		s.patient()
		type in struct{ Day, At, Name string }
		def := func(v string) pawl.Definition {
			return pawl.Define("typed", v, func(run *pawl.Run, i in) (string, error) { return v + " " + i.Day + " " + i.At + " " + i.Name, nil })
		}
		p := s.spawn("b1", def("v2"), def("v10"))
		spec := pawl.ScheduleSpec{Name: "by \"hand\"", Workflow: "typed", When: pawl.Cron("30 9 * * *", "Asia/Tokyo"),
			Input: []byte(`{"Day":"{{date}}","At":"{{at}}","Name":"{{schedule}}"}`)}
		must(t, p.CreateSchedule(t.Context(), spec, ann))
		time.Sleep(time.Hour) // bubble
		all := s.ledger(spec.Name)
		tells(t, all, "started")
		result(t, s.reach(all[0].Run, pawl.Succeeded), "v10 2000-01-01 2000-01-01T09:30:00+09:00 by \"hand\"")
		if err := p.CreateSchedule(t.Context(), spec, ann); !errors.Is(err, pawl.ErrConflict) {
			t.Errorf("a name that is taken gives %v", err)
		}
		for want, change := range map[string]func(sp *pawl.ScheduleSpec){
			"no workflow":     func(sp *pawl.ScheduleSpec) { sp.Workflow = "none" },
			`v3`:              func(sp *pawl.ScheduleSpec) { sp.Version = "v3" },
			"no JSON":         func(sp *pawl.ScheduleSpec) { sp.Input = []byte("{") },
			"does not fit":    func(sp *pawl.ScheduleSpec) { sp.Input = []byte(`{"Day":7}`) },
			"is over":         func(sp *pawl.ScheduleSpec) { sp.When = pawl.OneOff(bubbleStart) },
			"no timetable":    func(sp *pawl.ScheduleSpec) { sp.When = pawl.Timetable{} },
			"before it start": func(sp *pawl.ScheduleSpec) { sp.Starts, sp.Ends = bubbleStart.AddDate(1, 0, 0), bubbleStart },
			"Priority":        func(sp *pawl.ScheduleSpec) { sp.Priority = 1000 },
			"all but one":     func(sp *pawl.ScheduleSpec) { sp.CatchUp, sp.CatchUpMost = pawl.CatchUpAll, 5 },
			"belongs to":      func(sp *pawl.ScheduleSpec) { sp.CatchUp, sp.Window = pawl.CatchUpNone, time.Hour },
			"1 to 1000":       func(sp *pawl.ScheduleSpec) { sp.Overlap, sp.CatchUp = pawl.OverlapAllow, pawl.CatchUpAll },
			"jitter":          func(sp *pawl.ScheduleSpec) { sp.Jitter = -1 },
			"MaxRuns":         func(sp *pawl.ScheduleSpec) { sp.MaxRuns = -1 },
			"control":         func(sp *pawl.ScheduleSpec) { sp.Name = "a\nb" },
			"150 at most":     func(sp *pawl.ScheduleSpec) { sp.Name = strings.Repeat("n", 151) },
		} {
			bad := spec
			bad.Name = "bad"
			change(&bad)
			mentions(t, p.CreateSchedule(t.Context(), bad, ann), want)
		}
		if list, _, err := p.Schedules(t.Context(), "", 0); err != nil || len(list) != 1 {
			t.Errorf("%d schedules, %v", len(list), err)
		}
	})
}

func TestScheduleDefinitions(t *testing.T) {
	w := flow("report", "v1", func(run *pawl.Run, in string) (string, error) { return "", nil })
	twin := flow("report", "v1", func(run *pawl.Run, in string) (string, error) { return "", nil })
	every := pawl.Every(time.Minute)
	for want, fn := range map[string]func(){
		"interval of 0s":     func() { pawl.Every(0) },
		"interval of -1m0s":  func() { pawl.Every(-time.Minute) },
		"whole seconds":      func() { pawl.Every(1500 * time.Millisecond) },
		"never due":          func() { pawl.Cron("0 0 30 2 *", "UTC") },
		"Europe/Atlantis":    func() { pawl.Cron("@daily", "Europe/Atlantis") },
		"has 2 fields":       func() { pawl.Cron("1 2", "UTC") },
		"from 1970":          func() { pawl.OneOff(time.Time{}) },
		"no input function":  func() { w.Schedule("s", every, nil) },
		"no timetable":       func() { w.Schedule("s", pawl.Timetable{}, instant) },
		"before it starts":   func() { w.Schedule("s", every, instant, pawl.Between(bubbleStart, bubbleStart.Add(-1))) },
		"schedule name":      func() { w.Schedule("", every, instant) },
		"overlap policy":     func() { w.Schedule("s", every, instant, pawl.Overlap("x")) },
		"catch-up policy":    func() { w.Schedule("s", every, instant, pawl.CatchUp("x", 0)) },
		"would be skipped":   func() { w.Schedule("s", every, instant, pawl.CatchUpUpTo(3)) },
		"must not be negati": func() { w.Schedule("s", every, instant, pawl.RunsWithin(-1)) },
	} {
		func() {
			defer func() { mentions(t, fmt.Errorf("%v", recover()), want) }()
			fn()
		}()
	}
	s := w.Schedule("s", every, instant)
	store := openStore(t)
	_, err := pawl.New(store, nil, w, s, w.Schedule("s", every, instant))
	mentions(t, err, `schedule "s" is defined twice`)
	_, err = pawl.New(store, nil, twin, s)
	mentions(t, err, `schedule "s" is of another workflow "report"`)
	e, err := pawl.New(store, nil, s)
	if err != nil || len(e.Workflows()) != 1 {
		t.Errorf("a schedule does not bring its workflow: %v", err)
	}
	for _, text := range []string{"cron 0 2 * * * in Europe/Berlin", "every 10m0s", "at 2026-01-02T15:04:05Z", "cron @daily in UTC"} {
		table, err := pawl.ParseTimetable(text)
		if err != nil || table.String() != text {
			t.Errorf("%q gives %q, %v", text, table, err)
		}
	}
	for _, text := range []string{"", "cron 0 2 * * *", "every x", "at noon", "daily"} {
		_, err := pawl.ParseTimetable(text)
		mentions(t, err, "timetable")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openStore(t *testing.T) pawl.Store {
	t.Helper()
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "pawl.db"), nil)
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	return store
}
