package pawl_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

// Whatever people, deploys and gaps without workers do to a schedule, each minute has one row of its own or is one of those that
// a range counts, and the next instant is to come.
func TestScheduleAtRandom(t *testing.T) {
	for seed := range uint64(upTo(5, 200)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			scene(t, func(t *testing.T, s *stage) {
				s.patient()
				c := &chaos{stage: s, rnd: rand.New(rand.NewPCG(seed, 6)), by: make(map[int64]bool)}
				c.w = s.slow(c.upTo(5 * time.Minute))
				c.deploy()
				time.Sleep(time.Second) // bubble: the schedule is there
				for range 25 {
					c.act()
				}
				if c.worker == nil {
					c.deploy()
				}
				time.Sleep(time.Second) // bubble
				must(t, c.person.ResumeSchedule(t.Context(), "m", ann))
				time.Sleep(20 * time.Minute) // bubble
				c.worker.stop()
				c.account()
				if t.Failed() {
					t.Log(strings.Join(c.done, "\n"))
				}
			})
		})
	}
}

// chaos does things to a minutely schedule.
type chaos struct {
	*stage
	rnd    *rand.Rand
	w      *pawl.Workflow[string, string]
	worker *proc // nil: none runs
	person *pawl.Engine
	by     map[int64]bool // instants that a person triggered
	done   []string
}

func (c *chaos) upTo(d time.Duration) time.Duration { return time.Duration(c.rnd.Int64N(int64(d))) }

func (c *chaos) note(format string, args ...any) {
	c.done = append(c.done, time.Now().Format("02 15:04:05 ")+fmt.Sprintf(format, args...))
}

// deploy starts a worker whose code may have changed.
func (c *chaos) deploy() {
	policy := []pawl.OverlapPolicy{pawl.OverlapSkip, pawl.OverlapBuffer, pawl.OverlapAllow, pawl.OverlapCancel}[c.rnd.IntN(4)]
	jitter := time.Duration(c.rnd.IntN(4)) * 35 * time.Second
	table := c.w.Schedule("m", pawl.Cron("* * * * *", "UTC"), instant, pawl.Overlap(policy), pawl.Jitter(jitter))
	c.worker = c.spawn("b1", c.w, table)
	o := c.opts
	var err error
	c.person, err = pawl.New(c.bench.store, &o, c.w, table)
	must(c.t, err)
	c.note("deploy %s, jitter %s", policy, jitter)
}

// act does one thing.
func (c *chaos) act() {
	ctx := c.t.Context()
	switch n := c.rnd.IntN(10); {
	case n < 2:
		time.Sleep(c.upTo(10 * time.Minute)) // bubble
	case n == 2 && c.worker == nil:
		time.Sleep(c.upTo(30 * time.Hour)) // bubble
	case n == 3 && c.worker == nil:
		c.deploy()
	case n == 3:
		c.worker.stop()
		c.worker = nil
		c.note("stop")
	case n == 4:
		at := time.Now().Truncate(time.Minute).Add(-time.Duration(c.rnd.IntN(3)) * time.Minute)
		if c.rnd.IntN(4) == 0 {
			at = time.Time{}
		}
		o, isNew, err := c.person.TriggerSchedule(ctx, "m", pawl.Trigger{Act: ann, At: at})
		must(c.t, err)
		c.by[o.At.UnixMicro()] = c.by[o.At.UnixMicro()] || isNew
		c.note("trigger %s: %s", at, o.State)
	case n < 7:
		to := time.Now().Add(-c.upTo(50 * time.Hour)).Truncate(time.Second)
		from := to.Add(-c.upTo(40 * time.Minute))
		if first := bubbleStart.Add(time.Second); from.Before(first) {
			from, to = first, time.Now()
			to = from.Add(min(to.Sub(from), 40*time.Minute))
		}
		got, err := c.person.BackfillSchedule(ctx, "m", from, to, ann)
		must(c.t, err)
		c.note("backfill from %s to %s: %d", from, to, len(got))
	case n == 7:
		must(c.t, c.person.PauseSchedule(ctx, "m", ann))
		c.note("pause")
	case n == 8:
		must(c.t, c.person.ResumeSchedule(ctx, "m", ann))
		c.note("resume")
	default:
		jitter := time.Duration(c.rnd.IntN(4)) * 35 * time.Second
		must(c.t, c.person.EditSchedule(ctx, "m", func(x *pawl.ScheduleSpec) error { x.Jitter = jitter; return nil }, ann))
		c.note("edit: jitter %s", jitter)
	}
}

// account goes through the whole ledger.
func (c *chaos) account() {
	const minute = int64(time.Minute / time.Microsecond)
	var rows []pawl.OccurrenceRow
	must(c.t, c.bench.store.View(c.t.Context(), func(ctx context.Context, tx pawl.Txn) (err error) {
		rows, err = tx.Within(ctx, "m", 1, math.MaxInt64, math.MaxInt32)
		return err
	}))
	single, left, last := make(map[int64]bool), make(map[int64]int), int64(0)
	for _, o := range rows {
		if o.Until == 0 {
			single[o.At] = true
		}
		if last = max(last, o.At, o.Until); o.At%minute != 0 && !c.by[o.At] {
			c.t.Errorf("%s at %d is of no timetable", o.State, o.At)
		}
	}
	for _, o := range rows {
		n := 0
		for at := o.At; at <= o.Until; at += minute {
			if left[at]++; !single[at] {
				n++
			}
		}
		if o.Until > 0 && (n != o.Count || single[o.At]) {
			c.t.Errorf("the range from %d to %d counts %d instants, want %d", o.At, o.Until, o.Count, n)
		}
	}
	for at := bubbleStart.Add(time.Minute).UnixMicro(); at <= last; at += minute {
		if !single[at] && left[at] != 1 {
			c.t.Errorf("%s is in %d ranges, and has no row", time.UnixMicro(at).UTC(), left[at])
		}
	}
	if d := c.schedule("m"); last < time.Now().Add(-5*time.Minute).UnixMicro() || d.Next.Before(time.Now().Add(-3*time.Minute)) {
		c.t.Errorf("now it is %s, the ledger ends at %d, and the next is %s", time.Now(), last, d.Next)
	}
}
