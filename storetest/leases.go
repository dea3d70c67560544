package storetest

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
)

var leaseRules = []rule{
	{"worker", "a worker's row comes back as registered, alive while its lease lasts; nil if it is gone", testWorker},
	{"heartbeat", "a heartbeat renews the lease and reads exactly the runs that the worker owns", testHeartbeat},
	{"no_run_touched", "a heartbeat touches no run row", testHeartbeatTouchesNoRun},
	{"row_back", "a heartbeat brings back a row that was removed, with the versions", testRowBack},
	{"unregister", "Unregister ends the lease at once", testUnregister},
	{"release_lost", "ReleaseLost queues a run only for its owner and at the epoch it names, and the epoch grows", testReleaseLost},
	{"sleep", "Due is the time until the next run of the worker's versions, never negative", testSleep},
	{"stray", "stray are runs due for longer than the grace whose version nobody had for that long, while others live", testStray},
	{"back", "a run that is blocked: version comes back when a living worker has its version", testBack},
	{"tidy", "Tidy removes workers that are long gone and own nothing, and gives owners without a row an expired one", testTidy},
	{"busy", "a heartbeat waits neither for the connections that steps hold nor, beyond its hold, for a transaction", testBusy},
	{"extend", "ExtendLease renews a lease with the transaction, but not one that is over", testExtend},
	{"suspect_mark", "MarkSuspect notes the run and the time, and takes them off", testSuspectMark},
	{"overlap", "Overlap counts the other workers lost within one lease, not those that left", testOverlap},
}

func (f *fixture) insertRun(rows ...pawl.RunRow) {
	f.t.Helper()
	f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.InsertRuns(ctx, rows) })
}

func (f *fixture) workerRow(id pawl.WorkerID) (w *pawl.WorkerRow) {
	f.t.Helper()
	f.view(func(ctx context.Context, tx pawl.Txn) (err error) {
		w, err = tx.Worker(ctx, id)
		return err
	})
	return w
}

func testWorker(t *testing.T, f *fixture) {
	w := pawl.WorkerRow{ID: newWorkerID(), Lease: 30 * time.Second, Hostname: "ü", Machine: "m", Boot: "b", PIDNS: "n", PID: 7,
		ProcessStart: "s", Build: "x"}
	f.ok(f.s.Register(f.ctx(), w, v1))
	got := f.workerRow(w.ID)
	if got.Registered == 0 || got.Expires == 0 {
		t.Errorf("registered %d, expires %d: want both set", got.Registered, got.Expires)
	}
	w.Alive, w.Registered, w.Expires = true, got.Registered, got.Expires
	if diff := cmp.Diff(*got, w); diff != "" {
		t.Errorf("worker (-got +want):\n%s", diff)
	}
	f.advance(29 * time.Second)
	if !f.workerRow(w.ID).Alive {
		t.Error("a second before the end of the lease the worker is not alive")
	}
	f.advance(2 * time.Second)
	if f.workerRow(w.ID).Alive {
		t.Error("a second after the end of the lease the worker is alive")
	}
	if got := f.workerRow(newWorkerID()); got != nil {
		t.Errorf("a worker that is not there: %+v", got)
	}
}

func testHeartbeat(t *testing.T, f *fixture) {
	run, w := f.running(30 * time.Second)
	f.running(time.Minute) // somebody else's
	f.advance(20 * time.Second)
	f.ok(f.change(run.ID, func(r *pawl.RunRow) { r.CancelAt = 5 }))
	before := f.now()
	beat, err := f.s.Heartbeat(f.ctx(), w)
	f.ok(err)
	if want := []pawl.Held{{Run: run.ID, Epoch: run.Epoch, Cancel: true}}; !slices.Equal(beat.Runs, want) {
		t.Errorf("held: %+v, want %+v", beat.Runs, want)
	}
	if beat.Now < before || beat.Now > f.now() || beat.Server == "" {
		t.Errorf("now %d, server %q: want the store's clock and who it is", beat.Now, beat.Server)
	}
	f.advance(20 * time.Second)
	if !f.workerRow(w.ID).Alive {
		t.Error("20 s after a heartbeat a lease of 30 s is over")
	}
	again, err := f.s.Heartbeat(f.ctx(), w)
	f.ok(err)
	if again.Server != beat.Server {
		t.Errorf("the server changed from %q to %q", beat.Server, again.Server)
	}
}

