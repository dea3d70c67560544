package storetest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
)

var claimRules = []rule{
	{"one_owner", "of concurrent claimers one gets a run, and none gets more than its limit", testClaimOneOwner},
	{"row", "a claim gives the next epoch, token and owner, keeps the first start, and comes with the input", testClaimRow},
	{"versions", "only runs of the claimed workflow versions are taken", testClaimVersions},
	{"limit", "the limit counts over all versions and over due and lost runs together", testClaimLimit},
	{"order", "what has been due longest is taken first", testClaimOrder},
	{"due", "a run is taken when its time has come by the store's clock, not before; a waiting one too", testClaimDue},
	{"states", "only queued and waiting runs are taken without an owner's loss", testClaimStates},
	{"expired", "a run of an expired owner is taken if asked for, and comes with who lost it; one of a living owner never", testClaimExpired},
	{"own", "a worker does not take its own runs, even when its own lease is over", testClaimOwn},
	{"boot", "a lease of another boot of the machine is over", testClaimBoot},
	{"clock", "runs of expired owners are taken only while the store's clock is where the worker expects it", testClaimClock},
	{"suspect", "runs that have lost two workers are taken only if asked for", testClaimSuspect},
	{"backlog", "under a backlog runs are taken in their order, and what is older, of another version or lost soon after it has come", testClaimBacklog},
	{"backlog_ends", "what a backlog's claims are for is looked at each time: the versions asked for, and priorities that have come", testClaimBacklogEnds},
	{"backlog_fails", "a claim that fails comes with the runs that it has taken", testClaimBacklogFails},
	{"expired_race", "a lost run goes to one of many claimers", testClaimExpiredRace},
}

