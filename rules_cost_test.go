package pawl_test

import (
	"context"
	"database/sql"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pawlrun/pawl"
	"github.com/pawlrun/pawl/internal/hooks"
	"github.com/pawlrun/pawl/internal/pgtest"
	"github.com/pawlrun/pawl/postgres"
)

// meter is a database of its own whose traffic is counted: what its store sends, by a proxy, and what becomes of rows, by
// the server. It is the store of a worker that says when it has begun to claim and to look.
type meter struct {
	pawl.Store
	t      *testing.T
	url    string
	proxy  *pgtest.Proxy
	direct *sql.DB // past the proxy

	claims, looks atomic.Int64 // answered
	wake          atomic.Pointer[func()]
}

// traffic is what has been sent: round trips, whatever is in one, and how many transactions these have ended.
type traffic struct{ Rounds, Commits int }

func metered(t *testing.T) *meter {
	t.Helper()
	m := &meter{t: t, url: pgtest.URL(t)}
	m.proxy = pgtest.NewProxy(t, m.url)
	m.Store = m.open(m.proxy.Rewrite(t, m.url))
	db, err := sql.Open("pgx", m.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	m.direct = db
	return m
}

func (m *meter) open(url string) *postgres.Store {
	m.t.Helper()
	s, err := postgres.Open(m.t.Context(), url, &postgres.Options{Migrate: true, NoListen: true})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = s.Close() }) // most have been closed by then
	return s
}

func (m *meter) Claim(ctx context.Context, c pawl.Claim) ([]pawl.Claimed, error) {
	got, err := m.Store.Claim(ctx, c)
	m.claims.Add(1)
	return got, err
}

func (m *meter) Due(ctx context.Context, id pawl.WorkerID) (time.Duration, bool, error) {
	d, ok, err := m.Store.Due(ctx, id)
	m.looks.Add(1)
	return d, ok, err
}

// Listen hears what the test says.
func (m *meter) Listen(ctx context.Context, wake func()) error {
	m.wake.Store(&wake)
	<-ctx.Done()
	return ctx.Err()
}

// sent is what was sent since.
func (m *meter) sent(since traffic) traffic {
	return traffic{m.proxy.Rounds() - since.Rounds, m.proxy.Commits() - since.Commits}
}

// work starts a worker that sends nothing by itself once it has claimed and looked, and waits until it has.
func (m *meter) work(poll time.Duration, defs ...pawl.Definition) (e *pawl.Engine, stop func()) {
	m.t.Helper()
	e, err := pawl.New(m, &pawl.Options{Lease: 10 * time.Minute, Poll: poll, Build: "b1", Logger: slog.New(slog.DiscardHandler),
		Hooks: &hooks.Hooks{NoSweep: true, FlushDelay: time.Hour}}, defs...)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Work(ctx) }()
	eventually(m.t, "the worker has claimed, and looked when to claim again", func() bool { return m.looks.Load() > 0 && m.wake.Load() != nil })
	return e, func() {
		m.t.Helper()
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	}
}

// rows are how many rows of a table were inserted, updated and deleted, and how many of the updates left the indexes alone.
type rows struct{ Inserted, Updated, Deleted, Hot int }

// rows closes the store and asks the server what its sessions have done, which it knows for certain when they are gone.
func (m *meter) rows() map[string]rows {
	m.t.Helper()
	if err := m.Close(); err != nil {
		m.t.Fatal(err)
	}
	eventually(m.t, "the store's sessions end", func() bool {
		var n int
		err := m.direct.QueryRowContext(m.t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&n)
		return err == nil && n == 0
	})
	found, err := m.direct.QueryContext(m.t.Context(), `SELECT relname, n_tup_ins, n_tup_upd, n_tup_del, n_tup_hot_upd
		FROM pg_stat_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0 AND relname IN ('pawl_runs', 'pawl_steps',
		'pawl_attempts', 'pawl_inbox', 'pawl_evidence', 'pawl_audit', 'pawl_keys', 'pawl_workers')`)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	all := make(map[string]rows)
	for found.Next() {
		var table string
		var r rows
		if err := found.Scan(&table, &r.Inserted, &r.Updated, &r.Deleted, &r.Hot); err != nil {
			m.t.Fatal(err)
		}
		all[table] = r
	}
	if err := found.Err(); err != nil {
		m.t.Fatal(err)
	}
	return all
}