func testHeartbeatTouchesNoRun(t *testing.T, f *fixture) {
	run, w := f.running(time.Minute)
	version := func() string { return "" }
	switch f.s.Name() {
	case "postgres": // an update makes a new row version, even a lock leaves its mark
		version = func() string {
			return f.text(`SELECT ctid::text || ' ' || xmin::text || ' ' || xmax::text FROM pawl_runs WHERE id = $1`, string(run.ID))
		}
	default:
		f.exec(`CREATE TRIGGER no_touch BEFORE UPDATE ON pawl_runs BEGIN SELECT raise(ABORT, 'a run was touched'); END`)
	}
	before := version()
	for range 3 {
		_, err := f.s.Heartbeat(f.ctx(), w)
		f.ok(err)
	}
	if after := version(); after != before {
		t.Errorf("the run's row version went from %s to %s", before, after)
	}
}

func testRowBack(t *testing.T, f *fixture) {
	run, w := f.running(time.Minute)
	f.runs(1)
	f.exec(`DELETE FROM pawl_workers`)
	f.exec(`DELETE FROM pawl_worker_versions`)
	beat, err := f.s.Heartbeat(f.ctx(), w)
	f.ok(err)
	if len(beat.Runs) != 1 || beat.Runs[0].Run != run.ID {
		t.Errorf("held: %+v, want the run", beat.Runs)
	}
	if got := f.workerRow(w.ID); got == nil || !got.Alive {
		t.Errorf("the worker's row is %+v, want it back and alive", got)
	}
	if _, known, err := f.s.Due(f.ctx(), w.ID); err != nil || !known {
		t.Errorf("Due = %t, %v: the worker's versions are not back", known, err)
	}
}

func testUnregister(t *testing.T, f *fixture) {
	run, w := f.running(time.Hour)
	f.ok(f.s.Unregister(f.ctx(), w.ID))
	if f.workerRow(w.ID).Alive {
		t.Error("the worker is alive after Unregister")
	}
	got := f.claim(f.worker(time.Hour, v1), 10, expired)
	if len(got) != 1 || got[0].Row.ID != run.ID {
		t.Errorf("taken after Unregister: %q, want the run it left behind", ids(got))
	}
}

func testReleaseLost(t *testing.T, f *fixture) {
	run, w := f.running(time.Hour)
	other := f.worker(time.Hour, v1)
	for _, c := range []struct {
		worker pawl.WorkerID
		epoch  int64
		want   bool
	}{{other.ID, run.Epoch, false}, {w.ID, run.Epoch + 1, false}, {w.ID, run.Epoch - 1, false}, {w.ID, run.Epoch, true}, {w.ID, run.Epoch, false}} {
		got, err := f.s.ReleaseLost(f.ctx(), c.worker, run.ID, c.epoch)
		f.ok(err)
		if got != c.want {
			t.Errorf("ReleaseLost at epoch %d (stored %d), owner %t: %t, want %t", c.epoch, run.Epoch, c.worker == w.ID, got, c.want)
		}
	}
	got := f.row(run.ID)
	if got.State != pawl.Queued || got.Epoch != run.Epoch+1 || got.Owner != "" || got.Token != 0 || got.Due == 0 {
		t.Errorf("released: %+v\nwant queued, due, without owner and token, at the next epoch", got)
	}
}

