package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
)

var queueRules = []rule{
	{"ways", "a run is taken from whatever queue, priority and share it waits in, also by a worker that had none before", testQueueWays},
	{"priority", "n minutes of priority are n minutes of head start, and no more", testQueuePriority},
	{"pause", "nothing is taken from a paused queue from the commit on, not even what a lost worker had", testQueuePause},
	{"limit", "no more runs of a queue are owned than its limit; a lost one has its slot until it is taken over", testQueueLimit},
	{"limit_late", "a new limit counts what is running already", testQueueLimitLate},
	{"limit_race", "of concurrent claims all together keep a queue's limit", testQueueLimitRace},
	{"turns", "shares take turns, however many runs of one wait", testQueueTurns},
	{"per_share", "a share that has its slots is passed over", testQueuePerShare},
	{"later_shares", "shares whose runs are for later do not hide the one that is due", testQueueLaterShares},
	{"rate", "a rate lets only so many begin, and more as time passes", testQueueRate},
	{"born", "no run is added as its worker's own in a queue with settings", testQueueBorn},
	{"due", "what a queue holds back is not due", testQueueDue},
	{"backlog", "queues are counted", testQueueBacklog},
	{"lanes", "a lane is held until the latest time that was said", testLanes},
}

// in makes n queued runs in a place.
func (f *fixture) in(n int, set func(r *pawl.RunRow)) []pawl.RunRow {
	f.t.Helper()
	rows := make([]pawl.RunRow, n)
	for i := range rows {
		rows[i] = newRun()
		set(&rows[i])
	}
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) })
	return rows
}

// setQueue changes the settings of the queue of newRun.
func (f *fixture) setQueue(set func(q *pawl.QueueRow)) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error {
		q, err := tx.Queue(ctx, "refund")
		if err != nil {
			return err
		}
		set(q)
		return tx.SaveQueue(ctx, q)
	})
}

// shares are those of the runs, in order.
func shares(got []pawl.Claimed) string {
	var all []string
	for _, c := range got {
		all = append(all, string(c.Row.Share))
	}
	return strings.Join(all, " ")
}

func (f *fixture) letGo(got []pawl.Claimed) {
	f.t.Helper()
	for _, c := range got {
		f.ok(f.change(c.Row.ID, func(r *pawl.RunRow) { r.State, r.Epoch = pawl.Succeeded, r.Epoch+1 }))
	}
}

func testQueueWays(t *testing.T, f *fixture) {
	w := f.worker(time.Hour, v1)
	f.claim(w, 1) // it has looked
	f.in(1, func(r *pawl.RunRow) { r.Queue = "slow" })
	f.in(1, func(r *pawl.RunRow) { r.Priority = 7 })
	f.in(1, func(r *pawl.RunRow) { r.Queue, r.Priority = "slow", -7 })
	if got := f.claim(w, 10); len(got) != 3 {
		t.Errorf("%d runs were taken, want 3", len(got))
	}
	f.in(1, func(r *pawl.RunRow) { r.Queue, r.Share, r.Priority = "shared", "a", 5 })
	row := newRun()
	row.Share = "b"
	_, err := f.s.Write(f.ctx(), []pawl.Change{{Start: &row}})
	f.ok(err)
	got := f.claim(w, 10)
	if len(got) != 2 {
		t.Fatalf("%d runs with shares were taken, want 2", len(got))
	}
	for _, c := range got {
		if c.Row.Share == "a" && (c.Row.Priority != 5 || c.Row.Queue != "shared") {
			t.Errorf("taken %+v, want it as it was inserted", c.Row)
		}
	}
}

func testQueuePriority(t *testing.T, f *fixture) {
	now := f.now()
	ago := func(d time.Duration, priority int) pawl.RunID {
		return f.in(1, func(r *pawl.RunRow) { r.Due, r.Priority = now-d.Microseconds(), priority })[0].ID
	}
	want := fmt.Sprint([]pawl.RunID{ago(time.Minute, 3), ago(3*time.Minute+30*time.Second, 0), ago(time.Second, 3), ago(0, 0), ago(time.Minute, -2)})
	f.in(5, func(r *pawl.RunRow) { r.Due, r.Priority = now+time.Hour.Microseconds(), 100 })
	w := f.worker(time.Hour, v1)
	var got []pawl.RunID
	for range 6 {
		for _, c := range f.claim(w, 1) {
			got = append(got, c.Row.ID)
		}
	}
	if fmt.Sprint(got) != want {
		t.Errorf("taken in the order %v, want %v", got, want)
	}
}