func testClaimOneOwner(t *testing.T, f *fixture) {
	const total, limit = 100, 7
	f.runs(total)
	var mu sync.Mutex
	owner := make(map[pawl.RunID]pawl.WorkerID)
	var wg sync.WaitGroup
	for range 8 {
		w := f.worker(time.Hour, v1)
		wg.Go(func() {
			for empty, rounds := 0, 0; empty < 3 && rounds < 200; rounds++ {
				got, err := f.s.Claim(f.ctx(), pawl.Claim{Worker: w.ID, Has: v1, Limit: limit, Token: 1, Expired: true})
				if err != nil {
					t.Error(err)
					return
				}
				if len(got) > limit {
					t.Errorf("a claim of %d gave %d runs", limit, len(got))
				}
				if len(got) == 0 {
					empty++
				}
				mu.Lock()
				for _, c := range got {
					if first, twice := owner[c.Row.ID]; twice {
						t.Errorf("run %s was given to %s and to %s", c.Row.ID, first, w.ID)
					}
					owner[c.Row.ID] = w.ID
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(owner) != total {
		t.Errorf("%d runs were taken, want all %d", len(owner), total)
	}
	for id, w := range owner {
		if row := f.row(id); row.Owner != w || row.Epoch != 1 || row.State != pawl.Running {
			t.Errorf("run %s is %s, owned by %s at epoch %d; %s was told that it has it", id, row.State, row.Owner, row.Epoch, w)
		}
	}
}

func testClaimRow(t *testing.T, f *fixture) {
	before := f.now()
	want := f.runs(1)[0]
	w := f.worker(time.Minute, v1)
	got := f.claim(w, 1, func(c *pawl.Claim) { c.Build = "build 1" })
	if len(got) != 1 {
		t.Fatalf("%d runs, want 1", len(got))
	}
	first := got[0].Row
	if first.Claimed < before || first.Started < before {
		t.Errorf("claimed at %d, started at %d: want times after %d", first.Claimed, first.Started, before)
	}
	want.State, want.Epoch, want.Token, want.Owner, want.Due, want.Builds = pawl.Running, 1, 77, w.ID, 0, "build 1"
	want.Claimed, want.Started = first.Claimed, first.Started
	if diff := cmp.Diff(got[0], pawl.Claimed{Row: want, From: pawl.Queued}); diff != "" {
		t.Errorf("claimed (-got +want):\n%s", diff)
	}
	want.Input = nil
	if diff := cmp.Diff(*f.row(want.ID), want); diff != "" {
		t.Errorf("stored (-got +want):\n%s", diff)
	}
	f.ok(f.change(want.ID, func(r *pawl.RunRow) { r.State, r.Epoch = pawl.Queued, r.Epoch+1 }))
	f.advance(time.Second)
	got = f.claim(w, 1, func(c *pawl.Claim) { c.Build, c.Token = "build 2", 78 })
	if len(got) != 1 {
		t.Fatalf("the released run was not given out")
	}
	second := got[0].Row
	if second.Epoch != 3 || second.Token != 78 || second.Started != first.Started || second.Claimed <= first.Claimed || second.Builds != "build 1" {
		t.Errorf("second claim: %+v\nwant epoch 3, token 78, the first start and build, a new claim time", second)
	}
}

func testClaimVersions(t *testing.T, f *fixture) {
	insert := func(workflow, version string) pawl.RunID {
		row := newRun()
		row.Workflow, row.Version = workflow, version
		f.insertRun(row)
		return row.ID
	}
	a := insert("refund", "1")
	insert("refund", "2")
	insert("Refund", "1")
	b := insert("enrich", "2")
	insert("enrich", "1")
	w := f.worker(time.Minute, nil)
	got := f.claim(w, 10, expired, func(c *pawl.Claim) {
		c.Has = []pawl.VersionID{{Workflow: "refund", Version: "1"}, {Workflow: "enrich", Version: "2"}, {Workflow: "none", Version: "1"}}
	})
	taken := make(map[pawl.RunID]bool)
	for _, c := range got {
		taken[c.Row.ID] = true
	}
	if len(got) != 2 || !taken[a] || !taken[b] {
		t.Errorf("taken: %s; want %s and %s", ids(got), a, b)
	}
	if got := f.claim(w, 10, func(c *pawl.Claim) { c.Has = nil }); len(got) != 0 {
		t.Errorf("a worker that has nothing got %s", ids(got))
	}
}

func testClaimLimit(t *testing.T, f *fixture) {
	var has []pawl.VersionID
	gone := f.worker(time.Second, nil)
	for v := range 5 {
		has = append(has, pawl.VersionID{Workflow: "refund", Version: fmt.Sprint(v)})
		for i := range 6 {
			row := newRun()
			row.Version = fmt.Sprint(v)
			if i%2 == 0 {
				row.State, row.Owner = pawl.Running, gone.ID
			}
			f.insertRun(row)
		}
	}
	f.advance(time.Minute)
	w := f.worker(time.Hour, has)
	total := 0
	for _, limit := range []int{1, 4, 11, 30, 30} {
		got := f.claim(w, limit, expired, func(c *pawl.Claim) { c.Has = has })
		if want := min(limit, 30-total); len(got) != want {
			t.Errorf("a claim of %d with %d left gave %d", limit, 30-total, len(got))
		}
		total += len(got)
	}
	if got := f.claim(w, 0, expired); len(got) != 0 {
		t.Errorf("a claim of 0 gave %d", len(got))
	}
}

func testClaimOrder(t *testing.T, f *fixture) {
	now := f.now()
	var want string
	for _, ago := range []int64{30, 10, 50} {
		row := newRun()
		row.Due = now - ago
		f.insertRun(row)
		if ago == 50 {
			want = string(row.ID)
		}
	}
	w := f.worker(time.Minute, v1)
	if got := ids(f.claim(w, 1)); got != want {
		t.Errorf("taken: %s, want the one that has been due longest, %s", got, want)
	}
}

func testClaimDue(t *testing.T, f *fixture) {
	now := f.now()
	w := f.worker(3*time.Hour, v1)
	queued, waiting := newRun(), newRun()
	queued.Due = now + time.Hour.Microseconds()
	waiting.Due, waiting.State = now+time.Hour.Microseconds(), pawl.Waiting
	f.insertRun(queued, waiting)
	if got := f.claim(w, 10, expired); len(got) != 0 {
		t.Errorf("taken an hour early: %s", ids(got))
	}
	f.advance(time.Hour + time.Minute)
	got := f.claim(w, 10, expired)
	if len(got) != 2 {
		t.Fatalf("%d runs were taken when they were due, want 2", len(got))
	}
	for _, c := range got {
		if want := map[pawl.RunID]pawl.RunState{queued.ID: pawl.Queued, waiting.ID: pawl.Waiting}[c.Row.ID]; c.From != want {
			t.Errorf("run %s was taken from %q, want %q", c.Row.ID, c.From, want)
		}
	}
}

func testClaimStates(t *testing.T, f *fixture) {
	for _, state := range pawl.RunStates() {
		f.inState(state)
	}
	w := f.worker(time.Minute, v1)
	got := f.claim(w, 10, expired, suspect)
	if len(got) != 1 || got[0].From != pawl.Queued {
		t.Errorf("%d runs were taken, want the queued one only", len(got))
	}
}

func testClaimExpired(t *testing.T, f *fixture) {
	run, lost := f.running(10 * time.Second)
	w := f.worker(time.Hour, v1)
	if got := f.claim(w, 10, expired, suspect); len(got) != 0 {
		t.Errorf("taken from a living owner: %s", ids(got))
	}
	f.advance(9 * time.Second)
	if got := f.claim(w, 10, expired, suspect); len(got) != 0 {
		t.Errorf("taken a second before the lease was over: %s", ids(got))
	}
	f.advance(2 * time.Second)
	if got := f.claim(w, 10, suspect); len(got) != 0 {
		t.Errorf("taken from an expired owner without having been asked: %s", ids(got))
	}
	got := f.claim(w, 10, expired)
	if len(got) != 1 {
		t.Fatalf("%d runs were taken from an expired owner, want 1", len(got))
	}
	c := got[0]
	if c.From != pawl.Running || c.Owner != lost.ID || c.Before != run.Claimed || c.Row.Owner != w.ID || c.Row.Epoch != run.Epoch+1 {
		t.Errorf("from %s, owner %s since %d, now %s at epoch %d; want running, %s since %d, now %s at epoch %d",
			c.From, c.Owner, c.Before, c.Row.Owner, c.Row.Epoch, lost.ID, run.Claimed, w.ID, run.Epoch+1)
	}
	if got := f.claim(f.worker(time.Hour, v1), 10, expired, suspect); len(got) != 0 {
		t.Errorf("taken once more: %s", ids(got))
	}
}

func testClaimOwn(t *testing.T, f *fixture) {
	_, w := f.running(10 * time.Second)
	f.advance(time.Minute)
	if got := f.claim(w, 10, expired, suspect); len(got) != 0 {
		t.Errorf("a worker took its own runs: %s", ids(got))
	}
}

func testClaimBoot(t *testing.T, f *fixture) {
	run, lost := f.running(time.Hour)
	f.exec(`UPDATE pawl_workers SET clock = 'another boot' WHERE id = $1`, string(lost.ID))
	w := f.worker(time.Hour, v1)
	got := f.claim(w, 10, expired)
	if len(got) != 1 || got[0].Row.ID != run.ID {
		t.Errorf("taken: %q, want the run of the owner from another boot", ids(got))
	}
	_, err := f.s.Heartbeat(f.ctx(), lost) // alive after all, by this boot's clock
	f.ok(err)
	f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.Owner = lost.ID }))
	if got := f.claim(w, 10, expired); len(got) != 0 {
		t.Errorf("taken from an owner that has renewed its lease: %s", ids(got))
	}
}

func testClaimClock(t *testing.T, f *fixture) {
	run, _ := f.running(10 * time.Second)
	f.advance(time.Minute)
	w := f.worker(time.Hour, v1)
	now := f.now()
	for _, off := range []time.Duration{-time.Minute, time.Minute} {
		if got := f.claim(w, 10, expired, func(c *pawl.Claim) { c.Clock = now + off.Microseconds() }); len(got) != 0 {
			t.Errorf("with the clock %v from where it is expected: taken %s", -off, ids(got))
		}
	}
	due := f.runs(1)[0]
	if got := f.claim(w, 10, expired, func(c *pawl.Claim) { c.Clock = 1 }); len(got) != 1 || got[0].Row.ID != due.ID {
		t.Errorf("taken: %q, want the due run, which has nothing to do with leases", ids(got))
	}
	got := f.claim(w, 10, expired, func(c *pawl.Claim) { c.Clock = f.now() })
	if len(got) != 1 || got[0].Row.ID != run.ID {
		t.Errorf("with the clock where it is expected: taken %q, want the lost run", ids(got))
	}
}

func testClaimSuspect(t *testing.T, f *fixture) {
	due := newRun()
	due.Lost = 2
	once := newRun()
	once.Lost = 1
	f.insertRun(due, once)
	lost, gone := f.running(time.Second)
	f.ok(f.change(lost.ID, func(r *pawl.RunRow) { r.Lost = 2 }))
	_ = gone
	f.advance(time.Minute)
	w := f.worker(time.Hour, v1)
	for range 2 { // what was taken before the advance is lost now
		for _, c := range f.claim(w, 10, expired) {
			if c.Row.Lost >= 2 {
				t.Errorf("suspect run %s was taken without having been asked for", c.Row.ID)
			}
		}
	}
	taken := make(map[pawl.RunID]bool)
	for _, c := range f.claim(w, 10, expired, suspect) {
		taken[c.Row.ID] = true
	}
	if !taken[due.ID] || !taken[lost.ID] {
		t.Errorf("asked for suspects, got %v; want %s (due) and %s (lost)", taken, due.ID, lost.ID)
	}
}

func testClaimExpiredRace(t *testing.T, f *fixture) {
	const total = 20
	gone := f.worker(time.Second, v1)
	f.runs(total)
	if got := f.claim(gone, total); len(got) != total {
		t.Fatalf("claimed %d, want %d", len(got), total)
	}
	f.advance(time.Minute)
	var mu sync.Mutex
	taken := make(map[pawl.RunID]int)
	var wg sync.WaitGroup
	for range 8 {
		w := f.worker(time.Hour, v1)
		wg.Go(func() {
			for empty, rounds := 0, 0; empty < 3 && rounds < 200; rounds++ {
				got, err := f.s.Claim(f.ctx(), pawl.Claim{Worker: w.ID, Has: v1, Limit: 3, Token: 1, Expired: true})
				if err != nil {
					t.Error(err)
					return
				}
				if len(got) == 0 {
					empty++
				}
				mu.Lock()
				for _, c := range got {
					taken[c.Row.ID]++
					if c.Owner != gone.ID || c.Row.Epoch != 2 {
						t.Errorf("run %s: lost by %s, epoch %d; want %s, 2", c.Row.ID, c.Owner, c.Row.Epoch, gone.ID)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(taken) != total {
		t.Errorf("%d lost runs were taken, want %d", len(taken), total)
	}
	for id, n := range taken {
		if n != 1 {
			t.Errorf("run %s was taken %d times", id, n)
		}
	}
}

func testClaimBacklog(t *testing.T, f *fixture) {
	gone := f.worker(time.Second, v1)
	f.runs(1)
	lost := f.claim(gone, 1)[0].Row.ID
	f.advance(2 * time.Second)
	queued := make([]pawl.RunRow, 500)
	first := f.now() - 1000
	for i := range queued {
		queued[i] = newRun()
		queued[i].Due = first + int64(i)
	}
	f.insertRun(queued...)
	w := f.worker(time.Hour, nil)
	both := func(c *pawl.Claim) {
		c.Has = append([]pawl.VersionID{{Workflow: "enrich", Version: "1"}}, v1...)
	}
	var got []pawl.Claimed
	for range 10 {
		taken := f.claim(w, 10, both)
		slices.SortFunc(taken, func(a, b pawl.Claimed) int { return strings.Compare(string(a.Row.ID), string(b.Row.ID)) }) // among themselves they have no order
		got = append(got, taken...)
	}
	for i := range got {
		if got[i].Row.ID != queued[i].ID {
			t.Fatalf("claim %d took %s, want the next in order, %s", i/10, got[i].Row.ID, queued[i].ID)
		}
	}
	older, other := newRun(), newRun()
	older.Due, other.Due = f.now()-int64(time.Hour/time.Microsecond), f.now()-int64(time.Minute/time.Microsecond)
	other.Workflow, other.KeyName, other.Queue = "enrich", "enrich", "enrich"
	f.insertRun(older)
	f.insertRun(other)
	wanted := map[pawl.RunID]string{older.ID: "an older run", other.ID: "a run of another version", lost: "a lost run"}
	for i := 0; i < len(queued)-len(got) && len(wanted) > 0; i++ {
		<-time.After(5 * time.Millisecond) // a claim may look from where the last one stopped for a moment
		for _, c := range f.claim(w, 1, both, expired) {
			delete(wanted, c.Row.ID)
		}
	}
	for _, what := range wanted {
		t.Errorf("%s was not taken before the whole backlog", what)
	}
	left := 0
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		for i := range queued {
			if row, rerr := tx.LockRun(ctx, queued[i].ID); rerr != nil {
				err = rerr
			} else if row.State == pawl.Queued {
				left++
			}
		}
		return err
	})
	f.claim(w, left-4, both)
	for range 20 {
		other.ID = newRunID()
		other.Lineage = other.ID
		f.insertRun(other)
	}
	if taken := f.claim(w, 10, both); len(taken) != 10 {
		t.Errorf("%d runs were taken beyond the end of the backlog, want as many as asked for, 10", len(taken))
	}
}

func testClaimBacklogEnds(t *testing.T, f *fixture) {
	w := f.worker(time.Hour, v1)
	f.runs(60)
	f.claim(w, 10)
	got := f.claim(w, 10, func(c *pawl.Claim) { c.Has = []pawl.VersionID{{Workflow: "enrich", Version: "1"}} })
	if len(got) > 0 {
		t.Errorf("a claim for another workflow took %s", ids(got))
	}
	f.claim(w, 10)
	first := newRun()
	first.Priority = 100
	f.insertRun(first)
	_, err := f.s.Heartbeat(f.ctx(), w) // learns where runs wait
	f.ok(err)
	if got := f.claim(w, 5); len(got) != 5 || !strings.Contains(ids(got), string(first.ID)) {
		t.Errorf("taken: %s; want the run with priority, %s, among them", ids(got), first.ID)
	}
}

// countdown is a context that has ended when it has been asked so many times.
type countdown struct {
	context.Context
	left atomic.Int64
}

func (c *countdown) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

func (c *countdown) Done() <-chan struct{} { return nil }

func testClaimBacklogFails(t *testing.T, f *fixture) {
	f.broken = true // runs are deleted
	for k := range int64(12) {
		w := f.worker(time.Hour, v1)
		f.runs(15)
		if n := len(f.claim(w, 10)); n != 10 {
			t.Fatalf("%d runs were taken, want 10", n)
		}
		ctx := &countdown{Context: f.ctx()}
		ctx.left.Store(k)
		got, err := f.s.Claim(ctx, pawl.Claim{Worker: w.ID, Has: v1, Limit: 10, Token: 78})
		owned := f.text(`SELECT count(*) FROM pawl_runs WHERE token = 78`)
		if owned != strconv.Itoa(len(got)) {
			t.Errorf("%d runs came with %v, and %s are taken", len(got), err, owned)
		}
		f.exec(`DELETE FROM pawl_runs`)
	}
}