func testSleep(t *testing.T, f *fixture) {
	w := f.worker(time.Hour, []pawl.VersionID{{Workflow: "refund", Version: "1"}, {Workflow: "enrich", Version: "1"}})
	if d, known, err := f.s.Due(f.ctx(), w.ID); known || err != nil {
		t.Errorf("with no runs Due = %v, %t, %v; want nothing known", d, known, err)
	}
	now := f.now()
	for _, r := range []struct {
		workflow string
		in       time.Duration
	}{{"refund", time.Hour}, {"enrich", 10 * time.Minute}, {"other", time.Minute}} {
		row := newRun()
		row.Workflow, row.Due = r.workflow, now+r.in.Microseconds()
		f.insertRun(row)
	}
	d, known, err := f.s.Due(f.ctx(), w.ID)
	if !known || err != nil || d > 10*time.Minute || d < 9*time.Minute {
		t.Errorf("Due = %v, %t, %v; want 10 minutes", d, known, err)
	}
	f.advance(30 * time.Minute)
	if d, known, err := f.s.Due(f.ctx(), w.ID); !known || err != nil || d != 0 {
		t.Errorf("with a run overdue Due = %v, %t, %v; want 0", d, known, err)
	}
}

func testStray(t *testing.T, f *fixture) {
	const grace = time.Minute
	stray := func() []pawl.RunID {
		t.Helper()
		got, _, err := f.s.Stray(f.ctx(), grace, 10)
		f.ok(err)
		return got
	}
	row := newRun()
	row.Version = "2"
	f.insertRun(row)
	f.runs(3) // of version 1
	f.advance(2 * grace)
	if got := stray(); len(got) != 0 {
		t.Errorf("with no worker alive %v are stray", got)
	}
	had := f.worker(10*time.Second, []pawl.VersionID{{Workflow: "refund", Version: "2"}})
	f.worker(time.Hour, v1)
	if got := stray(); len(got) != 0 {
		t.Errorf("with both versions alive %v are stray", got)
	}
	f.advance(grace)
	if got := stray(); len(got) != 0 {
		t.Errorf("50 s after the last lease of version 2 %v are stray", got)
	}
	f.advance(20 * time.Second)
	if got := stray(); !slices.Equal(got, []pawl.RunID{row.ID}) {
		t.Errorf("stray: %v, want %s only", got, row.ID)
	}
	fresh := newRun()
	fresh.Version = "3"
	f.insertRun(fresh)
	if got := stray(); slices.Contains(got, fresh.ID) {
		t.Error("a run that has just become due is stray")
	}
	_, err := f.s.Heartbeat(f.ctx(), had)
	f.ok(err)
	if got := stray(); len(got) != 0 {
		t.Errorf("after version 2 is back %v are stray", got)
	}
}

func testBack(t *testing.T, f *fixture) {
	block := func(kind pawl.EntryKind) pawl.RunID {
		row := newRun()
		row.State = pawl.Blocked
		f.insertRun(row)
		f.update(func(ctx context.Context, tx pawl.Txn) error {
			return tx.OpenEntry(ctx, &pawl.EntryRow{Run: row.ID, Kind: kind})
		})
		return row.ID
	}
	want := block(pawl.AskVersion)
	block(pawl.AskLimit)
	back := func() []pawl.RunID {
		t.Helper()
		_, got, err := f.s.Stray(f.ctx(), time.Minute, 10)
		f.ok(err)
		return got
	}
	if got := back(); len(got) != 0 {
		t.Errorf("without a worker %v are back", got)
	}
	f.worker(10*time.Second, v1)
	if got := back(); !slices.Equal(got, []pawl.RunID{want}) {
		t.Errorf("back: %v, want %s only", got, want)
	}
	f.advance(20 * time.Second)
	if got := back(); len(got) != 0 {
		t.Errorf("with the worker gone %v are back", got)
	}
}

func testTidy(t *testing.T, f *fixture) {
	const keep = time.Hour
	run, owner := f.running(10 * time.Second)
	idle := f.worker(10*time.Second, v1)
	alive := f.worker(10*time.Hour, v1)
	f.advance(30 * time.Minute)
	f.ok(f.s.Tidy(f.ctx(), keep))
	if f.workerRow(idle.ID) == nil {
		t.Error("a worker was removed before its time")
	}
	f.advance(time.Hour)
	f.ok(f.s.Tidy(f.ctx(), keep))
	if f.workerRow(idle.ID) != nil || f.workerRow(owner.ID) == nil || f.workerRow(alive.ID) == nil {
		t.Error("want the idle worker removed, the owner of a run and the living one kept")
	}
	if n := f.text(`SELECT CAST(count(*) AS TEXT) FROM pawl_worker_versions`); n != "2" {
		t.Errorf("%s rows of versions, want the 2 of the workers that are left", n)
	}
	f.exec(`DELETE FROM pawl_workers WHERE id = $1`, string(owner.ID))
	if got := f.claim(alive, 10, expired); len(got) != 0 {
		t.Errorf("taken from an owner without a row: %s", ids(got))
	}
	f.ok(f.s.Tidy(f.ctx(), keep))
	if got := f.claim(alive, 10, expired); len(got) != 1 || got[0].Row.ID != run.ID {
		t.Errorf("taken after Tidy: %q, want the run whose owner had no row", ids(got))
	}
}