func testQueuePause(t *testing.T, f *fixture) {
	run, _ := f.running(10 * time.Second)
	f.runs(3)
	other := f.in(1, func(r *pawl.RunRow) { r.Queue = "other" })[0].ID
	f.advance(time.Minute)
	f.setQueue(func(q *pawl.QueueRow) { q.PausedAt, q.PausedBy, q.PausedWhy = f.now(), "ann", "incident" })
	w := f.worker(time.Hour, v1)
	for range 2 {
		for _, c := range f.claim(w, 10, expired, suspect) {
			if c.Row.ID != other {
				t.Errorf("run %s was taken from a paused queue", c.Row.ID)
			}
		}
	}
	f.setQueue(func(q *pawl.QueueRow) {
		if q.PausedBy != "ann" || q.PausedWhy != "incident" {
			t.Errorf("paused by %q because of %q, want what was stored", q.PausedBy, q.PausedWhy)
		}
		q.PausedAt, q.PausedBy, q.PausedWhy = 0, "", ""
	})
	got := f.claim(w, 10, expired, suspect)
	if len(got) != 4 || !strings.Contains(ids(got), string(run.ID)) {
		t.Errorf("taken after the pause: %s; want all four, the lost one among them", ids(got))
	}
}

func testQueueLimit(t *testing.T, f *fixture) {
	f.setQueue(func(q *pawl.QueueRow) { q.MaxRunning = 2 })
	f.runs(5)
	a, b := f.worker(10*time.Second, v1), f.worker(time.Hour, v1)
	got := f.claim(a, 10)
	if len(got) != 2 || !got[0].Slot {
		t.Fatalf("taken: %s, with slots: %v; want two with a slot", ids(got), got)
	}
	if more := f.claim(b, 10); len(more) != 0 {
		t.Errorf("taken above the limit: %s", ids(more))
	}
	f.letGo(got[:1])
	if more := f.claim(b, 10); len(more) != 1 {
		t.Errorf("%d runs were taken when one had ended, want 1", len(more))
	}
	f.advance(time.Minute)
	if more := f.claim(b, 10); len(more) != 0 {
		t.Errorf("taken while a lost worker has the slot: %s", ids(more))
	}
	more := f.claim(b, 10, expired)
	if len(more) != 1 || more[0].Row.ID != got[1].Row.ID || !more[0].Slot {
		t.Errorf("taken over: %s; want the lost run %s, in its slot, and no other", ids(more), got[1].Row.ID)
	}
	f.ok(f.change(more[0].Row.ID, func(r *pawl.RunRow) {
		r.State, r.Due, r.Epoch = pawl.Waiting, f.now()+time.Hour.Microseconds(), r.Epoch+1
	}))
	if more := f.claim(b, 10); len(more) != 1 {
		t.Errorf("%d runs were taken when one waits, want 1: it has given its slot free", len(more))
	}
}

func testQueueLimitLate(t *testing.T, f *fixture) {
	f.runs(4)
	w := f.worker(time.Hour, v1)
	got := f.claim(w, 2)
	f.setQueue(func(q *pawl.QueueRow) { q.MaxRunning = 2 })
	if more := f.claim(w, 10); len(more) != 0 {
		t.Errorf("taken beside what was running before the limit: %s", ids(more))
	}
	f.letGo(got[:1])
	if more := f.claim(w, 10); len(more) != 1 {
		t.Errorf("%d runs were taken when one had ended, want 1", len(more))
	}
}