// wantRows compares what has become of runs, steps and all that could go with them.
func (m *meter) wantRows(runs, steps rows) {
	m.t.Helper()
	got := m.rows()
	delete(got, "pawl_workers")
	for table, r := range got {
		r.Hot = 0 // depends on the room that a page has
		got[table] = r
	}
	want := map[string]rows{"pawl_runs": runs, "pawl_steps": steps}
	maps.DeleteFunc(want, func(_ string, r rows) bool { return r == rows{} })
	if diff := cmp.Diff(want, got); diff != "" {
		m.t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// transactions is how many transactions have written the rows as they are now, by the server's own numbers.
func (m *meter) transactions() (n int) {
	m.t.Helper()
	err := m.direct.QueryRowContext(m.t.Context(), `SELECT count(DISTINCT by) FROM
		(SELECT xmin::text FROM pawl_runs UNION ALL SELECT xmin::text FROM pawl_steps) AS row(by)`).Scan(&n)
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// A run that is alone costs a round trip and a commit for each result, which the next intent or the end goes along with,
// and one for its start; nothing is read. One that a worker of another process has
// to find costs a claim there and a look after it.
func TestCostOfARunThatIsAlone(t *testing.T) {
	t.Parallel()
	const ten = 10
	for _, c := range []struct {
		name    string
		kind    string
		claimed bool
		sent    traffic
		runs    rows
		steps   rows
	}{
		{"Repeatable", "r", false, traffic{1 + ten, 1 + ten}, rows{Inserted: 1, Updated: 1}, rows{Inserted: ten}},
		{"Repeatable, claimed", "r", true, traffic{1 + ten + 1, 1 + ten}, rows{Inserted: 1, Updated: 2}, rows{Inserted: ten}},
		{"Once", "o", false, traffic{2 + ten, 2 + ten}, rows{Inserted: 1, Updated: 1}, rows{Inserted: ten, Updated: ten}},
		{"Once, claimed", "o", true, traffic{2 + ten + 1, 2 + ten}, rows{Inserted: 1, Updated: 2}, rows{Inserted: ten, Updated: ten}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := metered(t)
			w := pawl.Define("ten", "v1", mixed(strings.Repeat(c.kind, ten)))
			e, stop := m.work(10*time.Minute, w)
			since := m.sent(traffic{})
			if c.claimed {
				other := m.open(m.url)
				h := m.start(w, other)
				(*m.wake.Load())()
				m.result(h, ten)
				eventually(t, "the worker looks after the claim", func() bool { return m.looks.Load() == 2 })
				if err := other.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				m.result(m.startOn(w, e), ten)
			}
			if got := m.sent(since); got != c.sent {
				t.Errorf("a run of %d steps cost %+v, want %+v", ten, got, c.sent)
			}
			if n := m.transactions(); n != ten {
				t.Errorf("results and end were written by %d transactions, want %d: the last result comes with the end", n, ten)
			}
			stop()
			m.wantRows(c.runs, c.steps)
		})
	}
}

func (m *meter) start(w *pawl.Workflow[int, int], s pawl.Store) *pawl.Handle[int] {
	m.t.Helper()
	e, err := pawl.New(s, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return m.startOn(w, e)
}

func (m *meter) startOn(w *pawl.Workflow[int, int], e *pawl.Engine) *pawl.Handle[int] {
	m.t.Helper()
	h, err := w.Start(m.t.Context(), e, 1)
	if err != nil {
		m.t.Fatal(err)
	}
	return h
}

func (m *meter) result(h *pawl.Handle[int], want int) {
	m.t.Helper()
	if n, err := h.Result(m.t.Context()); err != nil || n != want {
		m.t.Fatalf("the run gave %d, %v; want %d", n, err, want)
	}
}

// Runs that come together share their transactions: those that wait for one under way are all in the next.
func TestCostOfRunsThatComeTogether(t *testing.T) {
	t.Parallel()
	const crowd, steps = 64, 10
	m := metered(t)
	var sending, arrived [steps + 1]atomic.Int64 // by the number of results that are there
	var gates [steps + 1]chan struct{}
	for i := range gates {
		gates[i] = make(chan struct{})
	}
	w := pawl.Define("crowd", "v1", func(run *pawl.Run, in int) (int, error) {
		for i := range steps {
			_, err := pawl.Repeatable(run.Item(strconv.Itoa(i)), "s", in, func(ctx context.Context, in int) (int, error) {
				arrived[i].Add(1)
				select {
				case <-gates[i+1]:
					sending[i+1].Add(1)
					return in, nil
				case <-ctx.Done():
					return 0, context.Cause(ctx)
				}
			})
			if err != nil {
				return 0, err
			}
		}
		return in, nil
	})
	e, stop := m.work(10*time.Minute, w)
	since, connections := m.sent(traffic{}), m.proxy.Connections()
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() {
			<-gates[0]
			sending[0].Add(1)
			h, err := w.Start(t.Context(), e, 1)
			if err == nil {
				_, err = h.Result(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			arrived[steps].Add(1)
		})
	}
	for i := range gates {
		// While the first transaction waits for its commit, all others have the time to come to the writer.
		held := m.proxy.HoldCommit()
		close(gates[i])
		<-held
		ticks := 0
		eventually(t, "all want to write", func() bool {
			if sending[i].Load() == crowd {
				ticks++
			}
			return ticks > 2
		})
		m.proxy.ReleaseCommit(t)
		eventually(t, "all have written", func() bool { return arrived[i].Load() == crowd })
	}
	wg.Wait()
	// It is two a step, and more only if the machine kept somebody from arriving for all that time.
	got := m.sent(since)
	opened := m.proxy.Connections() - connections // for what the other one had not prepared yet; each asks for its settings first
	if most := crowd * steps * 15 / 100; got.Commits > most || got.Rounds != got.Commits+3*opened || opened > 1 {
		t.Errorf("%d runs of %d steps cost %+v and %d connections, want a round trip each for at most %d commits", crowd, steps, got, opened, most)
	}
	t.Logf("%.3f commits a step", float64(got.Commits)/(crowd*steps))
	stop()
	m.wantRows(rows{Inserted: crowd, Updated: crowd}, rows{Inserted: crowd * steps})
}

// A heartbeat writes the worker's row and no index, whatever the worker holds.
func TestCostOfAHeartbeat(t *testing.T) {
	t.Parallel()
	const beats, held = 5, 3
	m := metered(t)
	w := pawl.Define("held", "v1", mixed("r"))
	for range held {
		m.start(w, m.Store)
	}
	me := pawl.WorkerRow{ID: "7d444840-9dc0-11d1-b245-5ffdce74fad2", Lease: 10 * time.Minute}
	has := []pawl.VersionID{pawl.NameOf(w)}
	if err := m.Register(t.Context(), me, has); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Claim(t.Context(), pawl.Claim{Worker: me.ID, Has: has, Limit: held, Token: 5}); err != nil || len(got) != held {
		t.Fatalf("claimed %d runs, %v", len(got), err)
	}
	for range beats {
		if b, err := m.Heartbeat(t.Context(), me); err != nil || len(b.Runs) != held {
			t.Fatalf("heartbeat: %+v, %v", b, err)
		}
	}
	got := m.rows()
	if want := (rows{Inserted: 1, Updated: beats, Hot: beats}); got["pawl_workers"] != want {
		t.Errorf("%d heartbeats of a worker made %+v of its row, want %+v", beats, got["pawl_workers"], want)
	}
	if r := got["pawl_runs"]; r.Updated != held {
		t.Errorf("the rows of %d runs were written %d times, want once each, by the claim", held, r.Updated)
	}
}

// An idle worker's poll is one look that writes nothing; it claims only when something is due.
func TestCostOfAnIdleWorker(t *testing.T) {
	t.Parallel()
	m := metered(t)
	_, stop := m.work(50*time.Millisecond, pawl.Define("none", "v1", mixed("")))
	looks, since := m.looks.Load(), m.sent(traffic{})
	eventually(t, "twenty polls", func() bool { return m.looks.Load() >= looks+20 })
	got, polls := m.sent(since), int(m.looks.Load()-looks)
	if got.Commits != 0 || got.Rounds > polls+1 || m.claims.Load() != 1 {
		t.Errorf("%d polls of an idle worker sent %+v, with %d claims; want a round trip each and no claim but the first", polls, got, m.claims.Load())
	}
	stop()
	m.wantRows(rows{}, rows{})
}