func testBusy(t *testing.T, f *fixture) {
	w := f.worker(time.Minute, v1)
	const steps = 40 // more than there are connections
	begun, end, done := make(chan struct{}, steps), make(chan struct{}), make(chan error, steps)
	for range steps {
		go func() {
			done <- f.s.UpdateSQL(f.ctx(), 100*time.Millisecond, func(context.Context, pawl.Txn, *sql.Tx) error {
				begun <- struct{}{}
				<-end // whatever the context says
				return nil
			})
		}()
	}
	<-begun
	for range 3 {
		ctx, cancel := context.WithTimeout(f.ctx(), 20*time.Second)
		if _, err := f.s.Heartbeat(ctx, w); err != nil {
			t.Errorf("Heartbeat while steps hold all connections: %v", err)
		}
		cancel()
	}
	close(end)
	for range steps {
		if err := <-done; err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("UpdateSQL = %v, want nil or the end of its hold", err)
		}
	}
}

func testExtend(t *testing.T, f *fixture) {
	w := f.worker(time.Minute, v1)
	extend := func() (done bool) {
		f.update(func(ctx context.Context, tx pawl.Txn) (err error) {
			done, err = tx.ExtendLease(ctx, w.ID)
			return err
		})
		return done
	}
	f.advance(50 * time.Second)
	if !extend() {
		t.Error("a lease with 10 s left was not extended")
	}
	f.advance(50 * time.Second)
	if !f.workerRow(w.ID).Alive {
		t.Error("the lease is over 50 s after it was extended by a minute")
	}
	f.advance(11 * time.Second)
	if extend() || f.workerRow(w.ID).Alive {
		t.Error("a lease that was over was extended")
	}
}

func testSuspectMark(t *testing.T, f *fixture) {
	run, w := f.running(time.Hour)
	mark := func(id pawl.RunID) *pawl.WorkerRow {
		f.update(func(ctx context.Context, tx pawl.Txn) error { return tx.MarkSuspect(ctx, w.ID, id) })
		return f.workerRow(w.ID)
	}
	before := f.now()
	if got := mark(run.ID); got.SuspectRun != run.ID || got.SuspectSince < before {
		t.Errorf("marked: run %q since %d, want %s since now", got.SuspectRun, got.SuspectSince, run.ID)
	}
	if got := mark(""); got.SuspectRun != "" || got.SuspectSince != 0 {
		t.Errorf("taken off: run %q since %d", got.SuspectRun, got.SuspectSince)
	}
}

func testOverlap(t *testing.T, f *fixture) {
	first := f.worker(30*time.Second, nil)
	f.advance(20 * time.Second)
	f.worker(30*time.Second, nil) // ends 20 s after the first
	left := f.worker(30*time.Second, nil)
	f.ok(f.s.Unregister(f.ctx(), left.ID))
	f.advance(20 * time.Second)
	if got := f.workerRow(first.ID).Overlap; got != 0 {
		t.Errorf("with the other one alive and one that left: overlap %d, want 0", got)
	}
	f.advance(20 * time.Second)
	if got := f.workerRow(first.ID).Overlap; got != 1 {
		t.Errorf("both gone within a lease: overlap %d, want 1", got)
	}
	f.advance(time.Hour)
	f.worker(time.Second, nil)
	f.advance(time.Minute)
	if got := f.workerRow(first.ID).Overlap; got != 1 {
		t.Errorf("a third one gone an hour later: overlap %d, want 1", got)
	}
}