func testQueueLimitRace(t *testing.T, f *fixture) {
	const limit = 3
	f.setQueue(func(q *pawl.QueueRow) { q.MaxRunning = limit })
	f.runs(60)
	var mu sync.Mutex // guards both below
	running, total := 0, 0
	var wg sync.WaitGroup
	for range 4 {
		w := f.worker(time.Hour, v1)
		wg.Go(func() {
			for range 500 {
				got, err := f.s.Claim(f.ctx(), pawl.Claim{Worker: w.ID, Has: v1, Limit: 2, Token: 1})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				running += len(got)
				if running > limit {
					t.Errorf("%d runs are running, the limit is %d", running, limit)
				}
				total += len(got)
				done := total == 60
				mu.Unlock()
				mu.Lock()
				running -= len(got) // before they are let go, so that the count is never too high
				mu.Unlock()
				for _, c := range got {
					if err := f.change(c.Row.ID, func(r *pawl.RunRow) { r.State, r.Epoch = pawl.Succeeded, r.Epoch+1 }); err != nil {
						t.Error(err)
					}
				}
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	if total != 60 {
		t.Errorf("%d runs were taken, want all 60", total)
	}
}

func testQueueTurns(t *testing.T, f *fixture) {
	share := func(n int, k pawl.Key) { f.in(n, func(r *pawl.RunRow) { r.Share = k }) }
	share(20, "a")
	share(2, "b")
	share(0, "")
	w := f.worker(time.Hour, v1)
	if got := shares(f.claim(w, 3)); got != "a b a" && got != "a a b" {
		t.Errorf("of three, %q had a turn, want each share before another one's third", got)
	}
	share(1, "c")
	share(2, "")
	var got []string
	for range 7 {
		got = append(got, shares(f.claim(w, 1)))
	}
	if n := strings.Count(strings.Join(got[:4], " "), "a"); n > 1 {
		t.Errorf("turns %q: a had %d of the first four, want one: b, c and those without a share were waiting", got, n)
	}
	if counts := fmt.Sprint(strings.Count(strings.Join(got, ""), "b"), strings.Count(strings.Join(got, ""), "c")); counts != "1 1" {
		t.Errorf("turns %q: want b and c once each", got)
	}
}

func testQueuePerShare(t *testing.T, f *fixture) {
	f.setQueue(func(q *pawl.QueueRow) { q.MaxRunning, q.MaxPerShare = 5, 2 })
	for _, k := range []pawl.Key{"a", "a", "a", "a", "b", "c", "c", "c"} {
		f.in(1, func(r *pawl.RunRow) { r.Share = k })
	}
	w := f.worker(time.Hour, v1)
	running := make(map[pawl.Key]int)
	var first []pawl.Claimed
	for range 4 {
		got := f.claim(w, 10)
		first = append(first, got...)
		for _, c := range got {
			running[c.Row.Share]++
		}
	}
	if fmt.Sprint(running) != "map[a:2 b:1 c:2]" {
		t.Errorf("running: %v, want two each at most, and five", running)
	}
	for _, c := range first {
		if c.Row.Share == "a" {
			f.letGo([]pawl.Claimed{c})
			break
		}
	}
	if got := shares(f.claim(w, 10)); got != "a" {
		t.Errorf("taken when a run of a had ended: %q, want another one of a", got)
	}
}

func testQueueLaterShares(t *testing.T, f *fixture) {
	later := f.now() + time.Hour.Microseconds()
	for part := range 3 {
		n := 0
		f.in(500, func(r *pawl.RunRow) {
			n++
			r.Share, r.Due = pawl.Key(fmt.Sprintf("tenant %d %03d", part, n)), later
		})
	}
	f.in(1, func(r *pawl.RunRow) { r.Share = "zoe" })
	w := f.worker(time.Hour, v1)
	for try := 0; ; try++ {
		if got := f.claim(w, 1); shares(got) == "zoe" {
			return
		} else if len(got) > 0 || try == 6 {
			t.Fatalf("try %d took %q, want zoe's, which is due, within a few claims", try, shares(got))
		}
		if in, ok, err := f.s.Due(f.ctx(), w.ID); err != nil || !ok || in > 0 {
			t.Fatalf("due in %v, %v, %v; want now, for not all shares have been looked at", in, ok, err)
		}
	}
}

func testQueueRate(t *testing.T, f *fixture) {
	f.setQueue(func(q *pawl.QueueRow) { q.Rate, q.RatePer = 3, time.Minute.Microseconds() })
	f.runs(20)
	w := f.worker(time.Hour, v1)
	take := func(want int, when string) {
		t.Helper()
		if got := len(f.claim(w, 10)) + len(f.claim(w, 10)); got != want {
			t.Errorf("%s: %d runs were taken, want %d", when, got, want)
		}
	}
	take(3, "at first")
	if in, ok, err := f.s.Due(f.ctx(), w.ID); err != nil || !ok || in <= 10*time.Second || in > 20*time.Second {
		t.Errorf("the next is due in %v, %v, %v; want a third of a minute", in, ok, err)
	}
	f.advance(20 * time.Second)
	take(1, "after a third of the time")
	f.advance(time.Hour)
	take(3, "after an hour without any")
	f.setQueue(func(q *pawl.QueueRow) { q.Burst = 1 })
	f.advance(time.Hour)
	take(1, "one at once")
}

func testQueueBorn(t *testing.T, f *fixture) {
	w := f.worker(time.Hour, v1)
	born := func() error {
		row := newRun()
		row.State, row.Owner, row.Epoch, row.Token = pawl.Running, w.ID, 1, 5
		other := newRun()
		_, err := f.s.Write(f.ctx(), []pawl.Change{{Start: &row}})
		if err == nil {
			row.ID = newRunID()
			row.Lineage = row.ID
			_, err = f.s.Write(f.ctx(), []pawl.Change{{Start: &other}, {Start: &row}})
		}
		return err
	}
	f.ok(born())
	for what, set := range map[string]func(q *pawl.QueueRow){
		"paused":  func(q *pawl.QueueRow) { q.PausedAt = 1 },
		"limited": func(q *pawl.QueueRow) { q.MaxRunning = 9 },
		"rated":   func(q *pawl.QueueRow) { q.Rate, q.RatePer = 1, 1e6 },
	} {
		f.setQueue(func(q *pawl.QueueRow) {
			*q = pawl.QueueRow{Name: q.Name}
			set(q)
		})
		if err := born(); !errors.Is(err, pawl.ErrOneByOne) {
			t.Errorf("a run was added as running to a queue that is %s: %v, want ErrOneByOne", what, err)
		}
	}
	f.setQueue(func(q *pawl.QueueRow) { *q = pawl.QueueRow{Name: q.Name} })
	f.ok(born())
}

func testQueueDue(t *testing.T, f *fixture) {
	w := f.worker(time.Hour, v1)
	due := func(want bool, when string) {
		t.Helper()
		if in, ok, err := f.s.Due(f.ctx(), w.ID); err != nil || ok != want {
			t.Errorf("%s: due in %v, %v, %v; want %v", when, in, ok, err, want)
		}
	}
	f.runs(2)
	due(true, "free")
	f.setQueue(func(q *pawl.QueueRow) { q.PausedAt = 1 })
	due(false, "paused")
	f.setQueue(func(q *pawl.QueueRow) { q.PausedAt, q.MaxRunning = 0, 1 })
	due(true, "limited")
	f.claim(w, 10)
	due(false, "full")
	f.in(1, func(r *pawl.RunRow) { r.Queue = "slow" })
	due(true, "full, and another queue")
}

func testQueueBacklog(t *testing.T, f *fixture) {
	w := f.worker(time.Hour, v1)
	f.runs(3)
	f.claim(w, 1)
	f.in(12, func(r *pawl.RunRow) { r.Queue = "slow" })
	f.in(2, func(r *pawl.RunRow) { r.Queue, r.Due = "later", f.now()+time.Hour.Microseconds() })
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		got, err := tx.Backlog(ctx, 10)
		for name, want := range map[string]pawl.Backlog{"refund": {Due: 2, Running: 1}, "later": {Later: 2}} {
			b := got[name]
			if (b.Oldest > 0) != (want.Due > 0) {
				t.Errorf("the oldest of %s is %d", name, b.Oldest)
			}
			if b.Oldest = 0; b != want {
				t.Errorf("%s has %+v, want %+v", name, b, want)
			}
		}
		if !got["slow"].More {
			t.Errorf("slow has %+v, want more than were counted", got["slow"])
		}
		return err
	})
}

func testLanes(t *testing.T, f *fixture) {
	now := f.now()
	hold := func(in time.Duration, why string) {
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			return tx.HoldLane(ctx, pawl.LaneRow{Name: "openai/a", Until: now + in.Microseconds(), Why: why})
		})
	}
	until := func() (at int64) {
		f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
			at, err = tx.Lane(ctx, "openai/a")
			return err
		})
		return at
	}
	if at := until(); at != 0 {
		t.Errorf("a lane that nobody holds is held until %d", at)
	}
	hold(time.Minute, "first")
	hold(2*time.Minute, "second")
	hold(time.Minute, "third")
	if at := until(); at != now+2*time.Minute.Microseconds() {
		t.Errorf("held until %d, want the latest time that was said", at)
	}
	f.view(func(ctx context.Context, tx pawl.Txn) error {
		all, err := tx.Lanes(ctx)
		if len(all) != 1 || all[0].Why != "second" {
			t.Errorf("lanes %+v, want the one that is held, and why", all)
		}
		return err
	})
	f.advance(3 * time.Minute)
	if at := until(); at != 0 {
		t.Errorf("held until %d when the time has passed", at)
	}
}
