package pawl_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
	"github.com/pawlrun/pawl/sqlite"
)

const zoneProcess = "PAWL_TEST_ZONE_PROCESS"

// zoned are the definitions of the processes of TestScheduleInTwoZones.
func zoned() []pawl.Definition {
	w := flow("report", "v1", func(run *pawl.Run, in string) (string, error) { return time.Local.String(), nil })
	return []pawl.Definition{w, w.Schedule("minutely", pawl.Cron("* * * * *", "Europe/Berlin"), func(at time.Time) string { return at.Format(time.RFC3339) },
		pawl.Overlap(pawl.OverlapAllow))}
}

// TestScheduleZoneProcess is a worker process of TestScheduleInTwoZones.
func TestScheduleZoneProcess(t *testing.T) {
	path := os.Getenv(zoneProcess)
	if path == "" {
		t.Skip("it is started by another test")
	}
	store, err := sqlite.Open(path, &sqlite.Options{Hooks: &hooks.Store{Offset: true}})
	must(t, err)
	e, err := pawl.New(store, &pawl.Options{Poll: 3 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, zoned()...)
	must(t, err)
	_ = e.Work(t.Context()) // until it is killed
}

// Two processes in two zones, one schedule, time moved by minutes: one run for each instant (G14, FR-077).
func TestScheduleInTwoZones(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pawl.db")
	store, err := sqlite.Open(path, &sqlite.Options{Hooks: &hooks.Store{Offset: true}})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	db := store.DB()
	desk, err := pawl.New(store, nil)
	must(t, err)
	// A minute begins for the store, so that none ends by itself between two that are added: of two at once one would be missed.
	_, err = db.ExecContext(t.Context(), `UPDATE pawl_test_clock SET offset_us = $1`, -(time.Now().UnixMicro() % 60_000_000))
	must(t, err)
	for _, zone := range []string{"UTC", "Asia/Tokyo"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestScheduleZoneProcess$")
		cmd.Env = append(os.Environ(), zoneProcess+"="+path, "TZ="+zone)
		must(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	}
	var first time.Time
	eventually(t, "the schedule is there", func() bool {
		d, err := desk.ShowSchedule(t.Context(), "minutely")
		if err == nil {
			first = d.Next
		}
		return err == nil
	})
	n := upTo(25, 200)
	for i := range n {
		_, err := db.ExecContext(t.Context(), `UPDATE pawl_test_clock SET offset_us = offset_us + 60000000`)
		must(t, err)
		eventually(t, fmt.Sprintf("instant %d is decided", i), func() bool {
			d, err := desk.ShowSchedule(t.Context(), "minutely")
			return err == nil && d.Started > i
		})
	}
	all, _, err := desk.Occurrences(t.Context(), "minutely", "", 1000)
	must(t, err)
	runs, _, err := desk.Runs(t.Context(), pawl.RunQuery{Limit: 1000})
	must(t, err)
	if len(all) != len(runs) || len(all) < n || len(all) > n+2 { // the clock goes on by itself too, if this takes more than a minute
		t.Errorf("%d instants and %d runs, want %d", len(all), len(runs), n)
	}
	for i, o := range all {
		if want := first.Add(time.Duration(len(all)-1-i) * time.Minute); !o.At.Equal(want) || !o.State.HasRun() {
			t.Errorf("occurrence %d is %s of %s, want one with a run of %s", i, o.State, o.At, want)
		}
	}
}

// 10,000 schedules of one minute are decided in batches by two workers: one run each, and far fewer statements than runs.
func TestScheduleManyAtOnce(t *testing.T) {
	t.Parallel()
	n := upTo(3_000, 10_000)
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	store, err := postgres.Open(t.Context(), proxy.Rewrite(t, url), &postgres.Options{Migrate: true, NoListen: true})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	w := flow("report", "v1", func(run *pawl.Run, in string) (string, error) { return "", nil })
	must(t, store.Update(t.Context(), func(ctx context.Context, tx pawl.Txn) error {
		now, err := tx.Now(ctx)
		for i := range n {
			at := now/60_000_000*60_000_000 - 60_000_000
			s := pawl.ScheduleRow{Name: fmt.Sprintf("s%05d", i), Workflow: "report", Spec: []byte(`{"when":"every 24h0m0s"}`), Input: []byte(`"{{schedule}}"`),
				Overlap: pawl.OverlapSkip, Revision: 1, Upto: at - at%86_400_000_000 - 1, Due: at}
			if _, err := tx.InsertSchedule(ctx, &s); err != nil {
				return err
			}
		}
		return err
	}))
	other := flow("other", "v1", func(run *pawl.Run, in string) (string, error) { return "", nil })
	idle := make([]*pawl.Engine, 0, 2)
	for range 2 {
		e, err := pawl.New(store, &pawl.Options{Poll: time.Hour, Lease: time.Hour, Logger: slog.New(slog.DiscardHandler)}, w, other)
		must(t, err)
		idle = append(idle, e)
	}
	must(t, idle[0].PauseQueue(t.Context(), "report", ann)) // it is about deciding, not about runs
	before := proxy.Rounds()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, len(idle))
	for _, e := range idle {
		go func() { done <- e.Work(ctx) }()
	}
	db, err := sql.Open("pgx", url)
	must(t, err)
	defer func() { must(t, db.Close()) }()
	count := func(query string) (n int) {
		must(t, db.QueryRowContext(t.Context(), query).Scan(&n))
		return n
	}
	eventually(t, "all are decided", func() bool { return count(`SELECT count(*) FROM pawl_schedules WHERE streak = 0 AND started = 1`) == n })
	rounds := proxy.Rounds() - before
	cancel()
	for range idle {
		must(t, <-done)
	}
	if got := count(`SELECT count(DISTINCT run) FROM pawl_occurrences`); got != n {
		t.Errorf("%d runs for %d instants", got, n)
	}
	if got := count(`SELECT count(*) FROM pawl_runs`); got != n {
		t.Errorf("%d runs in all, want %d", got, n)
	}
	t.Logf("%d schedules were decided in %d round trips", n, rounds)
	if most := n; rounds > most { // one by one it would be several each; where two collide, they do some again
		t.Errorf("%d round trips for %d schedules, want at most %d", rounds, n, most)
	}
}
